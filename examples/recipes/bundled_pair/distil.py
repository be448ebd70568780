"""Trains models to draft for the bundled target, on the target's distributions over right answers.

The questions and right answers are generated here, so the target only reads them. A model learns
the target's distribution of each token of an answer. This code works for any kind of model.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dflash_mlx
from dflash_mlx import Pair

# isort: split
import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.nn.utils import value_and_grad
from mlx.optimizers import clip_grad_norm
from mlx.utils import tree_flatten
from text import samples

from dflash_mlx.cpu.modules import restore_modules
from dflash_mlx.train.step import TrainOptimizer
from dflash_mlx.train.streams import Streams


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded rows of tokens [B, S], and the target's outputs for them.

    known [B, S]: which tokens belong to an answer. chances [B, S, V]: the target's distribution of
    the next token. taps [B, S, T]: its tapped hidden states, or None. embeddings [B, S, H].
    """

    tokens: mx.array
    known: mx.array
    chances: mx.array
    taps: mx.array | None
    embeddings: mx.array


Loss = Callable[[Any, Batch], mx.array]


def rows(pair: Pair, seed: int, size: int) -> Iterator[tuple[mx.array, mx.array]]:
    """An endless stream of batches (tokens, known) [B, S]: questions with right answers, padded."""
    stream, dice = samples(seed), random.Random(seed)
    end = pair.tokenizer.eos_token_id
    while True:
        found: list[tuple[list[int], int]] = []
        for sample in (next(stream) for _ in range(16 * size)):
            prompt = pair.chat_tokens([{"role": "user", "content": sample.prompt}])
            found.append(([*prompt, *pair.encode(sample.answer), end], len(prompt)))
        found.sort(key=lambda each: len(each[0]))
        groups = [found[first : first + size] for first in range(0, len(found), size)]
        dice.shuffle(groups)
        for group in groups:
            grid = np.zeros((size, max(len(tokens) for tokens, _ in group)), dtype=np.int32)
            known = np.zeros(grid.shape, dtype=bool)  # whether the token belongs to the answer
            for row, (tokens, start) in enumerate(group):
                grid[row, : len(tokens)] = tokens
                known[row, start : len(tokens)] = True
            yield mx.array(grid), mx.array(known)


def cross_entropy(logits: mx.array, chances: mx.array) -> mx.array:
    """Cross-entropy [B, S] in nats of logits and the target's distribution, both [B, S, V]."""
    logs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return -(chances * logs).sum(-1)


def arguments(doc: str | None) -> argparse.Namespace:
    """Parse the command line of a training script; `doc` is the script's docstring."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--minutes", type=float, default=60.0, help="or until then")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=5)
    return parser.parse_args()


def bundled_target() -> Pair:
    """The bundled target without a drafter, with modules that have gradients."""
    pair = dflash_mlx.load(no_draft=True, cache_ram=0)
    restore_modules(pair.target.model)
    return pair


def train(model: nn.Module, pair: Pair, loss_of: Loss, args: argparse.Namespace) -> None:
    """Train a model in place for `args.steps` or `args.minutes`; prints the loss."""
    target = pair.target
    optimizer = TrainOptimizer("muon", target.hidden_size, 0.0, Streams(1))
    gradient_of = value_and_grad(model, loss_of)
    stream, began = rows(pair, args.seed, args.batch), time.perf_counter()
    step, done, minutes = 0, 0.0, 0.0
    while done < 1:
        tokens, known = next(stream)
        logits, taps = target.forward(tokens, None)
        chances = mx.softmax(logits, axis=-1)
        batch = Batch(tokens, known, chances, taps, target.embed(tokens))
        loss, gradient = gradient_of(model, batch)
        gradient, _ = clip_grad_norm(gradient, 1.0)
        optimizer.set_rate(args.rate * min(1.0, (step + 1) / 25, 2 * (1 - done)))
        optimizer.optimizer.update(model, gradient)
        mx.eval(model.parameters(), optimizer.optimizer.state, loss)
        minutes = (time.perf_counter() - began) / 60
        if step % 25 == 0:
            print(f"step {step}  loss {float(loss):.3f}  {minutes:.1f} min", flush=True)
        step += 1
        done = max(step / args.steps, minutes / args.minutes)
    print(f"{step} steps in {minutes:.1f} min, {step * args.batch} answers read")


def save(model: nn.Module, settings: dict[str, Any], out: Path) -> None:
    """Save a model in bfloat16."""
    model.set_dtype(mx.bfloat16)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    weights: Any = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(out / "model.safetensors"), weights)
    print(f"{sum(each.size for each in weights.values()) / 1e6:.2f} M parameters in {out}")
