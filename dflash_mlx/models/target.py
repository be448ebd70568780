"""The target: an mlx-lm model whose hidden states can be read while it runs.

A `Tap` stands in for a decoder layer whose output the drafter reads:

    model.layers = [ layer 0, Tap(layer 1), layer 2, ..., Tap(layer 9), ... ]
                                  |                          |
                                  +--- hidden states --------+--> joined as taps [1, S, K * Ht]

The final norm's output can be read, too, as if it were one more layer.
Taps sit on this one model instance, never on a class. They record only during `read` and
`forward`, so mlx-lm's own code runs on the same instance unchanged.
"""

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, compress
from pathlib import Path
from typing import Any, Self

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import _get_classes, load_model

from dflash_mlx.cpu.modules import restore_modules, use_cpu_caches, use_cpu_modules
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.files.adapter import Adapter
from dflash_mlx.files.checkpoint import Checkpoint, context_length, missing_number, text_config
from dflash_mlx.files.folder import readable
from dflash_mlx.files.programs import Notice
from dflash_mlx.hub.openable import why_not
from dflash_mlx.kernels.dispatch import Kernels, available
from dflash_mlx.speculation.tree import Tree

from . import attention, linear
from .ability import ALL_DRAFTS, UNEQUAL, Ability
from .cache.rows import quantised_caches
from .cache.sizes import cache_sizes
from .cache.target_cache import TargetCache, own_caches
from .cache.tree_pass import TreePass
from .packed import PackedCache, PackedPass, Segment, SequencePass, SequenceRows, wrap_ropes
from .parts import Wrapper, give_class, holders, look, stock_class
from .precision import float_type
from .recurrent import tape_convolutions, tape_layers

log = logging.getLogger(__name__)

TREE = Tree(tokens=(0, 0), parents=(0, 0), depths=(1, 1), logs=(0.0, 0.0))  # of the trial passes


class Tap(Wrapper):
    """Wraps a decoder layer and records its output."""

    def __init__(self, layer: nn.Module, record: Callable[[mx.array], None]):
        super().__init__(layer)
        self._record = record

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; record its output (the first, if it returns several)."""
        out = self["plain"](*args, **kwargs)
        self._record(out[0] if isinstance(out, tuple) else out)
        return out


class Target:
    """A loaded model, and the kernels that it and its drafter run.

    `checkpoint` has mlx-lm's version of config.json; `config` is the same with the language model's
    entries at the top level. `eos_ids` are the tokens that end an answer. `parts` are what was
    found in the model, `caches` the sizes of its caches. `ability` says which drafts it can take.
    `stock_attention` names the attention classes that no kernel supports, and `attention_shapes`
    are those of the others. `kv_bits`: the bits of the KV caches in the layers with a group size in
    `kv_groups`; 0 if no layer is quantised. `adapter`: the one that the model was loaded with.
    `notice`: tells other programs what it and its drafter hold in memory.
    """

    adapter: Adapter | None = None
    notice: Notice | None = None

    def __init__(
        self,
        model: nn.Module,
        checkpoint: Checkpoint,
        eos_ids: frozenset[int],
        kernels: Kernels | None = None,
        *,
        kv_bits: int | None = None,
    ):
        linear.install(model, Kernels())  # without the stand-ins of another target
        self.model = model
        self._sharing: Sequence[nn.Module] = ()
        self.eos_ids = eos_ids
        self.path = checkpoint.path
        parts = look(model)
        self.caches = cache_sizes(parts)
        # The arrays of caches would keep every weight that they were computed from.
        self.parts = parts = replace(parts, caches=())
        found = {"num_hidden_layers": len(parts.layers), "vocab_size": parts.vocab_size}
        if parts.hidden_size:
            found["hidden_size"] = parts.hidden_size
        # Some configs have these sizes by other names, or leave them to the class.
        self.checkpoint = replace(checkpoint, config={**found, **checkpoint.config})
        self.config = text_config(self.checkpoint.config)
        self.kv_bits = kv_bits or 0
        self.kv_groups = tuple(size.group for size in self.caches) if kv_bits else ()
        self.layers = len(parts.layers)
        self.hidden_size = parts.hidden_size
        self.vocab_size = parts.vocab_size
        self.dtype = parts.dtype
        self.context_length = context_length(self.config) or 1 << 20
        self._tapped: tuple[int, ...] = ()
        self._seen: dict[int, mx.array] | None = None
        self._current: TreePass | PackedPass | None = None
        self._wanted: mx.array | None = None  # the rows whose logits are wanted; None: all
        self._at_once = False
        if parts.norm is not None:
            self._select_rows(parts.norm)
        bare = [layer["plain"] if isinstance(layer, Tap) else layer for layer in parts.layers]
        taped = tape_layers(bare, lambda: self.kernels) | tape_convolutions(bare)
        self._has_tape = [
            bool(readers) and all(id(one) in taped for one in readers) for readers in parts.readers
        ]
        self._attention = attention.Attention(lambda: self.kernels)
        # Those that read rows of keys, and their like without a cache: they read others' rows.
        pairs = list(zip(parts.readers, self.caches, strict=True))
        kinds = {stock_class(one) for readers, size in pairs if size.width for one in readers}
        attending = [one for one in model.modules() if stock_class(one) in kinds]
        self.stock_attention = attention.install(attending, self._attention, self._enter)
        if any(size.width and not readers for readers, size in pairs):
            self.stock_attention += ("without a module",)
        attention.scale_by_position(model, lambda: self._current)
        wrap_ropes(model, lambda: self._current)
        self._kernels = Kernels()
        self.ability = ALL_DRAFTS  # until the trial passes tell
        self._attention.seen = set()
        self.ability = self._find_ability(attending)
        self.attention_shapes = tuple(sorted(self._attention.seen))
        self._attention.seen = None
        self.kernels = kernels or Kernels()

    def _select_rows(self, norm: nn.Module) -> None:
        """Let the model's final norm return only the wanted rows; if tapped, it records all.

        mlx-lm's models compute the head right after this norm, for all of its rows. A prompt needs
        the logits of its last row only, and the head of a large vocabulary is expensive.
        """
        kind: Any = stock_class(norm)
        record = self._recorder(self.layers)

        def call(module: Any, x: mx.array) -> mx.array:
            """x [B, S, H] -> [B, wanted rows, H]."""
            rows = self._wanted
            if self.layers not in self._tapped:
                return kind.__call__(module, x if rows is None else x[:, rows])
            normed = kind.__call__(module, x)
            record(normed)
            return normed if rows is None else normed[:, rows]

        give_class(norm, call)

    def _find_ability(self, attending: Sequence[Any]) -> Ability:
        """What this model can do, by trying passes of which nothing is evaluated."""
        tokens = mx.zeros(TREE.rows, dtype=mx.int32)
        cache = self.make_cache()
        self.read([SequenceRows(cache, tokens)])
        readers = compress(self.parts.readers, self.parts.used)
        pairs = zip(readers, cache.takes_back, strict=True)
        stuck = [group for group, takes_back in pairs if not takes_back]
        reason = UNEQUAL.get(type(self.model).__module__.rpartition(".")[2])
        if stuck:
            names = {stock_class(one).__name__ for group in stuck for one in group}
            reason = f"its recurrent layers cannot go back ({', '.join(sorted(names))})"
        if reason:
            return Ability(drafts=False, hidden=False, reason=reason)
        in_order = self._why_in_order(tokens, attending)
        if self.parts.reads_hidden:
            return Ability(in_order=in_order)
        return Ability(hidden=False, reason="its hidden states cannot be read", in_order=in_order)

    def _why_in_order(self, tokens: mx.array, attending: Sequence[Any]) -> str:
        modules = [*holders(self.model, self.parts.layers), *self.parts.layers, *attending]
        if any(attention.counts_positions(kind) for kind in {stock_class(m) for m in modules}):
            return "its layers count positions by themselves"
        try:
            self.read([SequenceRows(self.make_cache(), tokens) for _ in range(2)])
            cache = self.make_cache()
            with cache.reading(TREE) as tree:
                self.forward(tokens[None], cache)
        except Exception as error:  # of many kinds, from mlx-lm's classes
            log.info("a shared pass fails: %s", first_line(error))
            return "its layers read the rows of one text only"
        return "" if tree.masks else "its layers make their own masks"

    @property
    def heads(self) -> int:
        """The most query heads of a layer: by the config, else as its attention has them."""
        known = max((heads for heads, *_ in self.attention_shapes), default=32)
        return int(self.config.get("num_attention_heads") or known)

    @property
    def kernels(self) -> Kernels:
        return self._kernels

    @kernels.setter
    def kernels(self, kernels: Kernels) -> None:
        """Raise DFlashError for exact kernels if some layer is not known to be exact."""
        if kernels.exact and (unknown := (*self.stock_attention, *linear.unknown(self.model))):
            raise DFlashError(
                f"exact mode does not know the layers {', '.join(unknown)} of "
                f"'{self.config['model_type']}'.",
                hint="leave exact mode off for this model",
            )
        if kernels.exact:
            restore_modules(self.model)
        linear.install(self.model, kernels)
        self._kernels = kernels
        self.share_kernels(self._sharing)

    def share_kernels(self, models: Sequence[nn.Module]) -> None:
        """Let the drafters' products of few rows run the kernels of the target, now and later.

        `models` replace those of earlier drafters. Drafts need no exact kernels: their bits change
        no answer.
        """
        self._sharing = models
        for model in models:
            linear.install(model, Kernels() if self.kernels.exact else self.kernels)

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        eos_ids: frozenset[int],
        *,
        exact: bool = False,
        kv_bits: int | None = None,
        adapter: Adapter | None = None,
        read_model: Callable[[Path], tuple[nn.Module, dict[str, Any]]] = load_model,
    ) -> Self:
        """Load a model; in float32 where MLX computes on the CPU, which is slow at 16 bits.

        With `exact` the bits of a row do not depend on the number of rows in its pass. `read_model`
        returns the model and its config. Raises DFlashError for a missing or damaged file, an
        unsupported model type, an adapter of another model, or (with `exact`) a layer that is not
        known to be exact.
        """
        check_target(checkpoint)
        path = checkpoint.path
        try:
            with readable(path, checkpoint.weight_files) as folder:
                model, config = read_model(folder)
        except DFlashError:
            raise
        except Exception as error:  # mlx-lm and its model classes raise many kinds
            missing = missing_number(path)
            reason = f"'{missing}' is missing" if missing else first_line(error)
            raise DFlashError(
                f"the target in '{path}' cannot be loaded ({reason}).",
                hint="check that the folder holds a whole mlx-lm or Hugging Face model",
            ) from error
        if adapter is not None:
            try:
                with readable(adapter.path) as folder:
                    load_adapters(model, str(folder))
            except Exception as error:  # of its config and its tensors, many kinds, too
                raise adapter.misfit(checkpoint.name, error) from error
            model.eval()  # without dropout
        use_cpu_modules(model)
        mx.eval(model.parameters())
        checkpoint = replace(checkpoint, config=config)
        target = cls(model, checkpoint, eos_ids, available(exact=exact), kv_bits=kv_bits)
        target.adapter = adapter
        return target

    def tap(self, layer_ids: tuple[int, ...]) -> None:
        """Choose the decoder layers whose outputs are read; they are joined in this order.

        The number of layers stands for the final norm.
        """
        for number in sorted(set(layer_ids) - {*self._tapped, self.layers}):
            layers = self.parts.layers
            layers[number] = Tap(layers[number], self._recorder(number))
        self._tapped = tuple(layer_ids)

    @property
    def tapped(self) -> int:
        return len(self._tapped)

    def _recorder(self, number: int) -> Callable[[mx.array], None]:
        def record(hidden: mx.array) -> None:
            if self._seen is not None:
                self._seen[number] = hidden
                if self._at_once:
                    mx.async_eval(hidden)

        return record

    def embed(self, ids: mx.array) -> mx.array:
        """Token ids [...] -> the embeddings the drafter's block starts from, [..., Ht]."""
        x = self._table(ids)
        scale = self.parts.embed_scale
        return x if scale == 1.0 else x * scale

    def head(self, hidden: mx.array) -> mx.array:
        """Hidden states [..., Ht] after a final norm -> logits [..., V], without a softcap.

        A drafter has its own factor and softcap in its config.json.
        """
        head = self.parts.head
        return self._table.as_linear(hidden) if head is None else head.module(hidden)

    @property
    def head_type(self) -> mx.Dtype | None:
        """The dtype that the head's weights compute in; None if they take any."""
        head = self.parts.head
        return float_type(self._table if head is None else head.module)

    @property
    def _table(self) -> Any:
        assert self.parts.table is not None
        return self.parts.table.module

    @property
    def kv_summary(self) -> str:
        if not self.kv_bits:
            return ""
        quantised = sum(map(bool, self.kv_groups))
        return f"KV cache {self.kv_bits} bits in {quantised} of {self.layers} layers"

    def make_cache(self) -> TargetCache:
        """Empty caches of one sequence, as mlx-lm makes them for this model."""
        layers = make_prompt_cache(self.model)
        if self.kv_bits:
            layers = quantised_caches(layers, self.kv_groups, self.kv_bits)
        own = own_caches(use_cpu_caches(layers), self._has_tape)
        return TargetCache(own, used=self.parts.used)

    def read(self, parts: Sequence[SequenceRows], *, at_once: bool = False) -> list[SequencePass]:
        """One pass over the rows of these sequences, each after the tokens in its own cache.

        All rows are in one batch, so weights are read once, unless the model's `ability` is less.
        Evaluates nothing, except with `at_once`: the device computes the layers up to each tap
        while the host builds the next.
        """
        if len(parts) > 1 and not self.ability.scattered:
            return [self.read([part], at_once=at_once)[0] for part in parts]
        with ExitStack() as stack:
            trees: list[TreePass | None] = []
            for part in parts:
                part.cache.tape(part.tape)
                part.cache.begin(part.tokens.size)
                read = None if part.tree is None else part.cache.reading(part.tree)
                trees.append(None if read is None else stack.enter_context(read))
            tokens = mx.concatenate([part.tokens for part in parts])[None]
            current = trees[0]
            layers = parts[0].cache.layers
            pairs = list(zip(parts, trees, strict=True))
            packed = None
            if len(parts) > 1:
                current = packed = PackedPass(
                    [Segment(part.cache.offset, part.tokens.size, tree) for part, tree in pairs]
                )
                per_layer = zip(*(part.cache.layers for part in parts), strict=True)
                layers = [PackedCache(packed, caches) for caches in per_layer]
            reading = [(part.tokens.size, part.cache.members, tree) for part, tree in pairs]
            with self._attention.over(reading, packed):
                wanted = wanted_rows(parts)
                logits, taps = self._run(tokens, layers, current, wanted, at_once=at_once)
        if packed is None:
            return [SequencePass(logits.squeeze(0), taps)]
        counts = [1 if part.last else part.tokens.size for part in parts]
        ends = list(accumulate(counts))[:-1]
        outputs = zip(mx.split(logits.squeeze(0), ends), packed.split(taps, 1), strict=True)
        return [SequencePass(*output) for output in outputs]

    def forward(self, tokens: mx.array, cache: TargetCache | None) -> tuple[mx.array, mx.array]:
        """Read tokens [B, S] after those in the cache: logits [B, S, V], taps [B, S, K * Ht].

        Evaluates nothing. Without tapped layers the taps are [B, S, 0]. While the cache reads a
        tree, every row follows its parent. Batches and sequences without a cache run mlx-lm's
        attention.
        """
        tree = None if cache is None else cache.tree
        members = cache.members if cache is not None and len(tokens) == 1 else None
        if cache is not None:
            cache.begin(tokens.shape[1])
        with self._attention.over([(tokens.shape[1], members, tree)]):
            return self._run(tokens, None if cache is None else cache.layers, tree, None)

    def _run(
        self,
        tokens: mx.array,
        layers: list[Any] | None,
        current: TreePass | PackedPass | None,
        wanted: mx.array | None,
        *,
        at_once: bool = False,
    ) -> tuple[mx.array, mx.array]:
        self._seen = {}
        self._current = current
        self._wanted = wanted
        self._at_once = at_once
        try:
            logits = self.model(tokens, cache=layers)
            if wanted is not None and self.parts.norm is None:
                logits = logits[:, wanted]
            taps = [self._seen[number] for number in self._tapped]
        finally:
            self._seen = self._current = self._wanted = None
        if not taps:
            return logits, mx.zeros((*tokens.shape, 0), dtype=logits.dtype)
        return logits, mx.concatenate(taps, axis=-1)

    def _enter(self, rows: TreePass | PackedPass | None) -> TreePass | PackedPass | None:
        """Set the rows that rotary embeddings use. Returns the previous ones."""
        before = self._current
        self._current = rows
        return before

    def taps(self, tokens: mx.array) -> mx.array:
        """Taps [B, S, K * Ht] of whole sequences [B, S], read without a cache."""
        return self.forward(tokens, None)[1]


def wanted_rows(parts: Sequence[SequenceRows]) -> mx.array | None:
    """The rows of a pass whose logits are wanted; None for all."""
    if not any(part.last for part in parts):
        return None
    rows: list[int] = []
    first = 0
    for part in parts:
        end = first + part.tokens.size
        rows += [end - 1] if part.last else range(first, end)
        first = end
    return mx.array(rows)


def check_target(checkpoint: Checkpoint) -> None:
    """Raise DFlashError for a drafter, and for a model that mlx-lm does not open."""
    name = checkpoint.path.name
    if checkpoint.format != "language model":
        raise DFlashError(
            f"'{name}' is a drafter, not a model that can answer by itself.",
            hint="give it as --draft, and its target as --model",
        )
    if error := why_not(checkpoint):
        raise error


def outline(checkpoint: Checkpoint) -> Target:
    """A target without weights, to see what it can do and what its caches take.

    Raises DFlashError as `check_target`, and for a config.json that mlx-lm's class does not accept.
    """
    check_target(checkpoint)
    config = json.dumps(checkpoint.config, sort_keys=True)
    return outline_of(checkpoint.path, checkpoint.label, config)


@lru_cache(maxsize=8)  # a start asks several times: for the memory, for what fits, for the drafter
def outline_of(path: Path, label: str, config: str) -> Target:
    """As `outline`; config: as JSON."""
    checkpoint = Checkpoint(path, json.loads(config), label)
    try:
        model_class, args_class = _get_classes(checkpoint.config)
        model = model_class(args_class.from_dict(json.loads(config)))
    except Exception as error:  # of many kinds, from mlx-lm's classes
        raise DFlashError(
            f"the config of '{checkpoint.name}' does not describe a model of its type "
            f"({first_line(error)}).",
            hint="download the model again",
        ) from error
    model.update(tree_map(nothing, model.parameters()))
    model.eval()
    try:
        return Target(model, checkpoint, frozenset())
    except DFlashError:
        raise
    except Exception as error:
        raise DFlashError(
            f"'{checkpoint.name}' cannot be run by mlx-lm's code ({first_line(error)}).",
            hint="try `mlx_lm.generate` with it, and report what it says",
        ) from error


def nothing(weight: mx.array) -> mx.array:
    """Zeros of a weight's shape that take no memory, even if something evaluates them."""
    is_float = mx.issubdtype(weight.dtype, mx.floating)
    return mx.broadcast_to(mx.zeros((), mx.bfloat16 if is_float else weight.dtype), weight.shape)
