"""Plain decoding by stock mlx-lm, with the interface of `decode`: what DFlash is held against."""

from collections.abc import Generator

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_sampler

from .context import Context, Progress
from .decode import finish
from .speculation.acceptance import not_numbers
from .speculation.sampling import HISTORY, penalties
from .types import Block, SamplingParams


def decode_plain(
    context: Context,
    prompt: list[int],
    params: SamplingParams,
    *,
    max_tokens: int,
    stops: frozenset[int],
    progress: Progress,
    turn: int = 0,
) -> Generator[Block]:
    """Answer `prompt`, the first tokens of which `context` has read already, a token a block.

    A seed goes to MLX's global generator, because that is the one that mlx-lm draws from. After
    `turn` tokens of the prompt is a place that the caches can go back to later.
    """
    if params.seed is not None:
        mx.random.seed(params.seed)
    cached, cache = len(context.tokens), context.target_cache
    total = len(prompt) - cached
    progress(0, total)
    if cache.needs_snapshots and cached <= turn < len(prompt):
        context.fill(prompt[cached:turn], lambda done: progress(done, total))
        cache.snapshot()
    cache.tape(False)
    filled = len(context.tokens)

    def report(done: int, _: int) -> None:
        """Count what is read, so that stopping in the prefill keeps it."""
        context.tokens[filled:] = prompt[filled : filled + done]
        if done:
            progress(filled - cached + done, total)

    # mlx-lm's penalties would not see the tokens that are read already.
    before = mx.array(context.tokens[-HISTORY:], dtype=mx.int32)
    processors = [
        lambda tokens, logits, process=process: process(mx.concatenate([before, tokens]), logits)
        for process in penalties(params)
    ]
    steps = generate_step(
        mx.array(prompt[filled:]),
        context.target.model,
        max_tokens=max_tokens,
        sampler=make_sampler(
            params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            top_k=params.top_k if params.top_k < context.target.vocab_size else 0,
        ),
        logits_processors=processors,
        prompt_cache=context.target_cache.layers,
        prompt_progress_callback=report,
    )
    for number, (value, logprobs) in enumerate(steps, 1):
        token = int(value)  # fed to the model already: generate_step runs one step ahead
        if number == 1 and mx.isnan(logprobs.sum()).item():
            raise not_numbers()
        reason = finish((token,), max_tokens - number, stops)
        yield Block((token,), finish_reason=reason)
        if reason:
            break
        context.tokens.append(token)
    steps.close()
