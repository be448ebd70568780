"""A rank or the launcher is killed, stopped or cut off at any moment: all end, nothing is lost.

In a terminal, with chats that save and a server that streams. LOSSLESS=all runs fifty moments.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from launched import CUT, KILL, LAUNCHER, LONG, STOP, Launched
from prompt_toolkit.history import FileHistory
from ranks import Job, save_family
from tiny import ALL

transcript = import_module("dflash_mlx.cli.chat.transcript")
LINUX = Path("/proc/self/environ").exists()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LINUX, reason="looks for processes as Linux shows them"),
]
HEADS = {"num_attention_heads": 12, "num_key_value_heads": 12}
NUMBERS = r"\d+ tokens[^\n]*prompt [\d,]+ new"
PHASES = ("start", "prefill", "rounds", "idle", "saving", "streaming", "waiting")
MOMENTS = range(50) if ALL else (26, 32)  # a server whose rank 0 is cut off, a chat that saves
# Seconds in which all have to end; longer where ranks, which wait busily, share the cores.
LIMIT = 10.0 if (os.cpu_count() or 1) >= 8 else 40.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A tiny pair that two, three and four ranks can share, and whose answers do not end."""
    found = save_family(tmp_path_factory.mktemp("pair"), "qwen3_untied", **HEADS)
    weights: Any = mx.load(f"{found[0]}/model.safetensors")
    head = weights["lm_head.weight"]
    weights["lm_head.weight"] = mx.where(mx.arange(head.shape[0])[:, None] < 90, head, 0.0)
    mx.save_safetensors(f"{found[0]}/model.safetensors", weights)
    return found


@contextmanager
def launched(folder: Path, count: int, *command: str, pair: Job) -> Iterator[Launched]:
    """A group, of which nothing is left in the end."""
    folder.mkdir()
    found = Launched(folder, count, *command, pair=pair)
    try:
        yield found
    finally:
        found.close()


def moment(folder: Path, pair: Job, phase: str, dice: random.Random, usual: float) -> list[Any]:
    """One loss at a random moment of a phase: what was done, and the seconds until all had ended.

    `usual`: the seconds until a group answers, which come last, as this one's.
    """
    count = dice.choice((2, 2, 2, 3, 4))
    how = dice.choice((KILL, STOP, CUT))
    victim: Any = dice.choice((0, 1, count - 1, *([LAUNCHER] if how == KILL else [])))
    later, asked = dice.random(), ["first"]
    serves = phase in ("streaming", "waiting")
    command = ["serve"] if serves else ["chat", "--max-tokens", "24"]
    with launched(folder, count, *command, pair=pair) as group:
        terminal = group.terminal
        if phase == "start":
            asked = []
            terminal.wait_until(lambda: victim in group.ranks(), "there")
            group.pass_time(later * usual)
        else:
            usual = group.ready()
        if phase == "streaming":
            group.ask(clients=3)
        elif phase in ("prefill", "rounds", "idle", "saving"):
            terminal.prompted()
            terminal.send("first\r")
            terminal.wait_for(NUMBERS)
            terminal.prompted()
        if phase in ("prefill", "rounds"):
            terminal.send("/set max-tokens 3000\r")
            terminal.wait_for("3000|3,000")
            terminal.prompted()
        if phase in ("prefill", "rounds", "saving"):
            terminal.send((LONG if phase == "prefill" else "second") + "\r")
        if phase == "rounds":
            terminal.wait_for("tok/s")
            asked.append("second")
        group.pass_time(later)
        took = group.lose(victim, how, LIMIT)
        if not serves:
            check_saved(asked[: 1 if (victim, how) == (0, KILL) else None])
        for client in group.clients:
            assert client.status == 200
            assert b"[DONE]" not in client.body
    return [phase, count, victim, how, round(later, 2), round(took, 1), round(usual, 1)]


def check_saved(asked: list[str]) -> None:
    """Chats and history can be read, and have these prompts and their answers."""
    found = [turn for name in transcript.chat_names() for turn in transcript.load(name).turns]
    assert [turn.prompt for turn in found][: len(asked)] == asked
    assert all(turn.answer for turn in found[: len(asked)])
    history = transcript.data_path() / "history"
    prompts = [*FileHistory(str(history)).load_history_strings()] if asked else []
    assert set(asked) <= set(prompts)


def test_any_rank_at_any_moment(
    tmp_path: Path, pair: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No hang, no process left, nothing lost that was saved; clients get an error or the end."""
    usual, faults = 10.0, []
    for number in MOMENTS:
        folder = tmp_path / str(number)
        monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
        phase = PHASES[number % len(PHASES)]
        try:
            done = moment(folder, pair, phase, random.Random(number), usual)
            usual = done[-1]
        except AssertionError as error:
            done = [f"{phase}: {error}"]
            faults.append(done)
        with capsys.disabled() if ALL else nullcontext():
            print(number, *done, flush=True)
    assert not faults


def test_the_end_of_the_launcher_is_noticed(
    tmp_path: Path, pair: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 went on without it, and with it all others."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "0" / "data"))
    with launched(tmp_path / "0", 2, "chat", pair=pair) as group:
        group.ready()
        group.lose(LAUNCHER, KILL, LIMIT)
