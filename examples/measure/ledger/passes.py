"""Traces of a pair's passes: decode step, verify, commit and draft at a given depth of context.

Models have the published shapes but lazy weights that are never computed, so even a large target
takes little memory.
"""

from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from itertools import repeat
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import ArraysCache, make_prompt_cache
from mlx_lm.utils import _get_classes, quantize_model

from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.model import DraftModel
from dflash_mlx.files.checkpoint import Checkpoint, text_config
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.cache.recurrent import RecurrentCache
from dflash_mlx.models.cache.target_cache import TargetCache, own_caches
from dflash_mlx.models.packed import SequenceRows
from dflash_mlx.models.precision import quantise
from dflash_mlx.models.recurrent import TapedDelta
from dflash_mlx.models.target import Target
from dflash_mlx.speculation.tree import Tree

from .contexts import after, held, layers_of, put
from .fold import fold
from .fused import patterns
from .published import Published
from .trace import Graph, trace

TAPS = 5  # tokens of the last round; a draft first computes their context rows
WEIGHT, READ = "weight", "taps"
Outputs = list[mx.array]


class TracedPair:
    """A published pair without weights."""

    def __init__(self, pair: Published, kernels: Kernels, draft_bits: int = 0):
        config = dict(pair.target)
        model = lazy_model(config, pair)
        self.stock = lazy_model(config, pair)
        checkpoint = Checkpoint(Path(pair.name), config)
        self.target = Target(model, checkpoint, frozenset(), kernels)
        for module in model.modules():
            if isinstance(module, TapedDelta):
                module.keeps_states = False  # as on a GPU
        settings = parse(dict(pair.drafter))
        drafter = DraftModel(settings, self.target.hidden_size)
        drafter.set_dtype(mx.bfloat16)
        quantise(drafter, draft_bits)
        evaluate_hidden(drafter)
        self.target.tap(settings.target_layer_ids)
        self.drafter = DFlashDrafter(drafter, self.target.embed, self.target.head)

    def verify(
        self, depth: int, rows: int, tree: Tree | None = None, kept: Sequence[int] | None = None
    ) -> Graph:
        """A verify pass over `rows` rows, a chain or a tree, after `depth` tokens.

        Of one row it is a decode step. With `kept` also the commit of these rows.
        """
        cache = self.cache()

        def run() -> Outputs:
            tokens = mx.zeros((rows,), mx.int32)
            (found,) = self.target.read([SequenceRows(cache, tokens, tree)])
            if kept is not None and tree is not None:
                cache.keep_path(tuple(kept))
            elif kept is not None:
                cache.rewind(depth + len(kept))
            return [found.logits, found.taps]

        counts = (rows, 1, len(kept or ()))
        return self.traced(self.target.model, run, cache.layers, depth, counts, kept is not None)

    def cache(self) -> TargetCache:
        """An empty cache of one sequence."""
        return TargetCache(own_caches(make_prompt_cache(self.stock), repeat(True)))

    def stock_rows(self, depth: int, rows: int) -> Graph:
        """A pass of stock mlx-lm over as many rows."""
        layers = [
            RecurrentCache(len(one.cache)) if type(one) is ArraysCache else one
            for one in make_prompt_cache(self.stock)
        ]

        def run() -> Outputs:
            return [self.stock(mx.zeros((1, rows), mx.int32), cache=layers)]

        return self.traced(self.stock, run, layers, depth, (rows,))

    def draft(self, depth: int, width: int) -> Graph:
        """A greedy draft of a block of `width` rows, with the last round's context rows."""
        drafter = self.drafter
        count = min(TAPS, width)
        taps = mx.zeros((1, count, len(drafter.taps) * self.target.hidden_size), mx.bfloat16)
        cache = drafter.make_cache()
        cache.append(taps[:, :2], (0, 0))
        assert cache.state  # computes the rows that wait
        caches = layers_of(cache)
        arrays = [*held(caches, depth - count), (READ, taps)]

        def run(*given: mx.array) -> Outputs:
            parts = iter(given)
            put(caches, parts, depth - count)
            cache.append(next(parts), (0,) * count)
            (block,) = drafter.draft([cache], [1], width)
            return [block.greedy().tokens]

        both = nn.Module()
        both.target, both.drafter = self.target.model, drafter.model
        return traced(both, run, arrays, rows=())

    def traced(
        self,
        model: nn.Module,
        run: Callable[[], Outputs],
        caches: list[Any],
        depth: int,
        rows: tuple[int, ...],
        committed: bool = False,
    ) -> Graph:
        """A pass with `caches` that hold `depth` tokens; recurrences are over these `rows`."""
        for first in range(0, len(caches), self.target.layers):  # gives the caches their shapes
            some = caches[first : first + self.target.layers]
            self.stock(mx.zeros((1, 2), mx.int32), cache=some)

        def inside(*given: mx.array) -> Outputs:
            put(caches, iter(given), depth)
            return [*run(), *after(caches, committed)]

        return traced(model, inside, held(caches, depth), rows)


def lazy_model(config: dict[str, Any], pair: Published) -> nn.Module:
    """A target with mlx-lm's classes in bfloat16, quantised like the pair's; computes nothing.

    In modes other than affine only experts are quantised, as in the published gpt-oss.
    """
    classes: Any = _get_classes(text_config(config))
    given = {**config, "text_config": deepcopy(config)}
    model = classes[0](classes[1].from_dict(given))
    model.set_dtype(mx.bfloat16)
    if pair.mode == "affine":
        with redirect_stdout(StringIO()):  # mlx-lm prints the bits
            model, _ = quantize_model(model, config, pair.group_size, pair.bits)
    elif pair.mode != "none":

        def experts(path: str, module: nn.Module) -> bool:
            return ".experts." in path and hasattr(module, "to_quantized")

        nn.quantize(model, 32, pair.bits, mode=pair.mode, class_predicate=experts)
    model.eval()
    evaluate_hidden(model)
    return model


def evaluate_hidden(model: nn.Module) -> None:
    """Compute the small arrays of modules that are not parameters, as loading does."""
    for module in model.modules():
        mx.eval([v for k, v in module.items() if k.startswith("_") and isinstance(v, mx.array)])


def traced(
    model: nn.Module,
    run: Callable[..., Outputs],
    arrays: Sequence[tuple[str, mx.array]],
    rows: tuple[int, ...],
) -> Graph:
    """The folded graph of a run with labelled arrays; the weights of the model are inputs, too."""
    flat_weights: list[Any] = list(tree_flatten(model.parameters()))
    names = [name for name, _ in flat_weights]

    def inside(*given: mx.array) -> Outputs:
        model.update(tree_unflatten(list(zip(names, given, strict=False))))
        return run(*given[len(names) :])

    every = [(f"{WEIGHT} {name}", array) for name, array in flat_weights] + [*arrays]
    labels, inputs = zip(*every, strict=True)
    try:
        graph = trace(inside, inputs, labels)
    finally:
        model.update(tree_unflatten(flat_weights))
    return fold(graph, patterns(rows)).reached()
