"""launchd of macOS, which starts a service for a user.

A service here is `dflash serve` with its flags. Its file is readable for its user alone.
"""

import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.errors import DFlashError

from .config_file import file_error_reason

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


def service_manager() -> "Launchd":
    """The manager of services. DFlashError on another system than macOS."""
    if sys.platform != "darwin":
        raise DFlashError(
            "a service of dflash serve needs launchd, which only macOS has.",
            hint="on Linux use systemd: `dflash help serve` has a unit to paste",
        )
    return Launchd()


def launchctl(*arguments: str, must: bool = True) -> subprocess.CompletedProcess[str]:
    """Run launchctl. DFlashError if it is missing, and if `must` and it fails."""
    words = ("launchctl", *arguments)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise DFlashError(
            "launchctl, which starts services, is not on the PATH.",
            hint="add its folder: PATH=$PATH:/bin",
        ) from None
    except subprocess.TimeoutExpired:
        raise DFlashError(f"`{' '.join(words)}` does not end.", hint="try it again") from None
    if must and done.returncode:
        reason = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise DFlashError(
            f"`{' '.join(words)}` failed ({reason:.200}).",
            hint="a service needs your login at the Mac's own screen",
        )
    return done


class Launchd:
    """Starts a service at login; it runs while its user is logged in at the Mac's screen."""

    def __init__(self) -> None:
        self.file = Path.home() / "Library/LaunchAgents" / f"{LABEL}.plist"
        self.log = Path.home() / "Library/Logs/dflash/serve.log"
        self._domain = f"gui/{os.getuid()}"
        self._service = f"{self._domain}/{LABEL}"

    def install(self, program: ServiceProgram) -> None:
        """Write the file and start the service. An earlier one ends first."""
        launchctl("print", self._domain)  # fails before anything is written
        self._stop()
        self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.file, self.text(program))
        launchctl("enable", self._service)  # undoes an earlier `disable`
        launchctl("bootstrap", self._domain, str(self.file))

    def remove(self) -> None:
        self._stop()
        self.file.unlink()

    def text(self, program: ServiceProgram) -> bytes:
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
        """What the file says. DFlashError for a file that `install` did not write."""
        import plistlib
        from xml.parsers.expat import ExpatError

        try:
            found = plistlib.loads(self.file.read_bytes())
            return ServiceProgram(
                tuple(found["ProgramArguments"]), found.get("EnvironmentVariables", {})
            )
        except (ValueError, TypeError, LookupError, ExpatError) as error:
            raise DFlashError(
                f"'{self.file}' is not as `dflash serve --install` writes it.",
                hint="install the service again, or delete this file",
            ) from error

    def state(self) -> ServiceState:
        done = launchctl("print", self._service, must=False)
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
        launchctl("bootout", self._service, must=False)
        until = time.monotonic() + STOP_SECONDS + 5
        while launchctl("print", self._service, must=False).returncode == 0:
            if time.monotonic() > until:
                raise DFlashError(
                    "the running service does not end.",
                    hint=f"`launchctl kill KILL {self._service}`, then try again",
                )
            time.sleep(POLL_SECONDS)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that no other user could ever read; DFlashError if that fails."""
    new = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileNotFoundError):
            new.unlink()
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        new.replace(path)
    except OSError as error:
        raise DFlashError(
            f"'{path}' cannot be written ({file_error_reason(error)}).",
            hint="make room, or make its folder one that you may write",
        ) from None


def others_may_read(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
