"""Pretrained models in 4 and 8 bits, and with a KV cache of 8 bits: greedy, as stock mlx-lm."""

from typing import Any

import pytest
from real_models import MARKS, MODELS, check_greedy, installed, sampling, stock

import dflash_mlx

pytestmark = MARKS

# Short, as MLX multiplies by quantised weights slowly on CPUs, and copied by what follows.
ASKED = "The red fox ran over the old bridge. The red fox ran over"
LENGTH = 12


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("bits", "kv_bits"), [(4, 0), (8, 0), (0, 8)])
def test_answers_in_fewer_bits_are_those_of_stock(model: str, bits: int, kv_bits: int) -> None:
    folder = installed(model, bits)
    with stock(folder, kv_bits) as ask:
        prompt = ask("encode", ASKED)
        wanted = ask("answer", prompt, sampling((0, 0)), LENGTH)
    pair = dflash_mlx.load(folder, "lookup", kv_bits=kv_bits)
    for mode in ("dflash", "ddtree"):
        asked: Any = {"mode": mode, "max_tokens": LENGTH, "block_size": 4}
        result = dflash_mlx.generate(pair, prompt, **asked)
        check_greedy(folder, prompt, wanted, result.tokens, kv_bits)
        assert result.stats.drafted
