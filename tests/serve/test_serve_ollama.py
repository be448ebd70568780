"""Ollama's API by Ollama's own client."""

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import ollama
import pytest
import tiny
from scripted_server import HI, TOLD
from serving import Served, fail_to_answer, serving
from shelf import Shelf, make
from tool_talk import says, talking_pair

from dflash_mlx import api
from dflash_mlx.pair import Pair
from dflash_mlx.serve.ollama_chat import chat_messages
from dflash_mlx.serve.ollama_models import FOREVER, VERSION

QUESTION = "Sort these words: pear, apple, kiwi, zebra, fig"
ASKED = [{"role": "user", "content": QUESTION}]
LIMIT = 40  # tokens


def client_of(served: Served) -> ollama.Client:
    return ollama.Client(host=served.url)


def post(served: Served, path: str, **body: Any) -> httpx.Response:
    """A request of our own; it asks for one object unless it says otherwise."""
    return httpx.post(served.url + path, json={"stream": False, **body}, timeout=60)


def chat(served: Served, **body: Any) -> httpx.Response:
    return post(served, "/api/chat", **{"messages": ASKED, **body})


def lines_of(served: Served, path: str, **body: Any) -> list[dict[str, Any]]:
    """The lines of a stream, for which a body need not ask."""
    reply = httpx.post(served.url + path, json=body, timeout=60)
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.text.splitlines()]


def error(reply: httpx.Response) -> str:
    assert reply.status_code >= 400
    assert list(reply.json()) == ["error"]
    return reply.json()["error"]


@pytest.mark.parametrize("raw", [False, True])
def test_generate_is_a_chat_or_raw_text(served: Served, pair: Pair, raw: bool) -> None:
    wanted = api.generate(pair, QUESTION, max_tokens=LIMIT, mode="baseline", raw=raw)
    options = {"temperature": 0, "num_predict": LIMIT}
    parts = list(client_of(served).generate("m", QUESTION, raw=raw, stream=True, options=options))
    assert "".join(part.response or "" for part in parts) == wanted.text
    whole = client_of(served).generate("m", QUESTION, raw=raw, options=options)
    assert (whole.response, whole.done) == (wanted.text, True)


def test_durations_are_nanoseconds(served: Served) -> None:
    told = chat(served, options={"num_predict": 9}).json()
    parts = told["load_duration"] + told["prompt_eval_duration"] + told["eval_duration"]
    assert told["load_duration"] > 0
    assert 1e6 < parts <= told["total_duration"] < 60e9
    assert datetime.fromisoformat(told["created_at"]).tzinfo == UTC


# What a body can ask for


def test_options_may_stand_in_the_body_itself(served: Served) -> None:
    inside = chat(served, options={"temperature": 0, "num_predict": 5}).json()
    beside = chat(served, temperature=0, num_predict=5).json()
    assert inside["message"] == beside["message"]
    assert inside["eval_count"] == beside["eval_count"] == 5
    both = error(chat(served, options={"num_predict": 5}, num_predict=6))
    assert both == "num_predict is in options and beside it: give one."
    assert "options.think is a field of the body" in error(chat(served, options={"think": True}))
    assert "options must be an object" in error(chat(served, options=[1]))
    assert chat(served, options=None, num_predict=1).status_code == 200


def test_num_ctx_caps_the_context(served: Served) -> None:
    prompt = chat(served, options={"num_predict": 1}).json()["prompt_eval_count"]
    told = chat(served, options={"num_ctx": prompt + 3}).json()
    assert (told["eval_count"], told["done_reason"]) == (3, "length")
    assert told["dflash"]["max_tokens"] == 3
    small = error(chat(served, options={"num_ctx": prompt}))
    assert small == f"prompt is too long: {prompt} tokens > {prompt - 1} maximum."
    whole = chat(served, options={"num_ctx": prompt + 5, "num_predict": -1}).json()
    assert whole["eval_count"] == 5
    assert "clipped_from" not in whole["dflash"]


def test_penalties_look_at_the_last_20_tokens(served: Served) -> None:
    few = {"num_predict": 9, "temperature": 0}
    plain = chat(served, options=few).json()["message"]
    assert chat(served, options={**few, "repeat_last_n": 64}).json()["message"] == plain
    strong = {**few, "repeat_penalty": 9.0}
    assert chat(served, options=strong).json()["message"] != plain
    assert chat(served, options={**strong, "repeat_last_n": 0}).json()["message"] == plain
    text = error(chat(served, options={**strong, "repeat_last_n": 64}))
    assert text == "repeat_last_n cannot be 64: penalties look at the last 20 tokens."


def test_hardware_options_are_told(served: Served) -> None:
    hardware = {"num_gpu": 0, "num_thread": 8, "num_batch": 512, "main_gpu": 0, "use_mmap": True}
    told = chat(served, options={**hardware, "num_predict": 1}).json()["dflash"]["ignored"]
    assert {line.partition(" (")[0] for line in told} == set(hardware)


def test_seed_of_minus_one_is_a_new_one(served: Served) -> None:
    body = {"options": {"seed": -1, "temperature": 2, "num_predict": 60}}
    found = [chat(served, **body).json() for _ in range(4)]
    assert {one["dflash"]["seed"] for one in found} == {None}
    assert len({one["message"]["content"] for one in found}) > 1


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_formats(served: Served, path: str) -> None:
    asked: dict[str, Any] = {"messages": ASKED} if path == "/api/chat" else {"prompt": QUESTION}

    def answer(**body: Any) -> tuple[str, dict[str, Any]]:
        reply = post(served, path, **asked, **body).json()
        text = reply["message"]["content"] if path == "/api/chat" else reply["response"]
        return text, reply["dflash"]

    text, _ = answer(format={"enum": ["left", "right"]})
    assert json.loads(text) in ("left", "right")
    cut, told = answer(format="json", options={"num_predict": 2})
    assert cut.lstrip()[:1] in ("{", "")
    assert "cut the answer before its form" in told["incomplete"]
    assert "format cannot be 'xml'" in error(post(served, path, **asked, format="xml"))
    assert answer(format="", options={"num_predict": 2})[1]["ignored"] == []


def test_log_probabilities(served: Served) -> None:
    options = {"num_predict": 4, "temperature": 0}
    whole = client_of(served).chat("m", ASKED, logprobs=True, top_logprobs=2, options=options)
    assert whole.logprobs is not None
    assert len(whole.logprobs) == 4
    best = whole.logprobs[0].top_logprobs
    assert best is not None
    assert (len(best), best[0].token) == (2, whole.logprobs[0].token)
    streamed = lines_of(served, "/api/generate", prompt=QUESTION, logprobs=True, options=options)
    assert sum(len(line.get("logprobs", [])) for line in streamed) == 4


def test_pictures_are_refused(served: Served) -> None:
    asked = [{"role": "user", "content": "?", "images": ["aGk="]}]
    assert error(chat(served, messages=asked)) == "messages.0.images: this server reads text only."
    assert "images is not supported" in error(
        post(served, "/api/generate", prompt="?", images=["aGk="])
    )


# Tools and thinking


def test_a_tool_is_called_and_its_result_read() -> None:
    """Ollama's messages have no call ids: a result names its tool, or nothing."""
    pair = talking_pair(says)
    with serving(pair) as served:
        client = client_of(served)
        messages: list[Any] = [{"role": "user", "content": "weather Brno"}]
        for stream in (False, True):
            if stream:
                parts = list(client.chat("m", messages, tools=TOLD, stream=True))
                found = [call for part in parts for call in part.message.tool_calls or []]
                text = "".join(part.message.content or "" for part in parts)
            else:
                whole = client.chat("m", messages, tools=TOLD)
                found = list(whole.message.tool_calls or [])
                text = whole.message.content
                assert whole.done_reason == "stop"
            assert text == "I look."
            assert [(call.function.name, call.function.arguments) for call in found] == [
                ("weather", {"city": "Brno"})
            ]
        call = {"function": {"name": "weather", "arguments": {"city": "Brno"}}}
        messages.append({"role": "assistant", "content": "I look.", "tool_calls": [call]})
        for name in ({"tool_name": "weather"}, {}):
            result = {"role": "tool", "content": "rain", **name}
            answer = client.chat("m", [*messages, result], tools=TOLD)
            assert answer.message.content == "It says: rain"
            seen = pair.target.prompts[-1][0]  # type: ignore[attr-defined]
            assert seen[2]["tool_call_id"] == seen[1]["tool_calls"][0]["id"]
            assert seen[2]["name"] == "weather"


def test_results_find_their_calls() -> None:
    """By id, else by the tool's name, else in their order."""

    def call(name: str, **more: Any) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": {}}, **more}

    asked = [
        {"role": "assistant", "tool_calls": [call("a"), call("b"), call("a", id="x")]},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
        {"role": "tool", "content": "2", "tool_name": "b"},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "4"},
    ]
    found = chat_messages(asked)
    ids = [call["id"] for call in found[0]["tool_calls"]]
    assert [m["tool_call_id"] for m in found[1:]] == ["x", ids[1], ids[0], "call_4"]
    assert len(set(ids)) == 3


def test_a_model_that_cannot_think(served: Served) -> None:
    words = tiny.byte_tokenizer(
        marks=(), template="{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    target = tiny.with_ends(tiny.make_target("qwen3", vocab_size=272), words)
    with serving(tiny.make_pair(target, None, own=words), mode="baseline") as plain:
        assert "does not support thinking" in error(chat(plain, think=True))
        assert chat(plain, think=False, options={"num_predict": 1}).status_code == 200
    assert "think cannot be 'much'" in error(chat(served, think="much"))


# Models


def test_lists_of_models(served: Served) -> None:
    client = client_of(served)
    (listed,) = client.list().models
    assert (listed.model, listed.details.family) == ("m:latest", "qwen3")  # type: ignore[union-attr]
    assert listed.size
    assert len(listed.digest or "") == 64
    shown = client.show("m:latest")
    assert "completion" in (shown.capabilities or [])
    assert shown.modelinfo
    context = shown.modelinfo["qwen3.context_length"]
    assert shown.parameters == f"num_ctx {context}"
    assert "message" in (shown.template or "")
    (running,) = client.ps().models
    assert (running.model, running.context_length) == ("m:latest", context)
    assert httpx.get(f"{served.url}/api/ps").json()["models"][0]["expires_at"] == FOREVER
    assert httpx.get(f"{served.url}/api/version").json()["version"] == VERSION
    assert httpx.head(f"{served.url}/api/tags").status_code == 200


def test_aliases_are_listed(pair: Pair) -> None:
    """Programs ask for no model that they have not found in a list."""
    with serving(pair, names=("m", "qwen3:4b")) as served:
        client = client_of(served)
        assert [one.model for one in client.list().models] == ["m:latest", "qwen3:4b"]
        assert [one.model for one in client.ps().models] == ["m:latest"]
        assert client.chat("qwen3:4b", ASKED, options={"num_predict": 1}).model == "qwen3:4b"


def test_names(served: Served) -> None:
    for name in ("m", "m:latest", None):
        assert chat(served, model=name, options={"num_predict": 1}).status_code == 200
    assert chat(served, model="m:latest", messages=[]).json()["model"] == "m:latest"
    assert "'m:7b' is not served here" in error(chat(served, model="m:7b"))


def test_models_are_loaded_and_unloaded() -> None:
    """By a body without a prompt, or by `keep_alive` after an answer."""
    shelf = Shelf()
    with serving(make(1), offers=shelf) as served:
        client = client_of(served)

        def loaded() -> set[str | None]:
            return {model.model for model in client.ps().models}

        assert client.chat("pub/a", []).done_reason == "load"
        assert client.generate("b:latest", "").done_reason == "load"
        assert loaded() == {"m:latest", "pub/a:latest", "pub/b:latest"}
        assert client.generate("pub/a", "", keep_alive=0).done_reason == "unload"
        assert loaded() == {"m:latest", "pub/b:latest"}
        first, *_ = lines_of(served, "/api/chat", model="a", messages=HI, keep_alive=-1)
        assert (first["message"]["content"], first["done"]) == ("", False)
        until = {one["name"]: one["expires_at"] for one in running(served)}
        assert until["pub/a:latest"] == FOREVER
        assert until["m:latest"] < "3000"
        client.chat("a", HI, keep_alive="0s", options={"num_predict": 2})
        while "pub/a:latest" in loaded():
            pass
        assert "not a time" in error(chat(served, keep_alive="soon"))


def running(served: Served) -> list[dict[str, Any]]:
    return httpx.get(f"{served.url}/api/ps").json()["models"]


def test_a_model_that_stays_is_not_unloaded(served: Served) -> None:
    told = chat(served, messages=[], keep_alive=0).json()
    assert told["done_reason"] == "load"
    assert told["dflash"]["ignored"] == ["keep_alive (this model stays loaded)"]
    answer = chat(served, keep_alive="5m", options={"num_predict": 1}).json()
    assert answer["dflash"]["ignored"] == ["keep_alive (this model stays loaded)"]
    refused = httpx.post(f"{served.url}/v1/models/unload", json={"model": "m"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert httpx.get(f"{served.url}/v1/models/m").json()["state"] == "loaded"


def test_other_endpoints(served: Served) -> None:
    with pytest.raises(ollama.ResponseError, match=r"POST /api/pull: Not Found\."):
        client_of(served).pull("m")
    assert error(httpx.get(f"{served.url}/api/other")) == "GET /api/other: Not Found."


# Streams and their errors


def test_an_error_in_a_stream_is_a_line(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(pair) as served:
        fail_to_answer(served.server, monkeypatch)
        (line,) = lines_of(served, "/api/generate", prompt="?")
        assert line == {"error": "the cable is out. (plug it in)"}


# Who is let in


def test_root_tells_programs_from_browsers(served: Served) -> None:
    assert httpx.get(served.url).text == "Ollama is running"
    page = httpx.get(served.url, headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.text.startswith("<!doctype html>")


def test_the_guard_is_that_of_the_other_apis(pair: Pair) -> None:
    with serving(pair, api_key="geheim", hosts=("127.0.0.1",)) as served:
        url = f"{served.url}/api/tags"
        key = {"Authorization": "Bearer geheim"}
        assert error(httpx.get(url)) == "the API key is missing or wrong."
        assert httpx.get(url, headers=key).status_code == 200
        for head in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert httpx.get(url, headers={**key, **head}).status_code == 403


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded"])
def test_a_program_may_name_no_type(served: Served, kind: str) -> None:
    """As curl in all of Ollama's examples; what comes from a browser must name JSON."""
    content = json.dumps({"messages": []})
    head = {"Content-Type": kind} if kind else {}
    url = f"{served.url}/api/chat"
    assert httpx.post(url, content=content, headers=head).status_code == 200
    own_page = {"Origin": served.url}
    for browser in (own_page, {"Sec-Fetch-Site": "cross-site"}):
        reply = httpx.post(url, content=content, headers={**head, **browser})
        assert reply.status_code == 415
    other = f"{served.url}/v1/chat/completions"
    assert httpx.post(other, content=content, headers=head).status_code == 415
