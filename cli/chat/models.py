"""What answers in a chat: a pair on this machine or a server elsewhere, by one interface."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dflash_mlx import __version__
from dflash_mlx.chat.messages import Messages
from dflash_mlx.remote.session import (
    KINDS,
    RemoteSession,
    Server,
    api_messages,
    prompt_length,
    request_fields,
)

from ..chat_settings import ChatSettings
from ..modes import check_block
from ..remote import RemoteSwitches, check_settings
from ..thinking import Switches

if TYPE_CHECKING:
    from dflash_mlx import Pair, Session
    from dflash_mlx.chat.template import Template
    from dflash_mlx.engine.request import Mode
    from dflash_mlx.remote.session import RemoteSession, Server
    from dflash_mlx.tools.loop import CallSplitter


class ChatModel(Protocol):
    """A model with the session that answers.

    source: the pair or the server. context_length: the most tokens that prompt and answer can have
    together, 0 where nobody knows. template: its switches for thinking.
    """

    @property
    def source(self) -> "Pair | Server": ...
    @property
    def session(self) -> "Session | RemoteSession": ...
    @property
    def context_length(self) -> int: ...
    @property
    def template(self) -> Switches: ...

    def options(self, settings: ChatSettings) -> dict[str, Any]:
        """The arguments of `session.stream` besides the prompt."""
        ...

    def check(self, settings: ChatSettings) -> None:
        """UsageError for settings that this model cannot have."""
        ...

    def tokens(
        self,
        messages: Messages,
        settings: ChatSettings | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> int | None:
        """The tokens of a prompt; None where only the server can count them."""
        ...

    def estimated_tokens(
        self, messages: Messages, settings: ChatSettings, tools: Sequence[dict[str, Any]] = ()
    ) -> int:
        """The same, as near as can be known here: exact for a model on this machine."""
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


# A pair on this machine as what answers in a chat.

MAX_TOKEN = 32  # characters of a token; a text of longer ones is not worth more


class LocalModel:
    """A pair and its session; without `drafting` it decodes plainly."""

    def __init__(self, pair: "Pair", mode: "Mode", *, drafting: bool):
        from dflash_mlx import Session

        self.source, self.drafting = pair, drafting
        self.session: Session = Session(pair, mode=mode)

    @property
    def context_length(self) -> int:
        """The target's."""
        return self.source.target.context_length

    @property
    def template(self) -> "Template":
        """The target's."""
        return self.source.target.template

    def options(self, settings: ChatSettings) -> dict[str, Any]:
        """As `ChatModel` says."""
        tree = self.drafting and settings.mode == "ddtree"
        return {
            "sampling": settings.sampling,
            "max_tokens": settings.max_tokens or self.context_length,
            "block_size": settings.block_size if self.drafting else None,
            "accept": settings.accept,
            "tree_budget": settings.tree_budget if tree else None,
            "stop": settings.stop,
            "think": settings.think,
            "reasoning_effort": settings.effort,
        }

    def check(self, settings: ChatSettings) -> None:
        """A block that is too long."""
        check_block(self.source, settings.block_size)

    def tokens(
        self,
        messages: Messages,
        settings: ChatSettings | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> int:
        """As `ChatModel` says."""
        template: Any = {"tools": tools} if tools else {}
        if settings is not None:
            template |= {"think": settings.think, "reasoning_effort": settings.effort}
        return len(self.session.tokens(messages, **template))

    def estimated_tokens(
        self, messages: Messages, settings: ChatSettings, tools: Sequence[dict[str, Any]] = ()
    ) -> int:
        """Their number."""
        return self.tokens(messages, settings, tools)

    def without_tools(self) -> str | None:
        """As `ChatModel` says."""
        from dflash_mlx.chat.tool_parser import without_tools

        return without_tools(self.source.target)

    def with_calls(
        self, messages: Messages, schemas: Sequence[dict[str, Any]]
    ) -> "tuple[CallSplitter, Messages]":
        """As `ChatModel` says."""
        from dflash_mlx.chat.tool_parser import named_calls
        from dflash_mlx.tools.loop import CallSplitter

        tokenizer = self.source.target.tokenizer
        return CallSplitter(tokenizer, schemas), named_calls(messages, tokenizer)

    def fitted(self, result: str) -> str:
        """As `ChatModel` says."""
        target = self.source.target
        room = target.context_length // 4
        kept = result[: MAX_TOKEN * room]
        while (tokens := len(target.encode(kept))) > room:
            kept = kept[: len(kept) * room // tokens]
        return kept


# A server's model as what answers in a chat, and what it says of itself there.

UNKNOWN_CONTEXT = 32_768  # tokens, for the length of results only
CHARACTERS = 4  # for one token where nobody counts; most tokens have less


class RemoteModel:
    """One model of a server. What it can do beyond OpenAI's API follows from the server's kind."""

    def __init__(self, server: Server):
        self.source, self.session = server, RemoteSession(server)
        self.template = RemoteSwitches(server.kind)

    @property
    def context_length(self) -> int:
        """As the server's list of models tells it; 0 where it does not."""
        return self.source.context_length

    def options(self, settings: ChatSettings) -> dict[str, Any]:
        """As `ChatModel` says."""
        return {
            "sampling": settings.sampling,
            "max_tokens": settings.max_tokens,
            "stop": settings.stop,
            "think": settings.think,
            "reasoning_effort": settings.effort,
        }

    def check(self, settings: ChatSettings) -> None:
        """What the API has no field for."""
        check_settings(settings)
        request_fields(self.source.kind, **self.options(settings))

    def tokens(
        self,
        messages: Messages,
        settings: ChatSettings | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Only the server counts."""

    def estimated_tokens(
        self, messages: Messages, settings: ChatSettings, tools: Sequence[dict[str, Any]] = ()
    ) -> int:
        """From what the server counted last: its share of a shorter prompt, and for what is longer
        a token for four characters.
        """
        length = prompt_length(api_messages(messages), tools)
        counted, counted_length = self.session.counted
        if length < counted_length:
            return counted * length // counted_length
        return counted + (length - counted_length) // CHARACTERS

    def without_tools(self) -> str | None:
        """Whether the model calls tools is found out by asking it."""

    def with_calls(
        self, messages: Messages, schemas: Sequence[dict[str, Any]]
    ) -> tuple[RemoteSession, Messages]:
        """The server takes calls out of the text."""
        return self.session, messages

    def fitted(self, result: str) -> str:
        """As `ChatModel` says, by the characters."""
        room = (self.context_length or UNKNOWN_CONTEXT) // 4
        return result[: CHARACTERS * room]


def describe_server(server: Server) -> str:
    """A server's model on one line."""
    kind = KINDS.get(server.kind, "OpenAI-compatible server")
    drafter = f" · drafter {server.draft_name}" if server.draft_name else ""
    return f"{server.model} · {kind} at {server.address.url}{drafter}"


def header_lines(server: Server, seconds: float, preset: str | None) -> list[str]:
    """The lines of a chat's header."""
    length = f"{server.context_length:,}" if server.context_length else "unknown"
    return [
        f"dflash {__version__} · {describe_server(server)}"
        + (f" · preset {preset}" if preset else ""),
        f"asked in {seconds:.1f} s · context {length} · /help lists commands · Ctrl-C stops · "
        "Ctrl-D leaves",
    ]
