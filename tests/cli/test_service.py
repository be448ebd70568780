"""`dflash serve --install`: what launchd is given, with a program in the place of its own.

The program behaves as Apple's does; what it loads is read as Apple's reads it.
"""

import importlib
import os
import plistlib
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import Result

service = importlib.import_module("dflash_mlx.cli.service")
manager = importlib.import_module("dflash_mlx.cli.service_manager")
doctor = importlib.import_module("dflash_mlx.cli.doctor.machine")
check = doctor.service

LAUNCHCTL = """#!/bin/sh
# A service that was told to end is there for a while, and none is started meanwhile.
echo "$*" >> "{place}/calls"
cd "{place}"
case "$1 $2" in
"print gui/"*/dflash.serve)
    [ -e loaded ] || exit 113
    if [ -e ending ]; then rm ending loaded; fi
    printf '%s = {{\\n\\tactive count = 1\\n' "$2"
    cat state
    printf '\\tinner = {{\\n\\t\\tstate = other\\n\\t}}\\n}}\\n' ;;
"bootout "*) [ -e loaded ] || exit 3; touch ending ;;
"bootstrap "*)
    [ -e loaded ] && {{ echo "Bootstrap failed: 5: Input/output error" >&2; exit 5; }}
    cp "$3" loaded ;;
esac
"""
STATES = {
    "running": "\tstate = running\n\tpid = 71\n\tlast exit code = 1\n",
    "failed": "\tstate = not running\n\tlast exit code = 1\n",
    "idle": "\tstate = not running\n\tlast exit code = (never exited)\n",
}
GUIDE = Path(__file__).parents[2] / "examples" / "guide" / "serve.md"
KEY = "geheim %h $HOME \"'"
NAME = "my 'model' \"x\" 100% %h $HOME ${HOME} $$ back\\slash\\n ü; --uninstall"
FLAGS = (
    *("--alias", NAME, "--alias", " and another one ", "--no-think", "--draft-bits", "none"),
    *("--cache-ram", "500MB", "--temp=0.5", "--stop", "\n", "--stop", "--install", "--stop=\t"),
)


@dataclass(frozen=True)
class Mac:
    place: Path
    run: Callable[..., Result]

    @property
    def manager(self) -> Any:
        return manager.service_manager()

    @property
    def calls(self) -> list[str]:
        """What the program was asked for, but for the states."""
        lines = (self.place / "calls").read_text().splitlines()
        return [line for line in lines if not re.search(r"\bprint\b", line)]

    @property
    def words(self) -> list[str]:
        return plistlib.loads(self.manager.file.read_bytes())["ProgramArguments"]

    @property
    def environment(self) -> dict[str, str]:
        return plistlib.loads(self.manager.file.read_bytes())["EnvironmentVariables"]

    def become(self, state: str) -> None:
        (self.place / "state").write_text(STATES[state])


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]) -> Mac:
    """A Mac whose services run as soon as they are started, although they do not answer."""
    monkeypatch.setattr(manager, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(doctor, "on_mac", lambda: True)
    monkeypatch.setattr(manager, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(service, "START_SECONDS", 0.01)
    found = Mac(tmp_path / "system", run)
    found.place.mkdir()
    found.become("running")
    program = found.place / "launchctl"
    program.write_text(LAUNCHCTL.format(place=found.place))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{found.place}:{os.environ['PATH']}")
    return found


def parameters(cli_app: typer.Typer, words: list[str]) -> dict[str, Any]:
    group: Any = typer.main.get_command(cli_app)
    return group.commands["serve"].make_context("serve", words).params


def test_flags_and_key_survive(
    mac: Mac, cli_app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gets what was given, character for character, and no one else sees the key."""
    monkeypatch.setenv("DFLASH_MODE", "ddtree")
    monkeypatch.setenv("HF_HOME", '/x/100% "of" $HOME')
    monkeypatch.setenv("HF_TOKEN", "secret")
    given = [*FLAGS, "--api-key", KEY]
    told = mac.run("serve", "--install", *given)
    assert told.exit_code == 0, told.output
    first, *others = mac.words
    assert [first, *others[:4]] == [sys.executable, "-P", "-m", "dflash_mlx", "serve"]
    wanted = parameters(cli_app, given)
    found = parameters(cli_app, others[4:])
    key_file = found["api_key_file"]
    changed = {"api_key": None, "api_key_file": key_file, "let_sleep": True}
    assert found == {**wanted, **changed, "log_file": mac.manager.log}
    assert key_file.read_text() == KEY + "\n"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(mac.manager.file.stat().st_mode) == 0o600
    assert "geheim" not in mac.manager.file.read_text()
    assert mac.environment["DFLASH_MODE"] == "ddtree"
    assert mac.environment["HF_HOME"] == '/x/100% "of" $HOME'
    assert "secret" not in mac.manager.file.read_text()
    assert mac.manager.program().words == tuple(mac.words)
    assert mac.manager.program().environment == mac.environment
    for path in (mac.manager.file, mac.manager.log, key_file):
        assert str(path) in told.stderr
    content = mac.manager.file.read_bytes()
    # What `--uninstall` prints installs the same again.
    told = mac.run("serve", "--uninstall")
    assert told.exit_code == 0, told.output
    assert not mac.manager.file.exists()
    assert not (mac.place / "loaded").exists() or (mac.place / "ending").exists()
    again = shlex.split(told.stderr.partition("again: ")[2])
    variables = again[: again.index("dflash")]
    assert dict(word.split("=", 1) for word in variables) == service_variables(content, mac)
    assert KEY not in again
    assert key_file.read_text() == KEY + "\n"
    told = mac.run(*again[again.index("dflash") + 1 :])
    assert told.exit_code == 0, told.output
    assert mac.manager.file.read_bytes() == content


def service_variables(content: bytes, mac: Mac) -> dict[str, str]:
    """The variables of a service whose file is gone."""
    mac.manager.file.write_bytes(content)
    found = mac.environment
    mac.manager.file.unlink()
    return found


def test_what_launchd_is_asked_for(mac: Mac) -> None:
    """An earlier service ends before the next one starts."""
    for _ in range(2):
        assert mac.run("serve", "--install", "--port", "8123").exit_code == 0
    assert mac.run("serve", "--uninstall").exit_code == 0
    domain = f"gui/{os.getuid()}"
    start = [
        f"bootout {domain}/dflash.serve",
        f"enable {domain}/dflash.serve",
        f"bootstrap {domain} {mac.manager.file}",
    ]
    assert mac.calls == [*start, *start, start[0]]


def test_folders_are_absolute(mac: Mac, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service runs in another folder; a Hub id that is no folder stays as it is."""
    (tmp_path / "models/a").mkdir(parents=True)
    (tmp_path / "key").write_text("x")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DFLASH_DRAFT", "models/a")
    flags = ("-m", "models/a", "--api-key-file", "key", "--log-file", "logs/x.log")
    assert mac.run("serve", "--install", *flags).exit_code == 0
    assert mac.words[5:] == [
        *("--host=localhost", "--port=8080", f"--model={tmp_path}/models/a"),
        *(f"--log-file={tmp_path}/logs/x.log", "--let-sleep", f"--api-key-file={tmp_path}/key"),
    ]
    assert mac.environment["DFLASH_DRAFT"] == f"{tmp_path}/models/a"
    assert mac.run("serve", "--install", "-m", "models/b").exit_code == 0
    assert "--model=models/b" in mac.words
    # A file of the user's own stays.
    assert mac.run("serve", "--uninstall").exit_code == 0
    assert (tmp_path / "key").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--install", "--port", "0"], "a service needs a port that stays."),
        (["--install", "--temp", "-1"], "temperature cannot be -1"),
        (["--install", "--stop", "\x1b"], "a service cannot have --stop with control characters."),
        (["--install", "--host", "0.0.0.0"], "every machine of the network could use this server."),
        (["--install", "--api-key-file", "open"], "may read the key in"),
        (["--install", "--api-key", "a", "--api-key-file", "open"], "the API key is given twice."),
        (["--install", "--uninstall"], "--uninstall takes no other options."),
        (["--uninstall", "--port", "1"], "--uninstall takes no other options."),
        (["--uninstall"], "no service is installed"),
    ],
)
def test_what_is_refused(
    mac: Mac,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    message: str,
) -> None:
    """Before anything is written or started."""
    monkeypatch.chdir(tmp_path)
    Path("open").write_text("x")
    Path("open").chmod(0o644)
    told = mac.run("serve", *flags)
    assert told.exit_code in (1, 2)
    assert message in " ".join(told.stderr.split())
    assert not mac.manager.file.exists()
    assert not (mac.place / "loaded").exists()


def test_a_path_without_launchctl(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    told = mac.run("serve", "--install")
    assert told.exit_code == 1
    assert "is not on the PATH" in told.stderr
    assert not mac.manager.file.exists()


@pytest.mark.parametrize("flag", ["--install", "--uninstall"])
def test_linux_has_a_unit_in_the_guide(
    flag: str, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no service of our own; doctor looks for none."""
    monkeypatch.setattr(manager, "sys", SimpleNamespace(platform="linux"))
    monkeypatch.setattr(doctor, "on_mac", lambda: False)
    told = run("serve", flag)
    assert told.exit_code == 1
    assert "needs launchd, which only macOS has" in told.stderr
    assert "`dflash help serve` has a unit to paste" in told.stderr
    assert (check().status, check().summary) == ("ok", "looked at on macOS only")


def unit() -> str:
    (found,) = re.findall(r"```ini\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return found


def test_the_unit_has_flags_of_the_server(cli_app: typer.Typer) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit(), re.MULTILINE)
    command, name, *flags = shlex.split(line)
    assert (Path(command).name, name) == ("dflash", "serve")
    assert parameters(cli_app, flags)["model"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "dflash-serve.service"
    file.write_text(unit().replace("%h/.local/bin/dflash", sys.executable))
    tmp_path.chmod(0o700)
    line = ["systemd-analyze", "verify", "--user", str(file)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert file.name not in done.stderr


def test_a_service_that_does_not_start(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the last line of its log."""
    mac.become("failed")
    mac.manager.log.parent.mkdir(parents=True)
    mac.manager.log.write_text("one\ndflash: the model is not on this machine.\n\n")
    monkeypatch.setattr(service, "START_SECONDS", 5)
    told = mac.run("serve", "--install")
    assert told.exit_code == 1
    text = " ".join(told.stderr.split())
    assert "failed with exit code 1: dflash: the model is not on this machine." in text


def test_doctor_reports_it(mac: Mac) -> None:
    assert (check().status, check().hint) == ("ok", "")
    assert mac.run("serve", "--install", "--port", "8123", "--api-key", KEY).exit_code == 0
    found = check()
    assert found.status == "ok"
    assert found.summary.startswith("running · http://127.0.0.1:8123 · ~/")
    assert found.summary.endswith("serve.log")
    mac.become("failed")
    assert (check().status, check().summary[:23]) == ("warn", "failed with exit code 1")
    mac.become("idle")
    assert check().status == "warn"
    key = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash/serve.key"
    key.chmod(0o644)
    assert (check().status, check().hint) == ("warn", f"`chmod 600 {key}`")
    key.unlink()
    assert check().status == "fail"
    text = mac.manager.file.read_text()
    mac.manager.file.write_text(text.replace(sys.executable, "/gone/python"))
    assert "is not there" in check().summary
    mac.manager.file.write_text("nothing")
    with pytest.raises(Exception, match="is not as `dflash serve --install` writes it"):
        check()
    told = mac.run("serve", "--uninstall")  # also of a file that was changed
    assert told.exit_code == 0
    assert "again:" not in told.stderr
