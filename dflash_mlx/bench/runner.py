"""Answers the questions of a schedule in its order, and times the passes of a pair."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated

import mlx.core as mx
from pydantic import Field

from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import UsageError
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session
from dflash_mlx.types import Block

from .questions import Question
from .records import Key, Record, Rounds, Turn, merge_rounds
from .schedule import BASELINE, Schedule, Variant

WARM_UP = 24  # tokens, enough for a whole block
POLL_SECONDS = 0.1
Watch = Callable[[], None]  # raises an exception to stop the run


def never_stop() -> None:
    pass


def check(pair: Pair, schedule: Schedule, questions: Sequence[Question]) -> None:
    """Raise UsageError for a mode that the pair cannot run, or a question too long for its context.

    Answers before the last one count with their maximum length.
    """
    for variant in schedule.modes:
        Session(pair, mode=variant.mode, use_prefix_cache=False)  # type: ignore[arg-type]
    session = Session(pair, mode=BASELINE, use_prefix_cache=False)
    for question in questions:
        first, longest = prompt_lengths(session, question, schedule)
        if longest >= pair.target.context_length:
            size = f"has {longest:,}"
            if longest != first:
                size = f"with its answers can have {longest:,}"
            raise UsageError(
                f"question {question.number} of '{question.suite}' {size} tokens, the context "
                f"holds {pair.target.context_length:,}.",
                hint="leave it out, give a smaller --max-tokens, or use another target",
            )


def prompt_lengths(session: Session, question: Question, schedule: Schedule) -> tuple[int, int]:
    """The tokens of a question's first prompt, and the maximum of its last one."""
    messages = list(question.turns[0])
    first = len(session.tokens(messages, **schedule.switches))
    for next_messages in question.turns[1:]:
        messages += [{"role": "assistant", "content": "."}, *next_messages]
    answers = (len(question.turns) - 1) * schedule.max_tokens
    return first, len(session.tokens(messages, **schedule.switches)) + answers


def run(
    pair: Pair,
    questions: Sequence[Question],
    schedule: Schedule,
    done: Mapping[Key, Record],
    watch: Watch = never_stop,
) -> Iterator[Record]:
    """Answer the questions that are not done yet. watch: called between blocks.

    Each mode first generates a short answer that is not recorded, to warm up. The check of the
    kernels ends before, so that all answers run the same ones.
    """
    mlx_thread().call(pair.engine.finish_work)
    remaining = [item for item in schedule.keys(questions) if item[0] not in done]
    for variant in dict.fromkeys(variant for _, _, variant in remaining):
        key, question, _ = next(item for item in remaining if item[2] == variant)
        session = Session(pair, mode=variant.mode, use_prefix_cache=False)  # type: ignore[arg-type]
        prompt = list(question.turns[0])
        answer(session, prompt, variant, schedule, schedule.sampling(key), watch, WARM_UP)
    for key, question, variant in remaining:
        cool_down(schedule.cooldown, watch)
        yield answer_question(pair, question, key, variant, schedule, watch)


def cool_down(seconds: float, watch: Watch) -> None:
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        watch()
        time.sleep(min(POLL_SECONDS, remaining))


def answer_question(
    pair: Pair, question: Question, key: Key, variant: Variant, schedule: Schedule, watch: Watch
) -> Record:
    """Answer all turns of a question in one session, which keeps its caches between turns."""
    session = Session(pair, mode=variant.mode, use_prefix_cache=False)  # type: ignore[arg-type]
    messages = []
    turns = []
    mx.reset_peak_memory()
    for turn_messages in question.turns:
        messages += turn_messages
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
    began = time.perf_counter()
    before = began
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
            arrived = time.perf_counter()
            seconds.append(arrived - before)
            blocks.append(block)
            before = arrived
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
        first_token_seconds=stats.first_token_seconds,
        decode_seconds=before - began - seconds[0],
        verifies=stats.verifies,
        drafted=stats.drafted,
        accepted=stats.accepted,
        accepted_by_position=tuple(stats.accepted_by_position),
        rounds=merge_rounds(
            Rounds(block.drafted + 1, 1, len(block.tokens), duration)
            for block, duration in zip(blocks[1:], seconds[1:], strict=True)
        ),
    )


# The time of a pass by its width

ROWS = (1, 2, 4, 8, 16, 24, 32, 64)
PASSES = 5


@dataclass(frozen=True, slots=True)
class Curve:
    """Median seconds of a pass at `depth` tokens of context.

    verify: (rows, seconds) of the target; draft: (block size, seconds) of the drafter, or None.
    """

    depth: int
    verify: Annotated[tuple[tuple[int, float], ...], Field(min_length=1)]
    draft: tuple[int, float] | None


def measure(pair: Pair, depth: int, check: Watch = never_stop) -> Curve:
    """Time the passes of a pair after `depth` tokens. check: called between passes, may raise."""
    return mlx_thread().call(time_passes, pair, depth, check)


def time_passes(pair: Pair, depth: int, check: Watch) -> Curve:
    """`measure`, in the thread that owns MLX."""
    target = pair.target
    drafter = pair.drafter
    room = target.context_length - max(ROWS) - len(ROWS) * (PASSES + 1)
    depth = max(2, min(depth, room))
    sequence = TokenSequence(target, drafter)
    generator = mx.random.key(0)
    tokens = mx.random.randint(0, target.vocab_size, (depth + max(ROWS),), key=generator)
    values: list[int] = tokens.tolist()  # type: ignore[assignment]
    sequence.read(values[:depth])
    passes = {rows: partial(one_pass, sequence, values[-rows:]) for rows in ROWS}
    block = 0
    if drafter is not None and sequence.draft_cache is not None:
        block = drafter.block_size
        caches = [sequence.draft_cache]
        passes[-block] = lambda: mx.eval(
            drafter.draft(caches, values[:1], block)[0].greedy().tokens
        )
    seconds = median_seconds(passes, check)
    verify = tuple((rows, seconds[rows]) for rows in ROWS)
    return Curve(depth, verify, (block, seconds[-block]) if block else None)


def one_pass(sequence: TokenSequence, tokens: list[int]) -> None:
    """Verify these tokens and commit the first one, which works with every cache."""
    output = sequence.verify(tokens[0], mx.array(tokens[1:], dtype=mx.int32))
    mx.eval(mx.argmax(output.logits, axis=-1), output.taps)
    sequence.commit((tokens[0],), output.taps)


def median_seconds(passes: Mapping[int, Callable[[], None]], check: Watch) -> dict[int, float]:
    """The median time of each pass. They alternate, and the first time of each is dropped."""
    seconds: dict[int, list[float]] = {name: [] for name in passes}
    for _ in range(PASSES + 1):
        for name, run_pass in passes.items():
            check()
            began = time.perf_counter()
            run_pass()
            seconds[name].append(time.perf_counter() - began)
    return {name: median(values[1:]) for name, values in seconds.items()}
