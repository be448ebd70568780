"""The kernels of the sampled verify: bit for bit the reference's decisions, for the same words."""

import mlx.core as mx
import pytest
from tiny import ALL

from dflash_mlx.kernels import verify_accept_sample

from .blocks import level, masked, on_borders, sampled
from .edits import BARRIER, REDUCE, dropped, weakened
from .emulator import compare
from .ours import Edit, caught, check, run, through

OP = masked(verify_accept_sample.OP)
every_rule = pytest.mark.parametrize("joint", [False, True], ids=["token", "block"])
every_q = pytest.mark.parametrize("k", [0, 5], ids=["dense", "sparse"])


def full(case: tuple[mx.array, ...], joint: bool) -> tuple:
    """A case as the operation's arguments."""
    *first, words = case
    candidates = first.pop() if len(first) == 4 else None
    return (*first, candidates, words, joint)


def agree(case: tuple[mx.array, ...], joint: bool, **how: str) -> mx.array:
    """One run, held against the reference; its outcome."""
    arguments = full(case, joint)
    outcome = run(through(OP), *arguments, **how)
    assert not outcome.findings
    compare(outcome.outputs[0], OP.reference(*arguments), 0, 0, "outcome")
    return outcome.outputs[0]


@every_rule
@every_q
def test_every_run_equals_the_reference(joint: bool, k: int) -> None:
    """Schedules, sanitizers and the race check, two chunks a row; what is read, and how often.

    The rows of p are summed once, the row of the bonus token alone if token by token; then one
    chunk of it is looked at again.
    """
    rows, vocab = 4, 4500
    case = sampled(1, rows, vocab, k)
    outcome = check(through(OP), OP.reference, *full(case, joint))
    sums, draw = (record.traffic["p"].touched_loads for record in outcome.records)
    kept = int(outcome.outputs[0][1])
    summed = range(rows) if joint else [kept]
    chances = rows - 1 - len([row for row in summed if row < rows - 1])
    assert sums == 4 * (len(summed) * vocab + chances)
    assert draw <= 4 * (4096 + 2 * rows)


@every_rule
@every_q
def test_many_blocks(joint: bool, k: int) -> None:
    """Near and far drafters, flat and sharp targets, one draft and many, small vocabularies."""
    seen = set()
    for seed in range(40 if ALL else 12):
        rows, vocab = 2 + seed % 7, (6, 33, 300)[seed % 3]
        apart, hot = (0.0, 0.3, 2.0)[seed // 3 % 3], (0.5, 6.0)[seed % 2]
        case = sampled(seed, rows, vocab, k, apart, hot)
        outcome = agree(case, joint, schedule=f"random:{seed}")
        seen.add(int(outcome[1]))
    assert len(seen) > 2


@every_rule
def test_words_on_every_border(joint: bool) -> None:
    """Where a word stands exactly between two decisions both take the same one."""
    kept = [int(agree(case, joint)[1]) for case in level()]
    assert kept == ([2, 2, 2, 0, 2, 0, 1, 0] if joint else [0, 2, 0, 2, 2, 0, 1, 0])
    tokens = (0, 7, 900, 2500, 4095, 4300)
    for case in on_borders(sampled(8, 3, 4400, hot=1.0), tokens):
        agree(case, joint)


@every_rule
@every_q
def test_the_first_and_the_last_token(joint: bool, k: int) -> None:
    """The smallest and the largest word draw tokens that have a chance; p equal to q too."""
    for seed, apart in enumerate((0.0, 1.0)):
        *case, words = sampled(seed, 4, 40, k, apart)
        for word in (0, 2**32 - 1):
            case_of = (*case, mx.concatenate([words[:-1], mx.array([word], dtype=mx.uint32)]))
            outcome = agree(case_of, joint)
            assert 0 <= int(outcome[2]) < 40


@every_rule
def test_rows_that_are_no_numbers(joint: bool) -> None:
    """A NaN in any row is flagged, in rows that nobody looks at too; filtered tokens are not."""
    scores, *rest = sampled(5, 4, 50)
    filtered = mx.where(scores < 0, -mx.inf, scores)
    assert agree((filtered, *rest), joint)[0].item() == 0
    for row in range(4):
        broken = mx.array(scores)
        broken[row, 7 * row] = mx.nan
        assert agree((broken, *rest), joint)[0].item() == 1


def test_most_rows_and_a_large_vocabulary() -> None:
    """The largest block; 64 chunks, a token in the last one."""
    for joint in (False, True):
        agree(sampled(1, 256, 6, 0, 0.1), joint)
    scores, drafts, q, words = sampled(2, 2, 262_144, 0, 0.5, 1.0)
    high = mx.array([2**32 - 1] * 2, dtype=mx.uint32)
    for joint in (False, True) if ALL else (True,):
        assert int(agree((scores, drafts, q, high), joint)[2]) > 262_144 - 4096
        if ALL:
            agree((scores, drafts, q, words), joint)


def cases_of(joint: bool, k: int) -> list[tuple]:
    """Blocks that show the planted faults below."""
    cases = [sampled(seed, rows, 4200, k, 0.4, 1.0) for seed, rows in ((1, 12), (2, 3))]
    cases += [sampled(seed, 5, 40, k, apart) for seed, apart in ((3, 0.0), (4, 1.0), (5, 0.3))]
    for row in (0, 3):
        scores, *rest = sampled(6, 4, 30, k)
        scores[row, 2] = mx.nan
        cases.append((scores, *rest))
    if k:
        scores, _, q, candidates, words = sampled(8, 9, 20, k, 2.0)
        cases.append((scores, candidates[:, -1], q, candidates, words))
    else:
        cases += [*level(), *on_borders(sampled(8, 2, 4400, hot=1.0), (1800, 2600, 4095))]
    return [full(case, joint) for case in cases]


LESS = "rest -= min(share, whole(q[ulong(row) * vocab + token], 1.0f));"
RESTS = "* chunks + thread_id];\n  wholes_of"
BOTH: list[Edit] = [
    # verify_accept_sample_sums
    dropped("\n\nconst uint out"),
    dropped(f"{REDUCE}rest"),
    ("const uint last = min(first + CHUNK, vocab);", "const uint last = first + CHUNK;"),
    ("token = first + thread_id; token < last", "token = first + thread_id; token <= last"),
    ("rest = simd_sum(rest);\n", ""),
    ("rest += rests_of[group];", "rest += rests_of[group - 1];"),
    ("wholes[out * chunks + chunk] = all;", "wholes[out * chunks + chunk] = rest;"),
    # accept.h
    ("rint((weight * ONE) * p)", "floor((weight * ONE) * p)"),
    ("word >> 8", "word >> 9"),
    # verify_accept_sample_draw
    dropped("\n\nuint kept"),
    dropped("\nint total"),
    weakened("\nfor (uint group = 0"),
    dropped(f"{REDUCE}bad"),
    ("if (place < before + sum)", "if (place <= before + sum)"),
    ("while (place >= before + parts[i])", "while (place > before + parts[i])"),
    ("if (token < vocab)", "if (token <= vocab)"),
    ("group < group_id; group++", "group <= group_id; group++"),
    ("simd_prefix_exclusive_sum(own)", "simd_prefix_inclusive_sum(own)"),
    ("thread_id <= drafted && is_nan", "thread_id < drafted && is_nan"),
    ("ulong(kept) * vocab + token", "ulong(kept) * vocab + token + 1"),
]
TOKEN: list[Edit] = [
    ("* at_q[kept] < at_p[kept]", "* at_q[kept] <= at_p[kept]"),
    ("while (kept < drafted && uniform_of", "while (kept <= drafted && uniform_of"),
    (f"(JOINT ? kept : 0) {RESTS}", f"kept {RESTS}"),
]
JOINT: list[Edit] = [
    ("* spread < surplus", "* spread <= surplus"),
    ("spread == 0.0f ||", ""),
    ("uniform_of(words[drafted - 1]) <", "uniform_of(words[drafted - 1]) <="),
    ("while (kept > 0 && !passed[kept - 1])", "while (kept > 1 && !passed[kept - 1])"),
    ("slot < row; slot++", "slot + 1 < row; slot++"),
    ("row += SIMDGROUPS", "row += LANES"),
    ("JOINT && row < drafted ?", "JOINT ?"),
    ("kept < drafted ? joint_weight(at_p, at_q, kept) : 1.0f", "joint_weight(at_p, at_q, kept)"),
    (f"{BARRIER}\n  kept = drafted;", "kept = drafted;"),
    (", TINY)", ", 0.5f)"),
]
SPARSE: list[Edit] = [
    ("first <= token && token < last", "first < token && token < last"),
    ("first <= token && token < last", "token < last"),
    ("i < (row + 1) * K; i += THREADS", "i <= (row + 1) * K; i += THREADS"),
    ("i < (slot + 1) * K; i++", "i + 1 < (slot + 1) * K; i++"),
    ("if (K > 0 && row < drafted)", "if (K > 0)"),
]
DENSE: list[Edit] = [
    ("if (K == 0 && row < drafted)", "if (K == 0)"),
    (LESS, LESS.replace("min(share, ", "(")),
    ("if (!plain && kept < drafted)", "if (kept < drafted)"),
]
FAULTS = (
    [(edit, False, 0) for edit in BOTH]
    + [(edit, False, 0) for edit in TOKEN]
    + [(edit, True, 0) for edit in JOINT]
    + [(edit, number % 2 == 0, 5) for number, edit in enumerate(SPARSE)]
    + [(edit, number % 2 == 1, 0) for number, edit in enumerate(DENSE)]
)


@pytest.mark.parametrize(("edit", "joint", "k"), FAULTS, ids=[str(i) for i in range(len(FAULTS))])
def test_planted_faults_are_caught(edit: Edit, joint: bool, k: int) -> None:
    """Each breaks a decision, a draw, an access or an order."""
    assert caught(OP, edit, cases_of(joint, k), 0)
