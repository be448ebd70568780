"""Train an EAGLE-3 head of about the drafter's size for the bundled target, for comparisons.

    .venv/bin/python examples/recipes/bundled_pair/eagle3.py --steps 600 --out runs/eagle3
    dflash bench --drafts dflash,eagle3:runs/eagle3,eagle3-60:runs/eagle3,lookup,none

The training-time test of the paper (arXiv 2503.01840, section 3): the head reads its own hidden
states for several steps in training, too. Step k of row i reads the token at i + 1 + k beside what
step k - 1 gave that row, attends to the target's features up to row i and to the row's own steps,
and learns the target's distribution of the token after. `distil` has the text and the rest.
"""

from collections.abc import Iterator
from typing import Any

from dflash_mlx import Pair

# isort: split
import mlx.core as mx
from distil import Batch, arguments, bundled_target, cross_entropy, save, train

from dflash_mlx.drafters.eagle3.config import parse
from dflash_mlx.drafters.eagle3.model import EagleModel

AHEAD = 5  # steps of the training-time test
DECAY = 0.8  # weight of each step relative to the one before, as in the authors' training
Rows = tuple[mx.array, mx.array]  # keys and values [B, heads, S, d]


def settings(pair: Pair) -> dict[str, Any]:
    """The head's config.json: the target's vocabulary, a wider MLP than the drafter's."""
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    target = pair.target.config
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{name: target[name] for name in names},
        "draft_vocab_size": target["vocab_size"],
        "intermediate_size": 896,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": target["max_position_embeddings"],
    }


def heads_of(model: EagleModel, x: mx.array, name: str, offset: int | None = None) -> mx.array:
    """Project rows x [B, S, 2 H] to heads [B, heads, S, d]; with an offset, apply RoPE."""
    attention = model.midlayer.self_attn
    out = attention[name](x).reshape(*x.shape[:2], -1, attention.dim).transpose(0, 2, 1, 3)
    return out if offset is None else attention.rope(out, offset=offset)


def steps_of(model: EagleModel, features: mx.array, embeddings: mx.array) -> Iterator[mx.array]:
    """Yield the head's logits [B, S, V] at each step, starting from features [B, S, H].

    embeddings [B, S + AHEAD - 1, H] or longer: of the token after each feature, and of later
    tokens.
    """
    layer, attention = model.midlayer, model.midlayer.self_attn
    config = model.config
    length, groups = features.shape[1], config.num_heads // config.num_kv_heads
    causal = mx.where(mx.tri(length) > 0, 0.0, -mx.inf)
    hidden, kept = features, list[Rows]()
    for step in range(AHEAD):
        normed = layer.input_layernorm(embeddings[:, step : step + length])
        x = mx.concatenate([normed, layer.hidden_norm(hidden)], axis=-1)
        queries = heads_of(model, x, "q_proj", step) * attention.dim**-0.5
        keys, values = heads_of(model, x, "k_proj", step), heads_of(model, x, "v_proj")
        kept.append((mx.repeat(keys, groups, axis=1), mx.repeat(values, groups, axis=1)))
        scores = [queries @ kept[0][0].swapaxes(-1, -2) + causal]
        scores += [(queries * own).sum(-1, keepdims=True) for own, _ in kept[1:]]
        shares = mx.softmax(mx.concatenate(scores, axis=-1), axis=-1)
        mixed = shares[..., :length] @ kept[0][1]
        for place, (_, own) in enumerate(kept[1:]):
            mixed = mixed + shares[..., length + place, None] * own
        mixed = mixed.transpose(0, 2, 1, 3).reshape(*hidden.shape[:2], -1)
        hidden = hidden + attention.o_proj(mixed)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        yield model.lm_head(model.norm(hidden))


def loss_of(model: EagleModel, batch: Batch) -> mx.array:
    """Cross-entropy in nats per answer token, averaged over steps with weights DECAY**step."""
    assert batch.taps is not None
    length = batch.taps.shape[1] - 1 - AHEAD
    total = weight = mx.array(0.0)
    features = model.features(batch.taps[:, :length])
    for step, logits in enumerate(steps_of(model, features, batch.embeddings[:, 1:])):
        wanted = slice(step + 1, step + 1 + length)  # these rows predict the token after row i's
        counted = batch.known[:, step + 2 : step + 2 + length]
        losses = cross_entropy(logits, batch.chances[:, wanted])
        total = total + DECAY**step * (losses * counted).sum()
        weight = weight + DECAY**step * counted.sum()
    return total / weight


def make(pair: Pair, seed: int) -> EagleModel:
    """An untrained head whose output layer is the target's embedding; taps the target."""
    target, config = pair.target, parse(settings(pair))
    taps = config.taps(target.layers)
    target.tap(taps)
    mx.random.seed(seed)
    model = EagleModel(config, len(taps), target.hidden_size, frozenset({"lm_head"}))
    model.lm_head.weight = target.embed(mx.arange(target.vocab_size)).astype(mx.float32)
    mx.eval(model.parameters())
    return model


def main() -> None:
    """Train and save the head."""
    args, pair = arguments(__doc__), bundled_target()
    model = make(pair, args.seed)
    train(model, pair, loss_of, args)
    save(model, settings(pair), args.out)


if __name__ == "__main__":
    main()
