"""How long the host takes to build a verify, without running it: kernels against stock MLX.

    .venv/bin/python examples/measure/host_time.py [--kind dense|mixture|hybrid] [--layers 36]

Builds the graph of one verify of a narrow random Qwen3, Qwen3 mixture or Qwen3.5 in 4 bits inside
`mx.export_function`, where MLX records the launches of Metal kernels on any machine, and executes
nothing. Nothing is traced either: compiled functions are called as they are outside of it. `on`:
all kernels. `off`: those of products and attention disabled, so that these are MLX's. `stock`: no
kernels at all. The modes take turns; medians in milliseconds of CPU time, of this machine. MLX's
own fast functions are several operations each where it has no GPU, so stock takes longer here than
on a Mac.
"""

import argparse
import gc
import time
from pathlib import Path
from statistics import median
from typing import Any

import dflash_mlx  # noqa: F401  before MLX, whose matrix products on the CPU it makes fast

# isort: split
import mlx.core as mx
from mlx import nn
from mlx_lm.utils import _get_classes

from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.kernels import small_m_qmm, verify_attention
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.models.target import Target

CONTEXT = 100  # rows in the caches before the verify pass; more than the pass has
OPS = (small_m_qmm.OP, verify_attention.OP)


DENSE: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
EXPERTS = {
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
LINEAR = {
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}
CONFIGS: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "mixture": {**DENSE, **EXPERTS, "model_type": "qwen3_moe"},
    "hybrid": {**DENSE, "model_type": "qwen3_5", "text_config": {**DENSE, **LINEAR}},
}


def narrow_target(layers: int, kind: str = "dense") -> Target:
    """A random target with 8 query and 2 KV heads, 4 bits in groups of 32."""
    config = {**CONFIGS[kind], "num_hidden_layers": layers}
    if "text_config" in config:
        config["text_config"] = {**config["text_config"], "num_hidden_layers": layers}
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))
    nn.quantize(model, 32, 4)
    mx.eval(model.parameters())
    return Target(model, Checkpoint(Path("narrow"), config), frozenset())


def milliseconds(stock: Target, target: Target, rows: int) -> float:
    """CPU milliseconds to build one verify pass of `rows` rows after a context.

    `stock` computes the context, because this machine has no Metal.
    """
    held, tokens = stock.make_cache(), mx.zeros((1, rows), mx.int32)
    mx.eval(tokens, stock.forward(mx.zeros((1, CONTEXT), mx.int32), held)[0])
    gc.collect()
    seconds = 0.0

    def verify(unused: mx.array) -> mx.array:
        nonlocal seconds
        began = time.thread_time()
        built = target.forward(tokens, held)
        seconds = time.thread_time() - began
        del built
        return unused

    mx.export_function(lambda _: None, verify, mx.zeros((1,)))
    return 1000 * seconds


def main() -> None:
    """Print a line for each mode."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--kind", choices=tuple(CONFIGS), default="dense")
    options.add_argument("--layers", type=int, default=36)
    options.add_argument("--rows", type=int, default=16)
    options.add_argument("--repeat", type=int, default=60)
    given = options.parse_args()
    launcher = MetalLauncher()
    modes = {
        "on": Kernels(launcher),
        "off": Kernels(launcher, off={op.name: "disabled" for op in OPS}),
        "stock": Kernels(),
    }
    targets = {name: narrow_target(given.layers, given.kind) for name in modes}
    times: dict[str, list[float]] = {name: [] for name in modes}
    for name, target in targets.items():
        target.kernels = modes[name]
    for _ in range(given.repeat + 2):
        for name, target in targets.items():
            times[name].append(milliseconds(targets["stock"], target, given.rows))
    stock = median(times["stock"][2:])
    print(f"a {given.kind} verify of {given.rows} rows, {given.layers} layers, built and not run")
    for name, found in times.items():
        middle = median(found[2:])
        print(
            f"{name:6}{middle:8.2f} ms{middle / stock:8.2f} x stock{min(found[2:]):8.2f} ms least"
        )


if __name__ == "__main__":
    main()
