"""DDTree changes speed, never the answer: trees in every family's caches, at any temperature.

A tree verify must give each node the logits that the target gives after its path alone, and the
caches must end as if only the accepted path had been read. The faults at the end break just that.
"""

import random
from collections.abc import Callable, Sequence
from itertools import cycle
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
import test_cache as caches
import test_lossless as lossless
import test_sampling as laws
import tiny
from mlx_lm.models.cache import RotatingKVCache
from mlx_lm.models.rope_utils import initialize_rope

from dflash_mlx import api, branch, layer_cache, recurrent
from dflash_mlx.acceptance import Match, make_rule
from dflash_mlx.branch import Branch, TreeRope
from dflash_mlx.cache import TargetCache
from dflash_mlx.calibration import Confidence
from dflash_mlx.context import Context
from dflash_mlx.drafter import Drafter
from dflash_mlx.errors import DFlashError, RewindError, UsageError
from dflash_mlx.pair import Pair
from dflash_mlx.policy import Fixed
from dflash_mlx.proposal import propose
from dflash_mlx.sampling import Shaper
from dflash_mlx.session import Session
from dflash_mlx.tree import Tree, best_first
from dflash_mlx.types import Plan, SamplingParams

BUDGETS = (1, 4, 15, 16, 64)
SHORT, LONG = lossless.SHORT, lossless.LONG
TREES, SOME_TREES = 1000, 15
every_family = pytest.mark.parametrize("family", tiny.FAMILIES)
every_kind = pytest.mark.parametrize("kind", caches.KINDS)


def tree_policy(budget: int) -> Fixed:
    """The same tree size every round."""
    return Fixed(Plan(budget + 1, tree=True))


def width_of(pair: Pair) -> int:
    """A pair's block size."""
    assert pair.drafter is not None
    return pair.drafter.config.block_size


@pytest.mark.parametrize("case", tiny.CASES)
def test_golden_answers(case: str) -> None:
    """The authors' greedy answers, token for token: at two budgets, or at all of them."""
    pair, expected = tiny.golden_pair(case), tiny.expected(case)
    prompts = expected["prompts"]
    shorter = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
    for budget in BUDGETS if tiny.ALL else (4, 16):
        for number in shorter if tiny.ALL else shorter[:2]:
            result = api.generate(
                pair,
                prompts[number],
                max_tokens=expected["max_new_tokens"],
                mode="ddtree",
                tree_budget=budget,
            )
            assert result.tokens == expected["greedy_tokens"][number]
            assert result.finish_reason == expected["finish_reasons"][number]
            assert len(result.stats.accepted_by_position) < width_of(pair)
            if budget == 64:
                assert result.stats.acceptance_length >= expected["tau"][number]


@pytest.mark.parametrize("case", tiny.CASES)
def test_a_seeded_tree_commits_what_the_chain_commits(case: str) -> None:
    """Round by round from the same state: a tree as large as the chain, with the chain in it."""
    pair, expected = tiny.golden_pair(case), tiny.expected(case)
    width, rule = width_of(pair), Match(SamplingParams(), pair.target.vocab_size)
    more = 0
    for prompt in expected["prompts"][: None if tiny.ALL else 1]:
        context = Context(pair.target, pair.drafter)
        anchor = rule.first(context.read(prompt, tiny.silent), prompt)
        for _ in range(12):
            said = []
            for plan in (Plan(width, tree=True, chain_seed=True), Plan(2 * width, True, True)):
                offer = propose(context, rule, anchor, width, Fixed(plan), width)
                logits, _ = offer.verify(context, anchor)
                said.append(offer.judge(rule, logits, context.history(anchor)).tokens)
                context.target_cache.rewind(len(context.tokens))
            offer = propose(context, rule, anchor, width, Fixed(Plan(width)), width)
            logits, taps = offer.verify(context, anchor)
            verdict = offer.judge(rule, logits, context.history(anchor))
            assert said[0] == verdict.tokens
            assert said[1][: len(verdict.tokens)] == verdict.tokens
            more += len(said[1]) > len(verdict.tokens)
            context.commit(anchor, verdict.tokens, taps)
            anchor = verdict.bonus
    assert more


class Hinted(tiny.ScriptedCache):
    """Knows the text, but often likes one or two other tokens better: paths branch off."""

    def draft_logits(self, anchor: int, width: int) -> mx.array:
        """Logits of positions offset + 1 to offset + width - 1."""
        right = super().draft_logits(anchor, width)
        tokens = np.array(mx.argmax(right, axis=-1))
        logits = np.array(mx.zeros_like(right))
        for slot, token in enumerate(tokens.tolist()):
            others = (self.offset + slot) % 3
            for place, liked in enumerate((token + 7, token + 3)[:others]):
                logits[slot, liked % self.vocab] = 8.6 - place * 0.3
            logits[slot, token] = 8.0
        return mx.array(logits)


def hinted_drafter(text: Sequence[int]) -> Drafter:
    """A drafter of that kind."""
    fake = SimpleNamespace(
        config=SimpleNamespace(block_size=8),
        make_cache=lambda: Hinted(text, wrong=False, vocab=tiny.VOCAB, strict=True),
    )
    return cast(Drafter, fake)


def drafter_of(kind: str, family: str, prompt: list[int], wanted: list[int]) -> Drafter:
    """One of the drafters, for this prompt."""
    if kind == "hinted":
        return hinted_drafter(prompt + wanted)
    return lossless.drafter_of(kind, family, prompt, len(wanted))


def check(family: str, kind: str, prompt: list[int], budget: int, **options: Any) -> list[int]:
    """Hold one greedy answer against stock mlx-lm's; return the tokens committed per verify."""
    options = {"block_size": 8, "max_tokens": lossless.LENGTH, **options}
    wanted = lossless.stock(family, tuple(prompt), options["max_tokens"])
    blocks = tiny.speculate(
        lossless.target_of(family),
        drafter_of(kind, family, prompt, wanted),
        prompt,
        policy=tree_policy(budget),
        **options,
    )
    assert tiny.joined(blocks) == wanted
    assert all(block.drafted <= budget for block in blocks)
    assert all(block.depth < options["block_size"] for block in blocks)
    return [len(block.tokens) for block in blocks[1:]]


@every_family
def test_families(family: str) -> None:
    """Whatever the drafter says, on every family, before and after its windows are full."""
    number = lossless.NUMBERS[family]
    for turn, kind in enumerate(("random", "random2", "right", "wrong", "hinted")):
        budget = (5, 16, 33)[(number + turn) % 3]
        committed = check(family, kind, (SHORT, LONG)[(number + turn) % 2], budget)
        assert max(committed) > {"right": 4, "hinted": 1}.get(kind, 0)
    if tiny.ALL:
        for kind in ("random", "random2", "right", "wrong", "hinted"):
            for prompt in (SHORT, LONG):
                for budget in (1, 2, 7, 16, 64):
                    for block_size in (2, 5, 16, 2 * tiny.WINDOW + 3):
                        check(family, kind, prompt, budget, block_size=block_size)


@pytest.mark.parametrize("family", ["qwen3_5", "gpt_oss", "gemma4_unified", "glm_moe_dsa"])
def test_long_answers(family: str) -> None:
    """Answers longer than every window and the indexer's reach; trees deeper than the window."""
    for kind, block_size, budget in (("right", 2 * tiny.WINDOW + 3, 40), ("hinted", 8, 24)):
        committed = check(family, kind, SHORT, budget, block_size=block_size, max_tokens=45)
        assert max(committed) > (tiny.WINDOW if kind == "right" else 2)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "gpt_oss"])
def test_plans_in_turn(family: str) -> None:
    """Plain steps, chains of every length and trees, mixed in one answer, under every drafter."""
    dice = random.Random(3)

    class Dice(Fixed):
        """A plain step, a chain or a tree, by chance; some after a look."""

        @property
        def most_nodes(self) -> int:
            return 30

        def drafts(self, room: int) -> bool:
            return dice.random() < 0.7

        def looks(self) -> bool:
            return dice.random() < 0.5

        def plan(self, confidence: Confidence | None, room: int) -> Plan:
            found = Plan(dice.randint(2, 30), True)
            if confidence is not None and dice.random() < 0.5:
                assert confidence.grow is not None
                assert len(confidence.grow().logs) >= found.rows - 1
                return found
            return Plan(dice.randint(2, 8)) if confidence or dice.random() < 0.5 else found

    for kind in ("random2", "right", "hinted"):
        wanted = lossless.stock(family, tuple(LONG), 40)
        drafter = drafter_of(kind, family, LONG, wanted)
        blocks = tiny.speculate(
            lossless.target_of(family),
            drafter,
            LONG,
            block_size=8,
            max_tokens=40,
            policy=Dice(Plan(1)),
        )
        assert tiny.joined(blocks) == wanted
        assert {block.drafted > 0 for block in blocks[1:]} == {True, False}


def test_a_short_chain_is_the_start_of_the_long_one() -> None:
    """A chain of k rows is the block's first k, drafted as ever: with the whole block."""
    family, width = "llama", 8
    target = lossless.target_of(family)
    context, rule = (
        Context(target, tiny.random_drafter(target)),
        Match(SamplingParams(), tiny.VOCAB),
    )
    anchor = rule.first(context.read(SHORT, tiny.silent), SHORT)
    whole: Any = propose(context, rule, anchor, width, Fixed(Plan(width)), width)
    for rows in range(2, width):
        part: Any = propose(context, rule, anchor, width, Fixed(Plan(rows)), width)
        assert part.draft.tokens.tolist() == whole.draft.tokens.tolist()[: rows - 1]
    sampled = make_rule("block", SamplingParams(1.0, seed=1), tiny.VOCAB)
    part = propose(context, sampled, anchor, width, Fixed(Plan(4)), width)
    assert part.draft.probabilities.shape == (3, tiny.VOCAB)


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
    """A pass over a tree: logits [R, V]."""
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
        cache.pick(tree.path_to(row))
        tokens = [*tokens, anchor, *tree.paths()[row]]
        if number % 3 == 0:
            fresh = TargetCache(caches.layers_of(kind))
            wanted = caches.read(target, fresh, tokens)
            if kind != "quantised":
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
    """After 1,000 of them nothing has drifted."""
    grow(kind, TREES)


def sibling_visible(patch: pytest.MonkeyPatch) -> None:
    """A fault: a row sees every row before it."""
    patch.setattr(Tree, "ancestors", lambda self: np.tril(np.ones((self.rows, self.rows), bool)))


def depth_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A fault: nodes stand one position too far."""
    honest = Branch.__init__

    def init(self: Branch, tree: Tree) -> None:
        honest(self, tree)
        self.depths = self.depths + (self.depths > 0)

    patch.setattr(Branch, "__init__", init)


def rows_for_depths(patch: pytest.MonkeyPatch) -> None:
    """A fault: nodes stand where they would in a chain."""
    honest = Branch.__init__

    def init(self: Branch, tree: Tree) -> None:
        honest(self, tree)
        self.depths = mx.arange(tree.rows)

    patch.setattr(Branch, "__init__", init)


def wrong_order(patch: pytest.MonkeyPatch) -> None:
    """A fault: rows are put together in the wrong order."""
    honest = layer_cache.pick
    patch.setattr(
        "dflash_mlx.cache.pick", lambda c, rows, n: honest(c, (*rows[:-2], *rows[:-3:-1]), n)
    )


def first_rows(patch: pytest.MonkeyPatch) -> None:
    """A fault: the path's rows are taken to be the first ones."""
    honest = layer_cache.pick
    patch.setattr("dflash_mlx.cache.pick", lambda c, rows, n: honest(c, tuple(range(len(rows))), n))


def state_of_the_row_before(patch: pytest.MonkeyPatch) -> None:
    """A fault: the recurrence runs through the rows as if they were a chain."""

    def grow(net: Any, *fed: Any) -> mx.array:
        return recurrent.update(net, *fed[:-1])[0]

    patch.setattr(recurrent, "grow", grow)


def convolution_of_the_rows_before(patch: pytest.MonkeyPatch) -> None:
    """A fault: the convolution's window is that of a chain."""

    def windows(self: Branch, size: int) -> mx.array:
        return mx.arange(self.tree.rows)[:, None] + mx.arange(size)

    patch.setattr(Branch, "windows", windows)


def window_of_rows(patch: pytest.MonkeyPatch) -> None:
    """A fault: a sliding window counts rows, not how deep they are."""
    honest = Branch.mask

    def mask(self: Branch, held: int, window: int | None) -> mx.array:
        depths, self.depths = self.depths, mx.arange(self.tree.rows)
        found = honest(self, held, window)
        self.depths = depths
        return found

    patch.setattr(Branch, "mask", mask)


FAULTS = [
    *[(sibling_visible, kind) for kind in ("qwen3", "gpt_oss", "glm_moe_dsa", "quantised")],
    *[(depth_off_by_one, kind) for kind in ("llama", "gemma4_unified", "deepseek_v3", "minimax")],
    *[(rows_for_depths, kind) for kind in ("qwen3", "glm_moe_dsa", "muse_glimmer")],
    *[(wrong_order, kind) for kind in ("qwen3", "llama_sliding", "qwen3_next", "quantised")],
    *[(first_rows, kind) for kind in ("kimi_k25", "gemma4", "qwen3_5")],
    *[(state_of_the_row_before, kind) for kind in ("qwen3_5", "qwen3_next")],
    *[(convolution_of_the_rows_before, kind) for kind in ("qwen3_5_moe", "qwen3_next")],
    *[(window_of_rows, kind) for kind in ("gpt_oss", "gemma4_text", "muse_glimmer")],
]


@pytest.mark.parametrize(("fault", "kind"), FAULTS)
def test_faults_are_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The random trees can fail: each planted fault gives other logits, rows or states."""
    fault(monkeypatch)
    with pytest.raises((AssertionError, RewindError)):
        grow(kind, SOME_TREES)


def chain_of(count: int) -> Tree:
    """Nodes one after another."""
    depths = tuple(range(1, count + 1))
    return Tree(tuple(range(10, 10 + count)), tuple(range(count)), depths, (0.0,) * count)


FORK = Tree((5, 6, 7), (0, 0, 2), (1, 1, 2), (0.0, 0.0, 0.0))


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
                cache.pick(rows)
        assert cache.branch is None
        assert all("make_mask" not in vars(c) for c in layer_cache.members(cache.layers))
        cache.rewind(20)
        caches.assert_same(target, kind, cache, tokens)
        with pytest.raises(RewindError):
            cache.pick((0,))
        logits = caches.read(target, cache, [9, 8])
        fresh = TargetCache(caches.layers_of(kind))
        caches.read(target, fresh, tokens)
        assert mx.array_equal(logits, caches.read(target, fresh, [9, 8]))


@every_family
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
        cache.pick((0, 2, 3))
        rows = layer.keys_and_values()[1].flatten().tolist()
        assert rows == [*range(start - held, start), 90, 92, 93]
        assert layer.offset == start + 3


def test_windows_with_first_rows_of_their_own() -> None:
    """What mlx-lm keeps for ever apart from a full window cannot be picked from: it is refused."""
    ring: Any = RotatingKVCache(8, keep=2)
    for count, refused in ((3, False), (9, True)):
        cache = TargetCache([ring])
        rows = mx.ones((1, 1, count, 1))
        ring.update_and_fetch(rows, rows)
        start = ring.offset
        with cache.reading(FORK):
            ring.update_and_fetch(mx.ones((1, 1, 4, 1)), mx.ones((1, 1, 4, 1)))
        if refused:
            with pytest.raises(RewindError):
                cache.pick((0, 2, 3))
            assert ring.offset == start + 4
        else:
            cache.pick((0, 2, 3))
            assert ring.offset == start + 3


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
    now: list[Branch] = []
    planted = TreeRope(rope, lambda: now[0] if now else None)
    x = mx.random.normal((1, 3, 25, 16), key=mx.random.key(1))
    assert mx.array_equal(planted(x, offset=9), rope(x, offset=9))
    tree = random_tree(random.Random(1))
    now.append(Branch(tree))
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
        branch.plant(target.model, lambda: None)
        left = [
            name
            for path, module in target.model.named_modules()
            for name, child in module.children().items()
            if "rope" in type(child).__name__.lower() and not isinstance(module, TreeRope)
            if not isinstance(child, TreeRope) and path
        ]
        assert not left


def tree_surprise(
    tables: Any, params: SamplingParams, budget: int, rule: type[Match] = Match, count: int = 20_000
) -> float:
    """How far a tree's outputs are off the target's law, many at once."""
    tree = best_first(tables.slots.top(budget).to_host(), budget)
    judge = rule(params, tables.vocab)
    logits = mx.stack([tables.rows[len(path)][path] for path in tree.paths()])
    rows = judge.shaper.penalise_paths(logits, tables.history, tree.paths())

    def choose(key: mx.array) -> mx.array:
        judge.draws = laws.OneKey(key)  # type: ignore[assignment]
        return judge.choose(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx.random, "categorical", laws.gumbel_categorical)
        many: Any = mx.vmap(choose)(mx.random.split(mx.random.key(11), count)).tolist()
    tokens, kept = np.zeros((count, tables.width), dtype=int), np.zeros(count, dtype=int)
    for number, chosen in enumerate(many):
        path, bonus = tree.walk(chosen)
        said = [*[tree.tokens[row - 1] for row in path], bonus]
        tokens[number, : len(said)], kept[number] = said, len(path)
    assert tree.rows == budget + 1
    assert kept.mean() > 0.3
    laws.fill(tokens, kept, tables, params)
    counts = np.zeros((tables.vocab,) * tables.width)
    np.add.at(counts, tuple(tokens.T), 1)
    return laws.surprise(counts, laws.joint(laws.stock_law(tables, params)))


@laws.every_drafter
@pytest.mark.parametrize("setting", ["plain", "top_k_top_p", "presence", "frequency", "everything"])
def test_tree_law(setting: str, drafter: str) -> None:
    """One tree keeps the law under every setting, penalties by each row's own path."""
    params = laws.SETTINGS[setting]
    for budget in (4, 11):
        assert tree_surprise(laws.tables_of(drafter), params, budget) < laws.LIMIT


def walk_one_too_far(patch: pytest.MonkeyPatch) -> None:
    """A fault: where the walk ends, the first child stays all the same."""
    honest = Tree.walk

    def walk(self: Tree, chosen: Sequence[int]) -> tuple[tuple[int, ...], int]:
        path, bonus = honest(self, chosen)
        row = path[-1] if path else 0
        more = [r for r, parent in enumerate(self.parents, 1) if parent == row][:1]
        return (*path, *more), chosen[more[0]] if more else bonus

    patch.setattr(Tree, "walk", walk)


def walk_with_another_sample(patch: pytest.MonkeyPatch) -> None:
    """A fault: the bonus is not what the row chose, but a second choice of the same kind."""
    honest = Tree.walk

    def walk(self: Tree, chosen: Sequence[int]) -> tuple[tuple[int, ...], int]:
        path, _ = honest(self, chosen)
        return path, chosen[0]

    patch.setattr(Tree, "walk", walk)


def walk_among_siblings(patch: pytest.MonkeyPatch) -> None:
    """A fault: a token is looked for among all nodes of a depth, whoever their parent is."""

    def walk(self: Tree, chosen: Sequence[int]) -> tuple[tuple[int, ...], int]:
        row, path = 0, []
        places = list(zip(self.depths, self.tokens, strict=True))
        while (len(path) + 1, chosen[row]) in places:
            row = places.index((len(path) + 1, chosen[row])) + 1
            path.append(row)
        return tuple(path), chosen[row]

    patch.setattr(Tree, "walk", walk)


@pytest.mark.parametrize("drafter", ["dflash", "dflash2"])
@pytest.mark.parametrize("fault", [walk_one_too_far, walk_with_another_sample, walk_among_siblings])
def test_broken_walks_are_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: it sees each of these faults."""
    fault(monkeypatch)
    tables = laws.tables_of(drafter)
    assert tree_surprise(tables, laws.PLAIN, 11, count=60_000) > 3 * laws.LIMIT


def test_penalties_of_other_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is penalised for its siblings' tokens breaks the law."""
    honest = Shaper.penalise_paths

    def by_row(self: Shaper, logits: mx.array, history: list[int], paths: Any) -> mx.array:
        drafts = [path[-1] for path in paths[1:]]
        return honest(self, logits, history, [drafts[:row] for row in range(len(paths))])

    monkeypatch.setattr(Shaper, "penalise_paths", by_row)
    params = laws.SETTINGS["frequency"]
    assert tree_surprise(laws.tables_of("dflash"), params, 11) > 3 * laws.LIMIT


@pytest.mark.slow
@laws.every_drafter
@pytest.mark.parametrize("setting", ["golden", "everything"])
def test_golden_law(setting: str, drafter: str) -> None:
    """Whole answers of a real pair: with top-k and top-p, and with every filter and penalty."""
    prompt, params, _ = laws.golden_settings()[3]
    params = params if setting == "golden" else laws.SETTINGS["everything"]
    policy = tree_policy(9)
    found = laws.answer_surprise("match", prompt, params, 120, drafter=drafter, policy=policy)
    assert found < laws.LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(("family", "count"), [("qwen3_5", 120), ("gpt_oss", 250)])
def test_answers_of_other_caches(family: str, count: int) -> None:
    """Whole answers of a hybrid and of a target whose windows are full when it begins."""
    prompt = [token % 9 for token in tiny.prompt_of(tiny.WINDOW + 8)]
    params = SamplingParams(temperature=1.2, top_k=6, top_p=0.95)
    found = laws.answer_surprise(
        "match", prompt, params, count, family=family, policy=tree_policy(9)
    )
    assert found < laws.LIMIT


@pytest.mark.slow
@laws.every_rule
def test_law_of_mixed_plans(rule: str) -> None:
    """Plain steps and chains of every length in turn keep the law under every rule."""

    class Cycle(Fixed):
        """One plan after another; no draft for a plain step."""

        def drafts(self, room: int) -> bool:
            self._plan = next(plans)
            return self._plan.rows > 1

    plans = cycle([Plan(3), Plan(1), Plan(2), Plan(4)])
    prompt, params, _ = laws.golden_settings()[3]
    found = laws.answer_surprise(rule, prompt, params, 120, policy=Cycle(Plan(1)))
    assert found < laws.LIMIT


@pytest.mark.parametrize("fault", [walk_one_too_far, state_of_the_row_before])
def test_broken_answers_are_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred answers are enough to see a fault in the walk, or in a state."""
    fault(monkeypatch)
    prompt = [token % 9 for token in tiny.prompt_of(tiny.WINDOW + 8)]
    params = SamplingParams(temperature=1.2, top_k=6, top_p=0.95)
    found = laws.answer_surprise(
        "match", prompt, params, 150, family="qwen3_5", policy=tree_policy(9)
    )
    assert found > laws.LIMIT


def test_seeds() -> None:
    """The same seed gives the same tokens, other seeds others; NaN logits are refused."""

    def answer(seed: int) -> list[int]:
        sampling = SamplingParams(temperature=1.5, seed=seed)
        pair = laws.golden("dflash")
        return api.generate(
            pair, [1, 5, 6, 0], sampling=sampling, max_tokens=24, mode="ddtree", tree_budget=9
        ).tokens

    first = [answer(seed) for seed in range(4)]
    assert first == [answer(seed) for seed in range(4)]
    assert len({tuple(tokens) for tokens in first}) == 4
    with pytest.raises(DFlashError, match="NaN"):
        Match(SamplingParams(), 9).walk(FORK, mx.full((4, 9), mx.nan), [1])


# The session.


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"tree_budget": 0}, "tree_budget cannot be 0"),
        ({"tree_budget": 1025}, "tree_budget cannot be 1025"),
        ({"accept": "token"}, "'token' judges chains"),
        ({"accept": "block", "sampling": SamplingParams(1.0)}, "'block' judges chains"),
        ({"accept": "x"}, "'x'"),
        ({"mode": "dflash", "tree_budget": 8}, "tree_budget says nothing"),
        ({"mode": "baseline", "tree_budget": 8}, "tree_budget says nothing"),
        ({"mode": "dflash", "chain_seed": True}, "chain_seed says nothing"),
        ({"mode": "tree"}, "no mode 'tree'"),
    ],
)
def test_wrong_usage(options: dict[str, Any], part: str) -> None:
    """What a mode does not know is refused in one sentence, and nothing is ignored."""
    with pytest.raises(UsageError) as caught:
        api.generate(laws.golden("dflash"), [1, 2], **{"mode": "ddtree", **options})
    assert part in caught.value.message
    assert caught.value.hint


def test_budgets_and_counts() -> None:
    """The default budget is 32; drafts are nodes, and acceptance is counted by depth."""
    pair, expected = tiny.golden_pair("qwen3_full"), tiny.expected("qwen3_full")
    prompt, width = expected["prompts"][0], width_of(pair)
    options: dict[str, Any] = {"max_tokens": 40, "mode": "ddtree"}
    default = api.generate(pair, prompt, **options).stats
    same = api.generate(pair, prompt, tree_budget=32, **options).stats
    assert default.committed == same.committed
    assert default.drafted == 32 * default.verifies
    assert len(default.accepted_by_position) == width - 1
    assert sum(default.accepted_by_position) == default.accepted
    assert 0 <= default.accepted - sum(default.committed) + default.verifies <= 1  # cut at the end
    most = api.generate(pair, prompt, tree_budget=1024, **{**options, "max_tokens": 18})
    assert most.tokens == expected["greedy_tokens"][0][:18]
    assert most.stats.drafted > 500 * most.stats.verifies


@pytest.mark.parametrize("family", ["llama_sliding", "qwen3_5", "glm_moe_dsa"])
def test_a_conversation(family: str) -> None:
    """Turns, an answer that is broken off, and a change of mode in one context: read once."""
    target = lossless.target_of(family)
    pair = Pair(target, tiny.random_drafter(target), family, "random")
    session = Session(pair, mode="ddtree")
    prompt = LONG
    for turn in range(3):
        wanted = tiny.plain(target, prompt, 10, margin=0)
        stream = session.stream(prompt, max_tokens=10, tree_budget=12)
        blocks = [next(stream), next(stream)] if turn == 1 else list(stream)
        stream.close()
        said = tiny.joined(blocks)
        assert said == wanted[: len(said)]
        assert session.context.tokens == [*prompt, *said][:-1]
        if turn:
            assert session.stats.cached_tokens > 40
        prompt = [*prompt, *said, 7, 8]
