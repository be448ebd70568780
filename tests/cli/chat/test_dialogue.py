"""A long chat with every kind of going back: each answer is that of its messages alone."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import mlx.core as mx
import pytest
import tiny
from mlx import nn
from recorded_chat import start_dialogue
from text import held_out

import dflash_mlx
from dflash_mlx.engine import engine as engine_module
from dflash_mlx.engine.stats import DraftRecord
from dflash_mlx.errors import UsageError
from dflash_mlx.models import precision
from dflash_mlx.options import GenerationOptions, SamplingParams
from dflash_mlx.pair import Pair

backends = import_module("dflash_mlx.cli.backend.local")
messages = import_module("dflash_mlx.cli.chat.messages")
pages = import_module("dflash_mlx.cli.chat.pages")
transcript = import_module("dflash_mlx.cli.chat.transcript")

SPARE = 32  # tokens of drafts beyond the last one that may be kept
SHORT = 640  # tokens; a long context takes this CPU long to read, and leaves no turn out

ASK = """
import json, sys
import dflash_mlx
pair = dflash_mlx.load(cache_ram=0)
for line in sys.stdin:
    job = json.loads(line)
    result = dflash_mlx.generate(pair, job["messages"], max_tokens=job["most"], think=job["think"])
    print(json.dumps([result.tokens, result.finish_reason]), flush=True)
"""


@pytest.fixture(scope="module")
def bundled() -> Pair:
    return dflash_mlx.load()


@pytest.fixture(scope="module")
def stranger() -> Iterator[Callable[..., Any]]:
    """Another process, in which every prompt is answered from nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(messages: list[Any], most: int, think: bool | None) -> Any:
        job = {"messages": messages, "most": most, "think": think}
        process.stdin.write(json.dumps(job) + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        return json.loads(process.stdout.readline())  # type: ignore[union-attr]

    yield ask
    process.stdin.close()
    assert process.wait(30) == 0


def start(pair: Pair, **changes: Any) -> Any:
    settings = replace(GenerationOptions(max_tokens=48, mode="dflash"), **changes)
    return start_dialogue(backends.LocalBackend(pair), settings)


def stop_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Ctrl-C while the given block of the next answer is counted; 0: before the prompt is read."""
    stats, left = import_module("dflash_mlx.engine.stats").Stats, [number]
    engine = import_module("dflash_mlx.engine.engine").Engine
    record, step = stats.record, engine.step

    def counting(self: Any, block: Any) -> None:
        record(self, block)
        left[0] -= 1
        if left[0] == 0:
            left[0] = -1
            os.kill(os.getpid(), signal.SIGINT)

    def reading(self: Any, sequences: Any) -> Any:
        self.chunk = 16
        if left[0] == 0:
            left[0] = -1
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, sequences)

    monkeypatch.setattr(stats, "record", counting)
    monkeypatch.setattr(engine, "step", reading)


def common(a: list[int], b: list[int]) -> int:
    """Length of the prefix that two lists share."""
    number = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        number += 1
    return number


class Watched:
    """A dialogue whose every answer is held against the stranger's and against the caches."""

    def __init__(self, talk: Any, stranger: Callable[..., Any]):
        self.talk, self.stranger, self.cached = talk, stranger, 0

    def expect(self, chat: Any, prompt: str) -> tuple[Any, int]:
        """What the stranger says to these messages, and how much the caches could give."""
        talk = self.talk
        sent = messages.chat_messages(chat, prompt)
        wanted = self.stranger(sent, talk.settings.max_tokens, talk.settings.think)
        ids = talk.backend.session.tokens(sent, think=talk.settings.think)
        return wanted, common(talk.backend.session.sequence.tokens, ids[:-1])

    def check(self, said: Any, wanted: Any, shared: int) -> None:
        if not said.tokens:
            return
        tokens, reason = wanted
        if said.finish_reason == "interrupted":
            assert said.tokens == tokens[: len(said.tokens)]
        else:
            assert (said.tokens, said.finish_reason) == (tokens, reason)
        assert said.stats.cached_tokens >= shared  # another conversation may give more
        self.cached += said.stats.cached_tokens


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [int(os.environ.get("FIFTY_TURNS", "1"))])
def test_long_chats(
    bundled: Pair,
    stranger: Callable[..., Any],
    seed: int,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random turns, undos, retries, edits, system prompts, thinking, stops and saves.

    FIFTY_TURNS=N runs another chat. Guards: an answer that depends on what was undone, and prompts
    that are read again for nothing.
    """
    monkeypatch.setattr(bundled.target, "context_length", SHORT)
    dice = random.Random(seed)
    prompts = [sample.prompt for sample in held_out(count + seed)][seed:]
    talk = start(bundled)
    watched = Watched(talk, stranger)
    for number, prompt in enumerate(prompts):
        step = dice.choice(
            ["ask", "ask", "ask", "undo", "retry", "edit", "system", "think", "save"]
        )
        with monkeypatch.context() as patch:
            if dice.random() < 0.2:
                stop_at(patch, dice.choice([0, 1, 2, 3]))
            turns = talk.chat.turns
            if step in ("retry", "edit") and turns:
                turn, shorter = talk.split_last_turn()
                text = turn.prompt if step == "retry" else prompt
                expected = watched.expect(shorter, text)
                watched.check(talk.answer_again(text)[1], *expected)
                assert len(talk.chat.turns) == len(turns)
                continue
            if step == "undo" and turns:
                talk.replace_chat(talk.split_last_turn()[1])
            elif step == "system":
                words = dice.choice([None, "Be brief.", "You are a helpful assistant."])
                talk.replace_chat(replace(talk.chat, system=words))
            elif step == "think":
                talk.settings = replace(talk.settings, think=dice.choice([True, False, None]))
            elif step == "save":
                talk.save(f"chat {seed} {number}")
            before = talk.chat
            talk.drop_oldest_turns(prompt, (), talk.chat.turns)
            expected = watched.expect(talk.chat, prompt)
            said = talk.ask(prompt)
            watched.check(said, *expected)
            assert len(talk.chat.turns) == len(before.turns) + bool(said.tokens)
            if talk.file.name:
                assert transcript.load(talk.file.name).turns == talk.chat.turns
    assert watched.cached > 20 * count


def test_the_check_can_fail(bundled: Pair, stranger: Callable[..., Any]) -> None:
    """A chat whose caches keep an undone turn is seen."""
    talk = start(bundled)
    watched = Watched(talk, stranger)
    talk.ask("What is 12 plus 30?")
    talk.replace_chat(talk.split_last_turn()[1])
    prompt = "Reverse the list 1, 2, 3, 4, 5."
    tokens, shared = watched.expect(talk.chat, prompt)
    sequence = talk.backend.session.sequence

    def stale(prompt: tuple[int, ...], *, drafting: bool) -> tuple[int, int]:
        ids = list(prompt)
        sequence.rewind(common(sequence.tokens, ids[:-1]) + 9)
        sequence.tokens[:] = ids[: len(sequence.tokens)]
        return len(sequence.tokens), 0

    sequence.reuse = stale
    said = talk.ask(prompt)
    assert said.tokens != tokens[0]
    with pytest.raises(AssertionError):
        watched.check(said, tokens, shared)


def told_of_the_context(talk: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said, of which the context that is nearly full and then full."""
    told: list[str] = []
    talk.out.note = lambda text, style="": told.append(text)
    monkeypatch.setattr(talk.out, "info", lambda text, style="", end="\n": told.append(text))
    return told


def full_context(told: list[str]) -> str:
    """The line that says so, which comes after a warning."""
    full = [text for text in told if "the context is full" in text]
    soon = [text for text in told if "soon the oldest turns" in text]
    assert told.index(soon[0]) < told.index(full[0])
    return " ".join(full[0].split())


def test_the_oldest_turns_are_left_out(bundled: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a full context: it is said before and when it happens, and the chat goes on.

    That it happens is said to whoever reads stderr, quiet or not.
    """
    monkeypatch.setattr(bundled.target, "context_length", SHORT)
    talk = start(bundled, max_tokens=40)
    told = told_of_the_context(talk, monkeypatch)
    long = "Sort the numbers " + " ".join(str(n) for n in range(12)) + "."
    for _ in range(12):
        said = talk.ask(long)
        assert said.stats.prompt_tokens + said.stats.generated <= talk.context_length
    full = full_context(told)
    assert "(40 of 640 tokens stay free for the answer)" in full
    assert "/compact sends a summary of them" in full
    assert len(talk.chat.turns) == 12
    assert 0 < talk.chat.left_out < 12
    assert talk.chat.summaries == ()
    kept = talk.chat.left_out
    with pytest.raises(UsageError, match="context holds"):
        talk.ask("word " * talk.context_length)
    assert (talk.chat.left_out, len(talk.chat.turns)) == (kept, 12)


@pytest.mark.parametrize("turns", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_a_chat_to_the_end_of_memory(
    bundled: Pair, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose memory holds fewer tokens than the context: it is said, and the chat goes on.

    Passes beyond that memory fail as on a GPU. They are not tried.
    """
    engine = bundled.engine
    with monkeypatch.context() as patch:
        patch.setattr(engine, "memory_limit", None)
        patch.setattr(engine, "_fitting_tokens", None)
        patch.setattr(engine_module, "LEAST_CONTEXT", 300)
        engine.fit_context(engine.sequence_bytes(400))
        talk = start(bundled, max_tokens=40)
        told = told_of_the_context(talk, patch)
        verify = engine._verify

        def with_little_memory(batch: Any) -> None:
            if max(len(s.sequence.tokens) + s.num_tokens for s in batch) > 400 + SPARE:
                raise RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory.")
            verify(batch)

        patch.setattr(engine, "_verify", with_little_memory)
        assert "context 400 of 4,096 (memory)" in pages.start_summary(talk.info, 0.0)
        long = "Sort the numbers " + " ".join(str(n) for n in range(12)) + "."
        said = [talk.ask(f"{long} Time {number}.") for number in range(turns)]
        rows = dict(talk.backend.rows(talk.settings))
    assert not any(answer.stats.notes for answer in said)
    full_context(told)
    assert len(talk.chat.turns) == turns
    kept = [turn.answer.strip() for turn in talk.chat.turns]
    assert kept == [answer.text.strip() for answer in said]
    assert rows["context"] == "400 of 4,096 (memory)"


def untrained_pair() -> Pair:
    target = tiny.make_target("qwen3", vocab_size=272)
    return tiny.make_pair(target, tiny.random_drafter(target), "tiny", "random")


def told_in(talk: Any, prompts: Sequence[str]) -> list[str]:
    told: list[str] = []
    talk.out.note = lambda text, style="": told.append(" ".join(text.split()))
    for prompt in prompts:
        talk.ask(prompt)
    return told


def test_low_acceptance_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards silence about a drafter that costs more than it saves."""
    monkeypatch.setattr("dflash_mlx.engine.stats.FEWEST_PASSES", 1000)
    told = told_in(start(untrained_pair(), max_tokens=100), ["hello"] * 3)
    low = [text for text in told if "low acceptance" in text]
    assert len(low) == 1
    assert "/draft off" in low[0]


@pytest.mark.parametrize(("mode", "fewest"), [("dflash", 12), ("auto", 3)])
def test_a_drafter_of_no_use_is_told_once(
    monkeypatch: pytest.MonkeyPatch, mode: Any, fewest: int
) -> None:
    """With likely causes, in the place of the hint above; also where auto stops drafting early."""
    monkeypatch.setattr("dflash_mlx.engine.stats.FEWEST_PASSES", fewest)
    pair = untrained_pair()
    told = told_in(start(pair, max_tokens=100, mode=mode), ["hello"] * 3)
    (alarm,) = [text for text in told if "almost no draft was accepted" in text]
    assert "the drafter random was made for another target or chat template" in alarm
    assert "bits" not in alarm
    assert "float16" not in alarm
    assert not any("low acceptance" in text for text in told)


def test_causes_are_those_that_can_be() -> None:
    pair = untrained_pair()
    assert pair.drafter is not None
    nn.quantize(pair.drafter.model, bits=8, class_predicate=precision.quantisable)
    pair.drafter.model.set_dtype(mx.float16)
    said = backends.useless_drafter(pair)
    assert "its 8 bits are too few (--draft-bits none keeps all)" in said
    assert "it computes in float16, which fails on M1 and M2" in said


@pytest.mark.parametrize("mode", ["dflash", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_a_drafter_that_fits_is_not_blamed(
    bundled: Pair, monkeypatch: pytest.MonkeyPatch, mode: Any, temperature: float
) -> None:
    """Whatever is asked; samples that nobody can guess are not counted."""
    record = DraftRecord()
    monkeypatch.setattr(bundled.engine.scheduler, "draft_record", record)
    talk = start(bundled, mode=mode, sampling=SamplingParams(temperature=temperature, seed=1))
    prompts = ["What is 25 plus 17?", "Tell me about birds.", "xq zzv", "Why?", "1 2 3 4"]
    assert not any("almost no draft" in text for text in told_in(talk, prompts))
    assert record.passes == 0 if temperature > 1 else record.passes >= 6
