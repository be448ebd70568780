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
keeps its own function, and runs as a whole for one sequence after another. A function that scales
queries by their position is replaced in the same way, in every module that calls it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dis import get_instructions
from inspect import signature
from itertools import pairwise
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
from .packed import PackedCache, PackedPass, PerSegment
from .parts import call_of, give_class, stock_class, subclass

NAME = scaled_dot_product_attention.__name__
KNOWN = ("mlx_lm.models.base", "mlx_lm.models.cache")  # whose masks and caches have stand-ins
SCALE = "_get_llama_4_attn_scale"  # (rows, offset, ...) -> the factors of queries, [rows, 1]
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


# Heads, heads of keys, numbers in a head, the window (0: none), and whether there are sinks.
Shape = tuple[int, int, int, int, bool]


class MaskedRows:
    """One sequence's rows in a pass: the windows of their masks, and the contents of its caches."""

    def __init__(self, rows: Rows):
        self._rows: dict[tuple[int, int], Rows] = {(0, 0): rows}
        self._windows: dict[int, tuple[mx.array, int]] = {}
        self._shared: dict[int, tuple[mx.array, CachedRows]] = {}

    def recording(self, cache: Any) -> Callable[..., Any]:
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
    """The function that one model's attention modules call, and the pass that runs now.

    `seen` collects the shapes of the layers that run; None while nobody asks.
    """

    def __init__(self, kernels: Callable[[], Kernels]):
        self._kernels = kernels
        self._passes: list[MaskedRows | None] = [None]
        self._packed: PackedPass | None = None
        self._chains: dict[int, Rows] = {}
        self.seen: set[Shape] | None = None

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
        masks = [None] * count if mask is None else list(mask)
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
        if self.seen is not None:
            same = type(cache) in KINDS and keys.shape[-1] == values.shape[-1] == queries.shape[-1]
            if same:  # a cache in full precision
                sizes = queries.shape[1], keys.shape[1], keys.shape[3]
                self.seen.add((*sizes, getattr(cache, "max_size", 0), sinks is not None))
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
    form = signature(kind.__call__)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        """Rows [1, R, H] -> [1, R, H]."""
        values = (*args, *options.values())
        packed = next((one.packed for one in values if isinstance(one, PackedCache)), None)
        if packed is None:
            return kind.__call__(self, *args, **options)
        given = form.bind(self, *args, **options).arguments
        parts = {name: part_of(value, packed) for name, value in given.items() if name != "self"}
        outs = []
        for number, segment in enumerate(packed.segments):
            before = enter(segment.tree)
            try:
                outs.append(kind.__call__(self, **{n: part[number] for n, part in parts.items()}))
            finally:
                enter(before)
        return mx.concatenate(outs, axis=1)

    give_class(module, call)


def part_of(value: Any, packed: PackedPass) -> Sequence[Any]:
    """Each segment's part of an argument: of rows [1, R, ...] or [R, 1], of caches and of masks."""
    if isinstance(value, PackedCache):
        return value.members
    if isinstance(value, PerSegment):
        return value
    if isinstance(value, mx.array) and value.shape[:2] == (1, packed.rows):
        return packed.split(value, 1)
    if isinstance(value, mx.array) and value.shape == (packed.rows, 1):
        return packed.split(value, 0)
    return [value] * len(packed.segments)


def call_instead(
    module: nn.Module, functions: Mapping[str, Callable[..., Any]], classes: dict[type, type]
) -> None:
    """Let a module call these functions instead of those with their names in its globals.

    The module gets a subclass of its class; `classes` has those that were made.
    """
    kind: Any = type(module)
    if kind not in classes:
        stock = kind.__call__
        call = FunctionType(
            stock.__code__,
            {**stock.__globals__, **functions},
            stock.__name__,
            stock.__defaults__,
            stock.__closure__,
        )
        call.__kwdefaults__ = stock.__kwdefaults__
        classes[kind] = subclass(kind, call)
    module.__class__ = classes[kind]


def covered(module: nn.Module) -> bool:
    """Whether an attention module can call `attend`: it calls mlx-lm's function by its name.

    Latent attention is excluded: a part of its scores is passed as a float mask, and its code for
    a single row differs from that for several.
    """
    call: Any = stock_class(module).__call__
    named = call.__globals__.get(NAME) is scaled_dot_product_attention
    return named and NAME in call.__code__.co_names and not hasattr(module, "kv_lora_rank")


def install(
    modules: Iterable[Any], attention: Attention, enter: Callable[[Any], Any]
) -> tuple[str, ...]:
    """Let one model's modules attend by `attention`. Returns the names of classes that do not."""
    stock: set[str] = set()
    classes: dict[type, type] = {}
    for module in modules:
        if covered(module):
            call_instead(module, {NAME: attention.attend}, classes)
        else:
            stock.add(stock_class(module).__name__)
            run_one_by_one(module, enter)
    return tuple(sorted(stock))


def scale_by_position(
    model: nn.Module, current: Callable[[], TreePass | PackedPass | None]
) -> None:
    """Let a model scale the queries of trees and packed passes by the positions of their rows."""
    classes: dict[type, type] = {}
    for module in model.modules():
        call = call_of(type(module))
        stock = getattr(call, "__globals__", {}).get(SCALE)
        if stock is None or SCALE not in call.__code__.co_names:
            continue

        def scale(count: int, offset: Any, *sizes: Any, stock: Any = stock) -> mx.array:
            rows = current()
            if rows is None:
                return stock(count, offset, *sizes)
            first = 0 if isinstance(rows, PackedPass) else offset
            return stock(1, first + rows.depths, *sizes).reshape(-1, 1)

        call_instead(module, {SCALE: scale}, classes)


def counts_positions(kind: type, function: Any = None, depth: int = 2) -> bool:
    """Whether a module class of mlx-lm numbers the rows of a pass by itself when it is called.

    Its rows can then only follow one another: those of a tree or of a packed pass do not.
    """
    function = function or call_of(kind)
    if not isinstance(function, FunctionType) or function.__name__ == SCALE:
        return False
    if not function.__module__.startswith("mlx_lm.") or function.__module__ in KNOWN:
        return False
    names = [step.argval for step in get_instructions(function) if isinstance(step.argval, str)]
    if "arange" in names or ("fast", "rope") in pairwise(names):
        return True
    called = [function.__globals__.get(name) or getattr(kind, name, None) for name in names]
    return depth > 0 and any(counts_positions(kind, one, depth - 1) for one in called if one)
