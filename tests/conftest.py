"""What every test shares."""

import os
from importlib import import_module
from pathlib import Path

import pytest
import typer

# One thread: with two, OpenBLAS crawls when anything else runs on the machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from dflash_mlx.blas import use_openblas

use_openblas()


@pytest.fixture
def cli_app() -> typer.Typer:
    """The command line; type checkers cannot follow `dflash_mlx.cli` to its folder."""
    return import_module("dflash_mlx.cli.app").app


@pytest.fixture(autouse=True)
def clean_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the settings of whoever runs it."""
    home = tmp_path / "home"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith("DFLASH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    for name, folder in (
        ("XDG_CONFIG_HOME", ".config"),
        ("XDG_DATA_HOME", ".local/share"),
        ("XDG_CACHE_HOME", ".cache"),
        ("XDG_STATE_HOME", ".local/state"),
    ):
        monkeypatch.setenv(name, str(home / folder))
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
