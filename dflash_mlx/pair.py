"""A target and its drafter: resolved, checked against each other, and loaded.

Both configs and all tensor shapes are checked before any weights are read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, Unpack, cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model

from .batch import MAX_SEQUENCES, OnBlock, generate_all
from .chat.reasoning_parser import eos_ids_of
from .chat.template import load_tokenizer
from .device import check_macos
from .drafters.load import check_drafter, load_drafter
from .drafters.mtp.tensors import require_head
from .engine.engine import Engine
from .engine.prefix_cache.disk import DiskCache, Labels, cache_root, pair_key
from .engine.prefix_cache.prefix_cache import default_limit
from .engine.worker_thread import mlx_thread
from .errors import DFlashError, UsageError
from .files.adapter import Adapter
from .files.checkpoint import Checkpoint
from .files.programs import Notice, full_name
from .hub import resolve
from .hub.bits import check_bits, chosen_bits
from .hub.cache import is_head_only
from .kernels.dispatch import on_cpu
from .loaded_pair import LoadedPair, evaluate
from .models.ability import Ability
from .models.cache.sizes import check_quantisable
from .models.memory import limit_mlx_cache, memory_for_caches
from .models.precision import is_quantised
from .models.target import Target, check_target, outline
from .option_keywords import OptionKeywords, options_of, takes_options
from .options import GenerationOptions
from .result import Result
from .selfcheck.check import TIME_BUDGET, KernelCheck, build
from .selfcheck.exact import check_exact
from .selfcheck.shapes import shapes_of
from .session import Prompt, default_mode
from .types import Progress, silent


class Pair(LoadedPair):
    """A loaded target with its tokenizer, and its drafter, if there is one."""

    __slots__ = ()

    @takes_options
    def generate(
        self,
        prompts: Iterable[Prompt],
        options: GenerationOptions | None = None,
        *,
        max_sequences: int = MAX_SEQUENCES,
        on_progress: Progress = silent,
        on_block: OnBlock | None = None,
        **keywords: Unpack[OptionKeywords],
    ) -> list[Result]:
        """Answer many prompts in shared passes; the results are in the order of the prompts.

        Each answer is the one that its prompt gets alone. Options, for all prompts, are a
        `GenerationOptions` or its fields. max_sequences: answers at the same time, fewer where the
        memory holds fewer. `on_progress(done, total)` counts finished answers. `on_block(number,
        block)` gets each block with the number of its prompt, from 0; if it returns True, this
        answer ends there, with the finish reason "interrupted". Both are called in the caller's
        thread.

        Raises UsageError, before any model runs, for wrong options and prompts; its message names
        the prompt. If an answer fails later, DFlashError is raised, and no result is returned.
        """
        asked = options_of(options, keywords, default_mode(self))
        return generate_all(
            self,
            prompts,
            asked,
            max_sequences=max_sequences,
            on_progress=on_progress,
            on_block=on_block,
        )


def load(
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
    on_download: Progress | None = None,
    on_kernels: Progress = silent,
    on_check: Progress = silent,
) -> Pair:
    """Load a pair from Hub ids or folders; without `target` the bundled one.

    draft: a DFlash or DSpark drafter, an EAGLE-3 head, an MTP head ("mtp": in the target's own
    folder), an assistant of Gemma 4 or a small model with the target's vocabulary; None for the
    drafter that `dflash bench --drafts all` found best on this machine, else the best known. If
    none is known, or with "lookup", drafts are copied from earlier text. lookup: copy drafts beside
    a drafter too, where the mode auto expects more of the copies.
    no_draft: load the target alone, for plain decoding. draft_bits: 4 or 8 quantises the drafter in
    memory, 0 leaves it as published; None is 8 for a quantised target and 0 for others. kv_bits: 8
    or 4 quantises the target's KV cache where mlx-lm can; not the drafter's, which is small. Tokens
    are then those of plain decoding with the same cache. None and 0 leave it as it is.
    adapter: the folder of a LoRA or DoRA adapter that `mlx_lm.lora` trained for the target; its
    drafters stay usable.
    trust_remote_code: run the Python files that a target may have for its tokenizer (Kimi's does).
    exact: greedy answers have the bits of plain decoding in every mode, also at 16 bits or
    quantised. cache_ram: bytes for the prefix cache; None is a quarter of the memory that the
    models leave, 0 turns it off. cache_disk: bytes of it on disk, which survive a restart.
    on_download is called with counts of bytes, on_kernels with counts of operations whose kernels
    are ready, on_check of those that are checked, which each Mac does once.
    Raises DFlashError if something is missing, damaged, not supported, not exact, or does not fit
    together.
    """
    check_bits(draft_bits)
    check_bits(kv_bits, "kv_bits")
    check_exact_cache(exact=exact, kv_bits=kv_bits)
    check_cache_sizes(cache_ram, cache_disk)
    check_lookup(lookup=lookup, no_draft=no_draft)
    if not on_cpu():
        check_macos()
    adapted = None if adapter is None else Adapter.read(adapter)
    names = resolve.pair_names(target, draft, no_draft=no_draft)
    checkpoint = resolve.open_checkpoint(names.target, names.target_label, on_download)
    shape = outline(checkpoint)
    if kv_bits:
        check_quantisable(shape.caches, checkpoint.name)
    names = without_drafts(names, shape.ability, chosen=draft is not None or lookup)
    draft_checkpoint = open_drafter(names, on_download)
    check_bits_of(names, draft_bits)
    if draft_checkpoint is not None:
        check_drafter(draft_checkpoint, shape.checkpoint, shape.ability)
    tokenizer = load_tokenizer(checkpoint, trust_remote_code=trust_remote_code)

    def load_models() -> Pair:
        limit_mlx_cache()
        eos_ids = eos_ids_of(tokenizer)
        loaded = Target.load(
            checkpoint,
            eos_ids,
            exact=exact,
            kv_bits=kv_bits,
            adapter=adapted,
            read_model=read_in_pieces,
        )
        drafter = None
        if draft_checkpoint is not None:
            bits = chosen_bits(draft_bits, target_quantised=is_quantised(loaded.model))
            drafter = load_drafter(
                draft_checkpoint,
                loaded,
                tokenizer,
                bits=bits,
                trust_remote_code=trust_remote_code,
            )
        pair = Pair.of(
            loaded,
            drafter,
            tokenizer,
            names.target_label,
            names.draft_label,
            lookup=lookup or names.lookup,
        )
        tell_others(pair)
        prepare_kernels(pair, then_pause(on_kernels), then_pause(on_check))
        prefix_cache = pair.engine.prefix_cache
        prefix_cache.limit = default_limit() if cache_ram is None else cache_ram
        fit_context(pair)
        if cache_disk:
            prefix_cache.disk = disk_of(pair, draft_checkpoint, cache_disk)
        return pair

    return mlx_thread().call(load_models)


def load_target(
    checkpoint: Checkpoint, *, trust_remote_code: bool = False
) -> tuple[Target, TokenizerWrapper]:
    """A model and its tokenizer; errors as `load`. Call it in MLX's thread."""
    check_target(checkpoint)
    tokenizer = load_tokenizer(checkpoint, trust_remote_code=trust_remote_code)
    return Target.load(checkpoint, eos_ids_of(tokenizer)), tokenizer


def read_in_pieces(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """A model and its config, as mlx-lm reads them; answers of other pairs go on meanwhile."""
    model, config = load_model(folder, lazy=True)
    evaluate(model)
    return model, config


def open_drafter(names: resolve.Names, on_download: Progress | None) -> Checkpoint | None:
    """Downloads if necessary; None without one. Raises DFlashError for a missing MTP head."""
    if names.draft is None:
        return None
    checkpoint = resolve.open_checkpoint(names.draft, names.draft_label or "", on_download)
    if names.own_head or is_head_only(str(names.draft)):
        require_head(checkpoint)
    return checkpoint


def without_drafts(names: resolve.Names, ability: Ability, *, chosen: bool) -> resolve.Names:
    """The names without a drafter where the target can take no drafts back.

    Raises DFlashError if the drafter was `chosen` by the user.
    """
    if ability.drafts or names.draft_label is None:
        return names
    if chosen:
        raise DFlashError(
            f"'{names.target_label}' takes no drafts: {ability.reason}.",
            hint="leave the drafter out: it answers by plain decoding",
        )
    return replace(names, draft=None, draft_label=None)


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


def check_lookup(*, lookup: bool, no_draft: bool) -> None:
    """Raise UsageError if prompt lookup is wanted without drafts."""
    if lookup and no_draft:
        raise UsageError("lookup and no_draft contradict each other.", hint="leave one of them out")


def disk_of(pair: Pair, draft: Checkpoint | None, limit: int) -> DiskCache:
    """The prefix cache on disk of a pair with this drafter; raises DFlashError as `DiskCache`."""
    folder = None if draft is None else draft.path
    model = None if pair.drafter is None else pair.drafter.model
    key = pair_key(pair.target, folder, model)
    return DiskCache(key, Labels(pair.target_name, pair.draft_name), limit, cache_root())


def fit_context(pair: Pair) -> None:
    """Limit a pair's context to what memory holds beside the models and the prefix cache."""
    pair.engine.fit_context(max(0, memory_for_caches() - pair.engine.prefix_cache.limit))


def then_pause(progress: Progress) -> Progress:
    """The progress, and a pause of the thread after it."""

    def update(done: int, total: int) -> None:
        progress(done, total)
        mlx_thread().pause()

    return update


def tell_others(pair: Pair) -> None:
    """Let other programs see what a pair holds in memory, until its target is freed."""
    model = full_name(pair.target_name)
    if (adapter := pair.target.adapter) is not None:
        model += f" with {adapter.path.resolve().name}"
    pair.target.notice = Notice(model, weight_bytes(pair))


def weight_bytes(pair: Pair) -> int:
    models = [pair.target.model, None if pair.drafter is None else pair.drafter.model]
    arrays = {
        id(array): array.nbytes
        for model in models
        if model is not None
        for _, array in cast(Any, tree_flatten(model.parameters()))
    }
    return sum(arrays.values())


def drafter_bytes(pair: Pair) -> int:
    """The bytes of a drafter's weights; 0 without any."""
    model = None if pair.drafter is None else pair.drafter.model
    arrays: Any = tree_flatten([] if model is None else model.parameters())
    return sum(array.nbytes for _, array in arrays)


def prepare_kernels(pair: Pair, on_kernels: Progress, on_check: Progress) -> None:
    """Enable the kernels that are right and fast at a pair's shapes, and build them.

    A kernel that this machine has not checked before is checked now, for TIME_BUDGET seconds. The
    rest is left to the time between answers, except in exact mode, which needs all kernels at
    once. Raises DFlashError if the pair should be exact and is not.
    """
    target = pair.target
    if target.kernels.launcher is not None:
        shapes = shapes_of(target, pair.drafter)
        check = KernelCheck(target.kernels, shapes)
        is_left = check.run(inf if target.kernels.exact else TIME_BUDGET, on_check)
        target.kernels = check.kernels()
        for name, reason in build(target.kernels, shapes, on_kernels=on_kernels).items():
            check.fail(name, reason)
            target.kernels = target.kernels.without([name], reason)
        pair.engine.on_kernel_failed = check.fail
        if is_left:
            pair.engine.between_answers = finish_check(check, pair.engine)
    if target.kernels.exact:
        check_exact(target, pair.target_name)


def finish_check(check: KernelCheck, engine: Engine) -> Iterator[None]:
    """Finish a check step by step, then use the kernels that it has found."""
    while check.step():
        yield
    mx.clear_cache()
    engine.change_kernels(check.kernels())


def with_drafter(
    pair: Pair,
    draft: str | Path | None = None,
    *,
    draft_bits: int | None = None,
    no_draft: bool = False,
    lookup: bool = False,
    trust_remote_code: bool = False,
    on_download: Progress | None = None,
    on_kernels: Progress = silent,
    on_check: Progress = silent,
) -> Pair:
    """The same loaded target with another drafter, its known one, or none; raises as `load`.

    Sessions of the old pair cannot be used afterwards, because other layers are tapped. If it
    raises, they stay usable.
    """
    check_bits(draft_bits)
    check_lookup(lookup=lookup, no_draft=no_draft)
    names = names_with(pair, draft, no_draft=no_draft)
    chosen = draft is not None or lookup
    names = without_drafts(names, pair.target.ability, chosen=chosen)
    checkpoint = open_drafter(names, on_download)
    check_bits_of(names, draft_bits)
    if checkpoint is not None:
        check_drafter(checkpoint, pair.target.checkpoint, pair.target.ability)

    def load_other() -> Pair:
        drafter = None
        try:
            if checkpoint is None:
                pair.target.tap(())
            else:
                bits = chosen_bits(draft_bits, target_quantised=is_quantised(pair.target.model))
                drafter = load_drafter(
                    checkpoint,
                    pair.target,
                    pair.tokenizer,
                    bits=bits,
                    trust_remote_code=trust_remote_code,
                )
            other = replace(
                pair,
                drafter=drafter,
                draft_name=names.draft_label,
                lookup=lookup or names.lookup,
            )
            prepare_kernels(other, on_kernels, on_check)
        except BaseException:
            pair.target.tap(pair.drafter.taps if pair.drafter else ())
            raise
        pair.engine.between_answers = None
        before = pair.engine.prefix_cache
        before.clear()
        prefix_cache = other.engine.prefix_cache
        prefix_cache.limit = before.limit
        limit = pair.engine.memory_limit
        if limit is not None:  # as at load, not with what old conversations hold now
            other.engine.fit_context(limit + drafter_bytes(pair) - drafter_bytes(other))
        if before.disk is not None:
            prefix_cache.disk = disk_of(other, checkpoint, before.disk.limit)
        tell_others(other)
        return other

    return mlx_thread().call(load_other)


def check_bits_of(names: resolve.Names, draft_bits: int | None) -> None:
    """Raise UsageError for bits if the drafter has no weights."""
    if names.lookup and draft_bits:
        raise UsageError(
            "draft_bits has no effect on prompt lookup, which has no weights.", hint="leave it out"
        )


def names_with(pair: Pair, draft: str | Path | None, *, no_draft: bool = False) -> resolve.Names:
    """The names of a loaded target and of another drafter for it, its known one, or none."""
    bundled = pair.target_name == resolve.BUNDLED
    return resolve.pair_names(None if bundled else pair.target_name, draft, no_draft=no_draft)
