"""What macOS says of this Mac, by its own programs."""

import re
import subprocess
import sys
from pathlib import Path

from ..service import KEY_FILE, LOG_FILE, address, value_of
from ..service_manager import Launchd, ServiceProgram, others_may_read
from .report import CheckResult, combine, fail, ok, short_path, warn

INSTALL_AGAIN = "`dflash serve --install` installs it again, --uninstall removes it"
HEAT = ("nominal", "moderate", "heavy", "trapping", "sleeping")  # OSThermalNotification.h


def on_mac() -> bool:
    return sys.platform == "darwin"


def output(*line: str) -> str:
    """What a program prints; empty if it is missing or fails."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def sysctl(name: str) -> str:
    """A value of macOS's sysctl; empty when the name is unknown."""
    return output("/usr/sbin/sysctl", "-in", name)


def version() -> str:
    """The version of macOS, from the system: a Python for an older one may be told another."""
    return sysctl("kern.osproductversion")


def power() -> CheckResult:
    """What makes a Mac slower: low power mode, and heat. Names the source of power, too."""
    if not on_mac():
        return ok("looked at on macOS only")
    return combine([power_mode(), power_source(), heat()])


def power_mode() -> CheckResult:
    """Newer Macs have `powermode` (0 automatic, 1 low, 2 high), others `lowpowermode`."""
    found = re.search(r"^\s*(low)?powermode\s+(\d)", output("/usr/bin/pmset", "-g"), re.MULTILINE)
    if found is None:
        return ok("power mode not told")
    if found[2] == "1":
        return warn(
            "low power mode, which slows the GPU down",
            "switch it off in System Settings, Battery (or Energy)",
        )
    return ok("high power mode" if found[2] == "2" else "low power mode off")


def power_source() -> CheckResult:
    drawing = output("/usr/bin/pmset", "-g", "batt")
    if not drawing:
        return ok("power source not told")
    return ok("on battery" if "'Battery Power'" in drawing else "on mains power")


def heat() -> CheckResult:
    """The thermal pressure. `pmset -g therm` says nothing on Apple silicon."""
    told = output("/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel")
    found = re.search(r"(\d)$", told)
    if found is None:
        return ok("thermal pressure not told")
    summary = f"thermal pressure {HEAT[min(int(found[1]), len(HEAT) - 1)]}"
    if found[1] == "0":
        return ok(summary)
    return warn(f"{summary}: the Mac is hot, and slower", "let it cool before you measure speeds")


def service() -> CheckResult:
    """The installed service: whether it runs, where its files are, and whether its key is safe."""
    if not on_mac():
        return ok("looked at on macOS only")
    manager = Launchd()
    if not manager.file.exists():
        return ok("dflash serve is not installed as one")
    program = manager.program()
    if fault := fault_of(program):
        return fail(f"{short_path(manager.file)} · {fault}", INSTALL_AGAIN)
    key_file = value_of(program.words, KEY_FILE)
    if key_file and others_may_read(Path(key_file)):
        return warn(f"{short_path(key_file)} · others may read the key", f"`chmod 600 {key_file}`")
    log = value_of(program.words, LOG_FILE) or ""
    url = address(value_of(program.words, "--host") or "", value_of(program.words, "--port") or "")
    state = manager.state()
    summary = " · ".join((state.summary, url, short_path(manager.file), f"log {short_path(log)}"))
    return ok(summary) if state.running else warn(summary, f"its log says why; {INSTALL_AGAIN}")


def fault_of(program: ServiceProgram) -> str:
    """Why a service cannot start, in a few words; empty if nothing is missing."""
    python = Path(program.words[0])
    if not python.exists():
        return f"its Python, {short_path(python)}, is not there"
    key_file = value_of(program.words, KEY_FILE)
    if key_file and not Path(key_file).exists():
        return f"its key's file, {short_path(key_file)}, is not there"
    return ""
