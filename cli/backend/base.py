"""The interface of a model that answers prompts."""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dflash_mlx.chat.messages import Messages
from dflash_mlx.engine.stats import Stats
from dflash_mlx.options import GenerationOptions
from dflash_mlx.types import Block, Progress, silent

from ..terminal.output import Output

if TYPE_CHECKING:
    from dflash_mlx import Pair, Session
    from dflash_mlx.chat.template import Template
    from dflash_mlx.remote.session import RemoteSession
    from dflash_mlx.tools.loop import CallSplitter

    from .remote import RemoteSwitches


# The switches of thinking that a model has. think_switch: the template's variable for on and off,
# or None. efforts: the known ones. `check` raises UsageError for a switch that the model lacks.
ThinkingSwitches: TypeAlias = "Template | RemoteSwitches"


class Answering(Protocol):
    """Anything that streams answers: a backend or a session. stats: of the last answer."""

    @property
    def stats(self) -> Stats: ...

    def stream(
        self, prompt: Any, options: GenerationOptions, *, on_prefill: Progress = silent
    ) -> Generator[Block]: ...


class Backend(Answering, Protocol):
    """A model that answers.

    local: whether it runs on this machine. drafting: whether this machine drafts for it.
    target_name, draft_name: names of the model and its drafter; None without a drafter.
    context_length: limit of prompt and answer together in tokens, 0 if unknown.
    """

    local: bool

    @property
    def drafting(self) -> bool: ...
    @property
    def target_name(self) -> str: ...
    @property
    def draft_name(self) -> str | None: ...
    @property
    def context_length(self) -> int: ...
    @property
    def template(self) -> ThinkingSwitches: ...

    @property
    def pair(self) -> "Pair":
        """The loaded pair; UsageError if a server answers."""
        ...

    def check_local(self, feature: str) -> None:
        """Raise UsageError, naming the feature, if a server answers."""
        ...

    # Before an answer

    def options(self, options: GenerationOptions) -> GenerationOptions:
        """The options that an answer of this model really uses."""
        ...

    def check(self, options: GenerationOptions) -> None:
        """Raise UsageError for options that this model cannot use."""
        ...

    def prepare(self, options: GenerationOptions, out: Output) -> None:
        """Do the slow checks of the options before the answer begins."""
        ...

    def stream_several(
        self,
        messages: Messages,
        options: GenerationOptions,
        count: int,
        *,
        check: Callable[[], None],
    ) -> Generator[tuple[int, Block, Stats]]:
        """`count` answers to the same messages, in shared passes.

        Each block comes with the number of its answer, from 0, and with the statistics of this
        answer (a server: of all). `check` is called between blocks, and may raise.
        """
        ...

    def count_tokens(self, prompt: Any, options: GenerationOptions) -> int | None:
        """Number of tokens of a prompt; None if only the server can count them."""
        ...

    def estimate_tokens(self, messages: Messages, options: GenerationOptions) -> int:
        """Number of tokens of a prompt: exact for a local model, else an estimate."""
        ...

    def recommended_sampling(self) -> dict[str, float]:
        """Sampling options that the model's authors recommend, by name; may be empty."""
        ...

    def fresh_session(self) -> "Session":
        """A session of the same pair with empty caches; UsageError if a server answers."""
        ...

    # Tools

    def no_tools_reason(self) -> str | None:
        """Why the model cannot call tools, as the end of a sentence; None if it can."""
        ...

    def tool_parser(
        self, messages: Messages, schemas: Sequence[dict[str, Any]]
    ) -> "tuple[CallSplitter | RemoteSession, Messages]":
        """The parser of the next answer's tool calls, and the messages as the model reads them."""
        ...

    def truncate_result(self, result: str) -> str:
        """The beginning of a tool's result, at most a quarter of the context."""
        ...

    # Descriptions

    def describe(self, options: GenerationOptions) -> str:
        """Model, drafter and mode on one line."""
        ...

    def headline(self, options: GenerationOptions) -> str:
        """Model, drafter and mode, with the device of a local model; for the header of a chat."""
        ...

    def start_summary(self, seconds: float) -> str:
        """How long loading took, memory and context, for the header of a chat."""
        ...

    def drafting_summary(self, options: GenerationOptions) -> str:
        """Block size and mode in a few words; empty without drafting."""
        ...

    def cut_by(self, stats: Stats, max_tokens: int | None, name: str) -> str:
        """The limit that ended an answer early; `name` is what the user calls max_tokens."""
        ...

    def usage_rows(self, conversation: str, options: GenerationOptions) -> list[tuple[str, str]]:
        """Label and text of the lines of `/stats` after those of the last answer.

        conversation: the number of answers and tokens so far, and the context, in words.
        """
        ...

    def kv_note(self) -> str:
        """The bits of a quantised KV cache, its layers and what it saves; empty without one."""
        ...

    def model_note(self) -> str:
        """What users should know of the model; empty if there is nothing."""
        ...

    def warnings(self) -> list[str]:
        """Sentences to show before the first answer."""
        ...

    def drafter_warning(self) -> list[str]:
        """Once, after an answer: a sentence if the target accepts nearly no draft."""
        ...

    def model_json(self) -> dict[str, Any]:
        """The fields of `--json` that describe the model."""
        ...

    def answer_json(self, stats: Stats, options: GenerationOptions) -> dict[str, Any]:
        """The fields of `--json` that describe an answer besides its text and times."""
        ...

    # Changes

    def check_can_switch(self, model: str) -> None:
        """Raise UsageError if a chat cannot continue with another model."""
        ...

    def use(self, pair: "Pair", *, drafting: bool = True) -> None:
        """Answer with this pair from now on; UsageError if a server answers."""
        ...

    def release(self) -> None:
        """Free the pair and its caches; `use` must follow before the next answer."""
        ...

    def finish(self, out: Output) -> None:
        """Wait until everything is written to disk."""
        ...
