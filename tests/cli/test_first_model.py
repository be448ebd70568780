"""The first start without a model: three pairs, one key, a download, and the chat with it."""

import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import first_start
import pytest
from hub_server import environment as hub_environment
from terminal import Terminal, environment

from dflash_mlx.hub.cache import cached_state
from dflash_mlx.hub.registry import suggested_pairs

first_model = import_module("dflash_mlx.cli.first_model")
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


def test_three_are_offered(mac: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With size, speed and what each is good at; the speed is called a forecast, not measured."""
    mac.keys.append("n")
    assert offer() is NOTHING
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


@pytest.mark.parametrize("key", ["4", "\r", "\x04", ""])
def test_other_keys_download_nothing(
    mac: Any, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mac.keys.append(key)
    assert offer() is NOTHING
    assert mac.requests == 0
    assert "`dflash models pull` does it later" in capsys.readouterr().err


def test_one_key_downloads_target_and_drafter(mac: Any) -> None:
    assert offer() == replace(NOTHING, model=first_start.TARGET)
    assert cached_state(first_start.TARGET) == cached_state(first_start.DRAFT) == "yes"


def test_after_a_failure_the_bundled_pair_answers(
    mac: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says why, and how to go on."""
    mac.refuse_info[first_start.TARGET] = (503, "")
    assert offer() is NOTHING
    text = capsys.readouterr().err
    assert "the Hub has failed (503)" in text
    assert "run the same command again" in text


def test_no_offer(mac: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, on a full disk, and without Metal; a chip that is not known has no forecast."""
    assert "tok/s" not in " ".join(first_model.offer_lines(PAIRS, "Apple M9", 80))
    offline = replace(NOTHING, offline=True)
    assert offer(offline) is offline
    with monkeypatch.context() as patched:
        patched.setattr("dflash_mlx.hub.download.free_disk", lambda: (Path(), 1_000_000_000))
        assert offer() is NOTHING
    monkeypatch.setattr(first_model, "has_metal", lambda: False)
    assert offer() is NOTHING


PROGRAM = Path(first_start.__file__)
LOADING = 240.0  # seconds that a busy machine may take to load the bundled pair


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 12)])
def test_the_first_start_in_a_terminal(
    hub: Any, cache: Path, tmp_path: Path, columns: int, rows: int
) -> None:
    """One key, progress, then the chat with the new model."""
    hub.repos.update(first_start.repositories())
    hub.piece, hub.delay = 20_000, 0.2
    env = environment(tmp_path, **settings(hub, cache))
    shown = Terminal([sys.executable, "-P", str(PROGRAM), "chat"], env, columns, rows)
    try:
        wait_for_offer(shown)
        assert "These fit:" in shown.screen_text()
        assert "Press 1, 2 or 3 to" in shown.screen_text()
        assert hub.requests == 0
        shown.send("1")
        shown.wait_for(r"[\d.]+/1\.2 MB" if columns > 40 else r"[\d.]+/")
        hub.delay = 0.0
        shown.wait_for("drafter z-lab/Qwen3.5-9B-DFlash" if columns > 40 else "drafter", LOADING)
        shown.prompted()
        shown.send("Hello\r")
        shown.wait_for("tok/s")
    finally:
        shown.close()


@pytest.mark.slow
def test_ctrl_c_stops_the_download(hub: Any, cache: Path, tmp_path: Path) -> None:
    """The bundled pair answers, and the next start goes on from the bytes that came."""
    hub.repos.update(first_start.repositories())
    hub.piece, hub.delay = 20_000, 0.2
    env = environment(tmp_path, **settings(hub, cache))
    command = [sys.executable, "-P", str(PROGRAM), "chat"]
    shown = Terminal(command, env, 100, 30)
    try:
        wait_for_offer(shown)
        shown.send("1")
        shown.wait_for(r"0\.[1-9]/1\.2 MB")
        shown.interrupt()
        shown.wait_for(f"dflash models pull {first_start.TARGET}")
        shown.wait_for("bundled pair", LOADING)
        shown.prompted()
        assert cached_state(first_start.TARGET) == "partly"
        shown.send("\x04")
        shown.leaves(0)
    finally:
        shown.close()
    hub.delay = 0.0
    shown = Terminal(command, env, 100, 30)
    try:
        wait_for_offer(shown)
        shown.send("1")
        shown.wait_for(r"B of 1\.2 MB to download")
        shown.wait_for(f"drafter {first_start.DRAFT}", LOADING)
    finally:
        shown.close()
    assert any(start > 0 for start in hub.starts("model.safetensors"))


def wait_for_offer(shown: Terminal) -> None:
    """Wait until a key is read; what was typed before is lost."""
    shown.wait_for("Press 1, 2 or 3")
    shown.wait_until(shown.reads_keys, "waiting for a key")
    shown.settle()


def settings(hub: Any, cache: Path) -> dict[str, str]:
    names = ("HF_ENDPOINT", "HF_HUB_CACHE", "HF_HUB_DISABLE_XET")
    found = hub_environment(hub.endpoint, cache)
    path = os.pathsep.join((str(PROGRAM.parent), str(PROGRAM.parents[2])))
    return {name: found[name] for name in names} | {"PYTHONPATH": path}
