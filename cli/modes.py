"""Resolves --mode, --tree-budget, --draft and --no-draft into one decoding mode.

Options come from the command line, a preset, the environment, the config file or the default.
Contradicting options from the same place are refused; otherwise the place with higher precedence
wins.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from dflash_mlx.errors import UsageError

from .option_sources import option_source
from .options import ModelOptions

if TYPE_CHECKING:
    from dflash_mlx import Pair

PRECEDENCE = ("DEFAULT", "DEFAULT_MAP", "MODEL_TABLE", "ENVIRONMENT", "PRESET", "COMMANDLINE")


def resolve_draft(ctx: typer.Context, model_options: ModelOptions) -> ModelOptions:
    """Resolve --draft against --no-draft, for commands that list their modes themselves."""
    for name, flag in (("mode", "--mode"), ("tree_budget", "--tree-budget")):
        if option_source(ctx, name) == "COMMANDLINE":
            raise UsageError(
                f"{flag} says nothing here.", hint="name the modes: --modes dflash,ddtree:32"
            )
    return drop_overridden(ctx, model_options)


def drop_overridden(ctx: typer.Context, model_options: ModelOptions) -> ModelOptions:
    """Drop --draft or --no-draft when the other one has higher precedence."""
    draft_precedence, no_draft_precedence = (
        PRECEDENCE.index(option_source(ctx, name)) for name in ("draft", "no_draft")
    )
    if (
        model_options.draft is None
        or not model_options.no_draft
        or draft_precedence == no_draft_precedence
    ):
        return model_options
    return (
        replace(model_options, no_draft=False)
        if draft_precedence > no_draft_precedence
        else replace(model_options, draft=None)
    )


def resolve_models(ctx: typer.Context, model_options: ModelOptions) -> ModelOptions:
    """The options without contradictions; `mode` baseline means no drafter."""

    def precedence(name: str) -> int:
        return PRECEDENCE.index(option_source(ctx, name))

    baseline = model_options.mode == "baseline"
    if model_options.no_draft and not baseline and precedence("mode"):
        if precedence("mode") == precedence("no_draft"):
            raise UsageError(
                f"--no-draft decodes plainly, and --mode {model_options.mode} does not.",
                hint="leave one of them out",
            )
        model_options = replace(model_options, no_draft=precedence("mode") < precedence("no_draft"))
    model_options = drop_overridden(ctx, model_options)
    if baseline and model_options.draft is not None:
        if precedence("draft") >= precedence("mode"):
            raise UsageError(
                "--mode baseline needs no drafter, and --draft names one.",
                hint="leave one of them out",
            )
        model_options = replace(model_options, draft=None)
    if model_options.no_draft or baseline:
        model_options = replace(model_options, mode="baseline", no_draft=True)
    if model_options.lookup and model_options.mode != "auto":
        if precedence("lookup") >= precedence("mode"):
            raise UsageError(
                f"--lookup says nothing to the mode {model_options.mode}.",
                hint="leave out --mode, or take copies alone: --draft lookup",
            )
        model_options = replace(model_options, lookup=False)
    if model_options.tree_budget is not None and model_options.mode != "ddtree":
        if precedence("tree_budget") >= max(precedence("mode"), PRECEDENCE.index("ENVIRONMENT")):
            raise UsageError(
                f"--tree-budget says nothing to the mode {model_options.mode}.",
                hint="add --mode ddtree",
            )
        # It was set for the mode ddtree, by the config file or farther from the command line.
        model_options = replace(model_options, tree_budget=None)
    return model_options


def check_block(pair: "Pair", block_size: int | None) -> None:
    """UsageError for a block that is longer than those a DFlash drafter was trained for."""
    from dflash_mlx.drafters.dflash.drafter import Drafter

    own = pair.drafter.block_size if isinstance(pair.drafter, Drafter) else None
    if block_size is not None and own is not None and block_size > own:
        raise UsageError(
            f"a block cannot have {block_size} tokens: this drafter's have {own}.",
            hint=f"give 2 to {own}, or none for the drafter's own",
        )


def describe_drafting(
    pair: "Pair", mode: str, block_size: int | None, tree_budget: int | None
) -> str:
    """Block size and mode in a few words; empty for plain decoding."""
    if not pair.drafts or mode == "baseline":
        return ""
    from dflash_mlx.engine.request import TREE_BUDGET

    block = f"block {block_size or pair.block_size}"
    if mode == "auto":
        return f"{block} · auto"
    return f"{block} · tree {tree_budget or TREE_BUDGET}" if mode == "ddtree" else block


def in_bits(pair: "Pair") -> str:
    """The bits of a quantised drafter, to stand after its name; empty where it is as published."""
    from dflash_mlx.models.quantise import bits_of

    bits = bits_of(pair.drafter.model) if pair.drafter else 0
    return f" in {bits} bits" if bits else ""


def baseline_options(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Session.stream` without those that need a drafter."""
    return {**options, "tree_budget": None}
