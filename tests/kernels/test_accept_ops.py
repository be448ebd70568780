"""What the accepting operations compute, held against slow and plain versions of the papers."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny

from dflash_mlx import api
from dflash_mlx.errors import UsageError
from dflash_mlx.kernels import dispatch, verify_accept
from dflash_mlx.kernels import verify_accept_sample as op
from dflash_mlx.kernels.dispatch import Kernels, Op, available
from dflash_mlx.options import AcceptanceRule, SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.speculation.acceptance import random_bits


def test_greedy_prefix() -> None:
    """Drafts stay up to the first that the target did not choose; level logits take the first."""
    logits = mx.array([[0.0, 2, 2, 1], [3, 0, 0, 3], [0, 1, 0, 0], [-mx.inf] * 4])
    for drafts, kept in (([1, 0, 1], 3), ([1, 3, 1], 1), ([2, 0, 1], 0), ([1, 0, 0], 2)):
        got = verify_accept.reference(logits, mx.array(drafts)).tolist()
        assert got == [0, kept, [1, 0, 1, 0][kept], *drafts]
    assert verify_accept.reference(logits[:1], mx.zeros((0,), dtype=mx.int32)).tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_numbers_that_are_none(dtype: mx.Dtype) -> None:
    """NaN in any row is flagged; infinities of both signs, and sums beyond 16 bits, are not."""
    logits = mx.full((3, 50), 3e4).astype(dtype)
    logits[1, 3], logits[2, 4] = mx.inf, -mx.inf
    drafts = mx.array([0, 0])
    assert verify_accept.reference(logits, drafts)[0].item() == 0
    for row in range(3):
        broken = mx.array(logits)
        broken[row, 9] = mx.nan
        assert verify_accept.reference(broken, drafts)[0].item() == 1
        sampled = (broken, drafts, mx.full((2, 50), 0.02), None, random_bits(mx.random.key(1), 3))
        for block in (False, True):
            assert op.reference(*sampled, block)[0].item() == 1


def plain_decision(
    p: np.ndarray, q: np.ndarray, drafts: list[int], u: np.ndarray, block: bool
) -> tuple[int, int, float]:
    """Kept drafts and bonus token in float64, and how near a uniform number is to a border."""
    count, margins = len(drafts), [1.0]
    ratio = [p[i, d] / q[i, d] for i, d in enumerate(drafts)]
    weights = [1.0]
    for value in ratio:
        weights.append(min(1.0, weights[-1] * value))
    kept = 0
    if block:
        for i in range(1, count + 1):
            chance = weights[i]
            if i < count:
                surplus = np.maximum(weights[i] * p[i] - q[i], 0).sum()
                chance = surplus / (surplus + 1 - weights[i])
            margins.append(abs(u[i - 1] - chance))
            kept = i if u[i - 1] < chance else kept
    else:
        while kept < count and u[kept] < ratio[kept]:
            kept += 1
        margins += [abs(u[i] - ratio[i]) for i in range(count)]
    if kept < count:
        rest = np.maximum((weights[kept] if block else 1.0) * p[kept] - q[kept], 0)
    else:
        rest = p[kept]
    ends = rest.cumsum() / rest.sum()
    margins += np.abs(ends - u[count]).tolist()
    return kept, int((ends <= u[count]).sum()), min(margins)


@pytest.mark.parametrize("block", [False, True], ids=["token", "block"])
@pytest.mark.parametrize("k", [0, 4], ids=["dense", "sparse"])
def test_decisions_are_the_papers(block: bool, k: int) -> None:
    """Equation 1 and algorithm 2 in float64 decide alike, unless a border is within rounding."""
    seen, compared = set(), 0
    for seed in range(120):
        keys = mx.random.split(mx.random.key(seed), 4)
        scores = 1.5 * mx.random.normal((5, 9), key=keys[0])
        own = scores[:4] + 0.5 * mx.random.normal((4, 9), key=keys[1])
        chosen = random_bits(keys[2], 5)
        candidates = None
        if k:
            candidates = mx.sort(mx.argpartition(-own, k, axis=-1)[:, :k], axis=-1)
            own = mx.take_along_axis(own, candidates, axis=-1)
        drafts = mx.random.categorical(own, key=keys[3])
        q = dense = mx.softmax(own, axis=-1)
        if candidates is not None:
            drafts = mx.take_along_axis(candidates, drafts[:, None], axis=-1)[:, 0]
            dense = mx.put_along_axis(mx.zeros((4, 9)), candidates, q, axis=-1)
        got: Any = op.reference(scores, drafts, q, candidates, chosen, block).tolist()
        assert got[0] == 0
        assert got[3:] == drafts.tolist()
        u = np.append(np.array(chosen[:-1] >> 8) / 2**24, np.array(chosen)[-1] / 2**32)
        p = np.array(mx.softmax(scores, axis=-1), dtype=np.float64)
        *wanted, margin = plain_decision(p, np.array(dense, dtype=np.float64), got[3:], u, block)
        if margin > 1e-5:
            assert got[1:3] == wanted
            compared += 1
        seen.add(got[1])
    assert seen == {0, 1, 2, 3, 4}
    assert compared > 100


class Noted(Kernels):
    """References, and the names of the operations that were asked for."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "names", [])

    def __call__(self, op: Op, *args: object) -> object:
        self.names.append(op.name)  # pyright: ignore[reportAttributeAccessIssue]
        return super().__call__(op, *args)


@pytest.mark.parametrize(
    ("case", "params", "accept", "names"),
    [
        ("qwen3_full", SamplingParams(), "match", {"verify_accept"}),
        ("qwen3_dflash2", SamplingParams(), "match", {"verify_accept", "selector_walk"}),
        ("qwen3_full", SamplingParams(temperature=1.0, seed=1), "token", {"verify_accept_sample"}),
        ("qwen3_full", SamplingParams(temperature=1.0, seed=1), "block", {"verify_accept_sample"}),
        ("qwen3_dflash2", SamplingParams(temperature=1.0, seed=1), "match", {"selector_walk"}),
    ],
)
def test_the_engine_asks_the_pairs_own_kernels(
    case: str, params: SamplingParams, accept: AcceptanceRule, names: set[str]
) -> None:
    """Every rule and the selector's walk go through the kernels of the pair that is used."""
    pair: Pair = tiny.golden_pair(case)
    pair.target.kernels = noted = Noted()
    api.generate(pair, [1, 5, 6, 9], sampling=params, accept=accept, max_tokens=8)
    assert set(noted.names) == names  # pyright: ignore[reportAttributeAccessIssue]


def test_kernels_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against kernels that nobody proved running, and against a word ignored."""
    assert available() == Kernels()
    monkeypatch.setenv("DFLASH_KERNELS", "off")
    assert available() == Kernels(references=True)
    monkeypatch.delenv("DFLASH_KERNELS")
    monkeypatch.setattr(dispatch, "by_metal", lambda: True)
    asked = available()
    assert asked.launcher is not None
    assert not asked.launches(verify_accept.OP, mx.zeros((2, 9)), mx.zeros((1,)))
    monkeypatch.setenv("DFLASH_KERNELS", "stock")
    assert available().launcher is None
    monkeypatch.setenv("DFLASH_KERNELS", "fast")
    with pytest.raises(UsageError, match="'fast'"):
        available()


def test_the_cpu_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Mac, before and after MLX's thread has started; no kernel runs then."""
    default = [mx.Device(mx.gpu)]
    monkeypatch.setattr(mx, "default_device", lambda: default[-1])
    monkeypatch.setattr(mx, "set_default_device", lambda device: default.append(mx.Device(device)))
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.delenv("DFLASH_KERNELS")
    monkeypatch.delenv("DFLASH_DEVICE", raising=False)
    dispatch.use_device()
    assert (dispatch.wanted(), len(default)) == ("on", 1)
    monkeypatch.setenv("DFLASH_DEVICE", "cpu")
    assert (dispatch.wanted(), dispatch.on_cpu()) == ("stock", True)
    dispatch.use_device()
    assert default[-1] == mx.Device(mx.cpu)
    monkeypatch.setenv("DFLASH_DEVICE", "tpu")
    with pytest.raises(UsageError, match="'tpu'"):
        dispatch.use_device()
