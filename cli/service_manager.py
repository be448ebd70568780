"""The programs that start a service for a user: launchd on macOS, systemd on Linux.

A service here is `dflash serve` with its flags. Its file is readable for its user alone.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dflash_mlx.errors import DFlashError

from .private_file import write_private

LABEL = "dflash.serve"
STOP_SECONDS = 20  # until it is killed; running answers have ten seconds
RESTART_SECONDS = 30  # after a failure
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ServiceProgram:
    """What a service runs. environment: the variables that it has beside those of the system."""

    words: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ServiceState:
    """How an installed service does. failed: it has ended with an error and is started again."""

    running: bool
    failed: bool
    summary: str


class ServiceManager(Protocol):
    """Starts a service at login. `file` describes the service; `log` is where its log belongs."""

    file: Path
    log: Path
    note: str

    def install(self, program: ServiceProgram) -> None:
        """Write the file and start the service. An earlier one ends first."""
        ...

    def remove(self) -> None:
        """Stop the service and delete its file."""
        ...

    def program(self) -> ServiceProgram:
        """What the file says. DFlashError for a file that `install` did not write."""
        ...

    def state(self) -> ServiceState:
        """How the installed service does."""
        ...


def service_manager() -> ServiceManager:
    """The manager of this system."""
    return Launchd() if sys.platform == "darwin" else Systemd()


def run_tool(*words: str, must: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program of the system. DFlashError if it is missing, and if `must` and it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise DFlashError(
            f"this system has no '{words[0]}', which starts services.",
            hint="start `dflash serve` by what your system has for this",
        ) from None
    except subprocess.TimeoutExpired:
        raise DFlashError(f"`{' '.join(words)}` does not end.", hint="try it again") from None
    if must and done.returncode:
        reason = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise DFlashError(
            f"`{' '.join(words)}` failed ({reason:.200}).",
            hint="a service needs your login: on a Mac at its own screen, on Linux with systemd",
        )
    return done


def not_ours(file: Path) -> DFlashError:
    """The error for a file that was changed or comes from another program."""
    return DFlashError(
        f"'{file}' is not as `dflash serve --install` writes it.",
        hint="install the service again, or delete this file",
    )


class Launchd:
    """launchd of macOS, whose agents run while their user is logged in at the Mac's screen."""

    note = "It starts when you log in at this Mac's screen."

    def __init__(self) -> None:
        self.file = Path.home() / "Library/LaunchAgents" / f"{LABEL}.plist"
        self.log = Path.home() / "Library/Logs/dflash/serve.log"
        self._domain = f"gui/{os.getuid()}"
        self._service = f"{self._domain}/{LABEL}"

    def install(self, program: ServiceProgram) -> None:
        run_tool("launchctl", "print", self._domain)  # fails before anything is written
        self._stop()
        self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.file, self.text(program))
        run_tool("launchctl", "enable", self._service)  # undoes an earlier `disable`
        run_tool("launchctl", "bootstrap", self._domain, str(self.file))

    def remove(self) -> None:
        self._stop()
        self.file.unlink()

    def text(self, program: ServiceProgram) -> bytes:
        """The file: a property list in XML."""
        import plistlib  # slow to import

        return plistlib.dumps(
            {
                "Label": LABEL,
                "ProgramArguments": list(program.words),
                "EnvironmentVariables": dict(program.environment),
                "WorkingDirectory": str(Path.home()),
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ThrottleInterval": RESTART_SECONDS,
                "ExitTimeOut": STOP_SECONDS,
                "ProcessType": "Interactive",  # others are given less of processor and disk
                "Umask": 0o77,
                # Only for what comes before the program opens its log.
                "StandardOutPath": str(self.log),
                "StandardErrorPath": str(self.log),
            }
        )

    def program(self) -> ServiceProgram:
        import plistlib
        from xml.parsers.expat import ExpatError

        try:
            found = plistlib.loads(self.file.read_bytes())
            return ServiceProgram(
                tuple(found["ProgramArguments"]), found.get("EnvironmentVariables", {})
            )
        except (ValueError, TypeError, LookupError, ExpatError) as error:
            raise not_ours(self.file) from error

    def state(self) -> ServiceState:
        done = run_tool("launchctl", "print", self._service, must=False)
        if done.returncode:
            return ServiceState(False, False, "not loaded by launchd")
        # One tab: those of inner objects have more.
        told = dict(re.findall(r"^\t([^\t=]+) = (.*)$", done.stdout, re.MULTILINE))
        if told.get("state") == "running":
            return ServiceState(True, False, "running")
        code = told.get("last exit code", "")
        if code.isdecimal() and code != "0":
            return ServiceState(False, True, f"failed with exit code {code}")
        return ServiceState(False, False, told.get("state", "not running"))

    def _stop(self) -> None:
        """End the service; launchd does not wait for its end, and starts no second one before."""
        run_tool("launchctl", "bootout", self._service, must=False)
        until = time.monotonic() + STOP_SECONDS + 5
        while run_tool("launchctl", "print", self._service, must=False).returncode == 0:
            if time.monotonic() > until:
                raise DFlashError(
                    "the running service does not end.",
                    hint=f"`launchctl kill KILL {self._service}`, then try again",
                )
            time.sleep(POLL_SECONDS)


class Systemd:
    """systemd of Linux, whose user services run while their user is logged in."""

    note = "It starts when you log in; `loginctl enable-linger` starts it with the machine."

    def __init__(self) -> None:
        config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        self._unit = f"{LABEL.replace('.', '-')}.service"
        self.file = Path(config).expanduser() / "systemd/user" / self._unit
        self.log = Path(state).expanduser() / "dflash/serve.log"

    def install(self, program: ServiceProgram) -> None:
        self._run("daemon-reload")  # fails before anything is written
        write_private(self.file, self.text(program))
        self._run("daemon-reload")
        self._run("enable", self._unit)
        self._run("restart", self._unit)

    def remove(self) -> None:
        self._run("disable", "--now", self._unit)
        self.file.unlink()
        self._run("daemon-reload")

    def text(self, program: ServiceProgram) -> bytes:
        """The file: a unit. systemd ignores sections that begin with X-."""
        first, *others = program.words
        lines = [
            "[Unit]",
            "Description=dflash serve",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            " ".join([f"ExecStart={quoted(first)}", *(quoted(word, "$") for word in others)]),
            *(
                f"Environment={quoted(f'{name}={text}')}"
                for name, text in program.environment.items()
            ),
            "WorkingDirectory=~",
            "Restart=on-failure",
            f"RestartSec={RESTART_SECONDS}",
            f"TimeoutStopSec={STOP_SECONDS}",
            "UMask=0077",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
            "[X-Dflash]",
            f"Words={json.dumps(program.words)}",
            f"Environment={json.dumps(dict(program.environment))}",
            "",
        ]
        return "\n".join(lines).encode()

    def program(self) -> ServiceProgram:
        unit = ConfigParser(strict=False, interpolation=None, delimiters="=")
        try:
            unit.read_string(self.file.read_text(encoding="utf-8"))
            own = unit["X-Dflash"]
            return ServiceProgram(tuple(json.loads(own["Words"])), json.loads(own["Environment"]))
        except (ValueError, TypeError, LookupError, ConfigError) as error:
            raise not_ours(self.file) from error

    def state(self) -> ServiceState:
        names = "ActiveState,SubState,ExecMainStatus"
        done = self._run("show", self._unit, "-p", names, must=False)
        told = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        if told.get("ActiveState") == "active":
            return ServiceState(True, False, "running")
        code = told.get("ExecMainStatus", "0")
        if code != "0":
            return ServiceState(False, True, f"failed with exit code {code}")
        return ServiceState(False, False, told.get("SubState") or "not known to systemd")

    def _run(self, *words: str, must: bool = True) -> subprocess.CompletedProcess[str]:
        return run_tool("systemctl", "--user", *words, must=must)


def quoted(word: str, expanded: str = "") -> str:
    """A word of a unit file; characters that systemd expands are doubled: % and `expanded`."""
    for character, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        word = word.replace(character, escape)
    for character in ("%", *expanded):
        word = word.replace(character, 2 * character)
    return f'"{word}"'
