"""A GPU that fails in the middle of answers, on every surface: the answers stay the same."""

import json
import random
from collections.abc import Callable
from importlib import import_module
from typing import Any

import openai
import pytest
from faulty_gpu import NO_MEMORY, FaultyGPU
from recorded_chat import start_dialogue
from serving import serving
from typer.testing import CliRunner

import dflash_mlx
from dflash_mlx.engine.engine import Engine
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair

# Type checkers cannot follow `dflash_mlx.cli` to its folder.
local = import_module("dflash_mlx.cli.backend.local")

PROMPTS = ("What is 12 plus 7?", "Count from 3 to 9.", "Write a function that adds two numbers.")
FAULTS = [4, pytest.param(50, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return dflash_mlx.load()


def until(count: int, gpu: FaultyGPU, check: Callable[[], None]) -> None:
    """Repeat a check until the GPU has failed `count` times; it passes each time."""
    while gpu.count < count:
        check()


@pytest.mark.parametrize("faults", FAULTS)
def test_chat(pair: Pair, faults: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn after turn of one conversation; each fault is told after the answer."""

    def chat() -> list[str]:
        settings = GenerationOptions(max_tokens=24, mode="dflash")
        talk = start_dialogue(local.LocalBackend(pair), settings, autosaves=False)
        told: list[str] = []
        monkeypatch.setattr(talk, "note", lambda text, *_: told.append(text))
        texts = [talk.ask(prompt).text for prompt in PROMPTS]
        notes.extend(text for text in told if "was read again" in text)
        return texts

    notes: list[str] = []
    wanted = chat()
    assert not notes
    gpu = FaultyGPU(pair.engine, random.Random(1), monkeypatch)

    def check() -> None:
        assert chat() == wanted

    until(faults, gpu, check)
    assert notes


@pytest.mark.parametrize("faults", FAULTS)
def test_serve(pair: Pair, faults: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several clients at once; the log has the notes."""
    with serving(pair, max_sequences=3) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="-", max_retries=0)

        def texts() -> list[str]:
            streams = [
                client.completions.create(
                    model="m", prompt=prompt, max_tokens=24, stream=True, temperature=0.5, seed=7
                )
                for prompt in PROMPTS
            ]
            return ["".join(chunk.choices[0].text for chunk in stream) for stream in streams]

        wanted = texts()
        gpu = FaultyGPU(pair.engine, random.Random(2), monkeypatch)

        def check() -> None:
            assert texts() == wanted

        until(faults, gpu, check)
    assert any("was read again" in str(json.loads(line).get("notes")) for line in served.lines)


@pytest.mark.parametrize("faults", FAULTS)
def test_generate(cli_app: Any, faults: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call loads the pair anew; stdout has the answer, stderr what happened."""
    gpus: list[FaultyGPU] = []

    def generate() -> Any:
        arguments = ["generate", PROMPTS[2], "--max-tokens", "40", "--mode", "dflash"]
        return CliRunner().invoke(cli_app, arguments)

    def faulty(*args: Any, **options: Any) -> Engine:
        engine = Engine(*args, **options)
        gpus.append(FaultyGPU(engine, random.Random(len(gpus)), monkeypatch))
        return engine

    wanted = generate()
    monkeypatch.setattr("dflash_mlx.loaded_pair.Engine", faulty)
    while sum(gpu.count for gpu in gpus) < faults:
        found = generate()
        assert (found.exit_code, found.stdout) == (wanted.exit_code, wanted.stdout)
        assert ("was read again" in found.stderr) == (gpus[-1].count > gpus[-1].harmless)


def test_a_fault_after_a_commit_is_told(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block is given out, and the rounds after it read the text again."""
    wanted = dflash_mlx.generate(pair, PROMPTS[1], max_tokens=40, mode="dflash")
    remember: Any = pair.engine._remember
    faults = []

    def failing(batch: Any) -> None:
        remember(batch)
        if not faults and any(step.block.tokens for step in batch):
            faults.append(NO_MEMORY)
            raise RuntimeError(NO_MEMORY)

    monkeypatch.setattr(pair.engine, "_remember", failing)
    found = dflash_mlx.generate(pair, PROMPTS[1], max_tokens=40, mode="dflash")
    assert faults
    assert found.tokens == wanted.tokens
    assert any("was read again" in note for note in found.stats.notes)
