"""What goes with the next prompt: files, and the output of shell commands."""

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from glob import glob, has_magic

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions

from ..prompt import Attachment, Attachments, read_attachments
from ..terminal.output import format_count
from .state import ChatState

# Files

# At the start of a word; quotes allow spaces in it.
MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
MAX_SHOWN = 8  # files that are named one by one
AFTER_NAME = ".,:;!?)]}'\""


def read_files(state: ChatState, argument: str) -> None:
    """`/read`: the files go with the next prompt."""
    if argument == "off":
        state.attached, state.outputs = [], []
        state.print_line("  no files go with the next prompt", "dim")
        return
    if argument:
        try:
            names = shlex.split(argument)
        except ValueError:
            raise UsageError("a quotation mark is not closed.", hint="close it") from None
        read_attachments(names)  # what cannot be read is told before it is remembered
        state.attached = list(dict.fromkeys([*state.attached, *names]))
    found = all_attached(state)
    if not found.files:
        state.print_line("  no files go with the next prompt; /read FILE... adds some")
        return
    for file in found.files if 1 < len(found.files) <= MAX_SHOWN else ():
        state.print_line(f"  {file.name}")
    state.print_line(f"  {described(state, found)}: with the next prompt; /read off drops it")


def with_files(state: ChatState, prompt: str) -> str:
    """The prompt with the files that it mentions, and what waits for it, which it uses up.

    Shows sizes and tokens. UsageError for a file that cannot be read, and for too many tokens.
    """
    found = all_attached(state, mentioned(prompt))
    for name in missing(prompt):
        state.print_line(f"  there is no file {name}: @{name} is sent as text", "dim")
    if not found.files:
        return prompt
    state.print_line(f"  {described(state, found)}", "dim")
    state.attached, state.outputs = [], []
    return f"{prompt}\n\n{found.text}"


def all_attached(state: ChatState, names: Sequence[str] = ()) -> Attachments:
    """The outputs of commands, the files of `/read`, and those of these names."""
    found = read_attachments([*state.attached, *names])
    return replace(found, files=(*state.outputs, *found.files))


def described(state: ChatState, found: Attachments) -> str:
    """Which files, their size and tokens; UsageError when the context cannot hold them."""
    dialogue = state.dialogue
    messages = [{"role": "user", "content": found.text}]
    count = dialogue.backend.count_tokens(messages, GenerationOptions())
    if count is None:
        return found.summary
    if count >= dialogue.context_length:
        raise UsageError(
            f"{found.summary} are {count:,} tokens; the context holds {dialogue.context_length:,}.",
            hint="take fewer or shorter files",
        )
    return f"{found.summary} · {format_count(count, 'token', 'tokens')}"


def mentioned(prompt: str) -> list[str]:
    """The names after an @ that are files, folders or patterns with matches; others are text."""
    names = []
    for quoted, word in MENTION.findall(prompt):
        candidates = [quoted] if quoted else [word, word.rstrip(AFTER_NAME)]
        names += [name for name in candidates if name and is_there(name)][:1]
    return names


def missing(prompt: str) -> list[str]:
    """The names after an @ that look like paths, and are nothing that is there."""
    words = [quoted or word.rstrip(AFTER_NAME) for quoted, word in MENTION.findall(prompt)]
    paths = [name for name in words if "/" in name or os.path.splitext(name)[1]]
    return [name for name in dict.fromkeys(paths) if not is_there(name)]


def is_there(name: str) -> bool:
    """Whether a name stands for at least one file or folder."""
    path = os.path.expanduser(name)
    return os.path.exists(path) or bool(has_magic(path) and glob(path, recursive=True))


# `!command`

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\a\x1b]*(?:\a|\x1b\\)")
MAX_OUTPUT = 100_000  # characters that are kept, the last ones


def is_shell_command(text: str) -> bool:
    """Whether a text is an exclamation mark and a command; with a space before it, it is text."""
    return text.startswith("!") and bool(text[1:].strip())


def run_in_shell(state: ChatState, text: str) -> None:
    """Run a command without input, show what it prints, and attach that to the next prompt.

    Ctrl-C ends the command. DFlashError when there is no shell.
    """
    command = text[1:].strip()
    parts, stopped = [], False
    try:
        process = subprocess.Popen(
            [os.environ.get("SHELL") or "/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise DFlashError(
            f"the shell cannot be run ({error.strerror}).", hint="set SHELL to the one you use"
        ) from None
    assert process.stdout is not None
    with process, state.terminal_for_others():
        try:
            for line in process.stdout:
                line = ESCAPES.sub("", line)  # colours
                parts.append(line)
                state.print_line(f"  {line.rstrip()}", "dim")
        except KeyboardInterrupt:  # the command got it, too
            stopped = True
            with suppress(ProcessLookupError):
                process.terminate()
    if stopped or process.returncode:
        state.print_line("  stopped" if stopped else f"  exit code {process.returncode}", "warning")
    if output := "".join(parts).strip("\n"):
        kept = Attachment(f"$ {command}", output[-MAX_OUTPUT:], "text")
        told = described(state, Attachments((kept,)))
        if len(output) > MAX_OUTPUT:
            told += f", the last {MAX_OUTPUT:,} of {len(output):,} characters"
        state.outputs.append(kept)
        state.print_line(f"  {told}: with the next prompt; /read off drops it", "dim")
