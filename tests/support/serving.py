"""Runs a server of this process on a free port, for clients of other packages."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import pytest
import uvicorn

from dflash_mlx.errors import DFlashError
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.serve import runner
from dflash_mlx.serve.access_log import AccessLog
from dflash_mlx.serve.app import Server
from dflash_mlx.serve.listening import Connection, listen
from dflash_mlx.serve.protocol import Settings


@dataclass
class Served:
    """A running server; `lines` is its access log."""

    url: str
    port: int
    server: Server
    lines: list[str]

    @property
    def busy(self) -> int:
        line = self.server.models.admission
        return line.running + line.waiting

    def wait_until_idle(self, seconds: float = 20.0) -> None:
        until = time.monotonic() + seconds
        while self.busy:
            assert time.monotonic() < until, "an answer goes on that nobody reads"
            time.sleep(0.01)

    def wait_for_answer(self, after: int, seconds: float = 20.0) -> dict[str, Any]:
        """The first answer in the log after line `after`; it comes a moment after the reply."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for line in self.lines[after:]:
                record: dict[str, Any] = json.loads(line)
                if "generated" in record:
                    return record
            time.sleep(0.01)
        raise AssertionError("the access log names no answer")


def settings_of(name: str, settings: dict[str, Any]) -> Settings:
    options: dict[str, Any] = {"mode": "dflash"}
    for one in fields(GenerationOptions):
        if one.name in settings:
            options[one.name] = settings.pop(one.name)
    return Settings(**{"names": (name,), "options": GenerationOptions(**options), **settings})


@contextmanager
def serving(pair: Pair, **settings: Any) -> Iterator[Served]:
    """Serve a pair as the model "m" inside the context, on at most so many `connections`.

    `offers` and `keep_alive` are as in `Server`; `log_prompts` and `log_seconds` are `prompts` and
    `progress_seconds` of the log.
    """
    limit = settings.pop("connections", None)
    lines: list[str] = []
    prompts = settings.pop("log_prompts", False)
    seconds = settings.pop("log_seconds", 10.0)
    log = AccessLog(lines.append, as_json=True, prompts=prompts, progress_seconds=seconds)
    more = {key: settings.pop(key) for key in ("offers", "keep_alive") if key in settings}
    server = Server(pair, settings_of("m", settings), log, **more)
    (listening,) = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        server.app, http=Connection, ws="none", lifespan="off", log_config=None,
        timeout_graceful_shutdown=2, limit_concurrency=limit,
    )  # fmt: skip
    running = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(running.serve([listening])))
    thread.start()
    port = listening.getsockname()[1]
    try:
        yield Served(f"http://127.0.0.1:{port}", port, server, lines)
    finally:
        running.should_exit = True
        thread.join()


def plant_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a fault: every choice has the seed of the second one."""
    as_choice = runner.as_choice
    monkeypatch.setattr(runner, "as_choice", lambda prompted, index: as_choice(prompted, 1))


def fail_to_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make generation fail at its start, after the headers of a stream were sent."""

    async def failing(*given: Any) -> Any:
        raise DFlashError("the cable is out", hint="plug it in")
        yield

    monkeypatch.setattr(server.first.runner, "answer", failing)
