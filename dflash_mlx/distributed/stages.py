"""A target's layers shared out: each rank computes its own, and what they give is on all ranks.

Pipeline parallelism for one sequence after another: no faster than one machine that held it all,
but few sums a pass (one behind each stage and each tapped layer), any family, and any number of
ranks up to that of the layers. The head stays whole on each rank, as `shards` leaves it. Knows no
orders.
"""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load_model

from dflash_mlx.errors import DFlashError
from dflash_mlx.target.attention import give_class, stock_class
from dflash_mlx.target.families import FAMILIES, flat
from dflash_mlx.target.target import Tap


class Staged(nn.Module):
    """A model of which one rank computes some layers; attributes are the model's.

    Its caches are those of the rank's own layers.
    """

    def __init__(self, model: nn.Module, own: range):
        super().__init__()
        self["whole"] = model  # before any attribute: __getattr__ needs it
        caches = make_prompt_cache(model)
        self._own = own
        # Masks are made from the cache of any layer of a kind, so another's is as good.
        kinds = {type(caches[n]): n - own.start for n in reversed(own)}
        self._places = [
            n - own.start if n in own else kinds.get(type(cache)) for n, cache in enumerate(caches)
        ]

    def make_cache(self) -> list[Any]:
        """Empty caches of the rank's layers."""
        return make_prompt_cache(self.whole)[self._own.start : self._own.stop]

    def __call__(self, tokens: mx.array, cache: list[Any] | None = None, **options: Any) -> Any:
        """As the model's, with those caches."""
        if cache is not None:
            cache = [NOTHING if place is None else cache[place] for place in self._places]
        return self.whole(tokens, cache=cache, **options)

    def __getattr__(self, name: str) -> Any:
        """Anything else is asked of the model."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self["whole"], name)


class Nothing:
    """The cache of a kind of layer that this rank has none of: what is made of it, nobody reads."""

    offset = 0

    def make_mask(self, *args: Any, **options: Any) -> None:
        """None."""


NOTHING = Nothing()


def load_stage(path: Path, group: mx.distributed.Group) -> tuple[nn.Module, dict[str, Any]]:
    """This rank's layers of a model in a folder, and its config; raises as `stage`."""
    model, config = load_model(path, lazy=True)
    return stage(model, config, group), config


def stage(model: nn.Module, config: dict[str, Any], group: mx.distributed.Group) -> Staged:
    """The model with this rank's layers; the weights of all others are left on disk.

    DFlashError where there are fewer layers than ranks, where a layer needs another rank's keys,
    and where rank 0's do not stand for all.
    """
    body: Any = reduce(getattr, FAMILIES[flat(config)["model_type"]].body.split("."), model)
    layers, ranks = body.layers, group.size()
    if ranks > len(layers):
        raise DFlashError(
            f"{len(layers)} layers cannot be shared by {ranks} ranks.", hint="take fewer ranks"
        )
    starts = [rank * len(layers) // ranks for rank in range(ranks + 1)]
    own = range(starts[group.rank()], starts[group.rank() + 1])
    kinds = [type(cache) for cache in make_prompt_cache(model)]
    if missing := {*kinds} - {*kinds[: starts[1]], KVCache}:  # rank 0 decides what can be rewound
        raise DFlashError(
            f"the first of {ranks} ranks would have no layer with a {missing.pop().__name__}.",
            hint="take fewer ranks",
        )
    several = hasattr(body, "previous_kvs")  # Gemma's layers hand keys and values on, too
    if several and body.previous_kvs != [*range(len(layers))]:
        raise DFlashError(
            "its last layers read keys of earlier ones, which other ranks would have.",
            hint="run it on one machine",
        )
    for number, layer in enumerate(layers):

        def shared(number: int = number) -> bool:
            return number + 1 in starts or isinstance(body.layers[number], Tap)

        if number not in own:
            layer.apply(lambda each: mx.broadcast_to(mx.zeros((), each.dtype), each.shape))
        run_on(layer, group, shared, own=number in own, several=several)
    return Staged(model, own)


def run_on(
    layer: nn.Module,
    group: mx.distributed.Group,
    shared: Callable[[], bool],
    *,
    own: bool,
    several: bool,
) -> None:
    """Let one layer of our instance be computed by its rank, and where `shared`, summed to all."""
    kind: Any = stock_class(layer)

    def call(self: Any, x: mx.array, *args: Any, **options: Any) -> Any:
        """Hidden states [B, S, H] -> [B, S, H], the right ones on all ranks if they are shared."""
        found = kind.__call__(self, x, *args, **options) if own else x
        hidden, *more = found if isinstance(found, tuple) else (found, *(None,) * (2 * several))
        if shared():
            # On the others zeros, which wait for the sum before: all ranks have one order.
            part = hidden if own else mx.depends(mx.zeros_like(hidden), hidden)
            hidden = mx.distributed.all_sum(part, group=group)
        return (hidden, *more) if several else hidden

    give_class(layer, call)
