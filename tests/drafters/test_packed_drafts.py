"""Drafters that make one token after another draft for several sequences in the same passes."""

from collections.abc import Callable, Sequence
from typing import Any

import eagle_heads
import mlx.core as mx
import mtp_heads
import numpy as np
import pytest
import tiny
from feature_texts import Text

from dflash_mlx.drafters.chain import ChainDrafter
from dflash_mlx.drafters.eagle3.drafter import EagleDrafter
from dflash_mlx.drafters.mtp.model import MTPHead
from dflash_mlx.drafters.small_model import SmallModelDrafter
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams
from dflash_mlx.speculation.sampling import Draw, Shaper

HIDDEN = tiny.BASE["hidden_size"]
LENGTHS = 40, 3, 17, 1
ANCHORS = 5, 9, 2, 60
WIDTH = 6


def small_model() -> SmallModelDrafter:
    reader = tiny.make_target("qwen3")
    return SmallModelDrafter(reader, reader.vocab_size)


DRAFTERS: dict[str, tuple[Callable[[], Any], int]] = {  # and the width of the taps
    "small model": (small_model, 0),
    "eagle3": (lambda: eagle_heads.random_head(tiny.make_target("qwen3")), 3 * HIDDEN),
    "mtp": (lambda: mtp_heads.random_head(tiny.make_target("qwen3_5")), HIDDEN),
    "mtp with experts": (lambda: mtp_heads.random_head(tiny.make_target("qwen3_next")), HIDDEN),
}


def caches_of(drafter: ChainDrafter, width: int) -> list[Any]:
    """Caches of texts of different lengths; the last one has waited, and the second one waits."""
    text = Text(drafter, width)
    caches = [text.fresh(tiny.prompt_of(length)) for length in LENGTHS]
    mx.eval(caches[-1].state)
    return caches


def draws_of(vocab_size: int) -> list[Draw | None]:
    shaper = Shaper(SamplingParams(temperature=0.9, top_p=0.8), vocab_size)
    return [None, Draw(shaper, mx.random.key(4), []), None, Draw(shaper, mx.random.key(7), [])]


def drafted(
    drafter: ChainDrafter, caches: Sequence[Any], anchors: Sequence[int], draws: Any
) -> list[tuple[list[int], np.ndarray]]:
    found = []
    blocks: Any = drafter.draft(caches, anchors, WIDTH, draws)
    for block, draw in zip(blocks, draws, strict=True):
        draft = block.greedy() if draw is None else block.sample(draw)
        rows = block._likeliest[1] if draw is None else draft.probabilities
        found.append((np.array(draft.tokens).tolist(), np.array(rows)))
    return found


def check(kind: str) -> None:
    """Two rounds: the drafts of all sequences together are those of each one alone."""
    make, width = DRAFTERS[kind]
    drafter = make()
    together, alone = caches_of(drafter, width), caches_of(drafter, width)
    text = Text(drafter, width)
    for number in range(2):
        draws = draws_of(tiny.VOCAB)
        found = drafted(drafter, together, ANCHORS, draws)
        singles = zip(alone, ANCHORS, draws, strict=True)
        wanted = [drafted(drafter, [c], [anchor], [draw])[0] for c, anchor, draw in singles]
        for (tokens, rows), (others, other_rows) in zip(found, wanted, strict=True):
            assert tokens == others
            assert np.abs(rows - other_rows).max() < 1e-4
        for cache in (*together, *alone):  # the next round reads more, of some of them
            if number == 0 and cache.offset != LENGTHS[0]:
                cache.append(text.taps(cache.offset, [7, 8, 9]), [7, 8, 9])


@pytest.mark.parametrize("kind", DRAFTERS)
def test_drafts_in_company_are_those_of_a_sequence_alone(kind: str) -> None:
    """With texts of different lengths, drafts that are drawn beside the likeliest ones."""
    check(kind)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_passes_do_not_grow_with_sequences(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass for each position, whatever the number of sequences."""
    make, width = DRAFTERS[kind]
    drafter = make()
    if hasattr(drafter, "agreement"):
        drafter.agreement.compared = 1 << 20  # is compared with texts no more
    passes: list[int] = []
    for owner, name in ((EagleDrafter, "level"), (MTPHead, "__call__"), (Target, "read")):
        honest = getattr(owner, name)

        def counted(*args: Any, honest: Any = honest, **kwargs: Any) -> Any:
            passes.append(1)
            return honest(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
    caches = caches_of(drafter, width)
    passes.clear()
    drafted(drafter, caches, ANCHORS, [None] * len(ANCHORS))
    assert len(passes) == WIDTH - 1
