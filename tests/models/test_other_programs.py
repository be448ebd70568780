"""Programs count the models of others that run; what killed ones have left is dropped."""

import fcntl
import gc
import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import httpx
import mlx.core as mx
import pytest
import tiny
from golden_pair import GOLDEN
from other_program import other_program
from serving import serving
from shelf import SIZE, Shelf, make

import dflash_mlx
from dflash_mlx.engine.prefix_cache.prefix_cache import SHARE, default_limit
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError
from dflash_mlx.files import programs
from dflash_mlx.files.checkpoint import cache_file
from dflash_mlx.files.programs import Notice, ProgramEntry, held_bytes, holders, server_of
from dflash_mlx.hub.registry import find
from dflash_mlx.models import memory
from dflash_mlx.models.memory import (
    CACHES_SHARE,
    WiredMemory,
    check_fits,
    memory_for_caches,
)

GB = 10**9
loading = import_module("dflash_mlx.cli.loading")
options = import_module("dflash_mlx.cli.options")
output = import_module("dflash_mlx.cli.terminal.output")
LocalBackend = import_module("dflash_mlx.cli.backend.local").LocalBackend


def files() -> list[Path]:
    """The files of loaded models, also those that are being written."""
    folder = cache_file("loaded")
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, import_module("dflash_mlx.engine.prefix_cache.prefix_cache")):
        monkeypatch.setattr(module, "working_set", lambda: 20 * GB)
    monkeypatch.setattr(mx, "get_active_memory", lambda: GB)


@pytest.mark.usefixtures("room")
def test_two_other_programs_are_counted_while_they_run() -> None:
    """In the room for caches; not any more after an end, also not after a kill."""
    own = Notice("mine", 7 * GB)
    assert (held_bytes(), memory_for_caches()) == (0, int(CACHES_SHARE * 19 * GB))
    with ExitStack() as context:
        first = context.enter_context(other_program("a/b", 3 * GB))
        second = context.enter_context(other_program("/models/c", 2 * GB))
        found = {entry.pid: (entry.model, entry.nbytes) for entry in holders()}
        assert found == {first.pid: ("a/b", 3 * GB), second.pid: ("/models/c", 2 * GB)}
        assert memory_for_caches() == int(CACHES_SHARE * 14 * GB)
        assert default_limit() == int(SHARE * 14 * GB)
        assert len(files()) == 3
        assert first.stdin is not None
        first.stdin.close()
        first.wait(20)
        assert len(files()) == 2  # it has removed its file itself
        second.send_signal(signal.SIGKILL)
        second.wait(20)
        assert len(files()) == 2
        assert held_bytes() == 0
        assert len(files()) == 1
    own.remove()
    own.remove()
    assert files() == []


@pytest.fixture
def locked(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file with the text of the parameter, of a program that runs."""
    path = cache_file("loaded") / "5.json"
    path.parent.mkdir(parents=True)
    path.write_text(request.param)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def test_a_process_with_the_number_of_one_that_was_killed() -> None:
    """It runs, and does not hold the lock."""
    path = cache_file("loaded") / "1.json"
    path.parent.mkdir(parents=True)
    entry = {"pid": os.getppid(), "model": "a/b", "nbytes": GB, "address": ""}
    path.write_text(json.dumps(entry))
    assert holders() == []
    assert not path.exists()


@pytest.mark.parametrize("locked", ["", "{", "[]", '{"pid": 5}', '{"pid": "x"}'], indirect=True)
def test_a_damaged_file_does_not_count(locked: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert holders() == []
    assert str(locked) in caplog.text
    assert locked.exists()  # it is another program's


@pytest.mark.parametrize("folder", ["/dev/null/nowhere", "/proc/nowhere"])
def test_a_folder_that_cannot_be_written(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pair is loaded, and answers; the log says what is missing."""
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    with caplog.at_level(logging.INFO):
        pair = dflash_mlx.load(cache_ram=0)
        assert holders() == []
    assert "other programs do not see what this one has loaded" in caplog.text
    assert dflash_mlx.generate(pair, "What is 12 plus 7?", max_tokens=4).text


def test_no_room_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(programs.os, "write", full)
    with caplog.at_level(logging.INFO):
        Notice("a/b", GB).remove()
    assert "No space left on device" in caplog.text
    assert files() == []


def test_a_loaded_pair_has_a_file() -> None:
    """One for the target and its drafter, whichever that is, until the target is freed."""
    pair = dflash_mlx.load(cache_ram=0)
    sizes = []
    for _ in range(2):
        (path,) = files()
        entry = json.loads(path.read_text())
        assert (entry["pid"], entry["model"]) == (os.getpid(), "bundled")
        sizes.append(entry["nbytes"])
        pair = tiny.with_drafter(pair, no_draft=True)
    assert sizes[0] > sizes[1] > 10**6
    del pair
    mlx_thread().call(gc.collect)
    assert files() == []


def test_a_context_that_another_program_shortens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is told, with what to do."""
    alone = dflash_mlx.load(cache_ram=0)
    assert LocalBackend(alone).info.warnings == ()
    monkeypatch.setattr(memory, "working_set", lambda: 100 * GB)
    with other_program("/models/large", 100 * GB) as other:
        beside = dflash_mlx.load(cache_ram=0)
        (warning,) = LocalBackend(beside).info.warnings
    assert beside.engine.context_length < alone.engine.context_length
    assert f"process {other.pid} (large, 100.0 GB)" in warning
    assert f"`kill {other.pid}`" in warning
    assert LocalBackend(beside).info.warnings == ()


def test_a_context_that_is_short_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others hold is not told if it makes little difference."""
    engine = dflash_mlx.load(cache_ram=0).engine
    limit = engine.sequence_bytes(2_000)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 0)
    monkeypatch.setattr(memory, "working_set", lambda: int(limit / CACHES_SHARE) + 1)
    pair = dflash_mlx.load(cache_ram=0)
    assert pair.engine.context_length == 2_000
    for nbytes, lines in ((limit // 11, 0), (limit // 9, 1)):
        with other_program("a/b", nbytes):
            assert len(LocalBackend(pair).info.warnings) == lines


OTHERS = [ProgramEntry(71, "a/chat", 2 * GB), ProgramEntry(72, "/models/served", 3 * GB)]


def test_what_others_hold_can_be_the_cause() -> None:
    """They are named where a pair would fit better without them, and only there."""
    named = "process 71 (a/chat, 2.0 GB) and process 72 (served, 3.0 GB)"
    needed = 6 * GB
    assert check_fits(needed, 10 * GB, "a/b") is None
    with pytest.raises(DFlashError) as caught:
        check_fits(needed, 10 * GB, "a/b", others=OTHERS)
    told = f"'a/b' needs 6.0 GB of the 5.0 GB that models may take beside {named}."
    assert caught.value.message == told
    assert caught.value.hint.startswith("end them with `kill 71 72`; ")
    forced = check_fits(needed, 10 * GB, "a/b", others=OTHERS, force=True)
    assert forced
    assert named in forced
    assert "`kill 71 72`" in forced
    warning = check_fits(7 * GB, 10 * GB, "a/b", others=OTHERS[:1])
    assert warning
    assert "beside process 71 (a/chat, 2.0 GB): end that program with `kill 71`" in warning
    assert check_fits(3 * GB, 10 * GB, "a/b", others=OTHERS) is None
    with pytest.raises(DFlashError, match=r"11\.0 GB of the 10\.0 GB .* here\.") as caught:
        check_fits(11 * GB, 10 * GB, "a/b", others=OTHERS)
    assert "kill" not in caught.value.hint
    less = [ProgramEntry(71, "a/chat", 20 * GB)]
    with pytest.raises(DFlashError, match=r"of the 0\.0 GB"):
        check_fits(needed, 10 * GB, "a/b", others=less)


def test_a_model_is_refused_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By folder and by a name of the list; it is taken when the other program has ended."""
    out = output.Output(quiet=True)
    target = options.ModelOptions(model=str(GOLDEN / "target"), no_draft=True)
    limit = loading.find_pair(target, out).memory.total
    short = options.ModelOptions(model="qwen3:4b")
    listed = find("mlx-community/Qwen3-4B-4bit")
    assert listed is not None
    for check, given, needed in (
        (loading.fetch_pair, target, limit),
        (loading.with_known_target, short, listed.memory_bytes),
    ):
        monkeypatch.setattr(memory, "working_set", lambda needed=needed: needed)
        with other_program("a/b", 2) as other:
            with pytest.raises(DFlashError, match=rf"beside process {other.pid} \(a/b") as caught:
                check(given, out)
            assert f"`kill {other.pid}`" in caught.value.hint
        check(given, out)


def test_two_programs_do_not_wire_the_whole_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another one has loaded is as reserved as what macOS keeps."""
    limits: list[int] = []
    monkeypatch.setattr(memory, "by_metal", lambda: True)
    monkeypatch.setattr(memory, "physical_memory", lambda: 20 * GB)
    monkeypatch.setattr(memory, "working_set", lambda: 15 * GB)
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)
    wired = WiredMemory()
    with other_program("a/b", 4 * GB):
        wired.hold(12 * GB)
    wired.release()
    wired.hold(12 * GB)
    assert limits == [9 * GB, 0, 13 * GB]


def test_a_server_that_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error names the other program; when that has ended, the model is loaded."""
    monkeypatch.setattr("dflash_mlx.serve.models.weight_bytes", lambda pair: SIZE)
    monkeypatch.setattr("dflash_mlx.serve.models.working_set", lambda: int(2.5 * SIZE))

    def ask() -> httpx.Response:
        body = {"prompt": "one two three", "model": "pub/a"}
        return httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)

    with serving(mlx_thread().call(make, 1), offers=Shelf()) as served:
        with other_program("a/b", 2 * SIZE) as other:
            reply = ask()
            assert reply.status_code == 503
            message = reply.json()["error"]["message"]
            assert f"beside process {other.pid} (a/b, 2.0 GB)" in message
            assert f"`kill {other.pid}`" in message
        assert ask().status_code == 200


def test_the_server_that_has_a_model() -> None:
    with other_program("a/b", GB, "http://127.0.0.1:8080"), other_program("c/d", GB):
        assert server_of("a/b") == "http://127.0.0.1:8080"
        assert server_of("c/d") is None
    assert server_of("a/b") is None
