"""Answers on their way: events, the server's stop, and clients that disconnect."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from .protocol import STOPPED, Problem, as_problem


class StopSignal:
    """Tells running answers, in whatever event loop, that the server stops."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)

    def set(self) -> None:
        """Wake all that wait; call it in their event loop."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)


# Streams: server-sent events, and lines of JSON

T = TypeVar("T")
EVENTS = "text/event-stream; charset=utf-8"
JSON_LINES = "application/x-ndjson"
HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def sse_event(data: Any, name: str | None = None) -> bytes:
    """An event; `data` is a value for JSON, or a text as it is."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()


def typed_event(kind: str, **fields: Any) -> bytes:
    return sse_event({"type": kind, **fields}, kind)


def json_line(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode() + b"\n"


@dataclass(eq=False, slots=True)
class EventStream:
    """A response of events. Its source is closed as soon as the client disconnects.

    stopping: ends the stream with the error STOPPED. ping: makes what is sent after `ping_seconds`
    without an event. write_problem: makes an event of an error.
    on_end: called at the end, also after errors.
    """

    source: AsyncGenerator[bytes]
    content_type: str
    stopping: StopSignal
    ping: Callable[[], bytes]
    ping_seconds: float
    write_problem: Callable[[Problem], bytes]
    write_seconds: float
    on_end: Callable[[], None]
    _written_at: float = field(default_factory=time.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = [(b"content-type", self.content_type.encode()), *HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            work = self._send_events(send), self._send_pings(send), self.stopping.wait()
            async with tasks_of(*work, wait_for_disconnect(receive)) as tasks:
                sending, _, stopping, _ = tasks
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if stopping.done() and not sending.done():
                    # Before the round ends, which closing the source waits for.
                    await self._write(send, self.write_problem(STOPPED), more=False)
        finally:
            self.on_end()

    async def _send_events(self, send: Send) -> None:
        async with aclosing(self.source) as source:
            while True:
                try:
                    event = await anext(source, None)
                except Exception as error:  # the status is sent: the error must be an event
                    await self._write(send, self.write_problem(as_problem(error)))
                    break
                if event is None:
                    break
                await self._write(send, event)
        await self._write(send, b"", more=False)

    async def _send_pings(self, send: Send) -> None:
        while True:
            silence = time.monotonic() - self._written_at
            if silence >= self.ping_seconds:
                await self._write(send, self.ping())
            else:
                await asyncio.sleep(self.ping_seconds - silence)

    async def _write(self, send: Send, body: bytes, *, more: bool = True) -> None:
        # Before Python 3.12, wait_for can lose a cancellation that comes as the send ends.
        async with asyncio.timeout(self.write_seconds):
            await send({"type": "http.response.body", "body": body, "more_body": more})
        self._written_at = time.monotonic()


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def tasks_of(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Tasks of coroutines, which are cancelled and awaited at the end."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def unless_disconnected(
    receive: Receive, work: Coroutine[Any, Any, T], stopping: StopSignal
) -> T | None:
    """The result; None, with the work cancelled, if the client disconnects. Raises STOPPED."""
    async with tasks_of(work, stopping.wait(), wait_for_disconnect(receive)) as tasks:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        working, stop, _ = tasks
        if working.done():
            return working.result()
        if stop.done():
            raise STOPPED
    return None
