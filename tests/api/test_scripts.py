"""What first scripts do: a pair without a drafter, and prompts that are none."""

import asyncio
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny

import dflash_mlx
from dflash_mlx.errors import UsageError
from dflash_mlx.pair import Pair, load


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load(no_draft=True)


async def last(pair: Pair) -> Any:
    return [block async for block in dflash_mlx.stream_async(pair, "hi", max_tokens=3)][-1]


def test_a_pair_without_a_drafter_decodes_plainly(pair: Pair) -> None:
    wanted = dflash_mlx.generate(pair, "hi", max_tokens=3, mode="baseline").text
    assert dflash_mlx.generate(pair, "hi", max_tokens=3).text == wanted
    assert "".join(block.text for block in dflash_mlx.stream(pair, "hi", max_tokens=3)) == wanted
    assert [result.text for result in pair.generate(["hi"], max_tokens=3)] == [wanted]
    assert asyncio.run(last(pair)).finish_reason == "length"
    session = dflash_mlx.Session(pair)
    assert "".join(block.text for block in session.stream("hi", max_tokens=3)) == wanted
    with pytest.raises(UsageError, match="without a drafter"):
        dflash_mlx.generate(pair, "hi", mode="dflash")


def test_one_with_a_drafter_drafts() -> None:
    target = tiny.make_target("qwen3")
    assert dflash_mlx.Session(tiny.make_pair(target, tiny.random_drafter(target))).mode == "dflash"


@pytest.mark.parametrize(
    "prompt",
    [
        b"hi",
        bytearray(b"hi"),
        memoryview(b"hi"),
        {1: 2},
        {1, 2},
        [1.5, 2.5],
        ["12", "13"],
        [b"12"],
        np.array([1.5]),
        [{"role": "user", "content": b"hi"}],
        3,
        None,
    ],
)
def test_what_is_no_prompt(pair: Pair, prompt: Any) -> None:
    with pytest.raises(UsageError, match="cannot be"):
        dflash_mlx.generate(pair, prompt, max_tokens=2)


@pytest.mark.parametrize(
    "prompt", [[5, 6], (5, 6), range(5, 7), np.array([5, 6]), [np.int32(5), 6], mx.array([5, 6])]
)
def test_token_ids_of_any_kind(pair: Pair, prompt: Any) -> None:
    wanted = dflash_mlx.generate(pair, [5, 6], max_tokens=2).text
    assert dflash_mlx.generate(pair, prompt, max_tokens=2).text == wanted
