"""Trees keep the target's distribution at every temperature, with every filter and penalty."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import sampling_law as laws
import tiny
from caches import FORK

from dflash_mlx.errors import DFlashError
from dflash_mlx.options import SamplingParams
from dflash_mlx.policy.costs import Batch
from dflash_mlx.policy.policy import Choice, DraftState, FixedPolicy
from dflash_mlx.speculation.acceptance import Match
from dflash_mlx.speculation.drafts import Draft
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


def test_a_walk_that_goes_too_far_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many draws of a tree are enough, and so are a few hundred answers."""
    walk_one_too_far(monkeypatch)
    assert tree_surprise(laws.tables_of("dflash"), laws.PLAIN, 11, count=60_000) > 3 * laws.LIMIT
    prompt = [token % 9 for token in tiny.prompt_of(tiny.WINDOW + 8)]
    params = SamplingParams(temperature=1.2, top_k=6, top_p=0.95)
    found = laws.answer_surprise("match", prompt, params, 150, family="qwen3_5", **TREE)
    assert found > laws.LIMIT


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


def test_numbers_that_are_none_are_refused() -> None:
    rule, draft = Match(SamplingParams(), 9), Draft.of_tree(FORK)
    outcome = rule.outcome(draft, mx.full((4, 9), mx.nan), [1], 0)
    with pytest.raises(DFlashError, match="NaN"):
        rule.accept(draft, outcome)
