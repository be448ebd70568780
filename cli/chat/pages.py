"""The header of a chat: the pair, the machine, and the first commands to know."""

from collections.abc import Sequence

from dflash_mlx import __version__
from dflash_mlx.options import GenerationOptions

from ..answer import Answer, counted, prompt_words
from ..prompt import split_attached
from ..terminal.markdown import MarkdownStream
from ..terminal.output import Output, format_count, stderr_columns, strip_control
from ..terminal.render import excerpt, position_rows, wrap_hanging
from .dialogue import Dialogue
from .state import ChatState, shorten
from .tools import key_of
from .transcript import Turn, call_lines


def show_header(
    dialogue: Dialogue,
    load_seconds: float,
    *,
    preset: str | None = None,
    more: Sequence[str] = (),
    faults: Sequence[str] = (),
) -> None:
    """Print the header with the preset in use and `more` lines; then what is wrong."""
    lines = header_lines(dialogue, load_seconds, preset)
    faults = [*faults, *dialogue.backend.warnings()]
    for line in [*lines, *more]:
        dialogue.out.note(wrap_hanging(line, stderr_columns()))
    for fault in faults:
        dialogue.out.note(wrap_hanging(fault, stderr_columns()), "warning")
    dialogue.out.note("")


def header_lines(dialogue: Dialogue, load_seconds: float, preset: str | None = None) -> list[str]:
    """The lines of the header."""
    backend = dialogue.backend
    named_preset = f" · preset {preset}" if preset else ""
    return [
        f"dflash {__version__} · {backend.headline(dialogue.settings)}{named_preset}",
        f"{backend.start_summary(load_seconds)} · /help lists commands · Ctrl-C stops · "
        "Ctrl-D leaves",
    ]


# The lines of `/stats`


def stats_page(dialogue: Dialogue, out: Output) -> list[str]:
    """The lines of `/stats`."""
    lines = [] if dialogue.last is None else answer_lines(dialogue.last, out)
    totals = dialogue.totals
    tau = f" · τ {totals.acceptance_length:.2f}" if totals.verifies else ""
    answers = format_count(totals.answers, "answer", "answers")
    tokens = "tokens unknown" if totals.uncounted else f"{totals.tokens:,} tokens"
    rows = dialogue.backend.usage_rows(f"{answers} · {tokens}{tau}", dialogue.settings)
    return lines + [labelled_line(label, text) for label, text in rows]


def answer_lines(answer: Answer, out: Output) -> list[str]:
    """The last answer in numbers."""
    lines, stats = [], answer.stats
    drafts = ""
    if stats.verifies:
        drafts += f" · {format_count(stats.verifies, 'verify', 'verifies')}"
    if stats.drafted:
        drafts += (
            f" · {stats.accepted:,} of {stats.drafted:,} drafts accepted "
            f"({stats.acceptance_rate:.1%})"
        )
    if stats.verifies:
        drafts += f" · τ {stats.acceptance_length:.2f}"
    if not drafts:
        drafts = " · drafts unknown" if "drafted" in stats.unknown else " · no drafts"
    lines.append(labelled_line("last answer", counted(stats, "generated") + drafts))
    for number, row in enumerate(position_rows(stats.accepted_by_position, stats.verifies, out)):
        lines.append(labelled_line("" if number else "by position", row))
    rate = f" · {stats.tokens_per_second:.1f} tok/s" if stats.tokens_per_second else ""
    lines.append(
        labelled_line(
            "time",
            f"prefill {stats.prefill_seconds:.2f} s · first token "
            f"{answer.first_token_seconds:.2f} s · decode {stats.decode_seconds:.2f} s{rate}",
        )
    )
    lines.append(labelled_line("prompt", prompt_words(stats) + " tokens"))
    if stats.seed is not None:
        lines.append(labelled_line("seed", str(stats.seed)))
    return lines


def labelled_line(name: str, text: str) -> str:
    """A label and its text."""
    return f"  {name:14}{text}"


# The page of `/mcp`


def show_servers(state: ChatState) -> None:
    """The servers with their state, and their tools with what is allowed."""
    dialogue = state.dialogue
    box = dialogue.tools
    assert box.servers is not None
    assert box.permissions is not None
    width = max(len(server.config.name) for server in box.servers.all) + 2
    named = {(tool.server, tool.key): tool for tool in box.servers.tools}
    for server in box.servers.all:
        about = f"{server.state}: {server.why}" if server.why else server.state
        if server.tools:
            about += f" · {format_count(len(server.tools), 'tool', 'tools')}"
        state.print_line(
            f"  {server.config.name:{width}}{about} · {shorten(server.config.source, 60)}"
        )
        for tool in server.tools:
            allowed = box.permissions.state(key_of(server.config, tool.key))
            allowed = {"session": " · allowed in this session", "always": " · always allowed"}.get(
                allowed, ""
            )
            name = named[tool.server, tool.key].name
            state.print_line(f"    {name}  {shorten(tool.description, 60)}{allowed}", "dim")
    if why := dialogue.backend.no_tools_reason():
        state.print_line(f"  this model {why}: it is told of none of these", "warning")
    elif not box.on:
        state.print_line("  the model is told of none of these; /mcp on changes that", "warning")
    else:
        box.tell(dialogue.backend)
        asked = [{"role": "user", "content": "?"}]
        told = dialogue.backend.count_tokens(asked, GenerationOptions(tools=box.schemas))
        bare = dialogue.backend.count_tokens(asked, GenerationOptions())
        if told is None or bare is None:
            state.print_line("  the model is told of these", "dim")
            return
        count = format_count(told - bare, "token", "tokens")
        state.print_line(f"  the model is told of these in {count} of its context", "dim")


# Earlier turns, after a resume and for `/history`


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
