"""`/retry 3`: several answers to the last prompt at once, side by side; the user chooses one."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Self

from dflash_mlx.chat.messages import Messages
from dflash_mlx.errors import UsageError

from ..answer import INTERRUPTED, Answer
from ..passes import TextStream
from ..terminal.live_region import STYLE_SEQUENCE
from ..terminal.markdown import MarkdownStream
from ..terminal.output import Output, format_count, screen_width, strip_control
from ..terminal.signals import LEAVE_WINDOW, Interrupt, LeaveChat
from .dialogue import Dialogue
from .messages import step_of, turn_of
from .state import ChatState
from .view import TAIL_ROWS, LiveView

MAX_ANSWERS = 8
MIN_COLUMN = 30  # cells; narrower answers are shown one below the other
SEPARATOR = " │ "
NOTES = {INTERRUPTED: " (stopped)", "length": " (cut)"}


def answer_count(argument: str) -> int:
    """The number of answers that `/retry` is asked for; UsageError for another argument."""
    if not argument.isdecimal() or not 2 <= int(argument) <= MAX_ANSWERS:
        raise UsageError(
            f"/retry cannot be '{argument}'.", hint=f"give 2 to {MAX_ANSWERS} answers, or nothing"
        )
    return int(argument)


def retry_several(state: ChatState, count: int) -> None:
    """Answer the last prompt `count` times at once, and let the user choose the one that stays.

    The old answer stays, also on disk, until one is chosen.
    """
    dialogue = state.dialogue
    check_can_differ(dialogue)
    turn, earlier = dialogue.split_last_turn()
    dialogue.drop_oldest_turns(turn.prompt, (), earlier.turns)
    left_out = min(dialogue.chat.left_out, len(earlier.turns))
    messages = dialogue.messages(replace(earlier, left_out=left_out), turn.prompt)
    started_at = time.perf_counter()
    answers, is_stopped = stream_answers(dialogue, messages, count)
    seconds = time.perf_counter() - started_at
    choices = [answer for answer in answers if not answer.is_empty]
    if choices:
        state.print_line(summary_line(choices, seconds), "dim")
    if len(choices) < count and not is_stopped:
        state.print_line(f"  the server sent {len(choices)} of {count} answers", "warning")
    chosen = choose(state, answers) if choices else None
    if chosen is None:
        state.print_line("  the answer before stays", "dim")
        return
    dialogue.last_answer = chosen
    new = turn_of(turn.prompt, [step_of(chosen)])
    dialogue.replace_chat(replace(dialogue.chat, turns=(*earlier.turns, new)))
    state.print_line(f"  answer {answers.index(chosen) + 1} stays", "dim")


def check_can_differ(dialogue: Dialogue) -> None:
    """UsageError if all answers would be the same, or could call tools."""
    dialogue.require_turns()
    if dialogue.settings.sampling.greedy:
        raise UsageError(
            "at temperature 0 all answers are the same.", hint="/temp 0.7, then /retry 3"
        )
    dialogue.tools.offer_to(dialogue.backend)
    if dialogue.tools.schemas:
        raise UsageError(
            "several answers at once cannot call tools.", hint="/mcp off, then /retry 3"
        )


def stream_answers(dialogue: Dialogue, messages: Messages, count: int) -> tuple[list[Answer], bool]:
    """Show answers as they come. True: Ctrl-C stopped them; LeaveChat after a second one."""
    backend = dialogue.backend
    options = dialogue.options()
    backend.check(options)
    started_at = time.perf_counter()
    answers = [Answer(backend.stats, began=started_at) for _ in range(count)]
    view = SeveralView(dialogue.out, answers, markdown=dialogue.display.markdown)
    with Interrupt(LEAVE_WINDOW) as interrupt:

        def on_prefill(done: int, total: int) -> None:
            view.draw()
            interrupt.check()

        try:
            with view:
                for number, block, stats in backend.stream_several(
                    messages, options, count, on_prefill=on_prefill
                ):
                    answer = answers[number]
                    answer.stats = stats
                    answer.append(block)
                    on_prefill(0, 0)
        except KeyboardInterrupt:
            pass  # the answers have the text so far
    dialogue.interrupted_at = interrupt.last_at
    if interrupt.requested_twice:
        raise LeaveChat(130)
    for answer in {id(answer.stats): answer for answer in answers if not answer.is_empty}.values():
        dialogue.stats.append(answer.stats)
        dialogue.log.answered(answer, backend, options, messages[-1]["content"])
    if not interrupt.requested:
        seconds = time.perf_counter() - started_at
        dialogue.notify(seconds, f"{count} answers are ready to choose from")
    return answers, interrupt.requested


def summary_line(answers: Sequence[Answer], seconds: float) -> str:
    stats = {id(answer.stats): answer.stats for answer in answers}.values()
    line = f"  {format_count(len(answers), 'answer', 'answers')}"
    if not any("generated" in one.unknown for one in stats):
        tokens = sum(one.generated for one in stats)
        line += f" · {tokens:,} tokens together · {tokens / max(seconds, 1e-6):.1f} tok/s"
    return f"{line} · {seconds:.1f} s"


def choose(state: ChatState, answers: Sequence[Answer]) -> Answer | None:
    """The answer that the user chooses; None for the one before."""
    numbers = [str(n) for n, answer in enumerate(answers, 1) if not answer.is_empty]
    question = f"  Which answer stays? {', '.join(numbers)}, or Enter for the one before ›"
    while True:
        reply = state.ask_line(question).strip()
        if not reply:
            return None
        if reply in numbers:
            return answers[int(reply) - 1]
        state.print_line(f"  there is no answer '{reply}'", "warning")
        state.keep_draft(reply)


class SeveralView(LiveView):
    """Shows several answers while they stream: in columns, or one below the other if narrow.

    At its end all answers are printed whole. Without a terminal that can redraw lines, only that is
    shown.
    """

    def __init__(self, out: Output, answers: Sequence[Answer], *, markdown: bool):
        super().__init__(out)
        self._answers = answers
        self._markdown = markdown
        self._began = time.perf_counter()

    def __enter__(self) -> Self:
        return super().__enter__() if self.out.stdout_live else self

    def draw(self, *, last: bool = False) -> None:
        if self.out.stdout_live:
            super().draw(last=last)
        elif last:
            for title, answer in zip(self._titles(), self._answers, strict=True):
                self.out.write(f"{title}\n{answer.text.strip()}\n\n")

    def _lines(self, width: int, max_rows: int) -> tuple[list[str], list[str]]:
        column = self._column(width)
        height = min(TAIL_ROWS, max_rows) if column else max_rows // len(self._answers)
        ends = [self._preview(answer, column or width - 3)[-height:] for answer in self._answers]
        if not height:
            return [], []
        if column:
            return [], self._side_by_side(ends, column)
        return [], [
            f"{' ' if row else number}  {line}"
            for number, lines in enumerate(ends, 1)
            for row, line in enumerate(lines)
        ]

    def _preview(self, answer: Answer, width: int) -> list[str]:
        """The text so far, or the thinking before it, without Markdown."""
        stream = TextStream(dim=not answer.text)
        text = strip_control(answer.text or answer.thinking)
        return self._renderer.preview([*stream.feed(text), *stream.finish()], width)

    def _last_lines(self, width: int) -> list[str]:
        column = self._column(width)
        blocks = []
        for title, answer in zip(self._titles(), self._answers, strict=True):
            stream = MarkdownStream() if self._markdown else TextStream()
            fragments = [*stream.feed(strip_control(answer.text)), *stream.finish()]
            lines = self._renderer.preview(fragments, column or width)
            blocks.append([f"\x1b[1m{title}\x1b[0m", *lines])
        if column:
            return self._side_by_side(blocks, column)
        return [line for block in blocks for line in (*block, "")][:-1]

    def _statuses(self) -> Sequence[str]:
        done = sum(answer.finish_reason != INTERRUPTED for answer in self._answers)
        seconds = time.perf_counter() - self._began
        return [f"{done} of {len(self._answers)} answers ready · {seconds:.0f} s"]

    def _titles(self) -> list[str]:
        return [
            f"{number}{NOTES.get(answer.finish_reason, '')}"
            for number, answer in enumerate(self._answers, 1)
        ]

    def _column(self, width: int) -> int:
        """The width of a column; 0 if the screen is too narrow for columns."""
        gaps = len(SEPARATOR) * (len(self._answers) - 1)
        column = (width - gaps) // len(self._answers)
        return column if column >= MIN_COLUMN else 0

    def _side_by_side(self, blocks: Sequence[Sequence[str]], column: int) -> list[str]:
        separator = f"\x1b[2m{self.out.ascii_fallback(SEPARATOR)}\x1b[0m"
        padded = [[pad_styled(line, column) for line in block] for block in blocks]
        rows = zip_longest(*padded, fillvalue=" " * column)
        return [separator.join(row).rstrip() for row in rows]


def pad_styled(line: str, width: int) -> str:
    return line + " " * max(width - screen_width(STYLE_SEQUENCE.sub("", line)), 0)
