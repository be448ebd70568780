"""The command that a hint gives for a missing package works where this copy is installed."""

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from dflash_mlx import installation
from dflash_mlx.installation import install_command


def test_by_pipx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipx_metadata.json").write_text("{}")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install_command("matplotlib") == "`pipx inject dflash-chat matplotlib`"
    command = "`pipx runpip dflash-chat install --force-reinstall mlx`"
    assert install_command("mlx", again=True) == command


def test_by_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda name: ModuleSpec(name, None))
    assert install_command("matplotlib") == f"`{sys.executable} -m pip install matplotlib`"
    command = f"`{sys.executable} -m pip install --force-reinstall mlx`"
    assert install_command("mlx", again=True) == command


@pytest.mark.parametrize("in_path", [True, False], ids=["uv in PATH", "uv of the clone"])
def test_by_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_path: bool) -> None:
    """`uv tool` and clones make environments without pip; folders may have spaces."""
    clone = tmp_path / "my clone"
    uv = clone / ".venv-uv/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.touch()
    prefix = str(clone / ".venv")
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    monkeypatch.setattr(installation, "which", lambda name: "/bin/uv" if in_path else None)
    program = "uv" if in_path else f"'{uv}'"
    assert (
        install_command("matplotlib") == f"`{program} pip install --python '{prefix}' matplotlib`"
    )


@pytest.mark.parametrize("again", [False, True])
def test_the_command_runs_here(*, again: bool) -> None:
    """With --help behind it, so that nothing is downloaded: the shell reads it as it is meant."""
    command = install_command("numpy", again=again).strip("`")
    done = subprocess.run(f"{command} --help", shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wrong = command.replace(" install ", " install --no-such-flag ")
    done = subprocess.run(f"{wrong} --help", shell=True, capture_output=True, text=True)
    assert done.returncode != 0
