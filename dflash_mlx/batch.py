"""Answers many prompts at once: their sequences share passes, and the results keep their order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field, replace

from .errors import PromptTooLong, UsageError
from .loaded_pair import LoadedPair
from .options import GenerationOptions, Mode
from .result import Result
from .session import Prompt, Prompted, Reply, Session
from .types import Block, Progress

MAX_SEQUENCES = 16  # answers at the same time, as in `dflash serve`
OnBlock = Callable[[int, Block], bool | None]
ONE_PROMPT = "put it into a list, or call dflash_mlx.generate(pair, prompt)"


@dataclass(eq=False, slots=True)
class Running:
    """nbytes: for its caches. stopped: who reads the blocks may set it, to end the answer."""

    number: int
    reply: Reply
    nbytes: int
    blocks: list[Block] = field(default_factory=list)
    stopped: bool = False


def generate_all(
    pair: LoadedPair,
    prompts: Iterable[Prompt],
    options: GenerationOptions,
    *,
    max_sequences: int,
    on_progress: Progress,
    on_block: OnBlock | None,
) -> list[Result]:
    """Answer the prompts with these options; arguments and errors as `Pair.generate`."""
    if not isinstance(max_sequences, int) or max_sequences < 1:
        raise UsageError(f"max_sequences cannot be {max_sequences!r}.", hint="give 1 or more")
    prompted = prepare_all(pair, prompts, options)
    results: dict[int, Result] = {}
    on_progress(0, len(prompted))
    blocks = stream_all(pair, prompted, mode=options.mode, max_sequences=max_sequences)
    with closing(blocks):
        for answer, block in blocks:
            answer.stopped = on_block is not None and bool(on_block(answer.number, block))
            if answer.stopped or block.finish_reason:
                interrupted = not block.finish_reason
                results[answer.number] = Result.of(
                    answer.blocks, answer.reply.stats, interrupted=interrupted
                )
                on_progress(len(results), len(prompted))
    return [results[number] for number in range(len(prompted))]


def stream_all(
    pair: LoadedPair,
    prompted: Sequence[Prompted],
    *,
    mode: Mode,
    max_sequences: int = MAX_SEQUENCES,
    on_round: Callable[[], None] | None = None,
) -> Generator[tuple[Running, Block]]:
    """The blocks of all answers as they come, each with its answer.

    `on_round` is called after each round, also while prompts are read. An exception in it, and
    closing the iterator, end all answers.
    """
    waiting = deque(enumerate(prompted))
    running = set[Running]()
    asked: dict[Future[Block], Running] = {}
    try:
        while waiting or running:
            while waiting and len(running) < max_sequences:
                number, first = waiting[0]
                nbytes = sequence_bytes(pair, first)
                limit = pair.engine.memory_limit
                held = sum(answer.nbytes for answer in running)
                if running and limit is not None and held + nbytes > limit:
                    break
                waiting.popleft()
                reply = Session(pair, mode=mode).begin(first)
                answer = Running(number, reply, nbytes)
                running.add(answer)
                asked[reply.ask()] = answer
            for future in wait(asked, return_when=FIRST_COMPLETED).done:
                answer = asked.pop(future)
                block = answer.reply.take(future.result())
                if block is not None:
                    answer.blocks.append(block)
                    yield answer, block
                    if answer.stopped or block.finish_reason:
                        answer.reply.close()
                        running.remove(answer)
                        continue
                asked[answer.reply.ask()] = answer
            if on_round is not None:
                on_round()
    finally:
        for answer in running:
            answer.reply.close()


def as_choice(prompted: Prompted, index: int) -> Prompted:
    """One of several answers to a prompt; `index`, from 0, is added to a given seed."""
    sampling = prompted.request.sampling
    if sampling.greedy or sampling.seed is None:
        return prompted
    seed = (sampling.seed + index) % 2**64
    request = replace(prompted.request, sampling=replace(sampling, seed=seed))
    return replace(prompted, request=request)


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
    request = prompted.request
    tokens = len(request.prompt) + request.token_limit
    return pair.engine.sequence_bytes(min(tokens, pair.engine.context_length))
