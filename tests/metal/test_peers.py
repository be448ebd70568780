"""Kernels of mlx-lm 0.32: right where they are right, and one known race found.

Guards the emulator as a whole: a published kernel gives what its own reference gives, by running.
"""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import deepseek_v41 as deepseek
from mlx_lm.models import gated_delta, ssm

from .emulator import RUNS, KernelFault, compare
from .lint import lint
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


def test_the_packed_kernel_is_bit_identical_to_its_comparator() -> None:
    """mlx-lm promises it by construction; it depends on the order of every sum."""
    arrays = gated_delta_inputs(128, mx.bfloat16)
    with with_kernels("mlx_lm.models.gated_delta", "plain", "forward") as (module, emulator):
        packed = module.gated_delta_kernel(*arrays)
        tree = module.gated_delta_kernel_xtree(*arrays)
        unpacked = module._gated_delta_kernel_impl(*arrays, allow_packed=False)
    names = [r.launch.name for r in emulator.records]
    assert ["packed" in n for n in names] == [True, False, False]
    for other in (tree, unpacked):
        for a, b in zip(packed, other, strict=True):
            compare(a, b, 0, 0, "packed against unpacked")


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_ssm_equals_its_reference(dtype: mx.Dtype) -> None:
    """Grouped B and C, a batch of two, Dh of 6 with threadgroups of 8 rows."""
    n, h, dh, groups, ds = 2, 4, 6, 2, 64
    keys = mx.random.split(mx.random.key(3), 8)
    x = mx.random.normal((n, 1, h, dh), key=keys[0]).astype(dtype)
    a_log = mx.random.normal((h,), key=keys[1]) * 0.1
    b, c = (mx.random.normal((n, 1, groups, ds), key=k).astype(dtype) * 0.3 for k in keys[2:4])
    d = mx.random.normal((h,), key=keys[4])
    dt = mx.random.normal((n, 1, h), key=keys[5]).astype(dtype)
    bias = mx.random.normal((h,), key=keys[6])
    state = mx.random.normal((n, h, dh, ds), key=keys[7])
    arguments = [x, a_log, b, c, d, dt, bias, state, (0.001, 100.0)]
    wanted = ssm.ssm_attn(*arguments)
    for build, schedule in RUNS:
        with with_kernels("mlx_lm.models.ssm", build, schedule) as (module, emulator):
            got = module.ssm_update(*arguments)
        assert len(emulator.records) == 1, "the kernel did not run"
        tolerance = 1e-5 if dtype == mx.float32 else 3e-2
        compare(got[0], wanted[0].astype(dtype), tolerance, tolerance, f"{build} {schedule} y")
        compare(got[1], wanted[1], tolerance, tolerance, f"{build} {schedule} state")


def normal(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape).astype(dtype)


def routing(module: Any) -> list[list[mx.array]]:
    logits, bias = normal(5, 40), normal(40)
    got = module.expert_routing(
        logits, bias, top_k=4, multiplier=1.0, score_eps=1e-6, route_scale=2.0
    )
    scores = mx.sigmoid(logits)
    best = mx.argsort(-(scores + bias), axis=-1)[:, :4]
    weights = mx.take_along_axis(scores, best, -1)
    weights = 2 * weights / (weights.sum(-1, keepdims=True) + 1e-6)
    return [got, [best.astype(mx.uint32), weights]]


def gated_norm(module: Any) -> list[list[mx.array]]:
    x, gate = normal(2, 3, 4, 40, dtype=mx.bfloat16).transpose(0, 2, 1, 3), normal(2, 3, 160)
    got = module.rms_norm_sigmoid_gate(x, gate, eps=1e-5)
    wide = mx.fast.rms_norm(x.astype(mx.float32), None, 1e-5).transpose(0, 2, 1, 3)
    return [[got], [(wide.reshape(2, 3, 160) * mx.sigmoid(gate)).astype(mx.bfloat16)]]


def combined(module: Any) -> list[list[mx.array]]:
    x, weights, scale = normal(3, 4, 100, dtype=mx.bfloat16), normal(3, 4), normal(100)
    got = module.post_expert_norm_combine(x, weights, norm_weight=scale, eps=1e-5)
    rows = mx.fast.rms_norm(x.astype(mx.float32) * scale, None, 1e-5)
    return [[got], [(rows * weights[..., None]).sum(-2).astype(mx.bfloat16)]]


def ternary(module: Any) -> list[list[mx.array]]:
    layer = module.BitLinear(64, 32, bias=False)
    packed = mx.random.randint(0, 171, layer.weight.shape)
    x = normal(3, 64)
    whole = mx.concatenate([((packed >> (2 * i)) & 3) - 1 for i in range(4)])
    return [[layer.execute_matmul_kernel(x, packed.astype(mx.uint8))], [x @ whole.T]]


def wkv(module: Any) -> list[list[mx.array]]:
    *steps, state = *[normal(1, 3, 2, 64) * 0.1 for _ in range(6)], normal(1, 2, 64, 64)
    got = module.wkv7_kernel(*steps, state)
    rows = []
    for t in range(3):
        y, state = module._wkv7_step_ops(*[s[:, t] for s in steps], state)
        rows.append(y.squeeze(-1))
    return [got, [mx.stack(rows, 1), state]]


def sinkhorn(module: Any) -> list[list[mx.array]]:
    x, eps = mx.abs(normal(2, 3, 4, 4)), mx.array([1e-6])
    return [[module._sinkhorn(x, iters=3, eps=eps)], [deepseek._sinkhorn(x, iters=3, eps=eps)]]


PUBLISHED = {
    "kernels.expert_routing": routing,
    "kernels.rms_norm_sigmoid_gate": gated_norm,
    "kernels.post_expert_norm_combine": combined,
    "models.bitlinear_layers": ternary,
    "models.rwkv7": wkv,
    "models.deepseek_v41": sinkhorn,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_other_published_kernels(name: str) -> None:
    """Kernels that run on Macs every day: equal to their references, without a finding."""
    for build, schedule in (("plain", "reverse"), ("sanitize", "forward"), ("race", "random:2")):
        mx.random.seed(5)
        with with_kernels(f"mlx_lm.{name}", build, schedule) as (module, emulator):
            got, wanted = PUBLISHED[name](module)
        assert len(emulator.records) == 1, "the kernel did not run"
        assert lint(emulator.records[0].launch) == []
        for a, b in zip(got, wanted, strict=True):
            tolerance = 2e-2 if a.dtype == mx.bfloat16 else 2e-5
            compare(a, b, tolerance, tolerance, f"{build} {schedule}")


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
