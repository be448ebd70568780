"""Print the man page of `dflash`, made from its help, in roff for `man` and `mandoc`.

    .venv/bin/python examples/measure/man_page.py [--date 2026-11-30] > dflash.1

`make release` puts it into dist and into the wheel.
"""

import argparse
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from inspect import cleandoc
from typing import Any

import typer

from dflash_mlx import __version__

# Characters that roff reads as commands, or prints as others than a shell knows.
SPECIAL = {"\\": r"\e", "-": r"\-", "'": r"\(aq", '"': r"\(dq", "`": r"\(ga"}
SPECIAL |= {"^": r"\(ha", "~": r"\(ti"}
WIDTH = 80  # of the lines of the source

EXIT_CODES = (
    ("0", "Done."),
    ("1", "An error, or an answer that does not fit its schema."),
    ("2", "Wrong usage."),
    ("3", "`dflash bench --check` found a difference."),
    ("130", "Stopped by Ctrl-C."),
    ("141", "The reader closed the pipe."),
    ("143", "Stopped by SIGTERM."),
)
FILES = (
    ("~/.config/dflash/config.toml", "Your settings and presets."),
    ("~/.local/share/dflash", "Chats, history and allowed tools."),
    ("~/.cache/dflash", "Measurements and the prefix cache."),
    ("~/.cache/huggingface", "Models; HF_HOME names another folder."),
)


def escaped(text: str) -> str:
    """Text on one line that roff prints as it is; characters beyond ASCII are named."""
    return "".join(SPECIAL.get(c, c if c.isascii() else rf"\[u{ord(c):04X}]") for c in text)


def lines(text: str) -> Iterator[str]:
    """A paragraph as lines of the source."""
    for line in textwrap.wrap(escaped(text), WIDTH, break_long_words=False, break_on_hyphens=False):
        yield rf"\&{line}" if line.startswith(".") else line


def paragraphs(text: str) -> Iterator[str]:
    r"""The text of a help: paragraphs, and examples after a line of \b, whose lines stay."""
    for number, paragraph in enumerate(cleandoc(text).split("\n\n")):
        if paragraph.startswith("\b"):
            yield ".EX"
            yield from (escaped(line) for line in paragraph.splitlines()[1:])
            yield ".EE"
        else:
            yield from [".PP"] * (number > 0)
            yield from lines(paragraph)


def definitions(records: Any) -> Iterator[str]:
    """Names, each with its text indented below."""
    for name, text in records:
        yield from (".TP", f".B {escaped(name)}", *lines(text or " "))


def section(title: str) -> str:
    return f'.SH "{escaped(title.upper())}"'


def commands(command: Any, ctx: Any) -> Iterator[tuple[Any, Any]]:
    """The commands below a group, each with its context, in the order of the help."""
    for name in command.list_commands(ctx):
        inner = command.get_command(ctx, name)
        inner_ctx = typer.Context(inner, parent=ctx, info_name=name)
        if hasattr(inner, "commands"):
            yield from commands(inner, inner_ctx)
        else:
            yield inner, inner_ctx


def usage(command: Any, ctx: Any) -> str:
    return " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])


def man_page(date: str) -> str:
    """The page. date: of the release, as 2026-11-30."""
    app = import_module("dflash_mlx.cli.app")
    guide = import_module("dflash_mlx.cli.help")
    root = typer.main.get_command(app.app)
    ctx = typer.Context(root, info_name="dflash", **root.context_settings)
    title, about = cleandoc(root.help or "").split("\n\n", 1)
    page = [f'.TH DFLASH 1 "{date}" "dflash {__version__}" "dflash"']
    page += [".nh", ".ad l", section("name")]  # no flag is hyphenated
    page += [rf"dflash \- {escaped(title[0].lower() + title[1:].rstrip('.'))}"]
    page += [section("synopsis"), *lines(usage(root, ctx)), section("description")]
    page += [
        *paragraphs(about),
        section("options"),
        *definitions(guide.panels(root, ctx)["Options"]),
    ]
    page += [section("commands")]
    for command, inner in commands(root, ctx):
        page += [f'.SS "{escaped(usage(command, inner))}"', *paragraphs(command.help or "")]
        for heading, records in guide.panels(command, inner).items():
            page += [".PP", f".I {escaped(heading)}", *definitions(records)]
    page += [section("environment"), *lines(app.SETTINGS)]
    page += [section("files"), *definitions(FILES)]
    page += [section("exit status"), *definitions(EXIT_CODES)]
    page += [section("see also"), *lines("`dflash help PAGE` shows a page of the guide:")]
    page += definitions(guide.topics().items())
    return re.sub(r" +$", "", "\n".join(page), flags=re.M) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--date", default="", help="of the release, as 2026-11-30")
    print(man_page(options.parse_args().date), end="")


if __name__ == "__main__":
    main()
