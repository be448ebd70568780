"""What the user's account brings along: the checks of `dflash doctor` about folders, settings and
the terminal. Changes nothing that stays.
"""

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
from ..output import is_utf8
from ..settings import apply_config, config_path, read_config, reason
from .finding import Finding, fail, ok, short, together, warn

LITTLE = 10e9  # bytes; Qwen3-4B and its drafter need about as much
PREFIX = "DFLASH_"
SWITCHES = {"DFLASH_BLAS", "DFLASH_DEBUG", "DFLASH_KERNELS"}  # variables that are no options


def cache() -> Finding:
    """The Hub's cache: what is in it, how much room there is, and whether it takes files."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    hint = "set HF_HUB_CACHE to a folder that you may write"
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return fail(f"{short(folder)} · takes no files ({reason(error)})", hint)
    count, size = stored(folder)
    free = shutil.disk_usage(there).free
    models = "empty" if not count else f"{count} model{'s'[: count > 1]}, {size / 1e9:.1f} GB"
    found = f"{short(folder)} · {models} · {free / 1e9:,.0f} GB free"
    if free < LITTLE:
        return warn(
            found, "make room, or set HF_HUB_CACHE to a folder on a larger disk; models are large"
        )
    return ok(found)


def stored(folder: Path) -> tuple[int, int]:
    """How many models the cache holds, and their bytes."""
    models = list(folder.glob("models--*"))
    size = 0
    for model in models:
        for blob in (model / "blobs").glob("*"):
            with suppress(FileNotFoundError):  # another program downloads right now
                size += blob.stat().st_size
    return len(models), size


def config(root: typer.Context) -> Finding:
    """The config file: whether it can be read, and every setting used. DFlashError when not."""
    path = config_path()
    settings = read_config(path)
    if not settings:
        return ok(f"{short(path)} · {'sets nothing' if path.exists() else 'not there'}")
    apply_config(root)
    faults = []
    commands = root.command.commands  # type: ignore[attr-defined]
    for name, defaults in (root.default_map or {}).items():
        for parameter in commands[name].params:
            if parameter.name in defaults:
                key = max(parameter.opts, key=len).removeprefix("--")
                faults += misfit(root, key, parameter, defaults[parameter.name])
    if faults:
        return fail(f"{short(path)} · {faults[0]}", "correct the value in this file")
    return ok(f"{short(path)} · sets {', '.join(settings)}")


def variables(root: typer.Context) -> Finding:
    """Every variable of ours that is set; only the value of a known one is shown."""
    known = {parameter.envvar: parameter for parameter in options(root.command)}
    names = sorted(name for name in os.environ if name.startswith(PREFIX))
    parts = []
    for name in names:
        if name in SWITCHES:
            parts.append(ok(f"{name}={os.environ[name]}"))
        elif name in known:
            faults = misfit(root, name, known[name], known[name].value_from_envvar(root))
            found = ok(f"{name}={os.environ[name]}")
            parts.append(fail(faults[0], f"`unset {name}`") if faults else found)
        else:
            words = [other.removeprefix(PREFIX) for other in (*known, *SWITCHES)]
            close = difflib.get_close_matches(name.removeprefix(PREFIX), words, n=1)
            hint = f"did you mean {PREFIX}{close[0]}?" if close else "nothing reads it"
            parts.append(warn(f"{name} is not known", f"`unset {name}`: {hint}"))
    return together(parts or [ok("no DFLASH_* variable is set")])


def options(group: Any) -> Iterator[Any]:
    """The parameters of all commands below that have a variable."""
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from options(command)
        yield from (parameter for parameter in command.params if parameter.envvar)


def misfit(root: typer.Context, name: str, parameter: Any, value: Any) -> list[str]:
    """What an option says against a value that `name` gives it; nothing when it takes it."""
    try:
        parameter.process_value(root, value)
    except typer.BadParameter as error:
        return [f"{name} cannot be {value!r}: {error.message}"]
    return []


def quoted(path: Path) -> str:
    """A path for a command line to copy; ~ only where it needs no quotes."""
    text = shlex.quote(str(path))
    return short(path) if text == str(path) else text


def data() -> Finding:
    """The folder of chats and history: nobody else may write there."""
    folder = data_path()
    if not folder.exists():
        return ok(f"{short(folder)} · not there yet")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return fail(
            f"{short(folder)} · is no folder that you may write",
            "set XDG_DATA_HOME to a folder that you may write",
        )
    if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return warn(f"{short(folder)} · others may write there", f"`chmod 700 {quoted(folder)}`")
    return ok(short(folder))


def history() -> Finding:
    """The file of prompts: nobody else may read it."""
    file = data_path() / "history"
    if not file.exists():
        return ok(f"{short(file)} · not there yet")
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        return warn(
            f"{short(file)} · others may open it (mode {mode:03o})", f"`chmod 600 {quoted(file)}`"
        )
    return ok(f"{short(file)} · only you may open it")


def terminal() -> Finding:
    """Whether the terminal can show what the commands have to show."""
    stream = next((s for s in (sys.stdout, sys.stderr) if s.isatty()), None)
    if stream is None:
        return ok("none: the output goes to a file or a pipe")
    kind = os.environ.get("TERM", "")
    size = os.get_terminal_size(stream.fileno())
    parts = [
        ok(f"{size.columns}×{size.lines}")
        if size.columns
        else warn("its size is not known", "`stty columns 80 rows 24`"),
        ok("UTF-8")
        if is_utf8(stream)
        else warn(
            f"{stream.encoding} instead of UTF-8",
            "set a UTF-8 locale, for example `export LC_ALL=en_US.UTF-8`",
        ),
        ok(f"TERM={kind}")
        if kind not in ("", "dumb", "unknown")
        else warn(
            f"TERM={kind}: plain text only" if kind else "TERM is not set",
            "`export TERM=xterm-256color`, if the terminal understands it",
        ),
    ]
    if "NO_COLOR" in os.environ:
        parts.append(ok("no colours, as NO_COLOR asks"))
    return together(parts)
