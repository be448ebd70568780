"""A pair for a command: found, downloaded and loaded while the user sees that something happens.

The engine is imported here and not before, because that takes a second.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .options import ModelOptions
from .output import Output
from .terminal.wait import Wait

if TYPE_CHECKING:
    from dflash_mlx import Pair


def load_pair(options: ModelOptions, out: Output) -> tuple["Pair", float]:
    """The pair, and how many seconds it took to get it; DFlashError when it is too big."""
    began = time.perf_counter()
    fetch_pair(options, out)
    return load_fetched(options, out), time.perf_counter() - began


def load_fetched(options: ModelOptions, out: Output) -> "Pair":
    """The pair that `fetch_pair` has found."""
    with Wait(out, f"loading {options.model or 'the bundled pair'}"):
        import dflash_mlx

        return dflash_mlx.load(
            options.model,
            options.draft,
            draft_bits=options.draft_bits,
            no_draft=options.no_draft,
            trust_remote_code=options.trust_remote_code,
            exact=options.exact,
        )


def fetch_pair(options: ModelOptions, out: Output) -> None:
    """Find both folders, downloaded if need be; raises what is wrong before anything is loaded.

    A pair that does not fit the memory is refused, unless --force.
    """
    prepare_libraries(offline=options.offline)
    label = f"looking for {options.model or 'the bundled pair'}"
    with Wait(out, label) as wait:
        import dflash_mlx.hub.resolve as hub
        from dflash_mlx.cpu.blas import use_openblas

        use_openblas()  # before anything imports MLX
        from dflash_mlx.target.target import target_config

        if options.model is not None and not hub.is_hub_id(options.model):
            target_config(hub.fetch(options.model))  # said before a missing drafter
        names = hub.pair_names(options.model, options.draft, no_draft=options.no_draft)
        target = hub.fetch(names.target, downloading(wait, label))
        target_config(target)
        draft = None
        if names.draft is not None:
            draft = hub.fetch(names.draft, downloading(wait, label))
    check_memory(target, draft, names.target_label, options, out)


def check_memory(
    target: Path, draft: Path | None, label: str, options: ModelOptions, out: Output
) -> None:
    """Refuse or warn of a pair that does not fit the memory, unless --force."""
    from dflash_mlx.cpu.modules import on_cpu
    from dflash_mlx.hub.memory import check_fits, need, working_set

    wanted = need(target, draft, draft_bits=options.draft_bits, item_bytes=4 if on_cpu() else 2)
    if not options.force and (warning := check_fits(wanted, working_set(), label)):
        out.warn(warning)


def prepare_libraries(*, offline: bool) -> None:
    """Set what other packages read once, when they are imported."""
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would warn of long prompts
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def add_drafter(pair: "Pair", options: ModelOptions, out: Output) -> "Pair":
    """The loaded target with the drafter of the options, or with its known one.

    A pair that does not fit the memory is refused, unless --force.
    """
    label = f"loading {options.draft or 'the drafter'}"
    with Wait(out, label) as wait:
        import dflash_mlx.hub.resolve as hub
        from dflash_mlx.pair import names_with, with_drafter

        names = names_with(pair, options.draft)
        assert names.draft is not None
        folder = hub.fetch(names.draft, downloading(wait, label))
    check_memory(pair.target.path, folder, names.target_label, options, out)
    with Wait(out, label) as wait:
        return with_drafter(
            pair,
            options.draft,
            draft_bits=options.draft_bits,
            on_download=downloading(wait, label),
        )


def downloading(wait: Wait, label: str) -> Callable[[int, int], None]:
    """Progress of a download shown in the place of `label`."""

    def update(done: int, total: int) -> None:
        wait.turn("download" if done < total else label, "bytes" if done < total else "")
        wait.update(done, total)

    return update


def bundled_note(options: ModelOptions) -> str:
    """What to say when the bundled pair answers; empty when the user chose a model."""
    if options.model is not None:
        return ""
    return "no --model given: the bundled pair answers (tiny: sums, lists, everyday facts)"
