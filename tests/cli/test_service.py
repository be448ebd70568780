"""`dflash serve --install`: what launchd and systemd are given, with programs in their places.

The programs behave as Apple's and systemd's do; what they load is read as those read it.
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
check = importlib.import_module("dflash_mlx.cli.doctor.service").service

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
SYSTEMCTL = """#!/bin/sh
echo "$*" >> "{place}/calls"
cd "{place}"
[ "$1" = --user ] || exit 1
case "$2" in
restart) cp "{unit}" loaded ;;
disable) rm -f loaded ;;
show) if [ -e loaded ]; then cat state; else echo ActiveState=inactive; echo SubState=dead; fi ;;
esac
"""
STATES = {
    "launchd": {
        "running": "\tstate = running\n\tpid = 71\n\tlast exit code = 1\n",
        "failed": "\tstate = not running\n\tlast exit code = 1\n",
        "idle": "\tstate = not running\n\tlast exit code = (never exited)\n",
    },
    "systemd": {
        "running": "ActiveState=active\nSubState=running\nExecMainStatus=0\n",
        "failed": "ActiveState=activating\nSubState=auto-restart\nExecMainStatus=1\n",
        "idle": "ActiveState=inactive\nSubState=dead\nExecMainStatus=0\n",
    },
}
KEY = "geheim %h $HOME \"'"
NAME = "my 'model' \"x\" 100% %h $HOME ${HOME} $$ back\\slash\\n ü; --uninstall"
FLAGS = (
    *("--alias", NAME, "--alias", " and another one ", "--no-think", "--draft-bits", "none"),
    *("--cache-ram", "500MB", "--temp=0.5", "--stop", "\n", "--stop", "--install", "--stop=\t"),
)


@dataclass(frozen=True)
class System:
    """One of the two systems, and the program in the place of its own."""

    name: str
    place: Path
    run: Callable[..., Result]

    @property
    def manager(self) -> Any:
        return manager.service_manager()

    @property
    def calls(self) -> list[str]:
        """What the program was asked for, but for the states."""
        lines = (self.place / "calls").read_text().splitlines()
        return [line for line in lines if not re.search(r"\b(print|show)\b", line)]

    @property
    def words(self) -> list[str]:
        """The command line of the service, as the system reads it."""
        if self.name == "launchd":
            return plistlib.loads(self.manager.file.read_bytes())["ProgramArguments"]
        (line,) = re.findall(r"^ExecStart=(.*)$", self.manager.file.read_text(), re.MULTILINE)
        first, *others = systemd_words(line)
        return [first, *(word.replace("$$", "$") for word in others)]

    @property
    def environment(self) -> dict[str, str]:
        if self.name == "launchd":
            return plistlib.loads(self.manager.file.read_bytes())["EnvironmentVariables"]
        text = self.manager.file.read_text().partition("[X-Dflash]")[0]
        lines = re.findall(r"^Environment=(.*)$", text, re.MULTILINE)
        return dict(word.split("=", 1) for line in lines for word in systemd_words(line))

    def become(self, state: str) -> None:
        """What the system says from now on."""
        (self.place / "state").write_text(STATES[self.name][state])


def systemd_words(line: str) -> list[str]:
    """Words of a unit file, all in double quotes, without escapes and specifiers."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"(?: |$)', line)
    assert " ".join(f'"{word}"' for word in words) == line
    for word in words:
        assert not re.search(r"(?<!%)(%%)*%(?!%)", word), "a specifier"
    escapes = {"n": "\n", "t": "\t"}
    return [
        re.sub(r"\\(.)", lambda found: escapes.get(found[1], found[1]), word).replace("%%", "%")
        for word in words
    ]


@pytest.fixture(params=["launchd", "systemd"])
def system(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., Result],
) -> System:
    """A system whose services run as soon as they are started, although they do not answer."""
    name = request.param
    monkeypatch.setattr(manager, "sys", SimpleNamespace(platform="darwin" * (name == "launchd")))
    monkeypatch.setattr(manager, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(service, "START_SECONDS", 0.01)
    found = System(name, tmp_path / "system", run)
    found.place.mkdir()
    found.become("running")
    text = LAUNCHCTL if name == "launchd" else SYSTEMCTL
    program = found.place / ("launchctl" if name == "launchd" else "systemctl")
    program.write_text(text.format(place=found.place, unit=found.manager.file))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{found.place}:{os.environ['PATH']}")
    return found


def parameters(cli_app: typer.Typer, words: list[str]) -> dict[str, Any]:
    """What `dflash serve` understands."""
    group: Any = typer.main.get_command(cli_app)
    return group.commands["serve"].make_context("serve", words).params


def test_flags_and_key_survive(
    system: System, cli_app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gets what was given, character for character, and no one else sees the key."""
    monkeypatch.setenv("DFLASH_MODE", "ddtree")
    monkeypatch.setenv("HF_HOME", '/x/100% "of" $HOME')
    monkeypatch.setenv("HF_TOKEN", "secret")
    given = [*FLAGS, "--api-key", KEY]
    told = system.run("serve", "--install", *given)
    assert told.exit_code == 0, told.output
    first, *others = system.words
    assert [first, *others[:4]] == [sys.executable, "-P", "-m", "dflash_mlx", "serve"]
    wanted = parameters(cli_app, given)
    found = parameters(cli_app, others[4:])
    key_file = found["api_key_file"]
    changed = {"api_key": None, "api_key_file": key_file, "let_sleep": True}
    assert found == {**wanted, **changed, "log_file": system.manager.log}
    assert key_file.read_text() == KEY + "\n"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(system.manager.file.stat().st_mode) == 0o600
    assert "geheim" not in system.manager.file.read_text()
    assert system.environment["DFLASH_MODE"] == "ddtree"
    assert system.environment["HF_HOME"] == '/x/100% "of" $HOME'
    assert "secret" not in system.manager.file.read_text()
    assert system.manager.program().words == tuple(system.words)
    assert system.manager.program().environment == system.environment
    for path in (system.manager.file, system.manager.log, key_file):
        assert str(path) in told.stderr
    content = system.manager.file.read_bytes()
    # What `--uninstall` prints installs the same again.
    told = system.run("serve", "--uninstall")
    assert told.exit_code == 0, told.output
    assert not system.manager.file.exists()
    assert not (system.place / "loaded").exists() or (system.place / "ending").exists()
    again = shlex.split(told.stderr.partition("again: ")[2])
    variables = again[: again.index("dflash")]
    assert dict(word.split("=", 1) for word in variables) == system_variables(content, system)
    assert KEY not in again
    assert key_file.read_text() == KEY + "\n"
    told = system.run(*again[again.index("dflash") + 1 :])
    assert told.exit_code == 0, told.output
    assert system.manager.file.read_bytes() == content


def system_variables(content: bytes, system: System) -> dict[str, str]:
    """The variables of a service whose file is gone."""
    system.manager.file.write_bytes(content)
    found = system.environment
    system.manager.file.unlink()
    return found


@pytest.mark.parametrize("fault", ["percent", "dollar", "quote"])
def test_a_lost_character_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading of units above tells words that systemd would change."""
    quoted = manager.quoted
    faults = {
        "percent": lambda word, more="": quoted(word, more).replace("%%", "%"),
        "dollar": lambda word, more="": quoted(word),
        "quote": lambda word, more="": f'"{word}"',
    }
    monkeypatch.setattr(manager, "quoted", faults[fault])
    program = manager.ServiceProgram(("/bin/x", NAME, "$$"), {})
    text = manager.Systemd().text(program).decode()
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    try:
        first, *others = systemd_words(line)
    except AssertionError:
        return
    assert [first, *(word.replace("$$", "$") for word in others)] != list(program.words)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = manager.ServiceProgram((sys.executable, NAME, "a\nb", ""), {"X": NAME})
    file = tmp_path / "dflash-serve.service"
    file.write_bytes(manager.Systemd().text(program))
    tmp_path.chmod(0o700)
    line = ["systemd-analyze", "verify", "--user", str(file)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_LOG_LEVEL": "debug"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"Environment: X={NAME}\n" in done.stdout + done.stderr


def test_what_the_system_is_asked_for(system: System) -> None:
    """An earlier service ends before the next one starts."""
    for _ in range(2):
        assert system.run("serve", "--install", "--port", "8123").exit_code == 0
    assert system.run("serve", "--uninstall").exit_code == 0
    if system.name == "launchd":
        domain = f"gui/{os.getuid()}"
        start = [
            f"bootout {domain}/dflash.serve",
            f"enable {domain}/dflash.serve",
            f"bootstrap {domain} {system.manager.file}",
        ]
        assert system.calls == [*start, *start, start[0]]
    else:
        unit = "dflash-serve.service"
        start = ["daemon-reload", "daemon-reload", f"enable {unit}", f"restart {unit}"]
        end = [f"disable --now {unit}", "daemon-reload"]
        assert system.calls == [f"--user {call}" for call in (*start, *start, *end)]


def test_how_launchd_runs_it(tmp_path: Path) -> None:
    """At login, again after a failure, not slowed down, and with ten seconds for answers."""
    text = manager.Launchd().text(manager.ServiceProgram(("/bin/x",), {}))
    found = plistlib.loads(text)
    assert found["RunAtLoad"] is True
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["ProcessType"] == "Interactive"
    assert found["ExitTimeOut"] > 10
    assert Path(found["WorkingDirectory"]).is_absolute()


def test_folders_are_absolute(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service runs in another folder; a Hub id that is no folder stays as it is."""
    (tmp_path / "models/a").mkdir(parents=True)
    (tmp_path / "key").write_text("x")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DFLASH_DRAFT", "models/a")
    flags = ("-m", "models/a", "--api-key-file", "key", "--log-file", "logs/x.log")
    assert system.run("serve", "--install", *flags).exit_code == 0
    assert system.words[5:] == [
        *("--host=127.0.0.1", "--port=8080", f"--model={tmp_path}/models/a"),
        *(f"--log-file={tmp_path}/logs/x.log", "--let-sleep", f"--api-key-file={tmp_path}/key"),
    ]
    assert system.environment["DFLASH_DRAFT"] == f"{tmp_path}/models/a"
    assert system.run("serve", "--install", "-m", "models/b").exit_code == 0
    assert "--model=models/b" in system.words
    # A file of the user's own stays.
    assert system.run("serve", "--uninstall").exit_code == 0
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
    system: System,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    message: str,
) -> None:
    """Before anything is written or started."""
    monkeypatch.chdir(tmp_path)
    Path("open").write_text("x")
    Path("open").chmod(0o644)
    told = system.run("serve", *flags)
    assert told.exit_code in (1, 2)
    assert message in " ".join(told.stderr.split())
    assert not system.manager.file.exists()
    assert not (system.place / "loaded").exists()


def test_a_system_that_has_none(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    told = system.run("serve", "--install")
    assert told.exit_code == 1
    assert "which starts services" in told.stderr
    assert not system.manager.file.exists()


def test_a_service_that_does_not_start(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the last line of its log."""
    system.become("failed")
    system.manager.log.parent.mkdir(parents=True)
    system.manager.log.write_text("one\ndflash: the model is not on this machine.\n\n")
    monkeypatch.setattr(service, "START_SECONDS", 5)
    told = system.run("serve", "--install")
    assert told.exit_code == 1
    text = " ".join(told.stderr.split())
    assert "failed with exit code 1: dflash: the model is not on this machine." in text


def test_doctor_reports_it(system: System) -> None:
    assert (check().status, check().hint) == ("ok", "")
    assert system.run("serve", "--install", "--port", "8123", "--api-key", KEY).exit_code == 0
    found = check()
    assert found.status == "ok"
    assert found.summary.startswith("running · http://127.0.0.1:8123 · ~/")
    assert found.summary.endswith("serve.log")
    system.become("failed")
    assert (check().status, check().summary[:23]) == ("warn", "failed with exit code 1")
    system.become("idle")
    assert check().status == "warn"
    key = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash/serve.key"
    key.chmod(0o644)
    assert (check().status, check().hint) == ("warn", f"`chmod 600 {key}`")
    key.unlink()
    assert check().status == "fail"
    text = system.manager.file.read_text()
    system.manager.file.write_text(text.replace(sys.executable, "/gone/python"))
    assert "is not there" in check().summary
    system.manager.file.write_text("nothing")
    with pytest.raises(Exception, match="is not as `dflash serve --install` writes it"):
        check()
    told = system.run("serve", "--uninstall")  # also of a file that was changed
    assert told.exit_code == 0
    assert "again:" not in told.stderr
