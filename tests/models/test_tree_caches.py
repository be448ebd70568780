"""Trees in every kind of cache: what a pass over one gives, and what stays of it."""

import random
from typing import Any

import caches
import mlx.core as mx
import numpy as np
import pytest
import tiny
from caches import FORK
from mlx_lm.models.rope_utils import initialize_rope

from dflash_mlx.errors import RewindError
from dflash_mlx.models.cache.target_cache import TargetCache
from dflash_mlx.models.cache.tree_pass import TreePass
from dflash_mlx.models.packed import PassRope, wrap_ropes
from dflash_mlx.models.parts import flat
from dflash_mlx.speculation.tree import Tree

TREES, SOME_TREES = 1000, 15
every_kind = pytest.mark.parametrize("kind", caches.KINDS)


def random_tree(dice: random.Random) -> Tree:
    """1 to 24 nodes, some bushy, some like a chain."""
    tokens, parents, depths = [], [], []
    near, size = dice.choice((1, 2, 24)), dice.randint(1, 24)
    while len(tokens) < size:
        parent = dice.randrange(max(0, len(tokens) + 1 - near), len(tokens) + 1)
        token = dice.randrange(96)
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent - 1] + 1 if parent else 1)
    return Tree(tuple(tokens), tuple(parents), tuple(depths), (0.0,) * size)


def read_tree(kind: str, cache: TargetCache, anchor: int, tree: Tree) -> mx.array:
    cache.tape(True)
    with cache.reading(tree):
        block = mx.array([[anchor, *tree.tokens]])
        logits, _ = caches.target_of(kind).forward(block, cache)
    mx.eval(logits)
    return logits[0]


def grow(kind: str, count: int, seed: int = 5) -> None:
    """Random trees, of each a random path; every third path is compared with a fresh prefill."""
    target, dice = caches.target_of(kind), random.Random(seed)
    cache, tokens = TargetCache(caches.layers_of(kind)), []
    for number in range(count):
        if len(tokens) > 60 or not number:
            cache, tokens = TargetCache(caches.layers_of(kind)), tiny.prompt_of(number % 17)
            if tokens:
                caches.read(target, cache, tokens)
        tree, anchor = random_tree(dice), dice.randrange(96)
        logits = read_tree(kind, cache, anchor, tree)
        row = dice.randrange(tree.rows)
        cache.keep_path(tree.path_to(row))
        tokens = [*tokens, anchor, *tree.paths()[row]]
        if number % 3 == 0:
            fresh = TargetCache(caches.layers_of(kind))
            wanted = caches.read(target, fresh, tokens)
            if kind not in caches.STEPPED:
                size = float(np.abs(np.array(wanted)).max())
                assert tiny.apart(logits[row], wanted) < caches.EXACT * max(1.0, size)
            caches.assert_same(target, kind, cache, tokens)
        if number % 4 == 0:  # what a chain may leave behind a tree
            block = [dice.randrange(96) for _ in range(dice.randint(1, 9))]
            cache.tape(True)
            caches.read(target, cache, block)
            kept = dice.randint(0, len(block))
            cache.rewind(len(tokens) + kept)
            tokens += block[:kept]


@every_kind
def test_random_trees(kind: str) -> None:
    """Committed caches equal a fresh prefill, and so do the logits of every path."""
    grow(kind, SOME_TREES)


@pytest.mark.slow
@tiny.exhaustive
@every_kind
def test_thousand_random_trees(kind: str) -> None:
    grow(kind, TREES)


def chain_of(count: int) -> Tree:
    depths = tuple(range(1, count + 1))
    return Tree(tuple(range(10, 10 + count)), tuple(range(count)), depths, (0.0,) * count)


@every_kind
def test_a_tree_that_is_not_kept_leaves_no_trace(kind: str) -> None:
    """A rewind to before the pass is exact; to within it, and what is no path, is refused."""
    target, tokens = caches.target_of(kind), tiny.prompt_of(20)
    for broken_off in (False, True):
        cache = TargetCache(caches.layers_of(kind))
        caches.read(target, cache, tokens)
        if broken_off:
            with pytest.raises(KeyboardInterrupt), cache.reading(FORK):
                raise KeyboardInterrupt
        else:
            read_tree(kind, cache, 3, FORK)
            for length in (21, 22, 24):
                assert not cache.can_rewind(length)
                with pytest.raises(RewindError):
                    cache.rewind(length)
        for rows in ((), (1,), (0, 3), (0, 1, 3), (0, 9), (0, 0)) if not broken_off else ((0, 1),):
            with pytest.raises(RewindError):
                cache.keep_path(rows)
        assert cache.tree is None
        assert all("make_mask" not in vars(c) for c in flat(cache.layers))
        cache.rewind(20)
        caches.assert_same(target, kind, cache, tokens)
        with pytest.raises(RewindError):
            cache.keep_path((0,))
        logits = caches.read(target, cache, [9, 8])
        fresh = TargetCache(caches.layers_of(kind))
        caches.read(target, fresh, tokens)
        assert mx.array_equal(logits, caches.read(target, fresh, [9, 8]))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_chains_are_not_touched(family: str) -> None:
    """After a target has read trees its plain passes are bit by bit what they were before."""
    target = tiny.make_target(family)
    tokens = mx.array([tiny.prompt_of(20)])
    before = target.forward(tokens, target.make_cache())[0]
    cache = target.make_cache()
    with cache.reading(chain_of(4)):
        target.forward(mx.array([[1, 10, 11, 12, 13]]), cache)
    assert mx.array_equal(target.forward(tokens, target.make_cache())[0], before)
    assert (
        mx.array_equal(target.model(tokens), before)
        or tiny.apart(target.model(tokens), before) < 1e-4
    )


def test_chunked_caches() -> None:
    """A chunked cache keeps a path too; its front may be cut before the pass."""
    for reads in ([5], [20, 6]):
        cache = TargetCache([caches.chunked(reads)])
        layer, start = cache.layers[0], sum(reads)
        with cache.reading(FORK):
            layer.maybe_trim_front()
            mask = layer.make_mask(4)
            keys = mx.array([90.0, 91, 92, 93]).reshape(1, 1, 4, 1)
            layer.update_and_fetch(keys, keys)
        held = start - layer.start_position
        assert mask[:, :held].all()
        assert mask[:, held:].tolist() == FORK.ancestors().tolist()
        cache.keep_path((0, 2, 3))
        rows = layer.keys_and_values()[1].flatten().tolist()
        assert rows == [*range(start - held, start), 90, 92, 93]
        assert layer.offset == start + 3


ROPES: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"type": "linear", "factor": 4.0},
    "dynamic": {"type": "dynamic", "factor": 2.0},
    "llama3": {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64},
    "yarn": {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64},
    "longrope": {
        "type": "longrope",
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
    },
    "proportional": {"type": "proportional", "partial_rotary_factor": 0.5},
}


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("traditional", [False, True])
def test_rotary_embeddings(kind: str, traditional: bool) -> None:
    """Every kind that mlx-lm has turns a row of a tree as it turns the token of that position."""
    rope: Any = initialize_rope(16, 10000.0, traditional, ROPES[kind], 4096)
    now: list[TreePass] = []
    planted = PassRope(rope, lambda: now[0] if now else None)
    x = mx.random.normal((1, 3, 25, 16), key=mx.random.key(1))
    assert mx.array_equal(planted(x, offset=9), rope(x, offset=9))
    tree = random_tree(random.Random(1))
    now.append(TreePass(tree))
    x = x[:, :, : tree.rows]
    for offset in (0, 700, mx.array(33)):
        turned = planted(x, offset=offset)
        for row, depth in enumerate((0, *tree.depths)):
            place = int(np.array(offset)) + depth
            assert (
                tiny.apart(turned[:, :, row : row + 1], rope(x[:, :, row : row + 1], offset=place))
                < 1e-5
            )


def test_every_rotary_embedding_is_reached() -> None:
    """Layers, indexers and the tables that layers share on the CPU: none is left as it was."""
    for family in tiny.FAMILIES:
        target = tiny.make_target(family)
        wrap_ropes(target.model, lambda: None)
        left = [
            name
            for path, module in target.model.named_modules()
            for name, child in module.children().items()
            if "rope" in type(child).__name__.lower() and not isinstance(module, PassRope)
            if not isinstance(child, PassRope) and path
        ]
        assert not left
