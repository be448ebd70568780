"""The checks of `dflash doctor` about installed packages and conflicts between them.

Knows distributions, PATH and modules; imports none of the packages that it checks.
"""

import json
import os
import re
import sys
import sysconfig
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import dflash_mlx

from .check import CheckResult, combine, fail, ok, short_path, warn

DISTRIBUTION = "dflash-chat"
REQUIRED = {  # as in pyproject.toml
    "mlx": ">=0.32,<0.33",
    "mlx-lm": ">=0.32,<0.33",
    "huggingface_hub": ">=1.0",
    "prompt_toolkit": ">=3.0.50",
    "rich": ">=14.0",
}
CONFLICTING = {  # distributions of other projects, and what they overwrite
    "dflash": warn("has the same command `dflash`", ""),
    "dflash-mlx": fail("has the same module `dflash_mlx` and command `dflash`", ""),
}


def versions() -> CheckResult:
    """The versions of this program and of its main dependencies."""
    return combine([own_version(), *(package_version(*item) for item in REQUIRED.items())])


def own_version() -> CheckResult:
    """The version of this distribution."""
    if installed(DISTRIBUTION) is None:
        return warn(
            f"dflash {dflash_mlx.__version__}, not installed",
            "run `make setup` in its clone",
        )
    return ok(f"{DISTRIBUTION} {version(DISTRIBUTION)}")


def package_version(name: str, required: str) -> CheckResult:
    """A package's version; it must be installed and in its range."""
    extra = "[cpu]" if name == "mlx" and sys.platform == "linux" else ""
    hint = f"`pip install '{name}{extra}{required}'`"
    package = installed(name)
    if package is None:
        return fail(f"{name} is not installed", hint)
    if not satisfies(package.version, required):
        return fail(f"{name} {package.version} is not {required}", hint)
    return ok(f"{name} {package.version}")


def satisfies(version: str, required: str) -> bool:
    """Whether a version is in a range such as >=1.2,<2."""
    for clause in required.split(","):
        is_minimum, bound = clause.startswith(">="), version_numbers(clause)
        if is_minimum != (version_numbers(version) >= bound):
            return False
    return True


def version_numbers(text: str) -> tuple[int, ...]:
    """The first three numbers of a version; missing ones are 0."""
    parts = [int(number) for number in re.findall(r"\d+", text)[:3]]
    return tuple([*parts, 0, 0, 0][:3])


def installed(name: str) -> Distribution | None:
    """A distribution of this environment; None when it is missing."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def packages() -> CheckResult:
    """Other distributions that overwrite this one's command or module."""
    results = []
    for name, conflict in CONFLICTING.items():
        if other := installed(name):
            results.append(
                CheckResult(
                    conflict.status,
                    f"{name} {other.version} {conflict.found}",
                    f"`pip uninstall {name}`, then install {DISTRIBUTION} again",
                )
            )
    return combine(results or [ok(f"no {' or '.join(CONFLICTING)} beside this one")])


def command() -> CheckResult:
    """Which `dflash` on PATH runs."""
    own_script = Path(sysconfig.get_path("scripts")) / "dflash"
    scripts: dict[Path, Path] = {}  # real file -> its path on PATH; links to one file count once
    for folder in os.get_exec_path():
        path = Path(folder) / "dflash"
        if path.is_file() and os.access(path, os.X_OK):
            scripts.setdefault(path.resolve(), path)
    if not scripts:
        return ok(
            "not on PATH" + (f"; it is {short_path(own_script)}" if own_script.is_file() else "")
        )
    first = next(iter(scripts))
    listed = ", ".join(short_path(path) for path in scripts.values())
    if first != own_script.resolve():
        return warn(
            f"`dflash` runs {listed.partition(', ')[0]}, this is {short_path(own_script)}",
            f"put {short_path(own_script.parent)} first on PATH, or remove the other one",
        )
    if len(scripts) > 1:
        return warn(
            f"{len(scripts)} on PATH: {listed}; the first one runs",
            "remove those that you do not need",
        )
    return ok(listed)


def module() -> CheckResult:
    """Whether `dflash_mlx` was imported from where it is installed."""
    imported_from = Path(dflash_mlx.__file__).resolve().parent
    package = installed(DISTRIBUTION)
    if package is None:
        return warn(
            f"{short_path(imported_from)}, not installed",
            f"install {DISTRIBUTION}, so that every folder finds it",
        )
    origin = json.loads(package.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        installed_in = Path(url2pathname(urlsplit(origin["url"]).path)).resolve() / "dflash_mlx"
    else:
        installed_in = Path(str(package.locate_file("dflash_mlx"))).resolve()
    if imported_from != installed_in:
        return fail(
            f"imported from {short_path(imported_from)}, installed in {short_path(installed_in)}",
            "leave that folder out of PYTHONPATH and start from another folder",
        )
    return ok(short_path(imported_from))
