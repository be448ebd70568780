"""Embeddings against transformers' (a golden case), alone and in company, and their API."""

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from serving import Served, serving

from dflash_mlx import embedder as module
from dflash_mlx.embedder import Embedder, batches
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.pair import Pair

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3_embedding"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
ROWS: list[list[int]] = EXPECTED["tokens"]
CLOSE = 2e-6  # of float32 numbers up to 1


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder.load(str(GOLDEN / "model"))


@pytest.fixture(scope="module")
def served(pair: Pair, embedder: Embedder) -> Iterator[Served]:
    """A server of a pair and of the golden model."""
    with serving(pair, embedder=embedder) as found:
        yield found


def embed(embedder: Embedder, rows: list[list[int]], size: int | None = None) -> np.ndarray:
    return np.array(embedder.embed(rows, size))


def difference(found: Any, wanted: Any) -> float:
    return float(np.abs(np.array(found) - np.array(wanted)).max())


def test_tokens_are_those_of_the_reference(embedder: Embedder) -> None:
    """With the token at the end of a text, which the embedding is read from."""
    assert [embedder.encode(text) for text in EXPECTED["texts"]] == ROWS


def test_they_are_those_of_transformers(embedder: Embedder) -> None:
    found = embed(embedder, ROWS)
    assert found.dtype == np.float32
    assert difference(found, EXPECTED["embeddings"]) < CLOSE
    for size, wanted in EXPECTED["shorter"].items():
        assert difference(embed(embedder, ROWS, int(size)), wanted) < CLOSE


@pytest.mark.parametrize("pass_rows", [3, 40, 1024])
def test_company_changes_nothing(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch, pass_rows: int
) -> None:
    """One by one, in any order and in passes of any size: to rounding, as no row sees another."""
    monkeypatch.setattr(module, "PASS_ROWS", pass_rows)
    alone = [embed(embedder, [row])[0] for row in ROWS]
    assert difference(alone, EXPECTED["embeddings"]) < CLOSE
    order = [3, 5, 0, 4, 1, 2]
    together = embed(embedder, [ROWS[number] for number in order])
    assert difference(together, [alone[number] for number in order]) < CLOSE


@pytest.mark.parametrize("fault", ["end", "norm", "length"])
def test_a_planted_fault_is_noticed(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The text without its end, the state before the final norm, the length of another text."""
    rows = ROWS
    if fault == "end":
        rows = [row[:-1] or row for row in ROWS]
    elif fault == "norm":
        embedder.target.tap((embedder.target.layers - 1,))
    else:
        rows = [[*row, 0] if number == 0 else row for number, row in enumerate(ROWS)]
    try:
        assert difference(embed(embedder, rows), EXPECTED["embeddings"]) > 100 * CLOSE
    finally:
        embedder.target.tap((embedder.target.layers,))


def test_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PASS_ROWS", 4)
    rows = [[0] * size for size in (1, 2, 2, 9, 4, 1)]
    sizes = [[len(row) for row in batch] for batch in batches(rows)]
    assert sizes == [[1, 2], [2], [9], [4], [1]]


def test_dimensions_that_there_are_not(embedder: Embedder) -> None:
    for size in (0, -1, 33):
        with pytest.raises(UsageError, match=f"dimensions cannot be {size}"):
            embedder.embed(ROWS, size)


@pytest.mark.parametrize("kind", ["chat", "llama", "mean"])
def test_other_models_are_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "model", folder)
    if kind == "chat":
        shutil.rmtree(folder / "1_Pooling")
    elif kind == "llama":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    else:
        (folder / "1_Pooling/config.json").write_text('{"pooling_mode_lasttoken": false}')
    with pytest.raises(DFlashError, match="is no embedding model of a known kind"):
        Embedder.load(str(folder))


def test_names_with_a_body(tmp_path: Path) -> None:
    """mlx-lm's conversions keep the names of a whole model, and some a head."""
    import mlx.core as mx

    folder = tmp_path / "Qwen3-Embedding-tiny"
    shutil.copytree(GOLDEN / "model", folder)
    shutil.rmtree(folder / "1_Pooling")
    weights: Any = mx.load(str(folder / "model.safetensors"))
    named = {f"model.{name}": value for name, value in weights.items()}
    mx.save_safetensors(
        str(folder / "model.safetensors"), {**named, "lm_head.weight": mx.zeros((104, 32))}
    )
    found = embed(Embedder.load(str(folder)), ROWS)
    assert difference(found, EXPECTED["embeddings"]) < CLOSE


def test_openais_client(served: Served, embedder: Embedder) -> None:
    """It asks for base64 unless told otherwise."""
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    texts = EXPECTED["texts"]
    found = client.embeddings.create(input=texts, model=embedder.name)
    assert [one.index for one in found.data] == list(range(len(texts)))
    vectors = [one.embedding for one in found.data]
    assert difference(vectors, EXPECTED["embeddings"]) < CLOSE
    assert found.usage.prompt_tokens == sum(map(len, ROWS))
    assert found.model == embedder.name
    numbers = client.embeddings.create(
        input=texts[2], model=embedder.name, encoding_format="float", dimensions=7
    )
    assert difference(numbers.data[0].embedding, EXPECTED["shorter"]["7"][2]) < CLOSE
    assert embedder.name in [model.id for model in client.models.list()]
    assert client.models.retrieve(embedder.name).id == embedder.name


def post(served: Served, **body: Any) -> httpx.Response:
    return httpx.post(f"{served.url}/v1/embeddings", json=body, timeout=30)


def test_all_kinds_of_input(served: Served) -> None:
    one = post(served, input=ROWS[3]).json()["data"]
    several = post(served, input=ROWS[:4], encoding_format="base64").json()["data"]
    raw = base64.b64decode(several[3]["embedding"])
    assert difference(np.frombuffer(raw, "<f4"), one[0]["embedding"]) < CLOSE
    text = post(served, input=EXPECTED["texts"][3]).json()["data"]
    assert text[0]["embedding"] == one[0]["embedding"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "input: Field required"),
        ({"input": []}, "input has 0 parts"),
        ({"input": [[]]}, "input 0 is empty"),
        ({"input": ["a"] * 2049}, "input has 2049 parts"),
        ({"input": [104]}, "a token that the model has not"),
        ({"input": [[1], [-1]]}, "input 1 has a token"),
        ({"input": [1] * 513}, "input 0 is too long: 513 tokens > 512"),
        ({"input": "a", "dimensions": 33}, "dimensions cannot be 33"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": "a", "model": "m"}, "the model 'm' answers chats: it makes no embeddings"),
    ],
)
def test_what_is_refused(served: Served, body: dict[str, Any], message: str) -> None:
    found = post(served, **body)
    assert found.status_code == 400
    assert message in found.json()["error"]["message"]


def test_other_names(served: Served, embedder: Embedder, pair: Pair) -> None:
    assert post(served, input="a", model="other").status_code == 404
    chat = {"messages": [{"role": "user", "content": "Hi"}], "model": embedder.name}
    refused = httpx.post(f"{served.url}/v1/chat/completions", json=chat)
    assert refused.status_code == 404
    with serving(pair) as plain:
        found = post(plain, input="a")
        assert found.status_code == 400
        assert "--embedding-model" in found.json()["error"]["message"]
