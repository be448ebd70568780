"""A round of other DFlash loops beside this package's: dispatches and bytes, counted from shapes.

Their code is traced where it lies; nothing of it is copied. Example, with the packages fetched by
`.venv-uv/bin/uv pip install --no-deps --target runs/zlab dflash==0.1.0` and
`.venv-uv/bin/uv pip install --target runs/dspark mlx-dspark==0.20.3`, which needs mlx-vlm:
`.venv/bin/python examples/measure/ledger_others.py zlab=runs/zlab dspark=runs/dspark`
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import dflash_mlx  # noqa: F401  # before MLX, whose matrix products it makes fast

# isort: split
import mlx.core as mx
from ledger.contexts import after, held, labels_of, put
from ledger.passes import READ, TAPS, TracedPair, evaluate_hidden, traced
from ledger.published import PAIRS, SLIDING, Published
from ledger.report import Line
from ledger.trace import Graph
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from dflash_mlx.chat.template import load_tokenizer
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher

MEGA = 1e6
TITLE = """# Rounds of DFlash loops, counted

By `examples/measure/ledger_others.py`, from shapes alone: nothing is computed, and nothing here
is a time. A round is the greedy draft of a block, its verify, and the commit of five rows. All
drafters are bfloat16. No kernels but those of MLX and mlx-lm run, except in "ours, kernels on".
What the host waits between the passes is not counted. "stock" is one pass of mlx-lm over as many
rows, which drafts nothing. Matrices "read again" are those that MLX reads once for every few
rows, on an M4. mlx-dspark takes no targets of mlx-lm with sliding windows."""
HEAD = (
    "| context | by | pass | dispatches | read MB | read again MB | written MB |\n"
    "|---:|:---|:---|---:|---:|---:|---:|"
)
Run = Callable[[mx.array, list[Any]], list[mx.array]]


class Theirs:
    """Another project's loop on a pair without weights; `module` has its drafter's classes."""

    def __init__(self, name: str, module: Any, published: Published, pair: TracedPair):
        config = dict(published.drafter)
        known: dict[str, Any] = {**config, **config["dflash_config"]}
        names = {field.name for field in fields(module.DFlashConfig)}
        known["layer_types"] = tuple(config["layer_types"])
        settings = module.DFlashConfig(**{key: known[key] for key in known.keys() & names})
        self.name, self.pair, self.settings = name, pair, settings
        self.drafter = module.DFlashDraftModel(settings)
        self.drafter.set_dtype(mx.bfloat16)
        evaluate_hidden(self.drafter)
        self.drafter.bind(pair.stock)

    def draft(self, depth: int) -> Graph:
        """A greedy draft of a block, with the context rows of the last round."""
        block = mx.zeros((1, self.settings.block_size), mx.int32)
        taps = mx.zeros((1, TAPS, self.drafter.fc.weight.shape[1]), mx.bfloat16)
        caches = self.drafter.make_cache()
        self.drafter(block, taps[:, :2], caches)  # gives the caches their shapes

        def run(*given: mx.array) -> list[mx.array]:
            parts = iter(given)
            put(caches, parts, depth - TAPS)
            logits = self.drafter(block, next(parts), caches, logits_start=1)
            return [mx.argmax(logits, axis=-1), *after(caches, True)]

        arrays = [*held(caches, depth - TAPS), taps]
        both = nn.Module()
        both.target, both.drafter = self.pair.stock, self.drafter
        return traced(both, run, arrays, [*labels_of(caches), READ], rows=())

    def verify(self, depth: int, rows: int, kept: int) -> Graph:
        """A verify pass with taps, and its commit."""
        caches = make_prompt_cache(self.pair.stock)
        self.pair.stock(mx.zeros((1, 2), mx.int32), cache=caches)

        def run(*given: mx.array) -> list[mx.array]:
            put(caches, iter(given), depth)
            found = self.round(mx.zeros((1, rows), mx.int32), caches, kept)
            return [*found, *after(caches, True)]

        arrays, labels = held(caches, depth), labels_of(caches)
        return traced(self.pair.stock, run, arrays, labels, (rows, kept))

    def round(self, tokens: mx.array, caches: list[Any], kept: int) -> list[mx.array]:
        """Logits and taps of a pass over these tokens; the caches keep `kept` rows of it."""
        raise NotImplementedError


class ZLab(Theirs):
    """Z Lab's dflash 0.1.0."""

    def __init__(self, published: Published, pair: TracedPair):
        self.module = importlib.import_module("dflash.model_mlx")
        super().__init__("Z Lab 0.1.0", self.module, published, pair)

    def round(self, tokens: mx.array, caches: list[Any], kept: int) -> list[mx.array]:
        """Verify and commit as Z Lab's loop does. Patches the layers for this pass only."""
        model, module = self.pair.stock, self.module
        layers = module._get_layers(model)
        before = [*layers]
        recurrent = any(not hasattr(cache, "keys") for cache in caches)
        capture = module._GDNStateCapture() if recurrent else None
        try:
            module._patch_model(model, self.settings.target_layer_ids)
            logits = model(tokens, caches)
            tapped: Any = model._hidden_states
            taps = mx.concatenate(tapped, axis=-1)
            trim = tokens.shape[1] - kept
            if capture is None:
                module._trim_recent_cache(caches, trim)
            else:
                capture.rollback(caches, kept - 1, trim)
        finally:
            layers[:] = before
            model.__dict__.pop("_hidden_states", None)
            model.pop("_hidden_states", None)
            if capture is not None:
                capture.close()
        return [logits, taps]


class Dspark(Theirs):
    """mlx-dspark 0.20.3; does not support mlx-lm's targets with sliding layers."""

    def __init__(self, published: Published, pair: TracedPair):
        module = importlib.import_module("mlx_dspark.dflash_model")
        super().__init__("mlx-dspark 0.20.3", module, published, pair)
        target = importlib.import_module("mlx_dspark.target").Target
        self.target = target(pair.stock, load_tokenizer(Checkpoint.read(bundled("target"))))

    def round(self, tokens: mx.array, caches: list[Any], kept: int) -> list[mx.array]:
        """Verify and commit as mlx-dspark's loop does."""
        taps = [*self.settings.target_layer_ids]
        found = self.target.verify(tokens, caches, taps)
        self.target.rollback(caches, tokens.shape[1] - kept, [])
        return [*found]


def rounds(
    published: Published,
    pair: TracedPair,
    others: Sequence[type[ZLab] | type[Dspark]],
    depth: int,
) -> Iterator[Line]:
    """The passes of a round, of each project that supports this pair."""
    rows = pair.drafter.config.block_size
    kept = range(TAPS)
    verify = f"verify {rows}"
    yield Line.of(verify, depth, "stock", pair.stock_rows(depth, rows))
    for by, kernels in (("kernels off", Kernels()), ("kernels on", Kernels(MetalLauncher()))):
        pair.target.kernels = kernels
        yield Line.of(verify, depth, f"ours, {by}", pair.verify(depth, rows, kept=kept))
        yield Line.of("draft", depth, f"ours, {by}", pair.draft(depth))
    sliding = SLIDING in published.target.get("layer_types", ())
    for other in others:
        if other is Dspark and sliding:
            continue
        theirs = other(published, pair)
        yield Line.of(verify, depth, theirs.name, theirs.verify(depth, rows, TAPS))
        yield Line.of("draft", depth, theirs.name, theirs.draft(depth))


def row(line: Line) -> str:
    """One row of the Markdown table."""
    sizes = " | ".join(f"{size / MEGA:,.0f}" for size in (line.read, line.again, line.written))
    return f"| {line.depth:,} | {line.by} | {line.name} | {line.dispatches:,} | {sizes} |"


def main() -> None:
    """Print one Markdown table per pair."""
    known = {"zlab": ZLab, "dspark": Dspark}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("others", nargs="*", help="zlab or dspark, = and the folder of its package")
    parser.add_argument("--pair", nargs="+", default=[pair.name for pair in PAIRS])
    parser.add_argument("--context", nargs="+", type=int, default=[1024, 8192, 32_768])
    options = parser.parse_args()
    others = []
    for name, folder in (other.split("=", 1) for other in options.others):
        sys.path.append(folder)
        others.append(known[name])
    print(TITLE)
    for published in PAIRS:
        if published.name not in options.pair:
            continue
        print(f"\n## {published.name}\n\n{HEAD}")
        pair = TracedPair(published, Kernels())
        for depth in options.context:
            for line in rounds(published, pair, others, depth):
                print(row(line), flush=True)


if __name__ == "__main__":
    main()
