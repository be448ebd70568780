"""The checks of the machine, and of the service on it; macOS is asked by its own programs."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..service import KEY_FILE, LOG_FILE, address, value_of
from ..service_manager import Launchd, others_may_read
from ..terminal.output import format_bytes
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
    return output("/usr/sbin/sysctl", "-in", name)


def macos_version() -> str:
    """From the system: a Python for an older macOS may be told another."""
    return sysctl("kern.osproductversion")


def machine(info: Mapping[str, Any]) -> CheckResult:
    """info: MLX's facts of the device."""
    if on_mac():
        model, system = sysctl("hw.model"), f"macOS {macos_version()}"
    else:
        model, system = "", f"{platform.system()} {platform.release()}"
    parts = (model, info.get("device_name"), platform.machine(), f"{os.cpu_count()} cores", system)
    return ok(" · ".join(filter(None, parts)))


def memory(info: Mapping[str, Any]) -> CheckResult:
    """How much there is, and how much of it models may use."""
    summary = format_bytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if limit := info.get("max_recommended_working_set_size"):
        summary += f" · recommended working set {format_bytes(limit)}"
    return ok(summary)


def power() -> CheckResult:
    """What makes a Mac slower: low power mode, and heat. Names the source of power, too."""
    if not on_mac():
        return ok("looked at on macOS only")
    results = []
    # Newer Macs have `powermode` (0 automatic, 1 low, 2 high), others `lowpowermode`.
    mode = re.search(r"^\s*(low)?powermode\s+(\d)", output("/usr/bin/pmset", "-g"), re.MULTILINE)
    if mode is not None and mode[2] == "1":
        hint = "switch it off in System Settings, Battery (or Energy)"
        results.append(warn("low power mode, which slows the GPU down", hint))
    else:
        words = {None: "power mode not told", "2": "high power mode"}
        results.append(ok(words.get(mode and mode[2], "low power mode off")))
    drawing = output("/usr/bin/pmset", "-g", "batt")
    source = "on battery" if "'Battery Power'" in drawing else "on mains power"
    results.append(ok(source if drawing else "power source not told"))
    # `pmset -g therm` says nothing on Apple silicon.
    told = output("/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel")
    heat = re.search(r"(\d)$", told)
    pressure = f"thermal pressure {HEAT[min(int(heat[1]), len(HEAT) - 1)] if heat else 'not told'}"
    if heat is None or heat[1] == "0":
        results.append(ok(pressure))
    else:
        hint = "let it cool before you measure speeds"
        results.append(warn(f"{pressure}: the Mac is hot, and slower", hint))
    return combine(results)


def service() -> CheckResult:
    """The installed service: whether it runs, where its files are, and whether its key is safe."""
    if not on_mac():
        return ok("looked at on macOS only")
    manager = Launchd()
    if not manager.file.exists():
        return ok("dflash serve is not installed as one")
    words = manager.program().words
    key_file = value_of(words, KEY_FILE)
    for file, what in ((words[0], "Python"), (key_file, "key's file")):
        if file and not Path(file).exists():
            missing = f"its {what}, {short_path(file)}, is not there"
            return fail(f"{short_path(manager.file)} · {missing}", INSTALL_AGAIN)
    if key_file and others_may_read(Path(key_file)):
        return warn(f"{short_path(key_file)} · others may read the key", f"`chmod 600 {key_file}`")
    log = value_of(words, LOG_FILE) or ""
    url = address(value_of(words, "--host") or "", value_of(words, "--port") or "")
    state = manager.state()
    summary = " · ".join((state.summary, url, short_path(manager.file), f"log {short_path(log)}"))
    return ok(summary) if state.running else warn(summary, f"its log says why; {INSTALL_AGAIN}")
