"""The first start without a model: three pairs, one key, and a chat that opens at once."""

import os
import re
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import first_start
import pytest
from hub_server import environment as hub_environment
from terminal import Terminal, environment

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.cache import cached_state, repo_folder
from dflash_mlx.hub.registry import find, suggested_pairs

first_model = import_module("dflash_mlx.cli.first_model")
arrival = import_module("dflash_mlx.cli.chat.arrival")
options = import_module("dflash_mlx.cli.options")
output = import_module("dflash_mlx.cli.terminal.output")

NOTHING = options.ModelOptions()
PAIRS = suggested_pairs(first_start.WORKING_SET, 10**13)


@pytest.fixture
def mac(hub: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An M2 without models; the Hub has the first pair that is offered. `key` is what is typed."""
    first_start.pretend(monkeypatch)
    hub.repos.update(first_start.repositories())
    keys = ["1"]
    monkeypatch.setattr(first_model, "read_key", lambda: keys[-1])
    hub.keys = keys
    return hub


def offer(models: Any = NOTHING) -> Any:
    return first_model.offer_models(models, output.Output())


def wait_for_end(download: Any) -> Any:
    """The state of a download that has ended."""
    end = time.monotonic() + 60
    while not download.state.ended:
        assert time.monotonic() < end
        time.sleep(0.01)
    return download.state


def test_three_are_offered(mac: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With size, speed and what each is good at; the speed is called a forecast, not measured."""
    mac.keys.append("n")
    assert offer() is None
    text = capsys.readouterr().err
    assert len(PAIRS) == 3
    for number, pair in enumerate(PAIRS, 1):
        row = next(row for row in text.splitlines() if row.startswith(f"  {number}  "))
        assert pair.target.rpartition("/")[2] in row
        assert output.format_bytes(pair.download_bytes) in row
        assert "~" in row
        assert " tok/s" in row
        assert pair.good in row
    assert "forecast for an Apple M2 without drafts, not measured" in text
    assert mac.requests == 0


@pytest.mark.parametrize("columns", [120, 80, 60, 40])
@pytest.mark.parametrize("limit", [5_700_000_000, 11_800_000_000, 40_000_000_000])
def test_the_rows_fit_the_terminal(columns: int, limit: int) -> None:
    """No row is wider, and at 40 columns all are on a screen of 12 rows, but for long names."""
    pairs = suggested_pairs(limit, 10**13)
    lines = first_model.offer_lines(pairs, "Apple M4 Max", columns)
    assert max(map(len, lines)) < columns
    assert len(lines) <= 12
    assert all(any(pair.good in line for line in lines) for pair in pairs)


def test_an_unknown_chip_has_no_forecast() -> None:
    """Nothing is said of speeds."""
    assert "tok/s" not in " ".join(first_model.offer_lines(PAIRS, "Apple M9", 80))


@pytest.mark.parametrize("key", ["n", "4", "0", "\r", "\x1b", "\x04", ""])
def test_other_keys_download_nothing(mac: Any, key: str) -> None:
    mac.keys.append(key)
    assert offer() is None
    assert mac.requests == 0


def test_one_key_downloads_target_and_drafter(mac: Any) -> None:
    """In the background; the status has the share, then says that the model answers."""
    mac.delay = 0.05
    download = offer()
    assert not download.state.ended
    assert "downloading Qwen3.5-9B-4bit: " in download.status()
    assert "%" in download.status()
    assert wait_for_end(download).complete
    assert download.status() == "Qwen3.5-9B-4bit answers from now on"
    assert cached_state(first_start.TARGET) == cached_state(first_start.DRAFT) == "yes"
    state = download.state
    assert state.done == state.total == sum(map(mac.size, mac.repos))


def test_a_failure_is_told_once(mac: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """At the next prompt, with the command that goes on."""
    mac.refuse_info[first_start.TARGET] = (503, "")
    state = chat_state()
    state.download = offer()
    error = wait_for_end(state.download).error
    assert isinstance(error, DFlashError)
    capsys.readouterr()
    arrival.report_failure(state)
    arrival.report_failure(state)
    assert capsys.readouterr().err.count("the Hub has failed (503)") == 1
    assert arrival.download_status(state) == ""


def test_no_offer_offline_or_without_metal(mac: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offer(replace(NOTHING, offline=True)) is None
    monkeypatch.setattr(first_model, "has_metal", lambda: False)
    assert offer() is None


def test_a_full_disk(mac: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is offered that does not fit."""
    monkeypatch.setattr(first_model, "free_disk", lambda: 1_000_000_000)
    assert offer() is None


def chat_state(target: str = "bundled") -> Any:
    """As much of a chat as an arrival looks at."""
    backend = type("Backend", (), {"target_name": target})()
    dialogue = type("Dialogue", (), {"backend": backend})()
    out = output.Output()
    shown: list[str] = []
    names = {"dialogue": dialogue, "out": out, "download": None, "shown": shown}

    def print_line(self: Any, text: str, style: str = "") -> None:
        shown.append(text)

    return type("State", (), {**names, "print_line": print_line})()


def test_the_arrived_model_is_used_unless_another_one_was_chosen(
    mac: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    monkeypatch.setattr(arrival, "change_model", lambda state, name: used.append(name))
    for target in ("bundled", "owner/other"):
        state = chat_state(target)
        state.download = offer()
        wait_for_end(state.download)
        arrival.use_arrived(state)
        assert state.download is None
    assert used == [first_start.TARGET]
    assert f"/model {first_start.TARGET} uses it" in state.shown[0]


PROGRAM = Path(first_start.__file__)
LOADING = 240.0  # seconds that a busy machine may take to load the bundled pair


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "rows"), [(120, 40), (80, 24), (40, 12)])
def test_the_first_start_in_a_terminal(
    hub: Any, cache: Path, tmp_path: Path, columns: int, rows: int
) -> None:
    """One key, a prompt at once, progress below it; the next prompt goes to the new model."""
    hub.repos.update(first_start.repositories())
    hub.piece, hub.delay = 20_000, 1.0
    env = environment(tmp_path, **settings(hub, cache))
    shown = Terminal([sys.executable, "-P", str(PROGRAM), "chat"], env, columns, rows)
    try:
        shown.wait_for("Press 1, 2 or 3")
        shown.settle()
        assert "These fit:" in shown.screen_text()
        assert "Press 1, 2 or 3 to" in shown.screen_text()
        assert hub.requests == 0
        shown.send("1")
        shown.wait_for("downloading Qwen3.5-9B-4bit: ")
        shown.wait_for("/help lists", LOADING)
        on_screen = shown.screen_text
        last_row = re.compile(r"downloading Qwen3.5-9B-4bit: \d+%[^\n]*\s*\Z")
        shown.wait_until(lambda: last_row.search(on_screen()), "below the prompt")
        hub.delay = 0.0
        shown.wait_until(lambda: "4bit answers from now" in on_screen(), "here")
        shown.send("Hello\r")
        shown.wait_for("drafter z-lab/Qwen3.5-9B-DFlash" if columns > 40 else "drafter")
        shown.wait_for("tok/s")
        shown.settle()
        assert "answers from now on" not in on_screen()
    finally:
        shown.close()


@pytest.mark.slow
def test_leaving_says_how_to_go_on(hub: Any, cache: Path, tmp_path: Path) -> None:
    """The download ends with the chat, and what came is kept."""
    hub.repos.update(first_start.repositories())
    hub.piece, hub.delay = 20_000, 1.0
    env = environment(tmp_path, **settings(hub, cache))
    shown = Terminal([sys.executable, "-P", str(PROGRAM), "chat"], env, 100, 30)
    try:
        shown.wait_for("Press 1, 2 or 3")
        shown.send("1")
        shown.wait_for("/help lists", LOADING)
        shown.prompted()
        shown.wait_until(lambda: cached_state(first_start.TARGET) == "partly", "some bytes")
        shown.send("\x04")
        shown.wait_for(rf"\d+% downloaded: dflash models pull {first_start.TARGET}")
    finally:
        shown.close()
    assert cached_state(first_start.TARGET) == "partly"
    assert repo_folder(first_start.TARGET).is_dir()


def settings(hub: Any, cache: Path) -> dict[str, str]:
    """The variables that lead a program to the fake Hub."""
    names = ("HF_ENDPOINT", "HF_HUB_CACHE", "HF_HUB_DISABLE_XET")
    found = hub_environment(hub.endpoint, cache)
    path = os.pathsep.join((str(PROGRAM.parent), str(PROGRAM.parents[2])))
    return {name: found[name] for name in names} | {"PYTHONPATH": path}


def test_the_pair_is_one_of_the_registry() -> None:
    """The fake Hub has the pair that key 1 means."""
    entry = find(first_start.TARGET)
    assert entry
    assert entry.draft == first_start.DRAFT
    assert PAIRS[0].target == first_start.TARGET
