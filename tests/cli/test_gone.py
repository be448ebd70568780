"""Who asks for something that left is told what to do in its place."""

import httpx
import pytest
from serving import serving
from typer.main import get_command

from dflash_mlx.gone import GONE
from dflash_mlx.pair import load

FLAGS = [name for name in GONE if name.startswith("--")]
ENDPOINTS = [name for name in GONE if name.startswith("/")]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["launch", "-n", "2", "dflash", "chat"], "launch"),
        (["help", "several-macs"], "several-macs"),
    ],
)
def test_commands_and_pages(run, words, name):
    result = run(*words)
    assert result.exit_code == 2
    assert GONE[name] in result.stderr


def test_a_field_of_a_batch(run, tmp_path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"custom_id": "1", "method": "POST", "url": "/v1/completions"}\n')
    result = run("generate", "--batch", str(lines), "--out", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 2
    assert "'custom_id'" in result.stderr
    assert GONE["custom_id"] in result.stderr


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_variables_and_settings(run, cli_app, config, monkeypatch, flag):
    """Where no command has the flag, as a variable and as a setting too."""
    commands = {
        name: {flag for parameter in command.params for flag in parameter.opts}
        for name, command in get_command(cli_app).commands.items()  # type: ignore[attr-defined]
    }
    without = [name for name in ("chat", "serve", "bench", "train") if flag not in commands[name]]
    assert without
    for name in without:
        result = run(name, flag, "1")
        assert result.exit_code == 2
        assert flag in result.stderr
        assert GONE[flag] in result.stderr
    if any(flag in flags for flags in commands.values()):
        return
    config(f'{flag.removeprefix("--")} = "1"')
    assert GONE[flag] in run("generate", "x").stderr
    monkeypatch.setenv(f"DFLASH_{flag[2:].replace('-', '_').upper()}", "1")
    assert GONE[flag] in run("generate", "x").stderr


def test_endpoints():
    """In the form of the API at the path, and below it."""
    with serving(load()) as served:
        for path in ENDPOINTS:
            posted = httpx.post(f"{served.url}{path}", json={})
            for reply in (posted, httpx.get(f"{served.url}{path}/x")):
                assert reply.status_code == 404
                error = reply.json()["error"]
                message = error if isinstance(error, str) else error["message"]
                assert path in message
                assert GONE[path][1:] in message
