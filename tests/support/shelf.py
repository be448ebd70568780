"""Tiny pairs that a server can load."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import ref

import tiny

from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.serve.models import Offer

DEFAULTS = GenerationOptions(mode="auto", max_tokens=12)


def make(number: int) -> Pair:
    target = tiny.make_target("qwen3", seed=number)
    return tiny.make_pair(target, tiny.random_drafter(target))


@dataclass
class Shelf:
    """Offers of pairs that are made when they are loaded. before: runs in MLX's thread first."""

    names: tuple[str, ...] = ("pub/a", "pub/b", "pub/c", "other/c")
    loads: list[str] = field(default_factory=list)
    engines: list[Any] = field(default_factory=list)
    before: Callable[[], object] = lambda: None

    def __call__(self) -> list[Offer]:
        return [Offer(name, SIZE, partial(self.load, name)) for name in self.names]

    def load(self, name: str) -> tuple[Pair, GenerationOptions]:
        self.loads.append(name)
        mlx_thread().call(self.before)
        pair = mlx_thread().call(make, self.names.index(name) + 10)
        self.engines.append(ref(pair.engine))
        return pair, DEFAULTS


SIZE = 10**9  # of a pair, as the server believes
