"""Downloads by the real Hub client from a Hub on the loopback: progress, resuming, and every way to
fail, each as one sentence with a hint. What is not whole is never handed out.
"""

import json
import os
import random
import resource
import shutil
import signal
import time
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from golden_pair import EXPECTED, GOLDEN
from hub_server import (
    GATED,
    blob_of,
    environment,
    fetch,
    fetched,
    hold_lock,
    point_client,
    serve,
    start,
    tiny_repo,
)

import dflash_mlx
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import cache as hub_cache
from dflash_mlx.hub import download

REPO = "owner/model"
WEIGHTS = "model.safetensors"


@pytest.fixture
def server(hub):
    hub.repos[REPO] = tiny_repo()
    return hub


def wanted(server, repo=REPO):
    found = server.repos[repo].items()
    return {name: data for name, data in found if "/" not in name and name != "README.md"}


def content(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def refused(match, call=lambda: fetch(REPO)):
    with pytest.raises(DFlashError, match=match) as caught:
        call()
    error = caught.value
    assert error.message.endswith(".")
    assert error.message.count("\n") == error.hint.count("\n") == 0
    assert error.hint
    return error


def parts(cache):
    return list(cache.rglob(f"*{hub_cache.INCOMPLETE}"))


def sizes(cache):
    """The lengths of the files that are not complete, the longest last."""
    lengths = []
    for part in parts(cache):
        with suppress(FileNotFoundError):  # it has just become complete
            lengths.append(part.stat().st_size)
    return sorted(lengths)


def test_fetch_brings_what_loading_needs(server):
    """And nothing else: no README, no second copy of the weights in a sub-folder."""
    folder = fetch(REPO)
    assert content(folder) == wanted(server)
    assert hub_cache.cached_state(REPO) == "yes"
    assert hub_cache.cached_repos() == [REPO]


def test_fetch_brings_a_tokenizers_code(server):
    """Kimi's tokenizer is Python with a tiktoken.model; a cache without the code is completed."""
    own = server.repos[REPO]
    auto = {"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}}
    own["tokenizer_config.json"] = json.dumps(auto).encode()
    own["tiktoken.model"] = own.pop("tokenizer.json")
    own["tokenization_kimi.py"] = b"raise SystemExit  # fetched, never run"
    own["tool_declaration_ts.py"] = b"raise SystemExit"
    own["kimi/other.py"] = b"not wanted"
    folder = fetch(REPO)
    assert content(folder) == wanted(server)
    (folder / "tokenization_kimi.py").unlink()
    assert hub_cache.cached_state(REPO) == "partly"
    assert content(fetch(REPO)) == wanted(server)


def test_files_of_pytorch_are_refused_by_name(server):
    """Before anything is downloaded; beside safetensors they are left out."""
    for name in ("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "mask_embedding.pt"):
        server.repos[REPO] = {"config.json": b"{}", name: b"weights"}
        refused(f"'{REPO}' has weights in a PyTorch file .'{name}'.,")
    server.repos[REPO] = {"config.json": b"{}"}
    refused("has no safetensors file")
    assert hub_cache.cached_state(REPO) == "no"
    server.repos[REPO] = {**tiny_repo(), "pytorch_model.bin": b"weights"}
    assert "pytorch_model.bin" not in content(fetch(REPO))


def test_progress_counts_every_byte_once(server):
    seen = []
    server.piece = 1000
    fetch(REPO, lambda done, total: seen.append((done, total)))
    total = sum(map(len, wanted(server).values()))
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert {t for _, t in seen} == {total}
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


def test_plan_says_the_size_and_fetches_nothing(server, cache):
    found = download.plan(REPO)
    total = sum(map(len, wanted(server).values()))
    assert (found.total_bytes, found.missing_bytes, found.cached) == (total, total, False)
    assert not cache.exists()
    assert not fetched(server)
    fetch(REPO)
    found = download.plan(REPO)
    assert (found.missing_bytes, found.cached) == (0, True)


def test_a_cut_connection_goes_on_by_itself(server):
    """The bytes that came are not asked for again."""
    server.piece = 1000
    server.cuts = [(WEIGHTS, 5000), (WEIGHTS, 6000)]
    assert content(fetch(REPO)) == wanted(server)
    assert server.starts(WEIGHTS) == [0, 5000, 11000]


def test_a_second_download_goes_on(server, cache):
    """Also when the first gave up, and progress begins at what is there."""
    server.piece = 1000
    server.cuts = [(WEIGHTS, 7000)] + [(WEIGHTS, 0)] * len(download.RETRY_DELAYS)
    error = refused("connection was cut")
    assert "goes on" in error.hint
    assert sizes(cache)[-1] == 7000
    assert hub_cache.cached_state(REPO) == "partly"
    assert len(wanted(server)[WEIGHTS]) - 7000 <= download.plan(REPO).missing_bytes < 20_000
    server.asked.clear()
    seen = []
    assert content(fetch(REPO, lambda done, _: seen.append(done))) == wanted(server)
    assert seen[0] >= 7000
    assert server.starts(WEIGHTS) == [7000]
    assert [asked.has_range for asked in server.asked if asked.name == WEIGHTS] == [True]
    assert parts(cache) == []


def test_a_server_without_ranges_sends_all_again(server):
    """What is there is thrown away, not doubled."""
    server.ranges = False
    server.piece = 1000
    server.cuts = [(WEIGHTS, 5000)]
    seen = []
    folder = fetch(REPO, lambda done, total: seen.append((done, total)))
    assert content(folder) == wanted(server)
    assert seen[-1][0] == seen[-1][1]


def test_damage_on_the_way_is_found(server, cache):
    """The length is right, the hash is not; the bad bytes are gone afterwards."""
    server.damage = {WEIGHTS}
    refused(f"'{WEIGHTS}' arrived damaged")
    blob = blob_of(WEIGHTS, wanted(server)[WEIGHTS])
    assert not [path for path in cache.rglob("blobs/*") if path.name.startswith(blob)]
    server.damage = set()
    assert content(fetch(REPO)) == wanted(server)


def test_parts_from_before(server):
    """One that somebody wrote into, one that is longer than the file, and a complete one: that
    download was killed before it had compared the hash."""
    data = wanted(server)[WEIGHTS]
    part = hub_cache.repo_folder(REPO) / "blobs" / (blob_of(WEIGHTS, data) + hub_cache.INCOMPLETE)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 5000)
    refused("arrived damaged")
    for before, starts in ((b"x" * 50_000, [0]), (data, [])):
        hub_cache.remove(REPO)
        part.parent.mkdir(parents=True)
        part.write_bytes(before)
        server.asked.clear()
        assert content(fetch(REPO)) == wanted(server)
        assert server.starts(WEIGHTS) == starts
        assert not part.exists()


def test_a_second_download_waits_for_the_first(server, cache):
    """It reports the bytes of the first, and no byte is sent twice."""
    server.repos[REPO] = tiny_repo(200_000)
    server.piece, server.delay = 10_000, 0.02
    first = Thread(target=download.download, args=(REPO,))
    first.start()
    wait_for(lambda: sizes(cache)[-1:] > [10_000])
    seen, waits = [], []
    download.download(REPO, lambda done, total: seen.append((done, total)), lambda: waits.append(1))
    first.join()
    assert content(fetch(REPO)) == wanted(server)
    assert server.starts(WEIGHTS) == [0]
    assert waits == [1]
    total = sum(map(len, wanted(server).values()))
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
    assert seen[-1] == (total, total)


@contextmanager
def part_of_another(server):
    """A part with the first 5,000 bytes of the weights, held by another download."""
    data = wanted(server)[WEIGHTS]
    blob = blob_of(WEIGHTS, data)
    part = hub_cache.repo_folder(REPO) / "blobs" / (blob + hub_cache.INCOMPLETE)
    part.parent.mkdir(parents=True)
    part.write_bytes(data[:5000])
    with hold_lock(REPO, blob):
        yield part


@pytest.mark.parametrize("deleted", [False, True])
def test_a_second_download_goes_on_if_the_first_ends(server, deleted):
    """The first was killed, or has deleted what arrived damaged."""
    waits = Event()
    second = Thread(target=download.download, args=(REPO, None, waits.set))
    with part_of_another(server) as part:
        second.start()
        assert waits.wait(60)
        if deleted:
            part.unlink()
    second.join()
    assert server.starts(WEIGHTS) == [0 if deleted else 5000]
    assert content(fetch(REPO)) == wanted(server)


def test_ctrl_c_ends_the_wait(server, cache):
    """At once, although the first download goes on."""
    env = environment(server.endpoint, cache)
    with part_of_another(server) as part:
        process = start(PULL, REPO, env=env)
        wait_for(lambda: hub_cache.cached_bytes(REPO) > 5000)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert "KeyboardInterrupt" in err
        assert part.stat().st_size == 5000


def test_ctrl_c_ends_a_download_that_gets_nothing(server, cache):
    """Long before the Hub is called silent."""
    server.held_above = 10_000
    process = start(PULL, REPO, env=environment(server.endpoint, cache))
    wait_for(lambda: server.starts(WEIGHTS))
    started_at = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - started_at < 10
    assert "KeyboardInterrupt" in err


def test_a_new_version_is_fetched_only_when_asked_for(server):
    """`pull` asks; files that did not change are not fetched again."""
    old = fetch(REPO)
    server.repos[REPO] = {
        **server.repos[REPO],
        "config.json": server.repos[REPO]["config.json"] + b" ",
    }
    before = server.requests
    assert fetch(REPO) == old
    assert server.requests == before
    assert download.plan(REPO).missing_bytes > 0
    assert hub_cache.cached_folder(REPO) == old
    server.asked.clear()
    new = download.download(REPO)
    assert new != old
    assert content(new) == wanted(server)
    assert {asked.name for asked in server.asked} == {"config.json"}
    assert fetch(REPO) == new


def test_refusals(server):
    """Each by name: gated, unknown, other statuses, and what a repository lacks."""
    server.refuse[REPO] = GATED
    assert "hf auth login" in refused("asks for a licence").hint
    refused("asks for a licence", lambda: download.plan(REPO))
    error = refused("there is no model 'owner/other' on the Hub", lambda: fetch("owner/other"))
    assert "spelling" in error.hint
    refused("there is no model", lambda: fetch("owner/with space"))
    server.refuse = {}
    server.refuse_info[REPO] = (418, "")
    refused(r"refuses 'owner/model' \(418\)")
    server.refuse_info = {}
    server.repos[REPO].pop("config.json")
    refused(r"has no config\.json file")
    server.repos[REPO] = {"config.json": b"{}", "model.gguf": b""}
    refused("has no safetensors file")
    server.repos[REPO] = tiny_repo(parts=2)
    server.repos[REPO].pop("model-00002-of-00002.safetensors")
    refused("model-00002-of-00002.safetensors is missing")
    assert hub_cache.cached_state(REPO) == "partly"


@pytest.mark.parametrize(
    ("status", "match"),
    [(429, "too many requests"), (503, r"has failed \(503\)"), (500, r"has failed \(500\)")],
)
def test_an_overloaded_hub(server, status, match):
    """A passing refusal is waited out, a lasting one is said."""
    server.statuses = [(status, {})]
    assert content(fetch(REPO)) == wanted(server)
    hub_cache.remove(REPO)
    server.statuses = [(status, {})] * 99
    assert "goes on" in refused(match).hint
    server.statuses = []
    server.refuse_info[REPO] = (status, "")
    refused(match)


def test_a_hub_that_does_not_answer(server, monkeypatch):
    monkeypatch.setattr(download, "READ_TIMEOUT", 0.1)
    server.piece, server.delay = 10_000, 0.4
    refused("does not answer while")


def test_a_stall_is_told_and_the_rest_comes_in_pieces(server, monkeypatch):
    """A proxy keeps long responses back. Each request waits 20 s in vain, by a simulated clock."""
    server.repos[REPO] = tiny_repo(250_000)
    server.held_above = 100_000
    clock = SimpleNamespace(
        monotonic=lambda: 20.0 * len(server.starts(WEIGHTS)), sleep=lambda seconds: None
    )
    monkeypatch.setattr(download, "time", clock)
    monkeypatch.setattr(download, "READ_TIMEOUT", 0.3)
    monkeypatch.setattr(download, "RETRY_DELAYS", (0.01,) * 4)
    monkeypatch.setattr(download, "PIECE_BYTES", 100_000)
    counts = []
    found = fetch(REPO, lambda *count: counts.append(count))
    assert content(found) == wanted(server)
    assert server.starts(WEIGHTS) == [0, 0, 0, 0, 100_000, 200_000]
    assert sum(a == b for a, b in pairwise(counts) if a[0] < a[1]) == 1


XET = """
from importlib import import_module
import_module("dflash_mlx.cli.loading").prepare_libraries(offline=False)
from huggingface_hub import constants
print(not constants.HF_HUB_DISABLE_XET)
"""


@pytest.mark.parametrize(("chosen", "used"), [(None, "False"), ("0", "True")])
def test_nothing_is_downloaded_by_xet(chosen, used):
    """It has stalled for many, also where `datasets` downloads; whoever wants it, gets it."""
    env = {key: value for key, value in os.environ.items() if key != "HF_HUB_DISABLE_XET"}
    process = start(XET, env=env if chosen is None else {**env, "HF_HUB_DISABLE_XET": chosen})
    out, err = process.communicate(timeout=60)
    assert out.strip() == used, err


def test_nobody_answers(cache, monkeypatch):
    with serve() as gone:
        pass
    point_client(monkeypatch, gone.endpoint, cache)
    refused("not on this machine and the Hub cannot be reached")


def test_the_disk_is_too_small(server, cache, monkeypatch):
    """Said before anything is fetched."""
    small = SimpleNamespace(free=download.RESERVED_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    assert "HF_HOME" in refused("there is no room for 'owner/model'").hint
    assert not fetched(server)
    assert not cache.exists()


def test_the_disk_gets_full(server):
    """While writing; what is there by then stays, and the next try goes on."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    server.piece = 1000
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, limits[1]))
    try:
        assert "goes on" in refused("the disk is full").hint
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert hub_cache.cached_folder(REPO) is None
    server.asked.clear()
    assert content(fetch(REPO)) == wanted(server)
    assert server.starts(WEIGHTS) == [9000]


PULL = """
import sys
from dflash_mlx.hub import download
download.download(sys.argv[1])
"""


def test_a_cache_that_may_not_be_written(server, cache):
    """Any other fault of the disk names the fault."""
    cache.write_text("a file where the folder should be")
    assert "HF_HOME" in refused("cannot be written to the cache").hint


def test_offline(server, cache, monkeypatch):
    """A whole model is used; one that is not there, or half there, has a sentence of its own."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "--offline" in refused("is not on this machine, and offline").hint
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = fetch(REPO)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(REPO) == folder
    refused("is not asked for a newer version", lambda: download.download(REPO))
    (folder / WEIGHTS).unlink()
    assert "pull owner/model" in refused("is downloaded only in part").hint


HARMS = {
    "a missing shard": lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(),
    "a short shard": lambda folder: cut(folder / "model-00001-of-00002.safetensors"),
    "an empty shard": lambda folder: cut(folder / "model-00001-of-00002.safetensors", 0),
    "a damaged index": lambda folder: cut(folder / "model.safetensors.index.json"),
    "a damaged config": lambda folder: cut(folder / "config.json"),
    "a missing tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "a missing template": lambda folder: (folder / "chat_template.jinja").unlink(),
    "a dangling link": lambda folder: (folder / "tokenizer_config.json").resolve().unlink(),
    "no refs": lambda folder: shutil.rmtree(folder.parents[1] / "refs"),
}


def cut(link, size=None):
    """Shorten the blob behind a link, to half when no size is given."""
    path = link.resolve()
    os.truncate(path, path.stat().st_size // 2 if size is None else size)


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_not_whole_is_never_handed_out(server, monkeypatch, harm):
    """Whatever is missing or too short: offline it is refused, online it is downloaded."""
    from huggingface_hub import constants

    server.repos[REPO] = tiny_repo(parts=2)
    HARMS[harm](fetch(REPO))
    assert hub_cache.cached_folder(REPO) is None
    assert hub_cache.cached_state(REPO) == "partly"
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        refused("only in part")
    assert content(fetch(REPO)) == wanted(server)


def test_a_drafter_needs_no_tokenizer(server):
    server.repos[REPO]["config.json"] = b'{"architectures": ["DFlashDraftModel"]}'
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        server.repos[REPO].pop(name)
    assert content(fetch(REPO)) == wanted(server)
    server.repos[REPO]["config.json"] = b'{"model_type": "qwen3"}'
    refused(r"tokenizer\.json is missing", lambda: download.download(REPO))


def test_remove(server, cache):
    """Everything of the model goes, unfinished files too; the rest stays."""
    kept = [f"owner/kept{number}" for number in range(4)]
    for name in (REPO, *kept):
        server.repos[name] = tiny_repo()  # the same content, so the same version id
        fetch(name)
    assert hub_cache.remove(REPO) == sum(map(len, wanted(server).values()))
    assert hub_cache.cached_state(REPO) == "no"
    assert hub_cache.cached_repos() == kept
    server.cuts = [(WEIGHTS, 7000)] + [(WEIGHTS, 0)] * len(download.RETRY_DELAYS)
    refused("connection was cut")
    assert hub_cache.cached_repos() == [*kept, REPO]
    assert hub_cache.remove(REPO) > 7000
    assert parts(cache) == []
    assert hub_cache.remove(REPO) == 0


def test_a_pair_from_the_hub_answers(server, monkeypatch):
    """The golden pair by its ids: downloaded, then offline, then refused when a part is gone."""
    from huggingface_hub import constants

    for part in ("target", "draft"):
        files = {path.name: path.read_bytes() for path in (GOLDEN / part).iterdir()}
        server.repos[f"owner/{part}"] = files
    names = "owner/target", "owner/draft"
    pair = dflash_mlx.load(*names)
    assert (pair.target_name, pair.draft_name) == names
    said = dflash_mlx.generate(pair, EXPECTED["prompts"][1], max_tokens=16).tokens
    assert said == EXPECTED["greedy_tokens"][1][:16]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert dflash_mlx.load(*names).target.path == pair.target.path
    cut(hub_cache.repo_folder(names[1]) / "snapshots" / server.commit(names[1]) / WEIGHTS)
    refused("'owner/draft' is downloaded only in part", lambda: dflash_mlx.load(*names))


# One process that has everything imported forks a child for every download to be killed.
FORKER = """
import os, signal, sys
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url, snapshot_download
from dflash_mlx.hub import download
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            download.download(line.strip())
            code = 0
        finally:
            os._exit(code)
    print(child, flush=True)
"""


def kill_after(forker, server, events, pause):
    """Begin a download and kill -9 it so many events later, unless it is done by then."""
    end = server.events + events
    forker.stdin.write(f"{REPO}\n")
    forker.stdin.flush()
    child = int(forker.stdout.readline())
    try:
        while server.events < end:
            os.kill(child, 0)
            time.sleep(0.001)
        time.sleep(pause)
        os.kill(child, signal.SIGKILL)
        while True:
            os.kill(child, 0)
            time.sleep(0.001)
    except ProcessLookupError:
        return


def assert_sound(server):
    """Offline the model is refused, or is right to the last byte; whether it was there."""
    if hub_cache.cached_folder(REPO) is None:
        refused("offline")
        return False
    assert content(fetch(REPO)) == wanted(server)
    return True


@pytest.mark.slow
def test_killed_downloads_leave_nothing_damaged(server, cache, monkeypatch):
    """kill -9 at 50 random points: never a wrong byte, and the last pull completes."""
    from huggingface_hub import constants

    server.repos[REPO] = tiny_repo(30_000, parts=3)
    server.piece, server.delay = 1000, 0.003
    forker = start(FORKER, env=environment(server.endpoint, cache))
    moments = random.Random(0)
    whole = resumed = 0
    try:
        kill_after(forker, server, 10**9, 0)  # not killed: how much happens in one
        every = server.events
        assert assert_sound(server)
        hub_cache.remove(REPO)
        for _ in range(50):
            with monkeypatch.context() as patch:
                patch.setattr(constants, "HF_HUB_OFFLINE", True)
                server.asked.clear()
                kill_after(forker, server, moments.randrange(every), moments.uniform(0, 0.02))
                resumed += any(asked.start for asked in server.asked)
                if assert_sound(server):
                    whole += 1
                    hub_cache.remove(REPO)
    finally:
        forker.kill()
        forker.communicate()
    assert whole
    assert resumed > 5
    assert content(fetch(REPO)) == wanted(server)


def wait_for(condition):
    """Until it is so; a minute at most."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never was so")
