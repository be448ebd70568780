"""`dflash serve` before its first request."""

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tiny
import typer
from typer.testing import Result

from dflash_mlx.errors import DFlashError


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HAS_IPV6 = has_ipv6()


@pytest.fixture
def serve(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Start a server of the bundled pair, which ends before it measures or serves anything."""
    monkeypatch.setattr("dflash_mlx.cli.serve.warm_up", lambda *_: None)
    monkeypatch.setattr("dflash_mlx.cli.serve.run_until_stopped", lambda *_: None)
    return lambda *flags: run("serve", "--port", "0", *flags)


def test_a_context_that_the_model_does_not_hold(serve: Callable[..., Result]) -> None:
    warning = "--context 8,192: this model holds 4,096 tokens"
    assert warning in serve("--context", "8192").stderr
    assert "this model holds" not in serve("--context", "4096").stderr


def test_the_first_line(serve: Callable[..., Result]) -> None:
    """It was `dflash serve · bundled · bundled · auto`."""
    assert (
        "dflash serve | model bundled | drafter bundled | mode auto\n"
        in serve("--plain", "--mode", "auto").stderr
    )
    line = "dflash serve | model bundled | no drafter | mode baseline\n"
    assert line in serve("--plain", "--no-draft").stderr


def test_a_port_in_use(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was noticed after the model was looked for, and the message had the address twice."""
    monkeypatch.setattr("dflash_mlx.cli.serve.resolve", lambda *_, **__: pytest.fail("too late"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = run("serve", "--port", str(port))
    message = f"the server cannot listen at 127.0.0.1:{port} (Address already in use)."
    assert message in found.stderr
    assert found.exit_code == 1


def test_localhost_is_both_addresses() -> None:
    """Programs try ::1 first, or only 127.0.0.1; another program may have one of the two."""
    listen = import_module("dflash_mlx.serve.listening").listen
    sockets = listen("localhost", 0)
    names = [each.getsockname()[:2] for each in sockets]
    port = names[0][1]
    assert names == [("127.0.0.1", port), ("::1", port)][: 1 + HAS_IPV6]
    for each in sockets[:HAS_IPV6]:
        each.close()
        with pytest.raises(DFlashError, match=f"cannot listen at ::1:{port}"):
            listen("localhost", port)
    for each in sockets:
        each.close()


def test_localhost_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = import_module("dflash_mlx.serve.listening")
    create = socket.create_server

    def without(name: Any, **how: Any) -> socket.socket:
        if how["family"] == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return create(name, **how)

    monkeypatch.setattr(socket, "create_server", without)
    (only,) = listening.listen("localhost", 0)
    assert only.getsockname()[0] == "127.0.0.1"
    only.close()


def test_the_default_is_localhost(
    serve: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts: list[str] = []
    listening = import_module("dflash_mlx.serve.listening")
    listen = listening.listen
    monkeypatch.setattr(listening, "listen", lambda *at: hosts.append(at[0]) or listen(*at))
    assert "  OpenAI     http://127.0.0.1:" in serve().stderr
    assert hosts == ["localhost"]


def test_a_drafter_of_no_use_is_told_once(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(server: Any, *_: object) -> None:
        record = server.first.pair.engine.scheduler.draft_record
        for number in range(30):
            server.log.write(f"answer {number}")
            record.count(own=15, kept=0)

    monkeypatch.setattr("dflash_mlx.cli.serve.warm_up", lambda *_: None)
    monkeypatch.setattr("dflash_mlx.cli.serve.run_until_stopped", answer)
    lines = run("serve", "--port", "0").stderr.splitlines()
    told = [number for number, line in enumerate(lines) if "almost no draft" in line]
    assert len(told) == 1
    assert lines[told[0] - 1].endswith(" answer 12")


@pytest.fixture
def served_key(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str | None]:
    found: list[str | None] = []

    def end(host: str, api_key: str | None) -> None:
        found.append(api_key)
        raise typer.Exit(0)

    monkeypatch.setattr("dflash_mlx.cli.serve.check_address", end)

    def key(*flags: str) -> str | None:
        told = run("serve", *flags)
        return found.pop() if told.exit_code == 0 else told.stderr

    return key


def test_where_the_key_comes_from(
    served_key: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: Callable[[str], int],
) -> None:
    """A flag comes before a variable, and that before the config file."""
    file, other = tmp_path / "key", tmp_path / "other"
    file.write_text("of the file\n")
    other.write_text("of another")
    assert served_key() is None
    config('api-key = "of the config"\n')
    assert served_key() == "of the config"
    monkeypatch.setenv("DFLASH_API_KEY_FILE", str(other))
    assert served_key() == "of another"
    assert served_key("--api-key", "of a flag") == "of a flag"
    assert served_key("--api-key-file", str(file)) == "of the file"
    monkeypatch.setenv("DFLASH_API_KEY", "of the environment")
    assert "the API key is given twice." in served_key()
    assert served_key("--api-key-file", str(file)) == "of the file"
    monkeypatch.delenv("DFLASH_API_KEY_FILE")
    assert served_key() == "of the environment"
    assert "given twice" in served_key("--api-key", "x", "--api-key-file", str(file))
    assert "cannot be read" in served_key("--api-key-file", str(tmp_path))
    file.write_text(" \n")
    assert "is empty" in served_key("--api-key-file", str(file))


def test_a_service_lets_a_mac_sleep(
    serve: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs all the time, and a Mac would never sleep."""
    kept: list[str] = []

    @contextmanager
    def awake() -> Iterator[None]:
        kept.append("awake")
        yield

    monkeypatch.setattr("dflash_mlx.cli.serve.awake", awake)
    assert serve("--let-sleep").exit_code == 0
    assert kept == []
    assert serve().exit_code == 0
    assert kept == ["awake"]


def test_folders_of_models(serve: Callable[..., Result], tmp_path: Path) -> None:
    """Those in them are offered, and -m finds one; a wrong folder is refused."""
    tiny.save_pair(tmp_path / "mine", tiny.draft_settings)
    assert "1 other model can be asked for" in serve("--models", str(tmp_path)).stderr
    only = serve("-m", str(tmp_path / "mine/target"), "--no-draft")
    assert (only.exit_code, "can be asked for" in only.stderr) == (0, False)
    missing = serve("--models", str(tmp_path / "no"))
    assert (missing.exit_code, "does not exist" in missing.stderr) == (2, True)
    single = serve("--models", str(tmp_path), "-m", "mine/target", "--no-draft")
    assert (single.exit_code, "other model" in single.stderr) == (0, False)
