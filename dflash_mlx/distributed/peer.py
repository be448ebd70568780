"""The control connection of two ranks: messages, and whether the other end is still there.

A message is its length in four bytes and JSON; an empty one is a beat. Each end beats twice a
second and counts its own beats since it heard anything, so that a machine which slept has not lost
the other. Knows nothing of models.
"""

import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

BEAT = 0.5  # seconds
SILENT = 12  # beats without a word until a rank counts as lost
END = ["end"]


class Peer:
    """One end of a connection to the rank `name`; two threads of its own listen and beat.

    `on_lost(sentence)` is called once, in one of them, when the other end dies, falls silent, or
    says itself why it cannot go on.
    """

    def __init__(self, connection: socket.socket, name: str, on_lost: Callable[[str], None]):
        self.name, self._on_lost = name, on_lost
        self._connection, self._sending = connection, Lock()
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._silent, self.ended, self._lost = 0, False, False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for work in (self._listen, self._beat):
            Thread(target=work, name=f"dflash-{work.__name__}", daemon=True).start()

    def send(self, message: Any) -> int:
        """Send a message: its bytes. A connection that is gone is found by the listener."""
        data = json.dumps(message, separators=(",", ":")).encode()
        with self._sending, suppress(OSError):
            self._connection.sendall(len(data).to_bytes(4, "big") + data)
        return len(data)

    def receive(self) -> Any:
        """The next message; raises what `fail` was given."""
        found = self._inbox.get()
        if isinstance(found, BaseException):
            self._inbox.put(found)
            raise found
        return found

    def fail(self, error: BaseException) -> None:
        """Whoever waits for a message gets this error, now and later."""
        self._inbox.put(error)

    def end(self) -> None:
        """Say goodbye; what the other end does from now on is its own affair."""
        self.ended = True
        if self._sending.acquire(timeout=1):
            self._sending.release()
            self.send(END)

    def _listen(self) -> None:
        """Read messages until the connection ends."""
        with suppress(OSError, ValueError):
            while True:
                size = int.from_bytes(self._exactly(4), "big")
                self._silent = 0
                if not size:
                    continue
                message = json.loads(self._exactly(size))
                if message == END:
                    self.ended = True
                elif message[0] == "lost":
                    return self._lose(message[1])
                self._inbox.put(message)
        self._lose(f"{self.name} has ended or cut the connection.")

    def _exactly(self, count: int) -> bytes:
        """So many bytes; OSError at the end of the connection."""
        found = b""
        while len(found) < count:
            part = self._connection.recv(count - len(found))
            if not part:
                raise OSError
            self._silent = 0
            found += part
        return found

    def _beat(self) -> None:
        """Beat, and count how long the other end has been silent."""
        while not (self.ended or self._lost):
            time.sleep(BEAT)
            self._silent += 1
            if self._silent > SILENT:
                return self._lose(f"{self.name} has not answered for {SILENT * BEAT:.0f} seconds.")
            if self._sending.acquire(blocking=False):
                try:
                    with suppress(OSError):
                        self._connection.sendall(bytes(4))
                finally:
                    self._sending.release()

    def _lose(self, sentence: str) -> None:
        if not (self.ended or self._lost):
            self._lost = True
            self._on_lost(sentence)
