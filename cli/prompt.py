"""Reads the prompt from the argument, a file and standard input."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

from dflash_mlx.distributed.environment import input_is_shared
from dflash_mlx.errors import UsageError
from dflash_mlx.grammar import Grammar, asked_grammar

from .config_file import file_error_reason
from .terminal.output import format_bytes, format_count

# Fences of code blocks in Markdown.


def fenced(text: str, language: str = "text") -> str:
    """Text as a code block with a fence longer than any inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def close_fence(text: str) -> str:
    """Close a code fence that a cut answer left open."""
    fence = ""
    for line in text.splitlines():
        mark = re.match(r" {0,3}(`{3,}|~{3,})([^`]*)$", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not mark[2].strip():
            fence = ""
    return f"{text}\n{fence}" if fence else text


# Files that go into a prompt

MAX_FILES, MAX_BYTES = 200, 2_000_000  # together, and far beyond what contexts hold
MAX_ENTRIES = 20_000  # of a folder that are looked at
MAX_NAME = 40  # characters of a name that are shown
# The beginning of a file in a prompt, and all of it, as `Attachment.block` has it.
FILE_BEGINS = re.compile(r"\n\n[^\n]+:\n\n```")
FILE = re.compile(
    r"\n\n([^\n]+):\n\n(`{3,})([^\n`]*)\n((?:(?!\2).)*)\n\2(?=\n\n[^\n]+:\n\n```|\Z)", re.S
)
LEFT_OUT_FOLDERS = {"__pycache__", "node_modules"}  # and those whose names begin with a dot


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file; `name` as the user wrote it, or as found from there.

    `language` of its fence; empty takes the file's suffix.
    """

    name: str
    text: str
    language: str = ""

    @property
    def nbytes(self) -> int:
        """Its length in UTF-8."""
        return len(self.text.encode("utf-8", "replace"))

    @property
    def block(self) -> str:
        """The file as it stands in a prompt: its name, and its text in a fence."""
        language = self.language or Path(self.name).suffix[1:] or "text"
        return f"{self.name}:\n\n{fenced(self.text, language)}"


@dataclass(frozen=True, slots=True)
class Attachments:
    """The files of one prompt, and how many were left out because they are not text."""

    files: tuple[Attachment, ...] = ()
    left_out: int = 0

    @property
    def text(self) -> str:
        """All files as they stand in a prompt."""
        return "\n\n".join(file.block for file in self.files)

    @property
    def summary(self) -> str:
        """How many, or which, and their size."""
        names = [file.name for file in self.files]
        what = shorten(names[0]) if len(names) == 1 else format_count(len(names), "file", "files")
        size = format_bytes(sum(file.nbytes for file in self.files))
        others = f" · {self.left_out:,} not text, left out" if self.left_out else ""
        return f"{what} · {size}{others}"


def split_attached(prompt: str) -> tuple[str, Attachments]:
    """A prompt without the files at its end, and those files."""
    for begin in FILE_BEGINS.finditer(prompt):
        place, files = begin.start(), []
        while found := FILE.match(prompt, place):
            name, _, language, text = found.groups()
            files.append(Attachment(name, text, language))
            place = found.end()
        if place == len(prompt):
            return prompt[: begin.start()], Attachments(tuple(files))
    return prompt, Attachments()


def shorten(name: str) -> str:
    """A name that fits a line: the end of a long path, the beginning of a command."""
    if len(name) <= MAX_NAME:
        return name
    return f"{name[:MAX_NAME]}…" if name.startswith("$") else f"…{name[-MAX_NAME:]}"


def read_attachments(names: Iterable[str]) -> Attachments:
    """Read files, the text files of folders, and those that patterns name, each once.

    UsageError for what is not there, for a named file that is not text, and for too much.
    """
    files: dict[str, Attachment] = {}
    left_out, size = 0, 0
    for name in names:
        for path, named in matches(name):
            if path in files:
                continue
            try:
                text = read_text(Path(path))
            except UsageError:
                if named:
                    raise
                left_out += 1
                continue
            files[path] = Attachment(path, text)
            size += files[path].nbytes
            if len(files) > MAX_FILES or size > MAX_BYTES:
                raise UsageError(
                    f"'{name}' is too much: more than {MAX_FILES} files or "
                    f"{format_bytes(MAX_BYTES)}.",
                    hint="name fewer files, or a pattern such as 'src/*.py'",
                )
    if not files and left_out:
        raise UsageError("none of these files is text.", hint="give text files in UTF-8")
    return Attachments(tuple(files.values()), left_out)


def matches(name: str) -> Iterator[tuple[str, bool]]:
    """The files that a name stands for, and whether it is the name of that file itself."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        found = list(files_below(path))
        if not found:
            raise UsageError(f"the folder '{name}' has no files.", hint="hidden ones do not count")
        yield from ((file, False) for file in found)
    elif has_magic(path) and not os.path.lexists(path):
        paths = sorted(file for file in glob(path, recursive=True) if os.path.isfile(file))
        if not paths:
            raise UsageError(f"no file is named '{name}'.", hint="** stands for all folders below")
        yield from ((file, False) for file in paths)
    else:
        yield path, True


def files_below(folder: str) -> Iterator[str]:
    """The files of a folder and the folders in it, sorted, without hidden ones."""
    seen = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if n[0] != "." and n not in LEFT_OUT_FOLDERS)
        seen += len(names) + len(folders)
        if seen > MAX_ENTRIES:
            raise UsageError(
                f"the folder '{folder}' has more than {MAX_ENTRIES:,} files.",
                hint="name a smaller one",
            )
        for name in sorted(names):
            file = os.path.join(place, name)
            if name[0] != "." and os.path.isfile(file):
                yield file


def read_text(path: Path) -> str:
    """A text file without its last newline; UsageError for what cannot be read or is not text."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            reason = f"it has more than {format_bytes(MAX_BYTES)}"
        elif b"\0" in data:
            reason = "it is not text"
        else:
            return data.decode("utf-8").removeprefix("\ufeff").removesuffix("\n")
    except (OSError, ValueError) as error:
        reason = file_error_reason(error)
    raise UsageError(f"the file '{path}' cannot be read ({reason}).", hint="give a text file")


def complete_path(start: str) -> list[str]:
    """The paths that begin so, folders with a slash at the end; hidden ones only when asked for."""
    folder, _, name = start.rpartition("/")
    shown = f"{folder}/" if "/" in start else ""
    try:
        with os.scandir(os.path.expanduser(shown) or ".") as entries:
            found = [
                f"{shown}{entry.name}{'/' if entry.is_dir() else ''}"
                for entry in entries
                if entry.name.startswith(name) and (name or entry.name[0] != ".")
            ]
    except OSError:
        return []
    return sorted(found)[:MAX_FILES]


EMPTY_HINT = "give it as an argument, with --file, or on standard input"


def read_prompt(argument: str | None, files: Sequence[str] = ()) -> str:
    """Join the given parts with an empty line between them; UsageError when all are empty.

    One file is taken as it is; of several, of folders and of patterns each has its name and a
    fence. Standard input is read when it is not a terminal nor `mlx.launch`'s, or when the argument
    is `-`. One trailing newline of a file or of standard input is removed.
    """
    if argument is not None and argument != "-" and not argument.strip():
        raise UsageError("the prompt is empty.", hint=EMPTY_HINT)
    parts = [] if argument in (None, "-") else [argument]
    if len(files) == 1 and list(matches(files[0])) == [(os.path.expanduser(files[0]), True)]:
        parts.append(read_file(Path(files[0])))
    elif files:
        parts.append(read_attachments(files).text)
    waiting = not (sys.stdin is None or sys.stdin.isatty() or input_is_shared())
    if argument == "-" or waiting:
        parts.append(read_stdin())
    text = "\n\n".join(part for part in parts if part and part.strip())
    if not text:
        raise UsageError("the prompt is empty.", hint=EMPTY_HINT)
    return text


def read_file(path: Path, flag: str = "--file") -> str:
    """Read a text file that a flag names."""
    try:
        return path.expanduser().read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the file '{path}' cannot be read ({file_error_reason(error)}).",
            hint=f"{flag} takes a text file",
        ) from None


def read_stdin() -> str:
    """Read standard input to its end."""
    if sys.stdin is None:
        return ""
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise UsageError(
            "standard input is not UTF-8 text.", hint="convert it first, for example with iconv"
        ) from None


def prompt_messages(text: str, system: str | None, *, raw: bool) -> str | list[dict[str, str]]:
    """The prompt in the form that a session takes: messages, or text with `raw`."""
    if raw:
        if system is not None:
            raise UsageError(
                "a system prompt cannot be sent with --raw.",
                hint="write it into the text, or leave --raw out",
            )
        return text
    system_messages = [] if system is None else [{"role": "system", "content": system}]
    return [*system_messages, {"role": "user", "content": text}]


# The form of the answer


def read_grammar(
    schema: str | None, grammar: str | None, *, remote: bool = False
) -> Grammar | None:
    """What --schema and --grammar ask for; UsageError, with the reason, if it is wrong.

    A `remote` model's server judges it.
    """
    asked = asked_grammar(
        None if schema is None else read_value(schema, "--schema", "{"),
        None if grammar is None else read_value(grammar, "--grammar", ":"),
    )
    if asked is not None and not remote:
        from dflash_mlx.constrained.grammar import check_grammar

        check_grammar(asked)
    return asked


def read_value(value: str, flag: str, mark: str) -> str:
    """The text itself where it has the mark that no name of a file has, or the file's text."""
    if mark in value and not is_file(value):
        return value
    if not is_file(value):
        raise UsageError(
            f"there is no file '{value:.60}'.", hint=f"{flag} takes a file or its text"
        )
    return read_file(Path(value), flag)


def is_file(name: str) -> bool:
    """Whether there is such a file; a text may be no possible name."""
    try:
        return Path(name).expanduser().is_file()
    except (OSError, ValueError):
        return False
