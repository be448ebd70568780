"""The kernel of DFlash 2's walk: the reference's drafts, few reads, no fault."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tiny import ALL

from dflash_mlx.kernels import selector_walk

from .edits import BARRIER, NONE, WEAK
from .emulator import compare
from .ours import Edit, caught, check, run, through

OP = selector_walk.OP


def lattice(
    slots: int,
    k: int,
    rank: int,
    dtype: mx.Dtype = mx.float32,
    vocab: int = 300,
    seed: int = 0,
    whole: bool = True,
) -> tuple:
    """Random candidates and codebooks. In whole numbers every order of a sum gives the same.

    Few different numbers, so that many scores are level.
    """
    keys = iter(mx.random.split(mx.random.key(seed), 6))

    def some(*shape: int) -> mx.array:
        numbers = mx.random.normal(shape, key=next(keys))
        return (mx.round(0.7 * numbers) if whole else 0.3 * numbers).astype(dtype)

    own = some(slots, k).astype(mx.float32)
    ids = [mx.sort(mx.random.permutation(vocab, key=next(keys))[:k])]
    ids += [mx.sort((ids[0] * (slot + 3)) % vocab) for slot in range(1, slots)]
    candidates = mx.stack(ids).astype(mx.uint32)
    return own, candidates, 7, some(slots, rank), some(vocab, rank), some(vocab, rank)


def test_every_run_equals_the_reference() -> None:
    """Schedules, sanitizers and the race check; a rank that is no multiple of 32, 13 candidates."""
    case = lattice(5, 13, 70)
    outcome = check(through(OP), OP.reference, *case)
    traffic = outcome.traffic
    assert traffic["predecessors"].group_loads <= 5 * 70 * 4
    assert traffic["successors"].loads <= 5 * 13 * 70 * 4
    assert outcome.records[0].threadgroup_bytes <= 2 * 13 * 4


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_shapes_and_dtypes(dtype: mx.Dtype) -> None:
    """One slot, one candidate, few ranks, the published shape: level scores take the first."""
    for seed, shape in enumerate([(1, 1, 1), (1, 4, 8), (3, 16, 33), (15, 16, 256), (4, 40, 5)]):
        case = lattice(*shape, dtype, seed=seed)
        outcome = run(through(OP), *case, schedule=f"random:{seed}")
        assert not outcome.findings
        compare(outcome.outputs[0], OP.reference(*case), 0, 0, f"{shape}")


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_any_numbers(dtype: mx.Dtype) -> None:
    """Sums in another order: the same drafts wherever the two best scores are not level."""
    for seed in range(20 if ALL else 5):
        case = lattice(7, 16, 64, dtype, seed=seed, whole=False)
        scores = np.sort(np.array(selector_walk.scores(*case)), axis=-1)
        assert (scores[..., -1] - scores[..., -2]).min() > 2e-5, "choose another seed"
        compare(run(through(OP), *case).outputs[0], OP.reference(*case), 0, 0, f"{seed}")


def test_numbers_of_two_dtypes() -> None:
    """Codebooks of 16 bits with float32 hidden states multiply in float32, as MLX does."""
    own, candidates, anchor, hidden, before, after = lattice(5, 16, 64, whole=False, seed=3)
    case = own, candidates, anchor, hidden, before.astype(mx.bfloat16), after.astype(mx.bfloat16)
    compare(run(through(OP), *case).outputs[0], OP.reference(*case), 0, 0, "two dtypes")


def test_scores_that_are_no_numbers() -> None:
    """A damaged selector drafts its own candidates, whatever they are worth."""
    own, candidates, *rest = lattice(4, 6, 16)
    broken = mx.full(own.shape, mx.nan)
    broken[2, 3] = 0
    outcome = run(through(OP), broken, candidates, *rest, build="sanitize")
    assert not outcome.findings
    drafts: Any = outcome.outputs[0].tolist()
    for slot, token in enumerate(drafts):
        assert token in candidates[slot].tolist()


def test_what_does_not_fit_goes_to_the_reference() -> None:
    """Nothing to draft, too many candidates."""
    own, candidates, *rest = lattice(3, 4, 8)
    assert OP.fits(own, candidates, *rest)
    assert not OP.fits(own[:0], candidates[:0], *rest)
    assert not OP.fits(mx.zeros((1, 257)), mx.zeros((1, 257)), *rest)


def rounded() -> tuple:
    """Two candidates of one slot: which is better depends on the rounding of the first product."""
    near_one = mx.array([[1 + 2**-7]], dtype=mx.bfloat16)
    own = mx.array([[0.0, 1 + 2**-6 + 2**-15]])
    after = mx.array([[1.0], [0.0]], dtype=mx.bfloat16)
    before = mx.concatenate([near_one, near_one])
    return own, mx.array([[0, 1]], dtype=mx.uint32), 1, near_one, before, after


CASES = [
    lattice(6, 13, 70),
    lattice(6, 16, 40, mx.bfloat16, seed=1, whole=False),
    lattice(6, 2, 1, seed=7),
    rounded(),
]
EDITS: list[Edit] = [
    (f"{BARRIER}\n", ""),
    (BARRIER, NONE),
    (BARRIER, WEAK),
    ("scores[slot % 2]", "scores[0]"),
    ("uint before = uint(anchor);", "uint before = uint(candidates[0]);"),
    ("i < K; i += simdgroups_per_threadgroup", "i <= K; i += simdgroups_per_threadgroup"),
    ("i += simdgroups_per_threadgroup", "i += DFLASH_LANES"),
    ("r < rank; r += DFLASH_LANES", "r <= rank; r += DFLASH_LANES"),
    ("r = thread_index_in_simdgroup", "r = thread_index_in_simdgroup + 1"),
    ("sum = simd_sum(sum);\n", ""),
    ("if (thread_index_in_simdgroup == 0)", "if (thread_index_in_simdgroup == 32)"),
    ("score[i] > score[best]", "score[i] >= score[best]"),
    ("uint i = 1; i < K; i++", "uint i = 1; i < K - 1; i++"),
    ("hidden[slot * rank + r]", "hidden[r]"),
    ("unary[slot * K + i] + sum", "sum"),
    ("after * rank + r", "after * rank + r + 1"),
    ("const P product = P(", "const float product = ("),
]


@pytest.mark.quick_every(4)
@pytest.mark.parametrize("edit", EDITS, ids=[str(number) for number in range(len(EDITS))])
def test_planted_faults_are_caught(edit: Edit) -> None:
    assert caught(OP, edit, CASES, 0)
