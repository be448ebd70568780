"""From the names of a pair to its checkpoints: found, checked against each other, and weighed.

Everything is decided here, before any weights are read; `pair.open_pair` loads the result.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from .device import check_macos
from .drafters.load import check_drafter
from .drafters.mtp.tensors import require_head
from .errors import DFlashError, UsageError
from .files.adapter import Adapter
from .files.checkpoint import Checkpoint
from .hub.bits import check_bits
from .hub.cache import is_head_only
from .hub.resolve import BUNDLED, LOOKUP, Names, is_here, open_checkpoint, pair_names
from .kernels.dispatch import item_bytes, on_cpu
from .loaded_pair import LoadedPair
from .models.cache.sizes import check_quantisable
from .models.memory import MemoryEstimate, estimate_memory
from .models.target import Target, outline
from .types import Progress


@dataclass(frozen=True, slots=True)
class ResolvedPair:
    """A target and its drafter on this machine, which fit together; nothing is loaded.

    target_name, draft_name: as people call them; a pair without drafts has no draft_name. draft:
    None for copies alone, the target's own checkpoint for its MTP head. lookup: drafts are copied
    from earlier text. memory: with a short context. The rest is as in `dflash_mlx.load`.
    """

    target: Checkpoint
    target_name: str
    draft: Checkpoint | None
    draft_name: str | None
    lookup: bool
    memory: MemoryEstimate
    draft_bits: int | None = None
    kv_bits: int | None = None
    adapter: Adapter | None = None
    trust_remote_code: bool = False
    exact: bool = False
    cache_ram: int | None = None
    cache_disk: int = 0


def resolve_pair(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    draft_bits: int | None = None,
    kv_bits: int | None = None,
    no_draft: bool = False,
    lookup: bool = False,
    adapter: str | Path | None = None,
    trust_remote_code: bool = False,
    exact: bool = False,
    cache_ram: int | None = None,
    cache_disk: int = 0,
    at_hand: bool = False,
    on_download: Progress | None = None,
) -> ResolvedPair:
    """Find a pair, and download what is missing. Arguments and errors as of `dflash_mlx.load`.

    at_hand: drafts are copied if the drafter is not on this machine.
    """
    check_bits(kv_bits, "kv_bits")
    check_exact_cache(exact=exact, kv_bits=kv_bits)
    check_cache_sizes(cache_ram, cache_disk)
    check_drafting(draft_bits, lookup=lookup, no_draft=no_draft)
    if not on_cpu():
        check_macos()
    adapted = None if adapter is None else Adapter.read(adapter)
    names = pair_names(target, draft, no_draft=no_draft)
    if at_hand and names.draft is not None and not is_here(names.draft):
        names = replace(names, draft=None, draft_label=LOOKUP)
    checkpoint = open_checkpoint(names.target, names.target_label, on_download)
    shape = outline(checkpoint)
    if kv_bits:
        check_quantisable(shape.caches, checkpoint.name)
    names = without_drafts(names, shape, chosen=draft is not None or lookup)
    drafter = open_drafter(names, shape, draft_bits, on_download)
    return ResolvedPair(
        target=checkpoint,
        target_name=names.target_label,
        draft=drafter,
        draft_name=names.draft_label,
        lookup=lookup or names.lookup,
        memory=weigh(shape, drafter, draft_bits, kv_bits),
        draft_bits=draft_bits,
        kv_bits=kv_bits,
        adapter=adapted,
        trust_remote_code=trust_remote_code,
        exact=exact,
        cache_ram=cache_ram,
        cache_disk=cache_disk,
    )


def resolve_drafter(
    pair: LoadedPair,
    draft: str | Path | None = None,
    *,
    draft_bits: int | None = None,
    no_draft: bool = False,
    lookup: bool = False,
    trust_remote_code: bool = False,
    on_download: Progress | None = None,
) -> ResolvedPair:
    """As `resolve_pair`: another drafter for a loaded target, without `draft` its known one."""
    check_drafting(draft_bits, lookup=lookup, no_draft=no_draft)
    target = pair.target
    names = names_with(pair, draft, no_draft=no_draft)
    names = without_drafts(names, target, chosen=draft is not None or lookup)
    drafter = open_drafter(names, target, draft_bits, on_download)
    return ResolvedPair(
        target=target.checkpoint,
        target_name=pair.target_name,
        draft=drafter,
        draft_name=names.draft_label,
        lookup=lookup or names.lookup,
        memory=weigh(target, drafter, draft_bits, target.kv_bits),
        draft_bits=draft_bits,
        kv_bits=target.kv_bits,
        trust_remote_code=trust_remote_code,
    )


def names_with(pair: LoadedPair, draft: str | Path | None, *, no_draft: bool = False) -> Names:
    """The names of a loaded target and of another drafter for it, its known one, or none."""
    bundled = pair.target_name == BUNDLED
    return pair_names(None if bundled else pair.target_name, draft, no_draft=no_draft)


def without_drafts(names: Names, target: Target, *, chosen: bool) -> Names:
    """The names without a drafter where the target can take no drafts back.

    Raises DFlashError if the drafter was `chosen` by the user.
    """
    if target.ability.drafts or names.draft_label is None:
        return names
    if chosen:
        raise DFlashError(
            f"'{names.target_label}' takes no drafts: {target.ability.reason}.",
            hint="leave the drafter out: it answers by plain decoding",
        )
    return replace(names, draft=None, draft_label=None)


def open_drafter(
    names: Names, target: Target, draft_bits: int | None, on_download: Progress | None
) -> Checkpoint | None:
    """The checked drafter of a target; None without one. Downloads if necessary."""
    if names.lookup and draft_bits:
        raise UsageError(
            "draft_bits has no effect on prompt lookup, which has no weights.", hint="leave it out"
        )
    if names.draft is None:
        return None
    checkpoint = open_checkpoint(names.draft, names.draft_label or "", on_download)
    if names.own_head or is_head_only(str(names.draft)):
        require_head(checkpoint)
    check_drafter(checkpoint, target.checkpoint, target.ability)
    return checkpoint


def weigh(
    target: Target, draft: Checkpoint | None, draft_bits: int | None, kv_bits: int | None
) -> MemoryEstimate:
    return estimate_memory(
        target, draft, draft_bits=draft_bits, kv_bits=kv_bits, item_bytes=item_bytes()
    )


def check_exact_cache(*, exact: bool, kv_bits: int | None) -> None:
    """Raise UsageError for exact mode with a quantised KV cache.

    On a GPU MLX multiplies by quantised keys and values with one kernel for a few rows and another
    one for more (`vector_limit` in mlx/backend/metal/quantized.cpp). These sum in other orders.
    """
    if exact and kv_bits:
        raise UsageError(
            "a quantised KV cache cannot be exact: MLX gives several rows of a pass other bits "
            "than single ones.",
            hint="leave --exact or --kv-bits out",
        )


def check_cache_sizes(cache_ram: int | None, cache_disk: int) -> None:
    """Raise UsageError for sizes that are not bytes, and for a disk part without one in memory."""
    for name, size in (("cache_ram", cache_ram), ("cache_disk", cache_disk)):
        if size is not None and not (isinstance(size, int) and size >= 0):
            raise UsageError(f"{name} cannot be {size!r}.", hint="give bytes, such as 2 * 10**9")
    if cache_disk and cache_ram == 0:
        raise UsageError(
            "a prefix cache on disk needs some memory too, and cache_ram is 0.",
            hint="leave one of them out",
        )


def check_drafting(draft_bits: int | None, *, lookup: bool, no_draft: bool) -> None:
    """Raise UsageError for bits that are not offered, and for prompt lookup without drafts."""
    check_bits(draft_bits)
    if lookup and no_draft:
        raise UsageError("lookup and no_draft contradict each other.", hint="leave one of them out")
