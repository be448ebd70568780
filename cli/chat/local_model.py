"""A pair on this machine as what answers in a chat."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dflash_mlx.chat.messages import Messages

from ..chat_settings import ChatSettings
from ..modes import check_block

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.chat.template import Template
    from dflash_mlx.request import Mode
    from dflash_mlx.tools.call_splitter import CallSplitter

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
        from dflash_mlx.chat.tool_support import without_tools

        return without_tools(self.source.target)

    def with_calls(
        self, messages: Messages, schemas: Sequence[dict[str, Any]]
    ) -> "tuple[CallSplitter, Messages]":
        """As `ChatModel` says."""
        from dflash_mlx.chat.numbered_calls import named_calls
        from dflash_mlx.tools.call_splitter import CallSplitter

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
