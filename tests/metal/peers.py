"""Fresh copies of other projects' modules with their Metal kernels built and emulated."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from typing import Any
from unittest.mock import patch

import mlx.core as mx

from .emulator import Emulator, emulated

LOSSES: dict[str, Callable[[Any, mx.array, mx.array], Any]] = {
    "kl_forward": lambda m, q, p: m.kl_div_loss(q, p),
    "kl_backward": lambda m, q, p: mx.grad(lambda q: m.kl_div_loss(q, p).sum())(q),
    "js_forward": lambda m, q, p: m.js_div_loss(q, p),
    "js_backward": lambda m, q, p: mx.grad(lambda q: m.js_div_loss(q, p).sum())(q),
}


@contextmanager
def with_kernels(name: str, build: str, schedule: str, **options: Any) -> Iterator[tuple]:
    """(module, emulator): a private copy of a module that believes it is on a Mac.

    The installed module is left as it is.
    """
    emulator: Emulator
    with (
        patch.object(mx.metal, "is_available", lambda: True),
        patch.object(mx, "default_device", lambda: mx.gpu),
        emulated(build, schedule, **options) as emulator,
    ):
        spec = find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module, emulator
