"""Finds, downloads and loads a pair, and shows progress meanwhile.

Imports the engine inside functions, because that import takes a second.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.remote.client import is_address

from .options import NO_CACHE, CacheOptions, ModelOptions
from .terminal.output import Output
from .terminal.spinner import Spinner

if TYPE_CHECKING:
    from dflash_mlx import Pair


def load_pair(
    model_options: ModelOptions, out: Output, cache_options: CacheOptions = NO_CACHE
) -> tuple["Pair", float]:
    """The pair and the seconds it took; DFlashError when it does not fit the memory."""
    started_at = time.perf_counter()
    fetch_pair(model_options, out)
    return load_downloaded(model_options, out, cache_options), time.perf_counter() - started_at


def load_downloaded(
    model_options: ModelOptions, out: Output, cache_options: CacheOptions = NO_CACHE
) -> "Pair":
    """Load a pair that `fetch_pair` found."""
    with Spinner(out, f"loading {model_options.model or 'the bundled pair'}") as spinner:
        import dflash_mlx
        from dflash_mlx.distributed.group import world

        return dflash_mlx.load(
            model_options.model,
            model_options.draft,
            draft_bits=model_options.draft_bits,
            no_draft=model_options.no_draft,
            lookup=model_options.lookup,
            trust_remote_code=model_options.trust_remote_code,
            exact=model_options.exact,
            cache_ram=cache_options.cache_ram,
            cache_disk=cache_options.cache_disk,
            on_kernels=kernel_progress(spinner),
            world=world(),
        )


def fetch_pair(model_options: ModelOptions, out: Output) -> None:
    """Find both model folders and download what is missing; raises errors before loading.

    Refuses a pair that does not fit the memory, unless --force.
    """
    target_label, target, draft = find_pair(model_options, out)
    check_memory(target, draft, target_label, model_options, out)


def find_pair(model_options: ModelOptions, out: Output) -> tuple[str, Path, Path | None]:
    """The target's label and both folders; downloads what is missing."""
    if is_address(model_options.model):
        raise UsageError(
            f"'{model_options.model}' is a server's address, not a model on this machine.",
            hint="`dflash chat` and `dflash generate` take it as --model",
        )
    prepare_libraries(offline=model_options.offline)
    label = f"looking for {model_options.model or 'the bundled pair'}"
    with Spinner(out, label) as spinner:
        from dflash_mlx.cpu.blas import use_openblas
        from dflash_mlx.hub import resolve

        use_openblas()  # must run before MLX is imported
        from dflash_mlx.models.target import target_config

        if model_options.model is not None and not resolve.is_hub_id(model_options.model):
            # Reports a wrong target before a missing drafter.
            target_config(resolve.open_checkpoint(model_options.model))
        names = resolve.pair_names(
            model_options.model, model_options.draft, no_draft=model_options.no_draft
        )
        checkpoint = resolve.open_checkpoint(
            names.target, names.target_label, download_progress(spinner, label)
        )
        target_config(checkpoint)
        draft = None
        if names.draft is not None:
            draft = resolve.fetch(names.draft, download_progress(spinner, label))
    return names.target_label, checkpoint.path, draft


def check_memory(
    target: Path, draft: Path | None, label: str, model_options: ModelOptions, out: Output
) -> None:
    """Refuse a pair that does not fit the memory, or warn about it; with --force only warn.

    Of several machines each has to have room for its part.
    """
    from dflash_mlx.cpu.modules import on_cpu
    from dflash_mlx.distributed.group import world
    from dflash_mlx.models.memory import check_fits, estimate_memory, working_set

    group, bits, item = world(), model_options.draft_bits, 4 if on_cpu() else 2
    ranks = 1 if group is None else group.size
    needed = estimate_memory(target, draft, draft_bits=bits, item_bytes=item, ranks=ranks)
    checks = [(needed, working_set(), "here")]
    if group is not None:
        from dflash_mlx.distributed.leader import memory_of_others
        from dflash_mlx.pair import elsewhere

        name = label if model_options.model is None else elsewhere(label)
        found = memory_of_others(group, name)
        checks += [(part, room, f"on {rank}") for rank, part, room in found]
    for part, room, where in checks:
        if warning := check_fits(part, room, label, force=model_options.force, where=where):
            out.warn(warning)


def prepare_libraries(*, offline: bool) -> None:
    """Set the variables that other packages read once at import."""
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    # Without it, transformers warns about long prompts.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def add_drafter(pair: "Pair", model_options: ModelOptions, out: Output) -> "Pair":
    """Give the loaded target the drafter of the options, the known one, or none.

    Refuses a pair that does not fit the memory, unless --force.
    """
    label = f"loading {model_options.draft or 'the drafter'}"
    with Spinner(out, label) as spinner:
        from dflash_mlx.hub import resolve
        from dflash_mlx.pair import names_with, with_drafter

        names = names_with(pair, model_options.draft, no_draft=model_options.no_draft)
        folder = None
        if names.draft is not None:
            folder = resolve.fetch(names.draft, download_progress(spinner, label))
    check_memory(pair.target.path, folder, names.target_label, model_options, out)
    with Spinner(out, label) as spinner:
        return with_drafter(
            pair,
            model_options.draft,
            draft_bits=model_options.draft_bits,
            no_draft=model_options.no_draft,
            lookup=model_options.lookup,
            trust_remote_code=model_options.trust_remote_code,
            on_download=download_progress(spinner, label),
            on_kernels=kernel_progress(spinner),
        )


def has_another_drafter(pair: "Pair") -> bool:
    """Whether the target has a known drafter, and not that one drafts."""
    from dflash_mlx.pair import names_with

    with suppress(DFlashError):
        names = names_with(pair, None)
        return not names.lookup and names.draft_label != pair.draft_name
    return False


def kernel_progress(spinner: Spinner) -> Callable[[int, int], None]:
    """A callback that shows how many operations' kernels are ready."""

    def update(done: int, total: int) -> None:
        spinner.relabel("building the kernels", "kernels")
        spinner.update(done, total)

    return update


def download_progress(spinner: Spinner, label: str) -> Callable[[int, int], None]:
    """A callback that shows a download's progress in place of `label`."""

    def update(done: int, total: int) -> None:
        spinner.relabel("download" if done < total else label, "bytes" if done < total else "")
        spinner.update(done, total)

    return update


def bundled_note(model_options: ModelOptions) -> str:
    """The note for an answer by the bundled pair; empty when the user chose a model."""
    if model_options.model is not None:
        return ""
    return "no --model given: the bundled pair answers (tiny: sums, lists, everyday facts)"
