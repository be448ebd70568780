"""A race that is known in kernels of mlx-lm 0.32 is found, and is one."""

import mlx.core as mx
import pytest

from .emulator import KernelFault
from .peers import LOSSES, with_kernels


@pytest.mark.parametrize("loss", LOSSES)
def test_the_known_race_in_the_losses_is_found(loss: str) -> None:
    """Every simdgroup reads maxima from a shared slot that lane 0 may already overwrite."""
    q, p = mx.random.normal((2, 1, 300), key=mx.random.key(1)) * 3
    with with_kernels("mlx_lm.tuner.losses", "race", "forward", strict=False) as (m, emulator):
        mx.eval(LOSSES[loss](m, q, p))
    record = emulator.records[-1]
    assert loss in record.launch.name
    races = [f for f in record.findings if f.kind == "race" and "shared" in f.text]
    assert races, "the race was not found"
    lines = record.launch.source.splitlines()
    assert any("shared[simd_group_id * 2" in lines[n - 1] for f in races for n in f.lines)


def test_the_race_gives_other_numbers_in_another_order() -> None:
    """What the race check says is real: schedules disagree, and one raised finding is an error."""
    q, p = mx.random.normal((2, 1, 300), key=mx.random.key(1)) * 3
    seen = set()
    for schedule in ("forward", "reverse"):
        with with_kernels("mlx_lm.tuner.losses", "plain", schedule) as (module, _):
            seen.add(round(module.kl_div_loss(q, p).item(), 3))
    assert len(seen) == 2
    with (
        with_kernels("mlx_lm.tuner.losses", "race", "forward") as (module, _),
        pytest.raises(KernelFault, match="race"),
    ):
        module.kl_div_loss(q, p)
