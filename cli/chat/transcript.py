"""Saves, loads and exports chats. A chat is one JSON file in the data folder of its owner."""

import json
import os
import re
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.folder import matching
from dflash_mlx.tools.call import Step, arguments_of
from dflash_mlx.types import Call

from ..prompt import close_fence, fenced

# Turns and chats, and their JSON

FORMAT_VERSION = 4  # files with another one are not read


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt and its answer.

    finish_reason: stop, length, interrupted, or calls if the last step has tool calls and no answer
    follows. steps: texts and tool calls of the model before its answer.
    """

    prompt: str
    answer: str
    thinking: str = ""
    finish_reason: str = "stop"
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """A text that is sent to the model in place of the oldest turns, which stay in the chat.

    turns: how many it replaces. written_after: number of turns of the chat when it was written.
    """

    text: str
    turns: int
    written_after: int


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation.

    left_out: number of the oldest turns that are not sent to the model. summaries: the last one is
    sent in their place; the earlier ones come back when it is undone.
    """

    turns: tuple[Turn, ...] = ()
    system: str | None = None
    left_out: int = 0
    model: str | None = None
    draft: str | None = None
    summaries: tuple[Summary, ...] = ()

    @property
    def summary(self) -> Summary | None:
        return self.summaries[-1] if self.summaries else None


def first_turns(chat: Chat, count: int) -> Chat:
    """The chat after its first `count` turns, with the summaries of fewer turns.

    Only turns that a summary replaces are left out: the others may fit into the context again.
    """
    summaries = tuple(summary for summary in chat.summaries if summary.turns < count)
    left_out = summaries[-1].turns if summaries else 0
    return replace(chat, turns=chat.turns[:count], summaries=summaries, left_out=left_out)


def chat_from_json(document: dict[str, Any]) -> Chat:
    """A chat from its JSON object; KeyError or TypeError for another object."""
    chat: Chat = read_as(Chat, document)
    turns = len(chat.turns)
    if any(not 0 < summary.turns < turns for summary in chat.summaries):
        raise TypeError
    least = chat.summary.turns if chat.summary else 0
    return replace(chat, left_out=min(max(chat.left_out, least), turns))


hints_of = cache(get_type_hints)  # a long chat has thousands of values of few types


def read_as(kind: Any, value: Any) -> Any:
    """A value of JSON as a value of a type: a dataclass, a tuple, a Literal, or a simple one.

    KeyError or TypeError for a value of another type.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = hints_of(kind)
        return kind(**{name: read_as(hint, value[name]) for name, hint in hints.items()})
    if get_origin(kind) is tuple:
        return tuple(read_as(get_args(kind)[0], entry) for entry in value)
    if value not in get_args(kind) if get_origin(kind) is Literal else not isinstance(value, kind):
        raise TypeError
    return value


# Files

LEFTOVER_SECONDS = 60  # age of a temporary file; no process needs so long to write a chat
TITLE = "# Chat with "
CHAT_NAME = re.compile(r"\w[\w .+-]{0,79}")


def data_path() -> Path:
    """The folder of saved chats and prompt history; it need not exist."""
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "dflash"


def data_folder(*, must_be_writable: bool = False) -> Path:
    """The folder of saved chats, created for its owner alone if missing; DFlashError without it."""
    folder = data_path()
    hint = "set XDG_DATA_HOME to a folder that you may write"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        message = f"the data folder '{folder}' cannot be made ({error.strerror})."
        raise DFlashError(message, hint=hint) from None
    if must_be_writable and not os.access(folder, os.W_OK | os.X_OK):
        raise DFlashError(f"the data folder '{folder}' cannot be written.", hint=hint)
    return folder


def chat_path(name: str) -> Path:
    """The file of a chat; UsageError for a name that a chat cannot have."""
    too_long = len(name.encode()) > 200  # bytes; file systems take 255, and a suffix follows
    if not CHAT_NAME.fullmatch(name) or name.endswith((" ", ".")) or too_long:
        raise UsageError(
            f"a chat cannot be named '{name}'.", hint="use letters, digits, spaces and . _ + -"
        )
    return data_path() / "chats" / f"{name}.json"


def chat_names() -> list[str]:
    """The names of the saved chats, latest first."""

    def latest_first(path: Path) -> float:
        with suppress(FileNotFoundError):  # another process has just renamed it
            return -path.stat().st_mtime_ns
        return 0

    folder = data_path() / "chats"
    stems = [path.stem for path in sorted(matching(folder, "*.json"), key=latest_first)]
    return [stem for stem in stems if CHAT_NAME.fullmatch(stem)]


def latest_chat_name() -> str:
    """The name of the chat saved last; DFlashError without any."""
    names = chat_names()
    if not names:
        raise DFlashError("there is no saved chat yet.", hint="leave --resume and --continue out")
    return names[0]


def complete_name(incomplete: str) -> list[str]:
    return [name for name in chat_names() if name.startswith(incomplete)]


def remove(name: str) -> None:
    """Remove a chat; DFlashError if that fails."""
    path = chat_path(name)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DFlashError(
            f"the chat '{path}' cannot be removed ({error.strerror}).",
            hint="check the folder's permissions",
        ) from None


def save(name: str, chat: Chat) -> Path:
    """Write a chat and return its path; DFlashError if it cannot be written.

    After an error or a kill the file is the whole old or the whole new chat.
    """
    path = chat_path(name)
    document = {"version": FORMAT_VERSION, **asdict(chat)}
    text = json.dumps(document, ensure_ascii=False, indent=1)
    try:
        data_folder()
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_atomically(path, text + "\n")
        remove_leftovers(path)
    except OSError as error:
        raise DFlashError(
            f"the chat could not be saved to '{path}' ({error.strerror}).",
            hint="free some space or check the folder's permissions, then /save again",
        ) from None
    return path


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step; mode 0600."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put new names of files on disk; otherwise a power cut may lose them."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of a chat that killed processes have left."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        with suppress(FileNotFoundError):  # another process has just removed it
            if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                leftover.unlink()


def load(name: str) -> Chat:
    """Read a chat; DFlashError if it does not exist or is damaged."""
    path = chat_path(name)
    try:
        document = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
    except FileNotFoundError:
        raise missing_error(name) from None
    except OSError as error:
        raise DFlashError(
            f"the chat '{path}' cannot be read ({error.strerror}).", hint="check its permissions"
        ) from None
    except ValueError:
        raise damaged_error(path) from None
    if isinstance(document, dict) and isinstance(document.get("version"), int):
        if document["version"] > FORMAT_VERSION:
            raise DFlashError(
                f"the chat '{path}' was saved by a newer dflash.", hint="install the newest one"
            )
        if document["version"] < FORMAT_VERSION:
            raise DFlashError(
                f"the chat '{path}' was saved by an older dflash, in a form that is not read.",
                hint="the file stays as it is; `dflash chats export` of that version reads it",
            )
        with suppress(KeyError, TypeError):
            return chat_from_json(document)
    raise damaged_error(path)


def missing_error(name: str) -> DFlashError:
    return DFlashError(
        f"there is no saved chat '{name}'.", hint=f"saved chats: {summarise_names(chat_names())}"
    )


def damaged_error(path: Path) -> DFlashError:
    return DFlashError(f"the file '{path}' is not a saved chat.", hint="repair or delete it")


def summarise_names(names: list[str], limit: int = 8) -> str:
    """The first `limit` names on one line, and how many there are besides."""
    if not names:
        return "none yet"
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def to_markdown(chat: Chat) -> str:
    parts = [TITLE + (chat.model or "the bundled pair")]
    if chat.system:
        parts.append(f"*System prompt:* {chat.system}")
    for number, turn in enumerate(chat.turns, 1):
        parts.append("## You\n\n" + turn.prompt)
        for step in turn.steps:
            parts += details("Thinking", step.thinking)
            parts += [close_fence(step.text.strip())] if step.text.strip() else []
            for call in step.calls:
                parts += [
                    f"*Called {call_text(call)}: {call.state}*",
                    *details("Result", call.result),
                ]
        parts += details("Thinking", turn.thinking)
        note = {"interrupted": "\n\n*(stopped)*", "length": "\n\n*(cut)*"}
        parts.append(
            "## Answer\n\n" + close_fence(turn.answer.strip()) + note.get(turn.finish_reason, "")
        )
        if chat.summary is not None and number == chat.summary.turns:
            parts.append("## Summary of all above\n\n" + close_fence(chat.summary.text))
    return "\n\n".join(parts) + "\n"


def details(title: str, text: str) -> list[str]:
    """A text that can be unfolded, as one part of a document; no part for an empty text."""
    text = text.strip()
    return [f"<details><summary>{title}</summary>\n\n{fenced(text)}\n\n</details>"] if text else []


def export(path: Path, chat: Chat) -> None:
    """Write the chat as Markdown to a new file, or over an earlier export.

    DFlashError if the file is something else or cannot be written.
    """
    try:
        if path.exists() and not path.read_bytes().startswith(TITLE.encode()):
            raise DFlashError(
                f"'{path}' exists and is not an exported chat.", hint="give another file name"
            )
        write_atomically(path, to_markdown(chat))
    except OSError as error:
        raise DFlashError(
            f"'{path}' cannot be written ({error.strerror}).", hint="give another file name"
        ) from None


def call_text(call: Call) -> str:
    """A call on one line: weather(city: "Brno")."""
    arguments = arguments_of(call)
    if arguments is None:
        return f"{call.name}({call.arguments})"
    values = {name: json.dumps(value, ensure_ascii=False) for name, value in arguments.items()}
    return f"{call.name}({', '.join(f'{name}: {value}' for name, value in values.items())})"
