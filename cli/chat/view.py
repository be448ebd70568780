"""The view of an answer in a chat: prints finished fragments once and redraws the rest."""

import time
from collections import deque
from collections.abc import Sequence
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any, Self

from ..answer import AnswerView, View, progress_line, spinner_symbol, thinking_summary
from ..passes import Passes, TextStream
from ..terminal.live_region import LiveRegion
from ..terminal.markdown import Fragment, MarkdownStream
from ..terminal.output import Output, stdout_size, strip_control
from .loops import TAIL, find_loop, words_of

if TYPE_CHECKING:
    from dflash_mlx import Block, Stats

FRAME_INTERVAL = 0.1  # seconds between two frames
MAX_FRAME_INTERVAL = 1.0  # seconds; the longest pause after a slow frame
PREFILL_DELAY = 0.3  # seconds; a quicker prefill shows nothing
TAIL_ROWS = 8  # rows of unfinished text
LOOP_STEP = 64  # tokens between two looks for a loop
FOOTER_ROWS = 5  # rows of the text that the user types during the answer


def make_chat_view(
    out: Output, *, show_thinking: bool = False, passes: Passes | None = None, **details: Any
) -> View:
    """A live view if stdout is a terminal, else a plain one; the arguments are `ChatView`'s."""
    if out.stdout_live:
        return ChatView(out, show_thinking=show_thinking, passes=passes, **details)
    return AnswerView(out, thinking=show_thinking, live=False, passes=passes)


class LiveView:
    """Draws frames on the terminal on stdout, from any thread; a context manager."""

    def __init__(self, out: Output):
        from ..terminal.renderer import Renderer

        self.out = out
        self._renderer = Renderer(ascii=out.ascii)
        self._region = LiveRegion(out.draw, stdout_size)
        self._lock = RLock()
        self._frame = 0
        self._next_frame_at = 0.0
        self._finished = False

    def __enter__(self) -> Self:
        self.out.region = self._region
        self.out.redraw = self.redraw
        return self

    def __exit__(self, *_: object) -> None:
        self.out.redraw = None
        with self._lock:
            try:
                self.draw(last=True)
            finally:
                self._finished = True
                self._region.erase()

    def redraw(self) -> None:
        """Draw a frame at once, because the user typed something."""
        with self._lock:
            self._next_frame_at = 0.0
            self.draw()

    def draw(self, *, last: bool = False) -> None:
        """Draw a frame if it is due, or the last one; slow frames are drawn less often."""
        with self._lock:
            started_at = time.perf_counter()
            if self._finished or (started_at < self._next_frame_at and not last):
                return
            columns, rows = self._region.size
            width = max(columns - 1, 1)
            if last:
                self._region.draw(self._last_lines(width), [])
                return
            footer = self.out.footer(width, max(1, min(FOOTER_ROWS, rows // 4)))
            # At most half the screen, so that the region still fits when the window is made half as
            # wide and each line takes two rows.
            finished, tail = self._lines(width, max(rows // 2 - 1 - len(footer), 0))
            self._region.draw(finished, [*tail, self._status_line(width), *footer])
            seconds = time.perf_counter() - started_at
            pause = min(max(FRAME_INTERVAL, 4 * seconds), MAX_FRAME_INTERVAL)
            self._next_frame_at = started_at + pause

    def _lines(self, width: int, max_rows: int) -> tuple[list[str], list[str]]:
        """Finished lines, which are printed once, and at most `max_rows` moving ones."""
        raise NotImplementedError

    def _last_lines(self, width: int) -> list[str]:
        """All lines that were not printed yet."""
        raise NotImplementedError

    def _statuses(self) -> Sequence[str]:
        """The status in fewer and fewer columns."""
        raise NotImplementedError

    def _status_line(self, width: int) -> str:
        """The first status that fits; else parts of the last are left out, from its end."""
        self._frame += 1
        spinner = spinner_symbol(self._frame, self.out)
        separator = self.out.ascii_fallback(" · ")
        lines = [self.out.ascii_fallback(status) for status in self._statuses()]
        line = next((line for line in lines if len(line) + 2 <= width), lines[-1])
        while len(line) + 2 > width and (shorter := line[: max(line.rfind(separator), 0)]):
            line = shorter
        return f"\x1b[2m{spinner} {line}\x1b[0m"


class ChatView(LiveView):
    """Shows one answer: its finished fragments, and below them a tail that is redrawn."""

    def __init__(
        self,
        out: Output,
        *,
        markdown: bool = True,
        show_thinking: bool = False,
        context_length: int = 0,
        passes: Passes | None = None,
        thinking_hint: str = "/think show",
    ):
        """`context_length` in tokens; 0 if unknown, then it is not shown.

        With `passes` the text is shown as it is, in the colours of its passes. thinking_hint: what
        shows folded thinking.
        """
        super().__init__(out)
        self._show_thinking = show_thinking
        self._context_length = context_length
        self._thinking_hint = thinking_hint
        self._passes = passes
        self._answer: MarkdownStream | TextStream = TextStream(passes=passes)
        if markdown and passes is None:
            self._answer = MarkdownStream()
        self._thinking: TextStream | None = None  # unless the model is thinking
        self._recent_thinking: deque[Fragment] = deque(maxlen=TAIL_ROWS)
        self._thinking_began = 0.0
        self.thought_tokens = 0
        self.thought_seconds = 0.0
        self._fragments: list[Fragment] = []  # finished; the next frame prints them
        self._printed = False  # whether any fragment is on the screen
        self._status: tuple[str, ...] = ("",)
        self._tokens: list[object] = []  # or words, where a server sends no tokens
        self._looked_at = 0  # of these, when a loop was looked for
        self._loop = ""
        self._prefill_over: Event | None = None

    def __exit__(self, *_: object) -> None:
        self._end_prefill()
        super().__exit__()

    def prefill(self, done: int, total: int) -> None:
        with self._lock:
            progress = f"reading the prompt {done:,}/{total:,} tokens"
            self._status = (progress if total else "waiting for the server",)
            if self._prefill_over is None:
                self._prefill_over = Event()
                Thread(
                    target=self._animate_prefill, args=(self._prefill_over,), daemon=True
                ).start()

    def waiting(self) -> None:
        self.draw()

    def block(self, block: "Block", stats: "Stats") -> None:
        with self._lock:
            self._end_prefill()
            if self._passes is not None:
                self._passes.begin(block)
            if block.thinking:
                self._add_thinking(block)
            if text := strip_control(block.text):
                self._end_thinking()
                self._fragments += self._answer.feed(text)
            context = ""
            if self._context_length and not stats.unknown & {"prompt_tokens", "generated"}:
                used = stats.prompt_tokens + stats.generated
                context = f" · context {used:,} / {self._context_length:,}"
            self._look_for_loop(block)
            self._status = (
                progress_line(stats, words=True) + self._loop + context,
                progress_line(stats) + self._loop + context,
            )
            self.draw()

    def _look_for_loop(self, block: "Block") -> None:
        self._tokens += words_of(block)
        if len(self._tokens) - self._looked_at >= LOOP_STEP:
            self._looked_at = len(self._tokens)
            loop = find_loop(self._tokens[-TAIL:])
            self._loop = " · repeats itself: Ctrl-C stops" if loop else ""

    def _add_thinking(self, block: "Block") -> None:
        if self._thinking is None:
            self._thinking = TextStream(dim=True, passes=self._passes)
            self._thinking_began = time.perf_counter()
        self.thought_tokens += len(block.tokens)
        lines = self._thinking.feed(strip_control(block.thinking))
        if self._show_thinking:
            self._fragments += lines
        else:
            self._recent_thinking.extend(lines)

    def _end_thinking(self) -> None:
        if self._thinking is None:
            return
        self.thought_seconds += time.perf_counter() - self._thinking_began
        if self._show_thinking:
            self._fragments += self._thinking.finish()
        else:
            line = thinking_summary(self.thought_seconds, self.thought_tokens)
            line = self.out.ascii_fallback(f"{line} ({self._thinking_hint})")
            self._fragments.append(Fragment("text", line, gap=True, dim=True))
        self._thinking = None
        self._recent_thinking.clear()

    def _lines(self, width: int, max_rows: int) -> tuple[list[str], list[str]]:
        finished = self._renderer.lines(self._fragments, width, gap=self._printed)
        self._printed = self._printed or bool(finished)
        self._fragments.clear()
        stream = self._thinking or self._answer
        fragments = [*self._recent_thinking, *stream.tail()]
        max_rows = min(TAIL_ROWS, max_rows)
        tail = self._renderer.preview(fragments, width)
        if len(tail) > max_rows:
            tail = tail[len(tail) - max_rows :]
            if max_rows > 2:
                tail[0] = self.out.ascii_fallback("…")
        gap = fragments[0].gap if fragments else not stream.in_code
        return finished, [""] * (gap and self._printed and max_rows > 0) + tail

    def _last_lines(self, width: int) -> list[str]:
        self._end_thinking()
        self._fragments += self._answer.finish()
        return self._lines(width, 0)[0]

    def _statuses(self) -> Sequence[str]:
        return self._status

    def _end_prefill(self) -> None:
        if self._prefill_over is not None:
            self._prefill_over.set()

    def _animate_prefill(self, over: Event) -> None:
        """Redraw the status until the first block sets `over`."""
        wait = PREFILL_DELAY
        while not over.wait(wait):
            self.draw()
            wait = FRAME_INTERVAL
