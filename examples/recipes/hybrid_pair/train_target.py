"""Train a tiny hybrid target from nothing, in MLX: Gated DeltaNet layers, every fourth attention.

    .venv/bin/python examples/recipes/hybrid_pair/train_target.py --out runs/hybrid/target

It learns the bundled pair's made text with that pair's tokenizer. mlx-lm's recurrence takes row
after row on the CPU, which a training step cannot afford: here the rows of a chunk are solved
together. The weights are those of mlx-lm's own class, which then reads them.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dflash_mlx.cpu.blas import use_openblas

use_openblas()  # before anything imports MLX
sys.path.insert(0, str(Path(__file__).parent.parent / "bundled_pair"))

# ruff: noqa: E402
import mlx.core as mx
from mlx import nn, optimizers
from mlx.nn.losses import cross_entropy
from mlx.nn.utils import value_and_grad
from mlx.utils import tree_flatten
from mlx_lm.models.gated_delta import normalize_qk
from mlx_lm.models.qwen3_5 import Model, ModelArgs
from mlx_lm.utils import load_tokenizer
from text import samples

import dflash_mlx

BUNDLED = Path(dflash_mlx.__file__).parent / "bundled" / "target"
FAMILIES = (0, 0, 1, 1)  # functions and everyday questions, which are learned soon
CHUNK, LENGTH, BATCH, PEAK = 32, 128, 8, 4e-3
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "vocab_size": 1024,
    "eos_token_id": 2,
}


class ChunkedDelta(nn.Module):
    """Replaces a Gated DeltaNet module in training: the same results, chunk by chunk."""

    def __init__(self, net: Any):
        super().__init__()
        self.net = net

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """Rows [B, S, H] -> [B, S, H]; S a multiple of CHUNK."""
        net, (batch, count, _) = self.net, x.shape
        before = mx.zeros((batch, net.conv_kernel_size - 1, net.conv_dim))
        rows = nn.silu(net.conv1d(mx.concatenate([before, net.in_proj_qkv(x)], axis=1)))
        queries, keys, values = (
            part.reshape(batch, count, -1, width)
            for part, width in zip(
                mx.split(rows, [net.key_dim, 2 * net.key_dim], axis=-1),
                (net.head_k_dim, net.head_k_dim, net.head_v_dim),
                strict=True,
            )
        )
        queries, keys = normalize_qk(queries, keys, inv_scale=net.head_k_dim**-0.5, eps=1e-6)
        repeat = net.num_v_heads // net.num_k_heads
        queries, keys = (mx.repeat(part, repeat, axis=2) for part in (queries, keys))
        decay = -mx.exp(net.A_log) * nn.softplus(net.in_proj_a(x) + net.dt_bias)
        fed = queries, keys, values, decay[..., None], mx.sigmoid(net.in_proj_b(x))[..., None]
        state, outs = mx.zeros((batch, net.num_v_heads, net.head_k_dim, net.head_v_dim)), []
        for part in zip(
            *(mx.split(f.swapaxes(1, 2), count // CHUNK, axis=2) for f in fed), strict=True
        ):
            out, state = chunk(part, state)
            outs.append(out)
        out = mx.concatenate(outs, axis=2).swapaxes(1, 2)
        gate = net.in_proj_z(x).reshape(out.shape)
        return net.out_proj(net.norm(out, gate).reshape(batch, count, -1))


def chunk(fed: Sequence[mx.array], state: mx.array) -> tuple[mx.array, mx.array]:
    """Compute C rows at once: q, k [B, H, C, Dk], v [B, H, C, Dv], log decay and beta [B, H, C, 1].

    `state` [B, H, Dk, Dv]. With the decay g of all rows up to t, row t writes u_t = beta_t (v_t -
    g_t S k_t - sum over i < t of g_t / g_i (k_i . k_t) u_i). This triangular system is solved by
    repeated squaring, because the C-th power of a strict triangle is 0.
    """
    q, k, v, decay, beta = fed
    total = mx.cumsum(decay, axis=2)
    lower = mx.tril(mx.ones((CHUNK, CHUNK)))
    between = mx.exp(mx.where(lower, total - total.swapaxes(2, 3), 0)) * lower
    strict = mx.tril(-beta * between * (k @ k.swapaxes(2, 3)), -1)
    written = beta * (v - mx.exp(total) * (k @ state))
    for _ in range(CHUNK.bit_length() - 1):
        written, strict = written + strict @ written, strict @ strict
    out = mx.exp(total) * (q @ state) + (between * (q @ k.swapaxes(2, 3))) @ written
    last = total[:, :, -1:]
    state = mx.exp(last) * state + (mx.exp(last - total) * k).swapaxes(2, 3) @ written
    return out, state


def batches(seed: int = 1) -> Iterator[mx.array]:
    """Batches [BATCH, LENGTH + 1] of questions and answers in a row, rendered with the template."""
    tokenizer = load_tokenizer(BUNDLED)

    def tokens() -> Iterator[int]:
        for sample in samples(seed, weights=FAMILIES):
            chat = [
                {"role": "user", "content": sample.prompt},
                {"role": "assistant", "content": sample.answer},
            ]
            yield from tokenizer.apply_chat_template(chat, tokenize=True)

    stream, size = tokens(), BATCH * (LENGTH + 1)
    while True:
        yield mx.array([next(stream) for _ in range(size)]).reshape(BATCH, LENGTH + 1)


def train(model: Any, steps: int, seed: int) -> None:
    """Train with AdamW: 20 warm-up steps, then a cosine decay."""
    rate: Any = optimizers.join_schedules(
        [
            optimizers.linear_schedule(0, PEAK, 20),
            optimizers.cosine_decay(PEAK, max(1, steps - 20)),
        ],
        [20],
    )
    adam = optimizers.AdamW(rate, betas=[0.9, 0.95], weight_decay=0.01)

    def loss(batch: mx.array) -> mx.array:
        return cross_entropy(model(batch[:, :-1]), batch[:, 1:], reduction="mean")

    graded, stream, began = value_and_grad(model, loss), batches(seed), time.monotonic()
    for step in range(1, steps + 1):
        value, gradient = graded(next(stream))
        gradient, _ = optimizers.clip_grad_norm(gradient, 1.0)
        adam.update(model, gradient)
        mx.eval(model.parameters(), adam.state)
        if step % 25 == 0:
            seconds = time.monotonic() - began
            print(f"step {step}: {value.item():.3f} nats a token, {seconds:.0f} s", flush=True)


def main() -> None:
    """Train, compare with mlx-lm's recurrence, and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/hybrid/target"))
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    mx.random.seed(args.seed)
    model = Model(ModelArgs.from_dict({"model_type": "qwen3_5", "text_config": dict(CONFIG)}))
    own = [layer.linear_attn if layer.is_linear else None for layer in model.layers]
    for layer in model.layers:
        if layer.is_linear:
            layer.linear_attn = ChunkedDelta(layer.linear_attn)
    mx.eval(model.parameters())
    train(model, args.steps, args.seed)
    tokens = next(batches())[:1, :-1]
    chunked = model(tokens)
    for layer, net in zip(model.layers, own, strict=True):
        if net is not None:
            layer.linear_attn = net
    apart = float(mx.abs(model(tokens) - chunked).max().item())  # type: ignore
    if apart > 1e-3:
        raise SystemExit(f"the chunks are not mlx-lm's recurrence: logits differ by {apart:.1e}")
    args.out.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "qwen3_5", "text_config": CONFIG, "eos_token_id": 2}
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights: Any = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(args.out / "model.safetensors"), weights)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED / name, args.out)
    print(f"chunks and rows agree to {apart:.1e}; saved in {args.out}")


if __name__ == "__main__":
    main()
