"""How an answer looks in a chat: what is finished is printed once, the rest moves below it.

Knows blocks and a terminal on stdout, not where the blocks come from.
"""

import time
from collections import deque
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING

from ..output import Output, clean, screen_size
from ..terminal.markdown import Stream
from ..terminal.pieces import Lines, Piece
from ..terminal.region import Region
from ..view import SPINNER, PlainView, progress_line

if TYPE_CHECKING:
    from dflash_mlx import Block, Stats

REDRAW = 0.1  # seconds between two frames
SELDOM = 1.0  # seconds between two frames that take long to draw, at most
DELAY = 0.3  # seconds; a prompt that is read quicker shows nothing
TAIL = 8  # rows of what is not finished


def make_chat_view(
    out: Output, *, markdown: bool = True, show_thinking: bool = False, quiet: bool = False
) -> PlainView:
    """The view for what is at the end of stdout: only a terminal gets more than the answer."""
    if out.draws and not quiet:
        return ChatView(out, markdown=markdown, show_thinking=show_thinking)
    return PlainView(out, thinking=show_thinking)


class ChatView(PlainView):
    """Streams one answer to the terminal on stdout; use it as a context manager.

    `thought_tokens` and `thought_seconds` say how long the model thought before it answered.
    """

    def __init__(self, out: Output, *, markdown: bool = True, show_thinking: bool = False):
        from ..terminal.render import Renderer

        super().__init__(out, thinking=show_thinking)
        self.thought_tokens, self.thought_seconds = 0, 0.0
        self._renderer = Renderer(ascii=out.ascii)
        self._region = Region(out.draw, self._screen)
        self._lock = RLock()  # the prompt's numbers move from another thread
        self._answer: Stream | Lines = Stream() if markdown else Lines()
        self._thoughts: Lines | None = None  # while the model thinks
        self._recent: deque[Piece] = deque(maxlen=TAIL)
        self._pieces: list[Piece] = []  # finished, to be printed with the next frame
        self._printed = False
        self._status, self._frame, self._next = "", 0, 0.0
        self._began = 0.0
        self._over: Event | None = None  # of reading the prompt
        self._size = (80, 24)

    def prefill(self, done: int, total: int) -> None:
        """Show how much of the prompt is read when that takes long."""
        with self._lock:
            self._status = f"reading the prompt {done:,}/{total:,} tokens"
            if self._over is None:
                self._over = Event()
                Thread(target=self._tick, args=(self._over,), daemon=True).start()

    def block(self, block: "Block", stats: "Stats") -> None:
        """Take a block in, and show it when it is time for a frame."""
        with self._lock:
            self._end_reading()
            if block.thinking:
                self._think(block)
            if text := clean(block.text):
                self._end_thoughts()
                self._pieces += self._answer.feed(text)
            self._status = progress_line(stats)
            self._draw()

    def finish(self) -> None:
        """Print the rest as it stands, and take away what moves."""
        with self._lock:
            self._end_reading()
            try:
                self._end_thoughts()
                self._pieces += self._answer.finish()
                self._draw(last=True)
            finally:
                self._region.erase()

    def _think(self, block: "Block") -> None:
        if self._thoughts is None:
            self._thoughts, self._began = Lines(dim=True), time.perf_counter()
        self.thought_tokens += len(block.tokens)
        lines = self._thoughts.feed(clean(block.thinking))
        if self._show_thinking:
            self._pieces += lines
        else:
            self._recent.extend(lines)

    def _end_thoughts(self) -> None:
        if self._thoughts is None:
            return
        self.thought_seconds += time.perf_counter() - self._began
        if self._show_thinking:
            self._pieces += self._thoughts.finish()
        else:
            line = f"∴ thought for {self.thought_seconds:.1f} s, {self.thought_tokens:,} tokens"
            line = self.out.glyphs(f"{line} (/think show)")
            self._pieces.append(Piece("text", line, gap=True, dim=True))
        self._thoughts = None
        self._recent.clear()

    def _draw(self, *, last: bool = False) -> None:
        """One frame, unless the last one is too near; dear frames come more seldom."""
        now = time.perf_counter()
        if now < self._next and not last:
            return
        columns, rows = self._screen()
        width = max(columns - 1, 1)
        finished: list[str] = []
        for piece in self._pieces:
            lines = self._renderer.lines(piece, width)
            finished += [""] * (piece.gap and self._printed and bool(lines))
            finished += lines
            self._printed = self._printed or bool(lines)
        self._pieces.clear()
        live = [] if last else [*self._tail(width, rows), self._status_line(width)]
        self._region.draw(finished, live)
        self._next = now + min(max(REDRAW, 4 * (time.perf_counter() - now)), SELDOM)

    def _tail(self, width: int, rows: int) -> list[str]:
        """What is not finished. It leaves half the screen free, so that it still fits when the
        window is made half as wide and each of its lines takes two rows."""
        stream = self._thoughts or self._answer
        pieces = [*self._recent, *stream.tail()]
        room = min(TAIL, max(rows // 2 - 1, 0))
        lines = self._renderer.preview(pieces, width)
        if len(lines) > room:
            lines = lines[len(lines) - room :]
            if room > 2:
                lines[0] = self.out.glyphs("…")
        gap = pieces[0].gap if pieces else not stream.in_code
        return [""] * (gap and self._printed and rows > 3) + lines

    def _status_line(self, width: int) -> str:
        """The numbers, as many of them as fit."""
        self._frame += 1
        spinner = "|/-\\"[self._frame % 4] if self.out.ascii else SPINNER[self._frame % 10]
        parts = self._status.split(" · ")
        while len(parts) > 1 and len(self.out.glyphs(" · ".join(parts))) + 2 > width:
            parts.pop()
        return f"\x1b[2m{spinner} {self.out.glyphs(' · '.join(parts))}\x1b[0m"

    def _screen(self) -> tuple[int, int]:
        """Columns and rows; the last ones known when the terminal does not say."""
        size = screen_size()
        if size > (0, 0):
            self._size = size
        return self._size

    def _end_reading(self) -> None:
        if self._over is not None:
            self._over.set()

    def _tick(self, over: Event) -> None:
        """Keep the numbers moving until the first block is there."""
        wait = DELAY
        while not over.wait(wait):
            with self._lock:
                if not over.is_set():
                    self._draw()
            wait = REDRAW
