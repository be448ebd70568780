"""One model of a server."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn

from dflash_mlx import __version__
from dflash_mlx.chat.messages import Messages
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import UsageError
from dflash_mlx.options import EFFORTS, GenerationOptions, declared
from dflash_mlx.remote.session import (
    KINDS,
    RemoteServer,
    RemoteSession,
    api_messages,
    prompt_length,
    request_fields,
    thinking_fields,
)
from dflash_mlx.types import Block, Progress, silent

from ..terminal.output import Output

if TYPE_CHECKING:
    from dflash_mlx import Pair

DEFAULT_CONTEXT = 32_768  # tokens; limits the results of tools if the context is unknown
TOKEN_LENGTH = 4  # characters; most tokens are shorter
LOCAL_OPTIONS = [option for option in declared(GenerationOptions) if option.scope == "local"]


class RemoteSwitches:
    """The switches of thinking that a server's API has; the model may know fewer."""

    def __init__(self, kind: str):
        self._kind = kind

    @property
    def think_switch(self) -> str | None:
        """Name of the variable that the server passes to the chat template."""
        return "enable_thinking" if self._kind in KINDS else None

    @property
    def efforts(self) -> tuple[str, ...]:
        """All of them: the server refuses or ignores what its model does not know."""
        return EFFORTS

    def check(self, think: bool | None, effort: str | None) -> None:
        """Raise UsageError for contradictory switches, and for one without a field in the API."""
        if think is False and effort is not None:
            raise UsageError(
                "--no-think and --effort contradict each other.", hint="leave one of them out"
            )
        thinking_fields(think, effort, self._kind)


class RemoteBackend:
    """One model of a server. Its features beyond OpenAI's API depend on the kind of server."""

    local = False
    drafting = False

    def __init__(self, server: RemoteServer):
        self.server = server
        self.session = RemoteSession(server)
        self.template = RemoteSwitches(server.kind)

    @property
    def pair(self) -> NoReturn:
        raise self.server.not_here("this")

    def use(self, pair: "Pair", *, drafting: bool = True) -> NoReturn:
        raise self.server.not_here("this")

    def release(self) -> None: ...

    def check_local(self, feature: str) -> NoReturn:
        raise self.server.not_here(feature)

    def check_can_switch(self, model: str) -> NoReturn:
        raise UsageError(
            f"this chat stays with {self.server.model}, which a server runs.",
            hint=f"leave, and continue with another model: dflash chat -c -m {model}",
        )

    @property
    def target_name(self) -> str:
        """Address and model, which a saved chat needs to find the model again."""
        return self.server.target_name

    @property
    def draft_name(self) -> str | None:
        """The drafter, if the server's list of models names it."""
        return self.server.draft_name

    @property
    def context_length(self) -> int:
        """Limit of prompt and answer in tokens; 0 if the server's list of models omits it."""
        return self.server.context_length

    @property
    def stats(self) -> Stats:
        return self.session.stats

    # Before an answer

    def options(self, options: GenerationOptions) -> GenerationOptions:
        """The same options: `check` has refused what cannot be sent."""
        return options

    def check(self, options: GenerationOptions) -> None:
        """Raise UsageError for options that the API has no field for."""
        for option in LOCAL_OPTIONS:
            if getattr(options, option.name) not in (option.default, option.command_default):
                raise UsageError(
                    f"{option.setting} cannot be sent to a server: its API has no field for it.",
                    hint="leave it out; some options can be given to `dflash serve` instead",
                )
        request_fields(self.server.kind, options)

    def prepare(self, options: GenerationOptions, out: Output) -> None:
        request_fields(self.server.kind, options)

    def stream(
        self, prompt: Any, options: GenerationOptions, *, on_prefill: Progress = silent
    ) -> Generator[Block]:
        return self.session.stream(prompt, options, on_prefill=on_prefill)

    def stream_several(
        self,
        messages: Messages,
        options: GenerationOptions,
        count: int,
        *,
        check: Callable[[], None],
    ) -> Generator[tuple[int, Block, Stats]]:
        """`count` answers by `n` of the API; a server that ignores it sends fewer."""

        def on_prefill(done: int, total: int) -> None:
            check()

        blocks = self.session.stream_choices(messages, options, count, on_prefill=on_prefill)
        with closing(blocks):
            for number, block in blocks:
                yield number, block, self.session.stats

    def count_tokens(self, prompt: Any, options: GenerationOptions) -> None:
        """None: only the server has the tokenizer."""

    def estimate_tokens(self, messages: Messages, options: GenerationOptions) -> int:
        """An estimate from the last prompt that the server counted.

        A shorter prompt gets a proportional share of those tokens; a longer one gets a token more
        per four characters more.
        """
        length = prompt_length(api_messages(messages), options.tools)
        counted_tokens, counted_length = self.session.counted
        if length < counted_length:
            return counted_tokens * length // counted_length
        return counted_tokens + (length - counted_length) // TOKEN_LENGTH

    def recommended_sampling(self) -> dict[str, float]:
        """Nothing: servers do not report it."""
        return {}

    def fresh_session(self) -> NoReturn:
        raise self.server.not_here("this")

    # Tools

    def no_tools_reason(self) -> str | None:
        """None: only an answer shows whether the model calls tools."""

    def tool_parser(
        self, messages: Messages, schemas: Sequence[dict[str, Any]]
    ) -> tuple[RemoteSession, Messages]:
        """The session: the server itself separates tool calls from the text."""
        return self.session, messages

    def truncate_result(self, result: str) -> str:
        limit = (self.context_length or DEFAULT_CONTEXT) // 4
        return result[: TOKEN_LENGTH * limit]

    # Descriptions

    def describe(self, options: GenerationOptions) -> str:
        server = self.server
        kind = KINDS.get(server.kind, "OpenAI-compatible server")
        drafter = f" · drafter {server.draft_name}" if server.draft_name else ""
        return f"{server.model} · {kind} at {server.address.url}{drafter}"

    def headline(self, options: GenerationOptions) -> str:
        return self.describe(options)

    def start_summary(self, seconds: float) -> str:
        length = f"{self.context_length:,}" if self.context_length else "unknown"
        return f"asked in {seconds:.1f} s · context {length}"

    def drafting_summary(self, options: GenerationOptions) -> str:
        """Empty: the server decides whether to draft."""
        return ""

    def cut_by(self, stats: Stats, max_tokens: int | None, name: str) -> str:
        return "cut by the server's limit" if max_tokens is None else f"cut by {name}"

    def usage_rows(self, conversation: str, options: GenerationOptions) -> list[tuple[str, str]]:
        return [("conversation", conversation), ("server", self.describe(options))]

    def kv_note(self) -> str:
        """Empty: the server decides how it keeps its caches."""
        return ""

    def model_note(self) -> str:
        """Empty: this program does not know the server's model."""
        return ""

    def warnings(self) -> list[str]:
        """Nothing: a server shows its warnings where it was started."""
        return []

    def drafter_warning(self) -> list[str]:
        """Nothing: this program does not know the server's drafter."""
        return []

    def model_json(self) -> dict[str, Any]:
        server = self.server
        return {
            "model": server.target_name,
            "draft": self.draft_name,
            "server": server.kind or None,
        }

    def answer_json(self, stats: Stats, options: GenerationOptions) -> dict[str, Any]:
        """Counts, mode and version; None for what the server does not report."""
        names = ("prompt_tokens", "cached_tokens", "generated", "drafted", "accepted")
        counts = {name: None if name in stats.unknown else getattr(stats, name) for name in names}
        return {
            "usage": {
                "prompt": counts["prompt_tokens"],
                "cached": counts["cached_tokens"],
                "generated": counts["generated"],
            },
            "tokens": None,
            "mode": self.session.mode,
            "speculation": {
                "verifies": stats.verifies or None,
                "drafted": counts["drafted"],
                "accepted": counts["accepted"],
                "mean_acceptance_length": stats.acceptance_length if stats.verifies else None,
                "acceptance_rate": round(stats.acceptance_rate, 4) if counts["drafted"] else None,
            },
            "versions": {"dflash": __version__},
        }

    def finish(self, out: Output) -> None: ...
