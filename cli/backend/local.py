"""A pair on this machine."""

import os
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dflash_mlx.chat.messages import Messages
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions
from dflash_mlx.types import Block, Progress, silent

from ..options import BUNDLED, TOY_NOTE
from ..terminal.output import Output, format_bytes, format_count
from ..terminal.spinner import Spinner
from .base import Backend, ModelInfo, ThinkingSwitches

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.kernels.dispatch import Kernels
    from dflash_mlx.models.target import Target

NOTICEABLE_SHARE = 0.1  # of a context's memory: less of it in other programs is not worth a line


class LocalBackend:
    def __init__(self, pair: "Pair", *, drafting: bool = True, use_prefix_cache: bool = True):
        """`drafting` False: decode plainly, whatever the options say."""
        self._pair: Pair | None = None
        self._use_prefix_cache = use_prefix_cache
        self.use(pair, drafting=drafting)

    def use(self, pair: "Pair", *, drafting: bool = True) -> None:
        """Answer with this pair from now on; the session of the same pair is kept."""
        from dflash_mlx import Session

        if pair is not self._pair:
            # Each answer's options have its mode.
            self.session = Session(pair, mode="baseline", use_prefix_cache=self._use_prefix_cache)
            self._warned_of_drafter = False
        self._pair = pair
        self._drafting = drafting and pair.drafts
        self._info: ModelInfo | None = None
        self._info_of: tuple[int, Kernels] | None = None

    def release(self) -> None:
        """Free the pair and its caches; `use` must follow before the next answer."""
        import mlx.core as mx

        self._pair = None
        del self.session
        mx.clear_cache()

    @property
    def pair(self) -> "Pair":
        assert self._pair is not None, "the pair was released"
        return self._pair

    @property
    def info(self) -> ModelInfo:
        # A context becomes shorter with the memory; kernels are also checked between answers.
        changing = (self.pair.engine.context_length, self.pair.target.kernels)
        if self._info is None or changing != self._info_of:
            self._info = info_of(self.pair, drafting=self._drafting)
            self._info_of = changing
        return self._info

    @property
    def stats(self) -> Stats:
        return self.session.stats

    def check(self, options: GenerationOptions) -> None:
        check_block(self.pair, options.block_size)
        if options.structure is not None:
            self.pair.compiler.compile(options.structure)

    def stream(
        self, prompt: Any, options: GenerationOptions, *, on_prefill: Progress = silent
    ) -> Generator[Block]:
        options = self.info.used(options)
        if not options.tools:
            return self.session.stream(prompt, options, on_prefill=on_prefill)
        from dflash_mlx.tools.loop import stream_calls

        return stream_calls(self.session, prompt, options, on_prefill=on_prefill)

    def stream_several(
        self,
        messages: Messages,
        options: GenerationOptions,
        count: int,
        *,
        on_prefill: Progress = silent,
    ) -> Generator[tuple[int, Block, Stats]]:
        """`count` answers with seeds of their own, each in a session of its own."""
        from dflash_mlx.batch import as_choice, stream_all

        options = self.info.used(options)
        prompted = self.session.prepare(messages, options)
        choices = [as_choice(prompted, index) for index in range(count)]
        blocks = stream_all(
            self.pair, choices, mode=options.mode, on_round=lambda: on_prefill(0, 0)
        )
        with closing(blocks):
            for answer, block in blocks:
                yield answer.number, block, answer.reply.stats

    def count(self, prompt: Any, options: GenerationOptions) -> int:
        return len(
            self.session.tokens(
                prompt,
                think=options.think,
                reasoning_effort=options.reasoning_effort,
                tools=options.tools,
                raw=options.raw,
            )
        )

    def drafter_warning(self) -> list[str]:
        """Once, after an answer: a sentence if the target accepts nearly no draft."""
        if self._warned_of_drafter or not self.pair.engine.scheduler.draft_record.is_useless:
            return []
        self._warned_of_drafter = True
        return [useless_drafter(self.pair)]

    def rows(self, options: GenerationOptions) -> list[tuple[str, str]]:
        info = self.info
        rows = []
        if line := drafter_line(self.pair):
            rows.append(("drafter", line))
        rows.append(("target takes", self.pair.target.ability.words))
        if info.context_length < self.pair.target.context_length:
            rows.append(("context", info.context))
        if info.kv_note:
            rows.append(("cache", info.kv_note))
        if info.drafting and options.mode == "auto":
            rows += self._policy_rows()
        if line := kernels_line(self.pair.target.kernels):
            rows.append(("kernels", line))
        return rows + self._snapshot_rows()

    def _policy_rows(self) -> list[tuple[str, str]]:
        """The most frequent plans of the mode auto, and why it chose the last one."""
        policy = self.session.policy
        if policy is None:
            return []
        from dflash_mlx.policy.policy import describe_plan

        plans = ", ".join(f"{count:,} × {describe_plan(plan)}" for plan, count in policy.plans[:4])
        return [("chosen", plans), ("why", policy.reason)]

    def _snapshot_rows(self) -> list[tuple[str, str]]:
        from dflash_mlx.types import SNAPSHOT_LIMITS

        cache = self.session.sequence.target_cache
        if not cache.needs_snapshots:
            return []
        places = format_count(cache.snapshots, "place", "places") + " to go back to"
        limit = f"at most {SNAPSHOT_LIMITS.count}, or {format_bytes(SNAPSHOT_LIMITS.nbytes)}"
        return [("snapshots", f"{places} · {format_bytes(cache.snapshot_bytes)} · {limit}")]

    def finish(self, out: Output) -> None:
        """Wait until the prefix cache is on disk; show it if that takes more than a second."""
        if self._pair is None:
            return
        disk = self._pair.engine.prefix_cache.disk
        if disk is not None:
            with Spinner(out, "keeping what was read for the next time"):
                disk.wait()


def local_backend(backend: Backend, feature: str = "this") -> LocalBackend:
    """The backend of a model on this machine; UsageError, naming the feature, for a server's."""
    if isinstance(backend, LocalBackend):
        return backend
    raise UsageError(
        f"{feature} needs a model on this machine, and a server answers here.",
        hint="begin a chat or an answer with --model ID, a Hub id or a folder",
    )


# A pair in words


def info_of(pair: "Pair", *, drafting: bool) -> ModelInfo:
    import mlx.core as mx

    from dflash_mlx.chat.tool_parser import without_tools
    from dflash_mlx.models.precision import bits_of

    target = pair.target
    template = pair.template
    adapter = target.adapter
    with_adapter = "" if adapter is None else f" with {adapter.path.resolve().name}"
    bits = bits_of(pair.drafter.model) if pair.drafter else 0
    in_bits = f" in {bits} bits" if bits else ""
    drafter_name = "" if pair.draft_label == BUNDLED else f" {pair.draft_label}"
    is_bundled = pair.target_name == BUNDLED
    heading = pair.target_name
    if is_bundled:
        heading = "bundled pair"
    elif os.path.isdir(heading):
        heading = Path(heading).name
    traits = ["CPU" if mx.default_device() == mx.Device(mx.cpu) else "GPU"]
    traits += ["Metal kernels on"] if target.kernels.on else []
    traits += ["exact"] if target.kernels.exact else []
    return ModelInfo(
        local=True,
        name=pair.target_name,
        draft=pair.draft_name,
        title=pair.target_name + with_adapter,
        heading=heading + with_adapter,
        context_length=pair.engine.context_length,
        context=describe_context(pair),
        thinking=ThinkingSwitches(template.think_switch, template.efforts, template.check),
        json={
            "model": pair.target_name,
            "adapter": None if adapter is None else str(adapter.path),
            "draft": pair.draft_name,
            "lookup": pair.lookup,
            "ability": target.ability.words,
            "draft_bits": bits if pair.drafter else None,
            "kv_bits": target.kv_bits,
            "exact": target.kernels.exact,
            "kernels": kernels_json(target.kernels),
        },
        drafter=f"drafter {pair.draft_label}{in_bits}",
        drafter_heading=f"drafter{drafter_name}{in_bits}" if drafter_name or in_bits else "",
        traits=tuple(traits),
        drafting=drafting,
        block_size=pair.block_size if drafting else 0,
        no_tools=without_tools(template, pair.tokenizer),
        checkpoint=target.checkpoint,
        note=TOY_NOTE if is_bundled else "",
        kv_note=kv_note(target),
        warnings=tuple(warnings_of(pair)),
    )


def kv_note(target: "Target") -> str:
    from dflash_mlx.kernels.dispatch import item_bytes
    from dflash_mlx.models.cache.sizes import cache_bytes

    if not target.kv_bits:
        return ""
    saved = cache_bytes(target.caches, 1, item_bytes())
    saved -= cache_bytes(target.caches, 1, item_bytes(), target.kv_bits)
    return f"{target.kv_summary}, saves {format_bytes(saved)} per token"


def warnings_of(pair: "Pair") -> list[str]:
    target = pair.target
    warnings = kernel_warnings(target.kernels) + float32_warnings(target)
    if pair.engine.context_length < target.context_length:
        warnings += shared_memory_warnings(pair.engine.memory_limit or 0)
    if not target.ability.drafts:
        warnings.append(f"this model takes no drafts: {target.ability.reason}")
    return warnings + other_weights_warnings(pair)


def check_block(pair: "Pair", block_size: int | None) -> None:
    """UsageError for a block that is longer than those a DFlash drafter was trained for."""
    from dflash_mlx.drafters.dflash.drafter import DFlashDrafter

    own = pair.drafter.block_size if isinstance(pair.drafter, DFlashDrafter) else None
    if block_size is not None and own is not None and block_size > own:
        raise UsageError(
            f"a block cannot have {block_size} tokens: this drafter's have {own}.",
            hint=f"give 2 to {own}, or none for the drafter's own",
        )


def describe_context(pair: "Pair") -> str:
    length = pair.engine.context_length
    most = pair.target.context_length
    return f"{length:,}" if length == most else f"{length:,} of {most:,} (memory)"


def kernels_json(kernels: "Kernels") -> dict[str, Any] | None:
    """The `--json` field: kernels in use, and why others are off; None without Metal."""
    if kernels.launcher is None:
        return None
    return {"on": sorted(kernels.on or ()), "off": dict(kernels.off)}


def kernel_warnings(kernels: "Kernels") -> list[str]:
    """One line per kernel with wrong results, and one when exact mode runs without kernels.

    A kernel that is only slow gets no warning.
    """
    lines = [
        f"kernel {name} off: {kernels.off[name]} (dflash doctor --kernels)"
        for name in sorted(kernels.wrong)
    ]
    if kernels.exact and (kernels.launcher is None or kernels.wrong):
        lines.append("exact without the Metal kernels: row by row, no faster than plain decoding")
    return lines


def float32_warnings(target: "Target") -> list[str]:
    """A line if the target computes in float32 and the user lets MLX round its products."""
    import mlx.core as mx

    from dflash_mlx.device import TF32, device_info, has_full_float32, has_matrix_units
    from dflash_mlx.kernels.dispatch import by_metal

    if has_full_float32() or target.head_type != mx.float32:
        return []
    if not by_metal() or not has_matrix_units(device_info()["architecture"]):
        return []
    return [
        f"{TF32} is {os.environ[TF32]}: this GPU computes float32 products with about 10 bits, and "
        f"answers can differ from plain decoding (unset {TF32})"
    ]


def shared_memory_warnings(limit: int) -> list[str]:
    """A line on a context, for which memory leaves `limit` bytes, that others make shorter."""
    from dflash_mlx.files.programs import ending, holders, named

    others = holders()
    if sum(other.nbytes for other in others) <= NOTICEABLE_SHARE * limit:
        return []
    return [f"the context is shorter beside {named(others)}: {ending(others)} and start again"]


def other_weights_warnings(pair: "Pair") -> list[str]:
    """A line if the names say that the drafter was made for other weights."""
    from dflash_mlx.hub.registry import other_weights
    from dflash_mlx.hub.resolve import config_of

    if pair.drafter is None or pair.draft_name is None:
        return []
    line = other_weights(pair.target_name, pair.draft_name, config_of(pair.draft_name))
    return [line] if line else []


def drafter_line(pair: "Pair") -> str:
    """The `/stats` line: the drafter, and why it was taken; empty where nobody has chosen it."""
    from dflash_mlx.hub.resolve import origin_of

    reason = origin_of(pair.target_name, pair.draft_name)
    return f"{pair.draft_label or 'plain decoding'} · {reason}" if reason else ""


def useless_drafter(pair: "Pair") -> str:
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from dflash_mlx.models.precision import bits_of

    assert pair.drafter is not None
    record = pair.engine.scheduler.draft_record
    causes = [f"the drafter {pair.draft_label} was made for another target or chat template"]
    if cause := pair.drafter.suspect():
        causes = [cause]
    if bits := bits_of(pair.drafter.model):
        causes.append(f"its {bits} bits are too few (--draft-bits none keeps all)")
    weights = cast("list[tuple[str, mx.array]]", tree_flatten(pair.drafter.model.parameters()))
    if any(weight.dtype == mx.float16 for _, weight in weights):
        causes.append("it computes in float16, which fails on M1 and M2")
    return (
        f"almost no draft was accepted: {record.accepted} of {record.passes} passes kept one. "
        f"Likely causes: {'; '.join(causes)}. --no-draft (in a chat: /draft off) answers without it"
    )


def kernels_line(kernels: "Kernels") -> str:
    """The `/stats` line; empty without Metal."""
    if kernels.launcher is None:
        return ""
    on = ", ".join(sorted(kernels.on or ())) or "none"
    return " · ".join([on, *(f"{name} off: {reason}" for name, reason in kernels.off.items())])
