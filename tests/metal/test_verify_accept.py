"""The kernels of the greedy verify: the reference's outcome, one read of the logits, no fault."""

import mlx.core as mx
import numpy as np
import pytest
from tiny import ALL

from dflash_mlx.kernels import verify_accept

from .blocks import masked, near_drafts
from .edits import NONE, REDUCE, dropped, weakened
from .emulator import compare
from .ours import Edit, caught, check, run, through

OP = masked(verify_accept.OP)


def block(
    rows: int, vocab: int, dtype: mx.Dtype = mx.float32, wrong: int | None = None, seed: int = 0
) -> tuple[mx.array, mx.array]:
    """Random logits, and drafts that are the target's choices up to slot `wrong`.

    Logits are rounded so that many are level.
    """
    logits = mx.random.normal((rows, vocab), key=mx.random.key(seed))
    logits = (mx.round(logits * 4) / 4).astype(dtype)
    return logits, near_drafts(logits, wrong)


def with_one(value: float, row: int, token: int) -> tuple[mx.array, mx.array]:
    """A block of two chunks with one logit that is something else."""
    logits, drafts = block(3, 4100)
    logits[row, token] = value
    return logits, drafts


CASES = [
    block(11, 4103, wrong=9),
    block(10, 37),
    with_one(mx.nan, 2, 4099),
    with_one(mx.inf, 0, 70),
    with_one(mx.nan, 1, 21),
]


def test_every_run_equals_the_reference() -> None:
    """Schedules, sanitizers and the race check; two chunks a row, more rows than simdgroups."""
    logits, drafts = CASES[0]
    outcome = check(through(OP), OP.reference, logits, drafts)
    read, _ = outcome.records
    assert read.traffic["logits"].loads == logits.nbytes
    assert read.traffic["logits"].touched_loads == logits.nbytes
    moved = sum(
        traffic.group_loads + traffic.group_stores
        for record in outcome.records
        for name, traffic in record.traffic.items()
        if not name.endswith("_shape")
    )
    assert moved < 1.01 * logits.nbytes


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_shapes_and_dtypes(dtype: mx.Dtype) -> None:
    """One draft, arrays in constant memory, ragged chunks, a wrong draft at every slot."""
    shapes = [(2, 1, None), (2, 3, 0), (3, 33, None), (5, 8192, 3)]
    shapes += [(9, 100, wrong) for wrong in range(8)] if dtype == mx.bfloat16 else []
    for number, (rows, vocab, wrong) in enumerate(shapes):
        case = block(rows, vocab, dtype, wrong, number)
        outcome = run(through(OP), *case, schedule=f"random:{number}")
        assert not outcome.findings
        compare(outcome.outputs[0], OP.reference(*case), 0, 0, f"{rows} {vocab} {wrong}")


@pytest.mark.parametrize("value", [mx.nan, -mx.nan, mx.inf, -mx.inf])
def test_values_that_are_no_numbers(value: float) -> None:
    """NaN is flagged wherever it stands, in a row after the prefix too; infinities are not."""
    places = [(0, 0), (2, 4099), (1, 4095)]
    for row, token in places if np.isnan(value) else places[:1]:
        case = with_one(value, row, token)
        got = run(through(OP), *case).outputs[0]
        assert got[0].item() == int(np.isnan(value))
        compare(got, OP.reference(*case), 0, 0, f"{row} {token}")
    level = mx.full((3, 40), value), mx.zeros((2,), dtype=mx.int32)
    compare(run(through(OP), *level).outputs[0], OP.reference(*level), 0, 0, "all")


def test_most_rows_and_a_large_vocabulary() -> None:
    """The largest block; every chunk of a vocabulary of 262,144 in a row."""
    case = block(256, 5, wrong=200)
    compare(run(through(OP), *case).outputs[0], OP.reference(*case), 0, 0, "256 rows")
    logits = mx.zeros((2, 262_144), dtype=mx.bfloat16)
    for token in (262_143, 140_000, 5) if ALL else (262_143,):
        logits[:, token] = 1 + token % 7
        case = logits, mx.array([token])
        compare(run(through(OP), *case).outputs[0], OP.reference(*case), 0, 0, f"{token}")


def test_what_does_not_fit_goes_to_the_reference() -> None:
    """No drafts, too many rows, too many chunks."""
    fits = verify_accept.OP.fits
    nothing = mx.zeros((0,), dtype=mx.int32)
    assert fits(mx.zeros((2, 9)), mx.zeros((1,)))
    assert not fits(mx.zeros((1, 9)), nothing)
    assert not fits(mx.zeros((257, 9)), mx.zeros((256,)))
    assert not fits(mx.zeros((2, 256 * 4096 + 1)), mx.zeros((1,)))
    assert not fits(mx.zeros((2, 9), dtype=mx.int32), mx.zeros((1,)))


LANE_0 = "if (thread_index_in_simdgroup == 0) {\n  values_of"
GROUPS = "group < DFLASH_SIMDGROUPS; group++) {\n    const dflash_best"
LOGIT = "logits[ulong(row) * vocab + token]"
EDITS: list[Edit] = [
    # verify_accept_argmax
    dropped("\nif (thread_id == 0) {\n  best"),
    weakened("\nif (thread_id == 0) {\n  best"),
    ("min(first + DFLASH_CHUNK, vocab);", "first + DFLASH_CHUNK;"),
    ("token < min(four + 4, last)", "token <= min(four + 4, last)"),
    ("token < min(four + 4, last)", "token < four + 4"),
    ("four += 4 * DFLASH_THREADS", "four += 8 * DFLASH_THREADS"),
    ("const uint first = chunk * DFLASH_CHUNK;", "const uint first = chunk * DFLASH_CHUNK + 1;"),
    (LOGIT, "logits[ulong(row) * vocab + token + 1]"),
    (f"float({LOGIT}), token}}", f"float({LOGIT}), four}}"),
    (f"broken = simd_any(broken);\n{LANE_0}", LANE_0),
    (LANE_0, LANE_0.replace("== 0", "== 32")),
    (GROUPS, GROUPS.replace("DFLASH_SIMDGROUPS;", "DFLASH_SIMDGROUPS - 1;")),
    # accept.h and common.h
    ("a.place < b.place", "a.place > b.place"),
    ("a.value > b.value", "a.value >= b.value"),
    ("ushort step = 1", "ushort step = 2"),
    ("0x7fffffffu) > 0x7f800000u", "0x7fffffffu) >= 0x7f800000u"),
    # verify_accept_prefix
    dropped("\n\n// Thread j"),
    weakened("\n\n// Thread j", NONE),
    dropped(f"{REDUCE}end"),
    ("row += DFLASH_SIMDGROUPS", "row += DFLASH_LANES"),
    ("if (thread_id < rows - 1)", "if (thread_id < rows)"),
    ("? end : thread_id;", "? end : thread_id + 1;"),
    ("end = simd_min(end);\n", ""),
    ("broken = thread_id < rows &&", "broken = thread_id < rows - 1 &&"),
    ("outcome[2] = chosen[end];", "outcome[2] = chosen[end - 1];"),
    ("end = min(end, ends[group]);", "end = ends[group];"),
]


@pytest.mark.quick_every(4)
@pytest.mark.parametrize("edit", EDITS, ids=[str(number) for number in range(len(EDITS))])
def test_planted_faults_are_caught(edit: Edit) -> None:
    assert caught(OP, edit, CASES, 0)
