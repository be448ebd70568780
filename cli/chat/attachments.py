"""Attachments of the next prompt: files, and the output of shell commands."""

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
CLOSING_PUNCTUATION = ".,:;!?)]}'\""  # after a name it may belong to the sentence


def read_files(state: ChatState, argument: str) -> None:
    """`/read`: attach files to the next prompt, or list them.

    UsageError for a file that cannot be read or is too long: then nothing new is attached.
    """
    if argument == "off":
        state.drop_attachments()
        state.print_line("  no files go with the next prompt", "dim")
        return
    names = []
    if argument:
        try:
            names = shlex.split(argument)
        except ValueError:
            raise UsageError("a quotation mark is not closed.", hint="close it") from None
    attachments = collect_attachments(state, names)
    if not attachments.files:
        state.print_line("  no files go with the next prompt; /read FILE... adds some")
        return
    for file in attachments.files if 1 < len(attachments.files) <= MAX_SHOWN else ():
        state.print_line(f"  {file.name}")
    summary = summarise(state, attachments)
    state.attached = list(dict.fromkeys([*state.attached, *names]))
    state.print_line(f"  {summary}: with the next prompt; /read off drops it")


def with_files(state: ChatState, prompt: str) -> str:
    """The prompt with the files it mentions and everything attached; empties the attachments.

    Prints sizes and tokens. UsageError for a file that cannot be read, and for too many tokens.
    """
    attachments = collect_attachments(state, mentioned_files(prompt))
    for name in missing_files(prompt):
        state.print_line(f"  there is no file {name}: @{name} is sent as text", "dim")
    if not attachments.files:
        return prompt
    state.print_line(f"  {summarise(state, attachments)}", "dim")
    state.drop_attachments()
    return f"{prompt}\n\n{attachments.text}"


def collect_attachments(state: ChatState, names: Sequence[str] = ()) -> Attachments:
    """The outputs of shell commands, the files of `/read`, and the files with these names.

    UsageError for a file that cannot be read; if it was one of `/read`, it is dropped.
    """
    try:
        attachments = read_attachments([*state.attached, *names])
    except UsageError as error:
        readable = [name for name in state.attached if is_readable(name)]
        if readable == state.attached:
            raise
        state.attached = readable
        hint = "it is no longer attached: send the prompt again, or /read another file"
        raise UsageError(error.message, hint=hint) from None
    return replace(attachments, files=(*state.outputs, *attachments.files))


def is_readable(name: str) -> bool:
    """Whether a file, folder or pattern can still be attached."""
    try:
        read_attachments([name])
    except UsageError:
        return False
    return True


def summarise(state: ChatState, attachments: Attachments) -> str:
    """Name or number of the files, size and tokens; UsageError if the context cannot hold them."""
    dialogue = state.dialogue
    messages = [{"role": "user", "content": attachments.text}]
    count = dialogue.backend.count_tokens(messages, GenerationOptions())
    summary = attachments.summary
    if count is None:
        return summary
    if count >= dialogue.context_length:
        raise UsageError(
            f"{summary} are {count:,} tokens; the context holds {dialogue.context_length:,}.",
            hint="take fewer or shorter files; /read off drops those that are attached",
        )
    return f"{summary} · {format_count(count, 'token', 'tokens')}"


def mentioned_files(prompt: str) -> list[str]:
    """The names after an @ that match at least one file or folder."""
    names = []
    for quoted, word in MENTION.findall(prompt):
        candidates = [quoted] if quoted else [word, word.rstrip(CLOSING_PUNCTUATION)]
        names += [name for name in candidates if name and exists(name)][:1]
    return names


def missing_files(prompt: str) -> list[str]:
    """The names after an @ that look like paths but match nothing."""
    words = [quoted or word.rstrip(CLOSING_PUNCTUATION) for quoted, word in MENTION.findall(prompt)]
    paths = [name for name in words if "/" in name or os.path.splitext(name)[1]]
    return [name for name in dict.fromkeys(paths) if not exists(name)]


def exists(name: str) -> bool:
    """Whether a name or pattern matches at least one file or folder."""
    path = os.path.expanduser(name)
    return os.path.exists(path) or bool(has_magic(path) and glob(path, recursive=True))


# `!command`

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\a\x1b]*(?:\a|\x1b\\)")
MAX_OUTPUT = 100_000  # characters; of a longer output the end is attached


def is_shell_command(text: str) -> bool:
    """Whether a text begins with an exclamation mark and names a command."""
    return text.startswith("!") and bool(text[1:].strip())


def run_in_shell(state: ChatState, text: str) -> None:
    """Run a command without input, show its output, and attach it to the next prompt.

    Ctrl-C ends the command. DFlashError when there is no shell.
    """
    command = text[1:].strip()
    lines = []
    stopped = False
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
                lines.append(line)
                state.print_line(f"  {line.rstrip()}", "dim")
        except KeyboardInterrupt:  # the command got it, too
            stopped = True
            with suppress(ProcessLookupError):
                process.terminate()
    if stopped or process.returncode:
        state.print_line("  stopped" if stopped else f"  exit code {process.returncode}", "warning")
    if output := "".join(lines).strip("\n"):
        attachment = Attachment(f"$ {command}", output[-MAX_OUTPUT:], "text")
        summary = summarise(state, Attachments((attachment,)))
        if len(output) > MAX_OUTPUT:
            summary += f", the last {MAX_OUTPUT:,} of {len(output):,} characters"
        state.outputs.append(attachment)
        state.print_line(f"  {summary}: with the next prompt; /read off drops it", "dim")
