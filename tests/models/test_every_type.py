"""Every model type of mlx-lm, with a tiny random model, answers as stock mlx-lm in every mode."""

import re
from collections.abc import Callable, Sequence
from copy import copy
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
import tiny
import zoo
from lossless import Hinted
from mlx import nn
from mlx_lm import models
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import MODEL_REMAPPING, load_model

from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.model import DraftModel
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.ability import ALL_DRAFTS
from dflash_mlx.models.target import Target
from dflash_mlx.types import Block

PROMPT = tiny.prompt_of(20)
OTHER = tiny.prompt_of(13, 1)
LENGTH = 24
SHORT = 16  # of our answers
CHUNK = 7  # of prompts
FAILS = [kind for kind, own in zoo.TYPES.items() if "fails" in own]
EVERY = [kind for kind in zoo.TYPES if kind not in FAILS]
every_type = pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=pytest.mark.slow) if k in MODEL_REMAPPING else k for k in EVERY],
)


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


class Case:
    """One type's target, two prompts with stock's answers, and what is checked of them."""

    def __init__(self, kind: str):
        model, config = zoo.tiny_model(kind)
        self.own = zoo.TYPES[kind]
        self.said = stock(model, PROMPT)[0]
        self.other = stock(model, OTHER, SHORT)[0]
        self.target = Target(model, Checkpoint(Path(f"tiny-{kind}"), config), frozenset())
        self.begun = 0
        # Where stock's logits depend on the tokens in a pass, prompts have to be read as it does.
        self.chunk = 2048 if "differs" in self.own else CHUNK

    def scripted(self, text: list[int], wrong: Callable[[int], bool]) -> tiny.ScriptedCache:
        """Drafts this text, except for the tokens whose numbers are `wrong`."""
        vocab = self.target.vocab_size
        drafts = [(token + wrong(number)) % vocab for number, token in enumerate(text)]
        return tiny.ScriptedCache(drafts, wrong=False, vocab=vocab, strict=False)

    def check(
        self, drafter: DFlashDrafter | None, length: int = SHORT, **options: Any
    ) -> list[int]:
        """Hold an answer against stock's; how many tokens each pass committed."""
        ((blocks, _),) = self.answers(drafter, [PROMPT], {"max_tokens": length, **options})
        assert tiny.joined(blocks) == self.said[:length]
        return [len(block.tokens) for block in blocks if block.drafted]

    def plain(self) -> None:
        self.check(None, mode="baseline")

    def right(self) -> None:
        text = [*PROMPT, *self.said]
        drafter = tiny.stand_in(lambda: self.scripted(text, lambda _: False))
        assert set(self.check(drafter, mode="dflash", block_size=6)[:-1]) == {6}

    def wrong(self) -> None:
        text = [*PROMPT, *self.said]
        drafter = tiny.stand_in(lambda: self.scripted(text, lambda _: True))
        assert set(self.check(drafter, mode="dflash", block_size=4)) == {1}

    def tree(self) -> None:
        text, vocab = [*PROMPT, *self.said], self.target.vocab_size
        drafter = tiny.stand_in(lambda: Hinted(text, wrong=False, vocab=vocab, strict=True))
        assert max(self.check(drafter, mode="ddtree", tree_budget=10)) > 1

    def hidden_states(self) -> None:
        self.check(random_drafter(self.target), 8, mode="dflash", block_size=4)

    def two_sequences(self) -> None:
        """One with half-right chains and one with trees, where the target can; in shared passes."""
        text, vocab = [*OTHER, *self.other], self.target.vocab_size
        half = self.scripted([*PROMPT, *self.said], lambda number: number % 3 == 0)
        caches = half, Hinted(text, wrong=False, vocab=vocab, strict=True)
        drafter = tiny.stand_in(lambda: copy(caches[self.begun]))
        chain = {"mode": "dflash", "block_size": 5}
        other = {"mode": "ddtree", "tree_budget": 6} if self.target.ability.scattered else chain
        if not self.target.ability.drafts:
            drafter, chain, other = None, {"mode": "baseline"}, {"mode": "baseline"}
        both = self.answers(drafter, [PROMPT, OTHER], chain, other)
        assert [tiny.joined(blocks) for blocks, _ in both] == [self.said[:SHORT], self.other]

    def prefix_cache(self) -> None:
        """A prompt that goes on from an earlier one, and into its answer."""
        engine = Engine(self.target)
        engine.prefix_cache.limit = 1 << 30
        for known in (0, 8):
            prompt = [*PROMPT, *self.said[:known]]
            ((blocks, cached),) = self.answers(engine, [prompt], {"mode": "baseline"})
            assert tiny.joined(blocks) == self.said[known:][:SHORT]
            assert (cached > 0) == (known > 0 and not self.own.get("forgets"))

    def answers(
        self,
        drafter: Engine | DFlashDrafter | None,
        prompts: Sequence[list[int]],
        *options: dict[str, Any],
    ) -> list[tuple[list[Block], int]]:
        """Blocks of answers that are given in turn, and how much of each prompt was cached."""
        engine = drafter
        if not isinstance(engine, Engine):
            engine = Engine(self.target, *([] if engine is None else [engine]))
        engine.scheduler.prompt_chunks.sizes = {0: self.chunk}
        running: list[TokenSequence] = []
        said: list[tuple[list[Block], int]] = []
        for self.begun, (prompt, own) in enumerate(zip(prompts, options, strict=True)):
            running.append(TokenSequence(self.target, *engine.drafters))
            request = Request(tuple(prompt), **{"max_tokens": SHORT, **own})
            said.append(([], engine.begin(running[-1], request, len(prompt) - 1).cached))
        while waiting := [n for n, (blocks, _) in enumerate(said) if not is_done(blocks)]:
            for n, block in zip(waiting, engine.step([running[n] for n in waiting]), strict=True):
                if not isinstance(block, Block):
                    raise block
                said[n][0].append(block)
        return said


def is_done(blocks: list[Block]) -> bool:
    return bool(blocks) and blocks[-1].finish_reason is not None


def random_drafter(target: Target) -> DFlashDrafter:
    sizes = {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size}
    like: Any = SimpleNamespace(config={**tiny.BASE, **sizes}, layers=target.layers)
    taps = {"mask_token_id": tiny.MASK, "target_layer_ids": [0, target.layers - 1]}
    config = parse(tiny.draft_settings(like, dflash_config={**taps, "block_size": 8}))
    model = DraftModel(config, target.hidden_size)
    tiny.randomise(model, 2, 1.0)
    target.tap(config.target_layer_ids)
    return DFlashDrafter(model, target.embed, target.head, target.head_type)


@pytest.mark.every_family
@every_type
def test_drafts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type takes the drafts that zoo.toml says, and its answers are stock's."""
    case = Case(kind)
    ability = case.target.ability
    assert ability.words == case.own.get("can", ALL_DRAFTS.words)
    if ability.drafts:
        case.right()
    if ability.hidden:
        case.hidden_states()
    if ability.scattered:
        case.tree()
    sizes = tiny.count_forwards(case.target, monkeypatch)
    case.two_sequences()
    assert max(sizes) > CHUNK or not ability.scattered, "no pass was shared"


@pytest.mark.slow
@every_type
def test_other_answers(kind: str) -> None:
    """Plain, from a prompt that is known, and with drafts that are always wrong."""
    case = Case(kind)
    case.plain()
    if "differs" not in case.own:
        case.prefix_cache()
    if case.target.ability.drafts:
        case.wrong()
