"""The command line in this process, and its config file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result


@pytest.fixture
def run(cli_app: typer.Typer) -> Callable[..., Result]:
    return lambda *args, **kwargs: CliRunner().invoke(cli_app, list(args), **kwargs)


@pytest.fixture
def config() -> Callable[[str], int]:
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash" / "config.toml"
    path.parent.mkdir(parents=True)
    return path.write_text
