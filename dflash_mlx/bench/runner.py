"""The runner: asks what the schedule says, in its order, and yields one record after another.

Knows sessions and clocks; does not know where records go or how they are shown.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import mlx.core as mx

from dflash_mlx.errors import UsageError
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session
from dflash_mlx.types import Block, SamplingParams

from .modes import BASELINE, Variant
from .questions import Question
from .record import Key, Record, Rounds, Turn
from .schedule import Schedule

WARM_UP = 24  # tokens, enough for a whole block
PAUSE = 0.1  # seconds between two looks whether to stop
Watch = Callable[[], None]


def nobody() -> None:
    """A watch that never stops a run."""


def check(pair: Pair, schedule: Schedule, questions: Sequence[Question]) -> None:
    """UsageError for a mode that this pair cannot run, or a question that its context cannot hold.

    Only first turns are looked at: the others' lengths depend on the answers.
    """
    for variant in schedule.modes:
        Session(pair, mode=variant.mode)  # type: ignore[arg-type]
    session = Session(pair, mode=BASELINE)
    for question in questions:
        count = len(session.tokens(list(question.turns[0]), **schedule.switches))
        if count >= pair.target.context_length:
            raise UsageError(
                f"question {question.number} of '{question.suite}' has {count:,} tokens, the "
                f"context holds {pair.target.context_length:,}.",
                hint="leave it out, or use a target with a longer context",
            )


def run(
    pair: Pair,
    questions: Sequence[Question],
    schedule: Schedule,
    done: Mapping[Key, Record],
    watch: Watch = nobody,
) -> Iterator[Record]:
    """Answer what is not done yet; `watch()` is called between blocks and may raise to stop.

    Each mode that has something left to do first answers a little that is not recorded.
    """
    left = [part for part in schedule.keys(questions) if part[0] not in done]
    for variant in dict.fromkeys(variant for _, _, variant in left):
        key, question, _ = next(part for part in left if part[2] == variant)
        session = Session(pair, mode=variant.mode)  # type: ignore[arg-type]
        prompt = list(question.turns[0])
        answer(session, prompt, variant, schedule, schedule.sampling(key), watch, WARM_UP)
    for key, question, variant in left:
        rest(schedule.cooldown, watch)
        yield ask(pair, question, key, variant, schedule, watch)


def rest(seconds: float, watch: Watch) -> None:
    """Let the machine cool down."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        watch()
        time.sleep(min(PAUSE, left))


def ask(
    pair: Pair, question: Question, key: Key, variant: Variant, schedule: Schedule, watch: Watch
) -> Record:
    """All turns of a question in one session, which reads nothing twice."""
    session = Session(pair, mode=variant.mode)  # type: ignore[arg-type]
    messages, turns = [], []
    mx.reset_peak_memory()
    for asked in question.turns:
        messages += asked
        turn = answer(
            session,
            list(messages),
            variant,
            schedule,
            schedule.sampling(key),
            watch,
            schedule.max_tokens,
        )
        turns.append(turn)
        messages.append({"role": "assistant", "content": turn.text})
    return Record(key, question.task, tuple(turns), mx.get_peak_memory())


def answer(
    session: Session,
    messages: list[dict],
    variant: Variant,
    schedule: Schedule,
    sampling: SamplingParams,
    watch: Watch,
    max_tokens: int,
) -> Turn:
    """One answer with its counts and times."""
    began = before = time.perf_counter()
    source = session.stream(
        messages,
        sampling=sampling,
        max_tokens=max_tokens,
        accept=schedule.accept,
        on_prefill=lambda done, total: watch(),
        **schedule.switches,
        **variant.options(schedule.block_size),
    )
    blocks: list[Block] = []
    seconds: list[float] = []
    try:
        for block in source:
            now = time.perf_counter()
            seconds.append(now - before)
            blocks.append(block)
            before = now
            watch()
    finally:
        source.close()
    stats = session.stats
    return Turn(
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        text="".join(block.text for block in blocks),
        tokens=tuple(token for block in blocks for token in block.tokens),
        finish_reason=blocks[-1].finish_reason or "length",
        prefill_seconds=stats.prefill_seconds,
        first_token_seconds=seconds[0],
        decode_seconds=before - began - seconds[0],
        verifies=stats.verifies,
        committed=sum(stats.committed),
        drafted=stats.drafted,
        accepted=stats.accepted,
        accepted_by_position=tuple(stats.accepted_by_position),
        rounds=rounds_of(blocks[1:], seconds[1:]),
    )


def rounds_of(blocks: Sequence[Block], seconds: Sequence[float]) -> tuple[Rounds, ...]:
    """The passes after the prefill, counted by their number of rows: the drafts and the anchor."""
    found: dict[int, tuple[int, int, float]] = {}
    for block, took in zip(blocks, seconds, strict=True):
        count, tokens, total = found.get(block.drafted + 1, (0, 0, 0.0))
        found[block.drafted + 1] = (count + 1, tokens + len(block.tokens), total + took)
    return tuple(Rounds(rows, *found[rows]) for rows in sorted(found))
