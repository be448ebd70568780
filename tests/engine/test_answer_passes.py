"""An answer takes no passes of the target but its own: nothing measures the machine before it."""

from typing import Any

import pytest
import tiny
from tiny import make_target, prompt_of, random_drafter

from dflash_mlx.engine.prompt_chunks import PREFILL_STEP_SIZE
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.models.target import Target
from dflash_mlx.options import Mode
from dflash_mlx.pair import Pair
from dflash_mlx.policy.policy import FixedPolicy
from dflash_mlx.session import Session
from dflash_mlx.types import DECODE_STEP

MODES: tuple[Mode, ...] = ("auto", "dflash", "ddtree", "baseline")
DEPTHS = (5, 700, 2_100)  # the last one takes two chunks


@pytest.fixture(scope="module")
def pair() -> Pair:
    target = make_target("qwen3", max_position_embeddings=10_000)
    pair = tiny.make_pair(target, random_drafter(target), "", "")
    pair.engine.scheduler.prompt_chunks.sizes = dict.fromkeys(range(9), PREFILL_STEP_SIZE)
    return pair


def passes_and_rounds(
    pair: Pair, mode: Mode, depth: int, patch: pytest.MonkeyPatch
) -> tuple[int, int]:
    """The target's passes in an answer, and how many its prompt and its rounds need."""
    passes = list[int]()
    honest = Target.read

    def counted(self: Target, parts: Any, **options: Any) -> Any:
        passes.append(sum(part.tokens.size for part in parts))
        return honest(self, parts, **options)

    with patch.context() as patched:
        patched.setattr(Target, "read", counted)
        session = Session(pair, mode=mode, use_prefix_cache=False)
        blocks = list(session.stream(prompt_of(depth), max_tokens=40))
    chunks = -(-depth // PREFILL_STEP_SIZE) + (mode == "baseline")
    return len(passes), chunks + len(blocks) - 1


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("mode", MODES)
def test_an_answer_takes_no_passes_but_its_own(
    pair: Pair, mode: Mode, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prompt's chunks, its rounds, and at most one pass that was run ahead."""
    for _ in range(2):
        passes, needed = passes_and_rounds(pair, mode, depth, monkeypatch)
        assert needed <= passes <= needed + 1


class Timed(FixedPolicy):
    """Plain decoding that keeps whether each round told its time, and who was ahead."""

    def __init__(self) -> None:
        super().__init__(DECODE_STEP)
        self.told = list[bool]()

    def update(self, results: Any, seconds: float | None) -> None:
        self.told.append(seconds is not None)


def told_rounds(pair: Pair) -> list[bool]:
    sequence = TokenSequence(pair.target, pair.drafter)
    engine = pair.engine
    request = Request(tuple(prompt_of(9)), mode="baseline", max_tokens=6)
    engine.begin(sequence, request)
    policy = sequence.answer.policy = Timed()
    list(tiny.rounds(engine, sequence))
    return policy.told


def test_rounds_that_take_one_pass_are_timed(pair: Pair) -> None:
    """Not the last one, which only waits for a pass of the round before."""
    assert told_rounds(pair) == [True, True, True, True, False]
