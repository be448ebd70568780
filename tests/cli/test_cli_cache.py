"""`--cache-ram`, `--cache-disk` and `dflash cache`, and a long chat that is resumed."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from golden_pair import PAIR
from recorded_chat import start_dialogue
from typer.testing import CliRunner

import dflash_mlx
from dflash_mlx.engine.prefix_cache import disk
from dflash_mlx.errors import DFlashError
from dflash_mlx.options import GenerationOptions

backends = import_module("dflash_mlx.cli.backend.local")
cache_options = import_module("dflash_mlx.cli.options")
GB = 1 << 30
PROMPT = ["the lighthouse and the paper boat", "--raw", "--max-tokens", "8"]


@pytest.fixture
def cache(cli_app):
    return lambda *args, **more: CliRunner().invoke(cli_app, ["cache", *args], **more)


def listed(cache) -> list[dict[str, Any]]:
    result = cache("list", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_one_answer_after_another(ask, cache):
    """The second reads the prompt's last token; without the flag nothing is kept or taken."""
    first = ask(*PROMPT, "--cache-disk", "100MB")
    second = ask(*PROMPT, "--cache-disk", "100MB")
    assert (first["usage"]["cached"], second["usage"]["cached"]) == (0, len(PROMPT[0]) - 1)
    assert second["tokens"] == first["tokens"]
    assert ask(*PROMPT)["usage"]["cached"] == 0
    (text,) = listed(cache)
    assert (text["tokens"], text["target"], text["draft"]) == (len(PROMPT[0]) + 7, PAIR[1], PAIR[3])


def test_a_sidecar_goes_with_its_file(tmp_path, monkeypatch):
    """As on a drive without a Mac's file attributes."""
    folder = tmp_path / "pair"
    folder.mkdir()
    for name in ("pair.json", "0.a.0.9.target.safetensors", "._0.a.0.9.target.safetensors"):
        (folder / name).touch()
    unlink = Path.unlink

    def with_sidecar(file, **options):
        unlink(file, **options)
        unlink(file.with_name(f"._{file.name}"), missing_ok=True)

    monkeypatch.setattr(Path, "unlink", with_sidecar)
    disk.clear(tmp_path)
    assert not folder.exists()


def test_list_and_remove(ask, cache):
    """A text is removed by the beginning of its ID; what others begin with stays."""
    assert listed(cache) == []
    for prompt in ("a boat on the river, north", "a boat on the river, south", "tea"):
        ask(prompt, *PROMPT[1:], "--cache-disk", "100MB")
    texts = listed(cache)
    assert len(texts) == 3
    table = cache("list").stdout.splitlines()
    assert table[0].split("\t") == ["ID", "tokens", "size", "used", "target", "drafter"]
    assert [line.split("\t")[0] for line in table[1:]] == [text["id"][:8] for text in texts]
    assert "boat" not in cache("list").stdout + cache("list", "--json").stdout
    tea, *others = sorted(texts, key=lambda text: text["tokens"])
    refused = cache("rm", tea["id"][:8])
    assert refused.exit_code == 2
    assert "no terminal to ask" in refused.stderr
    assert cache("rm", "--yes", tea["id"][:8]).exit_code == 0
    assert {text["id"] for text in listed(cache)} == {text["id"] for text in others}
    assert cache("rm", "--yes", "ffffffff").exit_code == 1
    assert cache("rm", "--yes").exit_code == 2
    assert cache("rm", "--yes", "--all", tea["id"]).exit_code == 2
    south = ask("a boat on the river, south", *PROMPT[1:], "--cache-disk", "100MB")
    assert south["usage"]["cached"] == 25
    assert cache("rm", "--all", "-y").exit_code == 0
    assert listed(cache) == []


def test_files_of_another_version_are_named_and_left(ask, cache, monkeypatch):
    """An answer neither reads nor replaces them, and the list names their folder."""
    with monkeypatch.context() as patched:
        patched.setattr(disk, "FORMAT", "0")
        ask(*PROMPT, "--cache-disk", "100MB")
    old = {file: file.read_bytes() for file in disk.cache_root().glob("*/*.safetensors")}
    (folder,) = {file.parent for file in old}
    assert ask(*PROMPT, "--cache-disk", "100MB")["usage"]["cached"] == 0
    assert len(listed(cache)) == 1
    said = " ".join(cache("list").stderr.split())
    assert f"{len(old)} files in '{folder}' cannot be read" in said
    assert old == {file: file.read_bytes() for file in folder.glob("*.safetensors")}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("0", 0), ("500", 500), ("2GB", 2 * 10**9), ("1.5 GiB", 3 << 29), ("3m", 3 * 10**6)],
)
def test_sizes(text: str, wanted: int) -> None:
    """Units of 1000, and those of 1024 with an i."""
    assert cache_options.parse_size(text) == wanted


def test_a_wrong_size_is_refused(dflash) -> None:
    result = dflash(*PROMPT, "--cache-disk", "much")
    assert result.exit_code == 2
    assert "'much' is not a size such as 500MB or 4GB" in result.stderr


def start(name: str | None = None) -> Any:
    """A dialogue on a freshly loaded pair, as after a start; with the saved chat of a name."""
    pair = dflash_mlx.load(cache_disk=GB)
    settings = GenerationOptions(max_tokens=24, mode="dflash")
    talk = start_dialogue(backends.LocalBackend(pair), settings)
    if name is not None:
        talk.load(name)
    return talk


def test_a_resumed_chat_reads_nothing_again() -> None:
    """Six turns, then another start: the seventh reads its own prompt only."""
    talk = start()
    turns = [
        talk.ask(f"Tom has {number} apples and buys 7 more. How many apples?")
        for number in range(6)
    ]
    said = turns[-1]
    held = said.stats.prompt_tokens + said.stats.generated
    talk.pair.engine.prefix_cache.disk.wait()
    other = start(talk.file.name)
    asked = other.ask("And Anna?")
    assert held - 2 <= asked.stats.cached_tokens < asked.stats.prompt_tokens
    assert asked.stats.prompt_tokens - asked.stats.cached_tokens < 30


def test_no_history_keeps_nothing_on_disk(cli_app, cache) -> None:
    """Not what was read either; it is said."""
    arguments = ["chat", "--demo", "--no-history", "--cache-disk", "1GB", "--max-tokens", "5"]
    result = CliRunner().invoke(cli_app, arguments, input="Hello")
    assert result.exit_code == 0
    assert "--cache-disk is off" in result.stderr
    assert listed(cache) == []


def test_a_folder_that_cannot_be_made_is_said(tmp_path, monkeypatch) -> None:
    (tmp_path / "dflash").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DFlashError, match="prefix cache cannot use the folder") as caught:
        dflash_mlx.load(cache_disk=GB)
    assert caught.value.hint
