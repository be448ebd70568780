"""The checks of `dflash doctor` about folders, settings and the terminal. Changes nothing."""

import difflib
import os
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from ..chat.transcript import data_path
from ..config_file import apply_config, config_path, file_error_reason, read_config
from ..mcp_servers import configured_servers
from ..option_tables import OptionTables
from ..remote import KEY_VARIABLE
from ..terminal.output import is_utf8
from .check import CheckResult, combine, fail, ok, short_path, warn

LOW_DISK_BYTES = 10e9  # about the size of Qwen3-4B and its drafter
VARIABLE_PREFIX = "DFLASH_"
NON_OPTION_VARIABLES = {"DFLASH_BLAS", "DFLASH_DEBUG", "DFLASH_KERNELS", KEY_VARIABLE}
SECRETS = ("key", "token", "secret", "password")  # how names of options and variables end


def cache() -> CheckResult:
    """The Hub's cache: its models, the free space, and whether it is writable."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    hint = "set HF_HUB_CACHE to a folder that you may write"
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return fail(f"{short_path(folder)} · takes no files ({file_error_reason(error)})", hint)
    count, total_bytes = cached_models(folder)
    free = shutil.disk_usage(existing).free
    models = (
        "empty" if not count else f"{count} model{'s'[: count > 1]}, {total_bytes / 1e9:.1f} GB"
    )
    found = f"{short_path(folder)} · {models} · {free / 1e9:,.0f} GB free"
    if free < LOW_DISK_BYTES:
        return warn(
            found, "make room, or set HF_HUB_CACHE to a folder on a larger disk; models are large"
        )
    return ok(found)


def cached_models(folder: Path) -> tuple[int, int]:
    """How many models the cache holds, and their bytes."""
    models = list(folder.glob("models--*"))
    total_bytes = 0
    for model in models:
        for blob in (model / "blobs").glob("*"):
            with suppress(FileNotFoundError):  # another program is downloading
                total_bytes += blob.stat().st_size
    return len(models), total_bytes


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
    return ok(f"{short_path(path)} · sets {', '.join(settings)}")


def variables(root: typer.Context) -> CheckResult:
    """Every DFLASH_* variable that is set; prints the value of known ones that are no secrets."""
    options_by_variable = {
        parameter.envvar: parameter for parameter in options_with_variables(root.command)
    }
    names = sorted(name for name in os.environ if name.startswith(VARIABLE_PREFIX))
    results = []
    for name in names:
        if name in NON_OPTION_VARIABLES:
            results.append(ok(shown(name)))
        elif name in options_by_variable:
            errors = value_errors(
                root,
                name,
                options_by_variable[name],
                options_by_variable[name].value_from_envvar(root),
            )
            results.append(fail(errors[0], f"`unset {name}`") if errors else ok(shown(name)))
        else:
            suffixes = [
                other.removeprefix(VARIABLE_PREFIX)
                for other in (*options_by_variable, *NON_OPTION_VARIABLES)
            ]
            similar = difflib.get_close_matches(name.removeprefix(VARIABLE_PREFIX), suffixes, n=1)
            hint = f"did you mean {VARIABLE_PREFIX}{similar[0]}?" if similar else "nothing reads it"
            results.append(warn(f"{name} is not known", f"`unset {name}`: {hint}"))
    return combine(results or [ok("no DFLASH_* variable is set")])


def is_secret(name: str) -> bool:
    """Whether the value of an option or a variable is shown to nobody."""
    return name.lower().endswith(SECRETS)


def shown(name: str) -> str:
    """A variable that is set, with its value unless that is a secret."""
    return f"{name} is set" if is_secret(name) else f"{name}={os.environ[name]}"


def options_with_variables(group: Any) -> Iterator[Any]:
    """The parameters of all commands of a group that have a variable."""
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from options_with_variables(command)
        yield from (parameter for parameter in command.params if parameter.envvar)


def value_errors(root: typer.Context, name: str, parameter: Any, value: Any) -> list[str]:
    """The error of an option for a value set by `name`; empty when the value is valid."""
    try:
        parameter.process_value(root, value)
    except typer.BadParameter as error:
        if is_secret(parameter.name):
            return [f"{name} cannot have its value"]
        return [f"{name} cannot be {value!r}: {error.message}"]
    return []


def shell_path(path: Path) -> str:
    """A path to copy into a command line; ~ only where it needs no quotes."""
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
        return warn(
            f"{short_path(folder)} · others may write there", f"`chmod 700 {shell_path(folder)}`"
        )
    return ok(short_path(folder))


def history() -> CheckResult:
    """The prompt history: only its owner may read it."""
    file = data_path() / "history"
    if not file.exists():
        return ok(f"{short_path(file)} · not there yet")
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        return warn(
            f"{short_path(file)} · others may open it (mode {mode:03o})",
            f"`chmod 600 {shell_path(file)}`",
        )
    return ok(f"{short_path(file)} · only you may open it")


def terminal() -> CheckResult:
    """Whether the terminal has the size, encoding and type that the commands need."""
    stream = next((s for s in (sys.stdout, sys.stderr) if s.isatty()), None)
    if stream is None:
        return ok("none: the output goes to a file or a pipe")
    term = os.environ.get("TERM", "")
    size = os.get_terminal_size(stream.fileno())
    results = [
        ok(f"{size.columns}×{size.lines}")
        if size.columns
        else warn("its size is not known", "`stty columns 80 rows 24`"),
        ok("UTF-8")
        if is_utf8(stream)
        else warn(
            f"{stream.encoding} instead of UTF-8",
            "set a UTF-8 locale, for example `export LC_ALL=en_US.UTF-8`",
        ),
        ok(f"TERM={term}")
        if term not in ("", "dumb", "unknown")
        else warn(
            f"TERM={term}: plain text only" if term else "TERM is not set",
            "`export TERM=xterm-256color`, if the terminal understands it",
        ),
    ]
    if "NO_COLOR" in os.environ:
        results.append(ok("no colours, as NO_COLOR asks"))
    return combine(results)
