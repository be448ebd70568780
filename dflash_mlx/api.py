"""The functions most scripts need for one prompt: `stream`, `stream_async` and `generate`."""

from collections.abc import AsyncGenerator, Generator
from typing import Unpack

from .option_keywords import OptionKeywords, options_of, takes_options
from .options import GenerationOptions
from .pair import Pair
from .result import Result
from .session import Prompt, Session, check_mode
from .types import Block, Progress, silent


@takes_options
def stream(
    pair: Pair,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    *,
    on_prefill: Progress = silent,
    **keywords: Unpack[OptionKeywords],
) -> Generator[Block]:
    """Answer one prompt block by block.

    Options are a `GenerationOptions` or its fields; `help(dflash_mlx.GenerationOptions)` explains
    them. `on_prefill(done, total)` counts the prompt tokens that are read. Closing the iterator
    ends the answer.
    """
    return Session(pair).stream(prompt, options, on_prefill=on_prefill, **keywords)


@takes_options
def stream_async(
    pair: Pair,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    *,
    on_prefill: Progress = silent,
    **keywords: Unpack[OptionKeywords],
) -> AsyncGenerator[Block]:
    """Answer one prompt block by block in an event loop, for `async for`; arguments as `stream`.

    Several at once share their passes. The answer ends when its task is cancelled or the iterator
    is closed (`aclose`).
    """
    session = Session(pair)
    asked = options_of(options, keywords, session.mode)  # here, not when the first block is wanted
    check_mode(pair, asked.mode)
    return session.stream_async(prompt, asked, on_prefill=on_prefill)


@takes_options
def generate(
    pair: Pair,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    *,
    on_prefill: Progress = silent,
    **keywords: Unpack[OptionKeywords],
) -> Result:
    """Answer one prompt and return the whole answer; arguments as `stream`.

    `pair.generate(prompts)` answers many prompts at once.
    """
    return Session(pair).generate(prompt, options, on_prefill=on_prefill, **keywords)
