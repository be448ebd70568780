"""What streams and the log say while a long prompt is read, and that clients read on as before."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from every_api import CHAT, MESSAGES, RESPONSES, TOOLS, body_of
from scripted_server import CALL, HI, TOLD, pair_saying
from serving import Served, serving

from dflash_mlx.engine.stats import Stats
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.pair import Pair
from dflash_mlx.serve.access_log import AccessLog, AccessRecord

CHUNK = 16  # tokens of a prompt per pass
LONG = " ".join(f"{number} plus 7" for number in range(20))
ASKED: Any = [{"role": "user", "content": LONG}]
LIMIT = 9
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASKED, "max_tokens": LIMIT},
    "/v1/completions": {"prompt": LONG, "max_tokens": LIMIT},
    "/v1/responses": {"input": LONG, "max_output_tokens": LIMIT},
    "/v1/messages": {"messages": ASKED, "max_tokens": LIMIT},
    "/api/chat": {"messages": ASKED, "options": {"num_predict": LIMIT}},
    "/api/generate": {"prompt": LONG, "options": {"num_predict": LIMIT}},
}
SSE = [path for path in BODIES if path.startswith("/v1")]
READ = re.compile(r"^: read (\d+) of (\d+) prompt tokens$", re.MULTILINE)
TEXT = re.compile(r'"(?:content|text|delta)": ?"[^"]')
VARYING = re.compile(r"[0-9a-f]{24,}|\b\d{10}\b|\d+\.\d+")


@pytest.fixture
def slow(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server that reads each prompt anew, in small and slow passes, and pings soon."""
    monkeypatch.setattr(pair.engine.scheduler.prompt_chunks, "sizes", {0: CHUNK})
    monkeypatch.setattr(pair.engine.prefix_cache, "limit", 0)
    read = pair.target.read

    def slow_read(parts: Sequence[SequenceRows], **options: Any) -> list[SequencePass]:
        time.sleep(0.03 * any(part.last for part in parts))
        return read(parts, **options)

    monkeypatch.setattr(pair.target, "read", slow_read)
    with serving(pair, keepalive=0.01, log_seconds=0.02) as running:
        yield running


def stream(served: Served, path: str) -> str:
    reply = httpx.post(served.url + path, json={**BODIES[path], "stream": True}, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.text


@pytest.mark.parametrize("path", SSE)
def test_comments_say_how_far_the_prompt_is_read(slow: Served, path: str) -> None:
    """Agents send 20,000 tokens: a stream without a word for a minute looks dead."""
    found = stream(slow, path)
    told = [(int(read), int(total)) for read, total in READ.findall(found)]
    assert len({read for read, _ in told}) > 3
    assert told == sorted(told)
    begun = TEXT.search(found)
    assert begun is not None
    assert begun.start() > found.rindex(": read ")  # nothing is told once the answer has begun
    assert {total for _, total in told} == {slow.wait_for_answer(0)["prompt"]}


@pytest.mark.parametrize("path", SSE)
def test_events_are_the_same_beside_the_comments(slow: Served, pair: Pair, path: str) -> None:
    with serving(pair) as quiet:
        wanted = events(stream(quiet, path))
    assert ": read " not in "".join(wanted)
    assert events(stream(slow, path)) == wanted


def events(text: str) -> list[str]:
    """The events of a stream without comments, pings, ids and times."""
    found = []
    for frame in text.split("\n\n"):
        lines = [line for line in frame.splitlines() if not line.startswith(":")]
        if lines and lines[0] != "event: ping":
            found.append(VARYING.sub("*", "\n".join(lines)))
    return found


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_comments_count_tokens_while_a_call_is_written(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call may hold a file of thousands of tokens, and is sent when it is complete."""
    record = Stats.record

    def slow_record(self: Stats, block: Any) -> None:
        time.sleep(0.03)
        record(self, block)

    monkeypatch.setattr(Stats, "record", slow_record)
    with serving(pair_saying(CALL, HI, tools=TOLD), keepalive=0.01) as served:
        body = body_of(path, tools=TOOLS[path], stream=True, model="m")
        found = httpx.post(served.url + path, json=body, timeout=60).text.replace("\\", "")
    before, _, _ = found.partition('{"a": 1, "b": [2, "}"]}')
    assert before != found
    assert '"b": [' not in before
    told = [int(count) for count in re.findall(r"^: wrote (\d+) tokens$", before, re.MULTILINE)]
    assert len({*told}) > 3
    assert told == sorted(told)


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_lines_of_ollama_stay_json(slow: Served, path: str) -> None:
    lines = [json.loads(line) for line in stream(slow, path).splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    texts = [line.get("response", line.get("message", {}).get("content")) for line in lines]
    assert texts[:3] == ["", "", ""]  # while the prompt is read
    assert "".join(texts)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_the_log_says_how_far_a_prompt_is_read(slow: Served, path: str) -> None:
    """Also of an answer that is sent as a whole; its own line comes last."""
    body = {**BODIES[path], "stream": False}
    assert httpx.post(slow.url + path, json=body, timeout=60).status_code == 200
    answer = slow.wait_for_answer(0)
    *told, last = [json.loads(line) for line in slow.lines]
    assert last == answer
    assert len({one["read"] for one in told}) > 3
    assert [one["read"] for one in told] == sorted(one["read"] for one in told)
    assert {(one["event"], one["path"], one["prompt"]) for one in told} == {
        ("reading", path, answer["prompt"])
    }


def test_a_log_of_text_has_a_sentence() -> None:
    lines: list[str] = []
    session: Any = SimpleNamespace(stats=Stats(), prompt_read=0)
    record = AccessRecord("POST", "/v1/messages", sessions=[session])
    log = AccessLog(lines.append)
    log.write_progress(record)
    assert not lines  # it waits for its turn
    session.stats.prompt_tokens, session.prompt_read = 20_000, 8192
    log.write_progress(record)
    assert lines == ["POST /v1/messages has read 8192 of 20000 prompt tokens after 0 s"]
    session.stats.generated = 1
    log.write_progress(record)
    assert len(lines) == 1  # the answer has begun
