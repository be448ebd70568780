"""How an answer looks while it comes: on a terminal, through a pipe, or not at all for JSON.

Knows blocks and the output, not where the blocks come from.
"""

import time
from types import TracebackType
from typing import TYPE_CHECKING

from .output import Output
from .terminal.wait import Wait

if TYPE_CHECKING:
    from dflash_mlx import Block, Stats

REDRAW = 0.1  # seconds between two states of the status line
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class PlainView:
    """Writes what is said and nothing else; use it as a context manager around one answer."""

    def __init__(self, out: Output, *, thinking: bool = False):
        self.out = out
        self._show_thinking = thinking
        self._thinks_aloud = False

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish()

    def prefill(self, done: int, total: int) -> None:
        """Tokens of the prompt that are read."""

    def block(self, block: "Block", stats: "Stats") -> None:
        """Tokens that were committed together."""
        if block.thinking and self._show_thinking:
            self.out.tell(block.thinking, "dim", end="")
            self._thinks_aloud = True
        if block.text:
            self._end_thinking()
            self.say(block.text)

    def say(self, text: str) -> None:
        """A part of the answer."""
        self.out.write(text)

    def finish(self) -> None:
        """The answer is over, or was stopped."""
        self._end_thinking()
        self.out.end_line()

    def _end_thinking(self) -> None:
        if self._thinks_aloud:
            self.out.tell("\n")
            self._thinks_aloud = False


class LiveView(PlainView):
    """On a terminal: a bar while a long prompt is read, a status line while no text is to be seen.

    Text that streams to the same terminal shows progress enough. Thinking that is not shown folds
    into one line.
    """

    def __init__(
        self, out: Output, *, thinking: bool = False, hidden: bool = False, label: str = ""
    ):
        super().__init__(out, thinking=thinking)
        self._hidden, self._label = hidden, label
        self._streams = False  # text stands on this terminal: the line is not ours any more
        self._wait: Wait | None = None
        self._drawn, self._frame = 0.0, 0
        self._began, self._thought = 0.0, 0

    def prefill(self, done: int, total: int) -> None:
        """Show the bar when reading takes long."""
        if self._wait is None:
            self._wait = Wait(self.out, "reading the prompt", unit="tokens")
            self._wait.start()
        self._wait.update(done, total)
        if done >= total:
            self._end_wait()

    def block(self, block: "Block", stats: "Stats") -> None:
        """Show the text, or how far it is."""
        self._end_wait()
        if block.thinking and not self._show_thinking:
            self._began = self._began or time.perf_counter()
            self._thought += len(block.tokens)
        if block.text and self._thought:
            self._fold()
        shown = block.thinking if self._show_thinking else ""
        shown += block.text if self.out.answers and not self._hidden else ""
        if shown and not self._streams:
            self.out.erase()
            self._streams = True
        super().block(block, stats)
        if not self._streams:
            self._progress(stats)

    def say(self, text: str) -> None:
        """A part of the answer, unless it is not for this screen."""
        if not self._hidden:
            super().say(text)

    def finish(self) -> None:
        """Take moving lines away."""
        self._end_wait()
        self.out.erase()
        if self._thought:
            self._fold()
        super().finish()

    def _fold(self) -> None:
        self.out.erase()
        seconds = time.perf_counter() - self._began
        self.out.note(f"∴ thought for {seconds:.1f} s, {self._thought:,} tokens")
        self._thought = 0

    def _progress(self, stats: "Stats") -> None:
        now = time.perf_counter()
        if now - self._drawn >= REDRAW:
            self._drawn, self._frame = now, self._frame + 1
            spinner = "|/-\\"[self._frame % 4] if self.out.ascii else SPINNER[self._frame % 10]
            self.out.status(f"{spinner} {self._label}{progress_line(stats)}")

    def _end_wait(self) -> None:
        if self._wait is not None:
            self._wait.stop()
            self._wait = None


class JsonView(LiveView):
    """Shows how far it is, but leaves the answer to whoever prints the object."""

    def __init__(self, out: Output, *, label: str = ""):
        super().__init__(out, hidden=True, label=label)

    def _fold(self) -> None:
        self._thought = 0


def rates(stats: "Stats") -> str:
    """What the drafts brought: τ and the share of drafts accepted; empty without a verify."""
    if not stats.verifies:
        return ""
    return f" · τ {stats.acceptance_length:.2f} · accept {stats.acceptance_rate:.0%}"


def progress_line(stats: "Stats") -> str:
    """An answer's numbers while it comes."""
    return f"{stats.generated:,} tok · {stats.tokens_per_second:.1f} tok/s{rates(stats)}"


def stats_line(stats: "Stats", finish_reason: str, max_tokens: int) -> str:
    """An answer's numbers when it is over."""
    line = answer_numbers(stats, finish_reason)
    if stats.generated and stats.prefill_seconds >= 1:
        line += f" · prompt {stats.prompt_tokens:,} in {stats.prefill_seconds:.1f} s"
    return line + cut_note(stats, finish_reason, max_tokens, "--max-tokens")


def chat_line(stats: "Stats", finish_reason: str, max_tokens: int | None) -> str:
    """The same in a chat, where it matters how much of the prompt was read before."""
    line = answer_numbers(stats, finish_reason)
    if stats.generated:
        new, cached = stats.prompt_tokens - stats.cached_tokens, stats.cached_tokens
        line += f" · prompt {new:,} new"
        line += f" + {cached:,} cached" if cached else ""
        line += f" in {stats.prefill_seconds:.1f} s"
    if finish_reason == "interrupted":
        line += " (Ctrl-C again to leave)"
    return line + cut_note(stats, finish_reason, max_tokens or 1 << 62, "max-tokens")


def answer_numbers(stats: "Stats", finish_reason: str) -> str:
    """What both begin with."""
    if not stats.generated:
        return "  stopped while the prompt was read"
    line = f"  {stats.generated:,} token{'' if stats.generated == 1 else 's'}"
    if finish_reason == "interrupted":
        line = f"  stopped · {line.strip()} kept"
    if stats.tokens_per_second:
        line += f" · {stats.tokens_per_second:.1f} tok/s"
    return f"{line}{rates(stats)} · {stats.decode_seconds:.1f} s"


def cut_note(stats: "Stats", finish_reason: str, max_tokens: int, name: str) -> str:
    """What cut the answer, if something did."""
    if finish_reason != "length":
        return ""
    return " · cut: the context is full" if stats.generated < max_tokens else f" · cut by {name}"
