"""Cases on both sides of every border inside the kernels, and beyond the last one.

A border is a size at which a body goes another way: more tokens than a chunk, more rows, chunks or
candidates than a simdgroup or a threadgroup has threads, more positions than short splits, a second
threadgroup. What decides a case stands at a border, so that a part left out or taken twice shows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import Any

import mlx.core as mx

from dflash_mlx.kernels import (
    gated_delta_inputs,
    gated_delta_replay,
    gated_delta_tape,
    gated_delta_tree,
    grouped_experts,
    selector_walk,
    small_m_qmm,
    verify_accept,
    verify_accept_sample,
    verify_attention,
)
from dflash_mlx.kernels.dispatch import Op
from dflash_mlx.kernels.outcome import CHUNK, MAX_ROWS, THREADS
from dflash_mlx.kernels.verify_attention import Scores

from .attention_rows import TREE
from .attention_rows import block as attention_block
from .blocks import bits_of, full, level, masked, on_borders, sampled
from .delta_rows import projected, random_tree, rows, windows
from .packed import KINDS, experts_of, rows_of, weights_of

LANES = 32
SIMDGROUPS = THREADS // LANES
ROWS = (SIMDGROUPS, LANES, 2 * LANES, MAX_ROWS - LANES)  # borders of a block's rows
FAR = LANES * CHUNK  # tokens of a vocabulary with as many chunks as a simdgroup has lanes
SPLIT = 16  # positions of a split in the cases of attention
SHORT_SPLITS = 8  # which are that short


@dataclass(frozen=True)
class Bordered:
    op: Op
    cases: tuple[Sequence[Any], ...]
    wanted: tuple[Any, ...]
    tolerance: float
    options: dict[str, Any]


def places(size: int, *borders: int) -> list[int]:
    """The first two and the last of `size` places, and the two beside each border."""
    beside = {place for border in borders for place in (border - 1, border)}
    return sorted(place for place in {0, 1, size - 1, *beside} if 0 <= place < size)


def greedy() -> list[tuple[mx.array, mx.array]]:
    """Rows and chunks beyond a simdgroup: a wrong draft, a NaN and the winner at every border.

    Those of different shapes take turns: a fault is seen early.
    """
    groups = []
    for count, vocab in ((MAX_ROWS, 9), (9, 2 * CHUNK + 5), (2, FAR + CHUNK + 5)):
        tokens = places(vocab, 4, 4 * LANES, 8 * LANES, 4 * THREADS, CHUNK, FAR)
        winners = [tokens[row % len(tokens)] for row in range(count)]
        cases: list[tuple[mx.array, mx.array]] = []
        for shift in range(0, len(tokens), count):
            at = mx.array([tokens[(row + shift) % len(tokens)] for row in range(count)])
            logits = (mx.arange(vocab) == at[:, None]).astype(mx.float32)
            cases.append((logits, at[:-1]))
        tied = mx.zeros((count, vocab))
        tied[:, mx.array(tokens)] = 1.0
        cases.append((tied, mx.zeros((count - 1,), mx.int32)))
        stops = places(count, *ROWS)
        for number in range(max(len(stops), len(tokens))):
            row, token = stops[number % len(stops)], tokens[number % len(tokens)]
            drafts = mx.array(winners[:-1])
            drafts[min(row, count - 2)] += 1
            logits = (mx.arange(vocab) == mx.array(winners)[:, None]).astype(mx.float32)
            broken = mx.array(logits)
            broken[row, token] = mx.nan
            cases += [(broken, mx.array(winners[:-1])), (logits, drafts)]
        groups.append(cases)
    return [case for turn in zip_longest(*groups) for case in turn if case is not None]


def shares(
    count: int, vocab: int, row: int, token: int, other: int, over: float = 0.0
) -> tuple[mx.array, mx.array]:
    """Scores [count, V] and q [count - 1, V] of rows that are alike but for one.

    Half lies on token 0 for both; in `row` a quarter of the target's lies on `token` and a quarter
    of the drafter's on `other`. In the first row the drafter is `over` too sure of token 0.
    """
    p, q = (mx.full((count, vocab), 0.25 / vocab) for _ in range(2))
    p[:, 0], q[:, 0] = 0.5, 0.5
    q[0, 0] += over
    p[row, token] += 0.25
    q[row, other] += 0.25
    return mx.log(p / p.sum(axis=-1, keepdims=True)), (q / q.sum(axis=-1, keepdims=True))[:-1]


def with_candidates(case: tuple[Any, ...], count: int, at: Sequence[int]) -> tuple[Any, ...]:
    """A case whose drafter has `count` candidates a slot, those of `at` among them, in order."""
    scores, drafts, q, _, bits, block = case
    rest = [token for token in range(scores.shape[1]) if token not in at]
    kept = mx.array([*sorted([*at, *rest[: count - len(at)]])])
    candidates = mx.broadcast_to(kept, (drafts.size, count))
    chances = mx.take(q, kept, axis=-1)
    return scores, drafts, chances / chances.sum(-1, keepdims=True), candidates, bits, block


def drawn(block: bool) -> list[tuple[Any, ...]]:
    """What is left for the bonus token stands at a border, in a row at a border.

    By blocks the rows before it have nothing left, so that its token alone decides.
    """
    cases: list[tuple[Any, ...]] = []
    for count, vocab in ((MAX_ROWS, 9), (12, CHUNK + 700), (3, FAR + CHUNK + 5)):
        tokens = places(vocab, 16, 512, CHUNK, FAR)
        stops = places(count - 1, SIMDGROUPS + 1, *ROWS)
        for number in range(max(len(tokens), len(stops))):
            row, token = stops[number % len(stops)], tokens[number % len(tokens)]
            other = 1 if token != 1 else 2
            scores, q = shares(count, vocab, row, token, other, 0.1 * (row > 0))
            # The drafts are what both favour up to `row`, then what the drafter alone does.
            drafts = mx.where(mx.arange(count - 1) < row, 0, other)
            words = [0.5 * block] * row + [0.5] * (count - 1 - row)
            bits = bits_of(*words, (0.0, 0.5, 1 - 2**-24)[number % 3])
            cases.append((scores, drafts, q, None, bits, block))
    return cases


def sparse(block: bool) -> list[tuple[Any, ...]]:
    """Candidates beyond a threadgroup's threads, and on both sides of a chunk's border."""
    cases, vocab = [], 2 * CHUNK + 9
    for token in (CHUNK - 1, CHUNK, 2 * CHUNK - 1):
        for word in (0.0, 0.3, 0.6, 1 - 2**-24):
            scores, q = shares(3, vocab, 0, token, token)
            bits = bits_of(1 - 2**-24, 1 - 2**-24, word)
            case = scores, mx.array([1, 1]), q, None, bits, block
            cases.append(with_candidates(case, THREADS + 20, [1, token]))
    return cases


def sample() -> list[tuple[Any, ...]]:
    """Both rules; distributions over all tokens and over candidates; a NaN at rows' borders."""
    cases: list[tuple[Any, ...]] = []
    for block in (True, False):
        cases += [full(case, block) for case in level()]
        cases += [
            full(alike(size, word), block)
            for size in (2 * CHUNK, 8 * CHUNK)
            for word in (0.3, 1 - 2**-24)
        ]
        cases += [full(sampled(seed, 12, 300, 0, 0.4, 1.0), block) for seed in range(3)]
        cases += [full(sampled(seed, 9, 4200, 20, 0.4, 1.0), block) for seed in range(3)]
        ends = on_borders(sampled(8, 2, 4400, hot=1.0), (0, 15, 16, 511, 512, CHUNK - 1, CHUNK))
        cases += [full(case, block) for case in ends]
        for row in places(MAX_ROWS, *ROWS):
            scores, *rest = sampled(5, MAX_ROWS, 9)
            scores[row, 8] = mx.nan
            cases.append(full((scores, *rest), block))
        cases += sparse(block) + drawn(block)
    return sorted(cases, key=lambda case: (case[0].size > 1 << 16, not case[5]))


def alike(vocab: int, word: float) -> tuple[mx.array, ...]:
    """A draft that may go although nothing is left for the bonus token, drawn from all tokens."""
    q = mx.full((1, vocab), 1 / vocab)
    q[0, 9] *= 1 + 2**-22
    return mx.zeros((2, vocab)), mx.array([9]), q, bits_of(1 - 2**-32, word)


def walks() -> list[tuple[Any, ...]]:
    """More candidates than simdgroups and lanes, more ranks than lanes: the winner at each."""
    cases, slots, count, rank, vocab = [], 5, 70, 70, 90
    before = mx.ones((vocab, rank))
    at_rank = places(rank, LANES, 2 * LANES)
    for number, best in enumerate(places(count, SIMDGROUPS, LANES, 2 * LANES)):
        candidates = mx.broadcast_to(mx.arange(count, dtype=mx.uint32), (slots, count))
        ranks = mx.arange(rank)
        hidden = (ranks == at_rank[number % len(at_rank)]).astype(mx.float32)
        after = mx.zeros((vocab, rank))
        after[best] = 1.0
        unary = mx.zeros((slots, count))
        unary[1, :] = mx.where(mx.arange(count) == count - 1 - best, 2.0, 0.0)
        wide = mx.broadcast_to(hidden, (slots, rank))
        cases.append((unary, candidates, 7, wide, before, after))
    tied = mx.zeros((slots, count)), cases[0][1], 7, cases[0][3], before, mx.zeros((vocab, rank))
    return [*cases, tied]


def chains() -> list[Sequence[Any]]:
    """More rows of the state than a threadgroup holds, one part a lane and eight."""
    return [rows(5, 2, 4, 32, 33, mx.float32, True), rows(3, 1, 2, 256, 9, mx.float32, False)]


def projections() -> list[Sequence[Any]]:
    """More heads than a threadgroup has simdgroups, one part a lane and several; rows of a chain
    and of a tree; windows of one row and of three."""
    forest = windows(random_tree(9, 1))
    cases = [
        projected(9, 2, 4, 32, 33, mx.float32, forest),
        projected(2, 1, 2, 96, 5, mx.float32, None, 3, (mx.float32, mx.float32)),
        projected(4, 1, 1, 64, 70, mx.float32, None, 1),
    ]
    return [*cases, saturated()]


def saturated() -> Sequence[Any]:
    """Gates far beyond where softplus is linear or zero."""
    case = projected(3, 1, 2, 32, 4, mx.float32)
    case[1] = mx.array([[90.0, -90.0], [5.0, -5.0], [0.0, 30.0]])
    return case


def trees() -> list[Sequence[Any]]:
    """Paths through more than 32 rows; several roots."""
    long = [-1, *(max(0, row - 2) for row in range(1, 64))]
    return [
        [*rows(len(parents), *shape), parents]
        for parents, shape in (
            (random_tree(9, 1), (1, 2, 64, 9, mx.float32, False)),
            (long, (1, 1, 32, 3, mx.float32, True)),
        )
    ]


def replays() -> list[Sequence[Any]]:
    """More than one threadgroup of the state; none, some and all of a path; paths longer than a
    window."""
    cases = []
    for count, width in ((0, 3), (3, 3), (9, 3), (4, 1)):
        shape, total = (1, 2, 64, 19, mx.float32, count == 4), 12
        stack = [rows(total, *shape, seed=seed) for seed in range(2)]
        seeds = mx.random.split(mx.random.key(count), 2)
        cases.append(
            [
                mx.stack([layer[5] for layer in stack]),
                mx.random.normal((2, total, 2, 19), key=seeds[0]),
                mx.stack([layer[1] for layer in stack]),
                mx.stack([layer[3] for layer in stack]),
                mx.array([1, 2, 3, 4, 6, 7, 8, 10, 11], mx.int32),
                mx.array([count], mx.int32),
                mx.random.normal((2, width + total, 7), key=seeds[1]),
            ]
        )
    return cases


def attentions() -> list[Sequence[Any]]:
    """Positions up to the end of the short splits, beyond them and beyond the first long one;
    more packed rows than a team or a threadgroup has, more rows than a word has bits; several
    roots; rows without padding; heads of sizes that are shared out otherwise."""
    end = SHORT_SPLITS * SPLIT
    plain, narrow = Scores(0.2), Scores(0.2, window=SPLIT + 3)
    chain = [*range(-1, 6)]
    cases: list[Sequence[Any]] = [(*attention_block(TREE, 37, start=5), Scores(20.0))]
    q, keys, *rest = attention_block(chain, 2 * SPLIT)
    keys[:, 2 * SPLIT + 6] = q[::2, 6]  # the last split has a score far above all others
    cases.append((q, keys, *rest, Scores(20.0)))
    for context in (end - 3, end + 4 * SPLIT - 3, end + 9 * SPLIT):
        cases += [
            (*attention_block(TREE, context), plain),
            (*attention_block(chain, context, start=3), narrow),
        ]
    sinks = mx.array([0.5, -1.0, 2.0, 0.0])
    cases.append((*attention_block(TREE, 3 * SPLIT, start=end), Scores(0.2, sinks=sinks)))
    wide = [-1, *(max(0, row - 2) for row in range(1, 40))]
    forest = [-1, -1, 0, 1, 1, 0]
    cases += [(*attention_block(parents, 19), plain) for parents in (forest, range(-1, 10))]
    shapes = (((5, 1), 128, range(-1, 6)), ((8, 1), 256, range(-1, 12)), ((2, 1), 80, TREE))
    cases += [
        (*attention_block(parents, 4 * SPLIT, heads=heads, dim=dim), plain)
        for heads, dim, parents in shapes
    ]
    return [*cases, (*attention_block(wide, 3, heads=(8, 2)), plain)]


def products() -> list[Sequence[Any]]:
    """Vectors and matrices: a second threadgroup each way, more of K than all lanes and simdgroups
    take in turn, and a partial last block of it; packed and not."""
    kinds = (KINDS[3], KINDS[2], KINDS[5], KINDS[0])
    few, four = rows_of(3, 1216), rows_of(4, 1216).reshape(2, 2, 1216)
    many = rows_of(21, 1216).reshape(3, 7, 1216)
    weights = [weights_of(35, 1216, kind, biased=True) for kind in kinds]
    return [(rows, each) for rows in (few, four, many) for each in weights]


def mixtures() -> list[Sequence[Any]]:
    """More pairs than a simdgroup has lanes, more pairs of an expert than are computed at once, an
    expert of the first and of the last pair only; few pairs; a second threadgroup of columns, more
    of K than all lanes take in turn, and a partial last block of it; packed and not.
    """
    kinds = (KINDS[3], KINDS[2], KINDS[5], KINDS[0])
    layers = [experts_of(3, (576, 64, 35), kind, biased=True) for kind in kinds]
    many = mx.array([[2, 0], *[[0, 1]] * 33, [1, 2]])
    few = mx.array([[2], [0], [2]])
    return [(rows_of(len(some), 576), some, each) for some in (few, many) for each in layers]


# By operation; those of exact mode have its launch.
CASES: dict[str, tuple[Op, Callable[[], Sequence[Any]], float, dict[str, Any]]] = {
    "verify_accept": (masked(verify_accept.OP), greedy, 0, {}),
    "verify_accept_sample": (masked(verify_accept_sample.OP), sample, 0, {}),
    "selector_walk": (selector_walk.OP, walks, 0, {}),
    "gated_delta_inputs": (gated_delta_inputs.OP, projections, 1e-5, {}),
    "gated_delta_tape": (gated_delta_tape.OP, chains, 2e-5, {}),
    "gated_delta_tree": (gated_delta_tree.OP, trees, 1e-4, {}),
    "gated_delta_replay": (gated_delta_replay.OP, replays, 1e-5, {}),
    "verify_attention": (
        verify_attention.OP,
        attentions,
        5e-5,  # some scores are in the hundreds, where float32 has steps of 3e-5
        {"split": SPLIT, "short": SHORT_SPLITS},
    ),
    "verify_attention, exact": (
        replace(verify_attention.OP, launch=verify_attention.launch_exact),
        attentions,
        2e-5,
        {"split": SPLIT, "short": SHORT_SPLITS},
    ),
    "small_m_qmm": (small_m_qmm.OP, products, 1e-4, {}),
    "grouped_experts": (grouped_experts.OP, mixtures, 1e-4, {}),
}


@cache
def bordered(name: str) -> Bordered:
    op, make, tolerance, options = CASES[name]
    cases = tuple(make())
    return Bordered(op, cases, tuple(op.reference(*case) for case in cases), tolerance, options)
