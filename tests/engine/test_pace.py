"""Whoever waits for a token does not wait long while another's prompt is read."""

import tiny

from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.prompt_chunks import PREFILL_STEP_SIZE
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.scheduler import MIN_TOKENS, STALL, TokenBudget
from dflash_mlx.engine.sequence import Sequence


def test_pieces_are_as_long_as_the_stall_allows() -> None:
    """On a machine that reads so many tokens a second, rounds read those of STALL seconds."""
    for rate in (500, 2_000, 10_000):
        budget = TokenBudget()
        for _ in range(12):
            budget.update(budget.tokens, 0.004 + budget.tokens / rate)
        wanted = min(PREFILL_STEP_SIZE, max(MIN_TOKENS, STALL * rate))
        assert 0.85 * wanted <= budget.tokens <= wanted + 1
        assert budget.tokens / rate <= STALL or budget.tokens == MIN_TOKENS


def test_rounds_that_read_nothing_teach_nothing() -> None:
    budget = TokenBudget()
    before = budget.tokens
    budget.update(0, 9.0)
    assert budget.tokens == before


def test_prompts_share_what_a_round_may_read() -> None:
    """Three prompts beside an answer read a third each; alone they share the whole chunk."""
    target = tiny.make_target("qwen3")
    engine = Engine(target, None)
    engine.scheduler.prompt_chunks.sizes = {0: 90}
    prompts = [tiny.prompt_of(200, seed) for seed in range(3)]
    for beside in (False, True):
        group = [Sequence(target, None) for _ in prompts]
        for sequence, prompt in zip(group, prompts, strict=True):
            engine.begin(sequence, Request(tuple(prompt), max_tokens=4, mode="baseline"), -1)
        answering = Sequence(target, None)
        if beside:
            request = Request(tuple(tiny.prompt_of(5)), max_tokens=20, mode="baseline")
            engine.begin(answering, request, -1)
            while answering.unread:
                engine.step([answering])
            group.append(answering)
            engine.scheduler.token_budget.tokens = 60
        engine.step(group)
        assert [len(s.tokens) for s in group[:3]] == [20 if beside else 30] * 3


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    """It is read whole, and beside it long prompts get no more than a share of the token budget."""
    target = tiny.make_target("qwen3")
    engine = Engine(target, None)
    engine.scheduler.prompt_chunks.sizes = {0: 90}
    engine.scheduler.token_budget.tokens = 20
    lengths = {"long": 200, "other long": 120, "short": 25}
    group = {name: Sequence(target, None) for name in lengths}
    for name, sequence in group.items():
        prompt = tiny.prompt_of(lengths[name])
        engine.begin(sequence, Request(tuple(prompt), max_tokens=4, mode="baseline"), -1)
    engine.step([*group.values()])
    assert {name: len(sequence.tokens) for name, sequence in group.items()} == {
        "long": 7,
        "other long": 7,
        "short": 24,  # its last token has a pass of its own
    }
