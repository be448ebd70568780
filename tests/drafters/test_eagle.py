"""EAGLE-3 heads: the authors' own results, exactness, and what is kept of a sequence."""

import json
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from eagle_heads import random_head
from feature_texts import Text

from dflash_mlx.drafters.chain import Chains
from dflash_mlx.drafters.eagle3.config import EagleConfig
from dflash_mlx.drafters.eagle3.drafter import EagleDrafter
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair, load
from dflash_mlx.speculation.sampling import Draw, Shaper
from dflash_mlx.speculation.tree import Tree

GOLDEN = tiny.GOLDEN / "eagle3"
MODES: dict[str, dict[str, Any]] = {
    "tree": {"mode": "ddtree", "tree_budget": 59, "max_tokens": 24},
    "chain": {"mode": "dflash", "block_size": 6, "max_tokens": 48},
}


@pytest.fixture(scope="module")
def golden() -> tuple[Pair, dict[str, Any]]:
    pair = load(GOLDEN / "target", GOLDEN / "draft", cache_ram=0)
    return pair, json.loads((GOLDEN / "expected.json").read_text())


@pytest.mark.parametrize("mode", MODES)
def test_answers_of_the_authors_code(golden: Any, mode: str, monkeypatch: Any) -> None:
    """Tokens, the drafts of the first verifies, and how many each verify accepts are theirs."""
    pair, expected = golden
    seen: list[list[list[int]]] = []
    outcome = Sequence.rows

    def rows(self: Sequence, anchor: mx.array, drafts: mx.array, tree: Tree | None = None) -> Any:
        chain = np.array(drafts).tolist()
        paths = tree.paths()[1:] if tree else [chain[: n + 1] for n in range(len(chain))]
        seen.append(sorted([*path] for path in paths))
        return outcome(self, anchor, drafts, tree)

    monkeypatch.setattr(Sequence, "rows", rows)
    for prompt, said in zip(expected["prompts"], expected[mode], strict=True):
        seen.clear()
        sequence = Sequence(pair.target, pair.drafter)
        blocks = list(
            tiny.start(
                sequence,
                prompt,
                SamplingParams(),
                stops=pair.target.eos_ids,
                **MODES[mode],
            )
        )
        tokens = tiny.joined(blocks)
        assert tokens == said["tokens"][: len(tokens)]
        verifies = blocks[1:-1]  # the last one is cut at the end of the answer
        assert [b.accepted for b in verifies] == said["accepted"][: len(verifies)]
        assert len(verifies) > 5
        for ours, theirs in zip(seen, said["drafts"], strict=False):
            assert ours == sorted(theirs)


def test_drafts_are_drawn_from_what_they_say() -> None:
    """Rejection needs q: each row is the head's own distribution after the tokens drawn before."""
    source = random_head(tiny.make_target("qwen3"))
    text = Text(source, 3 * 32)
    tokens = tiny.prompt_of(9)
    shaper = Shaper(SamplingParams(temperature=0.9, top_p=0.8), tiny.VOCAB)
    draw = Draw(shaper, mx.random.key(3), [])
    draft = source.draft([text.fresh(tokens)], [7], 5, [draw])[0].sample(draw)
    drawn = iter(np.array(draft.tokens).tolist())
    _, logits = source.chains([text.fresh(tokens)], [7], 4, lambda _: mx.array([next(drawn)]))
    wanted = mx.softmax(shaper.shape(source.model.spread(logits[:, 0])), axis=-1)
    assert draft.probabilities is not None
    assert tiny.apart(draft.probabilities, wanted) < 1e-6
    chances = np.take_along_axis(np.array(wanted), np.array(draft.tokens)[:, None], -1)
    assert chances.min() > 0
    kept = np.array(wanted).sum(0) > 0
    assert set(np.flatnonzero(kept)) <= set(np.array(source.model.ids(mx.arange(60))).tolist())


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"norm_before_residual": True, "attention_bias": True, "rope_theta": 500.0},
    {"norm_before_fc": True, "norm_output": True},
    {"fc_norm": True, "head_dim": 12, "draft_vocab_size": tiny.VOCAB},
)


@pytest.mark.parametrize("options", OPTIONS)
def test_logits_of_a_plain_computation(options: dict[str, Any]) -> None:
    """Every option of the published configs, by whole matrices in NumPy."""
    source = random_head(tiny.make_target("qwen3"), **options)
    text, tokens, anchor = Text(source, 3 * 32), tiny.prompt_of(7), 5
    chains = Chains(source, [text.fresh(tokens)], [anchor], 3)
    drafts, logits = (found[:, 0] for found in chains.greedy)
    taps = np.array(text.taps(0, tokens))[0]
    read = [*tokens, anchor, *np.array(drafts).tolist()]
    wanted = plain_logits(source, taps, read, 3)
    assert np.abs(np.array(logits) - wanted).max() < 2e-4


def plain_logits(
    source: EagleDrafter, taps: np.ndarray, tokens: list[int], count: int
) -> np.ndarray:
    """Logits [count, Vd] after the tokens that the taps [S, K * Ht] are followed by."""
    model, config = source.model, source.config
    layer, attention = model.midlayer, model.midlayer.self_attn

    def norm(module: Any, x: np.ndarray) -> np.ndarray:
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_norm_eps)
        return x / scale * np.array(module.weight)

    def linear(module: Any, x: np.ndarray) -> np.ndarray:
        bias = np.array(module.bias) if "bias" in module else 0.0
        return x @ np.array(module.weight).T + bias

    if config.norm_before_fc:
        taps = norm(model.input_norm, taps)
    if config.fc_norm:
        parts = np.split(taps, 3, -1)
        taps = np.concatenate([norm(n, x) for n, x in zip(model.fc_norm, parts, strict=True)], -1)
    features = list(linear(model.fc, taps))
    found = []
    for _ in range(count):
        rows = np.array(features)  # feature i stands beside token i + 1
        embeddings = np.array(source.embed(mx.array(tokens[1 : len(rows) + 1])))
        normed = norm(layer.hidden_norm, rows)
        x = np.concatenate([norm(layer.input_layernorm, embeddings), normed], -1)
        queries, keys, values = (
            linear(part, x).reshape(len(x), -1, config.head_dim)
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        queries, keys = turned(queries, config), turned(keys, config)
        mixed = []
        for head in range(config.num_heads):
            shared = head // (config.num_heads // config.num_kv_heads)
            scores = keys[:, shared] @ queries[-1, head] / np.sqrt(config.head_dim)
            weights = np.exp(scores - scores.max())
            mixed.append(weights / weights.sum() @ values[:, shared])
        residual = (normed if config.norm_before_residual else rows)[-1]
        out = residual + linear(attention.o_proj, np.concatenate(mixed))
        inner = norm(layer.post_attention_layernorm, out)
        gate = linear(layer.mlp.gate_proj, inner)
        out = out + linear(
            layer.mlp.down_proj, gate / (1 + np.exp(-gate)) * linear(layer.mlp.up_proj, inner)
        )
        last = norm(model.norm, out)
        features.append(last if config.norm_output else out)
        found.append(linear(model.lm_head, last))
    return np.array(found)


def turned(x: np.ndarray, config: EagleConfig) -> np.ndarray:
    """Rows [S, heads, d] with their positions rotated in."""
    half = config.head_dim // 2
    rates = config.rope_theta ** (-np.arange(half) / half)
    angles = np.arange(len(x))[:, None, None] * rates
    first, second = x[..., :half], x[..., half:]
    return np.concatenate(
        [
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        ],
        -1,
    )
