"""A server's model as what answers in a chat, and what it says of itself there."""

from collections.abc import Sequence
from typing import Any

from dflash_mlx import __version__
from dflash_mlx.chat.messages import Messages
from dflash_mlx.remote.fields import KINDS, request_fields
from dflash_mlx.remote.session import RemoteSession, Server, api_messages, prompt_length

from ..chat_settings import ChatSettings
from ..remote import RemoteSwitches, check_settings

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


def described(server: Server) -> str:
    """A server's model on one line."""
    kind = KINDS.get(server.kind, "OpenAI-compatible server")
    drafter = f" · drafter {server.draft_name}" if server.draft_name else ""
    return f"{server.model} · {kind} at {server.address.url}{drafter}"


def header_lines(server: Server, seconds: float, preset: str | None) -> list[str]:
    """The lines of a chat's header."""
    length = f"{server.context_length:,}" if server.context_length else "unknown"
    return [
        f"dflash {__version__} · {described(server)}" + (f" · preset {preset}" if preset else ""),
        f"asked in {seconds:.1f} s · context {length} · /help lists commands · Ctrl-C stops · "
        "Ctrl-D leaves",
    ]
