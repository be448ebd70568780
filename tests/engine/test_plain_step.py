"""A plain step's outcome: the target's choice, or the fault of logits that are not numbers."""

import mlx.core as mx
import pytest
import tiny

from dflash_mlx.errors import DFlashError
from dflash_mlx.options import SamplingParams
from dflash_mlx.speculation.acceptance import make_rule


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_numbers_that_are_none_are_seen_wherever_they_are(
    dtype: mx.Dtype, temperature: float
) -> None:
    """The largest value carries NaN, which MLX's reduction must go on doing."""
    rule = make_rule("match", SamplingParams(temperature=temperature, seed=1), 41)
    row = mx.where(mx.arange(41) == 7, 60.0, -60.0).astype(dtype)[None]
    assert tiny.chosen(rule, row, [1]) == 7
    for place in range(41):
        broken = mx.where(mx.arange(41) == place, mx.nan, row).astype(dtype)
        with pytest.raises(DFlashError, match="not numbers"):
            tiny.chosen(rule, broken, [1], place)
