"""`dflash`: registers the commands and turns every error into a message and an exit code.

A command imports the engine when it runs, so that `--help` is quick.

    0 done    1 error    2 wrong usage    3 `bench --check` found a difference
    130 Ctrl-C    141 the reader closed the pipe    143 SIGTERM, after `train` has saved
"""

import difflib
import errno
import os
import sys
import traceback
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dflash_mlx import __version__
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.gone import gone

from .bench.command import bench
from .cache import cache
from .chat.command import chat
from .chats import chats
from .config_file import apply_config, config_path, flag_key
from .doctor.command import doctor
from .environment import check_variables
from .generate import generate
from .help import PanelCommand, help_page
from .models import models
from .options import wanted_number
from .running import ps, stop
from .serve import serve
from .sources import ValueSource, source_of
from .terminal.output import Output, open_closed_streams
from .train import train

# Error numbers of writes to a full disk and to closed or broken streams.
STREAM_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO)


class ErrorBoundary(TyperGroup):
    """Ends the program after an error with an exit code and at most two lines."""

    def main(self, *args: Any, **extra: Any) -> None:
        """Parse the command line and run the command; always ends with SystemExit."""
        extra["standalone_mode"] = False
        try:
            sys.exit(super().main(*args, **extra) or 0)
        except (DFlashError, typer.TyperException) as error:
            sys.exit(report_error(error))
        except typer.Abort:
            sys.exit(130)
        except Exception as error:
            sys.exit(report_error(error))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; one that is gone is named."""
        if hint := gone(args[0]):
            raise UsageError(f"there is no `dflash {args[0]}` any more.", hint=hint)
        if " " in args[0]:
            raise UsageError(
                f"'{args[0]:.40}' is no command.", hint='`dflash chat "PROMPT"` answers a prompt'
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; catches a closed pipe before Typer turns it into exit code 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_stdout()
            raise typer.Exit(141) from None


def report_error(error: Exception) -> int:
    """Print an error and its hint on stderr; return the exit code."""
    if os.environ.get("DFLASH_DEBUG") == "1":
        traceback.print_exception(error)
    out = Output()
    if isinstance(error, DFlashError):
        out.error(error.message, error.hint)
        return 2 if isinstance(error, UsageError) else 1
    if isinstance(error, typer.TyperException):
        out.error(usage_message(error), usage_hint(error))
        return error.exit_code
    if isinstance(error, OSError) and error.errno in STREAM_FAULTS and not error.filename:
        discard_stdout()
        out.error(
            f"the output cannot be written ({error.strerror}).",
            "make room, or let it go to another place",
        )
        return 1
    text = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")
    out.error(f"unexpected {one_sentence(text)}", "run it again with DFLASH_DEBUG=1 to see where")
    return 1


def usage_message(error: typer.TyperException) -> str:
    """The error in one sentence: Typer's without its suggestions, or our own for a wrong number."""
    if hasattr(error, "possibilities"):
        return one_sentence(error.message)
    if not number_hint(error):
        return one_sentence(error.format_message())
    value = str(error.__cause__.errors()[0]["input"])  # type: ignore[union-attr]
    with suppress(ValueError):
        float(value)
        return f"--{flag_key(error.param)} cannot be {value}."  # type: ignore[attr-defined]
    return f"--{flag_key(error.param)} cannot be '{value}'."  # type: ignore[attr-defined]


def number_hint(error: typer.TyperException) -> str:
    """The hint that says which numbers an option accepts; empty for other errors."""
    if not isinstance(error, typer.BadParameter) or not hasattr(error.__cause__, "errors"):
        return ""
    wanted = wanted_number(error.param)
    return wanted and f"give {wanted}"


def usage_hint(error: typer.TyperException) -> str:
    """What to do in place of a flag, the accepted numbers, what set the value, or `--help`."""
    ctx = getattr(error, "ctx", None)
    parameter = getattr(error, "param", None)
    if ctx is None:
        return "`dflash --help` lists the commands"
    name = getattr(error, "option_name", "")
    if hint := gone(name):
        return hint
    flags = {
        flag.lstrip("-"): flag
        for parameter in ctx.command.params
        if parameter.param_type_name == "option"
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    if near := difflib.get_close_matches(name.lstrip("-"), flags, n=1):
        return f"did you mean {flags[near[0]]}?"
    if not name and (commands := getattr(ctx.command, "commands", None)):
        return f"`{ctx.command_path}` has the commands {', '.join(commands)}"
    hints = [number_hint(error)]
    if parameter is not None:
        source = source_of(ctx, parameter.name)
        if source is ValueSource.VARIABLE:
            hints.append(f"the value is that of {parameter.envvar}")
        if source is ValueSource.FILE:
            hints.append(f"the value is in {config_path()}")
    default = f"`{ctx.command_path} --help` lists what can be given"
    return "; ".join(filter(None, hints)) or default


def one_sentence(text: str) -> str:
    text = " ".join(text.split()).replace(": Value error, ", ": ")
    return text if text.endswith((".", "?", "!")) else text + "."


def discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter's final flush cannot fail."""
    with suppress(OSError, ValueError):  # stdout is not a real file under test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_version(requested: bool) -> None:
    if requested:
        from dflash_mlx.installation import installed

        others = []
        for name in ("mlx", "mlx-lm"):
            package = installed(name)
            others.append(f"{name} {package.version if package else 'missing'}")
        typer.echo(f"dflash {__version__} ({', '.join(others)})")
        raise typer.Exit


def start(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            is_eager=True,
            callback=print_version,
            help="Print the versions of dflash, MLX and mlx-lm.",
        ),
    ] = False,
) -> None:
    """Chat with open models: faster where drafts pay, with the same answers.

    \b
      dflash chat                        chat with the best model you have
      dflash generate "PROMPT"           one answer
      dflash serve                       a server for other programs
    """
    if ctx.invoked_subcommand is None:
        typer.echo(BEGINNING, err=True)
        raise typer.Exit(2)
    if ctx.invoked_subcommand != "doctor":  # doctor reports wrong variables and settings itself
        check_variables(ctx.command)
        apply_config(ctx)


BEGINNING = """\
dflash chats with open models on this machine. Begin here:

  dflash chat                    chat with the best model you have, or the small bundled one
  dflash generate "PROMPT"       one answer
  dflash models list             what you have, and what fits this machine
  dflash doctor                  check this machine
  dflash help                    the guide
  dflash --help                  all commands"""

SETTINGS = (
    "Every option can also be a variable (DFLASH_TEMP for --temp) or a key of "
    "~/.config/dflash/config.toml; see `dflash help presets`."
)

app = typer.Typer(
    cls=ErrorBoundary,
    callback=start,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="The guide: `dflash help`. " + SETTINGS,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for name, command in (("chat", chat), ("generate", generate), ("serve", serve), ("bench", bench)):
    app.command(name, cls=PanelCommand, epilog=f"{SETTINGS} Guide: `dflash help {name}`.")(command)
app.command("train", cls=PanelCommand, epilog="Guide: `dflash help train`.")(train)
app.command("ps")(ps)
app.command("stop")(stop)
app.add_typer(models, name="models")
app.add_typer(chats, name="chats")
app.add_typer(cache, name="cache")
app.command("doctor")(doctor)
app.command("help")(help_page)


def main() -> None:
    open_closed_streams()
    app(prog_name="dflash")
