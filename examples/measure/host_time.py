"""How long the host takes to build a verify, without running it: kernels against stock MLX.

    .venv/bin/python examples/measure/host_time.py [--layers 36] [--rows 16] [--repeat 60]

Builds the graph of one verify of a narrow random Qwen3 in 4 bits inside `mx.export_function`, where
MLX records the launches of Metal kernels on any machine, and executes nothing. Nothing is traced
either: compiled functions are called as they are outside of it. `on`: all kernels. `off`: all
kernels disabled, so that every layer is MLX's. `stock`: no kernels at all. The modes take turns;
medians in milliseconds of CPU time, of this machine. MLX's own fast functions are several
operations each where it has no GPU, so stock takes longer here than on a Mac.
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
from mlx_lm.models.qwen3 import Model, ModelArgs

from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.kernels import small_m_qmm, verify_attention
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.models.target import Target

CONTEXT = 100  # rows in the caches before the verify pass; more than the pass has
OPS = (small_m_qmm.OP, verify_attention.OP)


def narrow_target(layers: int) -> Target:
    """A random Qwen3 with 8 query and 2 KV heads, 4 bits in groups of 32."""
    config: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": layers,
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
    model = Model(ModelArgs.from_dict(config))
    nn.quantize(model, 32, 4)
    mx.eval(model.parameters())
    return Target(model, Checkpoint(Path("narrow"), config), frozenset())


def milliseconds(target: Target, rows: int) -> float:
    """CPU milliseconds to build one verify pass of `rows` rows after a context."""
    held, tokens = target.make_cache(), mx.zeros((1, rows), mx.int32)
    mx.eval(tokens, target.forward(mx.zeros((1, CONTEXT), mx.int32), held)[0])
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
    targets = {name: narrow_target(given.layers) for name in modes}
    times: dict[str, list[float]] = {name: [] for name in modes}
    for name, target in targets.items():
        target.kernels = modes[name]
    for _ in range(given.repeat + 2):
        for name, target in targets.items():
            times[name].append(milliseconds(target, given.rows))
    stock = median(times["stock"][2:])
    print(f"a verify of {given.rows} rows, {given.layers} layers, built and not run")
    for name, found in times.items():
        middle = median(found[2:])
        print(
            f"{name:6}{middle:8.2f} ms{middle / stock:8.2f} x stock{min(found[2:]):8.2f} ms least"
        )


if __name__ == "__main__":
    main()
