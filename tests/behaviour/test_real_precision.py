"""Pretrained models in 4 and 8 bits, and with a KV cache of 8 bits: greedy, as stock mlx-lm."""

from typing import Any

import pytest
from real_models import MARKS, MODELS, check_greedy, installed, message, sampling, stock

import dflash_mlx

pytestmark = MARKS

# Short, as MLX reads prompts of quantised models row by row on CPUs, and copied by the answer.
ASKED = "Repeat: the red fox ran over the old bridge, and the red fox ran back again."
LENGTH = 16


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("bits", "kv_bits"), [(4, 0), (8, 0), (0, 8)])
def test_answers_in_fewer_bits_are_those_of_stock(model: str, bits: int, kv_bits: int) -> None:
    folder = installed(model, bits)
    with stock(folder, kv_bits) as ask:
        wanted = ask("answer", ASKED, sampling((0, 0)), LENGTH)
    pair = dflash_mlx.load(folder, "lookup", kv_bits=kv_bits)
    for mode in ("dflash", "ddtree"):
        asked: Any = {"mode": mode, "max_tokens": LENGTH, "block_size": 6}
        result = dflash_mlx.generate(pair, message(ASKED), **asked)
        check_greedy(folder, ASKED, wanted, result.tokens, kv_bits)
        assert result.stats.drafted
