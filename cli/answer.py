"""Streams one answer into a view, and stops it on Ctrl-C."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dflash_mlx.answer import Answer as BareAnswer
from dflash_mlx.options import GenerationOptions

from .awake import awake
from .backend.base import Backend, ModelInfo
from .terminal.output import Output, format_count
from .terminal.signals import LEAVE_HINT, Interrupt
from .terminal.spinner import Spinner

if TYPE_CHECKING:
    from dflash_mlx import Block, Stats


INTERRUPTED = "interrupted"  # the finish reason after Ctrl-C


# Views of an answer while it streams

PREFILL_LABELS = ("waiting for the server", ""), ("reading the prompt", "tokens")
STATUS_INTERVAL = 0.1  # seconds between two updates of the status line
# Lines around thinking on stderr where it cannot be dim.
THINKING_BEGINS = "[thinking]"
THINKING_ENDS = "[end of thinking]"
SPINNER_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class PlainView:
    """Writes the answer and nothing else; a context manager around one answer."""

    def __init__(self, out: Output, *, thinking: bool = False):
        self.out = out
        self._show_thinking = thinking
        self._thinking_open = False

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def prefill(self, done: int, total: int) -> None:
        """Called during prefill with the number of prompt tokens processed; 0 of 0: unknown."""

    def waiting(self) -> None:
        """Called while a server sends no text, as when it writes a tool call."""

    def block(self, block: "Block", stats: "Stats") -> None:
        if block.thinking and self._show_thinking:
            if not self._thinking_open and not self.out.styled:
                self.out.info(THINKING_BEGINS)
            self.out.info(block.thinking, "dim", end="")
            self._thinking_open = True
        if block.text:
            self._end_thinking()
            self.write_text(block.text)

    def write_text(self, text: str) -> None:
        self.out.write(text)

    def finish(self) -> None:
        """Called when the answer ends or is stopped."""
        self._end_thinking()
        self.out.end_line()

    def _end_thinking(self) -> None:
        if self._thinking_open:
            self.out.info("\n" if self.out.styled else f"\n{THINKING_ENDS}")
            self._thinking_open = False


class LiveView(PlainView):
    """Shows a progress bar during a long prefill, and a status line while no text is visible.

    The status line disappears once text streams on the same terminal. Hidden thinking becomes
    one line with its seconds and tokens.
    """

    def __init__(
        self, out: Output, *, thinking: bool = False, hidden: bool = False, label: str = ""
    ):
        super().__init__(out, thinking=thinking)
        self._hidden = hidden
        self._label = label
        self._text_visible = False  # text has reached this terminal, so no status line is drawn
        self._spinner: Spinner | None = None
        self._drawn_at = 0.0
        self._frame = 0
        self._thinking_began = 0.0
        self._thinking_tokens = 0
        self._has_thinking = False  # thinking that the summary line has not covered yet

    def prefill(self, done: int, total: int) -> None:
        label, unit = PREFILL_LABELS[total > 0]
        if self._spinner is None:
            self._spinner = Spinner(self.out, label, unit=unit)
            self._spinner.start()
        if total:
            self._spinner.relabel(label, unit)
            self._spinner.update(done, total)
        if done >= total > 0:
            self._stop_spinner()

    def block(self, block: "Block", stats: "Stats") -> None:
        self._stop_spinner()
        if block.thinking and not self._show_thinking:
            self._thinking_began = self._thinking_began or time.perf_counter()
            self._thinking_tokens += len(block.tokens)
            self._has_thinking = True
        if block.text and self._has_thinking:
            self._print_thinking_summary()
        visible = block.thinking if self._show_thinking else ""
        visible += block.text if self.out.stdout_is_tty and not self._hidden else ""
        if visible and not self._text_visible:
            self.out.clear_status()
            self._text_visible = True
        super().block(block, stats)
        if not self._text_visible:
            self._show_progress(stats)

    def write_text(self, text: str) -> None:
        if not self._hidden:
            super().write_text(text)

    def finish(self) -> None:
        self._stop_spinner()
        self.out.clear_status()
        if self._has_thinking:
            self._print_thinking_summary()
        super().finish()

    def _print_thinking_summary(self) -> None:
        self.out.clear_status()
        seconds = time.perf_counter() - self._thinking_began
        self.out.note(thinking_summary(seconds, self._thinking_tokens))
        self._forget_thinking()

    def _forget_thinking(self) -> None:
        self._thinking_tokens = 0
        self._has_thinking = False

    def _show_progress(self, stats: "Stats") -> None:
        seconds = time.perf_counter()
        if seconds - self._drawn_at >= STATUS_INTERVAL:
            self._drawn_at = seconds
            self._frame += 1
            symbol = spinner_symbol(self._frame, self.out)
            self.out.status(f"{symbol} {self._label}{progress_line(stats)}")

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


class JsonView(LiveView):
    """Shows progress but not the answer, which the caller prints as JSON."""

    def __init__(self, out: Output, *, label: str = ""):
        super().__init__(out, hidden=True, label=label)

    def _print_thinking_summary(self) -> None:
        self._forget_thinking()


class JsonLinesView(JsonView):
    """Prints each block as a JSON object on a line of its own."""

    def block(self, block: "Block", stats: "Stats") -> None:
        """Print one committed block. A status line would mix with the JSON on the same terminal."""
        if not self.out.stdout_is_tty:
            super().block(block, stats)
        self.out.write_json(block_json(block))


def spinner_symbol(frame: int, out: Output) -> str:
    return "|/-\\"[frame % 4] if out.ascii else SPINNER_FRAMES[frame % 10]


def block_json(block: "Block") -> dict[str, Any]:
    return {
        "type": "block",
        "text": block.text,
        "reasoning": block.thinking,
        "tokens": list(block.tokens),
        "drafted": block.drafted,
        "accepted": block.accepted,
    }


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


def first_token_summary(stats: "Stats") -> str:
    return f" · first token after {stats.first_token_seconds:.1f} s"


def progress_line(stats: "Stats", *, words: bool = False) -> str:
    if "generated" in stats.unknown:
        return f"{stats.decode_seconds:.1f} s"
    acceptance = acceptance_summary(stats, words=words)
    return f"{stats.generated:,} tok · {stats.tokens_per_second:.1f} tok/s{acceptance}"


def stats_line(answer: "Answer", info: ModelInfo, max_tokens: int, columns: int) -> str:
    """The numbers of a finished answer, for `dflash generate`; in words if these fit."""
    stats = answer.stats
    end = ""
    if stats.first_token_seconds >= 1:
        end += f" · prompt {stats.prompt_tokens:,}{first_token_summary(stats)}"
    if answer.finish_reason == "length":
        end += f" · {info.cut_by(stats, max_tokens, '--max-tokens')}"
    return fitting_line(answer, [end], columns)


def cut_note(answer: "Answer", info: ModelInfo, max_tokens: int | None) -> str:
    """The warning for an answer that hit a limit, shown where no statistics are."""
    limit = info.cut_by(answer.stats, max_tokens, "--max-tokens")
    return f"the answer was {limit}, after {format_tokens(answer.stats)}"


def chat_stats_line(answer: "Answer", info: ModelInfo, max_tokens: int | None, columns: int) -> str:
    """The numbers of a finished answer in a chat: as many of them as fit into `columns`."""
    stats = answer.stats
    end = ""
    prompts = [""]
    if stats.generated or "generated" in stats.unknown:
        prompt = f" · prompt {prompt_summary(stats)}"
        prompts = [prompt + first_token_summary(stats), prompt, ""]  # /stats has them, too
    if answer.finish_reason == INTERRUPTED:
        end += f" ({LEAVE_HINT})"
    if answer.finish_reason == "length":
        end += f" · {info.cut_by(stats, max_tokens, 'max-tokens')}"
    return fitting_line(answer, [prompt + end for prompt in prompts], columns)


def fitting_line(answer: "Answer", ends: list[str], columns: int) -> str:
    """The numbers and the first of the ends that fits; in words if these fit.

    Without a width (0), all of them.
    """
    words = stats_summary(answer.stats, answer.finish_reason, words=True) + ends[0]
    short = stats_summary(answer.stats, answer.finish_reason, words=False)
    lines = [words, *(short + end for end in ends)]
    if not columns:
        return lines[1]
    return next((line for line in lines if len(line) < columns), lines[-1])


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
    view: PlainView,
    interrupt: Interrupt,
    *,
    on_start: Callable[[Answer], None] = lambda answer: None,
    on_end: Callable[[Answer], None] = lambda answer: None,
) -> Answer:
    """Stream an answer into a view and return it.

    After Ctrl-C the text so far is the answer. Ctrl-C is checked between blocks and, during
    prefill, between chunks. `on_start` gets the answer before its first block; it then grows block
    by block. `on_end` gets it at the end, after any exception too. After a second Ctrl-C the caller
    must leave; the interrupt is deferred while `on_end` runs.
    """

    def on_prefill(done: int, total: int) -> None:
        interrupt.check()
        if answer.is_empty:
            view.prefill(done, total)
        else:
            view.waiting()

    interrupt.defer(False)
    began = time.perf_counter()
    with Spinner(view.out, "reading the prompt"):
        blocks = backend.stream(prompt, options, on_prefill=on_prefill)
    answer = Answer(backend.stats, began=began)
    on_start(answer)
    try:
        with view:
            try:
                for block in blocks:
                    view.block(answer.append(block), answer.stats)
                    if interrupt.requested and not block.finish_reason:
                        break
            except KeyboardInterrupt:
                pass  # `answer` holds the text so far
            finally:
                interrupt.defer()
                blocks.close()
    finally:
        on_end(answer)
    return answer
