"""Who is let into a server, and what is too much for it: raw sockets and plain HTTP."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from serving import Served, serving

from dflash_mlx.pair import Pair
from dflash_mlx.serve import access_log, guard, listening
from dflash_mlx.serve.models import Models
from dflash_mlx.serve.protocol import Limits, Problem
from dflash_mlx.serve.runner import Runner

BODY = {"messages": [{"role": "user", "content": "What is 12 plus 7?"}], "max_tokens": 9}
PATH = "/v1/chat/completions"
LOCAL = (*guard.LOCAL_HOSTS, "mac.local")


@pytest.fixture(scope="module")
def served(pair: Pair) -> Iterator[Served]:
    """A server with a key, small limits, and one page that is let in."""
    limits = Limits(body_bytes=1 << 20, body_seconds=0.5)
    with serving(
        pair, api_key="geheim-ü", hosts=LOCAL, origins=("http://ok.example",), limits=limits
    ) as found:
        yield found


def post(served: Served, body: Any = BODY, *, path: str = PATH, **head: str) -> httpx.Response:
    """One request with the key; `head` adds headers, with dashes for underscores."""
    headers: Any = {"Authorization": "Bearer geheim-ü".encode(), "Content-Type": "application/json"}
    headers |= {name.replace("_", "-"): value for name, value in head.items()}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(served.url + path, content=content, headers=headers, timeout=30)


def test_the_key(served: Served) -> None:
    assert post(served).status_code == 200
    key: Any = "geheim-ü".encode()
    assert post(served, Authorization="", x_api_key=key).status_code == 200
    for wrong in ("", "Bearer", "Bearer x", "Bearer geheim", "Basic geheim-ü"):
        found = post(served, Authorization=wrong.encode())  # type: ignore[arg-type]
        assert found.status_code == 401
        assert found.json()["error"]["code"] == "invalid_api_key"
        assert found.headers["WWW-Authenticate"] == "Bearer"
    assert httpx.get(f"{served.url}/v1/models").status_code == 401
    assert httpx.get(f"{served.url}/metrics").status_code == 401
    assert httpx.get(f"{served.url}/health").json()["status"] == "ok"
    assert not any("geheim" in line for line in served.lines)


def test_other_names_of_the_machine(served: Served) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil"):
        assert post(served, Host=host).status_code == 403
    own = f"127.0.0.1:{served.port}"
    for host in ("localhost", own, "LOCALHOST.:1", "[::1]:8080", "mac.local"):
        assert post(served, Host=host).status_code == 200


def test_pages(served: Served) -> None:
    assert post(served, Origin="http://evil.example").status_code == 403
    assert post(served, Origin="null").status_code == 403
    assert post(served, Origin=served.url).status_code == 200
    found = post(served, Origin="http://ok.example")
    assert found.status_code == 200
    assert found.headers["access-control-allow-origin"] == "http://ok.example"
    asked = {"Origin": "http://ok.example", "Access-Control-Request-Method": "POST"}
    assert httpx.options(served.url + PATH, headers=asked).status_code == 200
    asked["Origin"] = "http://evil.example"
    assert httpx.options(served.url + PATH, headers=asked).status_code == 400
    assert "access-control-allow-origin" not in post(served).headers


def test_forms_are_no_json(served: Served) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert post(served, Content_Type=kind).status_code == 415


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"NaN", b'{"a":NaN}', b"[" * 100_000,
     b"[" * 300 + b"]" * 300, '{"a": 1}'.encode("utf-16"), b'{"a": 01}'],
)  # fmt: skip
def test_bodies_that_are_no_object(served: Served, body: bytes) -> None:
    found = post(served, body)
    assert found.status_code == 400
    assert "JSON" in found.json()["error"]["message"]


def test_large_bodies(served: Served) -> None:
    assert post(served, b" " * (1 << 20) + b"{}").status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * (1 << 15)

    headers: Any = {"x-api-key": "geheim-ü".encode(), "Content-Type": "application/json"}
    found = httpx.post(served.url + PATH, content=pieces(), headers=headers)
    assert found.status_code == 413


def test_slow_bodies(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as wire:
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n"
        wire.sendall(head.encode() + "x-api-key: geheim-ü\r\n".encode())
        wire.sendall(b"Content-Type: application/json\r\n\r\n{")
        assert wire.recv(4096).startswith(b"HTTP/1.1 408")


def test_heads_that_come_byte_by_byte(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and all of them together do not."""
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.5)
    until = time.monotonic() + 10
    with socket.create_connection(("127.0.0.1", served.port)) as wire, suppress(ConnectionError):
        while time.monotonic() < until:
            wire.sendall(b"G")
            time.sleep(0.05)
    assert time.monotonic() < until


def test_heads_that_are_no_http(served: Served) -> None:
    for head in (b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"A" * 70_000):
        with socket.create_connection(("127.0.0.1", served.port)) as wire:
            wire.sendall(head)
            wire.settimeout(10)
            assert wire.recv(4096)[:12] in (b"HTTP/1.1 400", b"")
    assert post(served).status_code == 200


def test_paths_and_methods_that_there_are_not(served: Served) -> None:
    assert post(served, path="/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert post(served, path="/../../etc/passwd").status_code == 404
    key: Any = {"x-api-key": "geheim-ü".encode()}
    found = httpx.get(served.url + PATH, headers=key)
    assert (found.status_code, found.headers["Allow"]) == (405, "POST")
    assert post(served, path="/v1/messages/nothing").json()["type"] == "error"
    found = post(served, path="/v1/v1/messages")
    assert found.status_code == 404
    assert "Anthropic clients take a base URL without /v1" in found.json()["error"]["message"]


@pytest.mark.slow
def test_a_client_that_reads_nothing_is_let_go(pair: Pair) -> None:
    with (
        serving(pair, limits=Limits(write_seconds=0.3), max_sequences=1) as served,
        socket.socket() as wire,
    ):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        wire.connect(("127.0.0.1", served.port))
        stop = {str(token): -100 for token in pair.target.eos_ids}
        body = {**BODY, "max_tokens": 1900, "stream": True, "logit_bias": stop, "logprobs": True}
        raw = json.dumps({**body, "top_logprobs": 20}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
        wire.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + raw)
        until = time.monotonic() + 10
        while not served.busy and time.monotonic() < until:
            time.sleep(0.01)
        assert served.busy == 1
        served.wait_until_idle(60)


def test_a_crowd_is_told_to_come_back(pair: Pair) -> None:
    with serving(pair, limits=Limits(queue=1), max_sequences=1) as served:
        stop = {str(token): -100 for token in pair.target.eos_ids}
        body = {**BODY, "max_tokens": 1500, "stream": True, "logit_bias": stop}
        streams = [httpx.stream("POST", served.url + PATH, json=body, timeout=30) for _ in range(2)]
        with streams[0] as first, streams[1] as second:
            assert (first.status_code, second.status_code) == (200, 200)
            found = httpx.post(served.url + PATH, json=BODY)
            assert found.status_code == 429
            assert int(found.headers["Retry-After"]) >= 1
            assert served.server.models.admission.waiting == 1
        served.wait_until_idle()
        assert httpx.post(served.url + PATH, json=BODY).status_code == 200


def test_what_can_never_fit_is_told_in_numbers(pair: Pair) -> None:
    with serving(pair) as served:
        served.server.models.admission.max_bytes = 1000
        found = httpx.post(served.url + PATH, json=BODY)
        assert found.status_code == 400
        assert "GB of memory" in found.json()["error"]["message"]


def test_metrics(pair: Pair) -> None:
    with serving(pair) as served:
        answers = [httpx.post(served.url + PATH, json=BODY).json() for _ in range(2)]
        lines = httpx.get(f"{served.url}/metrics").text.splitlines()
        told = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines
                if not line.startswith("#")}  # fmt: skip
        made = sum(one["usage"]["completion_tokens"] for one in answers)
        assert told["dflash_generated_tokens_total"] == made
        assert told[f'dflash_requests_total{{path="{PATH}",status="200"}}'] == 2
        assert told["dflash_time_to_first_token_seconds_count"] == 2
        accepted = sum(one["timings"]["draft_n_accepted"] for one in answers)
        assert told["dflash_accepted_tokens_total"] == accepted
        assert told["dflash_pass_rows"] > told["dflash_passes"] > 2


def test_the_first_token_has_every_wait(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a model that is loaded and for threads that read prompts; metrics and log say it too."""
    waits: list[tuple[Any, str]] = [(Models, "acquire"), (Runner, "prepare")]
    for kind, name in waits:
        monkeypatch.setattr(kind, name, later(getattr(kind, name)))
    with serving(pair) as served:
        answer = httpx.post(served.url + PATH, json=BODY).json()
        lines = httpx.get(f"{served.url}/metrics").text.splitlines()
        served.wait_until_idle()
    assert answer["dflash"]["first_token_s"] >= 0.4
    (total,) = [line for line in lines if "dflash_time_to_first_token_seconds_sum" in line]
    assert float(total.split()[1]) >= 0.4
    assert json.loads(served.lines[0])["first_token_s"] == answer["dflash"]["first_token_s"]


def later(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def waiting(*given: Any) -> Any:
        await asyncio.sleep(0.2)
        return await method(*given)

    return waiting


def test_no_prompt_in_the_log_unless_asked(pair: Pair) -> None:
    for asked in (False, True):
        with serving(pair, log_prompts=asked) as served:
            httpx.post(served.url + PATH, json=BODY)
            httpx.get(f"{served.url}/health")
        line = json.loads(served.lines[0])
        assert ("12 plus 7" in served.lines[0]) is asked
        assert (line["status"], line["path"]) == (200, PATH)


def test_the_log_has_the_reason(pair: Pair) -> None:
    """Of a request that was refused: what the client was sent, on one line and shortened."""
    with serving(pair, hosts=LOCAL) as served:
        wrong = [
            httpx.post(served.url + PATH, json={**BODY, "temperature": -1}),
            httpx.post(served.url + PATH, json=BODY, headers={"Host": "evil.example"}),
            httpx.post(f"{served.url}/v1/messages", json={}),
            httpx.get(f"{served.url}/nowhere"),
        ]
        httpx.post(served.url + PATH, json=BODY)
    lines = [json.loads(line) for line in served.lines]
    reasons = [reply.json()["error"]["message"] for reply in wrong]
    assert [line.get("error") for line in lines] == [*reasons, None]
    text: list[str] = []
    problem = Problem(400, "one\ntwo" + "x" * 500)
    record = access_log.AccessRecord("POST", PATH, 400, problem=problem)
    access_log.AccessLog(text.append).write_record(record)
    assert " s: one twox" in text[0]
    assert text[0].endswith("x…")
    assert len(text[0]) < 300


def test_hosts_and_addresses() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.8.8.8"):
        assert guard.is_loopback(host)
    for host in ("0.0.0.0", "::", "192.168.1.2", "mac.local", ""):
        assert not guard.is_loopback(host)
