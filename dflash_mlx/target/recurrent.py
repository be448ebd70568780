"""Recurrent layers that can go back: Gated DeltaNet with a tape of its last pass.

A recurrent state has no rows that could be dropped. A verify therefore notes what each row fed the
recurrence, which is small, and going back runs mlx-lm's own update again over the rows that stay;
or what each row wrote, where this package's operations ran, and going back is one of those.
Stands in for the layers' modules on one model instance; mlx-lm's classes stay as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import ArraysCache
from mlx_lm.models.gated_delta import normalize_qk

from dflash_mlx.cpu.modules import on_cpu
from dflash_mlx.kernels.dispatch import Kernels

from .gated_delta import Project, grow, split_heads, update, walk
from .gated_delta_kernels import Deltas, State, convolve, read, replay
from .tree_pass import Branch

# On the CPU mlx-lm takes row after row, and keeping the states on the way costs only their memory:
# that many bytes a layer. On a GPU they stay inside a kernel.
HELD = 4 << 20


@dataclass(frozen=True, slots=True)
class Tape:
    """What the S rows of one pass fed a layer.

    `inputs` [1, K - 1 + S, C] are the convolution's; `keys` [1, S, Hk, Dk], `values`
    [1, S, Hv, Dv], `a` and `b` [1, S, Hv] the recurrence's; `states` [1, Hv, Dv, Dk] those before
    every `stride`-th row.
    """

    net: Any
    inputs: mx.array
    keys: mx.array
    values: mx.array
    a: mx.array
    b: mx.array
    states: tuple[mx.array | None, ...]
    stride: int

    def after(self, rows: int) -> State:
        """The states of convolution and recurrence after the first `rows` rows."""
        number = min(rows // self.stride, len(self.states) - 1)
        state, first = self.states[number], number * self.stride
        if first < rows:
            part = slice(first, rows)
            keys, values = self.keys[:, part], self.values[:, part]
            # Queries only read the state: any will do.
            _, state = update(self.net, keys, keys, values, self.a[:, part], self.b[:, part], state)
        return [self.inputs[:, rows : rows + self.net.conv_kernel_size - 1], state]

    def along(self, rows: tuple[int, ...]) -> State:
        """The states after these rows of a tree, a path from its anchor."""
        path, window = mx.array(rows), self.net.conv_kernel_size - 1
        keys, values = self.keys[:, path], self.values[:, path]
        _, state = update(
            self.net, keys, keys, values, self.a[:, path], self.b[:, path], self.states[0]
        )
        last = [*range(window), *(window + row for row in rows)][-window:]
        return [self.inputs[:, mx.array(last)], state]


class RecurrentCache(ArraysCache):
    """mlx-lm's cache of one recurrent layer, which counts tokens and can go back into a pass.

    The state before the last pass is always kept, its tape only if `taping` was set. While `branch`
    is set a pass reads a tree: the state stays what it was, until `pick` says which path was right.
    """

    def __init__(self) -> None:
        super().__init__(2)
        self.offset = 0
        self.taping = True
        self.branch: Branch | None = None
        self._start = 0
        self._before: State = [None, None]
        self._tape: Tape | Deltas | None = None

    def begin(self) -> None:
        """A pass begins."""
        self._start, self._before, self._tape = self.offset, list(self.cache), None

    def keep(self, tape: Tape | Deltas) -> None:
        """Remember what the pass that runs now fed its layer."""
        self._tape = tape

    def advance(self, N: int) -> None:
        """Count N tokens, as mlx-lm's layers say when they have read them."""
        super().advance(N)
        self.offset += N

    def can_rewind(self, length: int) -> bool:
        """Whether the state after `length` tokens can be had."""
        if length in (0, self._start, self.offset):
            return length <= self.offset
        return self._tape is not None and self._start < length <= self.offset

    def deltas(self, length: int | None = None) -> Deltas | None:
        """The last pass's tape of that kind, if going back to `length` tokens needs it."""
        inside = length is None or self._start < length < self.offset
        return self._tape if inside and isinstance(self._tape, Deltas) else None

    def rewind(self, length: int, state: State | None = None) -> None:
        """Go back to `length` tokens, as `can_rewind` has allowed; `state` is a replay's for it."""
        if length == self._start:  # also when the pass was broken off in this layer
            self.cache = list(self._before)
        elif length == 0:
            self.load([None, None], 0)
        elif length < self.offset:
            self.cache = state or self._taped().after(length - self._start)
        self.offset = length

    def pick(self, rows: tuple[int, ...], state: State | None = None) -> None:
        """Keep the path of these rows of the last pass, which read a tree; `state` as above."""
        self.load(state or self._taped().along(rows), self._start + len(rows))

    def _taped(self) -> Tape:
        assert isinstance(self._tape, Tape)
        return self._tape

    def save(self) -> tuple[mx.array, ...]:
        """The state of a layer that has read something; nothing else is kept alive by it."""
        conv, state = self.cache
        assert conv is not None
        assert state is not None
        return mx.take(conv, mx.arange(conv.shape[1]), axis=1), state

    def load(self, state: Sequence[mx.array | None], length: int) -> None:
        """Take over the state after `length` tokens."""
        self.cache, self.offset = list(state), length
        self.begin()

    @property
    def state(self) -> Any:
        """The arrays, and the count."""
        return self.cache, self.offset

    @state.setter
    def state(self, v: Any) -> None:
        self.__init__()
        self.load(*v)


def rewind_all(caches: Sequence[RecurrentCache], length: int) -> None:
    """`rewind` of all recurrent layers of a model: one replay for all that need one."""
    tapes = [cache.deltas(length) for cache in caches]
    rows = [length - cache._start for cache, tape in zip(caches, tapes, strict=True) if tape]
    states = iter(replay([tape for tape in tapes if tape], range(max(rows, default=0))))
    for cache, tape in zip(caches, tapes, strict=True):
        cache.rewind(length, next(states) if tape else None)


def pick_all(caches: Sequence[RecurrentCache], rows: tuple[int, ...]) -> None:
    """`pick` of all recurrent layers of a model, the same."""
    tapes = [cache.deltas() for cache in caches]
    states = iter(replay([tape for tape in tapes if tape], rows))
    for cache, tape in zip(caches, tapes, strict=True):
        cache.pick(rows, next(states) if tape else None)


class TapedDelta(nn.Module):
    """Stands in for a Gated DeltaNet module: the same numbers, with a tape where one is wanted.

    `kernels` gives the target's, asked anew every pass.
    """

    def __init__(self, net: nn.Module, project: Project, kernels: Callable[[], Kernels]):
        super().__init__()
        self.net = net
        self._project, self._kernels = project, kernels

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any = None
    ) -> mx.array:
        """Rows [1, S, H] -> [1, S, H]; stock mlx-lm wherever no tape is wanted.

        Where plain steps have to have the bits of a verify, they are taken the same way.
        """
        if isinstance(cache, RecurrentCache):
            cache.begin()
            count, kernels = inputs.shape[1], self._kernels()
            if (cache.taping and count > 1) or (kernels.exact and count == 1):
                return self._taped(inputs, cache, kernels)
        return self.net(inputs, mask, cache)

    def _taped(self, inputs: mx.array, cache: RecurrentCache, kernels: Kernels) -> mx.array:
        net: Any = self.net
        count, window, branch = inputs.shape[1], net.conv_kernel_size - 1, cache.branch
        mixed, gate, a, b = self._project(net, inputs)
        before, state = cache.cache
        if before is None:
            before = mx.zeros((1, window, net.conv_dim), dtype=inputs.dtype)
        rows = mx.concatenate([before, mixed], axis=1)
        if kernels.exact:
            chain = mx.arange(count)[:, None] + mx.arange(window + 1)
            mixed = convolve(net, rows, branch.windows(window + 1) if branch else chain)
        elif branch is None:
            mixed = net.conv1d(rows)
        else:
            mixed = net.conv1d(rows[0][branch.windows(window + 1)]).swapaxes(0, 1)
        queries, keys, values = split_heads(net, nn.silu(mixed))
        queries, keys = normalize_qk(queries, keys, inv_scale=net.head_k_dim**-0.5, eps=1e-6)
        fed = queries, keys, values, a, b
        stride, states, tape = stride_of(net, count), [state], None
        made = None if kernels.stock else read(kernels, net, fed, rows, state, branch)
        if made is not None:
            out, after, tape = made
            states.append(after)
        elif branch is not None:
            out, stride = grow(net, *fed, state, branch), count
        elif stride < count:
            out, states[1:] = walk(net, *fed, state, stride)
        else:
            out, state = update(net, *fed, state)
            states.append(state)
        if branch is None:
            cache[0], cache[1] = mx.contiguous(rows[:, -window:]), states.pop()
        cache.keep(tape or Tape(net, rows, keys, values, a, b, tuple(states), stride))
        cache.advance(count)
        return net.out_proj(net.norm(out, gate).reshape(1, count, -1))


def stride_of(net: Any, count: int) -> int:
    """After how many of a pass's rows a state is kept, or all of them."""
    if not on_cpu():
        return count
    size = 4 * net.num_v_heads * net.head_v_dim * net.head_k_dim
    return min(count, -(-count * size // HELD))


def tape_layers(layers: list[Any], project: Project, kernels: Callable[[], Kernels]) -> None:
    """Put a `TapedDelta` in place of every Gated DeltaNet module of one model's layers."""
    for layer in layers:
        if layer.is_linear:
            taped = isinstance(layer.linear_attn, TapedDelta)
            net = layer.linear_attn.net if taped else layer.linear_attn
            layer.linear_attn = TapedDelta(net, project, kernels)


def recurrent_caches(layers: list[Any]) -> list[Any]:
    """Empty caches of one model; the recurrent ones can go back."""
    return [RecurrentCache() if type(layer) is ArraysCache else layer for layer in layers]
