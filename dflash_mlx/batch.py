"""Answers many prompts at once: their sequences share passes, and the results keep their order."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from .errors import PromptTooLong, UsageError
from .loaded_pair import LoadedPair
from .options import GenerationOptions
from .result import Result
from .session import Prompt, Prompted, Reply, Session
from .types import Block, Progress

MAX_SEQUENCES = 16  # answers at the same time, as in `dflash serve`
OnBlock = Callable[[int, Block], bool | None]
ONE_PROMPT = "put it into a list, or call dflash_mlx.generate(pair, prompt)"


def go_on(number: int, block: Block) -> None:
    """Let every answer go on."""


@dataclass(eq=False, slots=True)
class Running:
    """An answer that is being generated. nbytes: memory for its caches."""

    number: int
    reply: Reply
    nbytes: int
    blocks: list[Block] = field(default_factory=list)


def generate_all(
    pair: LoadedPair,
    prompts: Iterable[Prompt],
    options: GenerationOptions,
    *,
    max_sequences: int,
    on_progress: Progress,
    on_block: OnBlock,
) -> list[Result]:
    """Answer the prompts with these options; arguments and errors as `Pair.generate`."""
    if not isinstance(max_sequences, int) or max_sequences < 1:
        raise UsageError(f"max_sequences cannot be {max_sequences!r}.", hint="give 1 or more")
    prompted = prepare_all(pair, prompts, options)
    waiting = deque(enumerate(prompted))
    running = set[Running]()
    asked: dict[Future[Block], Running] = {}
    results: dict[int, Result] = {}
    on_progress(0, len(prompted))
    try:
        while waiting or running:
            while waiting and len(running) < max_sequences:
                number, first = waiting[0]
                nbytes = sequence_bytes(pair, first)
                if running and not has_room(pair, nbytes, running):
                    break
                waiting.popleft()
                reply = Session(pair, mode=options.mode).begin(first)
                answer = Running(number, reply, nbytes)
                running.add(answer)
                asked[reply.ask()] = answer
            for future in wait(asked, return_when=FIRST_COMPLETED).done:
                answer = asked.pop(future)
                result = take(answer, future.result(), on_block)
                if result is None:
                    asked[answer.reply.ask()] = answer
                    continue
                answer.reply.close()
                running.remove(answer)
                results[answer.number] = result
                on_progress(len(results), len(prompted))
    finally:
        for answer in running:
            answer.reply.close()
    return [results[number] for number in range(len(prompted))]


def prepare_all(
    pair: LoadedPair, prompts: Iterable[Prompt], options: GenerationOptions
) -> list[Prompted]:
    """The prompts as tokens. Raises UsageError that names the first one that is wrong."""
    if isinstance(prompts, str):
        raise UsageError("the prompts cannot be a single text.", hint=ONE_PROMPT)
    session = Session(pair, mode=options.mode)
    prepared = list[Prompted]()
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, dict | int):  # a message or a token of a single prompt
            raise UsageError(f"the prompts cannot be a list of {prompt!r:.60}.", hint=ONE_PROMPT)
        try:
            prompted = session.prepare(prompt, options)
            tokens = len(prompted.request.prompt)
            if tokens >= pair.engine.context_length:
                raise PromptTooLong(tokens, pair.engine.context_length)
        except UsageError as error:
            message = f"prompt {number} of the list: {error.message}"
            raise UsageError(message, hint=error.hint) from error
        prepared.append(prompted)
    return prepared


def sequence_bytes(pair: LoadedPair, prompted: Prompted) -> int:
    """The memory of an answer's caches when it is as long as it may be."""
    request = prompted.request
    tokens = len(request.prompt) + request.token_limit
    return pair.engine.sequence_bytes(min(tokens, pair.engine.context_length))


def has_room(pair: LoadedPair, nbytes: int, running: Iterable[Running]) -> bool:
    """Whether the memory holds the caches of another answer beside the running ones."""
    limit = pair.engine.memory_limit
    return limit is None or nbytes + sum(answer.nbytes for answer in running) <= limit


def take(answer: Running, block: Block, on_block: OnBlock) -> Result | None:
    """Add a block to an answer; its result at the end, else None."""
    shown = answer.reply.take(block)
    if shown is None:
        return None
    answer.blocks.append(shown)
    stops = on_block(answer.number, shown)
    if not (stops or shown.finish_reason):
        return None
    interrupted = not shown.finish_reason
    return Result.of(answer.blocks, answer.reply.stats, interrupted=interrupted)
