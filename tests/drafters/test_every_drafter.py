"""What holds for drafters of every kind: exact answers, caches of what was committed, prefixes."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import assistants
import eagle_heads
import mtp_heads
import numpy as np
import pytest
import tiny
from engines import check_plain
from feature_texts import check_cache

from dflash_mlx import api
from dflash_mlx.drafters.base import Drafter
from dflash_mlx.drafters.dflash.config import MARKOV_HEADS
from dflash_mlx.drafters.small_model import SmallModelDrafter
from dflash_mlx.engine.engine import Engine
from dflash_mlx.models.target import Target
from dflash_mlx.pair import Pair, load
from dflash_mlx.speculation.tree import best_first


def small_model(target: Target) -> Drafter:
    return SmallModelDrafter(tiny.make_target("qwen3"), target.vocab_size)


def dspark(target: Target, head: str) -> Drafter:
    return tiny.random_drafter(target, **tiny.dspark_settings(target, head))


EAGLE = tiny.GOLDEN / "eagle3"
EVERY_CACHE = ("qwen3", "qwen3_5", "gemma4", "gpt_oss")
# How a drafter is made, and targets with every kind of cache that it may have.
KINDS: dict[str, tuple[Callable[[Target], Drafter], tuple[str, ...]]] = {
    "small model": (small_model, EVERY_CACHE),
    "eagle3": (eagle_heads.random_head, EVERY_CACHE),
    "assistant": (assistants.random_assistant, ("gemma4", "gemma4_text", "gemma4_unified")),
    "mtp": (mtp_heads.random_head, ("qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3_5 kv8")),
    **{
        f"dspark {head}": (
            partial(dspark, head=head),
            ("qwen3", "qwen3_5", "gemma4", "qwen3_5 kv8"),
        )
        for head in MARKOV_HEADS
    },
}


@pytest.mark.parametrize(
    ("kind", "family"), [(kind, family) for kind, (_, all_of) in KINDS.items() for family in all_of]
)
def test_answers_are_those_of_plain_decoding(kind: str, family: str) -> None:
    """Chains, trees and seeded samples; sequences join and leave."""
    target = tiny.make_target(family)
    engine = Engine(target, KINDS[kind][0](target))
    engine.scheduler.prompt_chunks.sizes = {0: 7}
    check_plain(engine)


@pytest.mark.parametrize(
    ("kind", "family", "taps"),
    [
        ("small model", "qwen3", 0),
        ("eagle3", "qwen3", 3),
        ("mtp", "qwen3_5", 1),
        ("dspark rnn", "qwen3", 2),
    ],
)
def test_what_is_kept_is_what_was_committed(kind: str, family: str, taps: int) -> None:
    """At every round the drafts are those of a cache that read just what was committed."""
    source = KINDS[kind][0](tiny.make_target(family))

    def drafts_of(cache: Any, anchor: int) -> tuple[Any, ...]:
        block: Any = source.draft([cache], [anchor], 6)[0]
        tree = best_first(block.top_tokens(12).to_host(), 12)
        return np.array(block.greedy().tokens).tolist(), tree.tokens, tree.parents

    check_cache(source, taps * tiny.BASE["hidden_size"], drafts_of)


@pytest.mark.parametrize("kind", ["assistant", "eagle3", "mtp"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_prefix_comes_back(
    kind: str, restart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the cache of prefixes, in memory or on disk: the answer is as before, with drafts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    golden: Path = {"assistant": assistants.GOLDEN, "mtp": mtp_heads.GOLDEN}.get(kind, EAGLE)
    target = assistants.TARGET if kind == "assistant" else golden / "target"
    draft = {"assistant": golden / "dense", "mtp": "mtp"}.get(kind, golden / "draft")
    expected = json.loads((golden / "expected.json").read_text())

    def loaded() -> Pair:
        return load(target, draft, cache_ram=1 << 26, cache_disk=restart << 26)

    pair = loaded()
    if kind == "assistant":
        prompt = expected["texts"][0]
    elif kind == "eagle3":
        prompt = [*expected["prompts"][1], *expected["chain"][1]["tokens"]]
    else:
        prompt = [*expected["prompts"][3], *expected["greedy_tokens"][3]]
    first = api.generate(pair, prompt, mode="dflash", max_tokens=20)
    if pair.engine.prefix_cache.disk is not None:
        pair.engine.prefix_cache.disk.wait()
        pair = loaded()
    again = api.generate(pair, prompt, mode="dflash", max_tokens=20)
    assert again.stats.cached_tokens > len(prompt) // 2
    assert first.tokens == again.tokens
    assert again.stats.drafted > 0
    assert kind != "mtp" or first.stats.committed == again.stats.committed
