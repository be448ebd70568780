"""Recurrent layers whose passes can be undone row by row, for one or several sequences.

These are Gated DeltaNet and the short convolutions of LFM2.

Stands in for the layers' modules on one model instance; mlx-lm's classes stay as they are.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn

from dflash_mlx.kernels.dispatch import Kernels, on_cpu

from .cache.recurrent import RecurrentCache, Tape, Window
from .gated_delta import (
    CHAIN_ROWS,
    PROJECTIONS,
    Project,
    chain_places,
    convolve,
    feed,
    feed_stock,
    read,
    update,
    update_tree,
    walk,
)
from .packed import PackedCache
from .parts import stand_in

# Bytes per layer. On the CPU mlx-lm computes one row after another, and keeping the states between
# them costs only their memory. On a GPU they stay inside a kernel.
KEPT_STATES = 4 << 20


class TapedDelta(nn.Module):
    """Replaces a Gated DeltaNet module: the same results, and a tape of the pass if wanted.

    `kernels` returns the target's kernels, and is called in every pass. `keeps_states`: whether the
    states between the rows of a pass are kept.
    """

    def __init__(self, net: Any, project: Project, kernels: Callable[[], Kernels]):
        super().__init__()
        self.net = net
        self._project = project
        self._kernels = kernels
        self.keeps_states = on_cpu()
        self._chain = chain_places(CHAIN_ROWS, net.conv_kernel_size)

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any = None
    ) -> mx.array:
        """Rows [1, S, H] -> [1, S, H]; runs mlx-lm's module if no tape is wanted.

        In exact mode decode steps run the same code as verify passes. A packed pass computes its
        projections once, and its recurrences one sequence at a time.
        """
        if isinstance(cache, PackedCache):
            return self._packed(inputs, cache)
        if isinstance(cache, RecurrentCache):
            cache.begin()
            count = inputs.shape[1]
            exact = self._kernels().exact
            if (cache.taping and count > 1) or (exact and count == 1):
                mixed, a, b, gate = self._projected(inputs)
                return self._finished(self._recur(mixed, a, b, cache), gate)
        return self.net(inputs, mask, cache)

    def _packed(self, inputs: mx.array, cache: PackedCache) -> mx.array:
        *fed, gate = self._projected(inputs)
        parts = zip(*(cache.packed.split(part, axis=1) for part in fed), strict=True)
        outs = []
        for (mixed, a, b), member in zip(parts, cache.members, strict=True):
            member.begin()
            outs.append(self._recur(mixed, a, b, member))
        return self._finished(mx.concatenate(outs, axis=1), gate)

    def _projected(self, inputs: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Convolution inputs [1, S, C], a and b [1, S, Hv], gate [1, S, Hv, Dv]."""
        mixed, gate, a, b = self._project(self.net, inputs)
        return mixed, a, b, gate

    def _finished(self, out: mx.array, gate: mx.array) -> mx.array:
        """Outputs of the recurrence [1, S, Hv, Dv] -> the layer's [1, S, H]."""
        net: Any = self.net
        return net.out_proj(net.norm(out, gate).reshape(1, out.shape[1], -1))

    def _recur(self, mixed: mx.array, a: mx.array, b: mx.array, cache: RecurrentCache) -> mx.array:
        """Convolution and recurrence of one sequence's rows: [1, S, Hv, Dv], and the tape."""
        net: Any = self.net
        kernels = self._kernels()
        tree = cache.tree
        count = mixed.shape[1]
        size = net.conv_kernel_size
        before, state = cache.cache
        if before is None:
            before = mx.zeros((1, size - 1, net.conv_dim), dtype=mixed.dtype)
        taped = cache.taping or kernels.exact
        fed = None
        if taped:
            chain = self._chain if count <= CHAIN_ROWS else chain_places(count, size)
            places = tree.windows(size) if tree else chain
            fed = feed(kernels, net, mixed, a, b, before, places)
        if fed is None:
            places = tree.windows(size) if tree else None
            fed = feed_stock(net, mixed, a, b, before, places)
        stride = stride_of(net, count) if self.keeps_states else count
        states = [state]
        tape = None
        made = read(kernels, net, fed, state, tree) if taped else None
        if made is not None:
            out, after, tape = made
            states.append(after)
        elif tree is not None:
            out = update_tree(net, fed.parts, state, tree)
            stride = count
        elif taped and stride < count:
            out, states[1:] = walk(net, fed.parts, state, stride)
        else:
            out, state = update(net, fed.parts, state)
            states.append(state)
        if tree is None:
            cache[0] = mx.contiguous(fed.inputs[:, 1 - size :])
            cache[1] = states.pop()
        if taped:
            rows = (fed.keys, *fed.parts[1:])  # queries only read the state: any will do
            cache.tape = tape or Tape(net, fed.inputs, rows, tuple(states), stride)
        cache.advance(count)
        return out


def stride_of(net: Any, count: int) -> int:
    """The number of rows between two kept states, at most `count`."""
    size = 4 * net.num_v_heads * net.head_v_dim * net.head_k_dim
    return min(count, -(-count * size // KEPT_STATES))


def tape_layers(layers: list[Any], kernels: Callable[[], Kernels]) -> set[int]:
    """Put a `TapedDelta` in place of every Gated DeltaNet module of one model's layers.

    Returns the ids of mlx-lm's modules that remember a tape now.
    """

    def make(net: Any) -> TapedDelta | None:
        for names, project in PROJECTIONS:
            if all(name in net for name in (*names, "A_log", "conv1d")):
                return TapedDelta(net, project, kernels)
        return None

    return stand_in(layers, TapedDelta, make)


# Short convolutions

PARTS = ("in_proj", "conv", "out_proj")


class TapedConv(nn.Module):
    """Replaces a ShortConv module: the same results, and a tape of the pass if wanted."""

    def __init__(self, net: Any):
        super().__init__()
        self.net = net

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any = None
    ) -> mx.array:
        """Rows [1, S, H] -> [1, S, H]; runs mlx-lm's module without a cache of ours.

        A packed pass computes its projections once, and its convolutions one sequence at a time.
        """
        net: Any = self.net
        if not isinstance(cache, PackedCache | RecurrentCache):
            return net(inputs, mask, cache)
        before, after, x = mx.split(net.in_proj(inputs), 3, axis=-1)
        fed = before * x
        if isinstance(cache, PackedCache):
            parts = zip(cache.packed.split(fed, axis=1), cache.members, strict=True)
            out = mx.concatenate([self._convolved(*part) for part in parts], axis=1)
        else:
            out = self._convolved(fed, cache)
        return net.out_proj(after * out)

    def _convolved(self, fed: mx.array, cache: RecurrentCache) -> mx.array:
        """The convolution [1, S, H] of one sequence's gated rows [1, S, H], and the tape."""
        cache.begin()
        net: Any = self.net
        held = net.L_cache - 1
        count = fed.shape[1]
        window = cache[0]
        if window is None:
            window = mx.zeros((1, held, fed.shape[2]), dtype=fed.dtype)
        inputs = mx.concatenate([window, fed], axis=1)
        tree = cache.tree
        out = convolve(net.conv, inputs, tree.windows(net.L_cache) if tree else None)
        if tree is None:
            cache[0] = mx.contiguous(inputs[:, count:])
        if cache.taping:
            cache.tape = Window(inputs, held)
        cache.advance(count)
        return out


def tape_convolutions(layers: list[Any]) -> set[int]:
    """Put a `TapedConv` in place of every ShortConv module of one model's layers.

    Returns the ids of mlx-lm's modules that remember a tape now.
    """

    def make(net: Any) -> TapedConv | None:
        is_short = hasattr(net, "L_cache") and all(part in net for part in PARTS)
        return TapedConv(net) if is_short else None

    return stand_in(layers, TapedConv, make)
