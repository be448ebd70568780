"""Files of the Hub's cache with the full length and wrong content are found and fetched again."""

import json
from pathlib import Path

import pytest
from hub_server import blob_of, fetch, fetched, tiny_repo
from typer.testing import CliRunner

from dflash_mlx.hub import cache as hub_cache
from dflash_mlx.hub import download

REPO, DRAFT = "owner/model", "owner/draft"
WEIGHTS = "model.safetensors"


@pytest.fixture
def server(hub):
    hub.repos[REPO] = tiny_repo()
    drafter = {**tiny_repo(8000), "config.json": b'{"architectures": ["DFlashDraftModel"]}'}
    hub.repos[DRAFT] = drafter
    return hub


@pytest.fixture
def run(cli_app):
    return lambda *args, **kwargs: CliRunner().invoke(cli_app, [*args], **kwargs)


def blob(repo=REPO, name=WEIGHTS):
    folder = hub_cache.latest_revision(repo)
    assert folder
    return (folder / name).resolve()


def damage(path: Path, offset=-10):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def is_sound(server, repo=REPO):
    folder = hub_cache.latest_revision(repo)
    assert folder
    files = (path for path in folder.iterdir())
    return all(path.read_bytes() == server.repos[repo][path.name] for path in files)


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_pull_fetches_a_damaged_file_again(server, run, name):
    """One wrong byte: only this file is fetched, and the file and its size are named first."""
    fetch(REPO)
    damage(blob(name=name))
    server.asked.clear()
    result = run("models", "pull", "--yes", "--no-draft", REPO)
    assert result.exit_code == 0, result.output
    assert f"'{name}' is damaged" in result.stderr
    assert fetched(server) == [name]
    assert is_sound(server)


def test_pull_says_what_it_would_fetch_and_asks(server, run, monkeypatch):
    """After a no the damaged file is still there."""
    monkeypatch.setattr("dflash_mlx.cli.models.check_can_ask", lambda yes: None)
    fetch(REPO)
    damage(blob())
    wrong = blob().read_bytes()
    result = run("models", "pull", "--no-draft", REPO, input="n\n")
    assert result.exit_code == 1
    assert "20.1 kB of 20.7 kB to download" in result.stderr
    assert blob().read_bytes() == wrong


@pytest.mark.parametrize("command", ["fetch", "download"])
def test_loading_fetches_again_what_it_cannot_read(server, command):
    """The header of the weights is broken; before, this was "incomplete on the Hub" for good."""
    fetch(REPO)
    damage(blob(), 3)
    assert hub_cache.cached_state(REPO) == "partly"
    call = fetch if command == "fetch" else download.download
    call(REPO)
    assert is_sound(server)
    assert hub_cache.cached_state(REPO) == "yes"


def test_damage_is_found_by_the_hash(server):
    """The planted fault: a check that trusts lengths finds nothing."""
    fetch(REPO)
    blobs = hub_cache.blobs_of(blob_folder())
    assert {path.name for path in blobs.values()} == {
        blob_of(name, data)
        for name, data in server.repos[REPO].items()
        if "/" not in name and name != "README.md"
    }
    assert hub_cache.damaged_files(blobs) == []
    seen = []
    damage(blob())
    assert hub_cache.damaged_files(blobs, lambda done, total: seen.append((done, total))) == [
        WEIGHTS
    ]
    total = sum(path.stat().st_size for path in blobs.values())
    assert seen[-1] == (total, total)
    assert not any(path.stat().st_size == 0 for path in blobs.values())


def blob_folder():
    folder = hub_cache.latest_revision(REPO)
    assert folder
    return folder


def test_doctor_reads_a_model(server, run):
    """Target and drafter, each by its files; nothing is asked of the Hub."""
    fetch(REPO)
    fetch(DRAFT)
    before = server.requests
    for flags in (["-m", REPO], ["-d", DRAFT]):
        result = run("doctor", *flags)
        assert result.exit_code == 0, result.output
        assert "5 files" in result.stdout
    assert server.requests == before
    found = json.loads(run("doctor", "-m", REPO, "--json").stdout)
    assert found["ok"] is True
    assert [check["name"] for check in found["checks"]] == ["target"]


def test_doctor_finds_damage_and_names_the_command_that_repairs_it(server, run):
    """Without a terminal it does not fetch."""
    fetch(REPO)
    damage(blob())
    result = run("doctor", "-m", REPO)
    assert result.exit_code == 1
    assert f"'{WEIGHTS}' is damaged" in " ".join(result.stdout.split())
    assert f"dflash models pull {REPO} --no-draft" in " ".join(result.stdout.split())
    assert not is_sound(server)


def test_doctor_fetches_damaged_files_again(server, run, monkeypatch):
    """On a terminal it asks; a damaged drafter, too."""
    monkeypatch.setattr("dflash_mlx.cli.doctor.model.can_ask", lambda: True)
    fetch(REPO)
    fetch(DRAFT)
    damage(blob())
    damage(blob(DRAFT))
    refused = run("doctor", "-m", REPO, "-d", DRAFT, input="n\n")
    assert refused.exit_code == 1
    assert not is_sound(server)
    result = run("doctor", "-m", REPO, "-d", DRAFT, input="y\n")
    assert result.exit_code == 0, result.output
    assert is_sound(server)
    assert is_sound(server, DRAFT)


def test_doctor_of_what_is_not_there(server, run):
    """Neither a failure of the program nor a download."""
    result = run("doctor", "-m", REPO)
    assert result.exit_code == 1
    assert "is not downloaded" in result.stdout
    assert not server.asked
