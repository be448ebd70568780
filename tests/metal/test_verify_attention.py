"""The verify attention kernels: parity, rows that do not depend on each other, one read."""

import random
from dataclasses import replace

import mlx.core as mx
import pytest
from tiny import ALL

from dflash_mlx.kernels import verify_attention
from dflash_mlx.kernels.verify_attention import Scores

from .attention_rows import CONTEXT, TREE, block, plain_steps
from .delta_rows import random_tree
from .emulator import compare
from .ours import caught, check, run, same_bits, through

OP = verify_attention.OP  # by matrices, where heads are not larger than 128
EXACT = replace(OP, launch=verify_attention.launch_exact)
CHAIN = range(-1, 6)
SINKS = mx.array([0.5, -1.0, 2.0, 0.0])
SCORES = [Scores(0.2), Scores(0.2, window=9, sinks=SINKS), Scores(0.5, cap=2.0)]
TOLERANCE = {mx.float32: 2e-5, mx.float16: 2e-3, mx.bfloat16: 1e-2}
# Heads of queries and keys, their size, dtype; the first is used wherever the shape is no matter.
SHAPES = [
    ((4, 2), 64, mx.float32),
    ((3, 1), 32, mx.float32),
    ((2, 2), 80, mx.bfloat16),
    ((3, 1), 96, mx.float16),
    ((4, 1), 128, mx.bfloat16),
    ((2, 1), 192, mx.float16),
    ((2, 1), 256, mx.float32),
]


@pytest.mark.parametrize("parents", [CHAIN, TREE])
@pytest.mark.parametrize("scores", SCORES if ALL else SCORES[1:2])
def test_every_run_equals_the_reference(parents: list[int], scores: Scores) -> None:
    """Schedules, sanitizers and the race check; two tiles a split, a border in the block."""
    case = block(parents, 58, start=5)
    for op in (OP, EXACT):
        check(through(op, split=32), OP.reference, *case, scores, rtol=2e-5, atol=2e-5)


@pytest.mark.quick_every(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scores", SCORES)
def test_shapes_dtypes_and_scores(shape: tuple, scores: Scores) -> None:
    """Every size of head; window, sinks and cap; a split's border within the block; one row."""
    heads, dim, dtype = shape
    if scores.sinks is not None:
        scores = Scores(scores.scale, window=scores.window, sinks=SINKS[: heads[0]])
    for parents, context in ((TREE, 30), ([-1], 0)):
        case = block(parents, context, heads=heads, dim=dim, dtype=dtype)
        want = OP.reference(*case, scores)
        for op in (OP, EXACT):
            outcome = run(through(op, split=16), *case, scores, schedule="random:2")
            assert not outcome.findings
            compare(outcome.outputs[0], want, TOLERANCE[dtype], TOLERANCE[dtype], f"{dim}")


@pytest.mark.parametrize("seed", range(60 if ALL else 6))
def test_random_blocks(seed: int) -> None:
    """Any tree behind any context, window and start; all shapes where everything is run."""
    draw = random.Random(seed)
    heads, dim, dtype = SHAPES[seed % len(SHAPES) if ALL else 0]
    parents = random_tree(draw.randrange(1, 20), seed)
    case = block(parents, draw.randrange(70), draw.randrange(40), heads, dim, dtype)
    sinks = draw.choice([None, SINKS[: heads[0]]])
    scores = Scores(0.3, draw.choice([0.0, 4.0]), draw.choice([0, 1, 3, 17, 100]), sinks)
    op = draw.choice((OP, EXACT))
    outcome = run(through(op, split=16), *case, scores, schedule=f"random:{seed}")
    assert not outcome.findings
    want = OP.reference(*case, scores)
    compare(outcome.outputs[0], want, TOLERANCE[dtype], TOLERANCE[dtype], str(scores))


def test_64_rows_of_a_tree() -> None:
    """Two words a row, 128 packed rows in a threadgroup, the block's rows in several splits."""
    parents = [-1, *(max(0, i - 2) for i in range(1, 64))]
    case = block(parents, 3, heads=(2, 1))
    outcome = run(through(OP, split=16), *case, Scores(0.1), build="traffic")
    compare(outcome.outputs[0], OP.reference(*case, Scores(0.1)), 2e-5, 2e-5, "64 rows")


@pytest.mark.parametrize("scores", [SCORES[0], SCORES[1]])
def test_a_row_has_the_same_bits_whatever_is_verified_with_it(scores: Scores) -> None:
    """Blocks of 1 to 16 rows, and nodes of a tree on both sides of a border between long splits,
    against a plain step over the path."""
    kernel = through(EXACT, split=16)
    sizes = range(1, 17) if ALL else (1, 2, 7, 16)
    for context, parents in (*((27, range(-1, size - 1)) for size in sizes), (316, TREE)):
        case = block(parents, context, start=2)
        out = run(kernel, *case, scores).outputs[0]
        for row, step in enumerate(plain_steps(*case)):
            if ALL or row in (0, 1, len(parents) - 2, len(parents) - 1):
                alone = run(kernel, *step, scores).outputs[0]
                assert same_bits(out[:, row], alone[:, 0]), (len(parents), row)


def test_other_rows_that_are_not_finite_do_not_reach_a_row() -> None:
    """Row 2 of the tree is NaN, as after an overflow: who does not see it keeps its bits. With
    matrices, as with MLX's own attention, a weight of zero does not hide it."""
    q, keys, values, rows = block(TREE)
    broken = [mx.array(part) for part in (keys, values)]
    for part in broken:
        part[:, CONTEXT + 2] = mx.nan
    clean, got = (
        run(through(EXACT, split=16), q, *parts, rows, SCORES[0]).outputs[0]
        for parts in ((keys, values), broken)
    )
    for row, path in enumerate(rows.paths):
        if 2 in path:
            assert mx.isnan(got[:, row]).all()
        else:
            assert same_bits(clean[:, row], got[:, row])


@pytest.mark.parametrize(
    ("heads", "dim", "reads"),
    [((18, 1), 64, 1), ((19, 1), 64, 2), ((9, 1), 128, 1), ((10, 1), 128, 2), ((5, 1), 192, 2)],
)
def test_traffic(heads: tuple[int, int], dim: int, reads: int) -> None:
    """Each key and value is loaded once, by one thread, for as many packed rows of queries as a
    threadgroup takes; those of a block on both sides of a border too."""
    case = block(CHAIN, heads=heads, dim=dim)
    first = run(through(OP, split=16), *case, SCORES[0], build="traffic").records[0]
    row = dim * 4
    once = (CONTEXT + len(CHAIN)) * row
    assert first.traffic["keys"].loads == first.traffic["values"].loads == reads * once
    padding = 8 * 16 if dim <= 128 else 0
    assert first.threadgroup_bytes == 2 * (8 * row + padding)
    windowed = run(through(OP, split=16), *case, Scores(0.2, window=9), build="traffic").records[0]
    assert windowed.traffic["keys"].loads == reads * (8 + len(CHAIN)) * row


@pytest.mark.parametrize("exact", [False, True])
def test_work(exact: bool) -> None:
    """The counts of the model in `metal_kernels/README.md`: bytes of threadgroup memory that a row
    of queries reads for a key, products of matrices, barriers for 8 keys."""
    context, dim, heads = 57, 64, (8, 1)
    case = block(CHAIN, context, heads=heads, dim=dim)
    packed, keys = heads[0] * len(CHAIN), context + len(CHAIN)
    kernel = through(EXACT if exact else OP, split=64)
    work = run(kernel, *case, SCORES[0], build="traffic").records[0].work
    tiles = keys // 8
    assert keys == 8 * tiles == 64
    stored = 2 * keys * dim * 4
    assert work.shared_stores == stored
    assert work.barriers == 2 * tiles
    if exact:
        assert work.products == 0
        visible = heads[0] * sum(context + depth + 1 for depth in range(len(CHAIN)))
        assert work.shared_loads == 4 * dim * (packed * keys + visible)
    else:
        assert work.products == packed // 8 * tiles * 2 * dim // 8
        assert work.shared_loads == packed // 8 * keys * 2 * dim * 4


FIRST = "threadgroup_barrier(mem_flags::mem_threadgroup);\n  for (int at"
SECOND = "threadgroup_barrier(mem_flags::mem_threadgroup);\n\n"
FAULTS = [
    (FIRST, FIRST[FIRST.index("for") :]),
    (SECOND, ""),
    (SECOND, SECOND.replace("mem_threadgroup", "mem_device")),
    (SECOND, SECOND.replace("mem_threadgroup", "mem_none").replace("threadgroup_b", "simdgroup_b")),
    ("at < TILE * FOURS", "at <= TILE * FOURS"),
    ("at += threads", "at += threads + 1"),
    ("i < total ? root + depths", "i <= total ? root + depths"),
    ("int me = ", "int me = 1 + "),
    ("int row = min(mine, R - 1)", "int row = mine"),
    ("if (mine < R)", "if (mine <= R)"),
    ("split + 1];", "split + 1] - 1;"),
    ("high > root ? T", "high > root + 1 ? T"),
    ("here - there < window", "here - there <= window"),
    ("(seen >> (i - old)) & 1", "(seen >> (i - old + 1)) & 1"),
    ("(seen >> (i - old)) & 1", "1"),
    ("bool near = there >= low && there < high &&", "bool near ="),
    ("tile_k[n * STEP", "tile_k[STEP"),
    ("LANES * c + lane];", "LANES * c + lane + 1];"),
    ("if (score > highest)", "if (score < highest)"),
    ("        weights *= smaller", ""),
    ("low - start + i", "low + i"),
    ("context + i - old", "context + i - old + 1"),
    ("int t = row % T", "int t = row / T"),
    ("highest = max(highest, norms[2 * place])", "highest = norms[2 * place]"),
    ("weights = fma(weight, norms[2 * place + 1], weights)", "weights = weights + weight"),
    ("float weights = exp(sink - highest)", "float weights = 1.0f"),
]


MATRICES = [
    ("((simd_lane / 4) & 4)", "((simd_lane / 4) & 2)"),
    ("((simd_lane / 4) & 2)", "((simd_lane / 4) & 1)"),
    ("mine / 8 * 8 + r", "mine / 8 * 8 + r / 2"),
    ("8 * part + 2 * lane + j];\n      queries", "8 * part + 2 * lane];\n      queries"),
    ("scale * own", "own"),
    ("tile_k + 8 * part", "tile_k + 4 * part"),
    ("4 * STEP, ulong2(0, 0), true", "4 * FOURS, ulong2(0, 0), true"),
    ("ulong2(0, 0), true", "ulong2(0, 0), false"),
    ("scores, queries[part], some", "scores, queries[0], some"),
    ("begin + 2 * lane + j", "begin + 2 * lane + 1 - j"),
    ("best = shown[j] ? max", "best = shown[j] ? min"),
    ("best = max(best, simd_shuffle_xor(best, 8))", "best = simd_shuffle_xor(best, 8)"),
    ("best = max(best, simd_shuffle_xor(best, 1));", ""),
    ("highest - best", "best - highest"),
    ("shown[j] ? exp(scores", "true ? exp(scores"),
    ("      weights += weight;\n      scores", "      weights = weight;\n      scores"),
    ("highest = best;\n    weights *= smaller;", "highest = best;"),
    ("simd_any(smaller != 1.0f)", "false"),
    ("tile_v + 8 * part, 4 * STEP", "tile_v + 8 * part, 4 * FOURS"),
    ("sums[part], scores, some", "sums[part], scores, queries[part]"),
    ("weights += simd_shuffle_xor(weights, 8)", "weights += simd_shuffle_xor(weights, 2)"),
    ("8 * part + 2 * lane + j] = sums", "8 * part + 2 * lane + 1 - j] = sums"),
]


@pytest.mark.quick_every(5)
@pytest.mark.parametrize(
    ("edit", "exact"), [*((edit, True) for edit in FAULTS), *((edit, False) for edit in MATRICES)]
)
def test_planted_faults_are_caught(edit: tuple[str, str], exact: bool) -> None:
    """Barriers, bounds, lanes, splits and masks: each shows in some run.

    Splits of two tiles, a block whose first row alone is in the split of the context's end, and
    scores far apart.
    """
    near, far = block(TREE, 58, start=5), block(TREE, 37, start=5)
    cases = [(*near, SCORES[0]), (*near, SCORES[1]), (*far, Scores(20.0))]
    cases.append((*block(range(-1, 9), 37), SCORES[0]))  # rows without padding
    assert caught(EXACT if exact else OP, edit, cases, 1e-3, split=32)
