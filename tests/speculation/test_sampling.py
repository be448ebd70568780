"""Above temperature 0 the output has the target's distribution: chi-square against exact laws."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from eagle_heads import settings
from mlx_lm import sample_utils
from sampling_law import (
    COUNT,
    LIMIT,
    PLAIN,
    SETTINGS,
    Tables,
    answer_surprise,
    block_surprise,
    every_drafter,
    every_rule,
    golden,
    golden_law,
    golden_settings,
    gumbel_categorical,
    lattice_tables,
    outputs,
    random_tables,
    stock_probabilities,
    surprise,
    tables_of,
)
from stock import WAYS, check, stock_answer

from dflash_mlx import api
from dflash_mlx.drafters.chain import ChainBlock, Chains, ChainSource, Choose
from dflash_mlx.drafters.dflash.markov import Walks
from dflash_mlx.drafters.eagle3.config import parse
from dflash_mlx.drafters.eagle3.model import EagleModel
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.round import DraftProposal
from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.kernels import outcome
from dflash_mlx.kernels import verify_accept_sample as op
from dflash_mlx.models.cache.recurrent import RecurrentCache
from dflash_mlx.models.target import Target
from dflash_mlx.options import AcceptanceRule, SamplingParams
from dflash_mlx.speculation import acceptance, sampling
from dflash_mlx.speculation.acceptance import (
    RULES,
    BlockVerification,
    Match,
    TokenRejection,
    make_rule,
)
from dflash_mlx.speculation.drafts import Draft, DraftBlock, Independent, Lattice
from dflash_mlx.speculation.sampling import KEYS, Draw, Keys, Shaper
from dflash_mlx.types import Block, Plan

FEWER = 20_000


class TableChain(ChainSource):
    """Stands in for what drafts token by token: logits of a position for every way to it.

    `near` are logits as the target's. An EAGLE-3 head's last axis is cut to the tokens that it has.
    """

    def __init__(self, near: list[mx.array], head: EagleModel | None = None):
        self.rows = near if head is None else [row[..., FOUR_OF_FIVE] for row in near]
        self.head = head

    def ids(self, tokens: mx.array) -> mx.array:
        return tokens if self.head is None else self.head.ids(tokens)

    def spread(self, logits: mx.array) -> mx.array:
        return logits if self.head is None else self.head.spread(logits)

    def chains(
        self, caches: Any, anchors: Any, count: int, choose: Choose
    ) -> tuple[mx.array, mx.array]:
        tokens, said = list[Any](), list[mx.array]()
        for place, row in enumerate(self.rows[:count]):
            said.append(row[tuple(tokens)][None] if place else row[None])
            tokens.append(choose(said[-1])[0])
        return mx.stack(tokens)[:, None], mx.stack(said)


class TableBlock:
    """A block that is drafted anew each time, since a draw is another each time."""

    def __init__(self, source: ChainSource, positions: int):
        self.source, self.positions = source, positions

    def _drafted(self, draw: Draw | None) -> DraftBlock:
        return ChainBlock(Chains(self.source, [None], [0], self.positions, [draw]), 0)

    def greedy(self, kernels: Any = None) -> Draft:
        return self._drafted(None).greedy()

    def sample(self, draw: Draw) -> Draft:
        return self._drafted(draw).sample(draw)


FOUR_OF_FIVE = mx.array([0, 1, 3, 4])


def head_without_a_token() -> EagleModel:
    config = parse(settings(vocab_size=5, draft_vocab_size=4))
    model = EagleModel(config, 3, tiny.BASE["hidden_size"], frozenset({"lm_head"}))
    model.d2t = FOUR_OF_FIVE - mx.arange(4)
    return model


def markov_walks(near: list[mx.array]) -> Walks:
    """The blocks of a DSpark drafter: its Markov head adds to the logits what it remembers."""
    target = tiny.make_target("qwen3", vocab_size=5)
    nested = {"mask_token_id": 4, "target_layer_ids": [0, 2]}
    settings = tiny.dspark_settings(target, "rnn", dflash_config=nested)
    model = tiny.random_drafter(target, **settings).model
    logits = mx.stack([row.reshape(-1, 5).mean(axis=0) for row in near])
    hidden = mx.random.normal((1, len(near), target.hidden_size), key=mx.random.key(9))
    return Walks(model, logits[None], hidden)


@cache
def chain_tables(drafter: str) -> Tables:
    """The same target with what drafts token by token, and whose logits are near its."""
    rows = random_tables().rows
    keys = mx.random.split(mx.random.key(8), len(rows))
    drafted = zip(rows[:-1], keys[:-1], strict=True)
    near = [0.7 * row + mx.random.normal(row.shape, key=key) for row, key in drafted]
    head = head_without_a_token() if drafter == "eagle3" else None
    source = markov_walks(near) if drafter == "dspark" else TableChain(near, head)
    block: Any = TableBlock(source, len(near))
    return Tables(block, rows, [3, 1, 1, 4])


@pytest.mark.quick_every(3)
@every_rule
@every_drafter
@pytest.mark.parametrize("setting", SETTINGS)
def test_block_law(rule: str, setting: str, drafter: str) -> None:
    """One block of three drafts: each rule keeps the law under every setting."""
    assert block_surprise(RULES[rule], SETTINGS[setting], tables_of(drafter)) < LIMIT


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("drafter", ["model", "eagle3", "dspark"])
@pytest.mark.parametrize("setting", ["plain", "everything"])
def test_law_of_drafts_drawn_one_by_one(rule: str, setting: str, drafter: str) -> None:
    """Of a small model or an MTP head, of EAGLE-3 and of DSpark: rejection keeps the law."""
    assert block_surprise(RULES[rule], SETTINGS[setting], chain_tables(drafter), FEWER) < LIMIT


@every_rule
def test_law_with_a_bad_drafter(rule: str) -> None:
    """A drafter that knows nothing costs speed, never the law."""
    for tables in (random_tables(), lattice_tables()):
        block: Any = tables.block
        if isinstance(block, Lattice):
            worse: DraftBlock = replace(block, scores=-3 * block.scores)
        else:
            worse = Independent(-3 * block.logits)
        bad = Tables(worse, tables.rows, tables.history)
        assert block_surprise(RULES[rule], PLAIN, bad) < LIMIT


@pytest.mark.quick_every(2)
@pytest.mark.parametrize(("drafter", "gain"), [("dflash", 0.01), ("dflash2", 0.005)])
def test_block_verification_keeps_more(drafter: str, gain: float) -> None:
    """Block verification keeps at least as many drafts as token by token; both keep some."""
    tables = tables_of(drafter)
    means = {rule: outputs(RULES[rule], PLAIN, tables, 8 * COUNT)[1].mean() for rule in RULES}
    assert means["block"] > means["token"] + gain
    assert min(means.values()) > 0.2


class KeepsOneTooMany(Match):
    def _chain_outcome(self, draft: Draft, rows: mx.array, place: int) -> mx.array:
        chosen = self.choose(rows, range(place, place + len(rows)))
        kept = outcome.count_prefix(chosen[:-1] == draft.tokens)
        kept = mx.minimum(kept + 1, draft.tokens.shape[0])
        return outcome.pack(mx.array(0), kept, chosen[kept], draft.tokens)


class OneKeyARound(Match):
    """A fault: all rows of a block are drawn with one key."""

    def choose(self, rows: mx.array, places: Sequence[int]) -> mx.array:
        return super().choose(rows, [places[0]] * len(places))


def no_residual(patch: pytest.MonkeyPatch) -> type[Match]:
    """A fault: after a rejection the bonus is a plain sample."""
    honest = op.sample_residual
    patch.setattr(op, "sample_residual", lambda p, q, weight, word: honest(p, q * 0, weight, word))
    return TokenRejection


def inverted(patch: pytest.MonkeyPatch) -> type[Match]:
    honest = op.accept_tokens
    patch.setattr(op, "accept_tokens", lambda at_p, at_q, chances: honest(at_q, at_p, chances))
    return TokenRejection


def no_weight(patch: pytest.MonkeyPatch) -> type[Match]:
    """A fault: the residual forgets the joint ratio."""
    honest = op.sample_residual
    one = mx.array(1.0)
    patch.setattr(op, "sample_residual", lambda p, q, weight, word: honest(p, q, one, word))
    return BlockVerification


def one_word(patch: pytest.MonkeyPatch) -> type[Match]:
    """A fault: the word that decides about the first draft draws the bonus token too."""
    honest = acceptance.random_bits
    patch.setattr(acceptance, "random_bits", lambda *args: honest(*args)[mx.array([0, 1, 2, 0])])
    return TokenRejection


@pytest.mark.quick_every(2)
@pytest.mark.parametrize(
    "fault",
    [
        lambda _: KeepsOneTooMany,
        lambda _: OneKeyARound,
        no_residual,
        inverted,
        no_weight,
        one_word,
    ],
)
def test_broken_rules_are_noticed(
    fault: Callable[[pytest.MonkeyPatch], type[Match]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = fault(monkeypatch)
    assert block_surprise(rule, PLAIN, random_tables(), 8 * COUNT) > 3 * LIMIT


@every_rule
def test_what_was_drawn_does_not_decide_what_is_verified(rule: str) -> None:
    """Not even a draft that ends the answer cuts the chain."""
    logits, ends, seen = mx.array([[2.0, 0.0, 1.0, 1.9]] * 5), frozenset({0}), set()
    block = Independent(logits)
    chosen = make_rule(rule, replace(PLAIN, seed=3), 4)
    for _ in range(20):
        draft = chosen.draft(block, chosen.draw([1]))
        seen.add(tuple(np.array(draft.tokens).tolist()))
        offer = DraftProposal(block, draft, ends)
        assert [offer.cut(Plan(rows), 3).drafted for rows in range(1, 6)] == [0, 1, 2, 3, 3]
    assert (len(seen) > 1) == (rule != "match")


class OtherQ(Lattice):
    """A fault: q is that of a walk that ignores the token before, the drafts are not."""

    def passed(self, path: mx.array, rows: mx.array | None = None) -> mx.array:
        return super().passed(mx.zeros_like(path), rows)


class Elsewhere:
    """A fault: another block's drafts with the q of other drafts of it."""

    def __init__(self, block: DraftBlock):
        self.block = block

    def sample(self, draw: Draw) -> Draft:
        others = self.block.sample(replace(draw, key=mx.random.split(draw.key)[0]))
        return replace(self.block.sample(draw), probabilities=others.probabilities)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("drafter", ["dflash2", "model", "eagle3"])
def test_a_q_of_other_drafts_is_noticed(rule: str, drafter: str) -> None:
    """Planted: drafts and their q must come from one walk."""
    honest = lattice_tables() if drafter == "dflash2" else chain_tables(drafter)
    block: Any = honest.block
    faulty: Any = (
        OtherQ(block.candidates, block.scores) if drafter == "dflash2" else Elsewhere(block)
    )
    tables = Tables(faulty, honest.rows, honest.history)
    count = 8 * COUNT if drafter == "dflash2" else FEWER
    assert block_surprise(RULES[rule], SETTINGS["hot"], tables, count) > 3 * LIMIT


@pytest.mark.parametrize("params", [PLAIN, SETTINGS["everything"]])
def test_walks_are_drawn_one_position_after_another(params: SamplingParams) -> None:
    """Drawing every row at once is drawing after each draft: the walks' law, and each walk's q."""
    tables = lattice_tables()
    block: Any = tables.block

    def run(key: mx.array) -> tuple[mx.array, mx.array]:
        draft = block.sample(Draw(Shaper(params, tables.vocab), key, tables.history))
        assert draft.probabilities is not None
        assert draft.candidates is not None
        nothing = mx.zeros((tables.width - 1, tables.vocab))
        q = mx.put_along_axis(nothing, draft.candidates, draft.probabilities, axis=-1)
        return draft.tokens, q

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx.random, "categorical", gumbel_categorical)
        tokens, q = map(np.array, mx.vmap(run)(mx.random.split(mx.random.key(5), COUNT)))
    ids, rows = np.array(block.candidates), np.array(block.scores / params.temperature)
    chances = np.exp(rows) / np.exp(rows).sum(axis=-1, keepdims=True)
    law = np.zeros((tables.vocab,) * len(ids))
    for i, j, k in np.ndindex(rows.shape[1:] + rows.shape[2:]):
        walk = chances[0, 0, i] * chances[1, i, j] * chances[2, j, k]
        law[ids[0, i], ids[1, j], ids[2, k]] = walk
    counts = np.zeros(law.shape)
    np.add.at(counts, tuple(tokens.T), 1)
    assert surprise(counts, law) < LIMIT
    drawn = np.take_along_axis(q, tokens[..., None], axis=-1)[..., 0].prod(axis=1)
    assert np.abs(drawn - law[tuple(tokens.T)]).max() < 1e-5
    assert ((q > 0).sum(axis=-1) == ids.shape[1]).all()
    assert np.abs(q.sum(axis=-1) - 1).max() < 1e-5


def test_block_verification_rounding() -> None:
    """A prefix of joint ratio 1 is kept though the next rows are all but equal."""
    p = mx.array([[0.5, 0.5], [1.0, 1e-30], [0.5, 0.5]])
    q = mx.array([[0.5, 0.5], [1 - 1.788e-7, 1.788e-7]])
    kept = set()
    for seed in range(60):
        rule = BlockVerification(SamplingParams(temperature=1.0, seed=seed), 2)
        draft = Draft(mx.array([0, 1]), q)
        kept.add(len(rule.accept(draft, rule.outcome(draft, mx.log(p), [], 0)).drafts))
    assert kept == {1}


@pytest.mark.parametrize("setting", SETTINGS)
def test_shaper_is_mlx_lm(setting: str) -> None:
    """Filters and temperature: support and probabilities are those of mlx-lm's sampler."""
    params = SETTINGS[setting]
    rows = 2.5 * mx.random.normal((20, 30), key=mx.random.key(1))
    shaped = np.array(mx.softmax(Shaper(params, 30).shape(rows), axis=-1))
    for row, ours in zip(rows, shaped, strict=True):
        theirs = stock_probabilities(row[None], params)
        assert ((ours > 0) == (theirs > 0)).all()
        assert np.abs(ours - theirs).max() < 1e-5


def test_penalties_are_mlx_lm() -> None:
    """Row j is penalised for the history and the first j drafts; only the last 20 tokens count."""
    params = SETTINGS["everything"]
    rows = mx.random.normal((4, 30), key=mx.random.key(1))
    before = rows.tolist()
    history, drafts = tiny.prompt_of(35), mx.array([7, 7, 9])
    history = [token % 30 for token in history]
    ours = Shaper(params, 30).penalise(rows, history, drafts)
    processors = sample_utils.make_logits_processors(
        dict(params.logit_bias) or None,
        params.repetition_penalty,
        20,
        params.presence_penalty,
        20,
        params.frequency_penalty,
    )
    for number in range(4):
        row = rows[number : number + 1]
        for process in processors:
            row = process(mx.array([*history, *[7, 7, 9][:number]]), row)
        assert tiny.apart(ours[number], row[0]) < 1e-6
    assert rows.tolist() == before


def test_golden_distributions() -> None:
    """The laws that these tests enumerate are those that the authors' code gives."""
    settings = golden_settings()
    assert len(settings) == 8
    for prompt, params, reference in settings:
        law = golden_law(tuple(prompt), params)
        assert {key for key, value in law.items() if value > 1e-9} <= set(reference)
        for key, value in reference.items():
            assert abs(law.get(key, 0.0) - value) < 1e-4


@pytest.mark.slow
@every_rule
@every_drafter
@pytest.mark.parametrize("number", [0, 3])
def test_golden_answers(rule: str, drafter: str, number: int) -> None:
    """Whole answers with a real drafter: plain, and top-k with top-p."""
    prompt, params, _ = golden_settings()[number]
    assert answer_surprise(rule, prompt, params, 200, drafter=drafter) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "drafter"), [("token", "eagle3"), ("block", "model")])
def test_golden_answers_drafted_one_by_one(rule: str, drafter: str) -> None:
    """Whole answers by rejection with a real small model and a real EAGLE-3 head."""
    prompt, params, _ = golden_settings()[3]
    assert answer_surprise(rule, prompt, params, 100, drafter=drafter) < LIMIT


@pytest.mark.slow
@every_rule
@every_drafter
@pytest.mark.parametrize("family", ["qwen3_5", "gpt_oss"])
def test_answers_of_other_caches(rule: str, family: str, drafter: str) -> None:
    """Whole answers of a hybrid and of a target whose windows are full when it begins."""
    prompt = [token % 9 for token in tiny.prompt_of(tiny.WINDOW + 8)]
    params = SamplingParams(temperature=1.2, top_k=6, top_p=0.95)
    assert answer_surprise(rule, prompt, params, 250, family=family, drafter=drafter) < LIMIT


@pytest.mark.slow
@every_rule
@every_drafter
def test_penalised_answers(rule: str, drafter: str) -> None:
    """Whole answers with every filter and penalty on."""
    prompt, _, _ = golden_settings()[4]
    assert answer_surprise(rule, prompt, SETTINGS["everything"], 200, drafter=drafter) < LIMIT


@pytest.mark.slow
def test_baseline_answers() -> None:
    """Plain decoding draws from the same law."""
    prompt, _, _ = golden_settings()[4]
    assert answer_surprise("match", prompt, SETTINGS["everything"], 150, "baseline") < LIMIT


@pytest.mark.slow
def test_broken_answers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred answers are enough to see a fault; a state that is not taken back is one."""
    prompt, params, _ = golden_settings()[0]
    with monkeypatch.context() as patch:
        patch.setitem(RULES, "match", KeepsOneTooMany)
        assert answer_surprise("match", prompt, params, 300) > LIMIT
    prompt = [token % 9 for token in tiny.prompt_of(tiny.WINDOW + 8)]
    params = SamplingParams(temperature=1.2, top_k=6, top_p=0.95)
    honest = RecurrentCache.rewind

    def leave(self: RecurrentCache, *args: Any) -> None:
        state = list(self.cache)
        honest(self, *args)
        self.cache = state

    monkeypatch.setattr(RecurrentCache, "rewind", leave)
    assert answer_surprise("match", prompt, params, 300, family="qwen3_5") > LIMIT


@pytest.mark.quick_every(2)
@every_rule
@every_drafter
def test_seeds(rule: AcceptanceRule, drafter: str) -> None:
    """The same seed gives the same tokens; other seeds, and none, give others."""

    def answer(seed: int | None) -> list[int]:
        sampling = SamplingParams(temperature=1.5, seed=seed)
        return api.generate(
            golden(drafter), [1, 5, 6, 0], sampling=sampling, max_tokens=24, accept=rule
        ).tokens

    first = [answer(seed) for seed in range(6)]
    assert first == [answer(seed) for seed in range(6)]
    assert len({tuple(tokens) for tokens in first}) == 6
    assert len({tuple(answer(None)) for _ in range(4)}) > 1


def test_greedy_rules_are_one() -> None:
    """At temperature 0 every rule is the greedy prefix and draws nothing."""
    assert {type(make_rule(name, SamplingParams(), 12)) for name in RULES} == {Match}


MANY = {"top_p": 0.9, "min_p": 0.02, "top_k": 20}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4}
STOCK_SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "top_k": {"top_k": 9},
    "penalties": PENALTIES,
    "everything": {**MANY, **PENALTIES},
}


@cache
def seeded_target(family: str) -> Target:
    """A random target whose choices are open at temperature 1."""
    return tiny.make_target(family, scale=1.0)


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("family", ["qwen3", "llama_sliding", "qwen3_5", "lfm2"])
@pytest.mark.parametrize("setting", STOCK_SETTINGS)
def test_a_seeded_answer_is_stocks(setting: str, family: str) -> None:
    """Token n is drawn with the n-th key of the seed in every mode, whatever the rounds were."""
    for temperature in (1.0, 1.5):
        params = SamplingParams(temperature, seed=7, **STOCK_SETTINGS[setting])
        assert len({*check(seeded_target(family), params, accepted=21, stops=False)}) > 6


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "lfm2_moe"])
def test_seeded_answers_in_shared_rounds_are_stocks(family: str) -> None:
    """Sequences of all modes in one engine at once, each with its own seed and settings."""
    target = seeded_target(family)
    engine = Engine(target, tiny.random_drafter(target))
    said: dict[TokenSequence, list[int]] = {}
    wanted = []
    for seed, (mode, options) in enumerate([*WAYS, *WAYS]):
        setting = "everything" if seed > 2 else "top_p"
        params = SamplingParams(1.0, seed=seed, **STOCK_SETTINGS[setting])
        prompt = tiny.prompt_of(20 + seed, seed)
        wanted.append(stock_answer(target, params, prompt=prompt, stops=False))
        sequence = TokenSequence(target, *engine.drafters)
        request = Request(tuple(prompt), sampling=params, max_tokens=24, mode=mode, **options)
        engine.begin(sequence, request, len(prompt) - 1)
        said[sequence] = []
    while running := [sequence for sequence in said if not sequence.answer.finish_reason]:
        for sequence, block in zip(running, engine.step(running), strict=True):
            assert isinstance(block, Block)
            said[sequence] += block.tokens
    assert list(said.values()) == wanted


def test_keys_are_those_of_the_global_generator() -> None:
    """One a draw after `mx.random.seed`, also beyond those that are made at once."""
    logits, keys = mx.zeros((1, 1000)), Keys(5)
    mx.random.seed(5)
    drawn: list[Any] = [mx.random.categorical(logits).tolist() for _ in range(2 * KEYS + 3)]
    assert [mx.random.categorical(logits, key=keys[n]).tolist() for n in range(len(drawn))] == drawn
    last = len(drawn) - 1
    assert mx.random.categorical(logits, key=Keys(5)[last]).tolist() == drawn[last]


@pytest.mark.parametrize("vocab", [5, 512, 32_000])
def test_rows_are_drawn_as_each_alone(vocab: int) -> None:
    """`categorical` of many rows is MLX's of every single one, also where tokens are filtered."""
    keys = Keys(9)
    rows = 4 * mx.random.normal((16, vocab), key=mx.random.key(2))
    for found in (rows, mx.where(rows < 2, -mx.inf, rows), mx.full((16, vocab), -mx.inf)):
        wanted = [mx.random.categorical(found[j : j + 1], key=keys[3 + j]) for j in range(16)]
        drawn = sampling.categorical(found, keys.uniforms(range(3, 19)))
        assert drawn.tolist() == mx.concatenate(wanted).tolist()
