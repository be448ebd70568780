"""`/retry 3`: several answers to the last prompt at once, side by side; the user chooses one."""

import time
from collections.abc import Sequence
from dataclasses import replace
from threading import RLock
from typing import Self

from dflash_mlx.chat.messages import Messages
from dflash_mlx.errors import UsageError

from ..answer import INTERRUPTED, Answer, spinner_symbol
from ..terminal.live_region import STYLE_SEQUENCE, LiveRegion, truncate
from ..terminal.markdown import MarkdownStream, PlainTextStream
from ..terminal.output import Output, format_count, screen_width, stdout_size, strip_control
from ..terminal.signals import LEAVE_WINDOW, Interrupt, LeaveChat
from .dialogue import Dialogue
from .messages import step_of, turn_of
from .state import ChatState
from .view import FOOTER_ROWS, FRAME_INTERVAL, TAIL_ROWS

MAX_ANSWERS = 8
MIN_COLUMN = 30  # cells; narrower answers are shown one below the other
SEPARATOR = " │ "
NOTES = {INTERRUPTED: " (stopped)", "length": " (cut)"}


def several(argument: str) -> int:
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
        dialogue.totals.add(answer)
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


class SeveralView:
    """Shows several answers while they stream: in columns, or one below the other if narrow.

    A context manager; at its end all answers are printed whole. Without a terminal that can redraw
    lines, only that is shown.
    """

    def __init__(self, out: Output, answers: Sequence[Answer], *, markdown: bool):
        from ..terminal.render import Renderer

        self._out = out
        self._answers = answers
        self._markdown = markdown
        self._renderer = Renderer(ascii=out.ascii)
        self._region = LiveRegion(out.draw, self._screen)
        self._lock = RLock()  # the thread that reads keys draws, too
        self._began = time.perf_counter()
        self._next_frame_at = 0.0
        self._frame = 0
        self._last_size = (80, 24)

    def __enter__(self) -> Self:
        if self._out.stdout_live:
            self._out.region = self._region
            self._out.redraw = self.redraw
        return self

    def __exit__(self, *_: object) -> None:
        self._out.redraw = None
        with self._lock:
            try:
                self._print_all()
            finally:
                self._region.erase()

    def redraw(self) -> None:
        """Draw a frame at once, because the user typed something. Any thread may call it."""
        self._next_frame_at = 0.0
        self.draw()

    def draw(self) -> None:
        if not self._out.stdout_live or time.perf_counter() < self._next_frame_at:
            return
        with self._lock:
            columns, rows = self._screen()
            width = max(columns - 1, 1)
            footer = self._out.footer(width, max(1, min(FOOTER_ROWS, rows // 4)))
            room = max(rows // 2 - 2 - len(footer), 0)
            lines = self._ends(width, room)
            self._region.draw([], [*lines, self._status(width), *footer])
            self._next_frame_at = time.perf_counter() + FRAME_INTERVAL

    def _ends(self, width: int, room: int) -> list[str]:
        column = self._column(width)
        if not column:
            each = room // len(self._answers)
            rows = [self._plain_rows(answer, width - 3)[-each:] for answer in self._answers]
            return [
                f"{n if not i else ' '}  {row}"
                for n, ends in enumerate(rows if each else (), 1)
                for i, row in enumerate(ends)
            ]
        height = min(TAIL_ROWS, room)
        rows = [self._plain_rows(answer, column)[-height:] for answer in self._answers]
        return self._side_by_side(rows, column) if height else []

    def _status(self, width: int) -> str:
        self._frame += 1
        done = sum(answer.finish_reason != INTERRUPTED for answer in self._answers)
        seconds = time.perf_counter() - self._began
        text = f"{done} of {len(self._answers)} answers ready · {seconds:.0f} s"
        line = f"{spinner_symbol(self._frame, self._out)} {self._out.ascii_fallback(text)}"
        return f"\x1b[2m{truncate(line, width)}\x1b[0m"

    def _column(self, width: int) -> int:
        """The width of a column; 0 if the screen is too narrow for columns."""
        gaps = len(SEPARATOR) * (len(self._answers) - 1)
        column = (width - gaps) // len(self._answers)
        return column if column >= MIN_COLUMN else 0

    def _plain_rows(self, answer: Answer, width: int) -> list[str]:
        """The text so far, or the thinking before it, as rows without Markdown."""
        stream = PlainTextStream(dim=not answer.text)
        text = strip_control(answer.text or answer.thinking)
        return self._renderer.preview([*stream.feed(text), *stream.finish()], width)

    def _rows(self, answer: Answer, width: int) -> list[str]:
        stream = MarkdownStream() if self._markdown else PlainTextStream()
        fragments = [*stream.feed(strip_control(answer.text)), *stream.finish()]
        return self._renderer.preview(fragments, width)

    def _print_all(self) -> None:
        titles = [
            f"{number}{NOTES.get(answer.finish_reason, '')}"
            for number, answer in enumerate(self._answers, 1)
        ]
        if not self._out.stdout_live:
            for title, answer in zip(titles, self._answers, strict=True):
                self._out.write(f"{title}\n{answer.text.strip()}\n\n")
            return
        width = max(self._screen()[0] - 1, 1)
        column = self._column(width)
        rows = [self._rows(answer, column or width) for answer in self._answers]
        rows = [[f"\x1b[1m{title}\x1b[0m", *own] for title, own in zip(titles, rows, strict=True)]
        if column:
            lines = self._side_by_side(rows, column)
        else:
            lines = [row for own in rows for row in (*own, "")][:-1]
        self._region.draw(lines, [])

    def _side_by_side(self, blocks: Sequence[Sequence[str]], column: int) -> list[str]:
        height = max(map(len, blocks))
        separator = f"\x1b[2m{self._out.ascii_fallback(SEPARATOR)}\x1b[0m"
        cells = [[padded(row, column) for row in (*rows, *[""] * height)] for rows in blocks]
        return [separator.join(own[row] for own in cells).rstrip() for row in range(height)]

    def _screen(self) -> tuple[int, int]:
        """Columns and rows; the last known ones when the terminal reports none."""
        size = stdout_size()
        if size > (0, 0):
            self._last_size = size
        return self._last_size


def padded(row: str, width: int) -> str:
    return row + " " * max(width - screen_width(STYLE_SEQUENCE.sub("", row)), 0)
