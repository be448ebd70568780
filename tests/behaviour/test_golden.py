"""The authors' own results on tiny checkpoints, number by number."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny

from dflash_mlx import api
from dflash_mlx.drafters.dflash import model
from dflash_mlx.drafters.dflash.config import DraftConfig
from dflash_mlx.drafters.dflash.model import CandidateSelector, DynamicConv
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session
from dflash_mlx.speculation.drafts import Lattice


@pytest.fixture(scope="module", params=tiny.CASES)
def case(request: Any) -> tuple[Pair, dict[str, Any], dict[str, np.ndarray]]:
    vectors = dict(np.load(tiny.GOLDEN / request.param / "vectors.npz"))
    return tiny.golden_pair(request.param), tiny.expected(request.param), vectors


def test_greedy_answers(case: Any) -> None:
    """Tokens, tokens per verify and the end of every answer are the reference's exactly."""
    pair, expected, _ = case
    for number, prompt in enumerate(expected["prompts"]):
        result = api.generate(pair, prompt, max_tokens=expected["max_new_tokens"])
        assert result.tokens == expected["greedy_tokens"][number]
        assert result.stats.committed == expected["acceptance_lengths"][number]
        assert result.finish_reason == expected["finish_reasons"][number]
        assert result.stats.acceptance_length == pytest.approx(expected["tau"][number])


@pytest.mark.quick_every(3)
def test_baseline_answers(case: Any) -> None:
    pair, expected, _ = case
    prompt = expected["prompts"][1]
    limit = expected["max_new_tokens"]
    result = api.generate(pair, prompt, max_tokens=limit, mode="baseline")
    assert result.tokens == expected["ar_tokens"][1]


def test_first_two_blocks(case: Any) -> None:
    """Taps, drafter logits and verify logits of two blocks; the second goes through the cache."""
    pair, _, vectors = case
    sequence = Sequence(pair.target, pair.drafter)
    prompt = vectors["prompt_ids"].tolist()
    near(pair.target.taps(mx.array([prompt]))[0], vectors["prompt_taps"])
    near(sequence.read(prompt)[0], vectors["target_last_logits"])
    for block in ("block1", "block2"):
        assert sequence.draft_cache is not None
        ids = vectors[f"{block}_ids"]
        assert sequence.draft_cache.offset == vectors[f"{block}_start"]
        assert set(ids[1:].tolist()) == {pair.drafter.config.mask_token_id}
        logits = sequence.draft_cache.draft_logits(int(ids[0]), len(ids))
        near(logits, vectors[f"{block}_logits"])
        said = sequence.draft_cache.block(int(ids[0]), len(ids))
        drafts = np.array(said.greedy().tokens).tolist()
        assert drafts == vectors[f"{block}_draft_tokens"].tolist()
        found = sequence.verify(int(ids[0]), mx.array(drafts))
        near(found.logits, vectors[f"{block}_verify_logits"])
        near(found.taps[0], vectors[f"{block}_verify_taps"])
        accepted = int(vectors[f"{block}_accepted"])
        sequence.commit((int(ids[0]), *drafts[:accepted]), found.taps)


def read_to_block(pair: Pair, vectors: dict[str, np.ndarray], block: str) -> Sequence:
    """A sequence that has read what stands before a block of the vectors, in one pass."""
    sequence = Sequence(pair.target, pair.drafter)
    prompt = vectors["prompt_ids"].tolist()
    if block == "block2":
        accepted = int(vectors["block1_accepted"])
        prompt += [vectors["block1_ids"][0], *vectors["block1_draft_tokens"][:accepted]]
    sequence.read([int(token) for token in prompt])
    return sequence


@pytest.fixture(scope="module")
def second() -> tuple[Pair, dict[str, np.ndarray]]:
    vectors = dict(np.load(tiny.GOLDEN / "qwen3_dflash2" / "vectors.npz"))
    return tiny.golden_pair("qwen3_dflash2"), vectors


def lattice(pair: Pair, vectors: dict[str, np.ndarray], block: str) -> Lattice:
    """What the DFlash 2 drafter says of a block's slots."""
    sequence = read_to_block(pair, vectors, block)
    assert sequence.draft_cache is not None
    ids = vectors[f"{block}_ids"]
    said = sequence.draft_cache.block(int(ids[0]), len(ids))
    assert isinstance(said, Lattice)
    return said


def walked(said: Lattice) -> tuple[mx.array, mx.array]:
    """The drafts, and the scores that the walk to them has passed."""
    drafts = said.greedy().tokens
    return drafts, said.passed(mx.argmax(said.candidates == drafts[:, None], axis=-1))


@pytest.mark.parametrize("block", ["block1", "block2"])
def test_selector_walk(second: Any, block: str) -> None:
    """DFlash 2: the candidates, the scores along the walk and the drafts are the reference's."""
    pair, vectors = second
    slots = lattice(pair, vectors, block)
    assert slots.candidates.tolist() == vectors[f"{block}_candidates"].tolist()
    drafts, scores = walked(slots)
    near(scores, vectors[f"{block}_scores"])
    assert drafts.tolist() == vectors[f"{block}_draft_tokens"].tolist()


def no_convolution(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model, "convolve", lambda x, kernel: x)


def swapped_taps(patch: pytest.MonkeyPatch) -> None:
    """A fault: the kernel's taps are read backwards."""
    honest = model.convolve
    patch.setattr(model, "convolve", lambda x, kernel: honest(x, kernel[:, :, ::-1]))


def swapped_sides(patch: pytest.MonkeyPatch) -> None:
    """A fault: the kernel for after the sublayer is used before it."""
    honest = DynamicConv.__call__
    patch.setattr(DynamicConv, "__call__", lambda self, normed: honest(self, normed)[::-1])


def causal_block(patch: pytest.MonkeyPatch) -> None:
    """A fault: slots of a sliding layer do not see those after them."""
    patch.setattr(DraftConfig, "causal", lambda self, layer: self.sliding[layer])


def no_predecessor(patch: pytest.MonkeyPatch) -> None:
    """A fault: every slot is scored as if the anchor stood before it."""
    honest = CandidateSelector.__call__

    def call(self: CandidateSelector, logits: mx.array, hidden: mx.array, anchor: int) -> Lattice:
        rows = [honest(self, logits[i : i + 1], hidden[i : i + 1], anchor) for i in range(7)]
        candidates = mx.concatenate([row.candidates for row in rows])
        scores = mx.concatenate([row.scores for row in rows])
        return Lattice(candidates, scores)

    patch.setattr(CandidateSelector, "__call__", call)


@pytest.mark.parametrize(
    "fault", [no_convolution, swapped_taps, swapped_sides, causal_block, no_predecessor]
)
def test_dflash2_faults_are_noticed(
    second: Any, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison above can fail: each part of DFlash 2 done wrongly gives other scores."""
    pair, vectors = second
    fault(monkeypatch)
    _, scores = walked(lattice(pair, vectors, "block1"))
    assert np.abs(np.array(scores) - vectors["block1_scores"]).max() > 0.1


@pytest.mark.quick_every(3)
def test_taps_in_chunks(case: Any) -> None:
    """A chunked prefill gives the drafter the same rows as a whole one."""
    pair, _, vectors = case
    prompt = vectors["prompt_ids"].tolist()
    for chunk in (1, 7, 50):
        sequence = Sequence(pair.target, pair.drafter)
        sequence.read(prompt, chunk)
        assert sequence.draft_cache is not None
        ids = vectors["block1_ids"]
        near(sequence.draft_cache.draft_logits(int(ids[0]), len(ids)), vectors["block1_logits"])


def test_wrong_taps_are_noticed(case: Any) -> None:
    """The comparison can fail: taps one layer off give other drafter logits."""
    pair, _, vectors = case
    ids = pair.drafter.config.target_layer_ids
    shifted = tiny.golden_pair_of(pair, tuple(number + 1 for number in ids))
    sequence = Sequence(shifted.target, shifted.drafter)
    sequence.read(vectors["prompt_ids"].tolist())
    assert sequence.draft_cache is not None
    block = vectors["block1_ids"]
    logits = sequence.draft_cache.draft_logits(int(block[0]), len(block))
    assert np.abs(np.array(logits) - vectors["block1_logits"]).max() > 0.1


@pytest.mark.quick_every(6)
def test_stats_of_a_second_answer_stand_alone(case: Any) -> None:
    """A session's second answer, after another prompt, is the reference's too."""
    pair, expected, _ = case
    session = Session(pair)
    for number in (1, 0, 2):
        blocks = list(
            session.stream(expected["prompts"][number], max_tokens=expected["max_new_tokens"])
        )
        assert tiny.joined(blocks) == expected["greedy_tokens"][number]
        assert session.stats.committed == expected["acceptance_lengths"][number]


def near(ours: mx.array, reference: np.ndarray) -> None:
    """Equal up to the rounding of two float32 implementations."""
    assert np.abs(np.array(ours) - reference).max() < 1e-3
