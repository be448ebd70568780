"""The table of slash commands. Dispatch, `/help`, Tab completion and the README read it."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from dflash_mlx.errors import UsageError

from ..backend.local import local_backend
from ..prompt import complete_path
from ..terminal.line_editor import KEYS
from . import actions, attachments, compact, pages, transcript, turns
from .settings import SETTINGS, find_setting, setting_help, watch
from .state import ChatState

COMMAND_WORD = re.compile(r"/[a-z?][a-z-]*")
NOTHING_SENT_HINT = "nothing was sent; start with // to send a slash"


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command.

    usage: the argument for `/help`, in brackets if it may be left out; empty if there is none.
    words: the only arguments. arguments: completions of others. paths: the argument is a file.
    local: needs a model on this machine. everyday: in the list of `/help`; `/help all` has the
    others, too.
    """

    name: str
    usage: str
    help: str
    run: Callable[[ChatState, str], None]
    aliases: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    arguments: Callable[[ChatState], list[str]] | None = None
    paths: bool = False
    local: bool = False
    everyday: bool = False
    detail: str = ""

    @property
    def syntax(self) -> str:
        return f"/{self.name} {self.usage}".rstrip()


def show_help(state: ChatState, topic: str) -> None:
    if topic == "keys":
        width = max(len(keys) for keys, _ in KEYS) + 2
        for keys, effect in KEYS:
            state.print_line(f"  {keys:{width}}{effect}")
        return
    if topic in ("", "all"):
        shown = [command for command in COMMANDS if topic or command.everyday]
        width = max(len(command.syntax) for command in shown) + 2
        for command in shown:
            state.print_line(f"  {command.syntax:{width}}{command.help}")
        more = "// sends a text that begins with /" if topic else "/help all lists all commands"
        state.print_line(f"  {more}; /help keys lists the keys", "dim")
        if note := state.dialogue.info.note:
            state.print_line(f"  {note}", "dim")
        return
    command, _ = find_command(topic.removeprefix("/"), hint="/help all lists all of them")
    aliases = "".join(f", /{alias}" for alias in command.aliases)
    state.print_line(f"  {command.syntax}{aliases}", "bold")
    state.print_line(f"  {command.help}")
    if command.detail:
        state.print_line(f"  {command.detail}")
    if command.name == "set":
        width = max(len(setting.setting) for setting in SETTINGS) + 2
        for setting in SETTINGS:
            state.print_line(f"  {setting.setting:{width}}{setting_help(setting)}")


COMMANDS = (
    Command(
        "help",
        "[command|all|keys]",
        "list the commands or the keys, or explain one command",
        show_help,
        aliases=("?",),
        arguments=lambda state: [*(command.name for command in COMMANDS), "all", "keys"],
    ),
    Command(
        "model",
        "[id]",
        "show the model, or switch to another one",
        actions.change_model,
        arguments=actions.known_targets,
        everyday=True,
        detail="A short name, a Hub id or a folder; its drafter is found. The chat continues.",
    ),
    Command(
        "draft",
        "[on|off|id]",
        "show or change the drafter, or switch drafting off",
        actions.change_drafter,
        arguments=actions.drafter_arguments,
        local=True,
        detail="off decodes without drafts: the same words, usually slower.",
    ),
    Command(
        "system",
        "[text|edit|off]",
        "show, set, edit or remove the system prompt",
        actions.change_system_prompt,
        arguments=lambda state: ["edit", "off"],
        everyday=True,
        detail="edit opens $EDITOR. The conversation stays, and is read again with the new prompt.",
    ),
    Command(
        "set",
        "[name [value]]",
        "show or change settings: /set temp 0.7, /temp 0.7",
        actions.change_setting,
        arguments=actions.setting_names,
        everyday=True,
        detail="/set recommended samples as the model's authors recommend.",
    ),
    Command(
        "preset",
        "[name]",
        "list the presets of the config file, or use one",
        actions.use_preset,
        arguments=actions.preset_names,
        detail="Settings that the preset does not name stay; its model is loaded as by /model.",
    ),
    Command(
        "think",
        "[word]",
        "switch thinking on or off, set its effort, show or hide it",
        actions.change_thinking,
        arguments=lambda state: ["on", "off", "low", "medium", "high", "show", "hide"],
        detail="on and off, or low, medium and high, if the model knows them; show prints the "
        "last thinking, too.",
    ),
    Command(
        "stats",
        "",
        "show the numbers of the last answer and the chat",
        actions.show_stats,
        everyday=True,
    ),
    Command(
        "tokens",
        "[all]",
        "show what fills the context, and what is left",
        pages.show_tokens,
        words=("all",),
        detail="System prompt, tools, summary and turns, in tokens. A server's are estimated.",
    ),
    Command(
        "compare",
        "",
        "the last prompt with and without drafts",
        actions.compare,
        everyday=True,
        local=True,
    ),
    Command(
        "watch",
        "[on|off]",
        "colour the tokens of an answer by their passes",
        watch,
        words=("on", "off"),
        everyday=True,
        local=True,
        detail="Rejected drafts are shown for a moment. Without colours a mark is between passes.",
    ),
    Command(
        "read",
        "[file...|off]",
        "attach files to the next prompt, as @file does",
        attachments.read_files,
        everyday=True,
        paths=True,
        detail="Folders and patterns such as src/*.py work, too; put names with spaces in quotes.",
    ),
    Command(
        "mcp",
        "[on|off|ask]",
        "list the MCP servers and their tools; switch tools on or off",
        actions.manage_servers,
        words=("on", "off", "ask"),
        detail="on starts servers that do not run; ask forgets which calls were allowed.",
    ),
    Command(
        "retry",
        "[answers]",
        "answer the last prompt again, or several times",
        turns.retry,
        arguments=lambda state: ["2", "3"],
        everyday=True,
        detail="/retry 3 shows three answers side by side, and asks which one stays. They share "
        "passes, and need a temperature above 0. /watch does not colour them.",
    ),
    Command(
        "continue",
        "",
        "go on from the end of the last answer",
        turns.go_on,
        detail="For an answer that was stopped or cut. The new text becomes a part of it.",
    ),
    Command(
        "undo",
        "",
        "forget the last prompt and its answer",
        turns.undo,
        everyday=True,
        detail="Right after /compact it forgets the summary instead.",
    ),
    Command(
        "edit",
        "",
        "change the last prompt in $EDITOR and answer it",
        turns.edit_last,
        everyday=True,
    ),
    Command(
        "rewind",
        "[turn]",
        "go back to the end of a turn, chosen from a list",
        turns.rewind,
        arguments=lambda state: [str(n) for n, _ in enumerate(state.dialogue.chat.turns)],
        detail="The chat goes on under a new name; with all its turns it stays saved under the "
        "old one.",
    ),
    Command(
        "compact",
        "[turns|show|undo]",
        "send a summary in place of all but the last turns",
        compact.compact,
        arguments=lambda state: ["show", "undo"],
        everyday=True,
        detail="The model writes the summary of all but the last 2 turns, or of all but as many "
        "as you say. The turns stay in the chat: /compact undo, or /undo right after it, sends "
        "them again. /compact show prints the summary. Without it a full context leaves out the "
        "oldest turns.",
    ),
    Command(
        "save",
        "[name]",
        "save the chat under a name",
        actions.save_chat,
        everyday=True,
        detail="Chats are saved after every answer; this names the chat.",
    ),
    Command(
        "load",
        "[name]",
        "continue a saved chat",
        actions.load_chat,
        everyday=True,
        arguments=lambda state: transcript.chat_names(),
    ),
    Command(
        "fork",
        "[name]",
        "continue in a copy of the chat; this one stays as it is",
        actions.fork_chat,
    ),
    Command("history", "[turns]", "show the conversation, or its last turns", actions.show_history),
    Command(
        "export",
        "file.md",
        "write the chat as Markdown",
        actions.export_chat,
        paths=True,
    ),
    Command(
        "copy",
        "[code [n]]",
        "copy the last answer, or a block of its code, to the clipboard",
        actions.copy_answer,
        arguments=lambda state: ["code"],
        detail="/copy code is the last block, /copy code 1 the first.",
    ),
    Command(
        "clear",
        "",
        "start a new chat with the same system prompt",
        actions.clear_chat,
        everyday=True,
    ),
    Command("exit", "", "leave the chat", actions.leave_chat, ("quit", "bye"), everyday=True),
)


def is_command(text: str) -> bool:
    """Whether a text is a slash command; `/etc/hosts` and `//` are not."""
    if not text.startswith("/"):
        return False
    return COMMAND_WORD.fullmatch(text.split(maxsplit=1)[0]) is not None


def unescape(text: str) -> str:
    """The text for the model: `//x` becomes `/x`."""
    return text[1:] if text.startswith("//") else text


def dispatch(state: ChatState, text: str) -> None:
    """Run a slash command; UsageError when it is unknown or used wrongly."""
    word, *rest = text.split(maxsplit=1)
    command, prefix = find_command(word[1:])
    argument = (prefix + "".join(rest)).strip()
    if argument and not command.usage:
        raise UsageError(f"/{command.name} takes no argument.", hint=NOTHING_SENT_HINT)
    if not argument and command.usage and not command.usage.startswith("["):
        raise UsageError(f"/{command.name} needs {command.usage}.", hint=NOTHING_SENT_HINT)
    if argument and command.words and argument not in command.words:
        hint = f"use {', '.join(command.words)}, or nothing"
        raise UsageError(f"/{command.name} cannot be '{argument}'.", hint=hint)
    if command.local:
        local_backend(state.dialogue.backend, f"/{command.name}")
    command.run(state, argument)


def find_command(word: str, hint: str = NOTHING_SENT_HINT) -> tuple[Command, str]:
    """The command that a word names, by its full name or by a unique prefix.

    A setting's name is short for `/set name`: then the second value is a prefix for the argument.
    """
    names = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
    shortcuts = {setting.setting: f"{setting.setting} " for setting in SETTINGS}
    if word in names:
        return names[word], ""
    if find_setting(word):
        return names["set"], shortcuts[word]
    matches = sorted(name for name in (*names, *shortcuts) if name.startswith(word))
    if len({names.get(name, name) for name in matches}) == 1:
        return find_command(matches[0])
    if matches:
        candidates = ", ".join(f"/{name}" for name in matches)
        raise UsageError(f"/{word} could be {candidates}.", hint=hint)
    similar = difflib.get_close_matches(word, (*names, *shortcuts), n=1)
    advice = f" Did you mean /{similar[0]}?" if similar else " /help lists the commands."
    raise UsageError(f"unknown command /{word}.{advice}", hint=hint)


def complete(state: ChatState, text: str) -> list[tuple[str, str]]:
    last = re.split(r"\s", text)[-1]
    if last.startswith("@"):
        return [(f"@{path}", "") for path in complete_path(last[1:])]
    if not text.startswith("/") or "\n" in text:
        return []
    word, space, _ = text.partition(" ")
    if not space:
        completions = [(f"/{command.name}", command.help) for command in COMMANDS]
        settings = [(f"/{setting.setting}", setting_help(setting)) for setting in SETTINGS]
        return completions + settings
    try:
        command, shortcut = find_command(word[1:])
    except UsageError:
        return []
    if command.paths:
        return [(path, "") for path in complete_path(last)]
    if shortcut or text.count(" ") > 1:
        return []
    names = command.words if command.arguments is None else command.arguments(state)
    return [(name, "") for name in names]
