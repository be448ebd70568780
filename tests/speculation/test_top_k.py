"""With top-k set nothing as wide as the vocabulary is sorted, and the same tokens stay."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p
from trace_ops import operations

from dflash_mlx.options import SamplingParams
from dflash_mlx.speculation.sampling import GROUP, Shaper

SORTS = {"Sort", "ArgSort", "Partition", "ArgPartition"}
VOCAB = 200 * GROUP
HOT = SamplingParams(temperature=0.9)
SETTINGS = {
    "top_k": replace(HOT, top_k=20),
    "top_k_top_p": replace(HOT, top_k=20, top_p=0.8),
    "top_k_min_p": replace(HOT, top_k=20, min_p=0.05),
    "all": replace(HOT, top_k=20, top_p=0.9, min_p=0.02),
    "one": replace(HOT, top_k=1, top_p=0.5),
    "more_than_top_p_leaves": replace(HOT, top_k=40, top_p=0.2),
}
every_setting = pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)


def sorted_widths(params: SamplingParams, vocab: int = VOCAB) -> list[int]:
    """How many numbers of a row each sort of a verify's draw goes over."""
    found = operations(Shaper(params, vocab).draw, mx.zeros((16, vocab)), mx.zeros((16,)))
    return [op.inputs[0][0][-1] for op in found if op.name in SORTS]


def stock_filters(shaper: Shaper, rows: mx.array) -> mx.array:
    params = shaper.params
    if params.top_p < 1:
        rows = apply_top_p(rows, params.top_p)
    if params.min_p > 0:
        rows = apply_min_p(rows, params.min_p)
    return apply_top_k(rows, params.top_k) * (1 / params.temperature)


def logits(kind: str, dtype: mx.Dtype, vocab: int = VOCAB) -> mx.array:
    rows = 3 * mx.random.normal((8, vocab), key=mx.random.key(4))
    return (mx.round(rows) if kind == "level" else rows).astype(dtype)


def differing(params: SamplingParams, rows: mx.array) -> int:
    shaper = Shaper(params, rows.shape[-1])
    rows = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
    same: Any = (shaper._filter(rows) == stock_filters(shaper, rows)).all(axis=-1).tolist()
    return same.count(False)


@pytest.mark.quick_every(5)
@every_setting
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["random", "level"])
def test_the_same_tokens_stay(params: SamplingParams, kind: str, dtype: mx.Dtype) -> None:
    """Filters of the k likeliest give what mlx-lm's give on all, also where many are level."""
    assert not differing(params, logits(kind, dtype))
    assert not differing(params, logits(kind, dtype, vocab=999))


@every_setting
def test_no_sort_is_as_wide_as_the_vocabulary(params: SamplingParams) -> None:
    """Sorts go over the maxima of groups, over the groups that have the likeliest, or over k."""
    widths = sorted_widths(params)
    assert max(widths, default=0) <= max(VOCAB // GROUP, GROUP * params.top_k)
    assert max(widths, default=0) < VOCAB / 4


def test_min_p_alone_sorts_nothing() -> None:
    """Its limit is a share of the likeliest token; temperature alone has none."""
    assert sorted_widths(replace(HOT, min_p=0.05)) == []
    assert sorted_widths(HOT) == []
