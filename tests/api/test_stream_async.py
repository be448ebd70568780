"""Answers in an event loop, and sessions and answers that are closed."""

import asyncio
from contextlib import aclosing

import pytest
import tiny

from dflash_mlx import api
from dflash_mlx.errors import UsageError
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session
from dflash_mlx.types import Block


async def read(pair: Pair, prompt: str) -> list[Block]:
    return [block async for block in api.stream_async(pair, prompt, max_tokens=24)]


def test_blocks_are_those_of_stream(pair: Pair) -> None:
    seen: list[tuple[int, int]] = []

    async def main() -> list[Block]:
        stream = api.stream_async(
            pair, "river", max_tokens=24, on_prefill=lambda *counts: seen.append(counts)
        )
        return [block async for block in stream]

    assert asyncio.run(main()) == list(api.stream(pair, "river", max_tokens=24))
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0


def test_several_at_once_share_passes(pair: Pair) -> None:
    """While the event loop goes on."""
    prompts = ["river", "stone", "lantern", "amber"]
    alone = [tiny.joined(list(api.stream(pair, prompt, max_tokens=24))) for prompt in prompts]

    async def main() -> list[list[Block]]:
        return await asyncio.gather(*[read(pair, prompt) for prompt in prompts])

    before = pair.engine.passes
    together = asyncio.run(main())
    passes = pair.engine.passes - before
    assert [tiny.joined(blocks) for blocks in together] == alone
    assert passes < sum(map(len, together))


@pytest.mark.parametrize("how", ["closed", "cancelled"])
def test_an_answer_that_is_left_ends(pair: Pair, how: str) -> None:
    """The fixture looks whether it still runs; the pair answers as before."""
    heard: list[Block] = []

    async def listen() -> None:
        async with aclosing(api.stream_async(pair, "river", max_tokens=200)) as blocks:
            async for block in blocks:
                heard.append(block)
                if how == "closed":
                    return

    async def main() -> None:
        task = asyncio.create_task(listen())
        while not heard:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    expected = api.generate(pair, "river", max_tokens=24).tokens
    asyncio.run(main())
    assert len(tiny.joined(heard)) < 200
    assert api.generate(pair, "river", max_tokens=24).tokens == expected


def test_wrong_arguments_are_refused(pair: Pair) -> None:
    async def main() -> None:
        await anext(api.stream_async(pair, " "))

    with pytest.raises(UsageError, match="the prompt is empty"):
        asyncio.run(main())
    with pytest.raises(UsageError, match="max_tokens cannot be 0"):  # before the first block
        api.stream_async(pair, "river", max_tokens=0)


def test_a_session_is_closed_at_the_end_of_its_context(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caches are free, its running answer has ended, and what was read serves others."""
    monkeypatch.setattr(pair.engine.prefix_cache, "limit", 1 << 30)
    prompt = "a long prompt that other sessions may begin with, too"
    with Session(pair) as session:
        blocks = session.stream(prompt, max_tokens=90)
        next(blocks)
        assert session.sequence.tokens
    assert not session.sequence.tokens
    with pytest.raises(UsageError, match="this answer was closed"):
        next(blocks)
    with pytest.raises(UsageError, match="this session is closed"):
        session.stream(prompt)
    session.close()
    again = Session(pair)
    list(again.stream(prompt, max_tokens=4))
    assert again.stats.cached_tokens > 0
