import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import devices
import pytest
import typer
from golden_pair import PAIR
from hub_server import Hub, point_client, serve
from typer.testing import CliRunner, Result

# One thread: with two, OpenBLAS crawls when anything else runs on the machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Otherwise an M5 computes float32 products with about 10 bits. MLX's own tests set it, too.
os.environ["MLX_ENABLE_TF32"] = "0"

from dflash_mlx.cpu.blas import use_openblas
from dflash_mlx.models.cache import sliding

use_openblas()
# A background shell ignores SIGINT, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark test cases as slow that `make test` leaves out.

    `make test` runs tests of all families only with `QUICK_FAMILIES`, which cover all kinds of
    layers. Of a test marked `quick_every(n)` it runs every nth case.
    """
    from tiny import FAMILIES, QUICK_FAMILIES  # after OpenBLAS

    others = FAMILIES.keys() - set(QUICK_FAMILIES)
    cases = Counter[str]()
    for item in items:
        swept = getattr(item, "callspec", None)
        names = () if swept is None else swept.params.values()
        beyond = any(isinstance(name, str) and name in others for name in names)
        if beyond and item.get_closest_marker("every_family") is None:
            item.add_marker(pytest.mark.slow)
        sample = item.get_closest_marker("quick_every")
        if sample is not None:
            function = item.nodeid.split("[")[0]
            if cases[function] % sample.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[function] += 1


@pytest.fixture
def cli_app() -> typer.Typer:
    """The command line; type checkers cannot follow `dflash_mlx.cli` to its folder."""
    return import_module("dflash_mlx.cli.app").app


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> None:
    devices.use_device(request.node)


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give sliding caches little free room, so that short texts use it up."""
    monkeypatch.setattr(sliding, "ROOM", 4)


@pytest.fixture(autouse=True)
def clean_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests from reading or writing the user's settings."""
    home = tmp_path / "home"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith("DFLASH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    for name, folder in (
        ("XDG_CONFIG_HOME", ".config"),
        ("XDG_DATA_HOME", ".local/share"),
        ("XDG_CACHE_HOME", ".cache"),
    ):
        monkeypatch.setenv(name, str(home / folder))
    if sys.platform == "darwin":  # only tests that ask for kernels run them
        monkeypatch.setattr("dflash_mlx.kernels.dispatch.by_metal", lambda: False)
    for name, value in devices.PROGRAM_VARIABLES.items():
        monkeypatch.setenv(name, value)
    # The default mode reads the clock, so it would decide differently in every run.
    monkeypatch.setenv("DFLASH_MODE", "dflash")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DFLASH_MODE", *devices.PROGRAM_VARIABLES):
        monkeypatch.delenv(name)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve an empty Hub, and point this process's Hub client to it."""
    with serve() as running:
        point_client(monkeypatch, running.endpoint, cache)
        yield running


@pytest.fixture
def dflash(cli_app: typer.Typer) -> Callable[..., Result]:
    """Run `dflash generate` with the golden pair in this process, through pipes."""
    return lambda *args, **kwargs: CliRunner().invoke(cli_app, ["generate", *PAIR, *args], **kwargs)


@pytest.fixture
def ask(dflash: Callable[..., Result]) -> Callable[..., dict[str, Any]]:
    """Run `dflash generate --json` and return the object; checks the exit code."""

    def run(*args, code=0, **kwargs):
        result = dflash("--json", *args, **kwargs)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return run
