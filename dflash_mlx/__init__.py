"""Speculative decoding for MLX: faster where drafts pay, and the drafts do not change the answers.

    import dflash_mlx
    pair = dflash_mlx.load()
    for block in dflash_mlx.stream(pair, "What is 25 plus 17?", max_tokens=200):
        print(block.text, end="")

Importing this package loads no model code; the names below load it when they are first used. On
Linux it loads OpenBLAS, which has to come before `mlx.core`.
"""

from .first_moments import end_at_interrupt, is_command

if is_command():
    end_at_interrupt()

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import DFlashError

if sys.platform == "linux":  # before anything imports mlx.core
    from .cpu.blas import use_openblas

    use_openblas()

if TYPE_CHECKING:
    from dflash_mlx.engine.stats import Stats

    from .api import generate, stream, stream_async
    from .grammar import Grammar
    from .options import GenerationOptions, SamplingParams
    from .pair import Pair, load
    from .result import Result
    from .session import Session
    from .types import Block, TokenLogprob

__version__ = "0.1.0"
__all__ = [
    "Block",
    "DFlashError",
    "GenerationOptions",
    "Grammar",
    "Pair",
    "Result",
    "SamplingParams",
    "Session",
    "Stats",
    "TokenLogprob",
    "generate",
    "load",
    "stream",
    "stream_async",
]
_HOMES = {
    "Block": "types",
    "GenerationOptions": "options",
    "Grammar": "grammar",
    "Pair": "pair",
    "Result": "result",
    "SamplingParams": "options",
    "Session": "session",
    "Stats": "engine.stats",
    "TokenLogprob": "types",
    "generate": "api",
    "load": "pair",
    "stream": "api",
    "stream_async": "api",
}


def __dir__() -> list[str]:
    """The public names, also those whose module is not loaded yet."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    """Load a public name's module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dflash_mlx' has no attribute '{name}'")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
