"""A fork and its original go on by themselves, as two sequences that never met."""

from collections.abc import Callable, Generator, Iterator
from functools import cache

import pytest
import tiny
from known_costs import drafts_pay

from dflash_mlx.drafters.base import Drafter
from dflash_mlx.drafters.ngram import NgramDrafter
from dflash_mlx.drafters.small_model import SmallModelDrafter
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.options import SamplingParams
from dflash_mlx.types import Block

START = tiny.prompt_of(21, 1)
LEFT = [*START, *tiny.prompt_of(9, 2)]  # two prompts of one length that begin alike
RIGHT = [*START, *tiny.prompt_of(9, 3)]
SAMPLING = SamplingParams(0.8, repetition_penalty=1.3, seed=3)


@cache
def engine_of(family: str, kind: str) -> Engine:
    """An engine of a tiny target. Its small model is a copy of the target, often right."""
    target = tiny.make_target(family)
    drafters: dict[str, Callable[[], Drafter]] = {
        "dflash": lambda: tiny.random_drafter(target),
        "small": lambda: SmallModelDrafter(tiny.make_target(family), tiny.VOCAB),
        "ngram": NgramDrafter,
    }
    return Engine(target, drafters[kind](), compiler=tiny.compiler_of(target))


def begun(engine: Engine, sequence: Sequence, prompt: list[int]) -> Generator[Block]:
    request = Request(
        tuple(prompt), sampling=SAMPLING, max_tokens=12, block_size=4, mode="dflash", accept="token"
    )
    engine.begin(sequence, request, len(prompt) - 1)
    return tiny.rounds(engine, sequence)


def half(engine: Engine) -> Sequence:
    sequence = Sequence(engine.target, *engine.drafters)
    blocks = begun(engine, sequence, START)
    for _ in range(3):
        next(blocks)
    blocks.close()
    return sequence


def branch(engine: Engine, sequence: Sequence, prompt: list[int]) -> Iterator[tuple[int, ...]]:
    """A branch's blocks: the end of its answer, another answer, and one from an earlier place."""
    for block in tiny.rounds(engine, sequence):
        yield block.tokens
    for text in (prompt, [*prompt[:-1], 7, 8]):
        for block in begun(engine, sequence, text):
            yield block.tokens


def in_turn(*branches: Iterator[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """What each gives if all are advanced by one block in turn."""
    given: list[list[tuple[int, ...]]] = [[] for _ in branches]
    running = dict(enumerate(branches))
    while running:
        for number, blocks in list(running.items()):
            block = next(blocks, None)
            if block is None:
                del running[number]
            else:
                given[number].append(block)
    return given


def forked(engine: Engine) -> list[list[tuple[int, ...]]]:
    original = half(engine)
    twin = original.fork()
    return in_turn(branch(engine, original, LEFT), branch(engine, twin, RIGHT))


def apart(engine: Engine) -> list[list[tuple[int, ...]]]:
    return [list(branch(engine, half(engine), prompt)) for prompt in (LEFT, RIGHT)]


@pytest.mark.every_family
@pytest.mark.parametrize(
    ("family", "kind"),
    [  # all rows, recurrent states, windows
        ("qwen3", "dflash"),
        ("qwen3", "small"),
        ("qwen3_5", "dflash"),
        ("lfm2", "dflash"),
        ("gpt_oss", "ngram"),
        *((family, "dflash") for family in tiny.QUANTISED),
    ],
)
def test_each_goes_on_as_if_alone(family: str, kind: str) -> None:
    """The same tokens in the same blocks, so that the drafts are the same, too."""
    engine = engine_of(family, kind)
    assert forked(engine) == apart(engine)


def test_a_fork_counts_its_own_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the drafts of a fork are worth says nothing of the original's."""
    drafts_pay(monkeypatch)
    target = tiny.make_target("qwen3")
    engine = Engine(target, SmallModelDrafter(tiny.make_target("qwen3"), tiny.VOCAB))
    original = Sequence(target, *engine.drafters)
    request = Request(tuple(START), max_tokens=40, mode="auto")
    engine.begin(original, request, len(START) - 1)
    next(tiny.rounds(engine, original))
    (acceptance,) = original.answer.acceptance
    twin = original.fork()
    before = acceptance.survivals(None, 3)
    list(tiny.rounds(engine, twin))
    assert acceptance.survivals(None, 3) == before
    assert twin.answer.acceptance[0].survivals(None, 3) != before
