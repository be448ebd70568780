"""Several models in one server: loaded by requests, unloaded for others and after a while."""

import gc
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny
from serving import Served, serving
from shelf import DEFAULTS, SIZE, Shelf, make

import dflash_mlx
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import local
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.serve import models
from dflash_mlx.serve.keep_alive import parse_keep_alive
from dflash_mlx.serve.protocol import Limits

PROMPT = "one two three"


def ask(served: Served, model: str | None = None, **body: Any) -> httpx.Response:
    named = {} if model is None else {"model": model}
    url = f"{served.url}/v1/completions"
    return httpx.post(url, json={"prompt": PROMPT, **named, **body}, timeout=60)


def text(reply: httpx.Response) -> str:
    return reply.json()["choices"][0]["text"]


def states(served: Served) -> dict[str, str]:
    data = httpx.get(f"{served.url}/v1/models").json()["data"]
    return {model["id"]: model["state"] for model in data}


def alone(number: int) -> str:
    pair = mlx_thread().call(make, number)
    return dflash_mlx.generate(pair, PROMPT, replace(DEFAULTS, raw=True)).text


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Limit the memory to so many models, which are large beside their caches."""

    def limit(models: float) -> None:
        monkeypatch.setattr("dflash_mlx.serve.models.weight_bytes", lambda pair: SIZE)
        monkeypatch.setattr("dflash_mlx.serve.models.working_set", lambda: int(models * SIZE))

    return limit


def test_a_request_loads_its_model() -> None:
    """By its name or the end of it; answers are those of the pair alone."""
    shelf = Shelf()
    with serving(make(1), offers=shelf) as served:
        assert states(served)["pub/a"] == "not-loaded"
        first = ask(served, "pub/a").json()
        assert (first["model"], first["choices"][0]["text"]) == ("pub/a", alone(10))
        assert text(ask(served, "a")) == alone(10)
        assert text(ask(served, "b")) == alone(11)
        assert shelf.loads == ["pub/a", "pub/b"]
        assert states(served) == {
            "m": "loaded", "pub/a": "loaded", "pub/b": "loaded", "pub/c": "not-loaded",
            "other/c": "not-loaded",
        }  # fmt: skip


def test_names_that_no_model_has() -> None:
    shelf = Shelf()
    with serving(make(1), offers=shelf) as served:
        unknown, two = ask(served, "pub/aa"), ask(served, "c", stream=True)
        assert unknown.status_code == two.status_code == 404
        assert "'pub/a'" in unknown.json()["error"]["message"]
        assert "'pub/c', 'other/c'" in two.json()["error"]["message"]
        assert not shelf.loads


def test_the_least_recently_used_goes(memory: Callable[[float], None]) -> None:
    """Three fit; the fourth takes the place of the one that was not used for longest."""
    shelf = Shelf()
    memory(3.5)
    with serving(make(1), offers=shelf) as served:
        for name in ("m", "a", "b", "m", "pub/c"):
            assert ask(served, name).status_code == 200
        assert [name for name, state in states(served).items() if state == "loaded"] == [
            "m", "pub/b", "pub/c",
        ]  # fmt: skip
        gc.collect()
        assert [engine() is None for engine in shelf.engines] == [True, False, False]


def test_a_model_larger_than_the_memory(memory: Callable[[float], None]) -> None:
    memory(0.9)
    with serving(make(1), offers=Shelf()) as served:
        reply = ask(served, "a")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_too_large")


def test_a_running_answer_keeps_its_model(memory: Callable[[float], None]) -> None:
    """The other model is loaded when it has ended, not over it."""
    shelf = Shelf()
    memory(1.8)
    with serving(make(1), offers=shelf) as served:
        url = f"{served.url}/v1/completions"
        no_end = {str(token): -100 for token in served.server.first.pair.target.eos_ids}
        body = {"prompt": PROMPT, "stream": True, "max_tokens": 200, "logit_bias": no_end}
        with httpx.stream("POST", url, json=body, timeout=60) as running:
            lines = running.iter_lines()
            next(line for line in lines if line)
            waiting = threading.Thread(target=ask, args=(served, "a"))
            waiting.start()
            time.sleep(0.2)
            assert not shelf.loads
            assert list(lines)[-2] == "data: [DONE]"
        waiting.join(60)
        assert shelf.loads == ["pub/a"]


def test_answers_go_on_while_another_model_is_loaded() -> None:
    """A whole answer ends within the load of another; the stream that waits says so."""
    answered = threading.Event()

    def slow() -> None:
        while not answered.is_set():
            time.sleep(0.001)
            mlx_thread().pause()

    shelf = Shelf(before=slow)
    with serving(make(1), offers=shelf) as served:
        url = f"{served.url}/v1/completions"
        body = {"prompt": PROMPT, "stream": True, "model": "a", "max_tokens": 4}
        with httpx.stream("POST", url, json=body, timeout=60) as loading:
            lines = loading.iter_lines()
            assert next(lines) == ": loading pub/a"
            assert states(served)["pub/a"] == "loading"
            assert ask(served).status_code == 200
            answered.set()
            assert list(lines)[-2] == "data: [DONE]"


def test_a_model_that_cannot_be_loaded() -> None:
    """Every request for it says why; the next one tries again."""
    shelf = Shelf()

    def broken() -> None:
        raise DFlashError("the file is damaged.", hint="download it again")

    shelf.before = broken
    with serving(make(1), offers=shelf) as served:
        for _ in range(2):
            reply = ask(served, "a")
            assert reply.status_code == 500
            assert "damaged" in reply.json()["error"]["message"]
        streamed = ask(served, "a", stream=True).text
        assert "damaged" in streamed
        shelf.before = lambda: None
        assert text(ask(served, "a")) == alone(10)


def test_a_model_is_unloaded_after_a_while() -> None:
    """And by request, and never the one that a server was started for."""
    shelf = Shelf()
    with serving(make(1), offers=shelf, keep_alive=0.0) as served:
        ask(served, "a")
        until = time.monotonic() + 20
        while states(served)["pub/a"] == "loaded":
            assert time.monotonic() < until
            time.sleep(0.01)
    with serving(make(1), offers=shelf) as served:
        ask(served, "a")
        unload = partial(httpx.post, f"{served.url}/v1/models/unload")
        assert unload(json={"model": "a"}).json() == {"model": "pub/a", "unloaded": True}
        assert unload(json={"model": "a"}).json() == {"model": "pub/a", "unloaded": False}
        assert unload(json={"model": 3}).status_code == 400
        assert states(served)["pub/a"] == "not-loaded"
        told = [record for line in served.lines if "event" in (record := json.loads(line))]
        assert [(one["event"], one["model"]) for one in told] == [
            ("loaded", "pub/a"), ("unloaded", "pub/a"),
        ]  # fmt: skip


@pytest.mark.parametrize("way", ["unload", "keep_alive", "expiry", "room"])
def test_memory_is_free_after_an_unload(
    memory: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Nothing holds the pair when MLX's memory is freed, not even an open connection."""
    shelf = Shelf()
    free_memory = models.free_memory
    freed = list[bool]()

    def checked() -> None:
        free_memory()
        freed.append(all(engine() is None for engine in shelf.engines))

    monkeypatch.setattr(models, "free_memory", checked)
    if way == "room":
        memory(1.5)
    seconds = 0.0 if way == "expiry" else 60.0
    with serving(make(1), offers=shelf, keep_alive=seconds) as served, httpx.Client() as client:
        body = {"prompt": PROMPT, "model": "a", "stream": True}
        assert client.post(f"{served.url}/v1/completions", json=body, timeout=60).is_success
        freed.clear()
        if way == "unload":
            httpx.post(f"{served.url}/v1/models/unload", json={"model": "a"})
        elif way == "keep_alive":
            httpx.post(f"{served.url}/api/generate", json={"model": "a", "keep_alive": 0})
        elif way == "room":
            ask(served, "b")
        until = time.monotonic() + 20
        while not freed:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert freed[0]


def test_two_unloads_of_a_model_at_once() -> None:
    """Both wait for the load of another one; then the second finds it unloaded."""
    shelf = Shelf()
    go_on = threading.Event()
    with serving(make(1), offers=shelf) as served:
        ask(served, "a")
        shelf.before = go_on.wait
        replies = list[httpx.Response]()

        def unload() -> None:
            body = {"model": "a"}
            replies.append(httpx.post(f"{served.url}/v1/models/unload", json=body, timeout=60))

        threads = [threading.Thread(target=ask, args=(served, "b"))]
        threads += [threading.Thread(target=unload) for _ in range(2)]
        for thread in threads:
            thread.start()
            time.sleep(0.1)
        go_on.set()
        for thread in threads:
            thread.join(60)
        assert [reply.json()["unloaded"] for reply in replies] == [True, True]
        assert states(served)["pub/a"] == "not-loaded"


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_random_requests_with_a_small_memory(
    memory: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Every third is cut off: never over the limit, and all others right."""
    shelf = Shelf()
    memory(2.5)
    most = 0
    load = Shelf.load

    def counted(self: Shelf, name: str) -> tuple[Pair, GenerationOptions]:
        nonlocal most
        result = load(self, name)
        gc.collect()
        most = max(most, sum(engine() is not None for engine in self.engines))
        return result

    monkeypatch.setattr(Shelf, "load", counted)
    wanted = {name: alone(number) for number, name in enumerate(shelf.names, 10)}
    rng = random.Random(7)
    wrong = list[str]()

    def one(name: str, cut: bool) -> None:
        if not cut:
            reply = ask(served, name)
            if reply.status_code != 200 or text(reply) != wanted[name]:
                wrong.append(reply.text)
            return
        body = {"prompt": PROMPT, "stream": True, "model": name, "max_tokens": 300}
        with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as stream:
            next(stream.iter_lines())

    with serving(make(1), offers=shelf, limits=Limits(queue=200)) as served:
        threads = [
            threading.Thread(target=one, args=(rng.choice(shelf.names), number % 3 == 0))
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
            time.sleep(rng.random() * 0.02)
        for thread in threads:
            thread.join(120)
        served.wait_until_idle()
        users = [each.users for each in served.server.models.loaded]
    assert not wrong
    assert users == [0] * len(users)
    assert most <= 2


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("10m", 600), ("1h30m", 5400), (0, 0), ("45", 45), ("500ms", 0.5), (-1, inf), ("-5m", inf)],
)  # fmt: skip
def test_times(value: str | float, seconds: float) -> None:
    assert parse_keep_alive(value) == seconds


@pytest.mark.parametrize("value", ["", "m", "10 minutes", "1d", "--1", "nan"])
def test_times_that_are_none(value: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_keep_alive(value)


def test_models_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets in folders; drafters are left out, and what cannot run says why."""
    monkeypatch.setattr(local, "LM_STUDIO", (str(tmp_path / "studio"),))
    monkeypatch.setattr(local, "cached_repos", lambda: [])
    tiny.save_pair(tmp_path / "studio" / "pub" / "pair", tiny.draft_settings)
    (tmp_path / "studio" / "pub" / "file").mkdir()
    (tmp_path / "studio" / "pub" / "file" / "model.gguf").write_bytes(b"GGUF")
    odd = tmp_path / "own" / "odd"
    odd.mkdir(parents=True)
    (odd / "config.json").write_text(json.dumps({"model_type": "abacus"}))
    found = {model.name: model.lacks for model in local.local_models([tmp_path / "own"])}
    assert "GGUF" in found["pub/file"]
    assert "abacus" in found["odd"]
    assert [name for name, lacks in found.items() if not lacks] == ["pub/pair/target"]
