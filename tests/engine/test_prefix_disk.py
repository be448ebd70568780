"""The prefix cache on disk: it survives a restart, a kill and a damaged file, and nothing that it
gives is anything but what would have been read."""

import os
import random
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from engines import EVERY_MODE, answer, target_of
from paths import SUPPORT, TESTS

import dflash_mlx
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.prefix_cache.disk import (
    ROOT,
    DiskCache,
    Record,
    cache_files,
    evict,
    parse_arrays,
    write_arrays,
)
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.errors import UsageError

GB = 1 << 30


def engine_of(family: str, root: Path | None = None, limit: int = GB) -> Engine:
    """An engine as after a start: nothing in memory, and what the folder has."""
    target = target_of(family)
    engine = Engine(target, tiny.random_drafter(target))
    if root is not None:
        engine.prefix_cache.limit = GB
        engine.prefix_cache.disk = DiskCache(family, "tiny", "random", limit, root)
    return engine


@pytest.mark.parametrize("family", [*tiny.FAMILIES, *tiny.QUANTISED])
def test_a_restart_reads_only_the_rest(family: str, tmp_path: Path) -> None:
    """Each mode after one another; the answers are those that reading it all gives."""
    anew, begun = engine_of(family), tiny.prompt_of(70, 3)
    said, _ = answer(engine_of(family, tmp_path), begun)
    for number, options in enumerate(EVERY_MODE):
        prompt = [*begun, *said, *tiny.prompt_of(5, number)]
        found, cached = answer(engine_of(family, tmp_path), prompt, **options)
        assert found == answer(anew, prompt, **options)[0]
        assert cached >= len(begun) + len(said) - 1


@pytest.mark.parametrize("family", ["qwen3", "llama_sliding", "qwen3_5"])
def test_branches_come_back_too(family: str, tmp_path: Path) -> None:
    """A tree of prompts, with a restart after each, at a limit that holds a part of them."""
    dice, anew, texts = random.Random(1), engine_of(family), [tiny.prompt_of(60, 1)]
    saved = 0
    for number in range(10):
        text = dice.choice(texts)
        cut = dice.choice((len(text), len(text) // 2))
        prompt, options = [*text[:cut], *tiny.prompt_of(12, number)], dice.choice(EVERY_MODE)
        engine = engine_of(family, tmp_path, limit=300_000)
        found, cached = answer(engine, prompt, **options)
        assert found == answer(anew, prompt, **options)[0]
        saved += cached
        texts.append([*prompt, *found])
    assert saved > 100
    assert 0 < sum(file.nbytes for file in cache_files(tmp_path)) <= 300_000


def test_a_drafter_left_out_is_caught_up(tmp_path: Path) -> None:
    """Rows that the target read alone serve no drafting, until the drafter has read them too."""
    prompt = tiny.prompt_of(60, 2)
    counts = [
        answer(engine_of("qwen3", tmp_path), prompt, mode=mode)[1]
        for mode in ("baseline", "baseline", "dflash", "dflash")
    ]
    assert counts == [0, 59, 0, 59]


def test_memory_may_be_smaller_than_the_disk(tmp_path: Path) -> None:
    """What leaves memory comes back from disk; a prompt too big for memory takes what fits."""
    engine, prompts = engine_of("qwen3", tmp_path), [tiny.prompt_of(80, n) for n in range(5)]
    answer(engine, prompts[0])
    engine.prefix_cache.limit = 2 * engine.prefix_cache.nbytes
    for prompt in (*prompts, *prompts):
        answer(engine, prompt)
    assert engine.prefix_cache.nbytes <= engine.prefix_cache.limit
    assert [answer(engine, prompt)[1] for prompt in prompts] == [79] * 5
    engine.prefix_cache.limit = 10_000
    assert answer(engine, prompts[0]) == (answer(engine_of("qwen3"), prompts[0])[0], 0)


def serves(file: Path, length: int) -> bool:
    """Whether a prompt that goes on from so many tokens needs a file."""
    record = Record.of(file)
    assert record is not None
    return record.end == length if record.part == "states" else record.start < length


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("kind", ["target", "draft", "states"])
def test_a_damaged_file_is_dropped_with_a_note(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One bit, anywhere: no answer changes, the file is gone, and a warning says so."""
    prompt, anew = tiny.prompt_of(50, 4), engine_of("qwen3_5")
    wanted, dice = answer(anew, prompt)[0], random.Random(3)
    for number in range(12):
        answer(engine_of("qwen3_5", tmp_path), prompt)
        file = next(f for f in tmp_path.glob(f"*/*.{kind}.*") if serves(f, 49))
        data = bytearray(file.read_bytes())
        place = dice.randrange(len(data)) if number else len(data) // 2
        data[place] ^= 1 << dice.randrange(8)
        file.write_bytes(bytes(data) if number % 4 else bytes(data)[: len(data) // 2])
        caplog.clear()
        assert answer(engine_of("qwen3_5", tmp_path), prompt)[0] == wanted
        assert "was damaged" in caplog.text
    assert answer(engine_of("qwen3_5", tmp_path), prompt) == (wanted, 49)


def test_a_file_of_another_text_is_not_taken(tmp_path: Path) -> None:
    """A sound file under the name of another one's tokens; and one with a drafter's row less."""
    prompts = [tiny.prompt_of(50, n) for n in (5, 6)]
    for prompt in prompts:
        answer(engine_of("qwen3", tmp_path), prompt)
    one, other = tmp_path.glob(f"*/{ROOT}.*.target.safetensors")
    shutil.copy(one, other)
    anew = engine_of("qwen3")
    for prompt in prompts:
        assert answer(engine_of("qwen3", tmp_path), prompt)[0] == answer(anew, prompt)[0]
    for file in tmp_path.glob("*/*.draft.safetensors"):
        arrays = parse_arrays(str(file), file.name)
        arrays |= {n: mx.contiguous(a[..., 1:, :]) for n, a in arrays.items() if n[0] == "0"}
        mx.eval(arrays)
        write_arrays(file, arrays)
    for prompt in prompts:
        assert answer(engine_of("qwen3", tmp_path), prompt) == (answer(anew, prompt)[0], 0)


def test_states_of_another_text_are_not_taken(tmp_path: Path) -> None:
    """They have no tokens of their own, only the name that they were written with."""
    prompts = [tiny.prompt_of(50, n) for n in (5, 6)]
    for prompt in prompts:
        answer(engine_of("qwen3_5", tmp_path), prompt)
    one, other = tmp_path.glob(f"*/{ROOT}.*.0.49.states.safetensors")
    shutil.copy(one, other)
    found = [answer(engine_of("qwen3_5", tmp_path), prompt) for prompt in prompts]
    assert sorted(cached for _, cached in found) == [0, 49]
    assert [said for said, _ in found] == [answer(engine_of("qwen3_5"), p)[0] for p in prompts]


def test_the_oldest_leaf_goes_first(tmp_path: Path) -> None:
    """A beginning stays as long as a text that goes on from it, and as the same of another pair."""
    files = {}
    for age, (folder, parent, name) in enumerate(
        [("a", "0", "x"), ("b", "0", "x"), ("a", "x", "y"), ("a", "x", "z"), ("a", "y", "w")]
    ):
        for part in ("target", "draft"):
            file = tmp_path / folder / f"{parent}.{name}.0.1.{part}.safetensors"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(bytes(10))
            os.utime(file, ns=(age, age))
        files[folder + name] = file
    gone = []
    for limit in range(99, 0, -20):
        evict(tmp_path, limit)
        gone += [name for name, file in files.items() if not file.exists() and name not in gone]
    assert gone == ["bx", "az", "aw", "ay", "ax"]


def test_nothing_is_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the drafter reads later, and a longer answer, go to files of their own."""
    written: list[str] = []
    monkeypatch.setattr(
        "dflash_mlx.engine.prefix_cache.disk.write_arrays",
        lambda path, arrays: written.append(path.name) or write_arrays(path, arrays),
    )
    engine = engine_of("qwen3_5", tmp_path)
    prompt = tiny.prompt_of(60, 2)
    other = engine_of("qwen3_5", tmp_path)
    monkeypatch.setattr(other.prefix_cache.disk, "new_records", list)  # it has not looked yet
    for options in ({"mode": "baseline"}, {"mode": "dflash"}, {"max_tokens": 14}):
        for one in (engine, engine_of("qwen3_5", tmp_path), other):
            answer(one, prompt, **options)
    assert len(written) == len({*written}) == len([*tmp_path.glob("*/*.safetensors")])


def test_only_the_owner_reads(tmp_path: Path) -> None:
    """Files and folders of ours, whatever the umask and whatever was there."""
    root = tmp_path / "prefixes"
    root.mkdir(mode=0o755)
    before = os.umask(0)
    try:
        answer(engine_of("qwen3", root), tiny.prompt_of(40))
    finally:
        os.umask(before)
    found = [root, *root.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}


def test_a_full_disk_is_said_and_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing half written stays, nothing more is tried, and times of use may stay as they are."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    engine = engine_of("qwen3")
    prompt = tiny.prompt_of(40)
    monkeypatch.undo()
    engine = engine_of("qwen3", tmp_path)
    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(os, "utime", full)
    answer(engine, prompt)
    assert answer(engine, prompt)[1] == 39  # from memory
    assert caplog.text.count("cannot be written (No space left on device)") == 1
    assert not [*tmp_path.glob("*/*safetensors*")]


def killed_answers(family: str, root: Path, count: int) -> None:
    """Answer in another process that is killed; then hold what it left against reading anew."""
    dice, anew = random.Random(5), engine_of(family)
    wanted = {n: answer(anew, tiny.prompt_of(300, n))[0] for n in range(4)}
    kept = 0
    for _ in range(count):
        script = (
            f"import sys; sys.path[:0] = {[str(SUPPORT), str(TESTS / 'engine')]!r}\n"
            "import dflash_mlx, pathlib, tiny, test_prefix_disk as t\n"
            f"e = t.engine_of({family!r}, pathlib.Path({str(root)!r}))\n"
            "print('ready', flush=True)\n"
            "while True:\n"
            "    for n in range(4):\n"
            "        t.answer(e, tiny.prompt_of(300, n))\n"
            "    for file in e.prefix_cache.disk.path.glob('*.safetensors'):\n"
            "        file.unlink()\n"
            "    e.prefix_cache.clear()\n"
        )
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(dice.random() * 1.5)
        child.kill()
        child.communicate()
        engine = engine_of(family, root)
        assert not [*root.glob("*/*.part*")]
        for n in range(4):
            found, cached = answer(engine, tiny.prompt_of(300, n))
            assert found == wanted[n]
            kept += cached
        shutil.rmtree(root)
    assert kept > 0


@pytest.mark.parametrize("family", ["qwen3_5"])
def test_a_killed_program_leaves_no_damaged_answer(family: str, tmp_path: Path) -> None:
    """A small slice of the next test."""
    killed_answers(family, tmp_path / "root", 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kills"), [("qwen3", 10), ("llama_sliding", 10), ("qwen3_5", 50)]
)
def test_fifty_killed_programs_leave_no_damaged_answer(
    family: str, kills: int, tmp_path: Path
) -> None:
    """kill -9 at 50 random moments of answering and writing: rows, and recurrent states."""
    killed_answers(family, tmp_path / "root", kills)


def test_two_engines_share_a_folder(tmp_path: Path) -> None:
    """What one has written the other takes, also after it has looked; what one removes is read."""
    one, other = engine_of("qwen3", tmp_path), engine_of("qwen3", tmp_path)
    prompt = tiny.prompt_of(60, 1)
    assert answer(other, tiny.prompt_of(30, 9))[1] == 0
    answer(one, prompt)
    assert answer(other, prompt)[1] == 59
    third = engine_of("qwen3", tmp_path)
    third.prefix_cache.records_to_read(
        Sequence(third.target, *third.drafters), prompt, drafting=True
    )
    for file in tmp_path.glob("*/*.safetensors"):
        file.unlink()
    assert answer(third, prompt) == (answer(engine_of("qwen3"), prompt)[0], 0)
    shutil.rmtree(tmp_path / "qwen3")  # as `dflash cache rm --all` does
    assert answer(third, prompt)[1] == 59


def test_what_a_killed_writer_leaves_is_removed(tmp_path: Path) -> None:
    """And not what another process is writing."""
    engine_of("qwen3", tmp_path)
    gone = subprocess.Popen(["true"])
    gone.wait()
    for process in (gone.pid, os.getpid()):
        (tmp_path / "qwen3" / f"x.part{process}-1").touch()
    engine_of("qwen3", tmp_path)
    assert [file.name for file in tmp_path.rglob("*.part*")] == [f"x.part{os.getpid()}-1"]


def test_loaded_pairs_keep_apart(tmp_path: Path) -> None:
    """A changed model file, a drafter, its bits, exactness, bits of the cache: all keep apart."""
    target, draft = tiny.save_pair(tmp_path, tiny.draft_settings, head_dim=32)
    prompt = tiny.prompt_of(50, 1)

    def cached(**options: Any) -> int:
        pair = dflash_mlx.load(target, draft, **{"cache_disk": GB, **options})
        found = dflash_mlx.generate(pair, prompt, max_tokens=4)
        same = {name: value for name, value in options.items() if name in ("exact", "kv_bits")}
        fresh = dflash_mlx.load(target, draft, cache_ram=0, **same)
        assert found.tokens == dflash_mlx.generate(fresh, prompt, max_tokens=4).tokens
        if pair.engine.prefix_cache.disk is not None:
            pair.engine.prefix_cache.disk.wait()
        return found.stats.cached_tokens

    assert [cached(), cached()] == [0, 49]
    assert cached(cache_disk=0) == 0
    assert cached(draft_bits=8) == 0
    assert cached(exact=True) == 0
    assert [cached(kv_bits=8), cached(kv_bits=4), cached(kv_bits=8)] == [0, 0, 49]
    file = target / "model.safetensors"
    times, data = file.stat(), bytearray(file.read_bytes())
    data[-2] ^= 64  # a weight, and the same size and time
    file.write_bytes(bytes(data))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [cached(), cached()] == [0, 49]
    with pytest.raises(UsageError, match="needs some memory"):
        dflash_mlx.load(target, draft, cache_ram=0, cache_disk=GB)
