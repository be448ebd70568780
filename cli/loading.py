"""A pair for a command: found, downloaded and loaded while the user sees that something happens.

The engine is imported here and not before, because that takes a second.
"""

import os
import time
from typing import TYPE_CHECKING

from .options import ModelOptions
from .output import Output
from .wait import Wait

if TYPE_CHECKING:
    from dflash_mlx import Pair


def load_pair(options: ModelOptions, out: Output) -> tuple["Pair", float]:
    """The pair, and how many seconds it took to get it."""
    if options.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read once, when huggingface_hub is imported
    began = time.perf_counter()
    label = f"loading {options.model or 'the bundled pair'}"
    with Wait(out, label) as wait:

        def downloading(done: int, total: int) -> None:
            wait.turn("download" if done < total else label, "bytes" if done < total else "")
            wait.update(done, total)

        import dflash_mlx

        pair = dflash_mlx.load(
            options.model,
            options.draft,
            draft_bits=options.draft_bits,
            no_draft=options.no_draft,
            on_download=downloading,
        )
    return pair, time.perf_counter() - began


def bundled_note(options: ModelOptions) -> str:
    """What to say when the bundled pair answers; empty when the user chose a model."""
    if options.model is not None:
        return ""
    return "no --model given: the bundled pair answers (tiny: sums, lists, everyday facts)"
