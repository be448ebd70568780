"""A target and its drafter, found, checked against each other, and loaded.

Both configs and all tensor shapes are looked at before any weight is read.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from .cpu.modules import use_cpu_modules
from .drafter.bits import check_bits, chosen_bits
from .drafter.config import DraftConfig, load_config, parse
from .drafter.drafter import Drafter
from .drafter.mask_embedding import read_mask_embedding
from .drafter.model import OWN, DraftModel
from .drafter.quantise import is_quantised, quantise
from .engine import Engine
from .errors import DFlashError, UsageError, first_line
from .files.checkpoint import check_weights, header
from .hub import resolve
from .lookup.lookup import BLOCK
from .prefix_cache.disk import Disk
from .prefix_cache.folder import Labels, cache_root
from .prefix_cache.limits import default_limit
from .prefix_cache.pair_key import pair_key
from .progress import Progress, silent
from .proof.build import build
from .proof.exact import check_exact
from .proof.results import proven
from .proof.shapes import Shapes
from .target.target import Target, target_config
from .thread import mlx_thread

# Tensors of some exports that drafting does not read: the map back, and copies of the target's.
UNUSED = frozenset({"t2d", "verifier_norm.weight", "verifier_lm_head.weight"})


@dataclass(frozen=True, slots=True)
class Pair:
    """A loaded target with its drafter (None: there is none), and the names they go by.

    With `lookup` drafts may be copied from earlier text, also without a drafter. `engine` answers
    for it, from whatever thread it is asked.
    """

    target: Target
    drafter: Drafter | None
    target_name: str
    draft_name: str | None
    lookup: bool = False
    engine: Engine = field(init=False, repr=False, compare=False)

    @property
    def drafts(self) -> bool:
        """Whether anything can be drafted."""
        return self.drafter is not None or self.lookup

    @property
    def block_size(self) -> int:
        """Rows of a block unless a request says otherwise, the anchor's included."""
        return BLOCK if self.drafter is None else self.drafter.config.block_size

    def __post_init__(self) -> None:
        """Make the engine; arrays that another thread has not computed yet cannot go to it."""
        evaluate(self.target.model)
        if self.drafter is not None:
            evaluate(self.drafter.model)
        object.__setattr__(self, "engine", Engine(self.target, self.drafter, lookup=self.lookup))


def load(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    draft_bits: int | None = None,
    no_draft: bool = False,
    trust_remote_code: bool = False,
    exact: bool = False,
    cache_ram: int | None = None,
    cache_disk: int = 0,
    on_download: Progress | None = None,
    on_kernels: Progress = silent,
) -> Pair:
    """Load a pair from Hub ids or folders; without `target` the bundled one.

    Without `draft` it is the target's known drafter; drafts are copied from earlier text where none
    is known, or with `draft` "lookup". `no_draft` loads the target alone, for plain decoding.
    `draft_bits` 4 or 8 quantises the drafter in memory and 0 leaves it as published; None is 8 for
    a quantised target and 0 for others. `trust_remote_code` lets the Python files
    run that a target may bring for its tokenizer (Kimi's does). With `exact` greedy answers have
    the bits of plain decoding in every mode, also at 16 bits or quantised. `cache_ram` are bytes
    for the prefix cache: None is a quarter of the memory that the models leave, 0 is off; with
    `cache_disk` bytes it is on disk too and survives a restart. `on_download` is called with counts
    of bytes, `on_kernels` with counts of operations whose kernels are ready. Raises DFlashError
    when something is missing, damaged, not supported, not exact, or does not fit together.
    """
    check_bits(draft_bits)
    if cache_disk and cache_ram == 0:
        raise UsageError(
            "a prefix cache on disk needs some memory too, and cache_ram is 0.",
            hint="leave one of them out",
        )
    if target is not None and not resolve.is_hub_id(target):
        target_config(resolve.fetch(target))  # a wrong folder is said before a missing drafter
    names = resolve.pair_names(target, draft, no_draft=no_draft)
    target_path = resolve.fetch(names.target, on_download)
    config = target_config(target_path)
    draft_path = None if names.draft is None else resolve.fetch(names.draft, on_download)
    draft_config = None if draft_path is None else checked(draft_path, config, names)

    def load_models() -> Pair:
        loaded = Target.load(target_path, trust_remote_code=trust_remote_code, exact=exact)
        drafter = None
        if draft_path is not None and draft_config is not None:
            bits = chosen_bits(draft_bits, target_quantised=is_quantised(loaded.model))
            drafter = load_drafter(draft_path, draft_config, loaded, bits)
        labels = names.target_label, names.draft_label
        pair = Pair(loaded, drafter, *labels, lookup=names.lookup)
        prepare_kernels(pair, on_kernels)
        prefixes = pair.engine.prefixes
        prefixes.limit = default_limit() if cache_ram is None else cache_ram
        if cache_disk:
            prefixes.disk = disk_of(pair, draft_path, cache_disk)
        return pair

    return mlx_thread().call(load_models)


def disk_of(pair: Pair, draft: Path | None, limit: int) -> Disk:
    """The prefix cache on disk of a pair whose drafter lies in a folder; DFlashError as Disk."""
    key = pair_key(pair.target, draft, pair.drafter and pair.drafter.model)
    return Disk(key, Labels(pair.target_name, pair.draft_name), limit, cache_root())


def evaluate(model: nn.Module) -> None:
    """Compute all arrays of a model's modules, those that are no parameters included."""
    mx.eval([v for module in model.modules() for v in module.values() if isinstance(v, mx.array)])


def prepare_kernels(pair: Pair, on_kernels: Progress) -> None:
    """Leave a pair those kernels that are right and fast at its shapes here, and build them.

    DFlashError where it is to be exact and is not.
    """
    target = pair.target
    if target.kernels.launcher is not None:
        shapes = Shapes.of(target, pair.drafter)
        target.kernels = proven(target.kernels, shapes, on_kernels=on_kernels)
        build(target.kernels, shapes, on_kernels=on_kernels)
    if target.kernels.exact:
        check_exact(target, pair.target_name)


def with_drafter(
    pair: Pair,
    draft: str | Path | None = None,
    *,
    draft_bits: int | None = None,
    on_download: Progress | None = None,
    on_kernels: Progress = silent,
) -> Pair:
    """The same loaded target with another drafter, or with its known one; raises as `load`.

    Sessions of the old pair cannot be used any more: the target's layers are tapped anew. Whatever
    it raises, they go on as before.
    """
    check_bits(draft_bits)
    names = names_with(pair, draft)
    path = None if names.draft is None else resolve.fetch(names.draft, on_download)
    config = None if path is None else checked(path, pair.target.config, names)

    def load_other() -> Pair:
        drafter, labels = None, (pair.target_name, names.draft_label)
        if path is not None and config is not None:
            bits = chosen_bits(draft_bits, target_quantised=is_quantised(pair.target.model))
            drafter = load_drafter(path, config, pair.target, bits)
        else:
            pair.target.tap(())
        try:
            other = Pair(pair.target, drafter, *labels, lookup=names.lookup)
            prepare_kernels(other, on_kernels)
        except BaseException:
            pair.target.tap(pair.drafter.config.target_layer_ids if pair.drafter else ())
            raise
        before, prefixes = pair.engine.prefixes, other.engine.prefixes
        before.clear()
        prefixes.limit = before.limit
        if before.disk is not None:
            prefixes.disk = disk_of(other, path, before.disk.limit)
        return other

    return mlx_thread().call(load_other)


def names_with(pair: Pair, draft: str | Path | None) -> resolve.Names:
    """The names of a loaded target and of another drafter for it, or of its known one."""
    bundled = pair.target_name == resolve.BUNDLED
    return resolve.pair_names(None if bundled else pair.target_name, draft)


def checked(path: Path, target: dict[str, Any], names: resolve.Names) -> DraftConfig:
    """A drafter's config, after it and all tensor shapes were held against the target."""
    config = parse(load_config(path))
    check_fit(config, target, names.draft_label, names.target_label)
    check_tensors(path, config, target["hidden_size"])
    return config


def load_drafter(path: Path, config: DraftConfig, target: Target, bits: int = 0) -> Drafter:
    """Load a checked drafter and bind it to its target, whose layers are tapped for it.

    `bits` 4 or 8 quantises it, 0 does not.
    """
    weights: dict[str, mx.array] = {}
    for file in check_weights(path, "*.safetensors"):
        weights.update({plain_name(k): v for k, v in mx.load(str(file)).items()})  # type: ignore
    if (row := read_mask_embedding(path, config.mask_token_id)) is not None:
        weights["mask_embedding"] = row
    model = DraftModel(config, target.hidden_size, own_parts(weights))
    if config.draft_vocab_size:
        weights["d2t"] = checked_distances(weights["d2t"], config, path)
    model.load_weights([item for item in weights.items() if item[0] not in UNUSED])
    # A norm or a mask row in float32 would make everything after it float32.
    model.set_dtype(model.fc.weight.dtype)
    quantise(model, bits)
    use_cpu_modules(model)
    model.eval()
    mx.eval(model.parameters())
    target.tap(config.target_layer_ids)
    return Drafter(model, target.embed, target.head, target.head_type)


def own_parts(names: Iterable[str]) -> frozenset[str]:
    """Which parts a drafter with these tensors does not share with its target."""
    return OWN & {name.split(".")[0] for name in names}


def checked_distances(d2t: mx.array, config: DraftConfig, path: Path) -> mx.array:
    """`d2t` as int32; DFlashError unless it leads to as many tokens of the target."""
    tokens = np.array(d2t).astype(np.int64) + np.arange(d2t.size)
    if len(np.unique(tokens)) < d2t.size or tokens.min() < 0 or tokens.max() >= config.vocab_size:
        raise DFlashError(
            f"the 'd2t' of the drafter in '{path}' does not lead into the target's vocabulary.",
            hint="download the drafter again",
        )
    return d2t.astype(mx.int32)


def plain_name(name: str) -> str:
    """A tensor's name without the prefix that some exports add."""
    return name.removeprefix("model.")


def check_fit(
    draft: DraftConfig, target: dict[str, Any], draft_name: str | None, target_name: str
) -> None:
    """DFlashError when a drafter was made for another target: it shares embedding and head."""
    hint = "use the drafter that was trained for this target; `dflash models list` shows the pairs"
    layers = target["num_hidden_layers"]
    for what, wanted, has in (
        ("hidden size", draft.hidden_size, target["hidden_size"]),
        ("vocabulary", draft.vocab_size, target["vocab_size"]),
        ("layer count", draft.num_target_layers or layers, layers),
    ):
        if wanted != has:
            raise DFlashError(
                f"drafter '{draft_name}' expects a target with {what} {wanted}, "
                f"'{target_name}' has {has}.",
                hint=hint,
            )
    if not all(0 <= number < layers for number in draft.target_layer_ids):
        raise DFlashError(
            f"drafter '{draft_name}' taps the layers {list(draft.target_layer_ids)}, "
            f"'{target_name}' has {layers}.",
            hint=hint,
        )
    if not 0 <= draft.mask_token_id < draft.vocab_size:
        raise DFlashError(
            f"drafter '{draft_name}' has the mask token {draft.mask_token_id}, outside its "
            f"vocabulary of {draft.vocab_size}.",
            hint=hint,
        )


def check_tensors(path: Path, config: DraftConfig, target_hidden_size: int) -> None:
    """DFlashError for a tensor that is missing, has another shape, or is not known."""
    found: dict[str, list[int]] = {}
    for file in check_weights(path, "*.safetensors"):
        found.update({plain_name(name): shape for name, shape in header(file).items()})
    found = {name: shape for name, shape in found.items() if name not in UNUSED}
    if (row := read_mask_embedding(path, config.mask_token_id)) is not None:
        found["mask_embedding"] = list(row.shape)
    try:
        model = DraftModel(config, target_hidden_size, own_parts(found))
    except (ValueError, KeyError, TypeError) as error:  # mlx-lm does not know the rope scaling
        raise DFlashError(
            f"the drafter's config cannot be used ({first_line(error)}).",
            hint="use a drafter whose rope scaling mlx-lm knows",
        ) from error
    wanted = {name: list(value.shape) for name, value in tree_flatten(model.parameters())}  # type: ignore
    hint = "the weights do not belong to this config.json: download the drafter again"
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            raise DFlashError(f"the drafter in '{path}' has no tensor '{name}'.", hint=hint)
        if name not in wanted:
            raise DFlashError(f"the drafter in '{path}' has an unknown '{name}'.", hint=hint)
        if wanted[name] != found[name]:
            raise DFlashError(
                f"the drafter's '{name}' is {found[name]}, its config says {wanted[name]}.",
                hint=hint,
            )
