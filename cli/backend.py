"""What answers: a pair on this machine or a server elsewhere, behind one interface."""

from collections.abc import Generator, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dflash_mlx import __version__
from dflash_mlx.chat.messages import Messages
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import UsageError
from dflash_mlx.options import EFFORTS, TREE_BUDGET, GenerationOptions, declared
from dflash_mlx.remote.session import (
    KINDS,
    RemoteSession,
    Server,
    api_messages,
    prompt_length,
    request_fields,
    thinking_fields,
)
from dflash_mlx.types import Block, Progress, silent

from .pair_notes import check_block, describe_drafting, kernel_warnings, kernels_json
from .terminal.output import Output
from .terminal.spinner import Spinner

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.chat.template import Template
    from dflash_mlx.tools.loop import CallSplitter


# The switches of thinking that a model has: `think_switch`, `efforts`, and `check`.
Switches: TypeAlias = "Template | RemoteSwitches"


class Backend(Protocol):
    """A model that answers.

    local: whether it is on this machine. drafting: whether its answers are drafted here.
    target_name, draft_name: what it and its drafter are called, None without one. context_length:
    the most tokens that prompt and answer can have together, 0 where nobody knows. stats: the
    numbers of the last answer.
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
    def template(self) -> Switches: ...
    @property
    def stats(self) -> Stats: ...

    def options(self, options: GenerationOptions) -> GenerationOptions:
        """The options as an answer of this model has them."""
        ...

    def check(self, options: GenerationOptions) -> None:
        """UsageError for options that this model cannot have."""
        ...

    def prepare(self, options: GenerationOptions, out: Output) -> None:
        """Do what can be done before an answer; raises what would be wrong with it."""
        ...

    def stream(
        self, prompt: Any, options: GenerationOptions, *, on_prefill: Progress = silent
    ) -> Generator[Block]:
        """Answer a prompt, as `Session.stream`."""
        ...

    def count_tokens(self, prompt: Any, options: GenerationOptions) -> int | None:
        """The tokens of a prompt; None where only the server can count them."""
        ...

    def estimate_tokens(self, messages: Messages, options: GenerationOptions) -> int:
        """The same, as near as can be known here: exact for a model on this machine."""
        ...

    def recommended_sampling(self) -> dict[str, float]:
        """The sampling that its makers recommend, by the names of options; empty without any."""
        ...

    def without_tools(self) -> str | None:
        """Why it cannot call tools, as the end of a sentence; None where it can."""
        ...

    def with_calls(
        self, messages: Messages, schemas: Sequence[dict[str, Any]]
    ) -> "tuple[CallSplitter | RemoteSession, Messages]":
        """What takes calls out of the next answer, and the messages as the model reads them."""
        ...

    def fitted(self, result: str) -> str:
        """As much of a tool's result as a quarter of the context holds."""
        ...

    def warnings(self) -> list[str]:
        """What a user should know of it before an answer."""
        ...

    def model_json(self) -> dict[str, Any]:
        """The model in the object that `--json` prints."""
        ...

    def answer_json(self, stats: Stats, options: GenerationOptions) -> dict[str, Any]:
        """What that object has of an answer and of this model beside the text and the times."""
        ...

    def finish(self, out: Output) -> None:
        """Wait for what is still written to the disk."""
        ...


# A pair on this machine

MAX_TOKEN = 32  # characters of a token; a text of longer ones is not worth more


class LocalBackend:
    """A pair and its session; without `drafting` it decodes plainly."""

    local = True

    def __init__(self, pair: "Pair", *, drafting: bool = True):
        from dflash_mlx import Session

        self.pair = pair
        self.drafting = drafting and pair.drafts
        self.session = Session(pair, mode="baseline")  # the options of each answer say its mode

    @property
    def target_name(self) -> str:
        """The target's."""
        return self.pair.target_name

    @property
    def draft_name(self) -> str | None:
        """The drafter's, also where it does not draft."""
        return self.pair.draft_name

    @property
    def context_length(self) -> int:
        """The target's."""
        return self.pair.target.context_length

    @property
    def template(self) -> "Template":
        """The target's."""
        return self.pair.template

    @property
    def stats(self) -> Stats:
        """The session's."""
        return self.session.stats

    def options(self, options: GenerationOptions) -> GenerationOptions:
        """Nothing is drafted without `drafting`, and a tree's budget is for trees only."""
        if not self.drafting or options.mode == "baseline":
            return replace(options, mode="baseline", block_size=None, tree_budget=None)
        if options.mode != "ddtree":
            return replace(options, tree_budget=None)
        return options

    def check(self, options: GenerationOptions) -> None:
        """A block that is too long."""
        check_block(self.pair, options.block_size)

    def prepare(self, options: GenerationOptions, out: Output) -> None:
        """Compile the grammar."""
        grammar = options.structure
        if grammar is not None:
            with Spinner(out, "preparing the grammar"):
                self.pair.compiler.compile(grammar)

    def stream(
        self, prompt: Any, options: GenerationOptions, *, on_prefill: Progress = silent
    ) -> Generator[Block]:
        """As `Session.stream`."""
        return self.session.stream(prompt, self.options(options), on_prefill=on_prefill)

    def count_tokens(self, prompt: Any, options: GenerationOptions) -> int:
        """The chat template's included."""
        return len(
            self.session.tokens(
                prompt,
                think=options.think,
                reasoning_effort=options.reasoning_effort,
                tools=options.tools,
                raw=options.raw,
            )
        )

    def estimate_tokens(self, messages: Messages, options: GenerationOptions) -> int:
        """Their number."""
        return self.count_tokens(messages, options)

    def recommended_sampling(self) -> dict[str, float]:
        """Those of the target's generation_config.json."""
        from dflash_mlx.models.target import recommended_sampling

        return recommended_sampling(self.pair.target.checkpoint)

    def without_tools(self) -> str | None:
        """As the chat template and the tokenizer say."""
        from dflash_mlx.chat.tool_parser import without_tools

        return without_tools(self.pair.template, self.pair.tokenizer)

    def with_calls(
        self, messages: Messages, schemas: Sequence[dict[str, Any]]
    ) -> "tuple[CallSplitter, Messages]":
        """As `Backend` says."""
        from dflash_mlx.chat.tool_parser import named_calls
        from dflash_mlx.tools.loop import CallSplitter

        tokenizer = self.pair.tokenizer
        return CallSplitter(tokenizer, schemas), named_calls(messages, tokenizer)

    def fitted(self, result: str) -> str:
        """As `Backend` says."""
        room = self.pair.target.context_length // 4
        kept = result[: MAX_TOKEN * room]
        while (tokens := len(self.pair.encode(kept))) > room:
            kept = kept[: len(kept) * room // tokens]
        return kept

    def warnings(self) -> list[str]:
        """Kernels that gave wrong results."""
        return kernel_warnings(self.pair.target.kernels)

    def drafting_summary(self, options: GenerationOptions) -> str:
        """Block size and mode in a few words; empty without drafting."""
        asked = self.options(options)
        return describe_drafting(self.pair, asked)

    def model_json(self) -> dict[str, Any]:
        """A pair, and which kernels it runs."""
        from dflash_mlx.models.quantise import bits_of

        pair = self.pair
        return {
            "model": pair.target_name,
            "draft": pair.draft_name,
            "lookup": pair.lookup,
            "draft_bits": None if pair.drafter is None else bits_of(pair.drafter.model),
            "exact": pair.target.kernels.exact,
            "kernels": kernels_json(pair.target.kernels),
        }

    def answer_json(self, stats: Stats, options: GenerationOptions) -> dict[str, Any]:
        """Counts of drafts, memory and versions."""
        import mlx.core as mx

        return {
            "mode": self.options(options).mode,
            "speculation": self._speculation_json(stats, self.options(options)),
            "peak_memory_gb": round(mx.get_peak_memory() / 1e9, 4),
            "versions": {"dflash": __version__, "mlx": version("mlx"), "mlx_lm": version("mlx-lm")},
        }

    def _speculation_json(self, stats: Stats, options: GenerationOptions) -> dict[str, Any] | None:
        """Draft counts and acceptance; None without a drafter."""
        if options.mode == "baseline":
            return None
        mode_fields: dict[str, Any] = {}
        if options.mode == "ddtree":
            mode_fields["tree_budget"] = options.tree_budget or TREE_BUDGET
        elif options.mode == "auto" and (policy := self.session.policy):
            mode_fields["chosen"] = [
                {"rows": plan.rows, "tree": plan.tree, "rounds": count}
                for plan, count in policy.plans
            ]
            mode_fields["why"] = policy.reason
        return {
            "block_size": options.block_size or self.pair.block_size,
            **mode_fields,
            "verifies": stats.verifies,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "mean_acceptance_length": round(stats.acceptance_length, 4),
            "acceptance_rate": round(stats.acceptance_rate, 4),
            "accepted_by_position": stats.accepted_by_position,
        }

    def finish(self, out: Output) -> None:
        """Wait until what was read is on disk; shown where it takes more than a second."""
        disk = self.pair.engine.prefixes.disk
        if disk is not None:
            with Spinner(out, "keeping what was read for the next time"):
                disk.wait()


# A server's model

UNKNOWN_CONTEXT = 32_768  # tokens, for the length of results only
CHARACTERS = 4  # for one token where nobody counts; most tokens have less
LOCAL = [one for one in declared(GenerationOptions) if one.option.scope == "local"]


class RemoteSwitches:
    """What a server's API knows of thinking; the model may know less."""

    def __init__(self, kind: str):
        self._kind = kind

    @property
    def think_switch(self) -> str | None:
        """The switch of its templates."""
        return "enable_thinking" if self._kind in KINDS else None

    @property
    def efforts(self) -> tuple[str, ...]:
        """All: what a model does not know, its server refuses or lets be."""
        return EFFORTS

    def check(self, think: bool | None, effort: str | None) -> None:
        """UsageError for what has no field."""
        if think is False and effort is not None:
            raise UsageError("no thinking has no effort.", hint="leave one of them out")
        thinking_fields(think, effort, self._kind)


class RemoteBackend:
    """One model of a server. What it can do beyond OpenAI's API follows from the server's kind."""

    local = False
    drafting = False

    def __init__(self, server: Server):
        self.server = server
        self.session = RemoteSession(server)
        self.template = RemoteSwitches(server.kind)

    @property
    def target_name(self) -> str:
        """What a chat calls it, and finds it again by: the address with the model."""
        return self.server.target_name

    @property
    def draft_name(self) -> str | None:
        """As the server's list of models tells it."""
        return self.server.draft_name

    @property
    def context_length(self) -> int:
        """As the server's list of models tells it; 0 where it does not."""
        return self.server.context_length

    @property
    def stats(self) -> Stats:
        """As far as the server tells them."""
        return self.session.stats

    def options(self, options: GenerationOptions) -> GenerationOptions:
        """All of them: `check` has refused what cannot be sent."""
        return options

    def check(self, options: GenerationOptions) -> None:
        """What the API has no field for."""
        for one in LOCAL:
            if getattr(options, one.name) not in (one.default, one.command_default):
                raise UsageError(
                    f"{one.option.setting} is the server's affair: its API has no field for it.",
                    hint="it is chosen where the server is started",
                )
        request_fields(self.server.kind, options)

    def prepare(self, options: GenerationOptions, out: Output) -> None:
        """What cannot be sent is said at once."""
        request_fields(self.server.kind, options)

    def stream(
        self, prompt: Any, options: GenerationOptions, *, on_prefill: Progress = silent
    ) -> Generator[Block]:
        """As `RemoteSession.stream`."""
        return self.session.stream(prompt, options, on_prefill=on_prefill)

    def count_tokens(self, prompt: Any, options: GenerationOptions) -> None:
        """Only the server counts."""

    def estimate_tokens(self, messages: Messages, options: GenerationOptions) -> int:
        """From what the server counted last: its share of a shorter prompt, and for what is longer
        a token for four characters.
        """
        length = prompt_length(api_messages(messages), options.tools)
        counted, counted_length = self.session.counted
        if length < counted_length:
            return counted * length // counted_length
        return counted + (length - counted_length) // CHARACTERS

    def recommended_sampling(self) -> dict[str, float]:
        """A server tells none."""
        return {}

    def without_tools(self) -> str | None:
        """Whether the model calls tools is found out by asking it."""

    def with_calls(
        self, messages: Messages, schemas: Sequence[dict[str, Any]]
    ) -> tuple[RemoteSession, Messages]:
        """The server takes calls out of the text."""
        return self.session, messages

    def fitted(self, result: str) -> str:
        """As `Backend` says, by the characters."""
        room = (self.context_length or UNKNOWN_CONTEXT) // 4
        return result[: CHARACTERS * room]

    def warnings(self) -> list[str]:
        """None: the server warns where it was started."""
        return []

    def model_json(self) -> dict[str, Any]:
        """The model and the kind of its server."""
        server = self.server
        return {
            "model": server.target_name,
            "draft": self.draft_name,
            "server": server.kind or None,
        }

    def answer_json(self, stats: Stats, options: GenerationOptions) -> dict[str, Any]:
        """None is what the server does not tell."""
        known = {
            name: None if name in stats.unknown else getattr(stats, name)
            for name in ("prompt_tokens", "cached_tokens", "generated", "drafted", "accepted")
        }
        usage = {"prompt": known["prompt_tokens"], "cached": known["cached_tokens"]}
        return {
            "usage": {**usage, "generated": known["generated"]},
            "tokens": None,
            "mode": self.session.mode,
            "speculation": {
                "verifies": stats.verifies or None,
                "drafted": known["drafted"],
                "accepted": known["accepted"],
                "mean_acceptance_length": stats.acceptance_length if stats.verifies else None,
                "acceptance_rate": round(stats.acceptance_rate, 4) if known["drafted"] else None,
            },
            "versions": {"dflash": __version__},
        }

    def finish(self, out: Output) -> None:
        """Nothing is written here."""


def describe_server(server: Server) -> str:
    """A server's model on one line."""
    kind = KINDS.get(server.kind, "OpenAI-compatible server")
    drafter = f" · drafter {server.draft_name}" if server.draft_name else ""
    return f"{server.model} · {kind} at {server.address.url}{drafter}"
