"""The pretrained models of `make real`, and what stock mlx-lm says with them."""

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import QuantizedKVCache
from seeded import SAMPLINGS, stock_answer, stock_model

from dflash_mlx import SamplingParams
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.pair import eos_ids_of, load_tokenizer

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "runs" / "real"
SMALLEST = "smollm2-135m"
LARGE = "qwen2.5-coder-1.5b"
MODELS = (
    SMALLEST,
    "qwen2.5-coder-0.5b",
    pytest.param(LARGE, marks=pytest.mark.real_all),
)
MARKS = [pytest.mark.real, pytest.mark.timeout(1800)]
TIE = 1e-4  # stock's last bits depend on the rows of its passes

LETTER = (
    "Dear Mrs Alder, thank you for your letter of 3 March. Both window frames must be replaced "
    "before the winter. Our carpenter can come on Tuesday between eight and ten in the morning."
)
PROMPTS = (
    f"Repeat this letter word by word:\n\n{LETTER}",
    "Write a Python function that counts the vowels of a word.",
    "Why is the sky blue? Explain it to a child.",
)
# A prompt and a sampling each: greedy, and all others.
CASES = ((0, 0), (1, 1), (2, 0), (0, 2), (1, 0), (2, 3))
Answers = dict[tuple[int, int], list[int]]


@cache
def installed(model: str, bits: int = 0) -> Path:
    """The model's folder, made if it is not there: in float32, or quantised by mlx-lm."""
    if bits:
        folder, made = RUNS / f"{model}-{bits}bit", RUNS / f"{model}-{bits}bit.part"
        if not folder.exists():
            command = [
                sys.executable,
                "-m",
                "mlx_lm",
                "convert",
                "--quantize",
                "--q-bits",
                f"{bits}",
            ]
            paths = ["--hf-path", str(installed(model)), "--mlx-path", str(made)]
            offline = os.environ | {"HF_HUB_OFFLINE": "1"}
            subprocess.run([*command, *paths], check=True, env=offline)
            made.rename(folder)
        return folder
    install = ROOT / "examples/recipes/real_models/install.py"
    subprocess.run([sys.executable, str(install), model, "--into", str(RUNS)], check=True)
    return RUNS / model


def message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def sampling(case: tuple[int, int]) -> SamplingParams:
    """Without a long tail, in which MLX draws neighbours if the last bits of logits change."""
    prompt, kind = case
    settings: dict[str, Any] = SAMPLINGS[kind] | {"min_p": 0.05}
    return SamplingParams(**settings, seed=prompt)


class Stock:
    """A model as mlx-lm loads and runs it; call it in MLX's thread."""

    def __init__(self, folder: Path, kv_bits: int = 0):
        tokenizer = load_tokenizer(Checkpoint.read(folder))
        self.model, self.tokenizer = stock_model(folder), tokenizer
        self._stops, self._kv_bits = eos_ids_of(tokenizer), kv_bits

    def prompt(self, text: str) -> list[int]:
        return self.tokenizer.apply_chat_template(message(text), add_generation_prompt=True)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def answer(self, prompt: list[int], params: SamplingParams, length: int) -> list[int]:
        asked = (self.model, prompt, params, self._stops, length)
        return stock_answer(*asked, cache=self._cache())

    def margin(self, tokens: list[int]) -> float:
        """How far the two largest logits after these tokens are apart."""
        logits = self.model(mx.array(tokens)[None], cache=self._cache())[0, -1]
        second, first = mx.sort(logits)[-2:]
        return float(first - second)

    def behind(self, turns: Sequence[dict[str, Any]]) -> list[float]:
        """How far the logit of each token of a chat's answers is behind the largest one there."""
        messages, places, tokens = list[dict[str, str]](), list[int](), list[int]()
        for turn in turns:
            messages += message(turn["prompt"])
            tokens = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
            said = self.encode(turn["answer"])
            places += range(len(tokens), len(tokens) + len(said))
            tokens += said
            messages.append({"role": "assistant", "content": turn["answer"]})
        logits = self.model(mx.array(tokens[:-1])[None])[0]
        behind = logits.max(axis=-1) - logits[mx.arange(len(tokens) - 1), mx.array(tokens[1:])]
        return [float(one) for one in behind[mx.array(places) - 1]]

    def _cache(self) -> Any:
        if not self._kv_bits:
            return None
        return [QuantizedKVCache(bits=self._kv_bits) for _ in self.model.layers]


@contextmanager
def stock(folder: Path, kv_bits: int = 0) -> Iterator[Any]:
    """A function that calls a method of `Stock` by name; the model is there only meanwhile."""
    held = [mlx_thread().call(Stock, folder, kv_bits)]
    yield lambda name, *given: mlx_thread().call(getattr(held[0], name), *given)
    held.clear()
    gc.collect()
    mlx_thread().call(mx.clear_cache)


def check_greedy(
    folder: Path, prompt: list[int], wanted: list[int], found: list[int], kv_bits: int = 0
) -> None:
    """Equal tokens, or a first difference at which stock itself nearly has a tie."""
    if found == wanted:
        return
    at = next(
        (n for n, (one, other) in enumerate(zip(wanted, found, strict=False)) if one != other), None
    )
    assert at is not None, f"{len(found)} tokens, and stock has {len(wanted)}"
    with stock(folder, kv_bits) as ask:
        margin = ask("margin", [*prompt, *wanted[:at]])
    assert margin < TIE, f"token {at} is another one, and stock's margin is {margin:.2g}"
    warnings.warn(f"a tie within {margin:.1g} at token {at}", stacklevel=2)
