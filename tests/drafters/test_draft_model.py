"""A small language model as drafter: classic speculative decoding, exact in every mode."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from engines import recorded_drafts

from dflash_mlx.bench.runner import measure
from dflash_mlx.drafters.small_model import BLOCK, ModelCache, SmallModelDrafter, same_tokens
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair, load
from dflash_mlx.session import Session
from dflash_mlx.speculation.sampling import Draw, Shaper

GOLDEN = tiny.GOLDEN / "small_model"
PROMPTS = ("What is 7 plus 5?", "I want to fix a flat tyre. What should I do?")


@pytest.fixture(scope="module")
def golden() -> tuple[Pair, dict[str, Any]]:
    pair = load(tiny.GOLDEN / "qwen3_full" / "target", GOLDEN / "draft", cache_ram=0)
    return pair, json.loads((GOLDEN / "expected.json").read_text())


def test_answers_of_transformers(golden: Any) -> None:
    """Tokens, the drafts of every verify, and how many it accepts are those of transformers."""
    pair, expected = golden
    size, new = expected["drafts"] + 1, expected["new"]
    for prompt, said in zip(expected["prompts"], expected["answers"], strict=True):
        sequence = Sequence(pair.target, pair.drafter)
        answer = tiny.start(sequence, prompt, SamplingParams(), block_size=size, max_tokens=new)
        with recorded_drafts() as seen:
            blocks = list(answer)
        assert tiny.joined(blocks) == said["tokens"]
        drafts = [each for each in said["drafts"] if len(each) == size - 1]  # fewer at the end
        assert len(drafts) > 10
        assert seen[: len(drafts)] == drafts
        accepted = [block.accepted for block in blocks[1:]]  # the first is the prefill's
        assert accepted[: len(drafts)] == said["accepted"][: len(drafts)]


def drafter_of(family: str = "qwen3", vocab_size: int | None = None, **changes: Any):
    reader = tiny.make_target(family, **changes)
    return SmallModelDrafter(reader, vocab_size or reader.vocab_size)


def drafts_of(cache: ModelCache, anchor: int, count: int) -> list[int]:
    (block,) = cache.source.draft([cache], [anchor], count + 1)
    return np.array(block.greedy().tokens).tolist()


def test_another_number_of_rows_in_the_vocabulary() -> None:
    """Tables are padded to other sizes: what one of the two lacks is never drafted."""
    for size in (40, 400):
        draw = Draw(Shaper(SamplingParams(temperature=1.0), size), mx.random.key(1), [])
        source = drafter_of(vocab_size=size)
        draft = source.draft([source.make_cache()], [3], 5, [draw])[0].sample(draw)
        assert draft.probabilities is not None
        assert draft.probabilities.shape == (4, size)
        assert int(draft.tokens.max()) < size


def test_a_token_that_only_the_target_has_is_read() -> None:
    """An answer may contain one; the draft after it is made of some other token."""
    source = drafter_of(vocab_size=400)
    assert drafts_of(source.make_cache(), 399, 3) == drafts_of(source.make_cache(), 103, 3)


@pytest.mark.parametrize(
    ("own", "same"),
    [
        ({"a": 0, "b": 1}, True),
        ({"a": 0, "b": 1, "c": 2, "<extra>": 3}, True),
        ({"a": 0, "c": 1, "b": 2}, False),
        ({"a": 0, "b": 2}, False),
        ({"x": 7}, False),
    ],
)
def test_vocabularies_of_two_models(own: dict[str, int], same: bool) -> None:
    """Each id that both have is one token; one may have more at its end."""
    theirs = {"a": 0, "b": 1, "c": 2}
    assert same_tokens(own, theirs) == same
    assert same_tokens(theirs, own) == same


@pytest.fixture(scope="module")
def doubled() -> Pair:
    """The bundled target, which drafts for itself."""
    return load(None, str(bundled("target")), cache_ram=0)


@pytest.mark.slow
def test_a_model_that_is_always_right(doubled: Pair) -> None:
    """Every draft is kept, in every mode and by every rule; by rejection because p is q."""
    for prompt in PROMPTS:
        for sampling in (SamplingParams(), SamplingParams(temperature=1.0, seed=3)):
            wanted: list[int] = []
            for mode in ("baseline", "dflash", "ddtree", "auto"):
                session = Session(doubled, mode=mode, use_prefix_cache=False)
                blocks = list(session.stream(prompt, sampling=sampling, max_tokens=40))
                tokens = [token for block in blocks for token in block.tokens]
                wanted = wanted or tokens
                assert tokens == wanted, mode
                if mode == "dflash":
                    assert all(b.accepted in (b.drafted, len(b.tokens)) for b in blocks[1:])
        for rule in ("token", "block"):
            session = Session(doubled, mode="dflash", use_prefix_cache=False)
            sampling = SamplingParams(temperature=1.0, seed=3)
            blocks = list(session.stream(prompt, sampling=sampling, max_tokens=40, accept=rule))
            assert all(b.accepted in (b.drafted, len(b.tokens)) for b in blocks[1:]), rule


def test_it_is_looked_at_like_a_drafter(doubled: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its config is no drafter's: any block size suits it, and `dflash bench` times its drafts."""
    import_module("dflash_mlx.cli.backend.local").check_block(doubled, 64)
    monkeypatch.setattr("dflash_mlx.bench.runner.PASSES", 1)
    found = measure(doubled, 20).draft
    assert found is not None
    assert found[0] == BLOCK


def test_it_is_loaded_like_a_drafter(doubled: Pair, tmp_path: Path) -> None:
    """By its folder, or to a loaded target; one with other tokens is refused."""
    assert isinstance(doubled.drafter, SmallModelDrafter)
    other = tiny.with_drafter(doubled)
    assert not isinstance(other.drafter, SmallModelDrafter)
    again = tiny.with_drafter(other, str(bundled("target")), draft_bits=4)
    assert isinstance(again.drafter, SmallModelDrafter)
    session = Session(again, mode="dflash", use_prefix_cache=False)
    assert [b for b in session.stream(PROMPTS[0], max_tokens=20) if b.tokens]
    target, _ = tiny.save_pair(tmp_path, tiny.draft_settings)
    with pytest.raises(DFlashError, match="has a different vocabulary than"):
        tiny.with_drafter(other, str(target))
    with pytest.raises(UsageError, match="has no effect on prompt lookup"):
        load(None, "lookup", draft_bits=8)
