"""What answers prompts, and what describes it: the same for a model here and one of a server."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from dflash_mlx.chat.messages import Messages
from dflash_mlx.engine.stats import Stats
from dflash_mlx.options import GenerationOptions
from dflash_mlx.types import Block, Progress, silent

from ..terminal.output import Output

if TYPE_CHECKING:
    from dflash_mlx.files.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class ThinkingSwitches:
    """The switches of thinking that a model has.

    think_switch: the template's variable for on and off, or None. efforts: the known ones. check:
    raises UsageError for a value of the switch and an effort that the model lacks.
    """

    think_switch: str | None
    efforts: tuple[str, ...]
    check: Callable[[bool | None, str | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What describes a model.

    local: whether it runs on this machine. name, draft: as chats are saved with them; the drafter
    also while it is switched off. title, drafter: as people read them; heading, drafter_heading:
    shorter, for the header of a chat. traits: more words for that. context_length: limit of prompt
    and answer together in tokens, 0 if unknown; context: the same in words. block_size: the
    drafter's own. drafting: whether this machine drafts for it.
    no_tools: why the model cannot call tools, as the end of a sentence; None if it can. checkpoint:
    its files, if they are here. note: what users should know of it. kv_note: the bits of a
    quantised KV cache, its layers and what it saves. warnings: sentences to show before the first
    answer. json: the fields of `--json` that describe it.
    """

    local: bool
    name: str
    draft: str | None
    title: str
    heading: str
    context_length: int
    context: str
    thinking: ThinkingSwitches
    json: Mapping[str, Any]
    drafter: str = ""
    drafter_heading: str = ""
    traits: tuple[str, ...] = ()
    drafting: bool = False
    block_size: int = 0
    no_tools: str | None = None
    checkpoint: "Checkpoint | None" = None
    note: str = ""
    kv_note: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def recommended(self) -> dict[str, float]:
        """Sampling options that the model's authors recommend, by name; of a server none.

        Raises DFlashError for a file with wrong values.
        """
        from dflash_mlx.files.recommended import recommended_sampling

        return {} if self.checkpoint is None else recommended_sampling(self.checkpoint)

    def used(self, options: GenerationOptions) -> GenerationOptions:
        """The options that an answer really uses: without those that the mode ignores.

        A server gets them as they are: `Backend.check` has refused what cannot be sent.
        """
        if not self.local:
            return options
        if not self.drafting or options.mode == "baseline":
            return replace(options, mode="baseline", block_size=None, tree_budget=None)
        return options if options.mode == "ddtree" else replace(options, tree_budget=None)

    def drafting_summary(self, options: GenerationOptions) -> str:
        """Block size and mode in a few words; empty if this machine does not draft."""
        if not self.drafting or options.mode == "baseline":
            return ""
        block = f"block {options.block_size or self.block_size}"
        if options.mode == "auto":
            return f"{block} · auto"
        return f"{block} · tree {options.tree_nodes}" if options.mode == "ddtree" else block

    def describe(self, options: GenerationOptions, *, header: bool = False) -> str:
        """Model, drafter and mode on one line; with the device for the header of a chat."""
        if not self.local:
            return self.title
        parts = [self.heading if header else self.title]
        if drafting := self.drafting_summary(options):
            parts += [self.drafter_heading if header else self.drafter, drafting]
        else:
            parts.append("draft off")
        parts += [*(self.traits if header else ()), self.kv_note]
        return " · ".join(filter(None, parts))

    def cut_by(self, stats: Stats, max_tokens: int | None, name: str) -> str:
        """The limit that ended an answer early; `name` is what the user calls max_tokens."""
        if max_tokens is None and not self.local:
            return "cut by the server's limit"
        if self.local and (max_tokens is None or stats.generated < max_tokens):
            return "cut: the context is full"
        return f"cut by {name}"


class Backend(Protocol):
    @property
    def info(self) -> ModelInfo: ...

    @property
    def stats(self) -> Stats: ...

    def check(self, options: GenerationOptions) -> None:
        """Raise UsageError for options that this model cannot use. Compiles their grammar."""
        ...

    def stream(
        self, prompt: Any, options: GenerationOptions, *, on_prefill: Progress = silent
    ) -> Generator[Block]:
        """Answer block by block; calls of offered tools are taken out of the text."""
        ...

    def stream_several(
        self,
        messages: Messages,
        options: GenerationOptions,
        count: int,
        *,
        on_prefill: Progress = silent,
    ) -> Generator[tuple[int, Block, Stats]]:
        """`count` answers to the same messages, in shared passes.

        Each block comes with the number of its answer, from 0, and with the statistics of this
        answer (a server: of all). `on_prefill` is also called between blocks, and may raise.
        """
        ...

    def count(self, prompt: Any, options: GenerationOptions) -> int:
        """Number of tokens of a prompt: exact for a local model, else an estimate."""
        ...

    def rows(self, options: GenerationOptions) -> list[tuple[str, str]]:
        """Label and text of the lines of `/stats` on the model and its last choices."""
        ...

    def finish(self, out: Output) -> None:
        """Wait until everything is written to disk."""
        ...
