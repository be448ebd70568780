"""Time how long a round keeps its thread busy, in this engine and in Z Lab's own MLX loop.

    git clone https://github.com/z-lab/dflash runs/z-lab
    .venv/bin/python examples/measure/round_time.py runs/z-lab [--layers 36] [--rounds 60]

Uses a narrow random Qwen3 in 4 bits and a drafter of 5 layers, so that little is computed. The rest
is Python, and MLX's building and dispatching of operations. Both loops have the same weights, MLX
and mlx-lm, blocks of 16 and greedy drafts, almost none of which are accepted. `thread`: CPU time of
the thread that builds and dispatches. `wall`: wall-clock time. Medians in milliseconds.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from typing import Any

from host_time import narrow_target  # imports dflash_mlx before MLX

# isort: split
import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.qwen3 import Model, ModelArgs

import dflash_mlx
from dflash_mlx.cpu.modules import use_cpu_modules
from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.model import DraftModel
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.pair import Pair

PROMPT = tuple(range(2, 102))
TOKENS = 3000
WARM = 3  # rounds that are not counted
Times = tuple[float, float]  # CPU seconds of the thread, and wall-clock seconds


def draft_config(target: dict[str, Any], layers: int) -> dict[str, Any]:
    """The config.json of a drafter for the narrow target."""
    names = (
        "hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim vocab_size "
        "rms_norm_eps max_position_embeddings rope_theta model_type"
    )
    ids = [1 + i * (layers - 4) // 4 for i in range(5)]
    return {
        **{name: target[name] for name in names.split()},
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 5,
        "num_target_layers": layers,
        "block_size": 16,
        "dflash_config": {"mask_token_id": 1, "target_layer_ids": ids},
    }


def timed(step: Callable[[], Any]) -> Times:
    """The times of one call."""
    clock, thread = time.perf_counter(), time.thread_time()
    step()
    return time.thread_time() - thread, time.perf_counter() - clock


def ours(pair: Pair) -> Iterator[Times]:
    """Times of the rounds of this engine, in its own thread."""
    sequence = Sequence(pair.target, pair.drafter)
    request = Request(prompt=PROMPT, max_tokens=TOKENS, mode="dflash")
    mlx_thread().call(pair.engine.begin, sequence, request, len(PROMPT) - 1)
    while True:
        yield mlx_thread().call(timed, lambda: pair.engine.step([sequence]))


def theirs(module: Any, model: nn.Module, draft: nn.Module, tokenizer: Any) -> Iterator[Times]:
    """Times of the rounds of Z Lab's generator."""
    loop = module.stream_generate(model, draft, tokenizer, [*PROMPT], max_tokens=TOKENS)
    while True:
        yield timed(lambda: next(loop))


def load_peer(path: Path) -> Any:
    """Import Z Lab's module from its repository."""
    spec = spec_from_file_location("zlab_model_mlx", path / "dflash" / "model_mlx.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peer_models(module: Any, pair: Pair) -> tuple[nn.Module, nn.Module]:
    """A stock target and Z Lab's drafter with the weights of a pair."""
    target, drafter = pair.target, pair.drafter
    assert drafter is not None
    model = Model(ModelArgs.from_dict(target.config))
    nn.quantize(model, 32, 4)
    model.load_weights(tree_flatten(target.model.parameters()))  # type: ignore[arg-type]
    given, wanted = asdict(drafter.config), module.DFlashConfig.__dataclass_fields__
    names = {"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}
    names["num_kv_heads"] = "num_key_value_heads"
    given = {names.get(name, name): value for name, value in given.items()}
    config = module.DFlashConfig(**{name: given[name] for name in wanted if name in given})
    draft = module.DFlashDraftModel(config)
    draft.load_weights(tree_flatten(drafter.model.parameters()))
    mx.eval(model.parameters(), draft.parameters())
    return model, draft


def narrow_pair(layers: int) -> Pair:
    """A random target of `layers` layers and a random drafter; sets no taps yet."""
    target = narrow_target(layers)
    config = parse(draft_config(target.config, layers))
    model = DraftModel(config, target.hidden_size)
    mx.eval(model.parameters())
    use_cpu_modules(target.model)
    use_cpu_modules(model)
    drafter = DFlashDrafter(model, target.embed, target.head, target.head_type)
    tokenizer = dflash_mlx.load().tokenizer
    return Pair.of(target, drafter, tokenizer, "narrow", "narrow")


def main() -> None:
    """Print a line for each engine, and their ratio."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("peer", type=Path, help="a copy of Z Lab's repository")
    options.add_argument("--layers", type=int, default=36)
    options.add_argument("--rounds", type=int, default=60)
    given = options.parse_args()
    mx.random.seed(0)
    pair, module = narrow_pair(given.layers), load_peer(given.peer)
    model, draft = peer_models(module, pair)
    assert pair.drafter is not None
    pair.target.tap(pair.drafter.config.target_layer_ids)
    sides = {"ours": ours(pair), "Z Lab": theirs(module, model, draft, pair.tokenizer)}
    found: dict[str, list[Times]] = {name: [] for name in sides}
    for _ in range(given.rounds + WARM):
        for name, rounds in sides.items():
            found[name].append(next(rounds))
    print(f"a round of 16 rows, {given.layers} and 5 layers")
    middle = {
        name: [1000 * median(times) for times in zip(*rounds[WARM:], strict=True)]
        for name, rounds in found.items()
    }
    for name, (thread, wall) in middle.items():
        print(f"{name:8}thread{thread:8.2f} ms   wall{wall:8.2f} ms")
    ratios = [a / b for a, b in zip(middle["ours"], middle["Z Lab"], strict=True)]
    print(f"{'ratio':8}thread{ratios[0]:8.2f}      wall{ratios[1]:8.2f}")


if __name__ == "__main__":
    main()
