"""`dflash serve --install` and `--uninstall`: the server as a service of the user, on macOS.

The service gets the flags of the command line, and the variables that options and caches have. A
key becomes a file of its own: command lines can be read by all users of a machine.
"""

import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from dflash_mlx.errors import DFlashError, UsageError

from .config_file import config_path
from .help import TYPED
from .keys import key_option
from .options import flag
from .service_manager import (
    Launchd,
    ServiceProgram,
    others_may_read,
    service_manager,
    write_private,
)
from .sources import ValueSource, source_of
from .terminal.output import Output
from .terminal.spinner import Spinner

PROGRAM = (sys.executable, "-P", "-m", "dflash_mlx", "serve")  # -P: not from the folder it runs in
KEY_FILE, LOG_FILE, LET_SLEEP = "--api-key-file", "--log-file", "--let-sleep"
OWN_FLAGS = ("install", "host", "port", "api_key", "api_key_file")  # not taken as they were typed
MODELS = ("model", "draft")  # options with a folder or a Hub id
VARIABLES = (  # beside those of options
    *("DFLASH_BLAS", "DFLASH_DEVICE", "DFLASH_KERNELS"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
    *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"),
)
START_SECONDS = 15.0  # in which most servers answer, unless they measure or download
POLL_SECONDS = 0.3
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What to do with the service. Without variables: no setting may install one."""

    install: bool = flag(
        False,
        "--install",
        "macOS: start the server at login, and again after a failure, with these options.",
        "Server",
        variable=False,
    )
    uninstall: bool = flag(False, "--uninstall", "Remove that service.", "Server", variable=False)


def install(ctx: typer.Context, host: str, port: int, out: Output) -> None:
    from dflash_mlx.serve.listening import listen

    if port == 0:
        raise UsageError(
            "a service needs a port that stays.", hint="give --port a number other than 0"
        )
    manager = service_manager()
    if not manager.state().running:
        for listening in listen(host, port):  # DFlashError for a port in use
            listening.close()
    flags = [f"--host={host}", f"--port={port}", *service_flags(ctx)]
    if LET_SLEEP not in flags:
        flags.append(LET_SLEEP)
    if key_file := key_file_of(ctx):
        flags.append(f"{KEY_FILE}={key_file}")
    if value_of(flags, LOG_FILE) is None:
        flags.append(f"{LOG_FILE}={manager.log}")
    manager.install(ServiceProgram((*PROGRAM, *flags), service_environment(ctx)))
    log = Path(value_of(flags, LOG_FILE) or "")
    runs = wait_for_answer(manager, host, port, log, out)
    url = address(host, port)
    state = f"runs at {url}" if runs else f"starts at {url}: a first start can take minutes"
    out.info(f"dflash serve is installed and {state}", "bold")
    out.info(f"  service  {manager.file}", wraps=False)
    out.info(f"  log      {log}", wraps=False)
    if key_file:
        out.info(f"  key      {key_file}", wraps=False)
    out.info("  It starts when you log in at this Mac's screen.", "dim")
    out.info("  `dflash doctor` reports it; `dflash serve --uninstall` removes it", "dim")


def uninstall(ctx: typer.Context, out: Output) -> None:
    """Stop and remove the service, and say how to install it again. The key's file stays."""
    others = [name for name in typed_values(ctx) if name not in ("uninstall", "quiet", "plain")]
    if others:
        raise UsageError("--uninstall takes no other options.", hint="leave them out")
    manager = service_manager()
    if not manager.file.exists():
        raise DFlashError(
            f"no service is installed: there is no {manager.file}.",
            hint="`dflash serve --install` installs one",
        )
    again = ""
    with suppress(DFlashError):  # a file that was changed can be removed, too
        again = install_line(manager.program(), manager)
    manager.remove()
    out.info("the service of dflash serve is removed", "bold")
    if again:
        out.console.file.write(f"  again: {again}\n")  # `info` would change tabs and symbols


# Flags and variables


def typed_values(ctx: typer.Context) -> dict[str, Any]:
    """The options of the command line by parameter name, as they were typed."""
    return ctx.command.make_parser(ctx).parse_args(list(ctx.meta[TYPED]))[0]


def service_flags(ctx: typer.Context) -> list[str]:
    """The flags of the command line as the service has them: paths absolute, and no key.

    UsageError for control characters, which the files of services cannot have.
    """
    given = typed_values(ctx)
    flags = []
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name not in given or name in OWN_FLAGS:
            continue
        if parameter.is_flag:  # type: ignore[attr-defined]
            names = parameter.opts if given[name] else parameter.secondary_opts
            flags.append(names[0])
            continue
        values = given[name] if parameter.multiple else [given[name]]  # type: ignore[attr-defined]
        for value in values:
            if CONTROL.search(value):
                raise UsageError(
                    f"a service cannot have {parameter.opts[0]} with control characters.",
                    hint="put the value into the config file: `dflash help presets`",
                )
            flags.append(f"{parameter.opts[0]}={absolute(name, value)}")
    return flags


def service_environment(ctx: typer.Context) -> dict[str, str]:
    """The variables that change what the server does. Keys and tokens are not among them."""
    options = [option for option in ctx.command.params if option.name not in OWN_FLAGS]
    names = [str(option.envvar) for option in options if option.envvar]
    values = {name: os.environ[name] for name in (*VARIABLES, *names) if os.environ.get(name)}
    for option in MODELS:
        name = f"DFLASH_{option.upper()}"
        if name in values:
            values[name] = absolute(option, values[name])
    return values


def absolute(option: str, value: str) -> str:
    """A value as it is right in any folder: files and folders have an absolute path."""
    path = Path(value).expanduser()
    is_path = option == "log_file" or (option in MODELS and path.is_dir())
    return str(path.absolute()) if is_path else value


def key_file_of(ctx: typer.Context) -> Path | None:
    """The file with the key of a flag or a variable, written if need be; None if none is given.

    UsageError for a file that other users may read. A key of the config file stays there.
    """
    name = key_option(ctx)
    if name is None or source_of(ctx, name) < ValueSource.VARIABLE:
        return None
    if name == "api_key":
        file = config_path().parent / "serve.key"
        write_private(file, (ctx.params[name].strip() + "\n").encode())
        return file
    file = ctx.params[name].expanduser().absolute()
    if others_may_read(file):
        raise UsageError(
            f"other users of this machine may read the key in '{file}'.",
            hint=f"`chmod 600 {shlex.quote(str(file))}`",
        )
    return file


def value_of(flags: Sequence[str], name: str) -> str | None:
    """The value of one of the service's flags, which have the form --name=value."""
    values = [flag.partition("=")[2] for flag in flags if flag.startswith(f"{name}=")]
    return values[-1] if values else None


def address(host: str, port: int | str) -> str:
    host = "127.0.0.1" if host == "localhost" else host
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{name}:{port}"


def install_line(program: ServiceProgram, manager: Launchd) -> str:
    variables = [f"{name}={shlex.quote(text)}" for name, text in program.environment.items()]
    own = (LET_SLEEP, f"{LOG_FILE}={manager.log}")
    flags = [flag for flag in program.words[len(PROGRAM) :] if flag not in own]
    return " ".join([*variables, shlex.join(["dflash", "serve", "--install", *flags])])


# The start


def wait_for_answer(manager: Launchd, host: str, port: int, log: Path, out: Output) -> bool:
    """Whether the server answers within START_SECONDS. DFlashError if it fails to start."""
    until = time.monotonic() + START_SECONDS
    with Spinner(out, "starting the service"):
        while time.monotonic() < until:
            state = manager.state()
            if state.failed:
                raise DFlashError(
                    f"the service {state.summary}{last_line(log)}.",
                    hint=f"more is in {log}; `dflash serve --uninstall` removes the service",
                )
            if state.running and is_answering(host, port):
                return True
            time.sleep(POLL_SECONDS)
    return False


def is_answering(host: str, port: int) -> bool:
    from dflash_mlx.remote.client import read_json

    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host.strip("[]"))
    try:
        read_json(f"{address(here, port)}/health", None)
    except DFlashError:
        return False
    return True


def last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").split("\n") if log.exists() else []
    lines = [line.strip() for line in lines if line.strip()]
    return f": {lines[-1][:200].rstrip('.')}" if lines else ""
