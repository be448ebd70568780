"""The checks of what is installed, of the settings, and of the folders.

Each is a function with the check's name. None imports MLX.
"""

import os
import platform
import shlex
import shutil
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import dflash_mlx
from dflash_mlx.files.folder import matching
from dflash_mlx.installation import install_command, installed

from ..config_file import (
    apply_config,
    config_path,
    configured_servers,
    file_error_reason,
    read_config,
)
from ..environment import (
    OTHER_VARIABLES,
    options_with_variables,
    present_variables,
    unknown_variable_hint,
)
from ..options import wanted_number
from ..presets import OptionTables
from ..terminal.output import format_count
from . import machine
from .report import CheckResult, combine, fail, ok, short_path, warn

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "dflash-chat"
CONFLICTING = {  # distributions of other projects, and what they overwrite
    "dflash": ("warn", "command `dflash`"),
    "dflash-mlx": ("fail", "module `dflash_mlx` and command `dflash`"),
}
ROSETTA_HINT = (
    "run `make setup` with an arm64 Python, for example one of python.org or "
    "`uv python install cpython-3.12-macos-aarch64`"
)
LOW_DISK_BYTES = 10e9  # about the size of Qwen3-4B and its drafter
SECRETS = ("key", "token", "secret", "password")  # endings of names of options and variables


def versions() -> CheckResult:
    """The versions of this program, of Python, and of the packages it needs.

    Packages must be in their ranges, and on a Mac Python an arm64 build.
    """
    source = short_path(Path(dflash_mlx.__file__).resolve().parent)
    results = [ok(f"{DISTRIBUTION} {dflash_mlx.__version__} from {source}")]
    if installed(DISTRIBUTION) is None:
        found = f"dflash {dflash_mlx.__version__} from {source}, not installed"
        results = [warn(found, "run `make setup` in its clone")]
    found = f"Python {platform.python_version()} · {short_path(sys.executable)}"
    if not machine.on_mac() or platform.machine() == "arm64":
        results.append(ok(found))
    elif machine.sysctl("sysctl.proc_translated") == "1":
        results.append(fail(f"{found} · made for Intel, runs under Rosetta", ROSETTA_HINT))
    else:
        hint = "MLX needs a Mac with Apple silicon"
        results.append(fail(f"{found} · this Mac has an Intel processor", hint))
    for need in requirements():
        package = installed(need.name)
        hint = install_command(str(need))
        if package is None:
            results.append(fail(f"{need.name} is not installed", hint))
        elif not need.specifier.contains(package.version, prereleases=True):
            results.append(fail(f"{need.name} {package.version} is not {need.specifier}", hint))
        else:
            results.append(ok(f"{need.name} {package.version}"))
    return combine(results)


def requirements() -> "list[Requirement]":
    """The packages that this program needs on this system, as it was installed."""
    from packaging.requirements import Requirement

    package = installed(DISTRIBUTION)
    needed = map(Requirement, (package and package.requires) or ())
    here = [need for need in needed if need.marker is None or need.marker.evaluate()]
    for need in here:
        need.marker = None  # the shell command that installs it has none
    return here


def command() -> CheckResult:
    """Which `dflash` on PATH runs, and whether another project overwrites parts of this one."""
    results = []
    for name, (status, common) in CONFLICTING.items():
        if package := installed(name):
            found = f"{name} {package.version} has the same {common}"
            hint = f"`pip uninstall {name}`, then install {DISTRIBUTION} again"
            results.append(CheckResult(status, found, hint))
    own = Path(sysconfig.get_path("scripts")) / "dflash"
    first = shutil.which("dflash")
    if first is None:
        note = f"; it is {short_path(own)}" if own.is_file() else ""
        results.append(ok(f"`dflash` is not on PATH{note}"))
    elif Path(first).resolve() == own.resolve():
        results.append(ok(short_path(first)))
    else:
        found = f"`dflash` runs {short_path(first)}, this is {short_path(own)}"
        hint = f"put {short_path(own.parent)} first on PATH, or remove the other one"
        results.append(warn(found, hint))
    return combine(results)


def cache() -> CheckResult:
    """The Hub's cache: its models, the free space, and whether it is writable."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return fail(
            f"{short_path(folder)} · takes no files ({file_error_reason(error)})",
            "set HF_HUB_CACHE to a folder that you may write",
        )
    models = matching(folder, "models--*")
    size = 0
    for blob in (blob for model in models for blob in matching(model / "blobs")):
        with suppress(FileNotFoundError):  # another program is downloading
            size += blob.stat().st_size
    free = shutil.disk_usage(existing).free
    held = f"{format_count(len(models), 'model', 'models')}, {size / 1e9:.1f} GB"
    summary = f"{short_path(folder)} · {held if models else 'empty'} · {free / 1e9:,.0f} GB free"
    if free < LOW_DISK_BYTES:
        return warn(
            summary, "make room, or set HF_HUB_CACHE to a folder on a larger disk; models are large"
        )
    return ok(summary)


def config(root: typer.Context) -> CheckResult:
    """The config file: readable, and every value valid. DFlashError when it is not readable."""
    path = config_path()
    settings = read_config(path)
    if not settings:
        return ok(f"{short_path(path)} · {'sets nothing' if path.exists() else 'not there'}")
    apply_config(root)
    errors = []
    commands = root.command.commands  # type: ignore[attr-defined]
    for name, defaults in (root.default_map or {}).items():
        for parameter in commands[name].params:
            if parameter.name in defaults:
                key = max(parameter.opts, key=len).removeprefix("--")
                errors += value_errors(root, key, parameter, defaults[parameter.name])
    OptionTables(typer.Context(commands["chat"], parent=root)).check()
    configured_servers()
    if errors:
        return fail(f"{short_path(path)} · {errors[0]}", "correct the value in this file")
    model = (root.default_map or {}).get("chat", {}).get("model")
    note = f" · `dflash doctor -m {shlex.quote(model)}` checks its model" if model else ""
    return ok(f"{short_path(path)} · sets {', '.join(settings)}{note}")


def variables(root: typer.Context) -> CheckResult:
    """Every DFLASH_* variable that is set; prints the value of known ones that are no secrets."""
    options = {option.envvar: option for option in options_with_variables(root.command)}
    results = []
    for name in present_variables():
        shown = f"{name} is set" if is_secret(name) else f"{name}={os.environ[name]}"
        if name not in options and name not in OTHER_VARIABLES:
            hint = unknown_variable_hint(name, (*options, *OTHER_VARIABLES))
            results.append(warn(f"{name} is not known", hint))
        elif name in options and (
            errors := value_errors(root, name, options[name], options[name].value_from_envvar(root))
        ):
            results.append(fail(errors[0], f"`unset {name}`"))
        else:
            results.append(ok(shown))
    return combine(results or [ok("no DFLASH_* variable is set")])


def is_secret(name: str) -> bool:
    return name.lower().endswith(SECRETS)


def value_errors(root: typer.Context, name: str, parameter: Any, value: Any) -> list[str]:
    """The error of an option whose value is set by `name`; empty if the value is valid."""
    try:
        parameter.process_value(root, value)
    except typer.BadParameter as error:
        if is_secret(parameter.name):
            return [f"{name} cannot have its value"]
        wanted = wanted_number(parameter)
        reason = f"it must be {wanted}" if wanted else error.message
        return [f"{name} cannot be {value!r}: {reason}"]
    return []
