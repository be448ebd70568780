"""A target and its drafter: resolved, checked against each other, and loaded.

Both configs and all tensor shapes are checked before any weights are read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, Unpack

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model

from .batch import MAX_SEQUENCES, OnBlock, generate_all
from .chat.reasoning_parser import eos_ids_of
from .chat.template import load_tokenizer
from .drafters.base import Drafter
from .drafters.load import load_drafter
from .engine.engine import Engine
from .engine.prefix_cache.disk import DiskCache, cache_root, pair_key
from .engine.prefix_cache.prefix_cache import default_limit
from .engine.worker_thread import mlx_thread
from .files.checkpoint import Checkpoint
from .files.programs import Notice, full_name
from .hub.bits import chosen_bits
from .loaded_pair import LoadedPair, evaluate
from .models.memory import limit_mlx_cache, memory_for_caches
from .models.precision import is_quantised
from .models.target import Target, check_target
from .option_keywords import OptionKeywords, options_of, takes_options
from .options import GenerationOptions
from .resolved_pair import LoadOptions, ResolvedPair, resolve_pair
from .result import Result
from .selfcheck.check import TIME_BUDGET, KernelCheck, build
from .selfcheck.exact import check_exact
from .selfcheck.shapes import shapes_of
from .session import Prompt
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
        asked = options_of(options, keywords, self.default_mode)
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
    options = LoadOptions(
        draft_bits=draft_bits,
        kv_bits=kv_bits,
        no_draft=no_draft,
        lookup=lookup,
        adapter=adapter,
        trust_remote_code=trust_remote_code,
        exact=exact,
        cache_ram=cache_ram,
        cache_disk=cache_disk,
    )
    resolved = resolve_pair(target, draft, options, on_download=on_download)
    return open_pair(resolved, on_kernels, on_check)


def open_pair(
    resolved: ResolvedPair, on_kernels: Progress = silent, on_check: Progress = silent
) -> Pair:
    options = resolved.options
    trust = options.trust_remote_code
    tokenizer = load_tokenizer(resolved.target, trust_remote_code=trust)

    def load_models() -> Pair:
        limit_mlx_cache()
        target = Target.load(
            resolved.target,
            eos_ids_of(tokenizer),
            exact=options.exact,
            kv_bits=options.kv_bits,
            adapter=resolved.adapter,
            read_model=read_in_pieces,
        )
        pair = Pair.of(
            target,
            drafter_of(resolved, target, tokenizer),
            tokenizer,
            resolved.target_name,
            resolved.draft_name,
            lookup=resolved.lookup,
        )
        tell_others(pair)
        prepare_kernels(pair, then_pause(on_kernels), then_pause(on_check))
        prefix_cache = pair.engine.prefix_cache
        ram = options.cache_ram
        prefix_cache.limit = default_limit() if ram is None else ram
        pair.engine.fit_context(max(0, memory_for_caches() - prefix_cache.limit))
        if options.cache_disk:
            prefix_cache.disk = disk_of(pair, resolved.draft, options.cache_disk)
        return pair

    return mlx_thread().call(load_models)


def drafter_of(
    resolved: ResolvedPair, target: Target, tokenizer: TokenizerWrapper
) -> Drafter | None:
    """Load the drafter of a pair beside its target, which it taps. In MLX's thread."""
    if resolved.draft is None:
        target.tap(())
        return None
    options = resolved.options
    return load_drafter(
        resolved.draft,
        target,
        tokenizer,
        bits=chosen_bits(options.draft_bits, target_quantised=is_quantised(target.model)),
        trust_remote_code=options.trust_remote_code,
    )


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


def disk_of(pair: Pair, draft: Checkpoint | None, limit: int) -> DiskCache:
    """The prefix cache on disk of a pair with this drafter; raises DFlashError as `DiskCache`."""
    folder = None if draft is None else draft.path
    model = None if pair.drafter is None else pair.drafter.model
    key = pair_key(pair.target, folder, model)
    return DiskCache(key, pair.target_name, pair.draft_name, limit, cache_root())


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
    models = [pair.target.model, *([] if pair.drafter is None else [pair.drafter.model])]
    parameters: Any = tree_flatten([model.parameters() for model in models])
    arrays = {id(array): array.nbytes for _, array in parameters}
    return sum(arrays.values())


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
    resolved: ResolvedPair,
    on_kernels: Progress = silent,
    on_check: Progress = silent,
) -> Pair:
    """The same loaded target with the drafter that was resolved for it, or none; raises as `load`.

    Sessions of the old pair cannot be used afterwards, because other layers are tapped. If it
    raises, they stay usable.
    """

    def load_other() -> Pair:
        try:
            other = replace(
                pair,
                drafter=drafter_of(resolved, pair.target, pair.tokenizer),
                draft_name=resolved.draft_name,
                lookup=resolved.lookup,
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
            other.engine.fit_context(limit + weight_bytes(pair) - weight_bytes(other))
        if before.disk is not None:
            prefix_cache.disk = disk_of(other, resolved.draft, before.disk.limit)
        tell_others(other)
        return other

    return mlx_thread().call(load_other)
