"""MTP heads: the golden reference, a plain computation, exactness, what is kept of a sequence."""

import json
from collections.abc import Callable
from importlib import import_module
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from engines import recorded_drafts
from feature_texts import Text
from mtp_heads import GOLDEN, random_head

from dflash_mlx import api
from dflash_mlx.drafters.chain import Chains
from dflash_mlx.drafters.feature_head import FeatureCache
from dflash_mlx.drafters.mtp.drafter import MTPDrafter
from dflash_mlx.models.packed import SequenceRows
from dflash_mlx.pair import Pair, load
from dflash_mlx.speculation.tree import best_first

useless_drafter: Callable[[Pair], str] = import_module(
    "dflash_mlx.cli.backend.local"
).useless_drafter
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
FAMILIES = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


def golden_pair() -> Pair:
    return load(GOLDEN / "target", "mtp", cache_ram=0)


@pytest.fixture(scope="module")
def golden() -> Pair:
    return golden_pair()


def check_golden(
    pair: Pair, depth: int, prompts: range = range(4), case: dict[str, Any] = EXPECTED
) -> None:
    """Tokens, drafts and the tokens of each verify are the reference's, except for the last."""
    expected = case["depths"][str(depth)]
    with recorded_drafts() as seen:
        for number in prompts:
            seen.clear()
            prompt = case["prompts"][number]
            limit = case["max_new_tokens"]
            found = api.generate(
                pair, prompt, mode="dflash", max_tokens=limit, block_size=depth + 1
            )
            assert found.tokens == case["greedy_tokens"][number]
            last = len(found.stats.committed) - 1
            assert last > 5
            assert found.stats.committed[:last] == expected["committed"][number][:last]
            assert seen[:last] == expected["drafts"][number][:last]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_drafts_of_the_reference(golden: Pair, depth: int) -> None:
    """Which is PyTorch code from the published equations, with chains of one to three drafts."""
    check_golden(golden, depth)


@pytest.mark.parametrize("name", ["mtp_qwen3_next", "mtp_qwen35_moe"])
def test_drafts_of_the_reference_with_experts(name: str) -> None:
    """Mixtures, whose layers are transformers' own: experts one by one, and fused."""
    folder = tiny.GOLDEN / name
    case = json.loads((folder / "expected.json").read_text())
    pair = load(folder / "target", "mtp", cache_ram=0)
    for depth in (1, 2, 3):
        check_golden(pair, depth, case=case)


def check_trees(source: MTPDrafter) -> None:
    """The trees of two sequences are the likeliest paths by the distributions of each one's chain.

    All paths are compared: the position's likeliest tokens after those of the positions before.
    """
    text, nodes = Text(source, tiny.BASE["hidden_size"]), 12
    source.model.norm.weight *= 8  # so that some drafts are likelier than others
    prompts, anchors = [tiny.prompt_of(9), tiny.prompt_of(23, 1)], [3, 5]
    blocks = source.draft([text.fresh(prompt) for prompt in prompts], anchors, 4)
    for prompt, anchor, block in zip(prompts, anchors, blocks, strict=True):
        _, logits = Chains(source, [text.fresh(prompt)], [anchor], 3).greedy
        logs = np.array(logits[:, 0] - mx.logsumexp(logits[:, 0], axis=-1, keepdims=True))
        best = np.argsort(-logs, axis=-1)[:, :nodes].tolist()
        ways = [way for length in (1, 2, 3) for way in product(*best[:length])]
        sums = {way: sum(logs[place][token] for place, token in enumerate(way)) for way in ways}
        tree = best_first(block.top_tokens(nodes).to_host(), nodes)
        found = [tuple(tree.tokens[row - 1] for row in tree.path_to(n)[1:]) for n in range(1, 13)]
        assert max(map(len, found)) > 1
        assert sorted(found) == sorted(sorted(sums, key=lambda way: -sums[way])[:nodes])


@pytest.mark.parametrize("family", FAMILIES)
def test_trees_are_of_the_heads_own_distributions(family: str) -> None:
    """Which its drafts of one chain have left, for each sequence of a pass."""
    check_trees(random_head(tiny.make_target(family)))


def test_the_final_norm_is_a_tap() -> None:
    """All rows of it, whatever logits are wanted; joined with layers; and the logits stay."""
    target = tiny.make_target("qwen3_5")
    tokens = mx.array([tiny.prompt_of(9)])
    wanted = tiny.body_of(target)(tokens)
    logits, none = target.forward(tokens, None)
    assert none.shape[-1] == 0
    target.tap((target.layers, 2))
    rows = SequenceRows(target.make_cache(), tokens[0], tape=False, last=True)
    (found,) = target.read([rows])
    size = target.hidden_size
    assert tiny.apart(found.taps[..., :size], wanted) < 1e-5
    assert tiny.apart(target.parts.norm(found.taps[..., size:]), wanted) < 1e-5
    assert tiny.apart(found.logits, logits[0, -1:]) < 1e-5
    assert found.logits.shape[0] == 1


def drafts_of(cache: FeatureCache, anchor: int) -> list[int]:
    (block,) = cache.source.draft([cache], [anchor], 5)
    return np.array(block.greedy().tokens).tolist()


def test_a_head_that_agrees_with_nothing_is_a_suspect(golden: Pair) -> None:
    """After the texts that it reads; a head that was read rightly agrees often."""
    pair = golden_pair()
    assert isinstance(pair.drafter, MTPDrafter)
    text = [*EXPECTED["prompts"][1], *EXPECTED["greedy_tokens"][1]]
    api.generate(pair, text, mode="dflash", max_tokens=4)
    agreement = pair.drafter.agreement
    assert 24 <= agreement.compared <= 70
    assert agreement.agreed > 0.4 * agreement.compared
    assert pair.drafter.suspect() is None
    wrong = golden_pair()
    assert wrong.drafter is not None
    norm = wrong.drafter.model.norm
    norm.weight = -norm.weight
    mx.eval(norm.weight)  # another thread reads it
    api.generate(wrong, text, mode="dflash", max_tokens=4)
    assert "its tensors are not what they seem: it agrees with" in (wrong.drafter.suspect() or "")
    assert "its tensors are not what they seem" in useless_drafter(wrong)
    assert "not what they seem" not in useless_drafter(pair)


def test_comparing_stops() -> None:
    """A head is compared with the first texts only, and with the ends of long ones."""
    source = random_head(tiny.make_target("qwen3_5"))
    text = Text(source, tiny.BASE["hidden_size"])
    for _ in range(6):
        cache = text.fresh(tiny.prompt_of(200))
        drafts_of(cache, 3)
        source.agreement.settle()
    assert 256 <= source.agreement.compared < 256 + 64
