"""Draft trees: the likeliest prefixes, their masks and walks, held against plain enumeration."""

from itertools import product

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.speculation.drafts import Independent, Lattice
from dflash_mlx.speculation.sampling import top_ids
from dflash_mlx.speculation.tree import Candidates, Tree, best_first

Prefix = tuple[int, ...]
LEVEL = np.log(np.array([0.5, 0.25, 0.25, 0.125, 0.125, 0.0625]))


def independent(seed: int, slots: int = 3, k: int = 3, *, level: bool = False) -> Candidates:
    """Random slots that do not look at each other; `level` ones have many ties."""
    dice = np.random.default_rng(seed)
    logs = dice.choice(LEVEL, (slots, 1, k)) if level else np.log(dice.dirichlet([1.0] * k, slots))
    tokens = np.sort(dice.permuted(np.tile(np.arange(9), (slots, 1)), axis=1)[:, :k])
    logs = logs.reshape(slots, 1, k).astype(np.float32)
    return Candidates(tokens, logs, np.zeros((slots, 1), dtype=np.float32))


def conditional(seed: int, slots: int = 3, k: int = 3, *, level: bool = False) -> Candidates:
    """Random slots that depend on the one before."""
    dice = np.random.default_rng(seed)
    logs = (
        dice.choice(LEVEL, (slots, k, k))
        if level
        else np.log(dice.dirichlet([1.0] * k, (slots, k)))
    )
    logs = logs.astype(np.float32)
    logs[0] = logs[0, :1]
    tokens = np.sort(dice.permuted(np.tile(np.arange(9), (slots, 1)), axis=1)[:, :k])
    return Candidates(tokens, logs, np.zeros((slots, k), dtype=np.float32))


def prefixes(candidates: Candidates) -> dict[Prefix, float]:
    """The log-probability of every prefix, by its ranks (0 is the likeliest)."""
    found: dict[Prefix, float] = {}
    frontier: list[tuple[Prefix, float, int]] = [((), 0.0, 0)]
    for slot in range(candidates.positions):
        longer = []
        for ranks, total, case in frontier:
            logs, _, cases = candidates.after(slot, case)
            for rank, log in enumerate(logs):
                longer.append(((*ranks, rank), total + log, cases[rank]))
        found |= {ranks: total for ranks, total, _ in longer}
        frontier = longer
    return found


def ranks_of(tree: Tree, candidates: Candidates) -> list[Prefix]:
    found: list[tuple[Prefix, int]] = [((), 0)]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        ranks, case = found[parent]
        _, tokens, cases = candidates.after(len(ranks), case)
        rank = tokens.index(token)
        found.append(((*ranks, rank), cases[rank]))
    return [ranks for ranks, _ in found[1:]]


@pytest.mark.parametrize("make", [independent, conditional])
@pytest.mark.parametrize("level", [False, True])
def test_order_and_ties(make, level):
    """Nodes come likeliest first; of equal ones the lexicographically smaller ranks (DDTree)."""
    ties = 0
    for seed in range(20):
        candidates = make(seed, slots=4, level=level)
        known = prefixes(candidates)
        wanted = sorted(known, key=lambda ranks: (-known[ranks], ranks))
        ties += len(known) - len({*known.values()})
        for budget in (1, 2, 7, 30, 1000):
            tree = best_first(candidates, budget)
            assert ranks_of(tree, candidates) == wanted[:budget]
            assert list(tree.logs) == [known[ranks] for ranks in wanted[:budget]]
            assert list(tree.depths) == [len(ranks) for ranks in wanted[:budget]]
    assert ties > 500 if level else ties == 0


@pytest.mark.parametrize("make", [independent, conditional])
def test_chain_seed(make):
    """The greedy chain first, as much of it as there is room for; then the likeliest others."""
    for seed in range(10):
        candidates = make(seed, slots=4)
        known = prefixes(candidates)
        chain = [(0,) * n for n in range(1, 5)]
        others = sorted(known.keys() - set(chain), key=lambda ranks: (-known[ranks], ranks))
        for budget in (1, 3, 4, 5, 20):
            tree = best_first(candidates, budget, chain_seed=True)
            assert ranks_of(tree, candidates) == (chain + others)[:budget]


@pytest.mark.parametrize("make", [independent, conditional])
def test_nothing_follows_a_stop_token(make):
    """A stop token is a leaf: the tree has the likeliest prefixes without one before their end."""
    shorter = 0
    for seed in range(10):
        candidates, stops = make(seed, slots=4), frozenset({2, 5})
        whole = best_first(candidates, 1000)
        texts = zip(ranks_of(whole, candidates), whole.paths()[1:], strict=True)
        wanted = [ranks for ranks, text in texts if not stops & {*text[:-1]}]
        shorter += len(whole.tokens) - len(wanted)
        for budget in (1, 7, 1000):
            tree = best_first(candidates, budget, stops=stops)
            assert ranks_of(tree, candidates) == wanted[:budget]
            seeded = best_first(candidates, budget, stops=stops, chain_seed=True)
            assert {*ranks_of(seeded, candidates)} <= {*wanted}
    assert shorter > 100


def test_tokens_that_cannot_be_said():
    """A token of probability 0 (a drafter's reduced vocabulary) is in no tree, nor is NaN."""
    scores = np.array([[[0.0, -np.inf, -1.0]], [[-np.inf] * 3]], dtype=np.float32)
    tokens = np.array([[3, 4, 5], [3, 4, 5]])
    tree = best_first(Candidates(tokens, scores, np.zeros((2, 1), dtype=np.float32)), 50)
    assert (tree.tokens, tree.parents) == ((3, 5), (0, 0))
    for seed in (False, True):
        broken = Candidates(tokens, scores * np.nan, np.zeros((2, 1), dtype=np.float32))
        assert best_first(broken, 50, chain_seed=seed).tokens == ()


def random_tree(seed: int, nodes: int = 40) -> Tree:
    return best_first(conditional(seed, slots=9, k=5), nodes)


@pytest.mark.parametrize("nodes", [1, 7, 8, 40])
def test_ancestors_paths_and_levels(nodes):
    """The mask, the paths and the levels are those of a walk up from every row."""
    for seed in range(5):
        tree = random_tree(seed, nodes)
        up = {0: [0]}
        for row, parent in enumerate(tree.parents, 1):
            assert parent < row
            up[row] = [*up[parent], row]
        mask = tree.ancestors()
        assert mask.dtype == np.bool_
        assert mask.shape == (nodes + 1, nodes + 1)
        for row, seen in up.items():
            assert np.flatnonzero(mask[row]).tolist() == seen
            assert tree.paths()[row] == tuple(tree.tokens[r - 1] for r in seen[1:])
            assert row in tree.levels()[len(seen) - 1]
            assert tree.is_path(tuple(seen))
        assert sum(map(len, tree.levels())) == nodes + 1
        assert not tree.is_path(())
        assert not tree.is_path((1,))
        assert not tree.is_path((0, nodes + 1))
        assert not tree.is_path((0, 0))
        assert all(p == 0 or not tree.is_path((0, row)) for row, p in enumerate(tree.parents, 1))


def test_walk():
    """A walk ends at the first choice that no child has, from every possible choice."""
    tree = Tree((7, 8, 7, 9), (0, 0, 1, 3), (1, 1, 2, 3), (-1.0, -2.0, -3.0, -4.0))
    found = {chosen: tree.walk(chosen) for chosen in product((7, 8, 9), (7, 8), (5,), (9, 1), (2,))}
    for (a, b, c, d, e), walked in found.items():
        if a == 9:
            assert walked == ((), 9)
        elif a == 8:
            assert walked == ((2,), c)
        elif b == 8:
            assert walked == ((1,), 8)
        else:
            assert walked == (((1, 3, 4), e) if d == 9 else ((1, 3), 1))


def level_logits(vocab: int = 50) -> mx.array:
    dice = np.random.default_rng(0)
    return mx.array(dice.choice([0.0, 1.0, 2.0, 3.0], (6, vocab)).astype(np.float32))


@pytest.mark.parametrize("count", [1, 2, 15, 50, 200])
def test_the_first_candidate_is_the_chains_draft(count):
    """Also where tokens are level: else a tree with a chain in it could lose against the chain."""
    dice = np.random.default_rng(1)
    ids = np.sort(dice.permuted(np.tile(np.arange(50), (6, 1)), axis=1)[:, :8])
    scores = dice.choice([0.0, 1.0, 2.0], (6, 8, 8)).astype(np.float32)
    scores[0] = scores[0, :1]
    for block in (
        Independent(level_logits()),
        Independent(level_logits().astype(mx.bfloat16)),
        Independent(mx.zeros((6, 50))),
        Lattice(mx.array(ids), mx.array(scores)),
    ):
        chain = block.greedy().tokens.tolist()
        tree = best_first(block.top_tokens(count).to_host(), 6, chain_seed=True)
        assert list(tree.tokens) == chain
        assert tree.parents == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("vocab", [50, 640, 6400, 6401])
def test_the_likeliest_of_a_vocabulary(vocab):
    """Block by block or at once: the largest logits, the smallest id of level maxima with them."""
    dice = np.random.default_rng(vocab)
    for count in (1, 2, 16, 25):
        logits = dice.normal(size=(3, vocab)).astype(np.float32)
        wanted = np.sort(np.argsort(-logits, axis=-1)[:, :count], axis=-1)
        assert np.array(top_ids(mx.array(logits), count)).tolist() == wanted.tolist()
        level = mx.array(dice.integers(0, 3, (3, vocab)).astype(np.float32))
        ids = top_ids(level, count)
        assert mx.take_along_axis(level, ids, axis=-1).tolist() == [[2.0] * count] * 3 or vocab < 99
        for best, row in zip(np.array(mx.argmax(level, -1)), np.array(ids), strict=True):
            assert best in row
        cut = mx.where(mx.arange(vocab) < 5, level, -mx.inf)
        said = np.array(top_ids(cut, count)).tolist()
        assert all(len({*row}) == count and max(row) < vocab for row in said)
        assert all({*range(5)} <= {*row} for row in said) or count < 5


def test_logs_are_the_drafters_own():
    """Of a v1 drafter over its whole vocabulary, of a DFlash 2 one over a slot's candidates."""
    logits = mx.random.normal((3, 50), key=mx.random.key(1)) * 3
    tree = best_first(Independent(logits).top_tokens(20).to_host(), 20)
    logs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    for path, log in zip(tree.paths()[1:], tree.logs, strict=True):
        assert log == pytest.approx(sum(logs[n, token] for n, token in enumerate(path)), abs=1e-5)
    ids = mx.array([[1, 4, 6], [2, 3, 7]])
    scores = mx.random.normal((2, 3, 3), key=mx.random.key(2))
    scores[0] = scores[0, :1]
    tree = best_first(Lattice(ids, scores).top_tokens(20).to_host(), 12)
    law = np.array(mx.softmax(scores, axis=-1), dtype=np.float64)
    places = [row.index for row in np.array(ids).tolist()]
    for path, log in zip(tree.paths()[1:], tree.logs, strict=True):
        first = places[0](path[0])
        chance = law[0, 0, first] * (law[1, first, places[1](path[1])] if path[1:] else 1)
        assert np.exp(log) == pytest.approx(chance, abs=1e-6)
    assert len(tree.tokens) == 12


@pytest.mark.parametrize("level", [False, True])
@pytest.mark.parametrize("chain_seed", [False, True])
def test_the_likeliest_path_after_a_row(level: bool, chain_seed: bool) -> None:
    """From each row: no child has a higher probability than the one that it takes."""
    for seed in range(6):
        tree = best_first(conditional(seed, level=level), 12, chain_seed=chain_seed)
        for row in range(tree.rows):
            at = row
            for token in tree.likeliest_after(row):
                children = [n for n, parent in enumerate(tree.parents, 1) if parent == at]
                at = next(n for n in children if tree.tokens[n - 1] == token)
                assert tree.logs[at - 1] == max(tree.logs[n - 1] for n in children)
            assert at not in tree.parents
