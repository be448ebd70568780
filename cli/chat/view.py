"""The view of an answer in a chat: prints finished fragments once and redraws the rest."""

import time
from collections import deque
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING

from ..answer import PlainView, progress_line, spinner_symbol, thinking_summary
from ..passes import MarkedView, Passes, PassStream
from ..terminal.live_region import LiveRegion
from ..terminal.markdown import Fragment, MarkdownStream, PlainTextStream
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
    out: Output,
    *,
    markdown: bool = True,
    show_thinking: bool = False,
    quiet: bool = False,
    context_length: int = 0,
    passes: Passes | None = None,
    thinking_hint: str = "/think show",
) -> PlainView:
    """A live view if stdout is a terminal, else a plain one; the arguments are `ChatView`'s."""
    if out.stdout_live and not quiet:
        return ChatView(
            out,
            markdown=markdown,
            show_thinking=show_thinking,
            context_length=context_length,
            passes=passes,
            thinking_hint=thinking_hint,
        )
    if passes is not None:
        return MarkedView(out, passes, thinking=show_thinking)
    return PlainView(out, thinking=show_thinking)


class ChatView(PlainView):
    """Streams one answer to the terminal on stdout; a context manager."""

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
        from ..terminal.render import Renderer

        super().__init__(out, thinking=show_thinking)
        self.thought_tokens = 0
        self.thought_seconds = 0.0
        self._context_length = context_length
        self._thinking_hint = thinking_hint
        self._renderer = Renderer(ascii=out.ascii)
        self._region = LiveRegion(out.draw, self._screen)
        out.region = self._region
        self._lock = RLock()  # another thread redraws during prefill
        self._passes = passes
        self._answer: MarkdownStream | PlainTextStream | PassStream
        if passes is not None:
            self._answer = PassStream(passes)
        else:
            self._answer = MarkdownStream() if markdown else PlainTextStream()
        # None unless the model is thinking
        self._thinking: PlainTextStream | PassStream | None = None
        self._recent_thinking: deque[Fragment] = deque(maxlen=TAIL_ROWS)
        self._fragments: list[Fragment] = []  # finished; the next frame prints them
        self._printed = False  # whether any fragment is on the screen
        self._status: tuple[str, ...] = ("",)  # the same in fewer and fewer columns
        self._tokens: list[object] = []  # or words, where a server sends no tokens
        self._looked_at = 0  # of these, when a loop was looked for
        self._loop = ""
        self._frame = 0
        self._next_frame_at = 0.0
        self._thinking_began = 0.0
        self._prefill_over: Event | None = None
        self._last_size = (80, 24)
        self._finished = False

    def __enter__(self) -> "ChatView":
        self.out.redraw = self.redraw
        return self

    def redraw(self) -> None:
        """Draw a frame at once, because the user typed something. Any thread may call it."""
        with self._lock:
            if not self._finished:
                self._next_frame_at = 0.0
                self._draw()

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
        with self._lock:
            self._draw()

    def block(self, block: "Block", stats: "Stats") -> None:
        with self._lock:
            self._end_prefill()
            if self._passes is not None:
                self._passes.begin(block)
            if block.thinking:
                self._add_thinking(block)
            if text := strip_control(block.text):
                self._end_thinking_block()
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
            self._draw()

    def finish(self) -> None:
        self.out.redraw = None
        with self._lock:
            self._finished = True
            self._end_prefill()
            try:
                self._end_thinking_block()
                self._fragments += self._answer.finish()
                self._draw(last=True)
            finally:
                self._region.erase()

    def _look_for_loop(self, block: "Block") -> None:
        self._tokens += words_of(block)
        if len(self._tokens) - self._looked_at >= LOOP_STEP:
            self._looked_at = len(self._tokens)
            loop = find_loop(self._tokens[-TAIL:])
            self._loop = " · repeats itself: Ctrl-C stops" if loop else ""

    def _add_thinking(self, block: "Block") -> None:
        if self._thinking is None:
            self._thinking = PlainTextStream(dim=True)
            if self._passes is not None:
                self._thinking = PassStream(self._passes, dim=True)
            self._thinking_began = time.perf_counter()
        self.thought_tokens += len(block.tokens)
        lines = self._thinking.feed(strip_control(block.thinking))
        if self._show_thinking:
            self._fragments += lines
        else:
            self._recent_thinking.extend(lines)

    def _end_thinking_block(self) -> None:
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

    def _draw(self, *, last: bool = False) -> None:
        """Draw one frame if it is due; slow frames are drawn less often."""
        started_at = time.perf_counter()
        if started_at < self._next_frame_at and not last:
            return
        columns, rows = self._screen()
        width = max(columns - 1, 1)
        finished: list[str] = []
        for fragment in self._fragments:
            lines = self._renderer.lines(fragment, width)
            finished += [""] * (fragment.gap and self._printed and bool(lines))
            finished += lines
            self._printed = self._printed or bool(lines)
        self._fragments.clear()
        live: list[str] = []
        if not last:
            footer = self.out.footer(width, max(1, min(FOOTER_ROWS, rows // 4)))
            tail = self._tail(width, rows, len(footer))
            live = [*tail, self._status_line(width), *footer]
        self._region.draw(finished, live)
        seconds = time.perf_counter() - started_at
        self._next_frame_at = started_at + min(max(FRAME_INTERVAL, 4 * seconds), MAX_FRAME_INTERVAL)

    def _tail(self, width: int, rows: int, rows_below: int) -> list[str]:
        """Lines of the unfinished text.

        With the rows below they take at most half the screen, so that they still fit when the
        window is made half as wide and each line takes two rows.
        """
        stream = self._thinking or self._answer
        fragments = [*self._recent_thinking, *stream.tail()]
        max_rows = min(TAIL_ROWS, max(rows // 2 - 1 - rows_below, 0))
        lines = self._renderer.preview(fragments, width)
        if len(lines) > max_rows:
            lines = lines[len(lines) - max_rows :]
            if max_rows > 2:
                lines[0] = self.out.ascii_fallback("…")
        gap = fragments[0].gap if fragments else not stream.in_code
        return [""] * (gap and self._printed and rows > 3) + lines

    def _status_line(self, width: int) -> str:
        """The first status that fits; else parts of the last are left out, from its end."""
        self._frame += 1
        spinner = spinner_symbol(self._frame, self.out)
        separator = self.out.ascii_fallback(" · ")
        lines = [self.out.ascii_fallback(status) for status in self._status]
        line = next((line for line in lines if len(line) + 2 <= width), lines[-1])
        while len(line) + 2 > width and (shorter := line[: max(line.rfind(separator), 0)]):
            line = shorter
        return f"\x1b[2m{spinner} {line}\x1b[0m"

    def _screen(self) -> tuple[int, int]:
        """Columns and rows; the last known ones when the terminal reports none."""
        size = stdout_size()
        if size > (0, 0):
            self._last_size = size
        return self._last_size

    def _end_prefill(self) -> None:
        if self._prefill_over is not None:
            self._prefill_over.set()

    def _animate_prefill(self, over: Event) -> None:
        """Redraw the status until the first block sets `over`."""
        wait = PREFILL_DELAY
        while not over.wait(wait):
            with self._lock:
                if not over.is_set():
                    self._draw()
            wait = FRAME_INTERVAL
