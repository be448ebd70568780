"""At temperature 0 the answer is stock mlx-lm's, token for token, whatever the drafter says.

The drafters: never trained, of DFlash, DFlash 2 and DSpark; always right (every block is kept
whole); always wrong (every block is rejected whole). The prompts: shorter than the sliding window,
and longer, so that it wraps.
"""

from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx
import pytest
import tiny
from lossless import EVERY, LENGTH, LONG, NUMBERS, SHORT, drafter_of, stock, target_of

from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.kernels import outcome
from dflash_mlx.models.cache.target_cache import TargetCache
from dflash_mlx.options import SamplingParams

KINDS = ("random", "random2", "dspark", "right", "wrong")
every_family = pytest.mark.parametrize("family", EVERY)


def check(family: str, kind: str, prompt: list[int], block_size: int, **options: Any) -> list[int]:
    """Hold one answer against mlx-lm's; return the tokens committed per verify."""
    options = {"max_tokens": LENGTH, **options}
    wanted = stock(family, tuple(prompt), max(LENGTH, options["max_tokens"]))
    blocks = tiny.speculate(
        target_of(family),
        drafter_of(kind, family, prompt, len(wanted)),
        prompt,
        block_size=block_size,
        **options,
    )
    assert tiny.joined(blocks) == wanted[: options["max_tokens"]]
    assert blocks[-1].finish_reason == "length"
    return [len(block.tokens) for block in blocks[1:]]


def check_sizes(family: str, kind: str, sizes: Iterable[int]) -> None:
    """Blocks of these sizes; the right drafter fills each, the wrong one never gets a draft."""
    for block_size in sizes:
        prompt = (SHORT, LONG)[block_size % 2]
        committed = check(family, kind, prompt, block_size)
        if kind == "right":
            assert set(committed[:-1]) <= {block_size}
        if kind == "wrong":
            assert set(committed) == {1}


@pytest.mark.quick_every(7)
@pytest.mark.every_family
@every_family
@pytest.mark.parametrize("kind", KINDS)
def test_block_sizes(family: str, kind: str) -> None:
    """Some of the blocks from 2 to 16 tokens, in turn over the families and drafters."""
    check_sizes(family, kind, range(2 + (NUMBERS[family] + KINDS.index(kind)) % 5, 17, 5))


@pytest.mark.slow
@tiny.exhaustive
@every_family
@pytest.mark.parametrize("kind", KINDS)
def test_all_block_sizes(family: str, kind: str) -> None:
    check_sizes(family, kind, range(2, 17))


@pytest.mark.quick_every(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["short", "long"])
def test_rotating_window(kind: str, prompt: list[int]) -> None:
    """A window that wraps many times in one answer, with blocks narrower and wider than it."""
    target, length = target_of("llama_sliding"), 45
    wanted = stock("llama_sliding", tuple(prompt), length)
    for block_size in (2, 5, tiny.WINDOW - 1, tiny.WINDOW, tiny.WINDOW + 1, 2 * tiny.WINDOW + 3):
        drafter = drafter_of(kind, "llama_sliding", prompt, length)
        blocks = tiny.speculate(target, drafter, prompt, block_size=block_size, max_tokens=length)
        assert tiny.joined(blocks) == wanted


@pytest.mark.parametrize(
    "family", ["qwen3_5", "lfm2", "gpt_oss", "gemma4_unified", "glm_moe_dsa", *tiny.QUANTISED]
)
def test_long_answers(family: str) -> None:
    """Answers longer than every window and than the indexer's reach, some drafts right."""
    length = 45
    wanted = stock(family, tuple(SHORT), length)
    for kind, block_size in (("right", 2 * tiny.WINDOW + 3), ("half", 7), ("wrong", 16)):
        text = SHORT + wanted
        if kind == "half":
            text = [t if n < 5 or n % 4 else (t + 1) % tiny.VOCAB for n, t in enumerate(text)]
        drafter = tiny.scripted_drafter(text, wrong=kind == "wrong", strict=kind != "half")
        blocks = tiny.speculate(
            target_of(family), drafter, SHORT, block_size=block_size, max_tokens=length
        )
        assert tiny.joined(blocks) == wanted


def test_two_families_in_turn() -> None:
    """Pairs of different families, block by block in turn, answer as each does alone."""
    families = ("qwen3_5", "gemma4", "gpt_oss")
    streams = []
    for family in families:
        context = TokenSequence(target_of(family), drafter_of("random", family, LONG))
        options: dict[str, Any] = {"block_size": 6, "max_tokens": LENGTH}
        streams.append(tiny.start(context, LONG, SamplingParams(), "match", **options))
    said: list[list[int]] = [[] for _ in families]
    while any(len(tokens) < LENGTH for tokens in said):
        for tokens, stream in zip(said, streams, strict=True):
            block = next(stream, None)
            tokens += block.tokens if block else ()
    assert said == [stock(family, tuple(LONG)) for family in families]


@every_family
def test_chunked_prefill(family: str) -> None:
    """The prefill's chunks do not matter: of one token, odd ones, of window size, one for all."""
    for chunk in (1, 7, tiny.WINDOW, 39, 2048):
        check(family, "right", LONG, 6, chunk=chunk)


@every_family
def test_max_tokens(family: str) -> None:
    """A length is met exactly, also inside a block: 1 to 20, in turn over the families."""
    for max_tokens in range(1 + NUMBERS[family] % 3, 21, 3):
        prompt = (SHORT, LONG)[max_tokens % 2]
        check(family, "right", prompt, 6, max_tokens=max_tokens)
    for max_tokens in (1, 2, 3, 7):
        check(family, "random", LONG, 6, max_tokens=max_tokens)


@pytest.mark.parametrize("family", ["qwen3_untied", "llama_sliding"])
@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_stop_tokens(family: str, kind: str) -> None:
    """The answer ends with the first stop token, at every place in a block; the context is exact.

    The wrong drafter has the stop token as the bonus, the right one as a draft.
    """
    target, wanted = target_of(family), stock(family, tuple(LONG))
    for stop in set(wanted):
        length = wanted.index(stop) + 1
        blocks = tiny.speculate(
            target,
            drafter_of(kind, family, LONG),
            LONG,
            block_size=8,
            max_tokens=LENGTH,
            stops=frozenset({stop}),
        )
        assert tiny.joined(blocks) == wanted[:length]
        assert blocks[-1].finish_reason == "stop"
    assert len(set(wanted)) > 8


def test_accepted_counts() -> None:
    """A block's counts: drafts offered and kept, less than were right where the answer ends."""
    prompt, wanted = SHORT, stock("llama_sliding", tuple(SHORT))
    blocks = tiny.speculate(
        target_of("llama_sliding"),
        drafter_of("right", "llama_sliding", prompt),
        prompt,
        block_size=6,
        max_tokens=9,
    )
    assert [(len(b.tokens), b.drafted, b.accepted) for b in blocks] == [
        (1, 0, 0),
        (6, 5, 5),
        (2, 2, 2),
    ]
    stop = wanted[3]
    assert stop not in wanted[:3]
    blocks = tiny.speculate(
        target_of("llama_sliding"),
        drafter_of("right", "llama_sliding", prompt),
        prompt,
        block_size=6,
        max_tokens=9,
        stops=frozenset({stop}),
    )
    assert [(len(b.tokens), b.drafted, b.accepted) for b in blocks] == [(1, 0, 0), (3, 5, 3)]


def keep_one_draft_too_many(patch: pytest.MonkeyPatch) -> None:
    """A fault: the first rejected draft stays."""
    honest = outcome.count_prefix
    patch.setattr(
        outcome,
        "count_prefix",
        lambda flags: mx.minimum(honest(flags) + 1, flags.shape[0]),
    )


def keep_one_rejected_row(patch: pytest.MonkeyPatch) -> None:
    """A fault: the target's caches keep a row of a draft that was rejected."""
    honest = TargetCache.rewind
    patch.setattr(
        TargetCache,
        "rewind",
        lambda self, length: honest(self, min(length + 1, self.offset)),
    )


def keep_one_tap_too_many(patch: pytest.MonkeyPatch) -> None:
    """A fault: the drafter's cache keeps a row of a draft that was rejected."""
    honest = TokenSequence.commit

    def commit(
        self: TokenSequence, kept: tuple[int, ...], taps: mx.array, *path: Any, **rest: Any
    ) -> None:
        honest(self, kept, taps, *path, **rest)
        assert self.draft_cache is not None
        if len(kept) < taps.shape[1]:
            self.draft_cache.append(taps[:, len(kept) : len(kept) + 1])

    patch.setattr(TokenSequence, "commit", commit)


@pytest.mark.parametrize(
    "fault", [keep_one_draft_too_many, keep_one_rejected_row, keep_one_tap_too_many]
)
def test_faults_are_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check("llama", "random", SHORT, 6)
    stock("llama_sliding", tuple(LONG))
    fault(monkeypatch)
    for family, kind, prompt in (("llama", "random", SHORT), ("llama_sliding", "wrong", LONG)):
        with pytest.raises(AssertionError):
            check(family, kind, prompt, 6)
