"""Checks of exact mode: verify passes must equal decode steps bit for bit."""

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
import tiny
from metal.ours import same_bits

from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.target import Target
from dflash_mlx.speculation.tree import Tree

TREE = Tree(
    tokens=tuple(tiny.prompt_of(9, 8)),
    parents=(0, 0, 1, 2, 2, 3, 0, 5, 6),
    depths=(1, 1, 2, 2, 2, 3, 1, 3, 4),
    logs=(0.0,) * 9,
)
PATH = (1, 3, 6, 9)
KEPT = 3  # rows of the chain that are committed


def target_of(
    family: str, kernels: Kernels, dtype: mx.Dtype = mx.bfloat16, **changes: Any
) -> Target:
    target = tiny.make_target(family, sober=True, **changes)
    target.model.set_dtype(dtype)
    target.tap(tuple(range(target.layers)))
    target.kernels = kernels
    return target


def taps(context: TokenSequence, tokens: Sequence[int]) -> mx.array:
    """Taps [T, K * Ht] of one decode step per token."""
    context.target_cache.tape(False)
    found = [
        context.target.forward(mx.array([[token]]), context.target_cache)[1][0] for token in tokens
    ]
    context.tokens += tokens
    mx.eval(found, context.target_cache.state)
    return mx.concatenate(found)


def context_of(target: Target, prompt: list[int]) -> TokenSequence:
    context = TokenSequence(target, None)
    if prompt:
        context.read(prompt)
    return context


def check_all(target: Target, sizes: Iterable[tuple[int, int]]) -> None:
    for length, rows in sizes:
        check(target, length, rows)


def check(target: Target, length: int, rows: int, after: int = 2) -> None:
    """Compare a chain of `rows` and a tree after `length` tokens with decode steps.

    All taps must have the same bits: those of each verify pass, and those of `after` decode steps
    after a commit of some of its rows.
    """
    prompt, anchor = tiny.prompt_of(length, 1), 7
    block = [anchor, *tiny.prompt_of(rows - 1, 2)]
    following = tiny.prompt_of(after, 3)
    steps = taps(context_of(target, prompt), block)
    context = context_of(target, prompt)
    found = context.verify(anchor, mx.array(block[1:], mx.int32)).taps
    for row in range(rows):
        assert same_bits(found[0, row], steps[row]), ("chain", length, rows, row)

    kept = min(KEPT, rows)
    context.commit((anchor, *block[1:kept]), found)
    plain = context_of(target, prompt)
    taps(plain, block[:kept])
    assert same_bits(taps(context, following), taps(plain, following)), ("after", length, rows)

    context = context_of(target, prompt)
    found = context.verify(anchor, mx.array(TREE.tokens), TREE).taps
    for row in range(TREE.rows):
        path = path_to(row)
        steps = taps(context_of(target, prompt), [anchor, *(TREE.tokens[n - 1] for n in path)])
        assert same_bits(found[0, row], steps[-1]), ("tree", length, row)
    drafts = [TREE.tokens[n - 1] for n in PATH]
    context.commit((anchor, *drafts), found, (0, *PATH))
    plain = context_of(target, prompt)
    taps(plain, [anchor, *drafts])
    assert same_bits(taps(context, following), taps(plain, following)), ("picked", length)


def path_to(row: int) -> list[int]:
    return [*path_to(TREE.parents[row - 1]), row] if row else []
