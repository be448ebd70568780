"""Finds, downloads and loads a pair, and shows the progress.

Imports the engine inside functions, because that import takes a second.
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_mlx.address import is_address, model_name
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.types import Progress

from .awake import awake
from .downloads import download_progress
from .options import BUNDLED, NO_CACHE, TOY_NOTE, CacheOptions, ModelOptions
from .terminal.output import Output
from .terminal.spinner import Spinner

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.resolved_pair import LoadOptions, ResolvedPair


# Which pair


def with_known_target(model_options: ModelOptions, out: Output) -> ModelOptions:
    """The options with a short name replaced by its Hub id, or by the folder of a model here.

    Unchanged for other ids, folders, unknown names and a server's address. Without --force,
    DFlashError for a known pair that does not fit the memory, before anything is downloaded.
    """
    if model_options.model in (None, BUNDLED):
        return replace(model_options, model=None)
    if is_address(model_options.model):
        return model_options
    prepare_libraries(offline=model_options.offline)
    target = known_target(model_options.model, out, model_options.folders)
    if target == model_options.model:
        return model_options
    from dflash_mlx.cpu.blas import use_openblas
    from dflash_mlx.hub.registry import find

    use_openblas()  # must run before MLX is imported
    if entry := find(target):
        needed = entry.least_memory(model_options.draft_bits, model_options.kv_bits)
        check_memory(needed, target, model_options)
    return replace(model_options, model=target)


def known_target(name: str, out: Output, folders: Sequence[Path] = ()) -> str:
    """The Hub id or the folder that a name means, which is printed; other names are unchanged.

    folders: more folders of models than those that are always looked at. Raises DFlashError as
    `hub.local.find_model`.
    """
    from dflash_mlx.hub.local import find_model

    given = model_name(name)
    target = find_model(given, folders) or given
    if target != name and not out.quiet:
        out.info(f"'{name}' is {target}", "dim")
    return target


def choose_pair(model_options: ModelOptions, out: Output, *, interactive: bool) -> ModelOptions:
    """The options with a model that is on this machine; unchanged for the bundled pair.

    A note names it. Unless `interactive`, a note says on a Mac that none is here: an interactive
    chat offers some then, see `first_model`.
    """
    prepare_libraries(offline=model_options.offline)
    here = model_here(model_options, out)
    if here is not None:
        out.note(
            f"no --model given: {here.model} is the largest here that fits in half of the memory;"
            f" -m {BUNDLED} takes the demo pair"
        )
    elif has_metal() and (not interactive or model_options.offline):
        out.note("no model is downloaded yet: `dflash models list` shows what fits this Mac")
    return here or model_options


def model_here(model_options: ModelOptions, out: Output) -> ModelOptions | None:
    """The options with the model that a chat uses if none is named; None is the bundled pair.

    The one with the largest weights, of those on this machine that have a chat template and fit in
    half of its memory with the drafter that is here.
    """
    from dflash_mlx.hub.local import can_chat, local_models
    from dflash_mlx.models.memory import physical_memory, weight_bytes

    room = physical_memory() // 2
    models = [model for model in local_models(model_options.folders) if not model.lacks]
    sizes = {model: weight_bytes(model.folder, "*.safetensors") for model in models}
    for model in sorted(models, key=lambda model: (-sizes[model], model.name)):
        if sizes[model] > room or not can_chat(model.folder):
            continue
        try:
            pair = pair_at_hand(model.source, model_options, out)
        except DFlashError:  # `dflash models list` says what is wrong with it
            continue
        if pair.memory.total <= room:
            draft = pair.draft_name if pair.lookup else None
            return replace(model_options, model=model.source, draft=draft)
    return None


def pair_at_hand(source: str | None, model_options: ModelOptions, out: Output) -> "ResolvedPair":
    """A target on this machine with its drafter; with copies if that is not here or does not fit.

    A warning says why a drafter does not fit. DFlashError if the target cannot run.
    """
    from dflash_mlx.cpu.blas import use_openblas

    use_openblas()  # must run before MLX is imported
    from dflash_mlx.hub.resolve import LOOKUP
    from dflash_mlx.resolved_pair import resolve_pair

    options = load_options(replace(model_options, adapter=None, lookup=False))
    try:
        return resolve_pair(source, None, options, at_hand=True)
    except DFlashError as error:
        if options.no_draft:
            raise
        pair = resolve_pair(source, LOOKUP, options, at_hand=True)
        out.warn(f"{pair.target_name} answers without its drafter: {error.message}")
        return pair


def load_options(
    model_options: ModelOptions, cache_options: CacheOptions = NO_CACHE
) -> "LoadOptions":
    from dflash_mlx.resolved_pair import LoadOptions

    return LoadOptions(
        draft_bits=model_options.draft_bits,
        kv_bits=model_options.kv_bits,
        no_draft=model_options.no_draft,
        lookup=model_options.lookup,
        adapter=model_options.adapter,
        trust_remote_code=model_options.trust_remote_code,
        exact=model_options.exact,
        cache_ram=cache_options.cache_ram,
        cache_disk=cache_options.cache_disk,
    )


def ability_of(folder: Path, name: str) -> str:
    """What a model on this machine can do with drafts, in a few words; empty for a drafter.

    Raises DFlashError for a model that cannot be opened.
    """
    from dflash_mlx.cpu.blas import use_openblas
    from dflash_mlx.files.checkpoint import Checkpoint

    use_openblas()  # must run before MLX is imported
    from dflash_mlx.models.target import outline

    checkpoint = Checkpoint.read(folder, name)
    return outline(checkpoint).ability.words if checkpoint.format == "language model" else ""


def has_metal() -> bool:
    if sys.platform != "darwin":
        return False
    from dflash_mlx.kernels.dispatch import by_metal

    return by_metal()


# Loading


def load_pair(
    model_options: ModelOptions, out: Output, cache_options: CacheOptions = NO_CACHE
) -> tuple["Pair", float]:
    """Download and load a pair; return it and the seconds. DFlashError if it does not fit."""
    started_at = time.perf_counter()
    resolved = fetch_pair(model_options, out, cache_options)
    return load_downloaded(resolved, out), time.perf_counter() - started_at


def fetch_pair(
    model_options: ModelOptions, out: Output, cache_options: CacheOptions = NO_CACHE
) -> "ResolvedPair":
    """Download what is missing of a pair; DFlashError if it does not fit, unless --force."""
    resolved = find_pair(model_options, out, cache_options)
    out.warn(*check_memory(resolved.memory.total, resolved.target_name, model_options))
    return resolved


@awake()
def find_pair(
    model_options: ModelOptions, out: Output, cache_options: CacheOptions = NO_CACHE
) -> "ResolvedPair":
    """Download what is missing of a pair."""
    if is_address(model_options.model):
        raise UsageError(
            f"'{model_options.model}' is a server's address, not a model on this machine.",
            hint="`dflash chat` and `dflash generate` take it as --model",
        )
    prepare_libraries(offline=model_options.offline)
    label = f"looking for {model_options.model or 'the bundled pair'}"
    with Spinner(out, label) as spinner:
        from dflash_mlx.cpu.blas import use_openblas

        use_openblas()  # must run before MLX is imported
        from dflash_mlx.resolved_pair import resolve_pair

        return resolve_pair(
            model_options.model,
            model_options.draft,
            load_options(model_options, cache_options),
            on_download=download_progress(spinner, label, out),
        )


def check_memory(needed: int, name: str, model_options: ModelOptions) -> tuple[str, ...]:
    """Warnings if a pair is tight, or too large with --force; else DFlashError for that."""
    from dflash_mlx.files.programs import holders
    from dflash_mlx.models.memory import check_fits, working_set

    force = model_options.force
    warning = check_fits(needed, working_set(), name, force=force, others=holders())
    return (warning,) if warning else ()


def load_downloaded(resolved: "ResolvedPair", out: Output) -> "Pair":
    name = "the bundled pair" if resolved.target_name == BUNDLED else resolved.target_name
    with Spinner(out, f"loading {name}") as spinner:
        from dflash_mlx.pair import open_pair

        return open_pair(resolved, *kernel_progress(spinner))


def prepare_libraries(*, offline: bool) -> None:
    """Set the variables that other packages read once at import."""
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    # hf-xet has stalled for many; bench's suites would use it.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    # By default transformers warns about long prompts.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def add_drafter(pair: "Pair", model_options: ModelOptions, out: Output) -> "Pair":
    """Pair the loaded target with the drafter of the options, else its known one, or none.

    DFlashError for a pair that does not fit the memory, unless --force is given.
    """
    label = f"loading {model_options.draft or 'the drafter'}"
    with Spinner(out, label) as spinner:
        from dflash_mlx.pair import with_drafter
        from dflash_mlx.resolved_pair import resolve_pair

        resolved = resolve_pair(
            pair,
            model_options.draft,
            load_options(model_options),
            on_download=download_progress(spinner, label, out),
        )
    out.warn(*check_memory(resolved.memory.total, resolved.target_name, model_options))
    with Spinner(out, label) as spinner:
        return with_drafter(pair, resolved, *kernel_progress(spinner))


def has_another_drafter(pair: "Pair") -> bool:
    from dflash_mlx.hub.resolve import pair_names

    with suppress(DFlashError):
        names = pair_names(pair.source, None)
        return not names.lookup and names.draft_label != pair.draft_name
    return False


def kernel_progress(spinner: Spinner) -> tuple[Progress, Progress]:
    """The callbacks for kernels that are built and for those that are checked."""
    from dflash_mlx.selfcheck.check import TIME_BUDGET

    def show(label: str) -> Progress:
        def update(done: int, total: int) -> None:
            spinner.relabel(label.format(total), "kernels")
            spinner.update(done, total)

        return update

    checking = f"checking {{}} kernels, once for this Mac, about {TIME_BUDGET:.0f} s"
    return show("building the kernels"), show(checking)


def bundled_note(model_options: ModelOptions) -> str:
    """The note for an answer by the bundled pair; empty when the user chose a model."""
    if model_options.model is not None:
        return ""
    return f"no --model given: the bundled pair answers ({TOY_NOTE})"
