"""Memory estimate of a pair, and this machine's memory.

The estimate is the weights and caches, from file sizes and config.json; no model is loaded. The
share above `COMFORTABLE_SHARE` is for the rest: activations, the interpreter, other programs.
"""

import ctypes
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import mlx.core as mx

from dflash_mlx.device import device_info
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint, weight_files
from dflash_mlx.files.formats import MTP_TENSOR, TRAINED_MTP, is_mtp
from dflash_mlx.files.programs import ProgramEntry, ending, held_bytes, named
from dflash_mlx.hub import registry
from dflash_mlx.hub.bits import chosen_bits, share_of_bytes
from dflash_mlx.hub.openable import is_packed, quant_method
from dflash_mlx.hub.registry import COMFORTABLE_SHARE, CONTEXT
from dflash_mlx.kernels.dispatch import by_metal

if TYPE_CHECKING:
    from .target import Target

CPU_SHARE = 0.75  # of physical memory; Metal recommends about the same share on a Mac
CACHES_SHARE = 0.9  # of the memory beside the models, for caches; activations take the rest
# What macOS and other programs keep while answers run. Wiring more froze Macs of 16 GB
# (osaurus-ai/vmlx-swift, issues 417, 418 and 421).
RESERVED_SHARE = 0.35
RESERVED_BYTES = 8 * 10**9  # at least, on machines with LARGE_MACHINE bytes or more
LARGE_MACHINE = 24 * 10**9
WIRED_EXTRA = 10**9  # beside models and caches, for activations
MLX_CACHE_SHARE = 1 / 4  # of the working set, for freed buffers; MLX's own limit leads into swap
PRESSURE = b"kern.memorystatus_vm_pressure_level"
SHARE_UNDER_PRESSURE = {2: 0.75, 4: 0.5}  # of the context; macOS' levels "warning" and "critical"


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of the target's weights, of the caches of both models, and of the drafter's weights."""

    weights: int
    caches: int
    draft: int

    @property
    def total(self) -> int:
        return self.weights + self.caches + self.draft


def working_set() -> int:
    """Metal's recommended working set size; without Metal 75 % of physical memory."""
    limit = device_info().get("max_recommended_working_set_size")
    if limit:
        return int(limit)
    return int(CPU_SHARE * physical_memory())


def physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_for_caches() -> int:
    """The bytes that caches may use beside the models that are loaded, here and by others."""
    free = working_set() - held_bytes() - mx.get_active_memory()
    return max(0, int(CACHES_SHARE * free))


def share_under_pressure() -> float:
    """The share of their memory that caches may use now; 1.0 unless macOS is short of memory."""
    if sys.platform != "darwin":
        return 1.0
    level = ctypes.c_int()
    size = ctypes.c_size_t(ctypes.sizeof(level))
    sysctl = ctypes.CDLL(None).sysctlbyname
    failed = sysctl(PRESSURE, ctypes.byref(level), ctypes.byref(size), None, ctypes.c_size_t(0))
    return 1.0 if failed else SHARE_UNDER_PRESSURE.get(level.value, 1.0)


def limit_mlx_cache() -> None:
    """Limit the freed buffers that MLX keeps, which would else fill the memory."""
    if by_metal():
        mx.set_cache_limit(int(MLX_CACHE_SHARE * working_set()))


def most_wired() -> int:
    """The bytes that may be wired: other programs keep enough, and what they have loaded."""
    physical = physical_memory()
    reserved = RESERVED_SHARE * physical
    if physical >= LARGE_MACHINE:
        reserved = max(reserved, RESERVED_BYTES)
    return min(int(physical - reserved - held_bytes()), working_set())


class WiredMemory:
    """Keeps models and caches resident while answers run; needs macOS 15. Call it in MLX's thread.

    The rest of the time the memory is free for other programs.
    """

    def __init__(self) -> None:
        self._limit = 0
        self._most = 0

    def hold(self, nbytes: int) -> None:
        """Wire `nbytes`, or more if more is wired already, as far as other programs have enough.

        What other programs hold is looked up once until `release`.
        """
        if not by_metal():
            return
        if not self._limit:
            self._most = most_wired()
        limit = min(nbytes + WIRED_EXTRA, self._most)
        if limit > self._limit:
            mx.set_wired_limit(limit)
            self._limit = limit

    def release(self) -> None:
        if self._limit:
            mx.set_wired_limit(0)
            self._limit = 0


def estimate_memory(
    target: "Target",
    draft: Checkpoint | None = None,
    context_tokens: int = CONTEXT,
    *,
    draft_bits: int | None = None,
    kv_bits: int | None = None,
    item_bytes: int = 2,
) -> MemoryEstimate:
    """The memory of a pair with a context of `context_tokens` tokens.

    `target` may be an outline. `draft` is the target's own checkpoint for the MTP head in it.
    `draft_bits` is as in `load`: None quantises the drafter of a quantised target. `kv_bits`
    quantises the target's KV cache, None does not. `item_bytes` is the size of a number that is not
    quantised: 2, or 4 where MLX computes on the CPU.
    """
    from .cache.sizes import cache_bytes, free_bytes, snapshot_bytes

    checkpoint, sizes = target.checkpoint, target.caches
    weights = weight_bytes(checkpoint.path, checkpoint.weight_pattern)
    caches = cache_bytes(sizes, context_tokens, item_bytes, kv_bits)
    caches += snapshot_bytes(sizes, item_bytes) + free_bytes(sizes, item_bytes)
    draft_weights = 0
    if draft is not None and (head := head_bytes(draft, checkpoint)):
        draft_weights = head
        own = draft.config.get("model_type") == TRAINED_MTP
        config = draft.config if own else checkpoint.text_config
        caches += context_tokens * head_row_bytes(config, item_bytes)
        if draft.path == checkpoint.path:
            weights -= mtp_bytes(checkpoint, checkpoint.weight_pattern)
    elif draft is not None:
        draft_weights = weight_bytes(draft.path, draft.weight_pattern)
        caches += drafter_cache_bytes(draft, context_tokens, item_bytes)
    packed = is_packed(checkpoint.config)
    if quant_method(checkpoint.config) == "fp8" and not packed:
        weights *= 2  # mlx-lm makes 16 bits of them
    widening = item_bytes / 2
    bits = chosen_bits(draft_bits, target_quantised=packed)
    return MemoryEstimate(
        round(weights * (1 if packed else widening)),
        round(caches),
        round(draft_weights * (share_of_bytes(bits) if bits else widening)),
    )


def weight_bytes(folder: Path, pattern: str) -> int:
    files = weight_files(folder, pattern)
    return sum(file.stat().st_size for file in files if file.exists())


def head_bytes(draft: Checkpoint, target: Checkpoint) -> int:
    """The bytes of the MTP head in a drafter's folder; 0 if the drafter is another one.

    The folder holds the head alone, or also the model of the same shape that it comes from, of
    which nothing is loaded.
    """
    if is_mtp(draft.config):
        return weight_bytes(draft.path, "*.safetensors")
    configs = [one.text_config for one in (draft, target)]
    shapes = {(one.get("model_type"), one.get("hidden_size")) for one in configs}
    return mtp_bytes(draft, "*.safetensors") if len(shapes) == 1 else 0


def mtp_bytes(checkpoint: Checkpoint, pattern: str) -> int:
    return sum(
        tensor.nbytes
        for tensors in checkpoint.headers(pattern).values()
        for name, tensor in tensors.items()
        if MTP_TENSOR.search(name)
    )


def head_row_bytes(config: dict[str, Any], item_bytes: int) -> int:
    """What an MTP head keeps of a token: the row of one full layer, and the feature before it."""
    return (row_width(config) + size_in(config, "hidden_size")) * item_bytes


def row_width(config: dict[str, Any]) -> int:
    """How many numbers a layer of a drafter's own caches for each token."""
    heads = size_in(config, "num_attention_heads")
    dim = config.get("head_dim") or size_in(config, "hidden_size") // heads
    return 2 * (config.get("num_key_value_heads") or heads) * dim


def size_in(config: dict[str, Any], name: str) -> int:
    size = config.get(name)
    if not isinstance(size, int) or size < 1:
        raise DFlashError(f"the drafter's config has no '{name}'.", hint="download it again")
    return size


def drafter_cache_bytes(draft: Checkpoint, tokens: int, item_bytes: int) -> int:
    from .cache.sizes import cache_bytes
    from .target import outline

    if draft.format == "language model":
        return cache_bytes(outline(draft).caches, tokens, item_bytes)
    config = draft.text_config
    layers = (config.get("num_hidden_layers") or 0) - (config.get("num_kv_shared_layers") or 0)
    kinds = config.get("layer_types") or ["full_attention"] * layers
    window = config.get("sliding_window") or tokens
    rows = [min(window, tokens) if k == "sliding_attention" else tokens for k in kinds[:layers]]
    return sum(rows) * row_width(config) * item_bytes if layers else 0


def memory_fit(size: int, limit: int) -> Literal["ok", "warn", "refuse"]:
    """How bytes fit a limit: "ok" up to 75 % of it, "warn" up to 100 %, else "refuse"."""
    if size > limit:
        return "refuse"
    return "warn" if size > COMFORTABLE_SHARE * limit else "ok"


def check_fits(
    needed: int,
    limit: int,
    name: str,
    *,
    force: bool = False,
    others: Sequence[ProgramEntry] = (),
) -> str | None:
    """A warning if a pair needs more than 75 % of `limit` bytes, else None. All sizes are in bytes.

    others: what other programs hold of these bytes; they are named if the pair would fit better
    without them. Raises DFlashError above 100 %, unless `force`. The hint is a smaller pair.
    """
    left = max(0, limit - sum(other.nbytes for other in others))
    fit = memory_fit(needed, left)
    if fit == "ok":
        return None
    place, end, how = "here", "", "close other programs"
    if fit != memory_fit(needed, limit):
        limit, place = left, f"beside {named(others)}"
        how = ending(others)
        end = f"{how}; "
    share = f"{needed / 1e9:.1f} GB of the {limit / 1e9:.1f} GB that models may take {place}"
    if fit == "warn":
        return f"'{name}' needs {share}: {how} if it gets slow"
    if force:
        slow = "weights will not stay in memory, and it can be very slow"
        return f"'{name}' needs {share}: {end}{slow}"
    smaller = registry.best_pair(left)
    fits = smaller is not None and (smaller.memory_bytes or 0) < needed
    other = f"`-m {smaller.target}`" if smaller and fits else "the bundled pair (no --model)"
    raise DFlashError(
        f"'{name}' needs {share}.",
        hint=f"{end}{other} fits this machine; --force loads it all the same",
    )
