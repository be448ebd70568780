"""An address of the Hub, as a browser shows it, is the model there, and never a server."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hub_server import tiny_repo
from typer.testing import CliRunner

from dflash_mlx.address import is_address, model_name, parse_address
from dflash_mlx.errors import UsageError
from dflash_mlx.hub.resolve import pair_names
from dflash_mlx.remote import client, session

ADDRESSES = [
    "https://huggingface.co/owner/model",
    "https://huggingface.co/owner/model/",
    "https://huggingface.co/owner/model/tree/main",
    "https://huggingface.co/owner/model/blob/main/config.json",
    "https://huggingface.co/owner/model/discussions/3",
    "https://huggingface.co/owner/model?library=mlx#usage",
    "HTTPS://HuggingFace.co/owner/model",
    "http://www.huggingface.co/owner/model",
    "https://user:secret@huggingface.co/owner/model",
    "https://hf.co/owner/model",
    "huggingface.co/owner/model",
    "www.hf.co/owner/model/tree/main",
    " https://hf.co/owner/model\n",
    "owner/model ",
]
NO_MODELS = [
    "https://huggingface.co",
    "https://huggingface.co/owner",
    "https://huggingface.co/datasets/owner/data",
    "hf.co/spaces/owner/space",
    "https://huggingface.co/api/models/owner/model",
    "https://huggingface.co/v1",
    "https://huggingface.co/owner/model/tree/v2",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_of_a_model(address: str) -> None:
    """As a target and as a drafter."""
    assert model_name(address) == "owner/model"
    assert not is_address(address)
    names = pair_names(address, address)
    assert (names.target, names.target_label, names.draft) == ("owner/model",) * 3


@pytest.mark.parametrize("address", NO_MODELS)
def test_of_something_else(address: str) -> None:
    """It is refused, too, and not taken for a server."""
    assert not is_address(address)
    with pytest.raises(UsageError):
        pair_names(address, None)


def test_of_a_head_alone() -> None:
    assert model_name("https://hf.co/owner/model#mtp") == "owner/model#mtp"


def test_of_a_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "https://hub.example:8443/owner/model"
    assert is_address(address)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example:8443")
    assert model_name(address) == "owner/model"
    assert not is_address(address)


@pytest.mark.parametrize(
    "name", ["http://localhost:8000/v1", "https://router.huggingface.co/v1#owner/model"]
)
def test_servers_stay_servers(name: str) -> None:
    assert is_address(name)
    assert model_name(name) == name


def test_folders_stay_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hf.co" / "owner" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert model_name("hf.co/owner/model") == "hf.co/owner/model"


@pytest.mark.parametrize("address", [*ADDRESSES, *NO_MODELS])
def test_no_key_is_sent(
    cli_app: Any, hub: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is behind it, no server is asked; the id is looked for on the Hub."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a server was asked")

    monkeypatch.setenv("DFLASH_REMOTE_KEY", "secret")
    monkeypatch.setattr(session, "connect", fail)
    monkeypatch.setattr(client, "read_json", fail)
    result = CliRunner().invoke(cli_app, ["generate", "-m", address, "hi"])
    assert isinstance(result.exception, SystemExit)
    if address in ADDRESSES:
        assert "there is no model 'owner/model' on the Hub" in " ".join(result.stderr.split())


def test_the_hub_is_no_server() -> None:
    with pytest.raises(UsageError, match="the Hub is no server"):
        parse_address("https://huggingface.co/v1")


def test_it_is_downloaded(cli_app: Any, hub: Any) -> None:
    hub.repos["owner/model"] = tiny_repo()
    pull = ["models", "pull", "--yes", "https://huggingface.co/owner/model/tree/main"]
    result = CliRunner().invoke(cli_app, [*pull, "-d", "hf.co/owner/model"])
    assert result.exit_code == 0, result.output
    cache = import_module("dflash_mlx.hub.cache")
    assert cache.cached_state("owner/model") == "yes"
