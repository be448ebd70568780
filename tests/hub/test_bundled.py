"""The bundled pair: plain mlx-lm format, small, and without loss on held-out prompts.

`LOSSLESS=all` runs every held-out prompt to its end with every block size and every drafter;
without it the block sizes take turns and the slow drafters stop early.
"""

from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from mlx_lm import stream_generate
from mlx_lm.utils import load_model
from text import held_out

import dflash_mlx
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.model import DraftModel
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub.resolve import bundled

PROMPTS, MAX_TOKENS, EARLY = 200, 250, 10


@cache
def pair() -> dflash_mlx.Pair:
    return dflash_mlx.load()


@cache
def stock() -> Any:
    """The target as stock mlx-lm loads it, an instance of its own."""
    model, _ = load_model(bundled("target"))
    if mx.default_device() == mx.Device(mx.cpu):
        model.set_dtype(mx.float32)
    return model


@cache
def answer(number: int) -> tuple[list[int], list[int]]:
    prompt = pair().chat_tokens([{"role": "user", "content": held_out(PROMPTS)[number].prompt}])
    parts = stream_generate(stock(), pair().tokenizer, prompt, max_tokens=MAX_TOKENS)
    return prompt, [part.token for part in parts]


def untrained() -> DFlashDrafter:
    drafter = pair().drafter
    assert drafter is not None
    model = DraftModel(drafter.config, pair().target.hidden_size)
    tiny.randomise(model, seed=5, scale=1.0)
    return DFlashDrafter(model, pair().target.embed, pair().target.head)


def check(drafter: DFlashDrafter, number: int, sizes: list[int], most: int) -> None:
    prompt, wanted = answer(number)
    wanted = wanted[:most]
    for block_size in sizes:
        blocks = tiny.speculate(
            pair().target,
            drafter,
            prompt,
            block_size=block_size,
            max_tokens=most,
            stops=pair().target.eos_ids,
        )
        assert tiny.joined(blocks) == wanted, f"prompt {number}, block size {block_size}"


@pytest.mark.parametrize("prompts", [4, pytest.param(PROMPTS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["trained", "random", "right", "wrong"])
def test_lossless(kind: str, prompts: int) -> None:
    """Held-out prompts, float32, block sizes 2 to 16: the tokens are stock mlx-lm's in all."""
    fixed = {"trained": pair().drafter, "random": untrained()}.get(kind)
    most = MAX_TOKENS if tiny.ALL or kind in ("trained", "right") else EARLY
    for number in range(prompts):
        prompt, wanted = answer(number)
        script = tiny.scripted_drafter(
            prompt + wanted, wrong=kind == "wrong", vocab=pair().target.vocab_size
        )
        sizes = list(range(2, 17)) if tiny.ALL else [2 + number % 15]
        check(fixed or script, number, sizes, most)


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """An acceptance that keeps one draft too many is seen at once."""
    from dflash_mlx.kernels import outcome

    count = outcome.count_prefix
    monkeypatch.setattr(
        outcome, "count_prefix", lambda flags: mx.minimum(count(flags) + 1, flags.size)
    )
    prompt, wanted = answer(0)
    vocab = pair().target.vocab_size
    drafter = tiny.scripted_drafter(prompt + wanted, wrong=True, vocab=vocab)
    with pytest.raises(AssertionError):
        check(drafter, 0, [16], MAX_TOKENS)


def test_size_and_format() -> None:
    """Guards the wheel (20 MB at most) and stock tools: 16 bits, plain Hugging Face layout."""
    files = [f for part in ("target", "draft") for f in bundled(part).iterdir()]
    assert sum(f.stat().st_size for f in files) < 20e6
    weights = mx.load(str(bundled("target") / "model.safetensors"))
    assert isinstance(weights, dict)
    assert {w.dtype for w in weights.values()} == {mx.bfloat16}
    assert Checkpoint.read(bundled("target")).config["model_type"] == "qwen3"
    assert Checkpoint.read(bundled("draft")).config["dflash_config"]["block_size"] == 16


def test_stock_mlx_lm_runs_it() -> None:
    """The folder alone is enough for `mlx_lm.generate --model`."""
    from mlx_lm import generate, load

    model, tokenizer, *_ = load(str(bundled("target")))
    text = generate(model, tokenizer, "What is 2 plus 3?", max_tokens=3)
    assert isinstance(text, str)


def test_no_path_of_a_machine_in_the_bundle() -> None:
    """Guards what exporters like to write into configs."""
    for part in ("target", "draft"):
        for file in Path(bundled(part)).glob("*.json"):
            assert "/runs/" not in file.read_text()
            assert "_name_or_path" not in file.read_text()
