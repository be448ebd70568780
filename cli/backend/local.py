"""A pair on this machine."""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dflash_mlx.chat.messages import Messages
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import UsageError
from dflash_mlx.installation import versions
from dflash_mlx.options import TREE_BUDGET, GenerationOptions
from dflash_mlx.types import Block, Progress, silent

from ..options import BUNDLED, TOY_NOTE
from ..terminal.output import Output, format_bytes, format_count
from ..terminal.spinner import Spinner

if TYPE_CHECKING:
    from mlx.nn import Module

    from dflash_mlx import Pair, Session
    from dflash_mlx.chat.template import Template
    from dflash_mlx.kernels.dispatch import Kernels
    from dflash_mlx.models.target import Target
    from dflash_mlx.tools.loop import CallSplitter

NOTICEABLE_SHARE = 0.1  # of a context's memory: less of it in other programs is not worth a line
MAX_TOKEN_LENGTH = 32  # characters; used to cut a result before it is encoded


class LocalBackend:
    local = True

    def __init__(self, pair: "Pair", *, drafting: bool = True):
        """`drafting` False: decode plainly, whatever the options say."""
        self._pair: Pair | None = None
        self.use(pair, drafting=drafting)

    def use(self, pair: "Pair", *, drafting: bool = True) -> None:
        """Answer with this pair from now on; the session of the same pair is kept."""
        from dflash_mlx import Session

        if pair is not self._pair:
            self.session = Session(pair, mode="baseline")  # each answer's options have its mode
            self._warned_of_drafter = False
        self._pair = pair
        self.drafting = drafting and pair.drafts

    def release(self) -> None:
        import mlx.core as mx

        self._pair = None
        del self.session
        mx.clear_cache()

    @property
    def pair(self) -> "Pair":
        assert self._pair is not None, "the pair was released"
        return self._pair

    def check_local(self, feature: str) -> None: ...

    def check_can_switch(self, model: str) -> None: ...

    @property
    def target_name(self) -> str:
        return self.pair.target_name

    @property
    def draft_name(self) -> str | None:
        """Hub id or folder of the drafter, even while it is switched off."""
        return self.pair.draft_name

    @property
    def context_length(self) -> int:
        return self.pair.engine.context_length

    @property
    def template(self) -> "Template":
        return self.pair.template

    @property
    def stats(self) -> Stats:
        return self.session.stats

    # Before an answer

    def options(self, options: GenerationOptions) -> GenerationOptions:
        """The options without those that this mode ignores."""
        if not self.drafting or options.mode == "baseline":
            return replace(options, mode="baseline", block_size=None, tree_budget=None)
        if options.mode != "ddtree":
            return replace(options, tree_budget=None)
        return options

    def check(self, options: GenerationOptions) -> None:
        check_block(self.pair, options.block_size)

    def prepare(self, options: GenerationOptions, out: Output) -> None:
        """Compile the grammar; UsageError if it is wrong."""
        if options.structure is not None:
            with Spinner(out, "preparing the grammar"):
                self.pair.compiler.compile(options.structure)

    def stream(
        self, prompt: Any, options: GenerationOptions, *, on_prefill: Progress = silent
    ) -> Generator[Block]:
        return self.session.stream(prompt, self.options(options), on_prefill=on_prefill)

    def stream_several(
        self,
        messages: Messages,
        options: GenerationOptions,
        count: int,
        *,
        check: Callable[[], None],
    ) -> Generator[tuple[int, Block, Stats]]:
        """`count` answers with seeds of their own, each in a session of its own."""
        from dflash_mlx.batch import as_choice, stream_all

        options = self.options(options)
        prompted = self.session.prepare(messages, options)
        choices = [as_choice(prompted, index) for index in range(count)]
        with closing(stream_all(self.pair, choices, mode=options.mode, on_round=check)) as blocks:
            for answer, block in blocks:
                yield answer.number, block, answer.reply.stats

    def count_tokens(self, prompt: Any, options: GenerationOptions) -> int:
        return len(
            self.session.tokens(
                prompt,
                think=options.think,
                reasoning_effort=options.reasoning_effort,
                tools=options.tools,
                raw=options.raw,
            )
        )

    def estimate_tokens(self, messages: Messages, options: GenerationOptions) -> int:
        return self.count_tokens(messages, options)

    def recommended_sampling(self) -> dict[str, float]:
        """Sampling options of the target's generation_config.json, by name."""
        from dflash_mlx.files.recommended import recommended_sampling

        return recommended_sampling(self.pair.target.checkpoint)

    def fresh_session(self) -> "Session":
        from dflash_mlx import Session

        return Session(self.pair, mode="baseline", use_prefix_cache=False)

    # Tools

    def no_tools_reason(self) -> str | None:
        """What the chat template or the tokenizer lacks; None if the model can call tools."""
        from dflash_mlx.chat.tool_parser import without_tools

        return without_tools(self.pair.template, self.pair.tokenizer)

    def tool_parser(
        self, messages: Messages, schemas: Sequence[dict[str, Any]]
    ) -> "tuple[CallSplitter, Messages]":
        from dflash_mlx.chat.tool_parser import named_calls
        from dflash_mlx.tools.loop import CallSplitter

        tokenizer = self.pair.tokenizer
        return CallSplitter(tokenizer, schemas), named_calls(messages, tokenizer)

    def truncate_result(self, result: str) -> str:
        limit = self.context_length // 4
        beginning = result[: MAX_TOKEN_LENGTH * limit]
        while (tokens := len(self.pair.encode(beginning))) > limit:
            beginning = beginning[: len(beginning) * limit // tokens]
        return beginning

    # Descriptions

    def describe(self, options: GenerationOptions) -> str:
        pair = self.pair
        drafting = self.drafting_summary(options)
        drafter = "draft off"
        if drafting:
            drafter = f"drafter {pair.draft_label}{in_bits(pair)} · {drafting}"
        target = pair.target_name + with_adapter(pair)
        return " · ".join(filter(None, [target, drafter, self.kv_note()]))

    def headline(self, options: GenerationOptions) -> str:
        import mlx.core as mx

        pair = self.pair
        target = "bundled pair"
        if pair.target_name != BUNDLED:
            is_folder = os.path.isdir(pair.target_name)
            target = Path(pair.target_name).name if is_folder else pair.target_name
        parts = [target + with_adapter(pair)]
        drafting = self.drafting_summary(options)
        if drafting:
            name = "" if pair.draft_label == BUNDLED else f" {pair.draft_label}"
            label = f"{name}{in_bits(pair)}"
            parts += [f"drafter{label}"] if label else []
            parts.append(drafting)
        else:
            parts.append("draft off")
        parts.append("CPU" if mx.default_device() == mx.Device(mx.cpu) else "GPU")
        if pair.target.kernels.on:
            parts.append("Metal kernels on")
        if pair.target.kernels.exact:
            parts.append("exact")
        return " · ".join(filter(None, [*parts, self.kv_note()]))

    def start_summary(self, seconds: float) -> str:
        import mlx.core as mx

        memory = format_bytes(mx.get_active_memory())
        context = describe_context(self.pair)
        return f"loaded in {seconds:.1f} s · {memory} · context {context}"

    def drafting_summary(self, options: GenerationOptions) -> str:
        return describe_drafting(self.pair, self.options(options))

    def cut_by(self, stats: Stats, max_tokens: int | None, name: str) -> str:
        if max_tokens is None or stats.generated < max_tokens:
            return "cut: the context is full"
        return f"cut by {name}"

    def usage_rows(self, conversation: str, options: GenerationOptions) -> list[tuple[str, str]]:
        import mlx.core as mx

        memory = f"peak {format_bytes(mx.get_peak_memory())}"
        rows = [("conversation", f"{conversation} · {memory}")]
        if line := drafter_line(self.pair):
            rows.append(("drafter", line))
        rows.append(("drafts", self.pair.target.ability.words))
        if self.context_length < self.pair.target.context_length:
            rows.append(("context", describe_context(self.pair)))
        if note := self.kv_note():
            rows.append(("cache", note))
        if self.drafting and options.mode == "auto":
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

    def kv_note(self) -> str:
        from dflash_mlx.kernels.dispatch import item_bytes
        from dflash_mlx.models.cache.sizes import cache_bytes

        target = self.pair.target
        if not target.kv_bits:
            return ""
        saved = cache_bytes(target.caches, 1, item_bytes())
        saved -= cache_bytes(target.caches, 1, item_bytes(), target.kv_bits)
        return f"{target.kv_summary}, saves {format_bytes(saved)} per token"

    def model_note(self) -> str:
        return TOY_NOTE if self.pair.target_name == BUNDLED else ""

    def warnings(self) -> list[str]:
        target = self.pair.target
        warnings = kernel_warnings(target.kernels) + float32_warnings(target)
        if self.context_length < target.context_length:
            warnings += shared_memory_warnings(self.pair.engine.memory_limit or 0)
        if not target.ability.drafts:
            warnings.append(f"this model takes no drafts: {target.ability.reason}")
        return warnings + other_weights_warnings(self.pair)

    def drafter_warning(self) -> list[str]:
        if self._warned_of_drafter or not self.pair.engine.scheduler.draft_record.is_useless:
            return []
        self._warned_of_drafter = True
        return [useless_drafter(self.pair)]

    def model_json(self) -> dict[str, Any]:
        from dflash_mlx.models.precision import bits_of

        pair = self.pair
        return {
            "model": pair.target_name,
            "adapter": None if pair.target.adapter is None else str(pair.target.adapter.path),
            "draft": pair.draft_name,
            "lookup": pair.lookup,
            "ability": pair.target.ability.words,
            "draft_bits": None if pair.drafter is None else bits_of(pair.drafter.model),
            "kv_bits": pair.target.kv_bits,
            "exact": pair.target.kernels.exact,
            "kernels": kernels_json(pair.target.kernels),
        }

    def answer_json(self, stats: Stats, options: GenerationOptions) -> dict[str, Any]:
        """Mode, draft counts, peak memory (GB) and versions."""
        import mlx.core as mx

        return {
            "mode": self.options(options).mode,
            "speculation": self._speculation_json(stats, self.options(options)),
            "peak_memory_gb": round(mx.get_peak_memory() / 1e9, 4),
            "versions": versions(),
        }

    def _speculation_json(self, stats: Stats, options: GenerationOptions) -> dict[str, Any] | None:
        """Draft counts and acceptance; None without drafting."""
        if options.mode == "baseline":
            return None
        mode_fields: dict[str, Any] = {}
        if options.mode == "ddtree":
            mode_fields["tree_budget"] = options.tree_budget or TREE_BUDGET
        elif options.mode == "auto" and (policy := self.session.policy):
            mode_fields["chosen"] = [
                {
                    "rows": plan.rows,
                    "drafted": plan.drafted,
                    "tree": plan.tree,
                    "rounds": count,
                }
                for plan, count in policy.plans
            ]
            mode_fields["why"] = policy.reason
        return {
            "block_size": options.block_size or self.pair.block_size,
            **mode_fields,
            "verifies": stats.verifies,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "mean_acceptance_length": round(stats.acceptance_length, 4),
            "acceptance_rate": round(stats.acceptance_rate, 4),
            "accepted_by_position": stats.accepted_by_position,
        }

    def finish(self, out: Output) -> None:
        """Wait until the prefix cache is on disk; show it if that takes more than a second."""
        if self._pair is None:
            return
        disk = self._pair.engine.prefix_cache.disk
        if disk is not None:
            with Spinner(out, "keeping what was read for the next time"):
                disk.wait()


# A pair in words


def with_adapter(pair: "Pair") -> str:
    """The adapter's folder, to stand behind the target's name; empty without one."""
    adapter = pair.target.adapter
    return "" if adapter is None else f" with {adapter.path.resolve().name}"


def check_block(pair: "Pair", block_size: int | None) -> None:
    """UsageError for a block that is longer than those a DFlash drafter was trained for."""
    from dflash_mlx.drafters.dflash.drafter import DFlashDrafter

    own = pair.drafter.block_size if isinstance(pair.drafter, DFlashDrafter) else None
    if block_size is not None and own is not None and block_size > own:
        raise UsageError(
            f"a block cannot have {block_size} tokens: this drafter's have {own}.",
            hint=f"give 2 to {own}, or none for the drafter's own",
        )


def describe_drafting(pair: "Pair", options: GenerationOptions) -> str:
    """Block size and mode in a few words; empty for plain decoding."""
    if not pair.drafts or options.mode == "baseline":
        return ""
    block = f"block {options.block_size or pair.block_size}"
    if options.mode == "auto":
        return f"{block} · auto"
    return f"{block} · tree {options.tree_nodes}" if options.mode == "ddtree" else block


def in_bits(pair: "Pair") -> str:
    """The bits of a quantised drafter, for a text after its name; empty if not quantised."""
    from dflash_mlx.models.precision import bits_of

    bits = bits_of(pair.drafter.model) if pair.drafter else 0
    return f" in {bits} bits" if bits else ""


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
    from dflash_mlx.models.precision import bits_of

    assert pair.drafter is not None
    record = pair.engine.scheduler.draft_record
    causes = [f"the drafter {pair.draft_label} was made for another target or chat template"]
    if cause := pair.drafter.suspect():
        causes = [cause]
    if bits := bits_of(pair.drafter.model):
        causes.append(f"its {bits} bits are too few (--draft-bits none keeps all)")
    if has_float16(pair.drafter.model):
        causes.append("it computes in float16, which fails on M1 and M2")
    return (
        f"almost no draft was accepted: {record.accepted} of {record.passes} passes kept one. "
        f"Likely causes: {'; '.join(causes)}. --no-draft (in a chat: /draft off) answers without it"
    )


def has_float16(model: "Module") -> bool:
    import mlx.core as mx
    from mlx.utils import tree_flatten

    weights = cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))
    return any(weight.dtype == mx.float16 for _, weight in weights)


def kernels_line(kernels: "Kernels") -> str:
    """The `/stats` line; empty without Metal."""
    if kernels.launcher is None:
        return ""
    on = ", ".join(sorted(kernels.on or ())) or "none"
    return " · ".join([on, *(f"{name} off: {reason}" for name, reason in kernels.off.items())])
