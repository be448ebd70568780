"""Trees keep the target's distribution at every temperature, with every filter and penalty.

Held against enumerated distributions; the broken walks must not pass.
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import sampling_law as laws
import tiny
from caches import FORK, state_of_the_row_before

from dflash_mlx import api
from dflash_mlx.errors import DFlashError
from dflash_mlx.options import SamplingParams
from dflash_mlx.policy.costs import Batch
from dflash_mlx.policy.policy import Choice, DraftState, FixedPolicy
from dflash_mlx.speculation.acceptance import Match
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.speculation.sampling import Shaper
from dflash_mlx.speculation.tree import Tree, best_first
from dflash_mlx.types import Plan

TREE: dict[str, Any] = {"mode": "ddtree", "tree_budget": 9}


def tree_surprise(
    tables: Any, params: SamplingParams, budget: int, rule: type[Match] = Match, count: int = 20_000
) -> float:
    """How far a tree's outputs are off the target's law, many at once."""
    tree = best_first(tables.block.top_tokens(budget).to_host(), budget)
    judge = rule(params, tables.vocab)
    logits = mx.stack([tables.rows[len(path)][path] for path in tree.paths()])
    rows = judge.shaper.penalise_paths(logits, tables.history, tree.paths())

    def choose(key: mx.array) -> mx.array:
        judge.keys = laws.OneKey(key)  # type: ignore[assignment]
        return judge.choose(rows, [0, *tree.depths])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx.random, "categorical", laws.gumbel_categorical)
        many: Any = mx.vmap(choose)(mx.random.split(mx.random.key(11), count)).tolist()
    tokens, kept = np.zeros((count, tables.width), dtype=int), np.zeros(count, dtype=int)
    for number, chosen in enumerate(many):
        path, bonus = tree.walk(chosen)
        said = [*[tree.tokens[row - 1] for row in path], bonus]
        tokens[number, : len(said)], kept[number] = said, len(path)
    assert tree.rows == budget + 1
    assert kept.mean() > 0.3
    laws.fill(tokens, kept, tables, params)
    counts = np.zeros((tables.vocab,) * tables.width)
    np.add.at(counts, tuple(tokens.T), 1)
    return laws.surprise(counts, laws.joint(laws.stock_law(tables, params)))


@pytest.mark.quick_every(2)
@laws.every_drafter
@pytest.mark.parametrize("setting", ["plain", "top_k_top_p", "presence", "frequency", "everything"])
def test_tree_law(setting: str, drafter: str) -> None:
    """One tree keeps the law under every setting, penalties by each row's own path."""
    params = laws.SETTINGS[setting]
    for budget in (4, 11):
        assert tree_surprise(laws.tables_of(drafter), params, budget) < laws.LIMIT


def walk_one_too_far(patch: pytest.MonkeyPatch) -> None:
    """A fault: where the walk ends, the first child stays all the same."""
    honest = Tree.walk

    def walk(self: Tree, chosen: Sequence[int]) -> tuple[tuple[int, ...], int]:
        path, bonus = honest(self, chosen)
        row = path[-1] if path else 0
        more = [r for r, parent in enumerate(self.parents, 1) if parent == row][:1]
        return (*path, *more), chosen[more[0]] if more else bonus

    patch.setattr(Tree, "walk", walk)


def walk_with_another_sample(patch: pytest.MonkeyPatch) -> None:
    """A fault: the bonus is not what the row chose, but a second choice of the same kind."""
    honest = Tree.walk

    def walk(self: Tree, chosen: Sequence[int]) -> tuple[tuple[int, ...], int]:
        path, _ = honest(self, chosen)
        return path, chosen[0]

    patch.setattr(Tree, "walk", walk)


def walk_among_siblings(patch: pytest.MonkeyPatch) -> None:
    """A fault: a token is looked for among all nodes of a depth, whoever their parent is."""

    def walk(self: Tree, chosen: Sequence[int]) -> tuple[tuple[int, ...], int]:
        row, path = 0, []
        places = list(zip(self.depths, self.tokens, strict=True))
        while (len(path) + 1, chosen[row]) in places:
            row = places.index((len(path) + 1, chosen[row])) + 1
            path.append(row)
        return tuple(path), chosen[row]

    patch.setattr(Tree, "walk", walk)


@pytest.mark.parametrize("drafter", ["dflash", "dflash2"])
@pytest.mark.parametrize("fault", [walk_one_too_far, walk_with_another_sample, walk_among_siblings])
def test_broken_walks_are_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    tables = laws.tables_of(drafter)
    assert tree_surprise(tables, laws.PLAIN, 11, count=60_000) > 3 * laws.LIMIT


def test_penalties_of_other_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is penalised for its siblings' tokens breaks the law."""
    honest = Shaper.penalise_paths

    def by_row(self: Shaper, logits: mx.array, history: list[int], paths: Any) -> mx.array:
        drafts = [path[-1] for path in paths[1:]]
        return honest(self, logits, history, [drafts[:row] for row in range(len(paths))])

    monkeypatch.setattr(Shaper, "penalise_paths", by_row)
    params = laws.SETTINGS["frequency"]
    assert tree_surprise(laws.tables_of("dflash"), params, 11) > 3 * laws.LIMIT


@pytest.mark.slow
@laws.every_drafter
@pytest.mark.parametrize("setting", ["golden", "everything"])
def test_golden_law(setting: str, drafter: str) -> None:
    """Whole answers of a real pair: with top-k and top-p, and with every filter and penalty."""
    prompt, params, _ = laws.golden_settings()[3]
    params = params if setting == "golden" else laws.SETTINGS["everything"]
    found = laws.answer_surprise("match", prompt, params, 120, drafter=drafter, **TREE)
    assert found < laws.LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(("family", "count"), [("qwen3_5", 120), ("gpt_oss", 250)])
def test_answers_of_other_caches(family: str, count: int) -> None:
    """Whole answers of a hybrid and of a target whose windows are full when it begins."""
    prompt = [token % 9 for token in tiny.prompt_of(tiny.WINDOW + 8)]
    params = SamplingParams(temperature=1.2, top_k=6, top_p=0.95)
    found = laws.answer_surprise("match", prompt, params, count, family=family, **TREE)
    assert found < laws.LIMIT


@pytest.mark.slow
@laws.every_rule
def test_law_of_mixed_plans(rule: str) -> None:
    """Plain steps and chains of every length in turn keep the law under every rule."""

    class Cycle(FixedPolicy):
        """One plan after another, whatever was asked for twice; no draft for a plain step."""

        room = 0

        def choose_drafters(
            self, sequences: Sequence[Sequence[DraftState | None]], batch: Batch
        ) -> list[Choice | None]:
            state = sequences[0][0]
            assert state is not None
            if self.room != state.room:
                self.room, self._plan = state.room, next(plans)
            return [Choice(0, 8) if self._plan.rows > 1 else None]

        def may_draft(self, sequence: Sequence[DraftState | None]) -> bool:
            return True

    plans = cycle([Plan(3), Plan(1), Plan(2), Plan(4)])
    prompt, params, _ = laws.golden_settings()[3]
    found = laws.answer_surprise(rule, prompt, params, 120, policy=Cycle(Plan(1)))
    assert found < laws.LIMIT


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("fault", [walk_one_too_far, state_of_the_row_before])
def test_broken_answers_are_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred answers are enough to see a fault in the walk, or in a state."""
    fault(monkeypatch)
    prompt = [token % 9 for token in tiny.prompt_of(tiny.WINDOW + 8)]
    params = SamplingParams(temperature=1.2, top_k=6, top_p=0.95)
    found = laws.answer_surprise("match", prompt, params, 150, family="qwen3_5", **TREE)
    assert found > laws.LIMIT


def test_seeds() -> None:
    """The same seed gives the same tokens, other seeds others; NaN logits are refused."""

    def answer(seed: int) -> list[int]:
        sampling = SamplingParams(temperature=1.5, seed=seed)
        pair = laws.golden("dflash")
        return api.generate(
            pair, [1, 5, 6, 0], sampling=sampling, max_tokens=24, mode="ddtree", tree_budget=9
        ).tokens

    first = [answer(seed) for seed in range(4)]
    assert first == [answer(seed) for seed in range(4)]
    assert len({tuple(tokens) for tokens in first}) == 4
    rule, draft = Match(SamplingParams(), 9), Draft.of_tree(FORK)
    outcome = rule.outcome(draft, mx.full((4, 9), mx.nan), [1], 0)
    with pytest.raises(DFlashError, match="NaN"):
        rule.accept(draft, outcome)
