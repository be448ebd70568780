"""The checks of `dflash doctor` on this machine. Each check is a function with the check's name.

Only `kernels` imports MLX.
"""

import json
import os
import platform
import re
import shlex
import shutil
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import typer

import dflash_mlx
from dflash_mlx.files.folder import is_sidecar, matching
from dflash_mlx.installation import install_command, installed

from ..chat.transcript import data_path
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
from ..terminal.output import format_bytes, format_count, is_utf8
from . import macos
from .report import CheckResult, combine, fail, ok, short_path, warn

CPUINFO = Path("/proc/cpuinfo")
PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")
ROSETTA_HINT = (
    "run `make setup` with an arm64 Python, for example one of python.org or "
    "`uv python install cpython-3.12-macos-aarch64`"
)


def machine() -> CheckResult:
    if macos.on_mac():
        model = macos.sysctl("hw.model")
    else:
        model = PRODUCT_NAME.read_text("utf-8", "replace").strip() if PRODUCT_NAME.is_file() else ""
    return ok(" · ".join(part for part in (model, platform.machine()) if part))


def chip() -> CheckResult:
    if macos.on_mac():
        name = macos.sysctl("machdep.cpu.brand_string")
    else:
        lines = (line.partition(":") for line in CPUINFO.read_text("utf-8").splitlines())
        name = next((v.strip() for k, _, v in lines if k.strip() == "model name"), "")
    return ok(f"{name or 'not named by the system'} · {os.cpu_count()} cores")


def memory(device_info: Mapping[str, Any]) -> CheckResult:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    summary = format_bytes(total)
    if limit := device_info.get("max_recommended_working_set_size"):
        summary += f" · recommended working set {format_bytes(limit)}"
    return ok(summary)


def system() -> CheckResult:
    if macos.on_mac():
        return ok(f"macOS {macos.version()}")
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = "a distribution without os-release"
    return ok(f"{name} · Linux {platform.release()}")


def python() -> CheckResult:
    """Python's version and path; on a Mac it must be an arm64 build."""
    summary = f"{platform.python_version()} · {platform.machine()} · {short_path(sys.executable)}"
    if not macos.on_mac() or platform.machine() == "arm64":
        return ok(summary)
    if macos.sysctl("sysctl.proc_translated") == "1":
        return fail(f"{summary} · made for Intel, runs under Rosetta", ROSETTA_HINT)
    hint = "MLX needs a Mac with Apple silicon"
    return fail(f"{summary} · this Mac has an Intel processor", hint)


def blas() -> CheckResult:
    """The library that computes MLX's matrix products on the CPU."""
    from dflash_mlx.cpu.blas import use_openblas

    if macos.on_mac():
        return ok("Accelerate, as MLX is built")
    if library := use_openblas():
        return ok(f"OpenBLAS · {library}")
    if os.environ.get("DFLASH_BLAS") == "off":
        return warn(
            "DFLASH_BLAS=off: MLX computes with its own slow libblas",
            "`unset DFLASH_BLAS`, so that OpenBLAS, which is many times faster, is used",
        )
    return warn(
        "OpenBLAS is not in force: MLX computes with its own slow libblas",
        "`sudo apt install libopenblas0-pthread`, or what your distribution calls OpenBLAS",
    )


def kernels(*, gpu: bool) -> CheckResult:
    """The Metal kernels in the package; with a GPU also the results of their last self-check."""
    sources = (
        p.name for p in files("dflash_mlx.metal_kernels").iterdir() if not is_sidecar(p.name)
    )
    names = sorted(name.removesuffix(".metal") for name in sources if name.endswith(".metal"))
    summary = f"{len(names)} in the package: {', '.join(names)}"
    if not gpu:
        return ok(summary)
    from dflash_mlx.kernels.dispatch import wanted
    from dflash_mlx.selfcheck.results import latest_results

    if (switch := wanted()) != "on":
        summary += f" · not used: DFLASH_KERNELS is {switch}"
    results = latest_results().values()
    if not results:
        return ok(summary)
    on = sum(not result.reason for result in results)
    off = [f"{result.name} off: {result.reason}" for result in results if result.reason]
    summary = " · ".join([summary, f"{on} on at the last check", *off])
    if all(result.right for result in results):
        return ok(summary)
    return warn(summary, "`dflash doctor --kernels` checks them anew; MLX's own stand in for them")


# Folders, settings and the terminal

LOW_DISK_BYTES = 10e9  # about the size of Qwen3-4B and its drafter
SECRETS = ("key", "token", "secret", "password")  # endings of names of options and variables


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
    """Whether the value of an option or a variable must not be printed."""
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


def shell_path(path: Path) -> str:
    """A path for a command line; with ~ only if it needs no quotes."""
    text = shlex.quote(str(path))
    return short_path(path) if text == str(path) else text


def data() -> CheckResult:
    """The folder of chats and history: only its owner may write there."""
    folder = data_path()
    if not folder.exists():
        return ok(f"{short_path(folder)} · not there yet")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return fail(
            f"{short_path(folder)} · is no folder that you may write",
            "set XDG_DATA_HOME to a folder that you may write",
        )
    if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        found = f"{short_path(folder)} · others may write there"
        return warn(found, f"`chmod 700 {shell_path(folder)}`")
    return ok(short_path(folder))


def history() -> CheckResult:
    """The prompt history: only its owner may read it."""
    file = data_path() / "history"
    if not file.exists():
        return ok(f"{short_path(file)} · not there yet")
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        found = f"{short_path(file)} · others may open it (mode {mode:03o})"
        return warn(found, f"`chmod 600 {shell_path(file)}`")
    return ok(f"{short_path(file)} · only you may open it")


def terminal() -> CheckResult:
    stream = next((s for s in (sys.stdout, sys.stderr) if s.isatty()), None)
    if stream is None:
        return ok("none: the output goes to a file or a pipe")
    term = os.environ.get("TERM", "")
    size = os.get_terminal_size(stream.fileno())
    results = [ok(f"{size.columns}×{size.lines}"), ok("UTF-8"), ok(f"TERM={term}")]
    if not size.columns:
        results[0] = warn("its size is not known", "`stty columns 80 rows 24`")
    if not is_utf8(stream):
        hint = "set a UTF-8 locale, for example `export LC_ALL=en_US.UTF-8`"
        results[1] = warn(f"{stream.encoding} instead of UTF-8", hint)
    if term in ("", "dumb", "unknown"):
        found = f"TERM={term}: plain text only" if term else "TERM is not set"
        hint = "`export TERM=xterm-256color`, if the terminal understands it"
        results[2] = warn(found, hint)
    if "NO_COLOR" in os.environ:
        results.append(ok("no colours, as NO_COLOR asks"))
    return combine(results)


# Installed packages and conflicts between them

DISTRIBUTION = "dflash-chat"
REQUIRED = {  # as in pyproject.toml
    "mlx": ">=0.32.4,<0.33",
    "mlx-lm": ">=0.32.2,<0.33",
    "huggingface_hub": ">=1.0,<3",
    "prompt_toolkit": ">=3.0.50,<4",
    "rich": ">=14.0,<16",
}
CONFLICTING = {  # distributions of other projects, and what they overwrite
    "dflash": ("warn", "command `dflash`"),
    "dflash-mlx": ("fail", "module `dflash_mlx` and command `dflash`"),
}


def versions() -> CheckResult:
    """This program's version, and those of the packages it needs, which are in a range."""
    results = [ok(f"{DISTRIBUTION} {dflash_mlx.__version__}")]
    if installed(DISTRIBUTION) is None:
        found = f"dflash {dflash_mlx.__version__}, not installed"
        results = [warn(found, "run `make setup` in its clone")]
    for name, required in REQUIRED.items():
        extra = "[cpu]" if name == "mlx" and sys.platform == "linux" else ""
        hint = install_command(f"{name}{extra}{required}")
        package = installed(name)
        if package is None:
            results.append(fail(f"{name} is not installed", hint))
        elif not satisfies(package.version, required):
            results.append(fail(f"{name} {package.version} is not {required}", hint))
        else:
            results.append(ok(f"{name} {package.version}"))
    return combine(results)


def satisfies(version: str, required: str) -> bool:
    """Whether a version is in a range such as >=1.2,<2."""
    least, _, below = required.partition(",")
    numbers = version_numbers(version)
    return version_numbers(least) <= numbers and (not below or numbers < version_numbers(below))


def version_numbers(text: str) -> tuple[int, ...]:
    """The first three numbers of a version; missing ones are 0."""
    parts = [int(number) for number in re.findall(r"\d+", text)[:3]]
    return tuple([*parts, 0, 0, 0][:3])


def packages() -> CheckResult:
    """Packages of other projects that overwrite parts of this one."""
    results = []
    for name, (status, common) in CONFLICTING.items():
        if package := installed(name):
            found = f"{name} {package.version} has the same {common}"
            hint = f"`pip uninstall {name}`, then install {DISTRIBUTION} again"
            results.append(CheckResult(status, found, hint))
    return combine(results or [ok(f"no {' or '.join(CONFLICTING)} beside this one")])


def command() -> CheckResult:
    """Which `dflash` on PATH runs."""
    own = Path(sysconfig.get_path("scripts")) / "dflash"
    scripts: dict[Path, str] = {}  # real file -> its path on PATH; links to one file count once
    for folder in os.get_exec_path():
        path = Path(folder) / "dflash"
        if path.is_file() and os.access(path, os.X_OK):
            scripts.setdefault(path.resolve(), short_path(path))
    if not scripts:
        return ok("not on PATH" + (f"; it is {short_path(own)}" if own.is_file() else ""))
    if next(iter(scripts)) != own.resolve():
        return warn(
            f"`dflash` runs {next(iter(scripts.values()))}, this is {short_path(own)}",
            f"put {short_path(own.parent)} first on PATH, or remove the other one",
        )
    listed = ", ".join(scripts.values())
    if len(scripts) > 1:
        found = f"{len(scripts)} on PATH: {listed}; the first one runs"
        return warn(found, "remove those that you do not need")
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
