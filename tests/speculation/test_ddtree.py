"""DDTree changes speed, never the answer: the authors' answers, every family, conversations."""

import random
from collections.abc import Sequence
from typing import Any

import lossless
import pytest
import sampling_law as laws
import tiny
from lossless import LONG, SHORT, hinted_drafter

from dflash_mlx import api
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.engine.round import DraftProposal
from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.errors import UsageError
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.policy.costs import Batch
from dflash_mlx.policy.policy import Choice, DraftState, FixedPolicy
from dflash_mlx.session import Session
from dflash_mlx.speculation.acceptance import Match, make_rule
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.types import Plan

BUDGETS = (1, 4, 15, 16, 64)
every_family = pytest.mark.parametrize("family", lossless.EVERY)


def width_of(pair: Pair) -> int:
    assert pair.drafter is not None
    return pair.drafter.config.block_size


@pytest.mark.quick_every(6)
@pytest.mark.parametrize("case", tiny.CASES)
def test_golden_answers(case: str) -> None:
    """The authors' greedy answers, token for token: at two budgets, or at all of them."""
    pair, expected = tiny.golden_pair(case), tiny.expected(case)
    prompts = expected["prompts"]
    shorter = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
    for budget in BUDGETS if tiny.ALL else (4, 16):
        for number in shorter if tiny.ALL else shorter[:2]:
            result = api.generate(
                pair,
                prompts[number],
                max_tokens=expected["max_new_tokens"],
                mode="ddtree",
                tree_budget=budget,
            )
            assert result.tokens == expected["greedy_tokens"][number]
            assert result.finish_reason == expected["finish_reasons"][number]
            assert len(result.stats.accepted_by_position) < width_of(pair)
            if budget == 64:
                assert result.stats.acceptance_length >= expected["tau"][number]


def drafted(sequence: TokenSequence, rule: Match, anchor: int, width: int) -> DraftProposal:
    assert sequence.draft_cache is not None
    block = sequence.draft_cache.block(anchor, width)
    return DraftProposal(
        block, rule.draft(block, rule.draw([*sequence.tokens, anchor])), frozenset()
    )


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("case", tiny.CASES)
def test_a_seeded_tree_commits_what_the_chain_commits(case: str) -> None:
    """Round by round from the same state: a tree as large as the chain, with the chain in it."""
    pair, expected = tiny.golden_pair(case), tiny.expected(case)
    width, rule = width_of(pair), Match(SamplingParams(), pair.target.vocab_size)
    more = 0
    for prompt in expected["prompts"][: None if tiny.ALL else 1]:
        sequence = TokenSequence(pair.target, pair.drafter)
        anchor = tiny.chosen(rule, sequence.read(prompt), prompt)
        for _ in range(12):
            said = []
            for plan in (
                Plan(width, tree=True, chain_seed=True),
                Plan(2 * width, True, True),
                Plan(width),
            ):
                draft = drafted(sequence, rule, anchor, width).cut(plan, width)
                found = sequence.verify(anchor, draft.tokens, draft.tree)
                outcome = rule.outcome(draft, found.logits, [*sequence.tokens, anchor], 0)
                said.append(rule.accept(draft, outcome).tokens)
                if plan.tree:
                    sequence.target_cache.rewind(len(sequence.tokens))
            chain = said[2]
            assert said[0] == chain
            assert said[1][: len(chain)] == chain
            more += len(said[1]) > len(chain)
            sequence.commit((anchor, *chain[:-1]), found.taps)
            anchor = chain[-1]
    assert more


def drafter_of(kind: str, family: str, prompt: list[int], wanted: list[int]) -> DFlashDrafter:
    if kind == "hinted":
        return hinted_drafter(prompt + wanted)
    return lossless.drafter_of(kind, family, prompt, len(wanted))


def check(family: str, kind: str, prompt: list[int], budget: int, **options: Any) -> list[int]:
    """Hold one greedy answer against stock mlx-lm's; return the tokens committed per verify."""
    options = {"block_size": 8, "max_tokens": lossless.LENGTH, **options}
    wanted = lossless.stock(family, tuple(prompt), options["max_tokens"])
    blocks = tiny.speculate(
        lossless.target_of(family),
        drafter_of(kind, family, prompt, wanted),
        prompt,
        mode="ddtree",
        tree_budget=budget,
        **options,
    )
    assert tiny.joined(blocks) == wanted
    assert all(block.drafted <= budget for block in blocks)
    assert all(block.depth < options["block_size"] for block in blocks)
    return [len(block.tokens) for block in blocks[1:]]


@every_family
def test_families(family: str) -> None:
    """Whatever the drafter says, on every family, before and after its windows are full."""
    number = lossless.NUMBERS[family]
    for turn, kind in enumerate(("random", "random2", "right", "wrong", "hinted", "dspark")):
        budget = (5, 16, 33)[(number + turn) % 3]
        committed = check(family, kind, (SHORT, LONG)[(number + turn) % 2], budget)
        assert max(committed) > {"right": 4, "hinted": 1}.get(kind, 0)
    if tiny.ALL:
        for kind in ("random", "random2", "right", "wrong", "hinted", "dspark"):
            for prompt in (SHORT, LONG):
                for budget in (1, 2, 7, 16, 64):
                    for block_size in (2, 5, 16, 2 * tiny.WINDOW + 3):
                        check(family, kind, prompt, budget, block_size=block_size)


@pytest.mark.parametrize("family", ["qwen3_5", "gpt_oss", "gemma4_unified", "glm_moe_dsa"])
def test_long_answers(family: str) -> None:
    """Answers longer than every window and the indexer's reach; trees deeper than the window."""
    for kind, block_size, budget in (("right", 2 * tiny.WINDOW + 3, 40), ("hinted", 8, 24)):
        committed = check(family, kind, SHORT, budget, block_size=block_size, max_tokens=45)
        assert max(committed) > (tiny.WINDOW if kind == "right" else 2)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "gpt_oss"])
def test_plans_in_turn(family: str) -> None:
    """Plain steps, chains of every length and trees, mixed in one answer, under every drafter."""
    dice = random.Random(3)

    class Dice(FixedPolicy):
        def choose_drafters(
            self, sequences: Sequence[Sequence[DraftState | None]], batch: Batch
        ) -> list[Choice | None]:
            return [Choice(0, 8) if dice.random() < 0.35 else None]

        def may_draft(self, sequence: Sequence[DraftState | None]) -> bool:
            return dice.random() >= 0.3

        def choose_plans(self, drafts: Sequence[DraftState], other_rows: int = 0) -> list[Plan]:
            tree = Plan(dice.randint(2, 30), True)
            return [Plan(dice.randint(1, 8)) if dice.random() < 0.5 else tree]

    for kind in ("random2", "right", "hinted", "dspark"):
        wanted = lossless.stock(family, tuple(LONG), 40)
        drafter = drafter_of(kind, family, LONG, wanted)
        blocks = tiny.speculate(
            lossless.target_of(family),
            drafter,
            LONG,
            block_size=8,
            max_tokens=40,
            policy=Dice(Plan(1)),
        )
        assert tiny.joined(blocks) == wanted
        assert {block.drafted > 0 for block in blocks[1:]} == {True, False}
        assert any(block.depth < block.drafted for block in blocks)


@pytest.mark.parametrize("plan", [Plan(1), Plan(8), Plan(9, tree=True)])
def test_no_draft_is_begun_before_the_first_token(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would make that token later; a plain step is begun, as stock mlx-lm does."""
    target = lossless.target_of("llama")
    begun, read = [], []
    begin, honest = DraftProposal.begin, Target.read

    def counted(self: Target, parts: Any, **options: Any) -> Any:
        read.append(sum(part.tokens.size for part in parts))
        return honest(self, parts, **options)

    monkeypatch.setattr(DraftProposal, "begin", lambda self: begun.append(1) or begin(self))
    monkeypatch.setattr(Target, "read", counted)
    blocks = tiny.start(
        TokenSequence(target, tiny.random_drafter(target)),
        SHORT,
        SamplingParams(),
        block_size=8,
        max_tokens=lossless.LENGTH,
        policy=FixedPolicy(plan),
    )
    plain = plan.rows == 1
    next(blocks)
    assert not begun
    assert read == [len(SHORT), *[1] * plain]
    next(blocks)
    assert bool(begun) != plain
    assert read == [len(SHORT), *([1, 1] if plain else [plan.rows])]


def test_a_short_chain_is_the_start_of_the_long_one() -> None:
    """A chain of k rows is the block's first k, drafted as ever: with the whole block."""
    family, width = "llama", 8
    target = lossless.target_of(family)
    sequence = TokenSequence(target, tiny.random_drafter(target))
    rule = Match(SamplingParams(), tiny.VOCAB)
    anchor = tiny.chosen(rule, sequence.read(SHORT), SHORT)

    def chain(rule: Match, rows: int, room: int = width) -> Draft:
        return drafted(sequence, rule, anchor, width).cut(Plan(rows), room)

    whole: Any = chain(rule, width).tokens.tolist()
    assert len(whole) == width - 1
    for rows in range(2, width):
        assert chain(rule, rows).tokens.tolist() == whole[: rows - 1]
        assert chain(rule, width, rows - 1).tokens.tolist() == whole[: rows - 1]
    part = chain(make_rule("block", SamplingParams(1.0, seed=1), tiny.VOCAB), 4)
    assert part.probabilities is not None
    assert part.probabilities.shape == (3, tiny.VOCAB)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"accept": "token"}, "'token' judges chains"),
        ({"accept": "block", "sampling": SamplingParams(1.0)}, "'block' judges chains"),
        ({"accept": "x"}, "'x'"),
        ({"mode": "dflash", "tree_budget": 8}, "tree_budget has no effect"),
        ({"mode": "baseline", "tree_budget": 8}, "tree_budget has no effect"),
        ({"mode": "dflash", "chain_seed": True}, "chain_seed has no effect"),
        ({"mode": "tree"}, "no mode 'tree'"),
    ],
)
def test_wrong_usage(options: dict[str, Any], part: str) -> None:
    """What a mode does not know is refused in one sentence, and nothing is ignored."""
    with pytest.raises(UsageError) as caught:
        api.generate(laws.golden("dflash"), [1, 2], **dict[str, Any](mode="ddtree") | options)
    assert part in caught.value.message
    assert caught.value.hint


def test_budgets_and_counts() -> None:
    """The default budget is 32; drafts are nodes, and acceptance is counted by depth."""
    pair, expected = tiny.golden_pair("qwen3_full"), tiny.expected("qwen3_full")
    prompt, width = expected["prompts"][0], width_of(pair)
    options: dict[str, Any] = {"max_tokens": 40, "mode": "ddtree"}
    default = api.generate(pair, prompt, **options).stats
    same = api.generate(pair, prompt, tree_budget=32, **options).stats
    assert default.committed == same.committed
    assert default.drafted == 32 * default.verifies
    assert len(default.accepted_by_position) == width - 1
    assert sum(default.accepted_by_position) == default.accepted
    assert 0 <= default.accepted - sum(default.committed) + default.verifies <= 1  # cut at the end
    most = api.generate(pair, prompt, tree_budget=1024, mode="ddtree", max_tokens=18)
    assert most.tokens == expected["greedy_tokens"][0][:18]
    assert most.stats.drafted > 500 * most.stats.verifies


@pytest.mark.parametrize("family", ["llama_sliding", "qwen3_5", "glm_moe_dsa"])
def test_a_conversation(family: str) -> None:
    """Turns, an answer that is broken off, and a change of mode in one context: read once."""
    target = lossless.target_of(family)
    pair = tiny.make_pair(target, tiny.random_drafter(target), family, "random")
    session = Session(pair, mode="ddtree")
    prompt = LONG
    for turn in range(3):
        wanted = tiny.plain(target, prompt, 10, margin=0)
        stream = session.stream(prompt, max_tokens=10, tree_budget=12)
        blocks = [next(stream), next(stream)] if turn == 1 else list(stream)
        stream.close()
        said = tiny.joined(blocks)
        assert said == wanted[: len(said)]
        assert session.sequence.tokens == [*prompt, *said][:-1]
        if turn:
            assert session.stats.cached_tokens > 40
        prompt = [*prompt, *said, 7, 8]
