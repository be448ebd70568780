"""What the slash commands do to a conversation. Each takes the room it is used in and its argument.

Knows the conversation, not how a command was typed.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_mlx.errors import UsageError

from . import transcript
from .answer import answer
from .compare import Comparison, answer_plainly, show_table, warm_up
from .dialogue import AGAIN, Dialogue, messages
from .interrupt import Interrupt
from .loading import add_drafter, fetch_pair, load_pair
from .options import ModelOptions
from .output import Output
from .prompt import KEYS, edit
from .stats_page import stats_page
from .transcript import Chat
from .tuning import SETTINGS, changed, setting, shown
from .view import JsonView


class Leave(Exception):
    """The user leaves the chat."""


@dataclass(slots=True)
class Room:
    """Where a command is used: the conversation, the screen, and what was loaded."""

    dialogue: Dialogue
    out: Output
    models: ModelOptions
    edit: Callable[[str], str] = edit

    def line(self, text: str, style: str = "") -> None:
        """One line for the user."""
        self.out.tell(text, style)

    def show_keys(self) -> None:
        """The keys and what they do."""
        width = max(len(keys) for keys, _ in KEYS) + 2
        for keys, does in KEYS:
            self.line(f"  {keys:{width}}{does}")


# What answers -------------------------------------------------------------------------------------


def known_targets(room: Room) -> list[str]:
    """The targets of the registry."""
    from dflash_mlx.registry import entries

    return [entry.target for entry in entries()]


def drafters(room: Room) -> list[str]:
    """What `/draft` takes."""
    return ["on", "off"]


def who(room: Room) -> str:
    """Which pair answers, and how."""
    pair, width = room.dialogue.pair, room.dialogue.block_size
    drafted = f"drafter {pair.draft_name} · block {width}" if width else "draft off"
    return f"{pair.target_name} · {drafted}"


def model(room: Room, name: str) -> None:
    """`/model`: the old pair leaves memory before the new one comes."""
    if not name:
        room.line(f"  {who(room)}")
        return
    wanted = replace(room.models, model=name, draft=None, no_draft=False)
    if name == "bundled":
        wanted = replace(wanted, model=None)
    fetch_pair(wanted, room.out)
    room.dialogue.release()
    try:
        pair, seconds = load_pair(wanted, room.out)
    except BaseException:
        pair, _ = load_pair(room.models, room.out)
        room.dialogue.use(pair)
        raise
    room.models = wanted
    room.dialogue.use(pair)
    room.line(f"  {who(room)} · loaded in {seconds:.1f} s", "dim")


def draft(room: Room, word: str) -> None:
    """`/draft`: another drafter for the loaded target, or none."""
    dialogue = room.dialogue
    if word in ("on", "off") and (word == "on") == dialogue.drafting:
        room.line(f"  drafting is {word} already")
        return
    if word == "off":
        dialogue.use(dialogue.pair, drafting=False)
    elif word:
        if word != "on" or dialogue.pair.drafter is None:
            wanted = replace(room.models, draft=None if word == "on" else word, no_draft=False)
            pair = add_drafter(dialogue.pair, wanted, room.out)
            room.models = wanted
        else:
            pair = dialogue.pair
        dialogue.use(pair)
    room.line(f"  {who(room)}")


# How it answers -----------------------------------------------------------------------------------


def system(room: Room, text: str) -> None:
    """`/system`: turns stay; the next answer reads them with the new system prompt."""
    chat = room.dialogue.chat
    if not text:
        room.line(f"  {chat.system or 'no system prompt'}")
        return
    room.dialogue.change(replace(chat, system=None if text == "off" else text))
    room.line("  system prompt removed" if text == "off" else "  system prompt set", "dim")


def change_setting(room: Room, text: str) -> None:
    """`/set`: all settings, one, or a change of one."""
    tuning = room.dialogue.tuning
    name, _, value = text.partition(" ")
    if not name:
        width = max(len(which.name) for which in SETTINGS) + 2
        for which in SETTINGS:
            room.line(f"  {which.name:{width}}{shown(tuning, which):>10}  {which.help}")
        return
    which = setting(name)
    if which is None:
        names = ", ".join(which.name for which in SETTINGS)
        raise UsageError(f"there is no setting '{name}'.", hint=f"settings: {names}")
    if value.strip():
        room.dialogue.tuning = tuning = changed(tuning, which, value.strip())
    room.line(f"  {which.name} {shown(tuning, which)}", "dim" if value else "")


def think(room: Room, word: str) -> None:
    """`/think`: whether the target thinks, and whether that stays on the screen."""
    dialogue = room.dialogue
    if word in ("on", "off"):
        if not dialogue.pair.target.can_think:
            raise UsageError(
                "this target's chat template knows no thinking.", hint="/model changes the target"
            )
        dialogue.tuning = replace(dialogue.tuning, think=word == "on")
        room.line(f"  thinking {word}", "dim")
    elif word in ("show", "hide"):
        dialogue.looks = replace(dialogue.looks, show_thinking=word == "show")
        thinking = dialogue.chat.turns[-1].thinking if dialogue.chat.turns else ""
        if word == "show" and thinking:
            room.line(thinking, "dim")
        room.line(f"  thinking is {'shown' if word == 'show' else 'folded'}", "dim")
    elif word:
        raise UsageError(f"/think cannot be '{word}'.", hint="use on, off, show or hide")
    else:
        state = {True: "on", False: "off", None: "as the template has it"}[dialogue.tuning.think]
        seen = "shown" if dialogue.looks.show_thinking else "folded"
        room.line(f"  thinking {state}, {seen}")


# Numbers ------------------------------------------------------------------------------------------


def stats(room: Room, _: str) -> None:
    """`/stats`."""
    for line in stats_page(room.dialogue, room.out):
        room.line(line)


def both(room: Room, _: str) -> None:
    """`/compare`: the last prompt twice more, by DFlash and by the target alone."""
    dialogue = room.dialogue
    if not dialogue.drafting:
        raise UsageError("there is nothing to compare: draft is off.", hint="/draft on")
    turn, shorter = dialogue.without_last()
    prompt = messages(shorter, turn.prompt)
    options = dialogue.options()
    with Interrupt(AGAIN) as interrupt, suppress(KeyboardInterrupt):
        warm_up(dialogue.pair, prompt, options, room.out, interrupt)
        view = JsonView(room.out, label="dflash · ")
        ours = answer(dialogue.session, prompt, view, interrupt, **options)
        interrupt.check()
        plain = answer_plainly(dialogue.pair, prompt, room.out, interrupt, **options)
        interrupt.check()
        sampled = not dialogue.tuning.sampling.greedy
        table = Comparison(ours, plain, sampled=sampled)
        width = dialogue.block_size or 0
        show_table(table, dialogue.tuning.sampling, width, room.out)
    dialogue.stopped_at = interrupt.at
    if interrupt.twice:
        raise KeyboardInterrupt
    if interrupt.asked:
        room.out.erase()
        room.line("  stopped: nothing to compare", "dim")


# Turns --------------------------------------------------------------------------------------------


def retry(room: Room, _: str) -> None:
    """`/retry`."""
    turn, said = room.dialogue.again()
    if (
        said.tokens
        and room.dialogue.tuning.sampling.greedy
        and said.text.strip("\n") == turn.answer
    ):
        room.line("  the same again: temperature is 0. /temp 0.7 makes answers vary", "dim")


def undo(room: Room, _: str) -> None:
    """`/undo`."""
    turn, shorter = room.dialogue.without_last()
    room.dialogue.change(shorter)
    room.line(f"  forgotten: {first_words(turn.prompt)}", "dim")


def edit_last(room: Room, _: str) -> None:
    """`/edit`: the old turn stays when the text comes back empty or as it was."""
    turn, _shorter = room.dialogue.without_last()
    text = room.edit(turn.prompt).strip()
    if not text or text == turn.prompt.strip():
        room.line("  nothing was changed", "dim")
        return
    room.line(f"  › {text}", "dim")
    room.dialogue.again(text)


def first_words(text: str, most: int = 50) -> str:
    """The start of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


# On disk ------------------------------------------------------------------------------------------


def saved_chats(room: Room) -> list[str]:
    """The names that `/load` knows."""
    return transcript.chat_names()


def save(room: Room, name: str) -> None:
    """`/save`."""
    room.line(f"  saved in {room.dialogue.save(name or None)}", "dim")


def load(room: Room, name: str) -> None:
    """`/load`: the present conversation was saved after its last answer."""
    if not name:
        room.line(f"  saved chats: {transcript.listing(transcript.chat_names(), 20)}")
        return
    chat = room.dialogue.load(name)
    tell_loaded(room, name, chat)


def tell_loaded(room: Room, name: str, chat: Chat) -> None:
    """Say what a saved chat is, and when another target goes on with it."""
    turns = f"{len(chat.turns):,} turn{'' if len(chat.turns) == 1 else 's'}"
    room.line(f"  {name}: {turns}", "dim")
    if chat.turns:
        room.line(f"  last prompt: {first_words(chat.turns[-1].prompt)}", "dim")
    now = room.dialogue.pair.target_name
    if chat.model not in (None, now):
        room.line(f"  saved with {chat.model}; {now} goes on. /model {chat.model} changes that")


def export(room: Room, name: str) -> None:
    """`/export`."""
    if not room.dialogue.chat.turns:
        raise UsageError("nothing was said yet.", hint="type a prompt first")
    path = Path(name).expanduser()
    dialogue = room.dialogue
    transcript.export(path, replace(dialogue.chat, model=dialogue.pair.target_name))
    room.line(f"  written to {path}", "dim")


def copy(room: Room, _: str) -> None:
    """`/copy`."""
    if not room.dialogue.chat.turns:
        raise UsageError("nothing was said yet.", hint="type a prompt first")
    from .clipboard import to_clipboard

    room.line(f"  copied {to_clipboard(room.dialogue.chat.turns[-1].answer)}", "dim")


def clear(room: Room, _: str) -> None:
    """`/clear`: the old conversation stays saved."""
    dialogue = room.dialogue
    old = dialogue.name
    dialogue.chat, dialogue.name = Chat(system=dialogue.chat.system), None
    room.line(f"  new conversation{f'; the old one is saved as {old}' if old else ''}", "dim")


def leave(room: Room, _: str) -> None:
    """`/exit`."""
    raise Leave
