"""Streams one answer into a view, and stops it on Ctrl-C."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from dflash_mlx.answer import Answer as BareAnswer
from dflash_mlx.options import GenerationOptions

from .awake import awake
from .backend.base import Backend, ModelInfo
from .passes import Passes
from .terminal.output import Output, format_count
from .terminal.signals import LEAVE_HINT, Interrupt
from .terminal.spinner import Spinner

if TYPE_CHECKING:
    from dflash_mlx import Block, Stats


INTERRUPTED = "interrupted"  # the finish reason after Ctrl-C


# The view of an answer while it streams

PREFILL_LABELS = ("waiting for the server", ""), ("reading the prompt", "tokens")
STATUS_INTERVAL = 0.1  # seconds between two updates of the status line
# Lines around thinking on stderr where it cannot be dim.
THINKING_BEGINS = "[thinking]"
THINKING_ENDS = "[end of thinking]"
SPINNER_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class View(Protocol):
    """Shows one answer while it streams; a context manager around it."""

    out: Output

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def prefill(self, done: int, total: int) -> None:
        """Called during prefill with the number of prompt tokens processed; 0 of 0: unknown."""

    def waiting(self) -> None:
        """Called while a server sends no text, as when it writes a tool call."""

    def block(self, block: "Block", stats: "Stats") -> None: ...


class AnswerView:
    """Writes an answer as text or as data.

    stdout: gets the text, or a JSON line for each block, or nothing. thinking: whether thinking is
    printed on stderr. live: whether stderr shows a bar during a long prefill, a status line until
    text is on this terminal, and one line with the seconds and tokens of hidden thinking. passes:
    are marked in the text; a pipe gets it without marks, and stderr the one with them.
    """

    def __init__(
        self,
        out: Output,
        *,
        thinking: bool = False,
        stdout: Literal["text", "blocks", "nothing"] = "text",
        live: bool = True,
        label: str = "",
        passes: Passes | None = None,
    ):
        self.out = out
        self._show_thinking = thinking
        self._stdout = stdout
        self._live = live and out.stderr_live
        self._label = label
        self._passes = passes
        self._status_over = stdout == "blocks" and out.stdout_is_tty
        self._spinner: Spinner | None = None
        self._drawn_at = 0.0
        self._frame = 0
        self._thinking_open = False
        self._thinking_began = 0.0  # of hidden thinking without its summary
        self._thinking_tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_spinner()
        self.out.clear_status()
        self._end_thinking()
        self.out.end_line()
        if self._passes is not None and not self.out.stdout_is_tty:
            self.out.info("")

    def prefill(self, done: int, total: int) -> None:
        if not self._live:
            return
        label, unit = PREFILL_LABELS[total > 0]
        if self._spinner is None:
            self._spinner = Spinner(self.out, label, unit=unit)
            self._spinner.start()
        if total:
            self._spinner.relabel(label, unit)
            self._spinner.update(done, total)
        if done >= total > 0:
            self._stop_spinner()

    def waiting(self) -> None:
        pass

    def block(self, block: "Block", stats: "Stats") -> None:
        self._stop_spinner()
        if self._passes is not None:
            self._passes.begin(block)
        if block.thinking and self._show_thinking:
            self._end_status()
            if not self._thinking_open and not self.out.styled:
                self.out.info(THINKING_BEGINS)
            self.out.info(block.thinking, "dim", end="")
            self._thinking_open = True
        elif block.thinking:
            self._thinking_began = self._thinking_began or time.perf_counter()
            self._thinking_tokens += len(block.tokens)
        if block.text and self._stdout == "text":
            if self.out.stdout_is_tty:
                self._end_status()
            self._end_thinking()
            self._write_text(block.text)
        if self._live and not self._status_over:
            self._show_progress(stats)
        if self._stdout == "blocks":
            line = {
                "type": "block",
                "text": block.text,
                "reasoning": block.thinking,
                "tokens": list(block.tokens),
                "drafted": block.drafted,
                "accepted": block.accepted,
            }
            self.out.write_json(line)

    def _write_text(self, text: str) -> None:
        marked = text if self._passes is None else self._passes.marked(text)
        self.out.write(marked if self.out.stdout_is_tty else text)
        if self._passes is not None and not self.out.stdout_is_tty:
            self.out.info(marked, end="")

    def _end_thinking(self) -> None:
        if self._thinking_open:
            self.out.info("\n" if self.out.styled else f"\n{THINKING_ENDS}")
            self._thinking_open = False
        if self._thinking_began and self._live and self._stdout == "text":
            self.out.clear_status()
            seconds = time.perf_counter() - self._thinking_began
            self.out.note(thinking_summary(seconds, self._thinking_tokens))
        self._thinking_began = 0.0
        self._thinking_tokens = 0

    def _show_progress(self, stats: "Stats") -> None:
        seconds = time.perf_counter()
        if seconds - self._drawn_at >= STATUS_INTERVAL:
            self._drawn_at = seconds
            self._frame += 1
            symbol = spinner_symbol(self._frame, self.out)
            self.out.status(f"{symbol} {self._label}{progress_line(stats)}")

    def _end_status(self) -> None:
        self.out.clear_status()
        self._status_over = True

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


def spinner_symbol(frame: int, out: Output) -> str:
    return "|/-\\"[frame % 4] if out.ascii else SPINNER_FRAMES[frame % 10]


def acceptance_summary(stats: "Stats", *, words: bool = False) -> str:
    """τ and the acceptance rate, in symbols or in words; empty without verify passes."""
    tau = f" · τ {stats.acceptance_length:.2f}" if stats.verifies else ""
    rate = f"{stats.acceptance_rate:.0%}" if stats.drafted else ""
    if words:
        tau += " tokens per pass" if tau else ""
        return tau + (f" · {rate} of drafts accepted" if rate else "")
    return tau + (f" · accept {rate}" if rate else "")


LOW_ACCEPTANCE_LENGTH = 1.5
MIN_VERIFIES = 20


def is_acceptance_low(stats: "Stats") -> bool:
    """Whether drafting probably cost more than it saved, as enough verify passes show."""
    return stats.verifies >= MIN_VERIFIES and stats.acceptance_length < LOW_ACCEPTANCE_LENGTH


def thinking_summary(seconds: float, tokens: int) -> str:
    """How long the model thought; `tokens` is 0 if a server does not report them."""
    return f"∴ thought for {seconds:.1f} s" + (f", {tokens:,} tokens" if tokens else "")


def format_tokens(stats: "Stats") -> str:
    """The generated tokens with their noun; "unknown" if a server does not report them."""
    if "generated" in stats.unknown:
        return "tokens unknown"
    return format_count(stats.generated, "token", "tokens")


def prompt_summary(stats: "Stats") -> str:
    """How many tokens of the prompt were new, and how many came from the cache."""
    if "prompt_tokens" in stats.unknown:
        return "unknown"
    if "cached_tokens" in stats.unknown:
        return f"{stats.prompt_tokens:,}"
    cached = f" + {stats.cached_tokens:,} cached" if stats.cached_tokens else ""
    return f"{stats.prompt_tokens - stats.cached_tokens:,} new{cached}"


def progress_line(stats: "Stats", *, words: bool = False) -> str:
    if "generated" in stats.unknown:
        return f"{stats.decode_seconds:.1f} s"
    acceptance = acceptance_summary(stats, words=words)
    return f"{stats.generated:,} tok · {stats.tokens_per_second:.1f} tok/s{acceptance}"


def stats_line(
    answer: "Answer",
    info: ModelInfo,
    max_tokens: int | None,
    columns: int,
    *,
    in_chat: bool = False,
) -> str:
    """The numbers of a finished answer, in words if these fit into `columns` (0: any number).

    In a chat the parts about the prompt are left out where they do not fit: `/stats` has them, too.
    """
    stats = answer.stats
    first_token = f" · first token after {stats.first_token_seconds:.1f} s"
    ends = [""]
    if in_chat and (stats.generated or "generated" in stats.unknown):
        prompt = f" · prompt {prompt_summary(stats)}"
        ends = [prompt + first_token, prompt, ""]
    elif not in_chat and stats.first_token_seconds >= 1:
        ends = [f" · prompt {stats.prompt_tokens:,}{first_token}"]
    note = ""
    if in_chat and answer.finish_reason == INTERRUPTED:
        note = f" ({LEAVE_HINT})"
    elif answer.finish_reason == "length":
        option = "max-tokens" if in_chat else "--max-tokens"
        note = f" · {info.cut_by(stats, max_tokens, option)}"
    words = stats_summary(stats, answer.finish_reason, words=True) + ends[0] + note
    short = stats_summary(stats, answer.finish_reason, words=False)
    lines = [short + end + note for end in ends]
    if not columns:
        return lines[0]
    return next((line for line in (words, *lines) if len(line) < columns), lines[-1])


def cut_note(answer: "Answer", info: ModelInfo, max_tokens: int | None) -> str:
    """The warning for an answer that hit a limit, shown where no statistics are."""
    limit = info.cut_by(answer.stats, max_tokens, "--max-tokens")
    return f"the answer was {limit}, after {format_tokens(answer.stats)}"


def stats_summary(stats: "Stats", finish_reason: str, *, words: bool) -> str:
    if not (stats.generated or stats.decode_seconds or stats.prefill_seconds):
        return "  stopped while the prompt was read"
    line = "  " + format_tokens(stats)
    if finish_reason == INTERRUPTED:
        known = "generated" not in stats.unknown
        line = f"  stopped · {line.strip() if known else 'what came is'} kept"
    if stats.tokens_per_second:
        line += f" · {stats.tokens_per_second:.1f} tok/s"
    line += acceptance_summary(stats, words=words)
    return f"{line} · {stats.decode_seconds:.1f} s"


@dataclass(eq=False, slots=True)
class Answer(BareAnswer):
    """One answer, and its times. finish_reason: stop, length or interrupted.

    rounds: per block the seconds since the request (`began`), and the numbers of tokens, drafts and
    accepted drafts.
    """

    finish_reason: str = INTERRUPTED
    rounds: list[tuple[float, int, int, int]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    @property
    def is_empty(self) -> bool:
        return not (self.tokens or self.text or self.thinking)

    def append(self, block: "Block") -> "Block":
        """Append a block without the empty lines of templates around thinking; return that."""
        seconds = time.perf_counter() - self.began
        self.rounds.append((seconds, len(block.tokens), block.drafted, block.accepted))
        return self.add(block)


@awake()
def answer_prompt(
    backend: Backend,
    prompt: Any,
    options: GenerationOptions,
    view: View,
    interrupt: Interrupt,
    *,
    on_block: Callable[[Answer], None] = lambda answer: None,
    on_end: Callable[[Answer], None] = lambda answer: None,
) -> Answer:
    """Stream an answer into a view and return it.

    After Ctrl-C the text so far is the answer. Ctrl-C is checked between blocks and, during
    prefill, between chunks. `on_block` gets the answer after each block, `on_end` at the end, after
    any exception too. After a second Ctrl-C the caller must leave; the interrupt is deferred while
    they run.
    """

    def on_prefill(done: int, total: int) -> None:
        interrupt.check()
        if answer.is_empty:
            view.prefill(done, total)
        else:
            view.waiting()

    interrupt.deferred = False
    began = time.perf_counter()
    with Spinner(view.out, "reading the prompt"):
        blocks = backend.stream(prompt, options, on_prefill=on_prefill)
    answer = Answer(backend.stats, began=began)
    try:
        with view:
            try:
                for block in blocks:
                    view.block(answer.append(block), answer.stats)
                    interrupt.deferred = True
                    on_block(answer)
                    interrupt.deferred = False
                    if interrupt.requested and not block.finish_reason:
                        break
            except KeyboardInterrupt:
                pass  # `answer` holds the text so far
            finally:
                interrupt.deferred = True
                blocks.close()
    finally:
        on_end(answer)
    return answer
