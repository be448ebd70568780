"""`dflash ps` and `dflash stop`."""

import json
from collections.abc import Callable

import httpx
import pytest
from click.testing import Result
from serving import serving
from shelf import Shelf, make

from dflash_mlx.engine.worker_thread import mlx_thread


def test_models_of_a_server(run: Callable[..., Result]) -> None:
    with serving(mlx_thread().call(make, 1), offers=Shelf(), keep_alive=300.0) as served:
        where = ("--server", served.url)
        named = [row.split("\t")[0] for row in run("ps", *where).stdout.splitlines()]
        assert named == ["MODEL", "m"]
        body = {"model": "pub/a", "prompt": "one"}
        httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
        rows = run("ps", *where).stdout.splitlines()
        assert rows[2].split("\t")[:2] == ["pub/a", "loaded"]
        assert rows[2].endswith("in 5 min")
        every = json.loads(run("ps", "--all", "--json", *where).stdout)
        assert [model["state"] for model in every] == ["loaded", "loaded", *["not-loaded"] * 3]
        assert "pub/a is unloaded" in run("stop", "a", *where).stderr
        assert len(run("ps", *where).stdout.splitlines()) == 2
        twice = run("stop", "a", *where)
        assert (twice.exit_code, "'pub/a' is not loaded" in twice.stderr) == (1, True)
        assert "no model" not in run("stop", "zebra", *where).stderr


def test_the_model_that_a_server_was_started_for(run: Callable[..., Result]) -> None:
    with serving(mlx_thread().call(make, 1)) as served:
        result = run("stop", "m", "--server", served.url)
        assert result.exit_code == 1
        assert "the model 'm' stays loaded as long as this server runs" in result.stderr
        assert httpx.get(f"{served.url}/v1/models/m").json()["state"] == "loaded"


@pytest.mark.parametrize(("server", "code"), [("nothing", 2), ("http://127.0.0.1:9", 1)])
def test_no_server(run: Callable[..., Result], server: str, code: int) -> None:
    result = run("ps", "--server", server)
    assert (result.exit_code, result.stdout) == (code, "")
    assert "dflash serve" in result.stderr or "http://host:port" in result.stderr
