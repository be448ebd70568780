"""Runs `dflash` with changed speed and answers; the JSON file SLOWED sets them.

    sleep        seconds after each block
    chunk        tokens per prefill pass, which takes `read` seconds
    says         the answer; each block shows `piece` characters of it
    endless      the target does not end an answer
    keep         seconds between two writes of the answer to disk
    long         seconds of an answer whose end is told
    abort        as soon as this file exists, a pass of the model ends the process

The file is read at the start of each answer. Everything else is the unchanged program.
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
from dflash_mlx.engine.prompt_chunks import PREFILL_STEP_SIZE
from dflash_mlx.engine.stats import Stats
from dflash_mlx.models.packed import SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.session import Session

chat_file: Any = import_module("dflash_mlx.cli.chat.chat_file")
wanted: dict[str, Any] = {}
record, read, stream = Stats.record, Target.read, Session.stream
KEEP_SECONDS = chat_file.KEEP_SECONDS
output: Any = import_module("dflash_mlx.cli.terminal.output")
LONG_SECONDS = output.LONG_SECONDS


class Scripted(IncrementalDetokenizer):
    """Ignores the tokens and returns a given text piece by piece."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        text, size = wanted["says"], wanted.get("piece", 20)
        self._parts = [text[at : at + size] for at in range(0, len(text), size)]

    def add_tokens(self, tokens: Any) -> TextDelta:
        part = self._parts.pop(0)
        return TextDelta(part, stop="" if self._parts else "the end")

    def finish(self) -> TextDelta:
        return TextDelta("".join(self._parts))


def slow_record(self: Stats, block: Any) -> None:
    record(self, block)
    time.sleep(wanted.get("sleep", 0))


def slow_read(self: Target, parts: Sequence[SequenceRows], **options: Any) -> Any:
    """Sleep before a prefill pass, but not before a verify pass."""
    if any(part.last for part in parts):
        time.sleep(wanted.get("read", 0))
    elif wanted.get("abort") and Path(wanted["abort"]).exists():
        os.abort()
    return read(self, parts, **options)


def scripted_stream(self: Session, *arguments: Any, **options: Any) -> Any:
    """Read the settings, then answer."""
    wanted.clear()
    wanted.update(json.loads(Path(os.environ["SLOWED"]).read_text()))
    chat_file.KEEP_SECONDS = wanted.get("keep", KEEP_SECONDS)
    output.LONG_SECONDS = wanted.get("long", LONG_SECONDS)
    self.pair.engine.scheduler.prompt_chunks.sizes = {0: wanted.get("chunk", PREFILL_STEP_SIZE)}
    detokenizer = Scripted if "says" in wanted else IncrementalDetokenizer
    session.IncrementalDetokenizer = detokenizer  # type: ignore[misc]
    endless = wanted.get("endless") or "says" in wanted
    ends = () if endless else self.pair.tokenizer.eos_token_ids
    self.pair.target.eos_ids = frozenset(ends)
    return stream(self, *arguments, **options)


if __name__ == "__main__":
    Stats.record, Target.read = slow_record, slow_read
    Session.stream = scripted_stream
    import_module("dflash_mlx.cli.app").main()
