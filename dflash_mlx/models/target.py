"""The target: an mlx-lm model whose hidden states can be read while it runs.

A `Tap` stands in for a decoder layer whose output the drafter reads:

    model.layers = [ layer 0, Tap(layer 1), layer 2, ..., Tap(layer 9), ... ]
                                  |                          |
                                  +--- hidden states --------+--> joined as taps [1, S, K * Ht]

The final norm's output can be read, too, as if it were one more layer.
Taps sit on this one model instance, never on a class. They record only during `read` and
`forward`, so mlx-lm's own code runs on the same instance unchanged.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load_model

from dflash_mlx.cpu.blas import use_openblas
from dflash_mlx.cpu.modules import restore_modules, use_cpu_caches, use_cpu_modules
from dflash_mlx.errors import DFlashError, UsageError, first_line
from dflash_mlx.families import FAMILIES
from dflash_mlx.files.adapter import Adapter
from dflash_mlx.files.checkpoint import Checkpoint, text_config
from dflash_mlx.kernels.dispatch import Kernels, available
from dflash_mlx.options import SamplingParams, declared

from . import attention, linear
from .cache.rows import quantised_caches
from .cache.sliding import sliding_caches
from .cache.target_cache import TargetCache
from .cache.tree_pass import TreePass
from .gated_delta import PROJECTIONS
from .memory import KV_GROUPS, head_dim, kv_groups
from .packed import PackedCache, PackedPass, Segment, SequencePass, SequenceRows, wrap_ropes
from .precision import float_type
from .recurrent import recurrent_caches, tape_layers
from .short_conv import tape_convolutions


class Tap(nn.Module):
    """Wraps a decoder layer and records its output; other attributes are the layer's."""

    def __init__(self, layer: nn.Module, record: Callable[[mx.array], None]):
        super().__init__()
        self["layer"] = layer  # before any attribute: __getattr__ needs it
        self._record = record

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; record its output (the first, if it returns several)."""
        out = self.layer(*args, **kwargs)
        self._record(out[0] if isinstance(out, tuple) else out)
        return out

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self["layer"], name)


def select_rows(
    norm: nn.Module,
    wanted: Callable[[], mx.array | None],
    record: Callable[[mx.array], None],
    is_tapped: Callable[[], bool],
) -> None:
    """Let a model's final norm return only the rows whose logits are wanted (None: all).

    If it is tapped, it computes and records all rows.

    mlx-lm's models compute the head right after this norm, for all of its rows. A prompt needs the
    logits of its last row only, and the head of a large vocabulary is expensive. Like attention
    modules, the norm of this instance gets a subclass of its class.
    """
    kind: Any = attention.stock_class(norm)

    def call(self: Any, x: mx.array) -> mx.array:
        """x [B, S, H] -> [B, wanted rows, H]."""
        rows = wanted()
        if not is_tapped():
            return kind.__call__(self, x if rows is None else x[:, rows])
        normed = kind.__call__(self, x)
        record(normed)
        return normed if rows is None else normed[:, rows]

    attention.give_class(norm, call)


class Target:
    """A loaded model, and the kernels that it and its drafter run.

    `checkpoint` has mlx-lm's version of config.json; `config` is the same with the language model's
    entries at the top level. `eos_ids` are the tokens that end an answer. `stock_attention` names
    the attention classes that no kernel supports. `kv_bits`: the bits of the KV caches in the
    layers with a group size in `kv_groups`; 0 if no layer is quantised. `adapter`: the one that the
    model was loaded with.
    """

    adapter: Adapter | None = None

    def __init__(
        self,
        model: nn.Module,
        checkpoint: Checkpoint,
        eos_ids: frozenset[int],
        kernels: Kernels | None = None,
        *,
        kv_bits: int | None = None,
    ):
        config = text_config(checkpoint.config)
        family = FAMILIES[config["model_type"]]
        self.model = model
        self.checkpoint = checkpoint
        self.config = config
        self.eos_ids = eos_ids
        self.kv_bits = kv_bits or 0
        self.kv_groups = kv_groups(config) if kv_bits else ()
        self.path = checkpoint.path
        self._body: Any = reduce(getattr, family.body.split("."), model)
        self._outer: Any = reduce(getattr, filter(None, family.outer.split(".")), model)
        self._embed_scale = getattr(self._body, family.embed_scale) if family.embed_scale else 1.0
        self._attention = attention.Attention(lambda: self.kernels)
        layers = self._body.layers
        self.stock_attention = attention.install(layers, self._attention, self._enter)
        self.layers = len(layers)
        select_rows(
            getattr(self._body, family.norm),
            lambda: self._wanted,
            self._recorder(self.layers),
            lambda: self.layers in self._tapped,
        )
        self.kernels = kernels or Kernels()
        if family.project:
            project = PROJECTIONS[family.project]
            tape_layers(self._body.layers, project, lambda: self.kernels)
        if family.short_conv:
            tape_convolutions(self._body.layers)
        self._tapped: tuple[int, ...] = ()
        self._seen: dict[int, mx.array] | None = None
        self._current: TreePass | PackedPass | None = None
        self._wanted: mx.array | None = None  # the rows whose logits are wanted; None: all
        self._at_once = False
        self._ropes_wrapped = False
        self.hidden_size: int = config["hidden_size"]
        # Gemma's class uses a default if config.json has no vocab_size at the top level.
        self.vocab_size: int = self._body.embed_tokens.weight.shape[0]
        self.context_length: int = config.get("max_position_embeddings") or 1 << 20

    @property
    def kernels(self) -> Kernels:
        """The kernels that the layers and the drafter run; can be set between passes."""
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
        use_openblas()  # logs a warning if it is too late
        target_config(checkpoint)
        path = checkpoint.path
        checkpoint.check_weights()
        try:
            model, config = read_model(path)
        except DFlashError:
            raise
        except Exception as error:  # mlx-lm and its model classes raise many kinds
            raise DFlashError(
                f"the target in '{path}' cannot be loaded ({first_line(error)}).",
                hint="check that the folder holds a whole mlx-lm or Hugging Face model",
            ) from error
        if adapter is not None:
            try:
                load_adapters(model, str(adapter.path))
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
            self._body.layers[number] = Tap(self._body.layers[number], self._recorder(number))
        self._tapped = tuple(layer_ids)

    @property
    def tapped(self) -> int:
        """The number of layers whose outputs are read."""
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
        x = self._body.embed_tokens(ids)
        return x if self._embed_scale == 1.0 else x * self._embed_scale

    def head(self, hidden: mx.array) -> mx.array:
        """Hidden states [..., Ht] after a final norm -> logits [..., V], without a softcap.

        A drafter has its own factor and softcap in its config.json.
        """
        if "lm_head" in self._outer:
            return self._outer.lm_head(hidden)
        return self._body.embed_tokens.as_linear(hidden)

    @property
    def head_type(self) -> mx.Dtype | None:
        """The dtype that the head's weights compute in; None if they take any."""
        own = self._outer.get("lm_head")
        return float_type(self._body.embed_tokens if own is None else own)

    @property
    def kv_summary(self) -> str:
        """The bits of a quantised KV cache and the number of its layers; empty if there is none."""
        if not self.kv_bits:
            return ""
        quantised = sum(map(bool, self.kv_groups))
        return f"KV cache {self.kv_bits} bits in {quantised} of {self.layers} layers"

    def make_cache(self) -> TargetCache:
        """Empty caches of one sequence, as mlx-lm makes them for this model."""
        layers = make_prompt_cache(self.model)
        if self.kv_bits:
            layers = quantised_caches(layers, self.kv_groups, self.kv_bits)
        return TargetCache(recurrent_caches(sliding_caches(use_cpu_caches(layers))))

    def read(self, parts: Sequence[SequenceRows], *, at_once: bool = False) -> list[SequencePass]:
        """One pass over the rows of these sequences, each after the tokens in its own cache.

        All rows are in one batch, so weights are read once. Evaluates nothing, except with
        `at_once`: the device computes the layers up to each tap while the host builds the next.
        """
        with ExitStack() as stack:
            trees: list[TreePass | None] = []
            for part in parts:
                part.cache.tape(part.tape)
                read = None if part.tree is None else part.cache.reading(part.tree)
                trees.append(None if read is None else stack.enter_context(read))
            tokens = mx.concatenate([part.tokens for part in parts])[None]
            current = trees[0]
            layers = parts[0].cache.layers
            packed = None
            if len(parts) > 1:
                packed = PackedPass(
                    [
                        Segment(part.cache.offset, part.tokens.size, tree)
                        for part, tree in zip(parts, trees, strict=True)
                    ]
                )
                per_layer = zip(*(part.cache.layers for part in parts), strict=True)
                current = packed
                layers = [PackedCache(packed, caches) for caches in per_layer]
            reading = [
                (part.tokens.size, part.cache.members, tree)
                for part, tree in zip(parts, trees, strict=True)
            ]
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
        if current is not None and not self._ropes_wrapped:
            wrap_ropes(self.model, lambda: self._current)
            self._ropes_wrapped = True
        self._seen = {}
        self._current = current
        self._wanted = wanted
        self._at_once = at_once
        try:
            logits = self.model(tokens, cache=layers)
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


def target_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The config of a target's checkpoint, with the language model's entries at the top level.

    Raises DFlashError for a drafter, for a model with its own code, for an unsupported model type
    and for a missing size.
    """
    path = checkpoint.path
    config = checkpoint.text_config
    if checkpoint.format != "language model":
        raise DFlashError(
            f"'{path.name}' is a drafter, not a model that can answer by itself.",
            hint="give it as --draft, and its target as --model",
        )
    if config.get("model_file"):
        raise DFlashError(
            f"'{path.name}' brings its own model code, which is never run.",
            hint="use a conversion that mlx-lm's own model classes load",
        )
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise DFlashError(
            f"targets of the type '{kind}' are not supported.",
            hint=f"use a model of one of the types {', '.join(sorted(FAMILIES))}",
        )
    for key in ("hidden_size", "vocab_size", "num_hidden_layers"):
        if not isinstance(config.get(key), int):
            raise DFlashError(
                f"the config of '{path.name}' has no '{key}'.", hint="download the model again"
            )
    return config


def check_kv_bits(checkpoint: Checkpoint) -> None:
    """Raise DFlashError for a target without a layer whose KV cache can be quantised."""
    config = checkpoint.text_config
    if any(kv_groups(config)):
        return
    family = FAMILIES[config["model_type"]]
    dim = head_dim(config, "full_attention")
    reason = "no layer of full attention has a cache to itself"
    if family.latent:
        reason = "it caches latents (MLA) instead of keys and values"
    elif family.sinks:
        reason = "its attention has sinks"
    elif dim % KV_GROUPS[-1]:
        reason = f"its heads have {dim} numbers, which is no multiple of {KV_GROUPS[-1]}"
    raise DFlashError(
        f"the KV cache of '{checkpoint.path.name}' cannot be quantised: {reason}.",
        hint="leave --kv-bits out",
    )


# The sampling options that a model's authors recommend

FILE = "generation_config.json"
FIELDS = tuple(option.name for option in declared(SamplingParams) if option.name != "seed")


def recommended_sampling(checkpoint: Checkpoint) -> dict[str, float]:
    """The fields of `SamplingParams` that generation_config.json sets; empty for greedy decoding.

    As in transformers, decoding is greedy if do_sample is false, or if there is neither do_sample
    nor a temperature; then the other fields have no effect. With do_sample alone the
    temperature is 1. transformers' default top_k of 50 is not used. Raises DFlashError for a file
    that is not JSON, or has an invalid value.
    """
    raw = checkpoint.generation_config
    if raw.get("do_sample") is False:
        return {}
    given = [name for name in FIELDS if raw.get(name) is not None]
    values = {name: value_of(name, raw[name], checkpoint.path) for name in given}
    if raw.get("do_sample"):
        values.setdefault("temperature", 1.0)
    return values if values.get("temperature") else {}


def value_of(name: str, value: Any, folder: Path) -> float:
    """A number that `SamplingParams` accepts. Raises DFlashError for any other value."""
    try:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(value)
        number: Any = int(value) if name == "top_k" else float(value)
        SamplingParams(**{name: number})
    except (UsageError, ValueError, OverflowError):
        raise DFlashError(
            f"'{folder / FILE}' recommends a {name} that is out of range: {value!r:.40}.",
            hint="repair the file, or remove it",
        ) from None
    return number
