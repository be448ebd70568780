"""Takes the calls of tools out of the blocks of one answer. Does not know who runs the tools."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.chat.tool_calls import reader_of
from dflash_mlx.types import Block

from .call import Call


class CallSplitter:
    """Splits the answer of a model that was told of `tools` (JSON schemas)."""

    def __init__(self, tokenizer: TokenizerWrapper, tools: Sequence[dict[str, Any]]):
        self._reader = reader_of(tokenizer, tools)
        self._found: list[Call] = []

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls that are whole."""
        return tuple(self._found[: self._reader.closed if self._reader else 0])

    def split(self, block: Block) -> Block:
        """The block with its text outside of calls."""
        if self._reader is None:
            return block
        said = self._reader.read(block.text, final=bool(block.finish_reason))
        for part in said.parts:
            if part.name:
                self._found.append(Call(part.name, ""))
            call = self._found[part.number]
            self._found[part.number] = replace(call, arguments=call.arguments + part.arguments)
        return replace(block, text=said.text)
