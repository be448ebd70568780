"""`dflash`: the commands, and the one place where faults become messages and exit codes.

Knows no models: a command imports the engine when it runs, so that help is quick.

    0 done    1 fault    2 wrong usage    3 `bench --check` found a difference
    130 Ctrl-C    141 the reader closed the pipe
"""

import os
import sys
import traceback
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dflash_mlx import __version__
from dflash_mlx.errors import DFlashError, UsageError

from .bench.command import bench
from .chat.command import chat
from .doctor.command import doctor
from .generate import generate
from .models.command import models
from .options import source
from .output import Output
from .settings import apply_config, config_path
from .train.command import train


class Boundary(TyperGroup):
    """Ends the program for every fault with an exit code and at most two lines."""

    def main(self, *args: Any, **extra: Any) -> None:
        """Parse the command line and run the command; always leaves by SystemExit."""
        extra["standalone_mode"] = False
        try:
            sys.exit(super().main(*args, **extra) or 0)
        except (DFlashError, typer.TyperException) as error:
            sys.exit(explain(error))
        except typer.Abort:
            sys.exit(130)
        except Exception as error:
            sys.exit(explain(error))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a closed pipe is caught here, before Typer makes exit code 1 of it."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            drop_stdout()
            raise typer.Exit(141) from None


def explain(error: Exception) -> int:
    """Say on stderr what went wrong and what to do; the exit code."""
    if os.environ.get("DFLASH_DEBUG") == "1":
        traceback.print_exception(error)
    out = Output()
    if isinstance(error, DFlashError):
        out.error(error.message, error.hint)
        return 2 if isinstance(error, UsageError) else 1
    if isinstance(error, typer.TyperException):
        out.error(sentence(error.format_message()), usage_hint(error))
        return error.exit_code
    text = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")
    out.error(f"unexpected {sentence(text)}", "run it again with DFLASH_DEBUG=1 to see where")
    return 1


def usage_hint(error: typer.TyperException) -> str:
    """Where a value came from if not from the command line; else where the help is."""
    ctx, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if ctx is None:
        return "`dflash --help` lists the commands"
    if parameter is not None:
        found = source(ctx, parameter.name)
        if found == "ENVIRONMENT":
            return f"the value is that of {parameter.envvar}"
        if found == "DEFAULT_MAP":
            return f"the value is in {config_path()}"
    return f"`{ctx.command_path} --help` lists what can be given"


def sentence(text: str) -> str:
    """A message of Typer's on one line, with a full stop."""
    text = " ".join(text.split()).replace(": Value error, ", ": ")
    return text if text.endswith((".", "?", "!")) else text + "."


def drop_stdout() -> None:
    """Let nothing more reach the closed pipe, also not the interpreter's last flush."""
    with suppress(OSError, ValueError):  # not a real file, as under test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        typer.echo(f"dflash {__version__}")
        raise typer.Exit


def start(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", is_eager=True, callback=show_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """DFlash speculative decoding for MLX: the target's own words, several times faster."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(2)
    if ctx.invoked_subcommand != "doctor":  # which reports what is wrong with the file
        apply_config(ctx)


EPILOG = (
    "Options can also be set as DFLASH_<NAME> or in ~/.config/dflash/config.toml; "
    "the command line counts first, then the variable, then the file."
)

app = typer.Typer(
    cls=Boundary,
    callback=start,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("chat", epilog=EPILOG)(chat)
app.command("generate", epilog=EPILOG)(generate)
app.command("bench", epilog=EPILOG)(bench)
app.command("train")(train)
app.add_typer(models, name="models")
app.command("doctor")(doctor)


def main() -> None:
    """The entry point of `dflash`."""
    app(prog_name="dflash")
