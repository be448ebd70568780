"""The chat page's files, without a browser, and the passes that a stream tells it about."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served, serving

from dflash_mlx.pair import Pair
from dflash_mlx.serve import guard
from dflash_mlx.serve.web_page import FOLDER, PATHS, TYPES

ROOT = Path(__file__).parents[2]
CHAT = "/v1/chat/completions"
# Words: where a pass ends with a blank, before a number, its text comes one token shorter.
BODY = {"messages": [{"role": "user", "content": "How do I make toast?"}], "stream": True}


@pytest.fixture(scope="module")
def served(pair: Pair) -> Iterator[Served]:
    with serving(pair, api_key="geheim", hosts=guard.LOCAL_HOSTS) as running:
        yield running


def test_every_file_is_served_and_packed() -> None:
    """A file that TYPES lacks is not found, one that the wheel lacks is not found elsewhere."""
    assert {path.name for path in FOLDER.iterdir()} == set(TYPES)
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    globs = setuptools["package-data"]["dflash_mlx.serve"]
    packed = {path for glob in globs for path in FOLDER.parent.glob(glob)}
    assert set(FOLDER.iterdir()) <= packed


@pytest.mark.parametrize("path", PATHS)
def test_its_files_need_no_key_and_have_a_policy(served: Served, path: str) -> None:
    found = httpx.get(served.url + path, headers={"Accept": "text/html,*/*;q=0.8"})
    assert found.status_code == 200
    assert found.content == (FOLDER / PATHS[path]).read_bytes()
    assert found.headers["Content-Type"] == TYPES[PATHS[path]]
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    policy = dict(
        part.strip().split(" ", 1) for part in found.headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["form-action"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["trusted-types"] == "'none'"
    assert "unsafe" not in found.headers["Content-Security-Policy"]


def test_it_asks_nothing_of_other_hosts() -> None:
    for name in TYPES:
        text = (FOLDER / name).read_text("utf-8")
        text = text.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert "http://" not in text, name
        assert "https://" not in text, name
        assert not any(word in text for word in ("innerHTML", "outerHTML", "insertAdjacent")), name


def test_the_guard_is_that_of_the_api(served: Served) -> None:
    for path in PATHS:
        assert httpx.get(served.url + path, headers={"Host": "evil.example"}).status_code == 403
        evil = {"Origin": "http://evil.example"}
        assert httpx.get(served.url + path, headers=evil).status_code == 403
    assert httpx.head(served.url + "/").status_code == 200
    assert httpx.post(served.url + "/", json={}).status_code == 405
    key = {"Authorization": "Bearer geheim"}
    for path in ("/page/", "/page/..%2fapp.py", "/page/%2e%2e/app.py", "/page/app.py", "/page"):
        assert httpx.get(served.url + path).status_code == 401
        assert httpx.get(served.url + path, headers=key).status_code == 404
    assert httpx.get(f"{served.url}/v1/models").status_code == 401


# The passes of a stream


def stream(served: Served, **fields: Any) -> list[dict[str, Any]]:
    headers = {"Authorization": "Bearer geheim"}
    found = httpx.post(served.url + CHAT, json={**BODY, **fields}, headers=headers, timeout=60)
    lines = [line for line in found.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def check_passes(served: Served) -> None:
    """Raises AssertionError unless each pass has its own tokens, and the sums are the answer's."""
    chunks = stream(served, return_passes=True, logprobs=True)
    told = [chunk for chunk in chunks if "pass" in chunk.get("dflash", {})]
    passes = [chunk["dflash"]["pass"] for chunk in told]
    assert [one["number"] for one in passes] == list(range(len(passes)))
    for chunk, one in zip(told, passes, strict=True):
        tokens = chunk["choices"][0]["logprobs"]["content"]
        assert len(tokens) == one["tokens"]
        text = "".join(token["token"] for token in tokens).replace("<|im_end|>", "")
        assert chunk["choices"][0]["delta"].get("content", "") == text
    timings = chunks[-1]["timings"]
    sums = {name: sum(one[name] for one in passes) for name in ("tokens", "drafted", "accepted")}
    assert sums["tokens"] == timings["predicted_n"]
    assert (sums["drafted"], sums["accepted"]) == (timings["draft_n"], timings["draft_n_accepted"])
    assert sums["accepted"] > 20
    assert chunks[-1]["dflash"]["verifies"] == len(passes) - 1


def test_a_stream_tells_which_pass_made_its_text(served: Served) -> None:
    check_passes(served)
    assert not any("pass" in chunk.get("dflash", {}) for chunk in stream(served))
