"""Attention of a target's layers by this package's operation, where it supports the layer.

An attention module of mlx-lm finds `scaled_dot_product_attention` in its globals. To replace it for
one model alone, each attention module of that model gets a subclass of its class, whose `__call__`
has the same code and other globals:

    mlx_lm.models.qwen3.Attention.__call__     __call__ of its subclass, for one target
      code     ---------- the same object ----> code
      globals                                   globals: a copy
        scaled_dot_product_attention              scaled_dot_product_attention
          -> mlx-lm's function                      -> Attention.attend, here

A packed pass attends sequence by sequence. Attention that `covered` excludes (latent attention)
keeps its own function, and runs as a whole for one sequence after another.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import KVCache

from dflash_mlx.cpu.modules import MaskedCache
from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.verify_attention import MAX_ATTENTION_ROWS, OP, Rows, Scores

from .cache.sliding import SlidingCache
from .cache.tree_pass import TreePass
from .packed import PackedCache, PackedPass, PerSegment, per_segment

STOCK = "_dflash_stock"
NAME = scaled_dot_product_attention.__name__
KINDS = (KVCache, MaskedCache, SlidingCache)


@dataclass(frozen=True, slots=True)
class CachedRows:
    """The contents of one cache in a pass: keys and values [1, Hkv, capacity, D] by position.

    Row 0 has position `start`. The first `context` rows were there before the pass; its own rows
    follow. A row sees the `window` newest positions (0: all); `mask` is mlx-lm's form of it.
    """

    keys: mx.array
    values: mx.array
    start: int
    context: int
    window: int
    mask: Any


class MaskedRows:
    """One sequence's rows in a pass: the windows of their masks, and the contents of its caches."""

    def __init__(self, rows: Rows):
        self._rows: dict[tuple[int, int], Rows] = {(0, 0): rows}
        self._windows: dict[int, tuple[mx.array, int]] = {}
        self._shared: dict[int, tuple[mx.array, CachedRows]] = {}

    def recording(self, cache: Any) -> Callable[..., Any]:
        """A cache's `make_mask` that also records the windows of the masks it makes."""
        make_mask = cache.make_mask
        size = getattr(cache, "max_size", 0)

        def recorded(N: int, return_array: bool = False, window_size: int | None = None) -> Any:
            mask = make_mask(N, return_array=return_array, window_size=window_size)
            if isinstance(mask, mx.array):
                self._windows[id(mask)] = mask, window_size or size
            return mask

        return recorded

    def cached(self, keys: mx.array, cache: Any, mask: Any) -> CachedRows | None:
        """The cached rows that a layer with these keys reads; None if they are not known.

        Some layers have no cache, and read the rows of an earlier layer with the same mask.
        """
        _, shared = self._shared.get(id(keys), (None, None))
        if cache is None or shared is not None:
            return shared if shared is not None and shared.mask is mask else None
        window = 0
        if isinstance(mask, mx.array):
            if id(mask) not in self._windows:
                return None
            _, window = self._windows[id(mask)]
        rows = by_position(cache, self.count, window, mask)
        if rows is not None:
            self._shared[id(keys)] = keys, rows
        return rows

    @property
    def count(self) -> int:
        return len(self._rows[0, 0].paths)

    def rows(self, cached: CachedRows) -> Rows:
        """The rows of the pass, placed after the rows that were cached before it."""
        place = cached.context, cached.start
        if place not in self._rows:
            self._rows[place] = replace(self._rows[0, 0], context=place[0], start=place[1])
        return self._rows[place]


def by_position(cache: Any, count: int, window: int, mask: Any) -> CachedRows | None:
    """The contents of a cache to which `count` rows were just added; None for unknown caches."""
    if type(cache) not in KINDS:
        return None
    keys = cache.keys
    values = cache.values
    if type(cache) is SlidingCache:
        start = cache.offset - cache._idx
        context = cache._idx - count
        return CachedRows(keys, values, start, context, window or int(cache.max_size), mask)
    return CachedRows(keys, values, 0, cache.offset - count, window, mask)


class Attention:
    """The function that one model's attention modules call, and the pass that runs now."""

    def __init__(self, kernels: Callable[[], Kernels]):
        self._kernels = kernels
        self._passes: list[MaskedRows | None] = [None]
        self._packed: PackedPass | None = None
        self._chains: dict[int, Rows] = {}
        self._classes: dict[type, type] = {}

    @contextmanager
    def over(
        self,
        parts: Sequence[tuple[int, Iterable[Any] | None, TreePass | None]],
        packed: PackedPass | None = None,
    ) -> Iterator[None]:
        """Run one pass; `parts` has the number of rows, the caches and the tree of each sequence.

        Without a tree the rows are a chain. The caches are None for a sequence that has none.
        Raises DFlashError for more rows than an exact pass can have.
        """
        changed: list[tuple[Any, Any]] = []
        try:
            self._packed = packed
            self._passes = [self._begin(*part, changed) for part in parts]
            yield
        finally:
            self._passes = [None]
            self._packed = None
            for cache, before in changed:
                vars(cache).pop("make_mask", None)
                if before is not None:
                    cache.make_mask = before

    def _begin(
        self,
        count: int,
        caches: Iterable[Any] | None,
        tree: TreePass | None,
        changed: list[tuple[Any, Any]],
    ) -> MaskedRows | None:
        if caches is None or not self._wanted(count, tree):
            return None
        begun = MaskedRows(self._shape(count, tree))
        for cache in caches:
            if type(cache) in KINDS:
                changed.append((cache, vars(cache).get("make_mask")))
                cache.make_mask = begun.recording(cache)  # of this object, not of its class
        return begun

    def _wanted(self, count: int, tree: TreePass | None) -> bool:
        """Whether the operation computes these rows.

        It computes no prompts. It computes decode steps only in exact mode, where they must have
        the bits of a verify pass, or if references replace the kernels.
        """
        kernels = self._kernels()
        if not kernels.replaces_stock(OP):
            return False
        if count == 1 and not kernels.exact and not kernels.references:
            return False
        if count <= MAX_ATTENTION_ROWS:
            return True
        if tree is not None and kernels.exact and kernels.launcher is not None:
            raise DFlashError(
                f"exact mode verifies at most {MAX_ATTENTION_ROWS} rows at once, not {count}.",
                hint=f"give a tree budget of at most {MAX_ATTENTION_ROWS - 1}",
            )
        return tree is not None

    def _shape(self, count: int, tree: TreePass | None) -> Rows:
        if tree is not None:
            return Rows.of(0, tree.parents)
        if count not in self._chains:
            self._chains[count] = Rows.of(0, range(-1, count - 1))
        return self._chains[count]

    def adopt(self, module: nn.Module) -> None:
        """Let an attention module call `attend` instead of mlx-lm's function.

        The module gets a subclass of its class, as described at the top of this file.
        """
        kind = stock_class(module)
        if kind not in self._classes:
            stock: Any = kind.__call__
            call = FunctionType(
                stock.__code__,
                {**stock.__globals__, NAME: self.attend},
                stock.__name__,
                stock.__defaults__,
                stock.__closure__,
            )
            call.__kwdefaults__ = stock.__kwdefaults__
            self._classes[kind] = subclass(kind, call)
        module.__class__ = self._classes[kind]

    def attend(
        self,
        queries: mx.array,
        keys: mx.array | PerSegment,
        values: mx.array | PerSegment,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """As mlx-lm's `scaled_dot_product_attention`: queries [1, Hq, T, D] -> [1, Hq, T, D].

        Raises DFlashError in exact mode for a cache or mask that is not known.
        """
        if not isinstance(keys, PerSegment):
            (masked,) = self._passes
            return self._attend(masked, queries, keys, values, cache, scale, mask, sinks)
        count = len(keys)
        caches = [None] * count if cache is None else cache.members
        assert self._packed is not None
        parts = self._packed.split(queries, 2)
        masks = per_segment(mask, count)
        segments = zip(self._passes, parts, keys, values, caches, masks, strict=True)
        return mx.concatenate(
            [
                self._attend(masked, q, k, v, member, scale, seen, sinks)
                for masked, q, k, v, member, seen in segments
            ],
            axis=2,
        )

    def _attend(
        self,
        masked: MaskedRows | None,
        queries: mx.array,
        keys: Any,
        values: Any,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None,
    ) -> mx.array:
        kernels = self._kernels()
        cached = None
        if masked is not None and len(queries) == 1:
            cached = masked.cached(keys, cache, mask)
        if masked is not None and cached is not None:
            scores = Scores(scale, window=cached.window, sinks=sinks)
            rows = masked.rows(cached)
            out = kernels.attempt(OP, queries, cached.keys, cached.values, rows, scores)
            if out is not None:
                return out
        if masked is not None and kernels.exact:
            raise DFlashError(
                f"exact mode does not know how a layer uses its '{type(cache).__name__}'.",
                hint="leave exact mode off for this model",
            )
        return scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)


def run_one_by_one(module: nn.Module, enter: Callable[[Any], Any]) -> None:
    """Let an attention module that is not `covered` run sequence by sequence in a packed pass.

    `enter(tree)` sets the rows that rotary embeddings use, and returns the previous ones.
    """
    kind: Any = stock_class(module)

    def call(self: Any, x: mx.array, mask: Any = None, cache: Any = None, **options: Any) -> Any:
        """x [1, R, H] -> [1, R, H]."""
        if not isinstance(cache, PackedCache):
            return kind.__call__(self, x, mask, cache, **options)
        packed = cache.packed
        outs = []
        masks = per_segment(mask, len(packed.segments))
        rows = zip(packed.split(x, 1), packed.segments, masks, cache.members, strict=True)
        for part, segment, seen, member in rows:
            before = enter(segment.tree)
            try:
                outs.append(kind.__call__(self, part, seen, member, **options))
            finally:
                enter(before)
        return mx.concatenate(outs, axis=1)

    give_class(module, call)


def give_class(module: nn.Module, call: Callable[..., Any]) -> None:
    """Let one module instance run `call` when it is called.

    It gets a subclass of its class, because Python looks up `__call__` on the class.
    """
    module.__class__ = subclass(stock_class(module), call)


def subclass(kind: type, call: Callable[..., Any]) -> Any:
    """A subclass of mlx-lm's or MLX's class `kind` whose `__call__` is `call`."""
    return type(kind.__name__, (kind,), {"__call__": call, STOCK: kind})


def stock_class(module: nn.Module) -> type:
    """mlx-lm's or MLX's class of a module, also after `give_class` or `adopt`."""
    return getattr(type(module), STOCK, type(module))


def covered(module: nn.Module) -> bool:
    """Whether `adopt` works for an attention module: it calls mlx-lm's function by that name.

    Latent attention is excluded: a part of its scores is passed as a float mask, and its code for
    a single row differs from that for several.
    """
    call: Any = stock_class(module).__call__
    named = call.__globals__.get(NAME) is scaled_dot_product_attention
    return named and NAME in call.__code__.co_names and not hasattr(module, "kv_lora_rank")


def install(
    layers: Iterable[Any], attention: Attention, enter: Callable[[Any], Any]
) -> tuple[str, ...]:
    """Let one model's layers attend by `attention`. Returns the names of classes that do not."""
    stock: set[str] = set()
    for layer in layers:
        if not hasattr(layer, "self_attn"):
            continue
        if covered(layer.self_attn):
            attention.adopt(layer.self_attn)
        else:
            stock.add(type(layer.self_attn).__name__)
            run_one_by_one(layer.self_attn, enter)
    return tuple(sorted(stock))
