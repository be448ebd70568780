"""Answers the questions of a schedule in its order, and times the passes of a pair."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Annotated

import mlx.core as mx
from pydantic import Field

from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session
from dflash_mlx.types import Block

from .questions import Question
from .records import Key, Record, Rounds, Turn, merge_rounds
from .schedule import BASELINE, Schedule

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
        options = replace(schedule.options(key, variant), max_tokens=WARM_UP)
        answer(Session(pair, use_prefix_cache=False), list(question.turns[0]), options, watch)
    for key, question, variant in remaining:
        cool_down(schedule.cooldown, watch)
        yield answer_question(pair, question, key, schedule.options(key, variant), watch)


def cool_down(seconds: float, watch: Watch) -> None:
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        watch()
        time.sleep(min(POLL_SECONDS, remaining))


def answer_question(
    pair: Pair, question: Question, key: Key, options: GenerationOptions, watch: Watch
) -> Record:
    """Answer all turns of a question in one session, which keeps its caches between turns."""
    session = Session(pair, use_prefix_cache=False)
    messages = []
    turns = []
    mx.reset_peak_memory()
    for turn_messages in question.turns:
        messages += turn_messages
        turns.append(answer(session, list(messages), options, watch))
        messages.append({"role": "assistant", "content": turns[-1].text})
    return Record(key, question.task, tuple(turns), mx.get_peak_memory())


def answer(
    session: Session, messages: list[dict], options: GenerationOptions, watch: Watch
) -> Turn:
    source = session.stream(messages, options, on_prefill=lambda done, total: watch())
    blocks: list[Block] = []
    arrivals: list[float] = []
    with closing(source):
        for block in source:
            arrivals.append(time.perf_counter())
            blocks.append(block)
            watch()
    stats = session.stats
    rounds = zip(blocks[1:], pairwise(arrivals), strict=True)
    return Turn(
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        text="".join(block.text for block in blocks),
        tokens=tuple(token for block in blocks for token in block.tokens),
        finish_reason=blocks[-1].finish_reason or "length",
        prefill_seconds=stats.prefill_seconds,
        first_token_seconds=stats.first_token_seconds,
        decode_seconds=arrivals[-1] - arrivals[0],
        verifies=stats.verifies,
        drafted=stats.drafted,
        accepted=stats.accepted,
        accepted_by_position=tuple(stats.accepted_by_position),
        rounds=merge_rounds(
            Rounds(block.drafted + 1, 1, len(block.tokens), arrived - before)
            for block, (before, arrived) in rounds
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
    passes: dict[int, Callable[[], None]] = {
        rows: partial(one_pass, sequence, values[-rows:]) for rows in ROWS
    }
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
