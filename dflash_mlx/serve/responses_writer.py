"""Answers as OpenAI's responses API writes them: a response, or the events of one.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from .items import Items, Step
from .job import Job, Progress
from .numbers import progress
from .openai_responses import ResponsesBody
from .problem import as_problem
from .response import ResponseObject
from .runner import Prepared, Runner
from .sse import event


class ResponsesWriter:
    """Writes one request's answer, whole or as a stream."""

    def __init__(self, body: ResponsesBody, job: Job, runner: Runner):
        self._job, self._runner = job, runner
        self._response = ResponseObject(body, job, runner)
        self._items = Items()
        self._sent = 0

    async def whole(self, choices: list[Prepared]) -> dict[str, Any]:
        """The answer as one object."""
        last = await self._items.add_all(self._runner.answer(self._job, choices))
        return self._response.ended(self._items.all, last)

    async def stream(self, choices: list[Prepared]) -> AsyncGenerator[bytes]:
        """The answer as events; a problem is the last one."""
        begun = self._response.begun()
        try:
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
            async with aclosing(self._runner.answer(self._job, choices)) as events:
                async for found in events:
                    if isinstance(found, Progress):
                        told = {"response": begun, "prompt_progress": progress(found)}
                        yield self._event("response.in_progress", **told)
                        continue
                    steps = list(self._items.add(found))
                    for step in steps:
                        cut = found.finish_reason == "length" and step is steps[-1]
                        for line in self._step(step, cut=cut):
                            yield line
                    if found.finish_reason:
                        ended = self._response.ended(self._items.all, found)
                        yield self._event(f"response.{ended['status']}", response=ended)
        except Exception as error:
            failed = self._response.failed(self._items.all, as_problem(error))
            yield self._event("response.failed", response=failed)

    def _event(self, kind: str, **fields: Any) -> bytes:
        found = {"type": kind, "sequence_number": self._sent, **fields}
        self._sent += 1
        return event(found, kind)

    def _step(self, step: Step, *, cut: bool) -> Iterator[bytes]:
        """What a step of the answer's items is in events; `cut`: its item is not whole."""
        item = step.item
        index = {"output_index": item.number}
        at = {**index, "item_id": self._response.ids(item)[0]}
        inside = self._call if item.kind == "call" else self._text
        if step.change == "opened":
            found = self._response.item(item, "in_progress", empty=True)
            yield self._event("response.output_item.added", **index, item=found)
        yield from inside(step, at)
        if step.change == "closed":
            found = self._response.item(item, "incomplete" if cut else "completed")
            yield self._event("response.output_item.done", **index, item=found)

    def _text(self, step: Step, at: dict[str, Any]) -> Iterator[bytes]:
        """The events of the one part of text or thinking."""
        item, form = step.item, self._response.form(step.item)
        at = {**at, form.index: 0}
        more = {"logprobs": []} if item.kind == "text" else {}
        if step.change == "opened":
            part = self._response.part(item, "")
            yield self._event(f"{form.part_event}.added", **at, part=part)
        elif step.change == "added":
            yield self._event(f"{form.text_event}.delta", **at, delta=step.text, **more)
        else:
            part = self._response.part(item, item.text)
            yield self._event(f"{form.text_event}.done", **at, text=item.text, **more)
            yield self._event(f"{form.part_event}.done", **at, part=part)

    def _call(self, step: Step, at: dict[str, Any]) -> Iterator[bytes]:
        """The events of a call; the text of a custom tool is inside of JSON until that ends."""
        offer, value = self._response.offer(step.item), self._response.value(step.item)
        if step.change == "added" and not offer.is_text:
            kind = "response.function_call_arguments.delta"
            yield self._event(kind, **at, delta=step.text)
        elif step.change == "closed" and offer.is_text:
            yield self._event("response.custom_tool_call_input.delta", **at, delta=value)
            yield self._event("response.custom_tool_call_input.done", **at, input=value)
        elif step.change == "closed":
            kind = "response.function_call_arguments.done"
            yield self._event(kind, **at, name=offer.name, arguments=value)
