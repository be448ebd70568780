"""Exact distributions of sampled outputs under mlx-lm's sampler, and the deviation from them."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import stock
import tiny
from eagle_heads import random_head
from mlx_lm import sample_utils

from dflash_mlx import api
from dflash_mlx.drafters.small_model import SmallModelDrafter
from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.options import Mode, SamplingParams
from dflash_mlx.pair import Pair, load
from dflash_mlx.policy.policy import Policy
from dflash_mlx.speculation.acceptance import RULES, Match
from dflash_mlx.speculation.drafts import DraftBlock, Independent, Lattice

PLAIN = SamplingParams(temperature=0.8)
SETTINGS = {
    "plain": PLAIN,
    "top_k": replace(PLAIN, top_k=4),
    "top_p": replace(PLAIN, top_p=0.9),
    "top_k_top_p": replace(PLAIN, top_k=4, top_p=0.9),
    "min_p": replace(PLAIN, min_p=0.1),
    "hot": SamplingParams(temperature=1.7),
    "repetition": replace(PLAIN, repetition_penalty=1.6),
    "presence": replace(PLAIN, presence_penalty=1.5),
    "frequency": replace(PLAIN, frequency_penalty=1.1),
    "bias": replace(PLAIN, logit_bias=((1, 2.0), (3, -1.5))),
    "everything": SamplingParams(0.7, 0.95, 4, 0.02, 1.3, 0.5, 0.4),
}
COUNT = 60_000
LIMIT = 5.0  # standard deviations; a correct run exceeds it once in three million
EOS = 9
every_rule = pytest.mark.parametrize("rule", RULES)
every_drafter = pytest.mark.parametrize("drafter", ["dflash", "dflash2"])


class Tables:
    """A made-up target and drafter: logits of row j for each choice of the tokens before it."""

    def __init__(self, block: DraftBlock, rows: list[mx.array], history: list[int]):
        self.block, self.rows, self.history = block, rows, history
        self.width, self.vocab = len(rows), rows[0].shape[-1]


@cache
def random_tables(seed: int = 3, vocab: int = 5, width: int = 4) -> Tables:
    """Random logits; the drafter's are near the target's mean, so that some drafts are accepted."""
    keys = iter(mx.random.split(mx.random.key(seed), width + 1))
    rows = [1.5 * mx.random.normal((vocab,) * (j + 1), key=next(keys)) for j in range(width)]
    means = mx.stack([row.reshape(-1, vocab).mean(axis=0) for row in rows[:-1]])
    drafts = 0.7 * means + mx.random.normal(means.shape, key=next(keys))
    return Tables(Independent(drafts), rows, [3, 1, 1, 4])


@cache
def lattice_tables(seed: int = 3, vocab: int = 5, width: int = 4, k: int = 3) -> Tables:
    """The same target with a DFlash 2 drafter: k candidates per position, near its logits."""
    rows = random_tables(seed, vocab, width).rows
    keys = iter(mx.random.split(mx.random.key(seed + 1), 2 * width))
    candidates, scores = [], []
    for number, row in enumerate(rows[:-1]):
        near = row.reshape(-1, vocab, vocab).mean(axis=0) if number else row[None]
        top = mx.sort(mx.random.permutation(vocab, key=next(keys))[:k])
        near = near[candidates[-1]] if number else mx.broadcast_to(near, (k, vocab))
        noise = mx.random.normal((k if number else 1, k), key=next(keys))
        candidates.append(top)
        scores.append(0.7 * near[:, top] + noise)
    lattice = Lattice(mx.stack(candidates).astype(mx.uint32), mx.stack(scores))
    return Tables(lattice, rows, [3, 1, 1, 4])


def stock_law(tables: Tables, params: SamplingParams) -> list[np.ndarray]:
    """P(token at position j | tokens before it), as mlx-lm's generate_step samples it."""
    processors = stock.processors_of(params)
    laws = []
    for row in tables.rows:
        law = np.zeros(row.shape)
        for filled in np.ndindex(row.shape[:-1]):
            logits = row[filled][None]
            for process in processors:
                logits = process(mx.array([*tables.history, *filled]), logits)
            law[filled] = stock_probabilities(logits, params)
        laws.append(law)
    return laws


def stock_probabilities(logits: mx.array, params: SamplingParams) -> np.ndarray:
    sampler = sample_utils.make_sampler(
        params.temperature, params.top_p, params.min_p, 1, params.top_k
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sample_utils, "categorical_sampling", lambda rows, t: mx.softmax(rows / t, axis=-1)
        )
        return np.array(sampler(logits - mx.logsumexp(logits, keepdims=True))[0], dtype=np.float64)


def joint(laws: list[np.ndarray]) -> np.ndarray:
    product = laws[0]
    for law in laws[1:]:
        product = product[..., None] * law
    return product


class OneKey:
    """Replaces Keys under vmap: splits the keys of all positions from one key."""

    def __init__(self, key: mx.array):
        self.key = key

    def __getitem__(self, place: int) -> mx.array:
        return mx.random.split(self.key, 8)[place]

    def uniforms(self, places: Sequence[int]) -> mx.array:
        return mx.stack([mx.random.uniform(shape=(), key=self[place]) for place in places])


def gumbel_categorical(logits: mx.array, axis: int = -1, *, key: mx.array) -> mx.array:
    """mx.random.categorical in a form that vmap supports."""
    assert axis == -1
    return mx.argmax(logits + mx.random.gumbel(logits.shape, key=key), axis=-1)


def outputs(
    rule: Callable[..., Match], params: SamplingParams, tables: Tables, count: int = COUNT
) -> tuple[np.ndarray, np.ndarray]:
    """Run one block many times: outputs [count, width], and accepted drafts of each [count].

    Positions after the bonus token are filled from the target's distribution. So whole outputs have
    the right distribution if and only if the committed tokens have it.
    """

    def run(key: mx.array) -> mx.array:
        judge = rule(params, tables.vocab)
        judge.keys = OneKey(key)  # type: ignore[assignment]
        draft = judge.draft(tables.block, judge.draw(tables.history))
        tokens = [draft.tokens[j] for j in range(tables.width - 1)]
        rows = [row[tuple(tokens[:j])] if j else row for j, row in enumerate(tables.rows)]
        return judge.outcome(draft, mx.stack(rows), tables.history, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx.random, "categorical", gumbel_categorical)
        many = np.array(mx.vmap(run)(mx.random.split(mx.random.key(11), count)))
    assert not many[:, 0].any()
    kept, bonus, drafts = many[:, 1], many[:, 2], many[:, 3:]
    tokens = np.concatenate([drafts, np.zeros((count, 1), dtype=drafts.dtype)], axis=1)
    tokens[np.arange(count), kept] = bonus
    fill(tokens, kept, tables, params)
    return tokens, kept


def fill(tokens: np.ndarray, kept: np.ndarray, tables: Tables, params: SamplingParams) -> None:
    """Fill the positions after each bonus token, at `kept`, from the target's distribution."""
    dice, count = np.random.default_rng(12), len(tokens)
    for place, law in enumerate(stock_law(tables, params)):
        steps = law[tuple(tokens[:, :place].T)] if place else np.tile(law, (count, 1))
        drawn = (steps.cumsum(axis=1) < dice.random((count, 1))).sum(axis=1)
        said = tokens[:, place]
        tokens[:, place] = np.where(place > kept, drawn.clip(max=tables.vocab - 1), said)


def surprise(counts: np.ndarray, law: np.ndarray) -> float:
    """The deviation of counts from a distribution in standard deviations (chi-square).

    Small cells are pooled. Infinite if an output has probability 0.
    """
    counts, law = counts.ravel().astype(float), law.ravel()
    if counts[law <= 1e-12].any():
        return np.inf
    mean = law * counts.sum() / law.sum()
    small = mean < 5
    counts = np.append(counts[~small], counts[small].sum())
    mean = np.append(mean[~small], mean[small].sum())
    counts, mean = counts[mean > 0], mean[mean > 0]
    degrees = len(mean) - 1
    chi = ((counts - mean) ** 2 / mean).sum()
    # Wilson and Hilferty: the cube root of chi-square over its degrees is almost normal.
    spread = 2 / (9 * degrees)
    return float(((chi / degrees) ** (1 / 3) - (1 - spread)) / spread**0.5)


def block_surprise(
    rule: Callable[..., Match], params: SamplingParams, tables: Tables, count: int = COUNT
) -> float:
    tokens, _ = outputs(rule, params, tables, count)
    counts = np.zeros((tables.vocab,) * tables.width)
    np.add.at(counts, tuple(tokens.T), 1)
    return surprise(counts, joint(stock_law(tables, params)))


def tables_of(drafter: str) -> Tables:
    return random_tables() if drafter == "dflash" else lattice_tables()


@cache
def golden(drafter: str = "dflash") -> Pair:
    """The golden pair with 12 tokens, with this kind of drafter."""
    folder = tiny.GOLDEN / "sampling"
    if drafter in ("model", "eagle3"):
        alone = load(folder / "target", no_draft=True, cache_ram=0)
        target = alone.target
        own = alone.tokenizer
        vocab = target.vocab_size
        if drafter == "model":
            small = tiny.make_target("qwen3", scale=0.8, vocab_size=vocab)
            return tiny.make_pair(target, SmallModelDrafter(small, vocab), "golden", drafter, own)
        return tiny.make_pair(
            target, random_head(target, draft_vocab_size=vocab), "golden", drafter, own
        )
    draft = folder / ("draft" if drafter == "dflash" else "draft_dflash2")
    return load(folder / "target", draft)


@cache
def pair_of(family: str, drafter: str = "dflash") -> Pair:
    if family == "golden":
        return golden(drafter)
    target = tiny.make_target(family, scale=0.8, vocab_size=12)
    shape = tiny.dflash2_settings(target) if drafter == "dflash2" else tiny.draft_settings(target)
    own = {"mask_token_id": 10, "target_layer_ids": [0, 2], "block_size": 4}
    shape["dflash_config"] = {**shape["dflash_config"], **own}
    return tiny.make_pair(target, tiny.random_drafter(target, **shape), family, "random")


@cache
def golden_law(
    prompt: tuple[int, ...], params: SamplingParams, family: str = "golden"
) -> dict[tuple[int, ...], float]:
    """The distribution of outputs of up to three tokens, enumerated with the stock model."""
    target = pair_of(family).target
    vocab = target.vocab_size
    rows = []
    for length in range(3):
        filled = [list(i) for i in np.ndindex((vocab,) * length)]
        logits = target.model(mx.array([[*prompt, *tokens] for tokens in filled]))[:, -1]
        rows.append(logits.reshape((vocab,) * (length + 1)))
    whole = joint(stock_law(Tables(Independent(mx.zeros((2, vocab))), rows, list(prompt)), params))
    law: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for tokens, probability in np.ndenumerate(whole):
        law[cut(tokens)] += float(probability)
    return dict(law)


def cut(tokens: tuple[int, ...]) -> tuple[int, ...]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def answer_surprise(
    rule: str,
    prompt: list[int],
    params: SamplingParams,
    count: int,
    mode: Mode = "dflash",
    family: str = "golden",
    drafter: str = "dflash",
    policy: Policy | None = None,
    **options: Any,
) -> float:
    pair = pair_of(family, drafter)
    law = golden_law(tuple(prompt), params, family)
    counts: Counter[tuple[int, ...]] = Counter()
    if mode == "baseline":
        for seed in range(count):
            seeded = replace(params, seed=seed)
            result = api.generate(pair, prompt, sampling=seeded, max_tokens=3, mode="baseline")
            counts[tuple(result.tokens)] += 1
    else:
        sequence = TokenSequence(pair.target, pair.drafter)
        for seed in range(count):
            answer = tiny.start(
                sequence,
                prompt,
                replace(params, seed=seed),
                rule,
                block_size=4,
                max_tokens=3,
                stops=frozenset({EOS}),
                mode=mode,
                policy=policy,
                **options,
            )
            counts[tuple(tiny.joined(list(answer)))] += 1
    unlisted = [key for key in counts if key not in law]
    assert not unlisted
    keys = list(law)
    return surprise(np.array([counts[k] for k in keys]), np.array([law[k] for k in keys]))


def golden_settings() -> list[tuple[list[int], SamplingParams, dict[tuple[int, ...], float]]]:
    """Prompt, parameters and distribution of each golden case in mlx-lm's order."""
    data = json.loads((tiny.GOLDEN / "sampling" / "expected_distribution.json").read_text())
    return [
        (
            data["prompts"][entry["prompt_index"]],
            SamplingParams(entry["temperature"], entry["top_p"], entry["top_k"]),
            {
                tuple(map(int, key.split(","))): value
                for key, value in entry["outputs"].items()
                if value > 0
            },
        )
        for entry in data["distributions"]
        if entry["order"] == "mlx_lm"
    ]
