"""Kernels of mlx-lm 0.32: right where they are right, and one known race found.

Guards the emulator as a whole: a published kernel gives what its own reference gives, by running.
"""

import mlx.core as mx
import pytest
from mlx_lm.models import gated_delta

from .emulator import RUNS, KernelFault, compare
from .peers import LOSSES, gated_delta_inputs, with_kernels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dk", "dtype", "masked", "vector"),
    [
        (64, mx.float32, False, False),
        (32, mx.bfloat16, True, False),
        (32, mx.float16, False, True),
        (128, mx.float32, False, False),  # the packed kernel
    ],
)
def test_gated_delta_equals_its_reference(
    dk: int, dtype: mx.Dtype, masked: bool, vector: bool
) -> None:
    """Dv of 5 with threadgroups of 4 rows: a partial threadgroup at the edge.

    The one finding is true: where the mask is off, all 32 lanes write the same zero to `y`.
    """
    arrays = gated_delta_inputs(dk, dtype, vector)
    mask = mx.array([[True, True, False], [True, False, True]]) if masked else None
    q, k, v, g, beta, state = (a.astype(mx.float32) for a in arrays)
    wanted = gated_delta.gated_delta_ops(q, k, v, g, beta, state, mask)
    for build, schedule in RUNS:
        with with_kernels("mlx_lm.models.gated_delta", build, schedule, strict=False) as mac:
            got = mac[0].gated_delta_kernel(*arrays, mask)
        (record,) = mac[1].records  # the kernel ran
        lines = record.launch.source.splitlines()
        findings = [[lines[n - 1].strip() for n in f.lines] for f in record.findings]
        zero = "y[dv_idx] = static_cast<InT>(0);"
        assert findings == ([[zero, zero]] if masked and build == "race" else [])
        tolerance = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 2e-2}[dtype]
        if (
            mask is not None
        ):  # the kernel writes zeros where the mask is off, the reference does not
            got = [mx.where(mask[..., None, None], got[0], 0), got[1]]
            wanted = [mx.where(mask[..., None, None], wanted[0], 0), wanted[1]]
        for name, a, b in zip(("y", "state"), got, wanted, strict=True):
            compare(a.astype(mx.float32), b, 0, tolerance, f"{build} {schedule} {name}")


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
