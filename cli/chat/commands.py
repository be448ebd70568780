"""The slash commands as one table, which dispatch, `/help`, Tab completion and the README follow.

Knows what is typed; what the commands do is in `actions`.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from dflash_mlx.errors import UsageError

from ..tuning import SETTINGS, setting
from . import actions, keeping
from .room import Room

WORD = re.compile(r"/[a-z?][a-z-]*")
NOTHING_SENT = "nothing was sent; start with // to send a slash"


def no_words(room: Room) -> list[str]:
    """Commands whose argument cannot be completed."""
    return []


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command; `usage` is empty for one that takes no argument."""

    name: str
    usage: str
    help: str
    run: Callable[[Room, str], None]
    aliases: tuple[str, ...] = ()
    needs: bool = False  # an argument
    words: Callable[[Room], list[str]] = no_words
    detail: str = ""

    @property
    def form(self) -> str:
        """The command as it is typed."""
        return f"/{self.name} {self.usage}".rstrip()


def setting_names(room: Room) -> list[str]:
    """The names that `/set` knows."""
    return [which.name for which in SETTINGS]


def command_names(room: Room) -> list[str]:
    """The names that `/help` knows."""
    return [*(command.name for command in COMMANDS), "keys"]


def show_help(room: Room, word: str) -> None:
    """`/help`: the table, one command, or the keys."""
    if word == "keys":
        room.show_keys()
        return
    if not word:
        width = max(len(command.form) for command in COMMANDS) + 2
        for command in COMMANDS:
            room.line(f"  {command.form:{width}}{command.help}")
        room.line("  /help keys lists the keys; // sends a text that begins with /", "dim")
        return
    command, _ = find(word.removeprefix("/"))
    names = "".join(f", /{alias}" for alias in command.aliases)
    room.line(f"  {command.form}{names}", "bold")
    room.line(f"  {command.help}")
    if command.detail:
        room.line(f"  {command.detail}")
    if command.name == "set":
        width = max(len(which.name) for which in SETTINGS) + 2
        for which in SETTINGS:
            room.line(f"  {which.name:{width}}{which.help}")


COMMANDS = (
    Command(
        "help",
        "[command]",
        "list the commands, or explain one; /help keys",
        show_help,
        aliases=("?",),
        words=command_names,
    ),
    Command(
        "model",
        "[id]",
        "show the target, or answer with another from now on",
        actions.model,
        words=actions.known_targets,
        detail="A Hub id or a folder; its drafter is looked up. The conversation goes on.",
    ),
    Command(
        "draft",
        "[on|off|id]",
        "show the drafter, change it, or switch drafting off",
        actions.draft,
        words=actions.drafters,
        detail="off is plain decoding by the target alone: the same words, slower.",
    ),
    Command(
        "system",
        "[text|off]",
        "show, set or remove the system prompt",
        actions.system,
        words=lambda room: ["off"],
        detail="The conversation stays, and is read again with the new system prompt.",
    ),
    Command(
        "set",
        "[name [value]]",
        "show or change settings; /temp 0.7 is short for /set temp 0.7",
        actions.change_setting,
        words=setting_names,
    ),
    Command(
        "think",
        "[word]",
        "thinking: on, off, low, medium, high; show or hide it",
        actions.think,
        words=lambda room: ["on", "off", "low", "medium", "high", "show", "hide"],
        detail="on and off, or low to high, as the model's template knows them; show prints the "
        "last thinking too.",
    ),
    Command("stats", "", "numbers of the last answer and of the conversation", actions.stats),
    Command("compare", "", "answer the last prompt both ways: rates, and same words", actions.both),
    Command("retry", "", "answer the last prompt again", actions.retry),
    Command("undo", "", "forget the last prompt and its answer", actions.undo),
    Command("edit", "", "change the last prompt in $EDITOR and answer it", actions.edit_last),
    Command(
        "save",
        "[name]",
        "keep the chat under a name",
        keeping.save,
        detail="Chats are also saved after every answer; the name is where that goes on.",
    ),
    Command("load", "[name]", "go on with a saved chat", keeping.load, words=keeping.saved_chats),
    Command("export", "file.md", "write the chat as Markdown", keeping.export, needs=True),
    Command("copy", "", "the last answer to the clipboard", keeping.copy),
    Command("clear", "", "begin a new conversation with the same system prompt", keeping.clear),
    Command("exit", "", "leave", keeping.leave, aliases=("quit", "bye")),
)


def is_command(text: str) -> bool:
    """Whether a text is for us; `/etc/hosts` and `//` are not."""
    first = text.split(maxsplit=1)[:1]
    return bool(first and text.startswith("/") and WORD.fullmatch(first[0]))


def unescaped(text: str) -> str:
    """A text for the model, `//x` standing for `/x`."""
    return text[1:] if text.startswith("//") else text


def dispatch(room: Room, text: str) -> None:
    """Run a slash command; UsageError, with nothing sent, when it is not one or not used right."""
    word, *rest = text.split(maxsplit=1)
    command, prefix = find(word[1:])
    argument = (prefix + "".join(rest)).strip()
    if argument and not command.usage:
        raise UsageError(f"/{command.name} takes no argument.", hint=NOTHING_SENT)
    if not argument and command.needs:
        raise UsageError(f"/{command.name} needs {command.usage}.", hint=NOTHING_SENT)
    command.run(room, argument)


def find(word: str) -> tuple[Command, str]:
    """The command that a word names, whole or by a prefix that fits no other.

    A setting's name is short for `/set name`: then the second value is what to put before the
    argument.
    """
    names = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
    shortcuts = {which.name: f"{which.name} " for which in SETTINGS}
    if word in names:
        return names[word], ""
    if setting(word):
        return names["set"], shortcuts[word]
    fitting = sorted(name for name in (*names, *shortcuts) if name.startswith(word))
    if len({names.get(name, name) for name in fitting}) == 1:
        return find(fitting[0])
    if fitting:
        listed = ", ".join(f"/{name}" for name in fitting)
        raise UsageError(f"/{word} could be {listed}.", hint=NOTHING_SENT)
    close = difflib.get_close_matches(word, (*names, *shortcuts), n=1)
    meant = f" Did you mean /{close[0]}?" if close else " /help lists the commands."
    raise UsageError(f"unknown command /{word}.{meant}", hint=NOTHING_SENT)


def completions(room: Room, text: str) -> list[tuple[str, str]]:
    """What Tab offers for the last word of a text, each with its meaning."""
    if not text.startswith("/") or "\n" in text:
        return []
    word, space, _ = text.partition(" ")
    if not space:
        offers = [(f"/{command.name}", command.help) for command in COMMANDS]
        return offers + [(f"/{which.name}", which.help) for which in SETTINGS]
    try:
        command, shortcut = find(word[1:])
    except UsageError:
        return []
    if shortcut or text.count(" ") > 1:
        return []
    return [(name, "") for name in command.words(room)]
