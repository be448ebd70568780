"""Kernels that are not used are seen: in a chat's header, `/stats`, on stderr and in `--json`."""

from importlib import import_module
from typing import Any

import mlx.core as mx
import pytest
import tiny
from golden_pair import PAIR
from recorded_chat import start_dialogue
from typer.testing import CliRunner

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.options import GenerationOptions

OFF = {
    "verify_attention": "differs from its reference by 0.03",
    "small_m_qmm": "1.4x as slow as MLX's own",
}
LAUNCHER: Any = object()  # nothing is launched
KERNELS = Kernels(
    LAUNCHER, OFF, on=frozenset({"selector_walk"}), wrong=frozenset({"verify_attention"})
)
LINE = (
    "kernel verify_attention off: differs from its reference by 0.03 (dflash doctor --kernels)"
)  # fmt: skip


def part(name: str) -> Any:
    return import_module(f"dflash_mlx.cli.{name}")


def test_what_is_said() -> None:
    """Wrong results are a warning, a loss of speed is a number; without kernels nothing is said."""
    notes = part("backend.local")
    assert notes.kernel_warnings(KERNELS) == [LINE]
    assert notes.kernels_json(KERNELS) == {"on": ["selector_walk"], "off": OFF}
    assert notes.kernels_line(KERNELS) == (
        "selector_walk · verify_attention off: differs from its reference by 0.03 · "
        "small_m_qmm off: 1.4x as slow as MLX's own"
    )
    for none in (Kernels(), Kernels(references=True)):
        assert notes.kernel_warnings(none) == []
        assert notes.kernels_json(none) is None
        assert notes.kernels_line(none) == ""


@pytest.fixture
def dialogue(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A conversation with a pair whose kernels are those above; what it notes is kept."""
    pair = tiny.golden_pair("qwen3_full")
    monkeypatch.setattr(pair.target, "kernels", KERNELS)
    backend = part("backend.local").LocalBackend(pair)
    settings = GenerationOptions(mode="auto")
    talk = start_dialogue(backend, settings, quiet=False, autosaves=False)
    talk.out.noted = []
    talk.out.note = lambda text, style="dim": talk.out.noted.append((text, style))
    return talk


def test_a_chat_begins_with_it(dialogue: Any) -> None:
    """The header says that kernels run, and a line which does not; `/stats` has both."""
    part("chat.pages").show_header(dialogue, 1.0)
    lines = dialogue.out.noted
    assert "Metal kernels on" in " ".join(lines[0][0].split())
    warned = [" ".join(text.split()) for text, style in lines if style == "warning"]
    assert warned == [LINE]
    page = part("chat.pages").stats_page(dialogue, dialogue.out)
    (line,) = (line for line in page if line.strip().startswith("kernels"))
    assert "selector_walk · verify_attention off" in line


@pytest.mark.parametrize(
    ("value", "architecture", "warned"),
    [
        ("1", "applegpu_g17s", True),
        ("0", "applegpu_g17s", False),
        ("1", "applegpu_g16s", False),
        ("1", "applegpu_g17p", False),  # an A18 has no matrix units
        ("1", "applegpu_g18p", True),
    ],
)
def test_rounded_float32_is_told(
    dialogue: Any, monkeypatch: pytest.MonkeyPatch, value: str, architecture: str, warned: bool
) -> None:
    """A user who lets MLX round float32 products hears that; a bfloat16 model has none."""
    target = dialogue.backend.pair.target
    monkeypatch.setattr(target, "kernels", Kernels())
    monkeypatch.setenv("MLX_ENABLE_TF32", value)
    monkeypatch.setattr("dflash_mlx.kernels.dispatch.by_metal", lambda: True)
    monkeypatch.setattr("dflash_mlx.device.device_info", lambda: {"architecture": architecture})
    warnings = part("backend.local").float32_warnings
    told = warnings(target)
    assert [line.partition(":")[0] for line in told] == ["MLX_ENABLE_TF32 is 1"] * warned
    monkeypatch.setattr(type(target), "head_type", mx.bfloat16)
    assert not warnings(target)


def test_a_kernel_that_fails_later_is_told(dialogue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the check runs between answers: `--json` and `--log` say what is in use then."""
    monkeypatch.setattr(dialogue.pair.target, "kernels", Kernels(LAUNCHER))
    assert (dialogue.info.warnings, dialogue.info.json["kernels"]["off"]) == ((), {})
    monkeypatch.setattr(dialogue.pair.target, "kernels", KERNELS)
    assert (dialogue.info.warnings, dialogue.info.json["kernels"]["off"]) == ((LINE,), OFF)


def test_scripts_are_told_too(cli_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, whoever reads it; not with --quiet."""
    pair = tiny.golden_pair("qwen3_full")
    monkeypatch.setattr(pair.target, "kernels", KERNELS)
    monkeypatch.setattr(part("backend.open"), "load_pair", lambda *_: (pair, 0.1))
    for command in ("generate", "chat"):
        line = [command, *PAIR, "--max-tokens", "2"]
        loud, quiet = (
            CliRunner().invoke(cli_app, [*line, *flags], input="Hello") for flags in ([], ["-q"])
        )
        assert LINE in " ".join(loud.stderr.split()), command
        assert LINE not in " ".join(quiet.stderr.split())
