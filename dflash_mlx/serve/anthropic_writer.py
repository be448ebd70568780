"""Answers as Anthropic's API writes them: a message, or the events of one.

https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from dflash_mlx.stats import Stats

from .anthropic_messages import MessagesBody
from .items import Item, Items, Step
from .job import Delta, Job, Progress
from .numbers import progress, timings
from .problem import as_problem
from .runner import Prepared, Runner
from .sse import event

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
REASONS = {"stop": "end_turn", "length": "max_tokens", "calls": "tool_use"}
UNSIGNED = "unsigned"  # clients keep thinking only with a signature, which nobody checks here


class MessagesWriter:
    """Writes one request's answer, whole or as a stream."""

    def __init__(self, body: MessagesBody, job: Job, runner: Runner):
        self._body, self._job, self._runner = body, job, runner
        self._head = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": runner.settings.names[0],
        }
        self._items = Items()
        self._ids: dict[int, str] = {}

    async def whole(self, choices: list[Prepared]) -> dict[str, Any]:
        """The answer as one object."""
        last = await self._items.add_all(self._runner.answer(self._job, choices))
        return {
            **self._head,
            "content": [self._block(item) for item in self._items.all],
            **self._reason(last),
            "usage": usage(last.stats),
            **self._told(last),
        }

    async def stream(self, choices: list[Prepared]) -> AsyncGenerator[bytes]:
        """The answer as events; a problem is the last one."""
        try:
            yield self._start(choices[0])
            async with aclosing(self._runner.answer(self._job, choices)) as events:
                async for found in events:
                    if isinstance(found, Progress):
                        told = {"prompt_progress": progress(found)}
                        yield event({"type": "ping", **told}, "ping")
                        continue
                    for step in self._items.add(found):
                        for line in self._step(step):
                            yield line
                    if found.finish_reason:
                        yield self._ending(found)
            yield event({"type": "message_stop"}, "message_stop")
        except Exception as error:
            yield event(as_problem(error).anthropic(), "error")

    def _start(self, one: Prepared) -> bytes:
        message = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(Stats(prompt_tokens=len(one.prompted.request.prompt))),
        }
        return event({"type": "message_start", "message": message}, "message_start")

    def _step(self, step: Step) -> list[bytes]:
        """What a step of the answer's items is in events."""
        item, at = step.item, {"index": step.item.number}
        if step.change == "opened":
            block = self._block(item)
            return [
                event({"type": "content_block_start", **at, "content_block": block},
                      "content_block_start")
            ]  # fmt: skip
        if step.change == "closed":
            lines = []
            if item.kind == "thinking":
                lines.append(self._delta(item, {"type": "signature_delta", "signature": UNSIGNED}))
            return [*lines, event({"type": "content_block_stop", **at}, "content_block_stop")]
        if item.kind == "thinking":
            if not self._body.shows_thinking:
                return []
            return [self._delta(item, {"type": "thinking_delta", "thinking": step.text})]
        if item.kind == "text":
            return [self._delta(item, {"type": "text_delta", "text": step.text})]
        return [self._delta(item, {"type": "input_json_delta", "partial_json": step.text})]

    def _delta(self, item: Item, delta: dict[str, Any]) -> bytes:
        return event(
            {"type": "content_block_delta", "index": item.number, "delta": delta},
            "content_block_delta",
        )

    def _ending(self, last: Delta) -> bytes:
        found = {"type": "message_delta", "delta": self._reason(last), "usage": usage(last.stats)}
        return event({**found, **self._told(last)}, "message_delta")

    def _block(self, item: Item) -> dict[str, Any]:
        """An item as a content block; one that has just been opened has nothing in it."""
        if item.kind == "text":
            return {"type": "text", "text": item.text}
        if item.kind == "thinking":
            text = item.text if self._body.shows_thinking else ""
            return {
                "type": "thinking",
                "thinking": text,
                "signature": UNSIGNED if item.text else "",
            }
        number = self._ids.setdefault(item.number, f"toolu_{uuid.uuid4().hex[:24]}")
        return {"type": "tool_use", "id": number, "name": item.name, **input_of(item.text)}

    def _reason(self, last: Delta) -> dict[str, Any]:
        """Why the answer ended."""
        reason = REASONS[last.finish_reason or "stop"]
        if last.stop is not None:
            reason = "stop_sequence"
        elif reason == "max_tokens" and last.stats.generated < self._body.max_tokens:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": last.stop}

    def _told(self, last: Delta) -> dict[str, Any]:
        """What is beyond Anthropic's API."""
        return {"timings": timings(last.stats), "dflash": self._runner.describe([last.stats])}


def usage(stats: Stats) -> dict[str, Any]:
    """Anthropic's usage: tokens from the cache are not among the input's."""
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.cached_tokens,
        "output_tokens": stats.generated,
    }


def input_of(arguments: str) -> dict[str, Any]:
    """A call's arguments; those that were cut stay readable as `partial_json`."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return {"input": found}
    return {"input": {}, "partial_json": arguments}
