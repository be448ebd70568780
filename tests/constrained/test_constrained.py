"""Answers that follow a grammar: those of plain decoding under its masks, in every mode."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
import sampling_law as laws
import tiny
from constrained import Plain, asked
from known_costs import drafts_pay

from dflash_mlx import api
from dflash_mlx.constrained.constraint import Constraint
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.grammar import Grammar
from dflash_mlx.models.target import Target
from dflash_mlx.options import MODES, Mode, SamplingParams
from dflash_mlx.pair import load
from dflash_mlx.session import Session
from dflash_mlx.speculation.drafts import Draft, DraftBlock, Independent, Lattice
from dflash_mlx.types import Block

WAYS: tuple[tuple[Mode, dict[str, Any]], ...] = (
    ("baseline", {}),
    ("dflash", {"block_size": 7}),
    ("ddtree", {"tree_budget": 9}),
    ("ddtree", {"tree_budget": 9, "chain_seed": True}),
    ("auto", {"block_size": 6}),
)
LENGTH = 90
PROMPT = tiny.prompt_of(11, 4)
TEXT = (100, 101)  # a generation prompt whose thinking is closed


@cache
def target_of(family: str) -> Target:
    return tiny.make_target(family)


@pytest.fixture(autouse=True)
def known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode auto has costs at which drafts pay, whatever this machine does."""
    drafts_pay(monkeypatch)


def drafter_of(number: int, target: Target, wanted: list[int]) -> DFlashDrafter:
    """One that is wrong about every fourth token, or one that was never trained, of each kind."""
    if number % 3 == 0:
        near = [t if n % 4 else (t + 1) % tiny.VOCAB for n, t in enumerate([*PROMPT, *wanted])]
        return tiny.scripted_drafter(near, strict=False)
    settings = tiny.dspark_settings if number % 6 == 5 else tiny.draft_settings
    settings = tiny.dflash2_settings if number % 3 == 1 else settings
    return tiny.random_drafter(target, **settings(target))


def answer(
    target: Target, drafter: DFlashDrafter, grammar: Grammar, params: SamplingParams, **options: Any
) -> list[Block]:
    options = {"generation_prompt": TEXT, "max_tokens": LENGTH, "stops": target.eos_ids, **options}
    sequence = TokenSequence(target, drafter)
    return list(tiny.start(sequence, PROMPT, params, grammar=grammar, **options))


def check(number: int, family: str, params: SamplingParams) -> int | None:
    """Hold a grammar's answers of all modes against plain decoding; the tokens of a whole one.

    None, and nothing is compared, where two tokens are level: rounding chooses the likelier.
    """
    target, (grammar, follows) = target_of(family), asked(number)
    plain = Plain(target, grammar)
    wanted = plain.answer(PROMPT, LENGTH, params)
    if params.greedy and plain.least < 1e-3:
        return None
    whole = len(wanted) < LENGTH
    drafter = drafter_of(number, target, wanted)
    for mode, options in WAYS:
        blocks = answer(target, drafter, grammar, params, mode=mode, **options)
        assert tiny.joined(blocks) == wanted, (number, mode)
        assert blocks[-1].finish_reason == ("stop" if whole else "length")
    if whole:
        text = tiny.tokenizer().decode([t for t in wanted if t not in target.eos_ids])
        assert follows(text), text
    return len(wanted) * whole


@pytest.mark.parametrize("family", ["qwen3", "llama_sliding", "qwen3_5", "lfm2"])
def test_greedy_answers(family: str) -> None:
    """The same tokens in all modes, with drafters of all kinds; and they follow the grammar."""
    lengths = [check(number, family, SamplingParams()) for number in range(8)]
    assert sum(bool(length) for length in lengths) >= 4


@pytest.mark.slow
@tiny.exhaustive
@pytest.mark.parametrize("part", range(10))
def test_three_hundred_grammars(part: int) -> None:
    """The same for thirty in each part, over targets with every kind of cache."""
    families = ("qwen3", "llama_sliding", "qwen3_5", "gemma4", "gpt_oss")
    lengths, number = list[int](), 100 * part
    while len(lengths) < 30:
        length = check(number, families[number % 5], SamplingParams())
        lengths += [] if length is None else [length]
        number += 1
    whole = [length for length in lengths if length]
    assert len(whole) > 20, lengths
    print(f"{len(lengths)} grammars, {len(whole)} whole answers of {sum(whole)} tokens: the same")


@pytest.mark.slow
@tiny.exhaustive
@pytest.mark.parametrize("part", range(15))
def test_many_grammars_of_the_bundled_pair(part: int) -> None:
    """The same with a real tokenizer and a trained drafter, behind the thinking."""
    pair = load()
    tokenizer, prompt = pair.tokenizer, f"What is {part + 3} plus 7? Answer in JSON."
    ids = Session(pair).tokens(prompt)
    start, end = tokenizer.encode("<think></think>", add_special_tokens=False)
    done = whole = 0
    for number in range(1000 + 20 * part, 1020 + 20 * part):
        grammar, follows = asked(number)
        plain = Plain(pair.target, grammar, (start, end), tokenizer=tokenizer)
        wanted = mlx_thread().call(plain.answer, ids, 120)
        if plain.least < 1e-4:
            continue
        for mode in MODES:
            found = api.generate(pair, prompt, grammar=grammar, mode=mode, max_tokens=120)
            assert found.tokens == wanted, (number, mode)
            assert found.finish_reason == "length" or follows(found.text.lstrip("\n"))
        done, whole = done + 1, whole + (len(wanted) < 120)
    assert whole > 10
    print(f"{done} grammars, {whole} whole answers: the same in four modes")


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_seeded_answers(family: str) -> None:
    """A seed gives the tokens that stock mlx-lm draws under the masks, filters and penalties on."""
    settings = (
        SamplingParams(1.0, seed=3),
        SamplingParams(1.3, top_p=0.9, min_p=0.02, seed=4),
        SamplingParams(1.0, top_k=9, repetition_penalty=1.2, presence_penalty=0.5, seed=5),
    )
    lengths = [check(number, family, settings[number % 3]) for number in range(6)]
    assert sum(bool(length) for length in lengths) >= 4


@pytest.mark.parametrize("accept", ["token", "block"])
def test_rejection_rules_follow_the_grammar(accept: str) -> None:
    """Their answers are not those of plain decoding with a seed, but as well-formed."""
    target = target_of("qwen3")
    for number in range(12):
        grammar, follows = asked(number)
        params = SamplingParams(1.0, seed=number)
        drafter = drafter_of(number, target, list(b"{[]}" * 9))
        blocks = answer(target, drafter, grammar, params, accept=accept, block_size=6)
        if blocks[-1].finish_reason == "stop":
            said = [t for t in tiny.joined(blocks) if t not in target.eos_ids]
            assert follows(tiny.tokenizer().decode(said))


# Every place allows other tokens than its neighbours, and some are allowed only by a few.
LAW = Grammar("regex", "([ab]x?[bc]|c[ac]|bx)(ab|ba|c)?")
LAW_PROMPT = [token % 90 for token in tiny.prompt_of(tiny.WINDOW + 8)]
LIMIT = laws.LIMIT
TOGETHER = 50  # answers that share their rounds


@cache
def law_target() -> Target:
    return tiny.make_target("llama_sliding", scale=0.8)


def law_drafter(kind: str) -> DFlashDrafter:
    """One that often says what the target says, of either kind, and illegal things as well."""
    keys, ids = iter(mx.random.split(mx.random.key(3))), tiny.tokenizer().encode("abcx")
    likely = mx.array([5.5, 4.0, 4.0, 5.5])
    if kind == "dflash2":
        scores = likely - 4 + mx.random.normal((4, 4, 4), key=next(keys))
        block: DraftBlock = Lattice(mx.array([ids] * 4), scores)
    else:
        rows = 0.3 * mx.random.normal((4, tiny.VOCAB), key=next(keys))
        block = Independent(rows.at[:, mx.array(ids)].add(likely))
    return tiny.stand_in(lambda: Guesses(block), 5)


class Guesses(tiny.ScriptedCache):
    """A drafter's cache that says the same of every place."""

    def __init__(self, said: DraftBlock):
        super().__init__([], False, tiny.VOCAB, False)
        self.said = said

    def block(self, anchor: int, width: int) -> DraftBlock:
        return self.said


@cache
def law_of(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Every answer and its probability, by mlx-lm's sampler on the model's masked logits."""
    plain, found = Plain(law_target(), LAW), dict[tuple[int, ...], float]()
    paths: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while paths:
        said, chance = paths.pop()
        mask, whole = plain.state(list(said))
        if whole or set(said) & law_target().eos_ids:
            found[said] = chance
            continue
        logits = law_target().model(mx.array([[*LAW_PROMPT, *said]]))[:, -1]
        masked = mx.where(mx.array(mask)[None], logits, -mx.inf)
        steps = laws.stock_probabilities(masked, params)
        paths += [((*said, int(t)), chance * steps[t]) for t in np.flatnonzero(steps)]
    return found


def law_surprise(
    accept: str,
    kind: str = "dflash",
    params: SamplingParams | None = None,
    count: int = 400,
    **options: Any,
) -> float:
    """How far answers are off that law; infinite if one is refused or has no probability."""
    params = params or SamplingParams(1.0)
    law = law_of(params)
    counts = Counter[tuple[int, ...]]()
    target = law_target()
    engine = Engine(target, law_drafter(kind), compiler=tiny.compiler_of(target))
    sequences = [TokenSequence(target, *engine.drafters) for _ in range(TOGETHER)]
    for first in range(0, count, TOGETHER):
        texts: dict[TokenSequence, list[int]] = {}
        for seed, sequence in enumerate(sequences, first):
            request = Request(
                tuple(LAW_PROMPT),
                sampling=replace(params, seed=seed),
                max_tokens=64,
                stop_ids=target.eos_ids,
                accept=cast(Any, accept),
                grammar=LAW,
                **{"mode": "dflash", "block_size": 5, "generation_prompt": TEXT, **options},
            )
            engine.begin(sequence, request, len(LAW_PROMPT) - 1)
            texts[sequence] = []
        while running := [one for one in texts if not one.answer.finish_reason]:
            for sequence, block in zip(running, engine.step(running), strict=True):
                if not isinstance(block, Block):
                    return np.inf
                texts[sequence] += block.tokens
        counts.update(map(tuple, texts.values()))
    if counts.keys() - law.keys():
        return np.inf
    keys = list(law)
    return laws.surprise(np.array([counts[k] for k in keys]), np.array([law[k] for k in keys]))


@pytest.mark.quick_every(6)
@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("accept", ["match", "token", "block"])
def test_law(accept: str, kind: str) -> None:
    """Sampled answers have the law of plain decoding under the masks, enumerated."""
    assert len(law_of(SamplingParams(1.0))) > 20
    assert law_surprise(accept, kind) < LIMIT


@pytest.mark.slow
def test_law_of_trees_and_filters() -> None:
    """The same by trees; and masks come before filters, which then keep the best of the legal."""
    assert law_surprise("match", mode="ddtree", block_size=None, tree_budget=8) < LIMIT
    few = SamplingParams(1.0, top_k=2, top_p=0.9)
    for accept in ("match", "token"):
        assert law_surprise(accept, params=few) < LIMIT


def neighbours_masks(patch: pytest.MonkeyPatch) -> None:
    honest = Constraint._draft_masks

    def rows(self: Constraint, draft: Draft) -> np.ndarray:
        found = honest(self, draft)
        return np.concatenate([found[:1], found[:-1]])

    patch.setattr(Constraint, "_draft_masks", rows)


def test_masks_of_other_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many answers are enough to see one."""
    neighbours_masks(monkeypatch)
    assert law_surprise("match") > LIMIT
