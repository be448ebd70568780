"""Arguments and files whose texts are no Unicode: a Latin-1 byte, half an emoji in a line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai_server
import pytest
from typer.testing import Result

LATIN_1 = "caf\udce9"  # what Python makes of the byte E9


@pytest.mark.parametrize("flags", [(), ("--raw",), ("--system", LATIN_1)])
def test_generate(ask: Callable[..., dict[str, Any]], flags: tuple[str, ...]) -> None:
    plain = [flag.replace("\udce9", "\ufffd") for flag in flags]
    given = ask(LATIN_1, *flags, "--max-tokens", "2")
    assert given["text"] == ask("caf\ufffd", *plain, "--max-tokens", "2")["text"]


def test_a_server_gets_the_sign(run: Callable[..., Result]) -> None:
    with openai_server.openai_server() as remote:
        result = run("generate", LATIN_1, "-m", remote.url)
    assert result.exit_code == 0, result.output
    assert remote.bodies[-1]["messages"][-1]["content"] == "caf\ufffd"
    assert "caf\ufffd" in result.stdout


def test_lines_of_a_batch(dflash: Callable[..., Result], tmp_path: Path) -> None:
    """Such a line was refused as no JSON."""
    (tmp_path / "in.jsonl").write_text('"a\\ud83d b"\n')
    out = tmp_path / "out.jsonl"
    files = ("--batch", str(tmp_path / "in.jsonl"), "--out", str(out))
    result = dflash(*files, "--max-tokens", "2")
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["finish_reason"] == "length"
