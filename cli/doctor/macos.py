"""What macOS says of this Mac, by its own programs."""

import re
import subprocess
import sys

from .report import CheckResult, combine, ok, warn

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
