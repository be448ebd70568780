"""The cache of a recurrent layer, which can rewind into its last pass.

A recurrent state has no rows that could be cut. So a pass keeps a small tape of the inputs that
each row fed to the recurrence, and a rewind runs mlx-lm's own update again over the rows that
stay. Where this package's operations ran, the tape holds what each row wrote to the state, and a
rewind is one operation per layer. The state of a short convolution is a part of its inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from dflash_mlx.models.gated_delta import State, Writes, replay, update

from .rows import Adapter
from .tree_pass import TreePass


@dataclass(frozen=True, slots=True)
class Window:
    """The inputs [1, K - 1 + S, C] of a convolution for the S rows of one pass; `held` is K - 1."""

    inputs: mx.array
    held: int

    def after(self, rows: int) -> State:
        """The inputs that the convolution needs after the first `rows` rows."""
        return [self.inputs[:, rows : rows + self.held]]

    def along(self, rows: tuple[int, ...]) -> State:
        """The same after these rows of a tree, a path from its anchor."""
        last = [*range(self.held), *(self.held + row for row in rows)][-self.held :]
        return [self.inputs[:, mx.array(last)]]


@dataclass(frozen=True, slots=True)
class Tape:
    """The inputs of one layer for the S rows of one pass.

    `inputs` [1, K - 1 + S, C] are the convolution's, `parts` the recurrence's as in `Fed.parts`.
    `states` [1, Hv, Dv, Dk] are the states before every `stride`-th row.
    """

    net: Any
    inputs: mx.array
    parts: tuple[mx.array, ...]
    states: tuple[mx.array | None, ...]
    stride: int

    def after(self, rows: int) -> State:
        """The states of convolution and recurrence after the first `rows` rows."""
        number = min(rows // self.stride, len(self.states) - 1)
        state = self.states[number]
        first = number * self.stride
        if first < rows:
            _, state = update(self.net, [part[:, first:rows] for part in self.parts], state)
        return [*self._window().after(rows), state]

    def along(self, rows: tuple[int, ...]) -> State:
        """The states after these rows of a tree, a path from its anchor."""
        path = mx.array(rows)
        _, state = update(self.net, [part[:, path] for part in self.parts], self.states[0])
        return [*self._window().along(rows), state]

    def _window(self) -> Window:
        return Window(self.inputs, self.net.conv_kernel_size - 1)


class RecurrentCache(ArraysCache):
    """mlx-lm's cache of one recurrent layer, which counts tokens and can rewind into a pass.

    `size`: the number of arrays in its state. taped: whether the layer's module remembers a tape;
    the first array is then the window of a convolution. The state before the last pass, which began
    at the token `start`, is always kept; its `tape` (`Tape`, `Window` or `Writes`) only if `taping`
    was set. While `tree` is set, a pass reads a tree: the state does not change until `keep_path`.
    """

    def __init__(self, size: int = 2, *, taped: bool = True) -> None:
        super().__init__(size)
        self.taped = taped
        self.offset = 0
        self.taping = True
        self.tree: TreePass | None = None
        self.start = 0
        self._before: State = [None] * size
        self.tape: Any = None

    def begin(self, count: int = 0) -> None:
        """Begin a pass: remember the state before it. Without a tape, count its tokens here."""
        self.start = self.offset
        self._before = list(self.cache)
        self.tape = None
        self.offset += count

    def make_mask(self, N: int, **options: Any) -> None:
        """No row of one sequence is masked."""

    def advance(self, N: int) -> None:
        """Count N tokens; mlx-lm's layers call this after reading them."""
        super().advance(N)
        if self.taped:
            self.offset += N

    def can_rewind(self, length: int) -> bool:
        if length in (0, self.start, self.offset):
            return length <= self.offset
        return self.tape is not None and self.start < length <= self.offset

    def writes(self, length: int | None = None) -> Writes | None:
        """The last pass's log of writes, if a rewind to `length` tokens needs it."""
        inside = length is None or self.start < length < self.offset
        return self.tape if inside and isinstance(self.tape, Writes) else None

    def rewind(self, length: int, state: State | None = None) -> None:
        """Rewind to `length` tokens, if `can_rewind` allows it; `state` is a replay's result."""
        if length == self.start:  # also after a pass that was interrupted in this layer
            self.cache = list(self._before)
        elif length == 0:
            self.load([None] * len(self.cache), 0)
        elif length < self.offset:
            self.cache = state or self.tape.after(length - self.start)
        self.offset = length

    def keep_path(self, rows: tuple[int, ...], state: State | None = None) -> None:
        """Keep the path of these rows of the last pass, which read a tree; `state` as in `rewind`.

        Afterwards the cache can rewind to before the pass, but not into it.
        """
        length = self.start + len(rows)
        self.cache = state or self.tape.along(rows)
        self.offset = length
        self.tape = None

    def save(self) -> tuple[mx.array, ...]:
        """The state, without keeping other arrays alive. The layer must have read something."""
        window, *states = (mx.zeros(0) if array is None else array for array in self.cache)
        return mx.take(window, mx.arange(window.shape[1]), axis=1), *states

    def load(self, state: Sequence[mx.array | None], length: int) -> None:
        self.cache = [None if array is None or not array.size else array for array in state]
        self.offset = length
        self.begin()

    @property
    def state(self) -> Any:
        return self.cache, self.offset

    @state.setter
    def state(self, v: Any) -> None:
        self.__init__(len(v[0]), taped=self.taped)
        self.load(*v)


class RecurrentAdapter(Adapter):
    """`RecurrentCache`: rewinds into the last pass with a tape, or to a snapshot."""

    def takes_back(self, cache: RecurrentCache) -> bool:
        return cache.taped

    def begin(self, cache: RecurrentCache, count: int) -> None:
        if not cache.taped:  # else its module begins the pass
            cache.begin(count)

    def rewind(self, caches: Sequence[RecurrentCache], length: int) -> None:
        """Rewind all layers, those with a log of writes by `replay`."""
        tapes = [cache.writes(length) for cache in caches]
        rows = [length - cache.start for cache, tape in zip(caches, tapes, strict=True) if tape]
        states = iter(replay([tape for tape in tapes if tape], range(max(rows, default=0))))
        for cache, tape in zip(caches, tapes, strict=True):
            cache.rewind(length, next(states) if tape else None)

    def keep_path(
        self, caches: Sequence[RecurrentCache], rows: tuple[int, ...], count: int
    ) -> None:
        tapes = [cache.writes() for cache in caches]
        states = iter(replay([tape for tape in tapes if tape], rows))
        for cache, tape in zip(caches, tapes, strict=True):
            cache.keep_path(rows, next(states) if tape else None)

    def begin_tree(self, cache: RecurrentCache, tree: TreePass) -> None:
        cache.tree = tree

    def end_tree(self, cache: RecurrentCache) -> None:
        cache.tree = None
