"""The gated delta kernels of a chain and of a tree against their references, and each other."""

import mlx.core as mx
import pytest
from tiny import ALL

from dflash_mlx.kernels import gated_delta_tape, gated_delta_tree
from dflash_mlx.kernels.dispatch import Op

from .delta_rows import SHAPES, TREE, path_to, random_tree, rows
from .emulator import compare
from .ours import caught, check, run, same_bits, through

TOLERANCE = {mx.float32: 2e-5, mx.float16: 4e-3, mx.bfloat16: 3e-2}


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("shape", SHAPES[: 4 if ALL else 1])
@pytest.mark.parametrize("tree", [False, True])
def test_every_run_equals_the_reference(shape: tuple, tree: bool) -> None:
    """Schedules, sanitizers and the race check; 2 or 1 threadgroups, the last one partial."""
    fed = rows(len(TREE), *shape)
    op, more = (gated_delta_tree.OP, [TREE]) if tree else (gated_delta_tape.OP, [])
    tolerance = TOLERANCE[shape[4]]
    check(through(op), op.reference, *fed, *more, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_other_shapes_and_dtypes(shape: tuple) -> None:
    """A chain and a tree of every shape, and T of 1: the outputs at the precision of their dtype,
    deltas and states at float32's."""
    fed = rows(len(TREE), *shape)
    one = [part[:1] for part in fed[:5]] + fed[5:]
    for op, case in (
        (gated_delta_tape.OP, fed),
        (gated_delta_tape.OP, one),
        (gated_delta_tree.OP, [*fed, TREE]),
        (gated_delta_tree.OP, [*one, TREE[:1]]),
    ):
        outcome = run(through(op), *case, schedule="random:4")
        assert not outcome.findings
        (y, *exact), (want_y, *want_exact) = outcome.outputs, op.reference(*case)
        compare(y, want_y, TOLERANCE[shape[4]], 1e-3, f"{op.name} y")
        for got, want in zip(exact, want_exact, strict=True):
            compare(got, want, 2e-5, 2e-5, op.name)


def test_a_row_has_the_same_bits_whatever_is_verified_with_it() -> None:
    """Row i of a chain of any length, and a node of a tree at the end of its path."""
    fed = rows(len(TREE), *SHAPES[0])
    y, delta, _ = run(through(gated_delta_tape.OP), *fed).outputs
    for count in (1, 2, 5):
        part = [part[:count] for part in fed[:5]] + fed[5:]
        fewer = run(through(gated_delta_tape.OP), *part).outputs
        assert same_bits(fewer[0], y[:count])
        assert same_bits(fewer[1], delta[:count])
    y, delta = run(through(gated_delta_tree.OP), *fed, TREE).outputs
    for node in (5, 6, 8):
        at = mx.array(path_to(node, TREE))
        chain = run(through(gated_delta_tape.OP), *(part[at] for part in fed[:5]), fed[5]).outputs
        assert same_bits(y[node], chain[0][-1])
        assert same_bits(delta[node], chain[1][-1])


@pytest.mark.parametrize("seed", range(40 if ALL else 4))
def test_random_trees(seed: int) -> None:
    """Any number of rows and any parents; all shapes where everything is run."""
    parents = random_tree(1 + 7 * seed % 20, seed)
    fed = rows(len(parents), *SHAPES[seed % 4 if ALL else 0], seed=seed)
    case = [*fed, parents]
    outcome = run(through(gated_delta_tree.OP), *case, schedule=f"random:{seed}")
    assert not outcome.findings
    (y, delta), (want_y, want_delta) = outcome.outputs, gated_delta_tree.OP.reference(*case)
    compare(y, want_y, TOLERANCE[y.dtype], 1e-3, "y")
    compare(delta, want_delta, 2e-5, 2e-5, "delta")


def test_traffic() -> None:
    """The state is read once, and written once by a chain, by a tree never; the rest is small."""
    fed = rows(len(TREE), *SHAPES[0])
    state = fed[5].nbytes
    chain = run(through(gated_delta_tape.OP), *fed, build="traffic").traffic
    assert chain["state"].loads == chain["after"].stores == state
    assert chain["delta"].stores == len(TREE) * 4 * 2 * 5
    tree = run(through(gated_delta_tree.OP), *fed, TREE, build="traffic").traffic
    assert tree["state"].loads == state
    written = sum(traffic.stores for traffic in tree.values())
    assert written == tree["y"].stores + tree["delta"].stores == 2 * len(TREE) * 4 * 2 * 5


BARRIER = "simdgroup_barrier(mem_flags::mem_threadgroup)"
FAULTS: list[tuple[Op, str, str]] = [
    (gated_delta_tape.OP, "step < LANES", "step <= LANES"),
    (gated_delta_tape.OP, "simd_shuffle_xor(x, step)", "simd_shuffle_xor(x, 1)"),
    (gated_delta_tape.OP, "uint hk = hv / (Hv / Hk)", "uint hk = hv % Hk + 1"),
    (gated_delta_tape.OP, "if (lane == 0) {", "{"),
    (gated_delta_tape.OP, "LANES * i + lane) + j] = s", "LANES * i + lane) + j + 1] = s"),
    (gated_delta_tape.OP, "t < T;", "t <= T;"),
    (gated_delta_tape.OP, "int i = 1; i < N", "int i = 0; i < N"),
    (gated_delta_tree.OP, BARRIER, ""),
    (gated_delta_tree.OP, BARRIER, BARRIER.replace("mem_threadgroup", "mem_none")),
    (gated_delta_tree.OP, BARRIER, BARRIER.replace("mem_threadgroup", "mem_device")),
    (gated_delta_tree.OP, "uint mine = thread_position_in_threadgroup.x / LANES", "uint mine = 0"),
    (gated_delta_tree.OP, "if (a == next)", "if (a >= next)"),
    (gated_delta_tree.OP, "a < t; ++a", "a < t - 2; ++a"),
    (gated_delta_tree.OP, "a = t - 1; a >= 0", "a = t - 1; a > 0"),
    (gated_delta_tree.OP, "    s[i] = root[i];\n    }\n    for", "    }\n    for"),
    (gated_delta_tree.OP, "parents[t] != t - 1", "parents[t] > t"),
    (gated_delta_tree.OP, "deltas[mine][a]", "deltas[mine][t - 1]"),
]


@pytest.mark.quick_every(4)
@pytest.mark.parametrize(("op", "old", "new"), FAULTS)
def test_planted_faults_are_caught(op: Op, old: str, new: str) -> None:
    fed = rows(len(TREE), *SHAPES[0])
    case = [*fed, TREE] if op is gated_delta_tree.OP else fed
    assert caught(op, (old, new), [case], 2e-5)
