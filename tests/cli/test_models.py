"""`dflash models`: the table, downloads and deletions, in this process and in a terminal."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from threading import Timer

import pytest
from hub_server import GATED, blob_of, environment, fetched, hold_lock, tiny_repo
from terminal import Terminal
from typer.testing import CliRunner

from dflash_mlx.files.model_types import is_known
from dflash_mlx.hub import cache as hub_cache
from dflash_mlx.hub import registry

REPO, DRAFT = "owner/model", "owner/draft"
KNOWN = "mlx-community/Qwen3-4B-4bit"
EIGHT_BIT = "mlx-community/Qwen3-4B-8bit"
KNOWN_DRAFT = "z-lab/Qwen3-4B-DFlash-b16"


@pytest.fixture
def server(hub):
    hub.repos = {name: tiny_repo() for name in (REPO, KNOWN, EIGHT_BIT)}
    drafter = {**tiny_repo(8000), "config.json": b'{"architectures": ["DFlashDraftModel"]}'}
    hub.repos |= {DRAFT: drafter, KNOWN_DRAFT: drafter}
    return hub


@pytest.fixture
def run(cli_app):
    return lambda *args, **kwargs: CliRunner().invoke(cli_app, ["models", *args], **kwargs)


@pytest.fixture
def pull(run):
    def go(*args):
        result = run("pull", "--yes", *args)
        assert result.exit_code == 0, result.output
        return result

    return go


@pytest.fixture
def terminal(monkeypatch):
    module = import_module("dflash_mlx.cli.models")
    monkeypatch.setattr(module, "check_can_ask", lambda yes: None)


def rows(run):
    result = run("list", "--json")
    assert result.exit_code == 0, result.output
    found = {}
    for row in json.loads(result.stdout):
        found.setdefault(row["target"], row)
    return found


def test_list_in_a_pipe(server, run):
    """Tabs, one line a pair, whatever the width; nothing is asked of the Hub."""
    result = run("list", "--all")
    assert (result.exit_code, result.stderr) == (0, "")
    head, *lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert head == ["TARGET", "DRAFTER", "KIND", "BLOCK", "SIZE", "MEMORY", "CACHED", "FITS"]
    assert {len(line) for line in lines} == {8}
    known = next(line for line in lines if line[0] == KNOWN)
    assert known[1:7] == [KNOWN_DRAFT, "DFlash", "16", "~2.3+1.1 GB", "~3.4 GB", "no"]
    assert {line[7] for line in lines} <= {"yes", "tight", "no", "not yet", "?"}
    assert server.requests == 0


def test_list_has_every_drafter_once_with_the_published_target(server, run):
    """The versions of a target have a row each, with the drafter that is taken."""
    lines = [line.split("\t") for line in run("list", "--all").stdout.splitlines()[1:]]
    published = [entry for entry in registry.entries() if not entry.quant]
    assert len(lines) == len(published) + sum(bool(e.quant) for e in registry.best_known())
    drafters = [line[1:3] for line in lines if line[0] == "Qwen/Qwen3.8-27B"]
    assert drafters[0] == ["z-lab/Qwen3.8-27B-DFlash2", "DFlash 2"]
    assert ["in the target's files", "MTP head"] in drafters
    assert sum(line[0] == KNOWN for line in lines) == 1


def test_list_says_what_fits(run, server, monkeypatch):
    """Against the working set of this machine."""
    entry = registry.find(KNOWN)
    assert entry
    assert entry.memory_bytes
    for share, word in ((0.7, "yes"), (0.9, "tight"), (1.1, "no")):
        limit = int(entry.memory_bytes / share)
        monkeypatch.setattr("dflash_mlx.models.memory.working_set", lambda limit=limit: limit)
        assert rows(run)[KNOWN]["fits"] == word


def test_list_says_what_is_cached(run, server, pull):
    """A pair, its target alone, a part of it; and models of no known pair."""
    assert rows(run)[KNOWN]["cached"] == "no"
    pull(KNOWN, "--no-draft")
    assert rows(run)[KNOWN]["cached"] == "target only"
    pull(KNOWN)
    assert rows(run)[KNOWN]["cached"] == "yes"
    folder = hub_cache.cached_folder(KNOWN_DRAFT)
    assert folder
    (folder / "model.safetensors").unlink()
    assert rows(run)[KNOWN]["cached"] == "partly"
    pull(REPO, "--no-draft")
    other = rows(run)[REPO]
    assert (other["cached"], other["draft"], other["fits"]) == ("yes", None, "yes")
    assert other["target_bytes"] == hub_cache.cached_bytes(REPO)
    assert KNOWN_DRAFT not in rows(run)


def test_the_short_list(run, server, pull, monkeypatch):
    """What is here, then one form of each model that fits and runs; --json has all as ever."""
    monkeypatch.setattr("dflash_mlx.models.memory.working_set", lambda: 7_000_000_000)
    every = rows(run)

    def short():
        head, *lines = [line.split("\t") for line in run("list").stdout.splitlines()]
        assert head[0] == "TARGET"
        return {line[0]: line for line in lines}

    names = list(short())
    assert names[:3] == [
        "LiquidAI/LFM2.5-1.2B-Instruct-MLX-4bit",
        "mlx-community/Qwen3-1.7B-4bit",
        "LiquidAI/LFM2.5-2.6B-MLX-4bit",
    ]
    assert KNOWN in names
    assert 3 < len(names) < 13
    assert all(every[name]["fits"] in ("yes", "tight") for name in names)
    pull(EIGHT_BIT, "--no-draft")
    pull(REPO, "--no-draft")
    found = short()
    assert list(found)[:2] == [EIGHT_BIT, REPO]
    assert KNOWN not in found
    assert found[EIGHT_BIT][6] == "target only"
    assert set(rows(run)) == {*every, REPO}
    monkeypatch.setattr("dflash_mlx.models.memory.working_set", lambda: 1)
    assert list(short()) == [EIGHT_BIT, REPO]


@pytest.mark.parametrize("width", [200, 160, 120, 100, 80, 60, 40, 20])
def test_the_table_fits_the_terminal(width):
    """Columns are left out, then rows take two lines; no id is cut."""
    table = import_module("dflash_mlx.cli.models")
    cells = [table.TITLES, *(row.cells() for row in table.known_rows())]
    lines, left_out = table.fit_rows(cells, width)
    longest = max(len(row[0]) for row in cells)
    assert max(map(len, lines)) <= max(width, longest, 45 if width < 60 else 0)
    text = "\n".join(lines)
    for row in cells[1:]:
        assert row[0] in text
    assert ("MEMORY" in text) is (width >= 100)
    if width == 200:
        assert all(title in lines[0] for title in table.TITLES)
        end = lines[0].index("SIZE") + len("SIZE")
        assert {line[end - 2 : end] for line in lines[1:]} == {"GB"}  # below each other
    two_lines = "TARGET" not in lines[0]
    shown = ("TARGET", "SIZE", "CACHED", "FITS") if two_lines else lines[0].split()
    assert left_out == [title for title in table.TITLES if title not in shown]
    if width == 40:
        assert len(lines) == 2 * (len(cells) - 1)


def test_pull_brings_target_and_drafter(run, server, pull):
    """Both sizes are said before anything is fetched."""
    result = pull(KNOWN)
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"{KNOWN} · 20.7 kB to download",
        f"{KNOWN_DRAFT} · 8.5 kB to download",
    ]
    assert hub_cache.cached_state(KNOWN) == hub_cache.cached_state(KNOWN_DRAFT) == "yes"
    before = len(server.asked)
    assert pull(KNOWN).stderr.count("nothing to download") == 2
    assert len(server.asked) == before
    assert f"no drafter is known for '{REPO}'" in pull(REPO).stderr
    assert hub_cache.cached_state(DRAFT) == "no"
    pull(REPO, "--draft", DRAFT)
    assert hub_cache.cached_state(DRAFT) == "yes"


def test_pull_of_a_pair_that_does_not_run(run, server):
    """Refused by its config.json, with nothing else asked for."""
    entry = next(e for e in registry.best_known() if not is_known(e.family))
    server.repos[entry.target] = tiny_repo()
    server.repos[entry.target]["config.json"] = b'{"model_type": "%s"}' % entry.family.encode()
    result = run("pull", "--yes", entry.target)
    assert result.exit_code == 1
    assert f"'{entry.target}' is of the type '{entry.family}'" in result.stderr
    assert not fetched(server)


def test_pull_leaves_out_a_drafter_that_is_not_loaded(server, pull, monkeypatch):
    """The target runs with copies of earlier text."""
    monkeypatch.setattr(registry, "LOADED", frozenset())
    assert "no drafter is downloaded: drafters of the kind DFlash" in pull(KNOWN).stderr
    assert hub_cache.cached_state(KNOWN) == "yes"
    assert hub_cache.cached_state(KNOWN_DRAFT) == "no"


def test_pull_asks(run, server, terminal):
    """Anything but yes fetches nothing."""
    result = run("pull", KNOWN, input="n\n")
    assert result.exit_code == 1
    assert "Download 29.1 kB?" in result.stderr
    assert "nothing was downloaded" in result.stderr
    assert hub_cache.cached_bytes(KNOWN) == 0
    assert run("pull", KNOWN, input="\n").exit_code == 0
    assert hub_cache.cached_state(KNOWN) == "yes"


def test_a_second_pull_waits_and_says_so(server, run):
    """It used to fail after two seconds."""
    data = server.repos[REPO]["model.safetensors"]
    with hold_lock(REPO, blob_of("model.safetensors", data)) as other:
        Timer(2.5, other.close).start()
        result = run("pull", "--yes", REPO, "--no-draft")
    assert result.exit_code == 0, result.output
    assert "another program downloads this model: this one waits" in result.stderr
    assert hub_cache.cached_state(REPO) == "yes"


def test_pull_tells_a_stall(run, server, monkeypatch):
    """A whole minute without a byte: what is done about it is said once, whatever the files."""

    def fetch(repo, on_download, on_wait):
        for done in (0, 5, 5, 5, 7, 7, 10, 10):
            on_download(done, 10)

    monkeypatch.setattr("dflash_mlx.hub.download.download", fetch)
    result = run("pull", "--yes", REPO, "--no-draft")
    assert result.stderr.count("no data for a minute: trying again in small pieces\n") == 1


def test_room_is_looked_at_for_both(run, server, monkeypatch):
    """A disk that holds either of the two but not both."""
    from types import SimpleNamespace

    from dflash_mlx.hub import download

    small = SimpleNamespace(free=download.RESERVED_BYTES + 25_000)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: small)
    result = run("pull", "--yes", KNOWN)
    assert result.exit_code == 1
    assert "there is no room" in result.stderr
    assert not fetched(server)


def test_bundled_needs_no_download(run, server):
    """It comes with the package, which is no error, and asks neither the Hub nor anybody."""
    result = run("pull", "bundled")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "comes with the package" in result.stderr
    assert not server.asked


BAD = [
    (["pull", KNOWN], 2, "no terminal to ask at"),
    (["pull", "word", "--yes"], 2, "'word' is not a Hub id"),
    (["pull", "/a/b", "--yes"], 2, "not a Hub id"),
    (["pull", REPO, "-d", "./draft", "--yes"], 2, "'./draft' is not a Hub id"),
    (["pull", "owner/none", "--yes", "--no-draft"], 1, "there is no model 'owner/none'"),
    (["pull"], 2, "Missing argument"),
    (["rm", "word", "--yes"], 2, "not a Hub id"),
    (["rm", KNOWN, "--yes"], 1, f"'{KNOWN}' is not in the cache."),
    (["rm", "owner/none", "--draft", "--yes"], 1, "is not in the cache"),
    (["list", "x"], 2, "unexpected extra argument"),
    ([], 2, "Missing command."),
    (["lst"], 2, "No such command 'lst'"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BAD)
def test_bad_input_gets_one_sentence_and_a_hint(run, server, arguments, code, message):
    result = run(*arguments)
    assert result.exit_code == code
    assert result.stdout == ""
    error, hint = result.stderr.splitlines()
    assert error.startswith("Error: ")
    assert message in error
    assert hint.startswith("Hint:  ")


def test_a_licence_is_said_before_the_question(run, server, terminal):
    server.refuse[REPO] = GATED
    result = run("pull", REPO, "--no-draft", input="y\n")
    assert result.exit_code == 1
    assert "asks for a licence" in result.stderr
    assert "Download" not in result.stderr


def test_rm(run, server, pull, terminal):
    """It says how much, asks, and deletes only what was meant."""
    pull(KNOWN)
    result = run("rm", KNOWN, input="n\n")
    assert result.exit_code == 1
    assert "Delete 20.7 kB?" in result.stderr
    assert hub_cache.cached_state(KNOWN) == "yes"
    assert run("rm", KNOWN, input="\n").exit_code == 1  # no is what Enter says
    assert run("rm", KNOWN, input="y\n").exit_code == 0
    assert hub_cache.cached_state(KNOWN) == "no"
    assert hub_cache.cached_state(KNOWN_DRAFT) == "yes"


def test_rm_with_the_drafter(run, server, pull):
    """The drafter goes too, if it is there; without a terminal only with --yes."""
    pull(KNOWN)
    assert run("rm", KNOWN, "--draft").exit_code == 2
    assert run("rm", KNOWN, "--draft", "--yes").exit_code == 0
    assert hub_cache.cached_repos() == []
    pull(KNOWN, "--no-draft")
    assert run("rm", KNOWN, "--draft", "--yes").exit_code == 0
    pull(REPO, "--no-draft")
    assert "no drafter is known" in run("rm", REPO, "--draft", "--yes").stderr


def test_rm_keeps_a_whole_model_that_lends_its_head(run, server, pull, monkeypatch):
    """The drafter of a conversion may be the head in the original, which is a target of its own."""
    files = tiny_repo(parts=2)
    shards = json.loads(files["model.safetensors.index.json"])["weight_map"]
    head = {"mtp.fc.weight": max(shards.values())}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": shards | head}).encode()
    server.repos["owner/original"] = files
    monkeypatch.setattr(registry, "drafter_of", lambda target: "owner/original#mtp")
    pull(KNOWN, "--draft", "owner/original#mtp")
    assert hub_cache.cached_state("owner/original") == "partly"
    assert run("rm", KNOWN, "--draft", "--yes").exit_code == 0
    assert hub_cache.cached_repos() == []
    pull(KNOWN, "--draft", "owner/original")
    result = run("rm", KNOWN, "--draft", "--yes")
    assert "owner/original stays" in result.stderr
    assert run("rm", "owner/original#mtp", "--yes").exit_code == 1
    assert hub_cache.cached_repos() == ["owner/original"]


def test_settings_do_not_get_in_the_way(run, server, pull):
    """The config file's options are those of other commands; shared ones count here as well."""
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text('model = "a/b"\ndraft = "c/d"\ntemp = 0.5\njson = true\nplain = true\n')
    result = run("list")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("TARGET\t")
    assert f"{KNOWN} | 20.7 kB" in pull(KNOWN).stderr  # plain: no special characters
    path.write_text("tmep = 1\n")
    assert "did you mean 'temp'?" in run("list").stderr


def test_pull_in_a_terminal(server, cache):
    """It asks, shows bytes, rate and time left; Ctrl-C says that a second pull goes on."""
    server.repos[REPO] = tiny_repo(2_000_000)
    server.piece, server.delay = 10_000, 0.02
    env = environment(server.endpoint, cache, TERM="xterm-256color", PYTHONUTF8="1")
    command = [sys.executable, "-m", "dflash_mlx.cli", "models", "pull", REPO, "--no-draft"]
    shown = Terminal(command, env, 100, 30)
    shown.wait_for("Download 2.0 MB?")
    assert not fetched(server)
    shown.send("y\n")
    shown.wait_for("MB.*/s")
    shown.interrupt()
    assert shown.ends() == 130
    assert f"a second `dflash models pull {REPO}` goes on from here" in shown.raw
    assert "Traceback" not in shown.raw
    shown.close()
    assert hub_cache.cached_state(REPO) == "partly"
    have = max(path.stat().st_size for path in cache.rglob(f"*{hub_cache.INCOMPLETE}"))
    assert have > 100_000
    server.delay = 0.0
    again = Terminal([*command, "--yes"], env, 100, 30)
    assert again.ends() == 0
    assert "of 2.0 MB to download" in again.raw
    again.close()
    assert hub_cache.cached_state(REPO) == "yes"
    assert server.starts("model.safetensors") == [0, have]


def test_list_in_a_terminal(server, cache):
    """The same table, in columns, no wider than the window."""
    env = environment(server.endpoint, cache, TERM="xterm-256color", PYTHONUTF8="1")
    env.pop("COLUMNS", None)
    shown = Terminal([sys.executable, "-m", "dflash_mlx.cli", "models", "list", "--all"], env, 90)
    assert shown.ends() == 0
    lines = shown.raw.splitlines()
    assert lines[0].startswith("TARGET  ")
    assert max(map(len, lines)) <= 90
    assert "not yet: this version" in shown.raw
    shown.close()
