"""Train an EAGLE-3 head of about the drafter's size for the bundled target, for comparisons.

    .venv/bin/python examples/bundled_pair/eagle3.py --steps 600 --out runs/eagle3
    dflash bench --drafts dflash,eagle3:runs/eagle3,eagle3-60:runs/eagle3,lookup,none

The training-time test of the paper (arXiv 2503.01840, section 3): the head reads its own hidden
states for several steps in training, too. Step k of row i reads the token at i + 1 + k beside what
step k - 1 gave that row, attends to the target's features up to row i and to the row's own steps,
and learns the target's distribution of the token after. The text is made by the scripts here.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import dflash_mlx
from dflash_mlx import Pair

# isort: split
import mlx.core as mx
import numpy as np
from mlx.nn.utils import value_and_grad
from mlx.optimizers import clip_grad_norm
from mlx.utils import tree_flatten
from text import samples

from dflash_mlx.cpu.modules import restore_modules
from dflash_mlx.eagle.config import parse
from dflash_mlx.eagle.model import EagleModel
from dflash_mlx.train.optimizer import TrainOptimizer

DECAY = 0.8  # weight of each further step, as in the authors' training
Rows = tuple[mx.array, mx.array]  # tokens [B, S], where the answer begins [B]


def settings(pair: Pair) -> dict[str, Any]:
    """The head's config.json: its vocabulary is the target's, its MLP wider than the drafter's."""
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


def batches(pair: Pair, seed: int, size: int) -> Any:
    """An endless stream of padded rows of similar length, each a question and its right answer."""
    stream, target, dice = samples(seed), pair.target, random.Random(seed)
    end = target.tokenizer.eos_token_id
    while True:
        found: list[tuple[list[int], int]] = []
        for sample in (next(stream) for _ in range(16 * size)):
            prompt = target.chat_tokens([{"role": "user", "content": sample.prompt}])
            found.append(([*prompt, *target.encode(sample.answer), end], len(prompt)))
        found.sort(key=lambda each: len(each[0]))
        groups = [found[first : first + size] for first in range(0, len(found), size)]
        dice.shuffle(groups)
        for group in groups:
            grid = np.zeros((size, max(len(tokens) for tokens, _ in group)), dtype=np.int32)
            known = np.zeros(grid.shape, dtype=bool)  # tokens of answers
            for row, (tokens, start) in enumerate(group):
                grid[row, : len(tokens)] = tokens
                known[row, start : len(tokens)] = True
            yield mx.array(grid), mx.array(known)


def heads_of(model: EagleModel, x: mx.array, name: str, offset: int | None = None) -> mx.array:
    """A projection of rows x [B, S, 2 H]: [B, heads, S, d], rotated from an offset on."""
    attention = model.midlayer.self_attn
    out = attention[name](x).reshape(*x.shape[:2], -1, attention.dim).transpose(0, 2, 1, 3)
    return out if offset is None else attention.rope(out, offset=offset)


def steps_of(model: EagleModel, features: mx.array, embeddings: mx.array, ahead: int) -> Any:
    """The head's logits [B, S, V] at each of `ahead` steps, from features [B, S, H] on.

    embeddings: [B, S + ahead - 1, H] at least, of the token after each feature and what follows.
    """
    layer, attention = model.midlayer, model.midlayer.self_attn
    length, groups = features.shape[1], attention.heads // attention.kv_heads
    causal = mx.where(mx.tri(length) > 0, 0.0, -mx.inf)
    hidden, kept = features, list[Rows]()
    for step in range(ahead):
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


def loss_of(
    model: EagleModel,
    taps: mx.array,
    embeddings: mx.array,
    chances: mx.array,
    known: mx.array,
    ahead: int,
) -> mx.array:
    """Cross-entropy in nats a token of the answers, over `ahead` steps, the later weighing less.

    chances: [B, S, V], the target's of the token after each; known [B, S]: which are of an answer.
    """
    length = taps.shape[1] - 1 - ahead
    total = weight = mx.array(0.0)
    features = model.features(taps[:, :length])
    for step, logits in enumerate(steps_of(model, features, embeddings[:, 1:], ahead)):
        wanted = slice(step + 1, step + 1 + length)  # the token after row i's is chosen there
        counted = known[:, step + 2 : step + 2 + length]
        logs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        losses = -(chances[:, wanted] * logs).sum(-1)
        total = total + DECAY**step * (losses * counted).sum()
        weight = weight + DECAY**step * counted.sum()
    return total / weight


def train(pair: Pair, args: argparse.Namespace) -> EagleModel:
    """The head after so many steps, or minutes."""
    target, config = pair.target, parse(settings(pair))
    taps = config.taps(target.layers)
    target.tap(taps)
    mx.random.seed(args.seed)
    model = EagleModel(config, len(taps), target.hidden_size, frozenset({"lm_head"}))
    model.lm_head.weight = target.embed(mx.arange(target.vocab_size)).astype(mx.float32)
    mx.eval(model.parameters())
    optimizer = TrainOptimizer("muon", config.hidden_size, 0.0)
    gradient_of = value_and_grad(model, loss_of)
    stream, began = batches(pair, args.seed, args.batch), time.perf_counter()
    step, done = 0, 0.0
    while done < 1:
        tokens, known = next(stream)
        logits, read = target.forward(tokens, None)
        chances = mx.softmax(logits, axis=-1)
        loss, gradient = gradient_of(
            model, read, target.embed(tokens), chances, known, ahead=args.ahead
        )
        gradient, _ = clip_grad_norm(gradient, 1.0)
        optimizer.set_rate(args.rate * min(1.0, (step + 1) / 25, 2 * (1 - done)))
        optimizer.optimizer.update(model, gradient)
        mx.eval(model.parameters(), optimizer.optimizer.state, loss)
        minutes = (time.perf_counter() - began) / 60
        if step % 25 == 0:
            print(f"step {step}  loss {float(loss):.3f}  {minutes:.1f} min", flush=True)
        step += 1
        done = max(step / args.steps, minutes / args.minutes)
    return model


def main() -> None:
    """Train and write the head's folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--minutes", type=float, default=60.0, help="or until then")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--ahead", type=int, default=5, help="steps of the training-time test")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    pair = dflash_mlx.load(no_draft=True, cache_ram=0)
    restore_modules(pair.target.model)
    model = train(pair, args)
    model.set_dtype(mx.bfloat16)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps(settings(pair), indent=1) + "\n")
    weights: Any = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(args.out / "model.safetensors"), weights)
    print(f"{sum(each.size for each in weights.values()) / 1e6:.2f} M parameters in {args.out}")


if __name__ == "__main__":
    main()
