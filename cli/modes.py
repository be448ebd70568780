"""How answers are decoded, from --mode, --tree-budget, --draft and --no-draft together.

Flags that contradict each other are refused, unless one was said nearer to the command line.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from dflash_mlx.errors import UsageError

from .options import ModelOptions, source

if TYPE_CHECKING:
    from dflash_mlx import Pair

NEARER = ("DEFAULT", "DEFAULT_MAP", "ENVIRONMENT", "COMMANDLINE")


def settle_draft(ctx: typer.Context, models: ModelOptions) -> ModelOptions:
    """Of --draft and --no-draft what was said nearer; for commands that have modes of their own."""
    for name, flag in (("mode", "--mode"), ("tree_budget", "--tree-budget")):
        if source(ctx, name) == "COMMANDLINE":
            raise UsageError(
                f"{flag} says nothing here.", hint="name the modes: --modes dflash,ddtree:32"
            )
    return nearer(ctx, models)


def nearer(ctx: typer.Context, models: ModelOptions) -> ModelOptions:
    """The options without --draft or --no-draft where the other was said nearer."""
    draft, none = (NEARER.index(source(ctx, name)) for name in ("draft", "no_draft"))
    if models.draft is None or not models.no_draft or draft == none:
        return models
    return replace(models, no_draft=False) if draft > none else replace(models, draft=None)


def settle_models(ctx: typer.Context, models: ModelOptions) -> ModelOptions:
    """The options with nothing left that contradicts; `mode` baseline is without a drafter."""

    def place(name: str) -> int:
        return NEARER.index(source(ctx, name))

    plain = models.mode == "baseline"
    if models.no_draft and not plain and place("mode"):
        if place("mode") == place("no_draft"):
            raise UsageError(
                f"--no-draft decodes plainly, and --mode {models.mode} does not.",
                hint="leave one of them out",
            )
        models = replace(models, no_draft=place("mode") < place("no_draft"))
    models = nearer(ctx, models)
    if plain and models.draft is not None:
        if place("draft") >= place("mode"):
            raise UsageError(
                "--mode baseline needs no drafter, and --draft names one.",
                hint="leave one of them out",
            )
        models = replace(models, draft=None)
    if models.no_draft or plain:
        models = replace(models, mode="baseline", no_draft=True)
    if models.tree_budget is not None and models.mode != "ddtree":
        if place("tree_budget") > NEARER.index("DEFAULT_MAP"):
            raise UsageError(
                f"--tree-budget says nothing to the mode {models.mode}.", hint="add --mode ddtree"
            )
        models = replace(models, tree_budget=None)  # the config file's, for when a tree is asked
    return models


def shape_of(pair: "Pair", mode: str, block_size: int | None, tree_budget: int | None) -> str:
    """How much is drafted and verified a round, in a few words; empty for plain decoding."""
    if pair.drafter is None or mode == "baseline":
        return ""
    from dflash_mlx.policy.plans import TREE_BUDGET

    block = f"block {block_size or pair.drafter.config.block_size}"
    if mode == "auto":
        return f"{block} · auto"
    return f"{block} · tree {tree_budget or TREE_BUDGET}" if mode == "ddtree" else block


def plainly(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Session.stream` without what only a drafter's mode knows."""
    return {**options, "tree_budget": None}
