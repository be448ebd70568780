"""Attachments of the next prompt: files, and the output of shell commands."""

import os
import re
import shlex
import signal
import subprocess
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from glob import glob, has_magic
from io import IncrementalNewlineDecoder

from dflash_mlx.errors import DFlashError, PromptTooLong, UsageError
from dflash_mlx.options import GenerationOptions

from ..prompt import Attachment, Attachments, read_attachments
from ..terminal.output import format_count, strip_control
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
    about = ""
    summary = attachments.summary
    if not dialogue.info.local:
        return summary
    try:
        count = dialogue.backend.count(messages, GenerationOptions())
    except PromptTooLong as error:  # far too long to be counted
        count = error.tokens
        about = "about "
    if count >= dialogue.context_length:
        raise UsageError(
            f"{summary} are {about}{count:,} tokens; "
            f"the context holds {dialogue.context_length:,}.",
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
    path = os.path.expanduser(name)
    return os.path.exists(path) or bool(has_magic(path) and glob(path, recursive=True))


# `!command`

# Sequences of a terminal: with parameters, with a text, and others.
ESCAPES = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[]PX^_][^\a\x1b]*(?:\a|\x1b\\)|\x1b[ -/]*[0-~]"
)
# Only programs that draw on the whole screen place the cursor or use the second screen.
SCREEN_CODES = re.compile(r"\x1b\[[0-9;]*[Hf]|\x1b\[\?(?:47|1047|1049)h")
MAX_CODE = 16  # characters; one of SCREEN_CODES is shorter
MAX_OUTPUT = 100_000  # characters; of a longer output the end is attached
# For programs that would open a pager or use colours.
COMMAND_VARIABLES = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}
GRACE_SECONDS = 1.0  # for a command to end after a signal


def is_shell_command(text: str) -> bool:
    return text.startswith("!") and bool(text[1:].strip())


def run_in_shell(state: ChatState, text: str) -> None:
    """Run a command without a terminal, show its output, and attach it to the next prompt.

    Ctrl-C ends the command and its children. DFlashError when there is no shell, UsageError for a
    program that draws on the whole screen: it is ended, and nothing is attached.
    """
    command = text[1:].strip()
    lines = []
    stopped = False
    process = start_in_shell(command)
    assert process.stdout is not None
    with process, state.terminal_for_others():
        try:
            for line in read_lines(process.stdout.fileno()):
                lines.append(line)
                state.print_line(f"  {line.rstrip()}", "dim")
            process.wait()
        except BaseException as error:
            end_group(process)
            if not isinstance(error, KeyboardInterrupt):
                raise
            stopped = True
    if stopped or process.returncode:
        state.print_line("  stopped" if stopped else f"  exit code {process.returncode}", "warning")
    if output := "\n".join(lines).strip("\n"):
        attachment = Attachment(f"$ {command}", output[-MAX_OUTPUT:], "text")
        summary = summarise(state, Attachments((attachment,)))
        if len(output) > MAX_OUTPUT:
            summary += f", the last {MAX_OUTPUT:,} of {len(output):,} characters"
        state.outputs.append(attachment)
        state.print_line(f"  {summary}: with the next prompt; /read off drops it", "dim")


def start_in_shell(command: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [os.environ.get("SHELL") or "/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **COMMAND_VARIABLES},
            start_new_session=True,
        )
    except OSError as error:
        raise DFlashError(
            f"the shell cannot be run ({error.strerror}).", hint="set SHELL to the one you use"
        ) from None


def read_lines(descriptor: int) -> Iterator[str]:
    """The lines of a command's output, without escape codes; UsageError for a full-screen program.

    Such a program may wait for keys before its first line is complete.
    """
    decoder = IncrementalNewlineDecoder(getincrementaldecoder("utf-8")("replace"), translate=True)
    rest = ""
    while data := os.read(descriptor, 65536):
        text = decoder.decode(data)
        if SCREEN_CODES.search(rest[-MAX_CODE:] + text):
            raise UsageError(
                "this command draws on the whole screen, so it was ended.",
                hint="run it in another terminal",
            )
        *lines, rest = (rest + text).split("\n")
        yield from map(without_codes, lines)
    if rest := rest + decoder.decode(b"", final=True):
        yield without_codes(rest)


def without_codes(line: str) -> str:
    return strip_control(ESCAPES.sub("", line))


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command and its children, also those that ignore Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):  # nobody is left
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # the next signal is harder
            process.wait(GRACE_SECONDS)
