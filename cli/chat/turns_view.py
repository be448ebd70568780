"""Shows turns that were said before, as they looked: after a resume, and for `/history`."""

from collections.abc import Sequence

from ..prompt import split_attached
from ..terminal.markdown import MarkdownStream
from ..terminal.output import Output, stderr_columns, strip_control
from ..terminal.render import excerpt
from .call_view import call_lines
from .state import ChatState
from .transcript import Turn


def show_turns(state: ChatState, turns: Sequence[Turn], max_rows: int | None = None) -> None:
    """Print prompts and answers; of more than `max_rows` rows only the last."""
    out = state.out
    styled = out.stderr_live and state.dialogue.display.markdown
    lines: list[str] = []
    for turn in turns:
        lines += [*prompt_lines(turn.prompt, out), ""]
        for step in turn.steps:
            lines += [*said(step.text, out, styled=styled), ""] if step.text else []
            for call in step.calls:
                shown = call_lines(call, stderr_columns())
                lines += [*map(strip_control, map(out.ascii_fallback, shown)), ""]
        if turn.answer or not turn.steps:
            lines += said(turn.answer, out, styled=styled)
        note = {"interrupted": "(stopped)", "length": "(cut)", "calls": "(no answer)"}.get(
            turn.finish_reason
        )
        lines += [f"  {note}", ""] if note else [""]
    lines = lines[:-1]
    if max_rows is not None and len(lines) > max_rows:
        lines = lines[len(lines) - max_rows + 1 :]
        state.print_line("  … /history shows all of it", "dim")
    for line in lines:
        if styled:
            state.print_styled(line)
        else:
            state.print_line(line)


def said(text: str, out: Output, *, styled: bool) -> list[str]:
    """What the model said."""
    return rendered(text, out) if styled else strip_control(text).split("\n")


def prompt_lines(prompt: str, out: Output) -> list[str]:
    """A prompt as typed, its files as one line; of a long one the first lines and the last."""
    text, files = split_attached(prompt)
    lines = [strip_control(line.replace("\t", "    ")) for line in excerpt(text.split("\n"))]
    lines += [strip_control(files.summary)] if files.files else []
    return [out.ascii_fallback("  " if i else "› ") + line for i, line in enumerate(lines)]


def rendered(text: str, out: Output) -> list[str]:
    """Markdown as lines with escape sequences, of the width of the screen."""
    from ..terminal.render import Renderer

    stream = MarkdownStream()
    renderer, width, lines = Renderer(ascii=out.ascii), max(stderr_columns() - 1, 8), []
    for fragment in [*stream.feed(strip_control(text)), *stream.finish()]:
        shown = renderer.lines(fragment, width)
        lines += [""] * (fragment.gap and bool(lines) and bool(shown)) + shown
    return lines
