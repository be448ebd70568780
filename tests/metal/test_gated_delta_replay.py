"""The replay kernel: all layers in a dispatch, the chain kernel's bits, state in and out once."""

import mlx.core as mx
import pytest
from tiny import ALL

from dflash_mlx.kernels import gated_delta_replay, gated_delta_tape, gated_delta_tree

from .delta_rows import SHAPES, TREE, path_to, rows
from .emulator import compare
from .ours import caught, check, run, same_bits, through

OP = gated_delta_replay.OP
PATH = [1, 4, 6, 7]


def layers(shape: tuple, count: int, width: int = 3, channels: int = 7) -> list[mx.array]:
    """Two layers' states, tapes, accepted path and windows; the deltas are any numbers."""
    stack = [rows(len(TREE), *shape, seed=seed) for seed in range(2)]
    _, hv, _, dv, dtype, _ = shape
    keys = mx.random.split(mx.random.key(3), 2)
    return [
        mx.stack([layer[5] for layer in stack]),
        mx.random.normal((2, len(TREE), hv, dv), key=keys[0]),
        mx.stack([layer[1] for layer in stack]),
        mx.stack([layer[3] for layer in stack]),
        mx.array(PATH, mx.int32),
        mx.array([count], mx.int32),
        mx.random.normal((2, width + len(TREE), channels), key=keys[1]).astype(dtype),
    ]


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("shape", SHAPES[: 4 if ALL else 2])
def test_every_run_equals_the_reference(shape: tuple) -> None:
    """Schedules, sanitizers and the race check; the last threadgroup partial."""
    check(through(OP), OP.reference, *layers(shape, 3), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_counts_and_shapes(shape: tuple, count: int) -> None:
    """Nothing, less than a window and more than one accepted; windows of one row too."""
    for width in (1, 3):
        case = layers(shape, count, width)
        outcome = run(through(OP), *case, schedule="reverse")
        assert not outcome.findings
        after, window = OP.reference(*case)
        compare(outcome.outputs[0], after, 1e-5, 1e-5, "state")
        compare(outcome.outputs[1], window, 0, 0, "window")


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_the_state_has_the_bits_of_the_verify_kernel(shape: tuple) -> None:
    """A tree's tape, replayed along a path, ends in the state of a chain kernel over that path."""
    case = layers(shape, 4)
    at = case[4] = mx.array(path_to(5, TREE), mx.int32)
    for number in range(2):
        fed = rows(len(TREE), *shape, seed=number)
        tape = run(through(gated_delta_tree.OP), *fed, TREE).outputs[1]
        case[1] = mx.stack([tape, tape])
        after = run(through(OP), *case).outputs[0][number]
        chain = run(through(gated_delta_tape.OP), *(part[at] for part in fed[:5]), fed[5])
        assert same_bits(after, chain.outputs[2])


def test_traffic_and_dispatches() -> None:
    """One dispatch for all layers; each state byte is read once and written once."""
    case = layers(SHAPES[0], 3)
    outcome = run(through(OP), *case, build="traffic")
    assert len(outcome.records) == 1
    assert outcome.traffic["state"].loads == outcome.traffic["after"].stores == case[0].nbytes
    window = 2 * 3 * 7 * 4
    assert outcome.traffic["inputs"].loads == outcome.traffic["window"].stores == window


FAULTS = [
    ("a < n; ++a", "a <= n; ++a"),
    ("a < n; ++a", "a < T; ++a"),
    ("layer * T + path[a]", "layer * T + a"),
    ("layer * T + path[a]", "path[a]"),
    ("if (i < fours)", "if (i <= fours)"),
    ("if (from >= W)", "if (from > W)"),
    ("W + path[from - W]", "W + path[from - W] + 1"),
    ("uint from = row + n", "uint from = row + n + 1"),
    ("after[place + j]", "after[place + j + 1]"),
    ("delta[t * Hv * Dv + row]", "delta[t * Hv * Dv + row / 2]"),
    ("uint hk = hv / (Hv / Hk)", "uint hk = hv"),
]


@pytest.mark.parametrize("edit", FAULTS)
def test_planted_faults_are_caught(edit: tuple[str, str]) -> None:
    assert caught(OP, edit, [layers(SHAPES[0], 1), layers(SHAPES[0], 3)], 1e-5)
