"""What is installed and what stands in its way: the checks of `dflash doctor` about packages.

Knows distributions, PATH and modules; imports none of those it looks at.
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

from .finding import Finding, fail, ok, short, together, warn

OURS = "dflash-chat"
REQUIRED = {  # as in pyproject.toml
    "mlx": ">=0.32,<0.33",
    "mlx-lm": ">=0.32,<0.33",
    "huggingface_hub": ">=1.0",
    "prompt_toolkit": ">=3.0.50",
    "rich": ">=14.0",
}
RIVALS = {  # others' distributions, and what they have in common with this one
    "dflash": warn("has the same command `dflash`", ""),
    "dflash-mlx": fail("has the same module `dflash_mlx` and command `dflash`", ""),
}


def versions() -> Finding:
    """This program's version and those of what it is built on."""
    return together([own_version(), *(package(*item) for item in REQUIRED.items())])


def own_version() -> Finding:
    """The version of this distribution."""
    if installed(OURS) is None:
        return warn(
            f"dflash {dflash_mlx.__version__}, not installed",
            "install it with `uv pip install -e .` or `pip install -e .` in its folder",
        )
    return ok(f"{OURS} {version(OURS)}")


def package(name: str, wanted: str) -> Finding:
    """A distribution's version; it must be there and in its range."""
    extra = "[cpu]" if name == "mlx" and sys.platform == "linux" else ""
    hint = f"`pip install '{name}{extra}{wanted}'`"
    found = installed(name)
    if found is None:
        return fail(f"{name} is not installed", hint)
    if not fits(found.version, wanted):
        return fail(f"{name} {found.version} is not {wanted}", hint)
    return ok(f"{name} {found.version}")


def fits(have: str, wanted: str) -> bool:
    """Whether a version is in a range such as >=1.2,<2."""
    for clause in wanted.split(","):
        least, bound = clause.startswith(">="), numbers(clause)
        if least != (numbers(have) >= bound):
            return False
    return True


def numbers(text: str) -> tuple[int, ...]:
    """The first three numbers of a version; missing ones are 0."""
    found = [int(number) for number in re.findall(r"\d+", text)[:3]]
    return tuple([*found, 0, 0, 0][:3])


def installed(name: str) -> Distribution | None:
    """A distribution of this environment, if it is there."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def packages() -> Finding:
    """Other distributions that overwrite this one's command or module."""
    parts = []
    for name, common in RIVALS.items():
        if rival := installed(name):
            parts.append(
                Finding(
                    common.status,
                    f"{name} {rival.version} {common.found}",
                    f"`pip uninstall {name}`, then install {OURS} again",
                )
            )
    return together(parts or [ok(f"no {' or '.join(RIVALS)} beside this one")])


def command() -> Finding:
    """Which `dflash` runs when its name is typed."""
    ours = Path(sysconfig.get_path("scripts")) / "dflash"
    found: dict[Path, Path] = {}  # real file -> as PATH names it; links to one file are one
    for folder in os.get_exec_path():
        path = Path(folder) / "dflash"
        if path.is_file() and os.access(path, os.X_OK):
            found.setdefault(path.resolve(), path)
    if not found:
        return ok("not on PATH" + (f"; it is {short(ours)}" if ours.is_file() else ""))
    first = next(iter(found))
    listed = ", ".join(short(path) for path in found.values())
    if first != ours.resolve():
        return warn(
            f"`dflash` runs {listed.partition(', ')[0]}, this is {short(ours)}",
            f"put {short(ours.parent)} first on PATH, or remove the other one",
        )
    if len(found) > 1:
        return warn(
            f"{len(found)} on PATH: {listed}; the first one runs",
            "remove those that you do not need",
        )
    return ok(listed)


def module() -> Finding:
    """Where `dflash_mlx` was imported from, and whether that is where it was installed."""
    place = Path(dflash_mlx.__file__).resolve().parent
    own = installed(OURS)
    if own is None:
        return warn(
            f"{short(place)}, not installed", f"install {OURS}, so that every folder finds it"
        )
    origin = json.loads(own.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        wanted = Path(url2pathname(urlsplit(origin["url"]).path)).resolve() / "dflash_mlx"
    else:
        wanted = Path(str(own.locate_file("dflash_mlx"))).resolve()
    if place != wanted:
        return fail(
            f"imported from {short(place)}, installed in {short(wanted)}",
            "leave that folder out of PYTHONPATH and start from another folder",
        )
    return ok(short(place))
