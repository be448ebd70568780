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
from .hub.resolve import LOOKUP, Names, is_here, open_checkpoint, pair_names
from .kernels.dispatch import item_bytes, on_cpu
from .loaded_pair import LoadedPair
from .models.cache.sizes import check_quantisable
from .models.memory import MemoryEstimate, estimate_memory
from .models.target import Target, outline
from .types import Progress

LEAVE_ONE = "leave one of them out"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load a pair, as `dflash_mlx.load` explains. UsageError for what contradicts itself."""

    draft_bits: int | None = None
    kv_bits: int | None = None
    no_draft: bool = False
    lookup: bool = False
    adapter: str | Path | None = None
    trust_remote_code: bool = False
    exact: bool = False
    cache_ram: int | None = None
    cache_disk: int = 0

    def __post_init__(self) -> None:
        check_bits(self.draft_bits)
        check_bits(self.kv_bits, "kv_bits")
        if self.exact and self.kv_bits:
            # On a GPU MLX multiplies by quantised keys and values with one kernel for a few rows
            # and another one for more (`vector_limit` in mlx/backend/metal/quantized.cpp). These
            # sum in other orders.
            raise UsageError(
                "a quantised KV cache cannot be exact: MLX gives several rows of a pass other bits "
                "than single ones.",
                hint="leave --exact or --kv-bits out",
            )
        for name, size in (("cache_ram", self.cache_ram), ("cache_disk", self.cache_disk)):
            if size is not None and not (isinstance(size, int) and size >= 0):
                raise UsageError(
                    f"{name} cannot be {size!r}.", hint="give bytes, such as 2 * 10**9"
                )
        if self.cache_disk and self.cache_ram == 0:
            raise UsageError(
                "a prefix cache on disk needs some memory too, and cache_ram is 0.", hint=LEAVE_ONE
            )
        if self.lookup and self.no_draft:
            raise UsageError("lookup and no_draft contradict each other.", hint=LEAVE_ONE)


PLAIN = LoadOptions()


@dataclass(frozen=True, slots=True)
class ResolvedPair:
    """A target and its drafter on this machine, which fit together; nothing is loaded.

    target_name, draft_name: as people call them; a pair without drafts has no draft_name. draft:
    None for copies alone, the target's own checkpoint for its MTP head. lookup: drafts are copied
    from earlier text. memory: with a short context.
    """

    target: Checkpoint
    target_name: str
    draft: Checkpoint | None
    draft_name: str | None
    lookup: bool
    adapter: Adapter | None
    options: LoadOptions
    memory: MemoryEstimate


def resolve_pair(
    target: str | Path | LoadedPair | None = None,
    draft: str | Path | None = None,
    options: LoadOptions = PLAIN,
    *,
    at_hand: bool = False,
    on_download: Progress | None = None,
) -> ResolvedPair:
    """Find a pair, and download what is missing. Names and errors are those of `dflash_mlx.load`.

    The target of a loaded pair stays: another drafter is found for it. at_hand: to choose among the
    models of this machine; drafts are copied if the drafter is missing, and bits that do not suit
    the pair are left for later.
    """
    if not on_cpu():
        check_macos()
    loaded = target.target if isinstance(target, LoadedPair) else None
    source = target.source if isinstance(target, LoadedPair) else target
    adapter = None
    if options.adapter is not None and loaded is None:
        adapter = Adapter.read(options.adapter)
    names = pair_names(source, draft, no_draft=options.no_draft)
    if at_hand and names.draft is not None and not (names.own_head or is_here(names.draft)):
        names = replace(names, draft=None, draft_label=LOOKUP)
    if loaded is not None:
        shape, checkpoint = loaded, loaded.checkpoint
    else:
        checkpoint = open_checkpoint(names.target, names.target_label, on_download)
        shape = outline(checkpoint)
        if options.kv_bits and not at_hand:
            check_quantisable(shape.caches, checkpoint.name)
    if not shape.ability.drafts and names.draft_label is not None:
        if draft is not None or options.lookup:
            raise DFlashError(
                f"'{names.target_label}' takes no drafts: {shape.ability.reason}.",
                hint="leave the drafter out: it answers by plain decoding",
            )
        names = replace(names, draft=None, draft_label=None)
    if names.lookup and options.draft_bits and not at_hand:
        raise UsageError(
            "draft_bits has no effect on prompt lookup, which has no weights.", hint="leave it out"
        )
    drafter = open_drafter(names, shape, on_download)
    memory = estimate_memory(
        shape,
        drafter,
        draft_bits=options.draft_bits,
        kv_bits=options.kv_bits or shape.kv_bits,
        item_bytes=item_bytes(),
    )
    return ResolvedPair(
        target=checkpoint,
        target_name=names.target_label,
        draft=drafter,
        draft_name=names.draft_label,
        lookup=options.lookup or names.lookup,
        adapter=adapter,
        options=options,
        memory=memory,
    )


def open_drafter(names: Names, target: Target, on_download: Progress | None) -> Checkpoint | None:
    """The drafter of a target, checked against it; None without one. Downloads if necessary."""
    if names.draft is None:
        return None
    checkpoint = target.checkpoint
    if not names.own_head:
        checkpoint = open_checkpoint(names.draft, names.draft_label or "", on_download)
    if names.own_head or is_head_only(str(names.draft)):
        require_head(checkpoint)
    check_drafter(checkpoint, target.checkpoint, target.ability)
    return checkpoint
