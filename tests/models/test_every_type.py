"""Every model type of mlx-lm, with a tiny random model.

The first tests hold stock mlx-lm to what the others build on: which types there are, that they
answer, and that passes over several tokens give the logits of single steps.
"""

import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from pkgutil import iter_modules

import mlx.core as mx
import pytest
import tiny
import zoo
from mlx import nn
from mlx_lm import models
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import MODEL_REMAPPING, load_model

PROMPT = tiny.prompt_of(20)
LENGTH = 30
FAILS = [kind for kind, own in zoo.TYPES.items() if "fails" in own]
EVERY = [kind for kind in zoo.TYPES if kind not in FAILS]
every_type = pytest.mark.parametrize("kind", EVERY)


def stock(model: nn.Module, prompt: list[int], length: int = LENGTH) -> tuple[list[int], mx.array]:
    """The greedy answer of stock mlx-lm, and the log-probabilities [length, V] of its steps.

    Checks that no two tokens are level, so that tests do not depend on rounding.
    """
    steps = list(generate_step(mx.array(prompt), model, max_tokens=length))
    logprobs = mx.stack([step for _, step in steps])
    best = mx.sort(logprobs)[:, -2:]
    assert float(mx.min(best[:, 1] - best[:, 0])) > 1e-3, "choose another seed"
    return [int(token) for token, _ in steps], logprobs


def logprobs(model: nn.Module, text: list[int], ends: list[int]) -> mx.array:
    """The log-probabilities [S, V] after each token of a text that is read in these passes."""
    layers = make_prompt_cache(model)
    passes = [model(mx.array([text[a:b]]), cache=layers) for a, b in pairwise([0, *ends])]
    return nn.log_softmax(mx.concatenate(passes, axis=1).squeeze(0))


def apart(ours: mx.array, theirs: mx.array) -> float:
    """The largest difference, relative to the largest value."""
    finite = mx.isfinite(theirs)
    differences = mx.where(finite, mx.abs(ours - theirs), 0)
    return float(mx.max(differences) / mx.max(mx.where(finite, mx.abs(theirs), 0)))


def test_the_table_has_every_type() -> None:
    """Whatever mlx-lm can open is in zoo.toml, and nothing else."""
    found = set(MODEL_REMAPPING)
    for module in iter_modules(models.__path__):
        spec = find_spec(f"mlx_lm.models.{module.name}")
        source = Path((spec and spec.origin) or "").read_text(encoding="utf-8")
        if re.search(r"^(class Model\(|from \S+ import Model\b)", source, re.MULTILINE):
            found.add(module.name)
    assert set(zoo.TYPES) == found
    assert len(found) == 138


@pytest.mark.parametrize("kind", FAILS)
def test_what_stock_mlx_lm_cannot_run(kind: str) -> None:
    if mx.metal.is_available():
        pytest.skip("a Mac can run some of them")
    error = ""
    try:
        stock(zoo.tiny_model(kind)[0], PROMPT)
    except (Exception, SystemExit) as raised:
        error = f"{type(raised).__name__}: {raised}"
    assert error == zoo.TYPES[kind]["fails"]


@pytest.mark.every_family
@every_type
def test_stock(kind: str, tmp_path: Path) -> None:
    """A tiny model answers, reads its answer with the same logits, and can be opened again."""
    model, config = zoo.tiny_model(kind)
    said, steps = stock(model, PROMPT)
    assert len(set(said)) > 4
    text = [*PROMPT, *said[:-1]]
    passes = logprobs(model, text, [len(PROMPT), 27, 39, 40, len(text)])[len(PROMPT) - 1 :]
    assert ("differs" in zoo.TYPES[kind]) == (apart(passes, steps) > 1e-4)
    tiny.save_model(tmp_path, model, config)
    again = logprobs(load_model(tmp_path)[0], text, [len(text)])[len(PROMPT) - 1 :]
    assert apart(again, logprobs(model, text, [len(text)])[len(PROMPT) - 1 :]) < 1e-6
