"""Server-sent events: lines as they come, signs of life between them, slow clients cut off."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .problem import Problem, as_problem

T = TypeVar("T")
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: Any, name: str | None = None) -> bytes:
    """One event; `data` is JSON, or a text as it is."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()


class EventStream(Response):
    """An answer of events; its source is closed at once when the client has gone.

    `alive` is sent after `every` seconds without news. `failed` writes a problem as an event.
    `ended` is called at the end, whatever it was.
    """

    def __init__(
        self,
        source: AsyncGenerator[bytes],
        *,
        alive: bytes,
        every: float,
        failed: Callable[[Problem], bytes],
        write_seconds: float,
        ended: Callable[[], None],
    ):
        self._source, self._alive, self._every = source, alive, every
        self._failed, self._write_seconds, self._ended = failed, write_seconds, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, until the source ends or the client goes."""
        sending = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            self._ended()

    async def _send_all(self, send: Send) -> None:
        async def write(body: bytes, more: bool = True) -> None:
            message = {"type": "http.response.body", "body": body, "more_body": more}
            # Not wait_for: before Python 3.12 it forgets a cancel that comes as the send ends.
            async with asyncio.timeout(self._write_seconds):
                await send(message)

        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        async with aclosing(self._source) as source:
            coming = asyncio.ensure_future(anext(source, None))
            try:
                while True:
                    done, _ = await asyncio.wait({coming}, timeout=self._every)
                    if not done:
                        await write(self._alive)
                        continue
                    try:
                        line = coming.result()
                    except Exception as error:  # the head is sent: it has to be an event
                        await write(self._failed(as_problem(error)))
                        break
                    if line is None:
                        break
                    await write(line)
                    coming = asyncio.ensure_future(anext(source, None))
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
        await write(b"", more=False)


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """What an awaitable gives; None, and the work cancelled, if the client goes before."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
