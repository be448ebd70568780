"""`dflash` as a test wants it: the file named by SLOWED says how slow, how long and what it says.

    sleep        seconds after each block
    chunk        tokens a prefill pass, `read` seconds each
    says         the answer, given out in pieces of `piece` characters, one a block
    endless      the target never ends an answer by itself

The file is read when an answer begins. All else is the program as it is.
"""

import json
import os
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import dflash_mlx.session as session
from dflash_mlx.chat.reasoning_parser import IncrementalDetokenizer, TextDelta
from dflash_mlx.engine.engine import PREFILL_STEP_SIZE
from dflash_mlx.engine.stats import Stats
from dflash_mlx.models.packed import SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.session import Session

wanted: dict[str, Any] = {}
record, read, stream = Stats.record, Target.read, Session.stream


class Scripted(IncrementalDetokenizer):
    """Reads the tokens, and gives out another text."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        text, size = wanted["says"], wanted.get("piece", 20)
        self._parts = [text[at : at + size] for at in range(0, len(text), size)]

    def add_tokens(self, tokens: Any) -> TextDelta:
        """The next part of the text."""
        part = self._parts.pop(0)
        return TextDelta(part, stop="" if self._parts else "the end")

    def finish(self) -> TextDelta:
        """The rest of the text."""
        return TextDelta("".join(self._parts))


def slow_record(self: Stats, block: Any) -> None:
    """Count a block, slowly."""
    record(self, block)
    time.sleep(wanted.get("sleep", 0))


def slow_read(self: Target, parts: Sequence[SequenceRows], **options: Any) -> Any:
    """Read a chunk of a prompt slowly, and what is verified as fast as it goes."""
    if any(part.last for part in parts):
        time.sleep(wanted.get("read", 0))
    return read(self, parts, **options)


def scripted_stream(self: Session, *arguments: Any, **options: Any) -> Any:
    """Answer as the file says by now."""
    wanted.clear()
    wanted.update(json.loads(Path(os.environ["SLOWED"]).read_text()))
    self.pair.engine.prefill_step_size = wanted.get("chunk", PREFILL_STEP_SIZE)
    detokenizer = Scripted if "says" in wanted else IncrementalDetokenizer
    session.IncrementalDetokenizer = detokenizer  # type: ignore[misc]
    target = self.pair.target
    target.eos_ids = (
        frozenset() if wanted.get("endless") or "says" in wanted else own_ends(self.pair)
    )
    return stream(self, *arguments, **options)


def own_ends(pair: Any) -> frozenset[int]:
    """The tokens that end an answer of this target's."""
    return frozenset(pair.tokenizer.eos_token_ids)


if __name__ == "__main__":
    Stats.record, Target.read = slow_record, slow_read
    Session.stream = scripted_stream
    import_module("dflash_mlx.cli.app").main()
