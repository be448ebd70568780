"""The kernels of the sampled verify: bit for bit the reference's decisions, for the same bits."""

import mlx.core as mx
import pytest
from tiny import ALL

from dflash_mlx.kernels import verify_accept_sample

from .blocks import full, level, masked, on_borders, sampled
from .edits import BARRIER, REDUCE, dropped, weakened
from .emulator import compare
from .ours import Edit, caught, check, run, through

OP = masked(verify_accept_sample.OP)
every_rule = pytest.mark.parametrize("block", [False, True], ids=["token", "block"])
every_q = pytest.mark.parametrize("k", [0, 5], ids=["dense", "sparse"])


def agree(case: tuple[mx.array, ...], block: bool, **how: str) -> mx.array:
    arguments = full(case, block)
    outcome = run(through(OP), *arguments, **how)
    assert not outcome.findings
    compare(outcome.outputs[0], OP.reference(*arguments), 0, 0, "outcome")
    return outcome.outputs[0]


@pytest.mark.quick_every(2)
@every_rule
@every_q
def test_every_run_equals_the_reference(block: bool, k: int) -> None:
    """Schedules, sanitizers and the race check, two chunks a row; what is read, and how often."""
    rows, vocab = 4, 4500
    case = sampled(1, rows, vocab, k)
    outcome = check(through(OP), OP.reference, *full(case, block))
    sums, draw = (record.traffic["p"].touched_loads for record in outcome.records)
    kept = int(outcome.outputs[0][1])
    summed = range(rows) if block else [kept]
    chances = rows - 1 - len([row for row in summed if row < rows - 1])
    assert sums == 4 * (len(summed) * vocab + chances)
    assert draw <= 4 * (4096 + 2 * rows)


@every_rule
@every_q
def test_many_blocks(block: bool, k: int) -> None:
    """Near and far drafters, flat and sharp targets, one draft and many, small vocabularies."""
    seen = set()
    for seed in range(40 if ALL else 12):
        rows, vocab = 2 + seed % 7, (6, 33, 300)[seed % 3]
        apart, hot = (0.0, 0.3, 2.0)[seed // 3 % 3], (0.5, 6.0)[seed % 2]
        case = sampled(seed, rows, vocab, k, apart, hot)
        outcome = agree(case, block, schedule=f"random:{seed}")
        seen.add(int(outcome[1]))
    assert len(seen) > 2


@every_rule
def test_words_on_every_border(block: bool) -> None:
    """Where a word stands exactly between two decisions both take the same one."""
    kept = [int(agree(case, block)[1]) for case in level()]
    assert kept == ([2, 2, 2, 0, 2, 0, 1, 0] if block else [0, 2, 0, 2, 2, 0, 1, 0])
    tokens = (0, 7, 900, 2500, 4095, 4300)
    for case in on_borders(sampled(8, 3, 4400, hot=1.0), tokens):
        agree(case, block)


@every_rule
@every_q
def test_the_first_and_the_last_token(block: bool, k: int) -> None:
    """The smallest and the largest word draw tokens that have a chance; p equal to q too."""
    for seed, apart in enumerate((0.0, 1.0)):
        *case, random_bits = sampled(seed, 4, 40, k, apart)
        for word in (0, 2**32 - 1):
            case_of = (*case, mx.concatenate([random_bits[:-1], mx.array([word], dtype=mx.uint32)]))
            outcome = agree(case_of, block)
            assert 0 <= int(outcome[2]) < 40


@every_rule
def test_rows_that_are_no_numbers(block: bool) -> None:
    """A NaN in any row is flagged, in rows that nobody looks at too; filtered tokens are not."""
    scores, *rest = sampled(5, 4, 50)
    filtered = mx.where(scores < 0, -mx.inf, scores)
    assert agree((filtered, *rest), block)[0].item() == 0
    for row in range(4):
        broken = mx.array(scores)
        broken[row, 7 * row] = mx.nan
        assert agree((broken, *rest), block)[0].item() == 1


def test_most_rows_and_a_large_vocabulary() -> None:
    """The largest block; 64 chunks, a token in the last one."""
    for block in (False, True):
        agree(sampled(1, 256, 6, 0, 0.1), block)
    scores, drafts, q, random_bits = sampled(2, 2, 262_144, 0, 0.5, 1.0)
    high = mx.array([2**32 - 1] * 2, dtype=mx.uint32)
    for block in (False, True) if ALL else (True,):
        assert int(agree((scores, drafts, q, high), block)[2]) > 262_144 - 4096
        if ALL:
            agree((scores, drafts, q, random_bits), block)


def cases_of(block: bool, k: int) -> list[tuple]:
    """Blocks that show the planted faults below."""
    cases = [sampled(seed, rows, 4200, k, 0.4, 1.0) for seed, rows in ((1, 12), (2, 3))]
    cases += [sampled(seed, 5, 40, k, apart) for seed, apart in ((3, 0.0), (4, 1.0), (5, 0.3))]
    for row in (0, 3):
        scores, *rest = sampled(6, 4, 30, k)
        scores[row, 2] = mx.nan
        cases.append((scores, *rest))
    if k:
        scores, _, q, candidates, random_bits = sampled(8, 9, 20, k, 2.0)
        cases.append((scores, candidates[:, -1], q, candidates, random_bits))
    else:
        cases += [*level(), *on_borders(sampled(8, 2, 4400, hot=1.0), (1800, 2600, 4095))]
    return [full(case, block) for case in cases]


LESS = "residual_sum -= min(share, dflash_to_fixed_point(q[ulong(row) * vocab + token], 1.0f));"
RESTS = "* chunks + thread_id];\n  sums_of"
BOTH: list[Edit] = [
    # verify_accept_sample_sums
    dropped("\n\nconst uint out"),
    dropped(f"{REDUCE}residual_sum"),
    ("min(first + DFLASH_CHUNK, vocab);", "first + DFLASH_CHUNK;"),
    ("token = first + thread_id; token < last", "token = first + thread_id; token <= last"),
    ("residual_sum = simd_sum(residual_sum);\n", ""),
    ("residual_sum += residuals_of[group];", "residual_sum += residuals_of[group - 1];"),
    ("p_sums[out * chunks + chunk] = p_sum;", "p_sums[out * chunks + chunk] = residual_sum;"),
    # accept.h
    ("rint((weight * DFLASH_ONE) * p)", "floor((weight * DFLASH_ONE) * p)"),
    ("bits >> 8", "bits >> 9"),
    # verify_accept_sample_draw
    dropped("\n\nuint accepted"),
    dropped("\nint total"),
    weakened("\nfor (uint group = 0"),
    dropped(f"{REDUCE}bad"),
    ("if (place < before + sum)", "if (place <= before + sum)"),
    ("while (place >= before + parts[i])", "while (place > before + parts[i])"),
    ("if (token < vocab)", "if (token <= vocab)"),
    ("group < group_id; group++", "group <= group_id; group++"),
    ("simd_prefix_exclusive_sum(own)", "simd_prefix_inclusive_sum(own)"),
    ("thread_id <= drafted && dflash_is_nan", "thread_id < drafted && dflash_is_nan"),
    ("ulong(accepted) * vocab + token", "ulong(accepted) * vocab + token + 1"),
]
TOKEN: list[Edit] = [
    ("* at_q[accepted] < at_p[accepted]", "* at_q[accepted] <= at_p[accepted]"),
    ("while (accepted < drafted &&", "while (accepted <= drafted &&"),
    (f"(BLOCK ? accepted : 0) {RESTS}", f"accepted {RESTS}"),
]
BLOCK_FAULTS: list[Edit] = [
    ("* spread < surplus", "* spread <= surplus"),
    ("spread == 0.0f ||", ""),
    ("(random_bits[drafted - 1]) <", "(random_bits[drafted - 1]) <="),
    (
        "while (accepted > 0 && !passed[accepted - 1])",
        "while (accepted > 1 && !passed[accepted - 1])",
    ),
    ("slot < row; slot++", "slot + 1 < row; slot++"),
    ("row += DFLASH_SIMDGROUPS", "row += DFLASH_LANES"),
    ("BLOCK && row < drafted ?", "BLOCK ?"),
    (
        "accepted < drafted ? dflash_block_weight(at_p, at_q, accepted) : 1.0f",
        "dflash_block_weight(at_p, at_q, accepted)",
    ),
    (f"{BARRIER}\n  accepted = drafted;", "accepted = drafted;"),
    (", DFLASH_TINY)", ", 0.5f)"),
]
SPARSE: list[Edit] = [
    ("first <= token && token < last", "first < token && token < last"),
    ("first <= token && token < last", "token < last"),
    ("i < (row + 1) * K; i += DFLASH_THREADS", "i <= (row + 1) * K; i += DFLASH_THREADS"),
    ("i < (slot + 1) * K; i++", "i + 1 < (slot + 1) * K; i++"),
    ("if (row < drafted) {", "if (true) {"),
]
DENSE: list[Edit] = [
    ("if (K == 0 && row < drafted)", "if (K == 0)"),
    (LESS, LESS.replace("min(share, ", "(")),
    ("if (!plain && accepted < drafted)", "if (accepted < drafted)"),
]
FAULTS = (
    [(edit, False, 0) for edit in BOTH]
    + [(edit, False, 0) for edit in TOKEN]
    + [(edit, True, 0) for edit in BLOCK_FAULTS]
    + [(edit, number % 2 == 0, 5) for number, edit in enumerate(SPARSE)]
    + [(edit, number % 2 == 1, 0) for number, edit in enumerate(DENSE)]
)


@pytest.mark.quick_every(5)
@pytest.mark.parametrize(("edit", "block", "k"), FAULTS, ids=[str(i) for i in range(len(FAULTS))])
def test_planted_faults_are_caught(edit: Edit, block: bool, k: int) -> None:
    assert caught(OP, edit, cases_of(block, k), 0)
