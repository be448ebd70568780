"""The kernel that makes the inputs of a recurrence: its reference, mlx-lm's layer, and faults."""

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models.qwen3_5 import GatedDeltaNet, TextModelArgs
from tiny import ALL

from dflash_mlx.kernels import gated_delta_inputs
from dflash_mlx.models.gated_delta import chain_places, feed_stock

from .delta_rows import TREE, projected, random_tree, windows
from .emulator import compare
from .ours import caught, check, run, same_bits, through

OP = gated_delta_inputs.OP
# (Hk, Hv, Dk, Dv, dtype): grouped heads, odd Dv, heads of values wider and narrower than of keys.
SHAPES = [
    (1, 2, 64, 5, mx.float32),
    (2, 4, 32, 33, mx.float16),
    (1, 3, 128, 2, mx.bfloat16),
    (2, 2, 96, 130, mx.bfloat16),
]
# Sums in another order; numbers are then rounded to the dtype, at three places.
TOLERANCE = {mx.float32: 1e-5, mx.float16: 4e-3, mx.bfloat16: 3e-2}


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("shape", SHAPES[: 4 if ALL else 2])
def test_every_run_equals_the_reference(shape: Any) -> None:
    """Schedules, sanitizers and the race check; the last threadgroup is partial."""
    case = projected(len(TREE), *shape, places=windows(TREE))
    tolerance = TOLERANCE[shape[4]]
    check(through(OP), OP.reference, *case, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_other_rows_and_dtypes(shape: Any) -> None:
    """Chains of 1 and 5 rows, a convolution of two taps; gates at float32's precision."""
    for count, width in ((1, 3), (5, 3), (4, 1)):
        for types in ((mx.float32, mx.bfloat16), (shape[4], mx.float32)):
            case = projected(count, *shape, width=width, types=types)
            outcome = run(through(OP), *case, schedule="random:4")
            assert not outcome.findings
            wanted = OP.reference(*case)
            for name, got, want in zip(wanted._fields, outcome.outputs, wanted, strict=True):
                tolerance = 0 if name == "inputs" else TOLERANCE[want.dtype]
                compare(got, want, tolerance, tolerance, name)


def layer_of(dtype: mx.Dtype) -> Any:
    """mlx-lm's layer with random weights."""
    args = {
        "model_type": "qwen3_5",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "rms_norm_eps": 1e-6,
        "vocab_size": 8,
        "num_key_value_heads": 1,
        "max_position_embeddings": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
    }
    net = GatedDeltaNet(TextModelArgs.from_dict(args))
    net.conv1d.weight = mx.random.normal(net.conv1d.weight.shape, key=mx.random.key(1))
    net.set_dtype(dtype)
    return net


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("tree", [False, True])
def test_mlx_lms_layer(dtype: mx.Dtype, tree: bool) -> None:
    """What its convolution, norms and gates give, for a chain and along the paths of a tree."""
    net = layer_of(dtype)
    mixed, a, b, window = projected(len(TREE), 2, 4, 32, 16, dtype)[:4]
    places = mx.array(windows(TREE)) if tree else chain_places(len(TREE), 4)
    parts: Any = [part[None] for part in (mixed, a, b, window)]
    wanted = feed_stock(net, *parts, places=places if tree else None)
    case: Any = mixed, a, b, window, net.conv1d.weight, net.A_log, net.dt_bias, places, 2, 32
    made = OP.reference(*case)
    found = run(through(OP), *case).outputs
    stock = wanted.queries, wanted.keys, wanted.values
    for name, got, ours, want in zip(made._fields[:3], found, made, stock, strict=False):
        compare(got, want[0], TOLERANCE[dtype], TOLERANCE[dtype], name)
        compare(ours, want[0], TOLERANCE[dtype], TOLERANCE[dtype], name)
    compare(found[5], wanted.inputs[0], 0, 0, "inputs")
    gates = mx.exp(-mx.exp(net.A_log.astype(mx.float32)) * nn.softplus(a + net.dt_bias))
    compare(found[3], gates, 1e-5, 1e-5 if dtype == mx.float32 else 1e-2, "g")
    compare(found[4], mx.sigmoid(b), TOLERANCE[dtype], TOLERANCE[dtype], "beta")


def test_a_row_has_the_same_bits_whatever_is_read_with_it() -> None:
    """Row i of a chain of any length, and a node of a tree at the end of its path."""
    case = projected(len(TREE), *SHAPES[2])
    every = run(through(OP), *case).outputs
    for count in (1, 2, 5):
        fewer = run(through(OP), *(part[:count] for part in case[:3]), *case[3:]).outputs
        assert all(same_bits(a, b[:count]) for a, b in zip(fewer[:5], every, strict=False))
    parents = random_tree(len(TREE), 3)
    tree = run(through(OP), *case[:7], mx.array(windows(parents)), *case[8:]).outputs
    path = [node for node in range(len(TREE)) if parents[node] < 0][-1:]
    alone = run(through(OP), *(part[mx.array(path)] for part in case[:3]), *case[3:]).outputs
    assert all(same_bits(a[0], b[path[0]]) for a, b in zip(alone[:5], tree, strict=False))


def test_traffic_and_dispatches() -> None:
    """One dispatch; what it writes is written once, and rows are read once for each tap."""
    hk, hv, dk, dv, dtype = SHAPES[2]
    count = len(TREE)
    case = projected(count, hk, hv, dk, dv, dtype)
    outcome = run(through(OP), *case, build="traffic")
    assert len(outcome.records) == 1
    channels = 2 * hk * dk + hv * dv
    assert sum(outcome.traffic[name].stores for name in "qkv") == 2 * count * channels
    assert outcome.traffic["inputs"].stores == 2 * (count + 3) * channels
    assert outcome.traffic["g"].stores == 4 * count * hv
    read = outcome.traffic["mixed"].loads + outcome.traffic["window"].loads
    assert read == 2 * channels * (4 * count + count + 3)  # and once to keep it


@pytest.mark.parametrize(
    ("part", "kind"), [(3, mx.float32), (4, mx.float16), (5, mx.int32), (7, mx.int64)]
)
def test_what_the_kernel_takes(part: int, kind: mx.Dtype) -> None:
    """A window or weights of another dtype, other numbers and few places are the reference's."""
    case = projected(3, *SHAPES[2])
    assert OP.fits(*case)
    case[part] = case[part].astype(kind)
    assert not OP.fits(*case)
    few = projected(1, *SHAPES[2], places=[[0, 1, 2, 3]])
    assert not OP.fits(*few)


FAULTS = [
    ("places[t * K + tap]", "places[tap]"),
    ("from < W ?", "from <= W ?"),
    ("(from - W) * C", "(from - W + 1) * C"),
    ("weight[c * K + tap]", "weight[c * K + W - tap]"),
    ("if (d < size) {\n      float input", "if (d <= size) {\n      float input"),
    ("if (d < size) {\n    InT out", "if (d <= size) {\n    InT out"),
    ("squares += x[i] * x[i]", "squares += x[i]"),
    ("lanes_sum<32>(squares)", "lanes_sum<16>(squares)"),
    ("/ Dk + 1e-6f / Dk", "+ 1e-6f / Dk"),
    ("head < Hk ? 1.0f / Dk", "head <= Hk ? 1.0f / Dk"),
    ("head < 2 * Hk", "head <= 2 * Hk"),
    ("if (head < Hk) {", "if (head < 1) {"),
    ("inputs[(W + t) * C + c] = mixed", "inputs[(W + t) * C + c - 1] = mixed"),
    ("if (t == 0) {", "if (t == 9) {"),
    ("if (t == 0) {", "{"),
    ("row < W; ++row", "row < W - 1; ++row"),
    ("if (!is_key && lane == 0) {", "if (!is_key && lane == 0 && t > 0) {"),
    ("dt_bias[hv]", "dt_bias[0]"),
    ("A_log[hv]", "A_log[0]"),
    ("max(step, 0.0f)", "step"),
    ("exp(-float(b[", "exp(float(b["),
]


@pytest.mark.quick_every(4)
@pytest.mark.parametrize("edit", FAULTS)
def test_planted_faults_are_caught(edit: tuple[str, str]) -> None:
    shape = (2, 4, 32, 33, mx.float32)
    case = projected(len(TREE), *shape, places=windows(TREE))
    assert caught(OP, edit, [case], TOLERANCE[mx.float32])
