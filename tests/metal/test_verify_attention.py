"""The verify attention kernels: parity, rows that do not depend on each other, one read."""

import random
from dataclasses import replace

import mlx.core as mx
import pytest
from tiny import ALL

from dflash_mlx.kernels import verify_attention
from dflash_mlx.kernels.dispatch import Op
from dflash_mlx.kernels.verify_attention import Scores

from .attention_rows import CONTEXT, TREE, block, plain_steps
from .delta_rows import random_tree
from .emulator import compare
from .ours import caught, check, run, same_bits, through

OP = verify_attention.OP  # by matrices
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
    case = block(parents, 90, start=5)
    for op, split in ((OP, 64), (EXACT, 32)):
        check(through(op, split=split), OP.reference, *case, scores, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16] if ALL else [mx.bfloat16])
def test_every_run_of_large_heads(dtype: mx.Dtype) -> None:
    """Four simdgroups to 32 rows, two of such teams, several tiles, a head of 6 queries."""
    case = block(TREE, 66, start=5, heads=(5, 1), dim=256, dtype=dtype)
    tolerance = TOLERANCE[dtype]
    check(through(OP), OP.reference, *case, SCORES[0], rtol=tolerance, atol=tolerance)


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
    want = OP.reference(*case, Scores(0.1))
    for op in (OP, EXACT):
        outcome = run(through(op, split=16), *case, Scores(0.1), build="traffic")
        compare(outcome.outputs[0], want, 2e-5, 2e-5, "64 rows")


@pytest.mark.parametrize("scores", [SCORES[0], SCORES[1]])
def test_a_row_has_the_same_bits_whatever_is_verified_with_it(scores: Scores) -> None:
    """Blocks of 1 to 16 rows, and nodes of a tree on both sides of a border between long splits,
    against a plain step over the path."""
    kernel = through(EXACT, split=16, short=8)
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
def test_traffic_in_order(heads: tuple[int, int], dim: int, reads: int) -> None:
    """Each key and value is loaded once, by one thread, for as many packed rows of queries as a
    threadgroup takes; those of a block on both sides of a border too."""
    case = block(CHAIN, heads=heads, dim=dim)
    first = run(through(EXACT, split=16), *case, SCORES[0], build="traffic").records[0]
    row = dim * 4
    once = (CONTEXT + len(CHAIN)) * row
    assert first.traffic["keys"].loads == first.traffic["values"].loads == reads * once
    assert first.threadgroup_bytes == 2 * 8 * row
    scores = Scores(0.2, window=9)
    windowed = run(through(EXACT, split=16), *case, scores, build="traffic").records[0]
    assert windowed.traffic["keys"].loads == reads * (8 + len(CHAIN)) * row


@pytest.mark.parametrize(
    ("heads", "dim", "reads", "memory"),
    [
        ((4, 1), 64, 1, 32 * 40 + 2 * 32),
        ((19, 1), 64, 2, 128 * 40 + 2 * 128),
        ((18, 1), 128, 1, 128 * 40 + 2 * 128),
        ((4, 1), 256, 1, 32 * 72 + 4 * 32),
        ((13, 1), 256, 1, 96 * 72 + 4 * 96),
        ((14, 1), 256, 2, 96 * 72 + 4 * 96),
    ],
)
def test_traffic(heads: tuple[int, int], dim: int, reads: int, memory: int) -> None:
    """A threadgroup reads keys and values once for all its rows of queries; two do so beside a
    border in the block. Threadgroup memory has the weights of a tile, in padded rows, and maxima.
    """
    case = block(CHAIN, heads=heads, dim=dim)
    kernel = through(OP, split=16)
    row = dim * 4
    for scores, old in ((SCORES[0], CONTEXT), (Scores(0.2, window=9), 8)):
        first = run(kernel, *case, scores, build="traffic").records[0]
        entries = old + 2 * len(CHAIN)  # the block is at positions 27 to 33, a split ends at 32
        for name in ("keys", "values"):
            assert first.traffic[name].group_loads == reads * entries * row
        assert first.threadgroup_bytes == 4 * memory


def test_smaller_threadgroups_compute_the_same() -> None:
    """Two of them for 91 packed rows of a large head, which read keys and values twice."""
    case = block(CHAIN, heads=(13, 1), dim=256)
    smaller = replace(OP, launch=OP.launching(exact=False, smaller=True))
    outcome = run(through(smaller, split=64), *case, SCORES[0], build="traffic")
    assert not outcome.findings
    compare(outcome.outputs[0], OP.reference(*case, SCORES[0]), 2e-5, 2e-5, "smaller")
    first = outcome.records[0]
    assert first.threadgroup_bytes == 4 * (64 * 72 + 4 * 64)
    assert first.traffic["keys"].group_loads == 2 * (CONTEXT + len(CHAIN)) * 256 * 4


def test_work_in_order() -> None:
    """The counts of the model in `metal_kernels/README.md` for exact mode: bytes of threadgroup
    memory that a row of queries reads for a key, barriers for 8 keys."""
    context, dim, heads = 57, 64, (8, 1)
    case = block(CHAIN, context, heads=heads, dim=dim)
    packed, keys = heads[0] * len(CHAIN), context + len(CHAIN)
    work = run(through(EXACT, split=64), *case, SCORES[0], build="traffic").records[0].work
    assert work.shared_stores == 2 * keys * dim * 4
    assert work.barriers == 2 * keys // 8
    assert work.products == 0
    visible = heads[0] * sum(context + depth + 1 for depth in range(len(CHAIN)))
    assert work.shared_loads == 4 * dim * (packed * keys + visible)


@pytest.mark.parametrize(("dim", "slices"), [(64, 2), (256, 4)])
def test_work(dim: int, slices: int) -> None:
    """The counts of the same model by matrices: products, barriers, threadgroup memory, and loads
    of queries, keys and values by two teams of simdgroups."""
    context, heads = 57, (8, 1)
    case = block(CHAIN, context, heads=heads, dim=dim)
    packed, keys, teams = heads[0] * len(CHAIN), context + len(CHAIN), 2
    record = run(through(OP, split=64), *case, SCORES[0], build="traffic").records[0]
    work, traffic = record.work, record.traffic
    tiles = keys // (16 * slices)
    assert work.products == packed // 8 * keys // 8 * 2 * dim // 8
    assert work.barriers == 2 * tiles
    maxima = packed * slices * tiles * 4
    assert work.shared_stores == packed * keys * 4 + maxima
    assert work.shared_loads == slices * packed * keys * 4 + 4 * slices * maxima
    row = dim * 4
    assert traffic["keys"].loads == traffic["values"].loads == teams * keys * row
    assert traffic["q"].loads == slices * tiles * packed * row


FIRST = "threadgroup_barrier(mem_flags::mem_threadgroup);\n  for (int at"
SECOND = "threadgroup_barrier(mem_flags::mem_threadgroup);\n\n"
HEADER = [
    ("i < total ? root + depths", "i <= total ? root + depths"),
    ("edges[number + 1]", "edges[number + 1] - 1"),
    ("split.high > split.root ? sizes", "split.high > split.root + 1 ? sizes"),
    ("here - there < window", "here - there <= window"),
    ("(seen >> (i - old)) & 1", "(seen >> (i - old + 1)) & 1"),
    ("(seen >> (i - old)) & 1", "1"),
    ("bool near = there >= low && there < high &&", "bool near ="),
    ("low - start + i", "low + i"),
    ("context + i - old", "context + i - old + 1"),
    ("highest = max(highest, norms[2 * place])", "highest = norms[2 * place]"),
    ("weights = fma(weight, norms[2 * place + 1], weights)", "weights = weights + weight"),
    ("float weights = exp(sink - highest)", "float weights = 1.0f"),
]
IN_ORDER = [
    (FIRST, FIRST[FIRST.index("for") :]),
    (SECOND, ""),
    (SECOND, SECOND.replace("mem_threadgroup", "mem_device")),
    (SECOND, SECOND.replace("mem_threadgroup", "mem_none").replace("threadgroup_b", "simdgroup_b")),
    ("at < TILE * FOURS", "at <= TILE * FOURS"),
    ("at += threads", "at += threads + 1"),
    ("int me = ", "int me = 1 + "),
    ("int row = min(mine, R - 1)", "int row = mine"),
    ("if (mine < R)", "if (mine <= R)"),
    ("tile_k[n * FOURS", "tile_k[FOURS"),
    ("LANES * c + lane];", "LANES * c + lane + 1];"),
    ("if (score > highest)", "if (score < highest)"),
    ("        weights *= smaller", ""),
    ("int t = row % T", "int t = row / T"),
]
MAXIMA = "threadgroup_barrier(mem_flags::mem_threadgroup);\n\n  DFLASH_UNROLL for (int b"
TILE = "threadgroup_barrier(mem_flags::mem_threadgroup);\n\n  int used"
MATRICES = [
    (MAXIMA, MAXIMA[MAXIMA.index("DFLASH") :]),
    (MAXIMA, MAXIMA.replace("mem_threadgroup", "mem_device")),
    (TILE, TILE[TILE.index("int used") :]),
    (TILE, TILE.replace("mem_threadgroup", "mem_none").replace("threadgroup_b", "simdgroup_b")),
    ("((simd_lane / 4) & 4)", "((simd_lane / 4) & 2)"),
    ("((simd_lane / 4) & 2)", "((simd_lane / 4) & 1)"),
    ("simdgroup % SLICES", "simdgroup % 1"),
    ("simdgroup / SLICES", "simdgroup / SLICES / 2"),
    ("int last = split.total - 1", "int last = split.total"),
    ("int all = (R + 7) / 8", "int all = R / 8"),
    ("(all - 1) / int(threadgroups_per_grid.x * teams) + 1", "all / int(teams)"),
    ("* teams + team) * each", "* teams + team) * BLOCKS"),
    ("int base = 8 * BLOCKS * team", "int base = 8 * each * (team / 2)"),
    ("2 * lane + j, last)) * D", "2 * lane + j, last)) * D + 1"),
    ("last)) * D + CHUNK * r", "last)) * D + r"),
    ("+ column + i]", "+ i]"),
    ("int row = min(8 * (first + b) + r, R - 1)", "int row = min(8 * b + r, R - 1)"),
    ("query[CHUNK * j + i])", "query[2 * i + j])"),
    ("float(key[n][j][i])", "float(key[0][j][i])"),
    ("begin + KEYS <= split.old", "begin <= split.old"),
    ("- begin < split.window", "- begin <= split.window"),
    ("bool shown = open ||", "bool shown = open &&"),
    ("split.position(i, depths), here);\n          score", "here, here);\n          score"),
    ("R - 1) % T", "R - 1) / T"),
    ("float score = scale *", "float score ="),
    ("int i = mine + 8 * n + 2 * lane + j", "int i = mine + 8 * n + 2 * lane + 1 - j"),
    ("shown ? score : -FLT_MAX", "score"),
    ("best = max(best, score)", "best = score"),
    ("best = max(best, simd_shuffle_xor(best, 8))", "best = simd_shuffle_xor(best, 8)"),
    ("best = max(best, simd_shuffle_xor(best, 1));", ""),
    ("if (lane == 0) {", "if (lane == 0 && slice == 0) {"),
    ("if (lane == 0) {", "if (true) {"),
    ("slice * Rows + base", "base"),
    ("best = max(best, maxima", "best = min(best, maxima"),
    ("exp(highest[b] - best)", "exp(best - highest[b])"),
    ("highest[b] = best;\n", ""),
    ("weights[b] *= smaller;", ""),
    ("sums[b][part].thread_elements()[j] *= smaller;", ""),
    ("STEP + mine - begin", "STEP"),
    ("min(begin + eight + r, last)", "min(begin + r, last)"),
    ("i] = head_values[entry * D", "i] = head_values[entry * D + D"),
    ("(4 * slice + lane) + i", "lane + i"),
    ("* STEP + eight, STEP", "* STEP + eight, KEYS"),
    ("* STEP + eight, STEP", "* STEP, STEP"),
    ("some.thread_elements()[0] + some", "some"),
    ("value[PARTS * j + part])", "value[2 * part + j])"),
    ("weights[b] += simd_shuffle_xor(weights[b], 8)", "weights[b] += 0"),
    ("if (b < blocks) {\n    weights[b] +=", "if (b <= blocks) {\n    weights[b] +="),
    ("if (row < R)", "if (row <= R)"),
    ("PARTS * j + part;", "2 * part + j;"),
    ("if (slice == 0 && lane == 0)", "if (lane == 0)"),
]
FAULTS = [
    *((edit, op) for edit in HEADER for op in (OP, EXACT)),
    *((edit, EXACT) for edit in IN_ORDER),
    *((edit, OP) for edit in MATRICES),
]


@pytest.mark.quick_every(5)
@pytest.mark.parametrize(("edit", "op"), FAULTS)
def test_planted_faults_are_caught(edit: tuple[str, str], op: Op) -> None:
    """Barriers, bounds, lanes, splits and masks: each shows in some run."""
    split = 64 if op is OP else 32
    near, far = block(TREE, 58, start=5), block(TREE, split + 5, start=5)
    cases = [(*near, SCORES[0]), (*near, SCORES[1]), (*far, Scores(20.0))]
    cases.append((*block(range(-1, 9), 37), SCORES[0]))  # rows without padding
    cases.append((*block(TREE, 70, heads=(5, 1), dim=32), Scores(3.0)))
    cases.append((*block(range(-1, 9), 150), Scores(0.2, window=95)))
    assert caught(op, edit, cases, 1e-3, split=split)
