"""Traces of a pair's passes: decode step, verify, commit and draft at a given depth of context.

Models have the published shapes but lazy weights that are never computed, so even a large target
takes little memory.
"""

from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import _get_classes, quantize_model

from dflash_mlx.drafters.feature_head import FeatureDrafter
from dflash_mlx.files.checkpoint import Checkpoint, text_config
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.cache.sliding import sliding_caches
from dflash_mlx.models.cache.target_cache import TargetCache
from dflash_mlx.models.packed import SequenceRows
from dflash_mlx.models.recurrent import TapedDelta, recurrent_caches
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams
from dflash_mlx.speculation.acceptance import Match
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.speculation.tree import Tree

from .contexts import after, held, labels_of, layers_of, put
from .drafters import evaluate_hidden, make_drafter
from .fold import fold
from .fused import patterns
from .published import Published
from .trace import Graph, trace

TAPS = 5  # tokens of the last round; a draft first computes their context rows
WEIGHT, READ, LOGITS = "weight", "taps", "logits"
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
        self.drafter: Any = make_drafter(pair.drafter, self.target, draft_bits)
        self.drafts_one_by_one = isinstance(self.drafter, FeatureDrafter)

    def step(self, depth: int) -> Graph:
        """A decode step of the engine."""
        return self.verify(depth, 1)

    def verify(
        self, depth: int, rows: int, tree: Tree | None = None, kept: Sequence[int] | None = None
    ) -> Graph:
        """A verify pass over `rows` rows, a chain or a tree, after `depth` tokens.

        With `kept` also the commit of these rows.
        """

        layers = recurrent_caches(sliding_caches(make_prompt_cache(self.stock)))
        cache = TargetCache(layers)

        def run() -> Outputs:
            tokens = mx.zeros((rows,), mx.int32)
            (found,) = self.target.read([SequenceRows(cache, tokens, tree)])
            if kept is not None and tree is not None:
                cache.keep_path(tuple(kept))
            elif kept is not None:
                cache.rewind(depth + len(kept))
            return [found.logits, found.taps]

        counts = (rows, 1, len(kept or ()))
        return self._trace(self.target.model, run, layers, depth, counts, kept is not None)

    def prompt(self, depth: int, rows: int) -> Graph:
        """A prefill chunk of `rows` rows: taps of all rows, logits of the last."""
        layers = recurrent_caches(sliding_caches(make_prompt_cache(self.stock)))
        cache = TargetCache(layers)

        def run() -> Outputs:
            tokens = mx.zeros((rows,), mx.int32)
            (found,) = self.target.read([SequenceRows(cache, tokens, tape=False, last=True)])
            return [found.logits, found.taps]

        return self._trace(self.target.model, run, layers, depth, (rows,))

    def packed(self, depth: int, rows: int, sequences: int) -> Graph:
        """A verify pass over the chains of several sequences, each of `rows` rows."""
        each = [
            recurrent_caches(sliding_caches(make_prompt_cache(self.stock)))
            for _ in range(sequences)
        ]
        caches = [TargetCache(layers) for layers in each]

        def run() -> Outputs:
            tokens = mx.zeros((rows,), mx.int32)
            found = self.target.read([SequenceRows(cache, tokens) for cache in caches])
            return [part for one in found for part in (one.logits, one.taps)]

        layers = [layer for some in each for layer in some]
        return self._trace(self.target.model, run, layers, depth, (rows,))

    def accept(self, rows: int, sampling: SamplingParams) -> Graph:
        """The acceptance of the drafts of `rows` rows, from the logits."""
        vocab = self.target.vocab_size
        logits = mx.zeros((rows, vocab), mx.bfloat16)
        rule = Match(sampling, vocab, self.target.kernels)

        def run(*given: mx.array) -> Outputs:
            draft = Draft(mx.zeros((rows - 1,), mx.int32))
            return [rule.outcome(draft, given[0], [], 0)]

        return traced(nn.Module(), run, [logits], [LOGITS], rows=())

    def stock_rows(self, depth: int, rows: int) -> Graph:
        """A pass of stock mlx-lm over as many rows."""

        layers = recurrent_caches(make_prompt_cache(self.stock))

        def run() -> Outputs:
            return [self.stock(mx.zeros((1, rows), mx.int32), cache=layers)]

        return self._trace(self.stock, run, layers, depth, (rows,))

    def draft(self, depth: int, rows: int | None = None) -> Graph:
        """A greedy draft of `rows` rows, by default a block, with the last round's context rows."""
        drafter = self.drafter
        width: int = rows or drafter.block_size
        count = min(TAPS, width)
        taps = mx.zeros((1, count, len(drafter.taps) * self.target.hidden_size), mx.bfloat16)
        cache = drafter.make_cache()
        cache.append(taps[:, :2], (0, 0))
        assert cache.state  # computes the rows that wait
        caches = layers_of(cache)
        arrays = [*held(caches, depth - count), taps]

        def run(*given: mx.array) -> Outputs:
            parts = iter(given)
            put(caches, parts, depth - count)
            cache.append(next(parts), (0,) * count)
            (block,) = drafter.draft([cache], [1], width)
            return [block.greedy().tokens]

        labels = [*labels_of(caches), READ]
        both = nn.Module()
        both.target, both.drafter = self.target.model, drafter.model
        return traced(both, run, arrays, labels, rows=())

    def _trace(
        self,
        model: nn.Module,
        run: Callable[[], Outputs],
        caches: list[Any],
        depth: int,
        rows: tuple[int, ...],
        committed: bool = False,
    ) -> Graph:
        for first in range(0, len(caches), self.target.layers):  # gives the caches their shapes
            some = caches[first : first + self.target.layers]
            self.stock(mx.zeros((1, 2), mx.int32), cache=some)

        def inside(*given: mx.array) -> Outputs:
            put(caches, iter(given), depth)
            return [*run(), *after(caches, committed)]

        return traced(model, inside, held(caches, depth), labels_of(caches), rows)


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


def traced(
    model: nn.Module,
    run: Callable[..., Outputs],
    arrays: Sequence[mx.array],
    labels: Sequence[str],
    rows: tuple[int, ...],
) -> Graph:
    """The folded graph of `run(*arrays)`; the weights of the model are inputs, too."""
    flat_weights: list[Any] = list(tree_flatten(model.parameters()))
    names = [name for name, _ in flat_weights]

    def inside(*given: mx.array) -> Outputs:
        model.update(tree_unflatten(list(zip(names, given, strict=False))))
        return run(*given[len(names) :])

    every = [array for _, array in flat_weights] + list(arrays)
    try:
        graph = trace(inside, every, [*(f"{WEIGHT} {name}" for name in names), *labels])
    finally:
        model.update(tree_unflatten(flat_weights))
    return fold(graph, patterns(rows)).reached()


def sample_tree(rows: int) -> Tree:
    """A tree of `rows` rows: a third is a chain, with branches of two nodes along it."""
    spine = rows // 3
    parents = list(range(spine))
    while len(parents) < rows - 1:
        at = len(parents) - spine
        parents.append(len(parents) if at % 2 else at // 2)
    depths: list[int] = []
    for parent in parents:
        depths.append(1 + (depths[parent - 1] if parent else 0))
    tokens = tuple(range(rows - 1))
    return Tree(tokens, tuple(parents), tuple(depths), (0.0,) * (rows - 1))
