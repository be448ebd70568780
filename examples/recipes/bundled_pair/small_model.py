"""Train a small Qwen3 of about the drafter's size that drafts for the bundled target.

    .venv/bin/python examples/recipes/bundled_pair/small_model.py --steps 600 --out runs/small
    dflash bench --drafts dflash,model:runs/small,lookup,none

For classic speculative decoding. Its layers have as many parameters as the drafter (0.97 M); the
drafter has no embedding, and this model has one of its own, which begins as the target's (0.20 M,
tied). It learns the target's distribution of each token of a right answer. `distil` has the rest.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from dflash_mlx import Pair

# isort: split
import mlx.core as mx
from distil import Batch, arguments, bundled_target, cross_entropy, save, train
from mlx_lm.models.qwen3 import Model, ModelArgs

from dflash_mlx.hub.resolve import bundled

LAYERS = 2  # as many as the drafter
WIDER = 672  # width of the MLP, which makes up for the drafter's `fc`
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def settings(pair: Pair) -> dict[str, Any]:
    """The model's config.json: the target's with fewer layers and a wider MLP."""
    sizes = {"num_hidden_layers": LAYERS, "intermediate_size": WIDER}
    return {**json.loads((bundled("target") / "config.json").read_text()), **sizes}


def loss_of(model: Model, batch: Batch) -> mx.array:
    """Cross-entropy in nats per token of the answers."""
    counted = batch.known[:, 1:]
    losses = cross_entropy(model(batch.tokens[:, :-1]), batch.chances[:, :-1])
    return (losses * counted).sum() / counted.sum()


def make(pair: Pair, seed: int) -> Model:
    """An untrained model with the target's embedding."""
    mx.random.seed(seed)
    model = Model(ModelArgs.from_dict(settings(pair)))
    tokens = mx.arange(pair.target.vocab_size)
    model.model.embed_tokens.weight = pair.target.embed(tokens).astype(mx.float32)
    mx.eval(model.parameters())
    return model


def copy_tokenizer(out: Path) -> None:
    """Copy the files that complete the folder: tokenizer, chat template, end token."""
    for name in TOKENIZER:
        shutil.copy(bundled("target") / name, out / name)


def main() -> None:
    """Train and save the model."""
    args, pair = arguments(__doc__), bundled_target()
    model = make(pair, args.seed)
    train(model, pair, loss_of, args)
    save(model, settings(pair), args.out)
    copy_tokenizer(args.out)


if __name__ == "__main__":
    main()
