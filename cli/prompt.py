"""Reads the prompt from the argument, files and standard input, and the grammar of the answer."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

from dflash_mlx.errors import UsageError
from dflash_mlx.files.folder import is_sidecar
from dflash_mlx.grammar import Grammar, asked_grammar

from .config_file import file_error_reason
from .terminal.output import format_bytes, format_count

# Fences of code blocks in Markdown


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

# Limits for all files of a prompt together, far beyond what contexts hold.
MAX_FILES = 200
MAX_BYTES = 2_000_000
MAX_ENTRIES = 20_000  # entries of a folder and its subfolders
MAX_NAME = 40  # characters of a file's name on the screen
# The beginning of an attached file in a prompt, and the whole file: what `Attachment.block` writes.
ATTACHMENT_START = re.compile(r"\n\n[^\n]+:\n\n```")
ATTACHMENT = re.compile(
    r"\n\n([^\n]+):\n\n(`{3,})([^\n`]*)\n((?:(?!\2).)*)\n\2(?=\n\n[^\n]+:\n\n```|\Z)", re.S
)
SKIPPED_FOLDERS = {"__pycache__", "node_modules"}  # and those whose names begin with a dot


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file in a prompt. name: as the user wrote it, or a path below a folder they named.

    language: of its code fence; if empty, the file's suffix.
    """

    name: str
    text: str
    language: str = ""

    @property
    def nbytes(self) -> int:
        return len(self.text.encode("utf-8", "replace"))

    @property
    def block(self) -> str:
        """The file as the prompt has it: its name, then its text in a fence."""
        language = self.language or Path(self.name).suffix[1:] or "text"
        return f"{self.name}:\n\n{fenced(self.text, language)}"


@dataclass(frozen=True, slots=True)
class Attachments:
    """The files of one prompt. skipped: number of files that are not text."""

    files: tuple[Attachment, ...] = ()
    skipped: int = 0

    @property
    def text(self) -> str:
        return "\n\n".join(file.block for file in self.files)

    @property
    def summary(self) -> str:
        names = [file.name for file in self.files]
        label = shorten(names[0]) if len(names) == 1 else format_count(len(names), "file", "files")
        skipped = f" · {self.skipped:,} not text, left out" if self.skipped else ""
        empty = [file.name for file in self.files if not file.text.strip()]
        if empty and len(names) > 1:
            skipped += f" · empty: {shorten(', '.join(empty))}"
        return f"{label} · {format_bytes(sum(file.nbytes for file in self.files))}{skipped}"


def split_attached(prompt: str) -> tuple[str, Attachments]:
    for start in ATTACHMENT_START.finditer(prompt):
        position = start.start()
        files = []
        while match := ATTACHMENT.match(prompt, position):
            name, _, language, text = match.groups()
            files.append(Attachment(name, text, language))
            position = match.end()
        if position == len(prompt):
            return prompt[: start.start()], Attachments(tuple(files))
    return prompt, Attachments()


def shorten(name: str) -> str:
    if len(name) <= MAX_NAME:
        return name
    return f"{name[:MAX_NAME]}…" if name.startswith("$") else f"…{name[-MAX_NAME:]}"


def read_text(path: Path, hint: str = "give a text file") -> str:
    """A text file without its last newline; UsageError if it cannot be read or is not text."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            reason = f"it has more than {format_bytes(MAX_BYTES)}"
        elif b"\0" in data:
            reason = "it is not text"
        else:
            return data.decode("utf-8-sig").removesuffix("\n")
    except (OSError, ValueError) as error:
        reason = file_error_reason(error)
    raise UsageError(f"the file '{path}' cannot be read ({reason}).", hint=hint)


def read_attachments(names: Iterable[str], read: Callable[[Path], str] = read_text) -> Attachments:
    """Read files, the text files in folders, and files that match patterns, each once.

    read: those that are named themselves. UsageError for a missing file, a named file that is not
    text, and for more than MAX_FILES or MAX_BYTES.
    """
    files: dict[str, Attachment] = {}
    skipped = 0
    size = 0
    for name in names:
        paths, named = matching_files(name)
        for path in paths:
            if path in files:
                continue
            try:
                text = (read if named else read_text)(Path(path))
            except UsageError:
                if named:
                    raise
                skipped += 1
                continue
            files[path] = Attachment(path, text)
            size += files[path].nbytes
            if len(files) > MAX_FILES or size > MAX_BYTES:
                raise UsageError(
                    f"'{name}' is too much: more than {MAX_FILES} files or "
                    f"{format_bytes(MAX_BYTES)}.",
                    hint="name fewer files, or a pattern such as 'src/*.py'",
                )
    if not files and skipped:
        raise UsageError("none of these files is text.", hint="give text files in UTF-8")
    return Attachments(tuple(files.values()), skipped)


def matching_files(name: str) -> tuple[list[str], bool]:
    """The paths that a file name, folder or pattern stands for; True for a file's own name."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        if paths := list(files_below(path)):
            return paths, False
        raise UsageError(
            f"the folder '{name}' has no files.",
            hint="hidden files are skipped; name them one by one",
        )
    if not has_magic(path) or os.path.lexists(path):
        return [path], True
    found = (file for file in glob(path, recursive=True) if os.path.isfile(file))
    if paths := sorted(file for file in found if not is_sidecar(os.path.basename(file))):
        return paths, False
    raise UsageError(
        f"no file matches '{name}'.", hint="check the pattern; ** matches folders at any depth"
    )


def files_below(folder: str) -> Iterator[str]:
    """The files in a folder and its subfolders, sorted, without hidden ones."""
    entries = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if n[0] != "." and n not in SKIPPED_FOLDERS)
        entries += len(names) + len(folders)
        if entries > MAX_ENTRIES:
            raise UsageError(
                f"the folder '{folder}' has more than {MAX_ENTRIES:,} files.",
                hint="name a smaller one",
            )
        for name in sorted(names):
            file = os.path.join(parent, name)
            if name[0] != "." and os.path.isfile(file):
                yield file


def complete_path(start: str) -> list[str]:
    """The paths that begin with `start`, folders with a slash at the end.

    Hidden files are only completed after a dot.
    """
    folder, _, name = start.rpartition("/")
    prefix = f"{folder}/" if "/" in start else ""
    try:
        with os.scandir(os.path.expanduser(prefix) or ".") as entries:
            paths = [
                f"{prefix}{entry.name}{'/' if entry.is_dir() else ''}"
                for entry in entries
                if entry.name.startswith(name)
                and (name or entry.name[0] != ".")
                and not is_sidecar(entry.name)
            ]
    except OSError:
        return []
    return sorted(paths)[:MAX_FILES]


EMPTY_HINT = "give it as an argument, with --file, or on standard input"


def read_prompt(
    argument: str | None, files: Sequence[str] = (), *, empty_hint: str = EMPTY_HINT
) -> str:
    """Join argument, files and standard input with empty lines; UsageError when all are empty.

    A single file is added as bare text. Several files, and those of folders and patterns, get their
    name and a code fence. Standard input is read if the argument is `-`, or if it is not a
    terminal. The last newline of a file or of standard input is removed.
    """
    if argument is not None and argument != "-" and not argument.strip():
        raise UsageError("the prompt is empty.", hint=empty_hint)
    parts = [] if argument in (None, "-") else [argument]
    if len(files) == 1 and matching_files(files[0])[1]:
        parts.append(read_file(Path(files[0])))
    elif files:
        parts.append(read_attachments(files, read_file).text)
    piped = not (sys.stdin is None or sys.stdin.isatty())
    if argument == "-" or piped:
        parts.append(read_stdin())
    text = "\n\n".join(part for part in parts if part and part.strip())
    if not text:
        raise UsageError("the prompt is empty.", hint=empty_hint)
    return text


def read_file(path: Path, flag: str = "--file") -> str:
    """The text of a file that a flag names, without its last newline."""
    text = read_text(path.expanduser(), f"{flag} takes a text file")
    if not text.strip():
        raise UsageError(
            f"the file '{path}' is empty.", hint=f"give {flag} another, or leave it out"
        )
    return re.sub("\r\n?", "\n", text.removesuffix("\r"))


def read_stdin() -> str:
    if sys.stdin is None:
        return ""
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise UsageError(
            "standard input is not UTF-8 text.", hint="convert it first, for example with iconv"
        ) from None


def prompt_messages(text: str, system: str | None, *, raw: bool) -> str | list[dict[str, str]]:
    """The prompt as a session takes it: messages, or with `raw` the text itself."""
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
    """The grammar of --schema or --grammar; UsageError, with the reason, if it is invalid.

    With `remote` only the server checks it.
    """
    constraint = asked_grammar(
        None if schema is None else text_or_file(schema, "--schema", "{"),
        None if grammar is None else text_or_file(grammar, "--grammar", ":"),
    )
    if constraint is not None and not remote:
        from dflash_mlx.constrained.grammar import check_grammar

        check_grammar(constraint)
    return constraint


def text_or_file(value: str, flag: str, mark: str) -> str:
    """The value of a flag that takes a text or a file's name.

    A value with `mark` in it is the text, unless a file has that name.
    """
    path = Path(value)
    try:
        is_file = path.expanduser().is_file()
    except (OSError, ValueError):  # a text that cannot be a name
        is_file = False
    if is_file:
        return read_file(path, flag)
    if mark in value:
        return value
    raise UsageError(f"there is no file '{value:.60}'.", hint=f"{flag} takes a file or its text")
