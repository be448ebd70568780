"""What answers in a chat: a pair on this machine or a server elsewhere, by one interface."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dflash_mlx.chat.messages import Messages

from ..chat_settings import ChatSettings
from ..thinking import Switches

if TYPE_CHECKING:
    from dflash_mlx import Pair, Session
    from dflash_mlx.remote.session import RemoteSession, Server
    from dflash_mlx.tools.call_splitter import CallSplitter


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
