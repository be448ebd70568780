"""What must not hold up other requests: idle connections, large bodies, long prompts."""

import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from serving import Served, serving

from dflash_mlx.pair import Pair
from dflash_mlx.serve import app, listening
from dflash_mlx.serve.runner import PROMPT_THREADS
from dflash_mlx.session import Session

PATH = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "What is 12 plus 7?"}], "max_tokens": 4}
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIMIT = 12


@pytest.fixture(scope="module")
def served(pair: Pair) -> Iterator[Served]:
    with serving(pair, connections=LIMIT) as found:
        yield found


def connect(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=20)


def is_open(wire: socket.socket) -> bool:
    """Whether a connection that waits for nothing is still open."""
    wire.setblocking(False)
    try:
        return wire.recv(1 << 16, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True


def read_health(wire: socket.socket) -> bytes:
    wire.sendall(HEALTH)
    reply = wire.recv(4096)
    while not reply.endswith(b"}"):
        reply += wire.recv(4096)
    return reply


def test_idle_connections_make_room(served: Served) -> None:
    """Of many more than the limit, with and without a request before, all are answered."""
    with ExitStack() as stack:
        wires = []
        for number in range(4 * LIMIT):
            wires.append(stack.enter_context(connect(served)))
            if number % 2:
                assert read_health(wires[-1]).startswith(b"HTTP/1.1 200")
        assert httpx.post(served.url + PATH, json=BODY, timeout=30).status_code == 200
        time.sleep(0.1)
        assert sum(is_open(wire) for wire in wires) < LIMIT


def test_idle_connections_are_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.5)
    with connect(served) as wire:
        assert wire.recv(1) == b""


def test_busy_connections_stay(served: Served, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is never closed for new connections, nor for the time that its head took."""
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.05)
    never = {str(token): -100 for token in pair.target.eos_ids}
    body = {**BODY, "max_tokens": 60, "stream": True, "logit_bias": never}
    with ExitStack() as stack:
        stream = httpx.stream("POST", served.url + PATH, json=body, timeout=60)
        lines = stack.enter_context(stream).iter_lines()
        next(lines)
        for _ in range(2 * LIMIT):
            stack.enter_context(connect(served))
        assert "data: [DONE]" in list(lines)


def test_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of macOS may open 256 files unless it asks for more, which it may."""
    limits: list[tuple[int, int]] = []
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    for found in ((256, unlimited), (256, 512), (4096, 4096), (unlimited, unlimited)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, found=found: found)
        listening.allow_files(1024)
    assert limits == [(1024, unlimited), (512, 512)]


@pytest.mark.parametrize("is_large", [False, True])
def test_large_bodies_are_read_beside_the_event_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """So that streams go on meanwhile."""
    threads: list[str] = []
    read_json = app.read_json

    def reading(raw: bytes) -> Any:
        threads.append(threading.current_thread().name)
        return read_json(raw)

    monkeypatch.setattr(app, "read_json", reading)
    body = json.dumps(BODY) + " " * (is_large * (app.LARGE_BODY + 1))
    head = {"Content-Type": "application/json"}
    found = httpx.post(served.url + PATH, content=body, headers=head, timeout=30)
    assert found.status_code == 200
    assert len(threads) == 1
    assert threads[0].startswith("dflash-prompt") is is_large
    wrong = httpx.post(served.url + PATH, content=body[1:], headers=head, timeout=30)
    assert wrong.status_code == 400
    assert "not JSON" in wrong.json()["error"]["message"]
    found = httpx.post(f"{served.url}/v1/messages/count_tokens", content=body, headers=head)
    assert found.status_code == 200


def test_long_prompts_do_not_hold_up_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's own threads, which begin and end answers, are few: prompts have others."""
    may_go_on = threading.Event()
    prepare = Session.prepare
    long = {**BODY, "messages": [{"role": "user", "content": "long"}]}
    count = LIMIT - 3
    assert count < PROMPT_THREADS

    def slow(self: Session, prompt: Any, options: Any) -> Any:
        if prompt[-1]["content"] == "long":
            may_go_on.wait(60)
        return prepare(self, prompt, options)

    monkeypatch.setattr(Session, "prepare", slow)
    statuses: list[int] = []

    def post() -> None:
        statuses.append(httpx.post(served.url + PATH, json=long, timeout=90).status_code)

    posts = [threading.Thread(target=post) for _ in range(count)]
    try:
        for thread in posts:
            thread.start()
        assert httpx.post(served.url + PATH, json=BODY, timeout=30).status_code == 200
        assert not statuses
    finally:
        may_go_on.set()
        for thread in posts:
            thread.join()
    assert statuses == [200] * count
