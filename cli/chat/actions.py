"""What the slash commands do to a conversation. Each takes the room it is used in and its argument.

Knows the conversation, not how a command was typed.
"""

import time
from contextlib import suppress
from dataclasses import replace

from dflash_mlx.errors import UsageError
from dflash_mlx.types import EFFORTS

from ..answer import answer
from ..compare import Comparison, answer_plainly, show_table, warm_up
from ..kernel_notes import kernel_warnings
from ..loading import add_drafter, fetch_pair, load_fetched
from ..terminal.interrupt import Interrupt, Leave
from ..thinking import fitting, state_of, told_to_think
from ..tuning import SETTINGS, changed, setting, shown
from ..view import JsonView
from .dialogue import AGAIN, messages
from .room import Room, first_words
from .stats_page import stats_page

# What answers -------------------------------------------------------------------------------------


def known_targets(room: Room) -> list[str]:
    """The targets of the registry."""
    from dflash_mlx.hub.registry import entries

    return [entry.target for entry in entries()]


def drafters(room: Room) -> list[str]:
    """What `/draft` takes."""
    return ["on", "off"]


def who(room: Room) -> str:
    """Which pair answers, and how."""
    pair, shape = room.dialogue.pair, room.dialogue.shape
    drafted = f"drafter {pair.draft_name} · {shape}" if shape else "draft off"
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
    began = time.perf_counter()
    room.dialogue.release()
    try:
        pair = load_fetched(wanted, room.out)
    except BaseException:
        try:
            pair = load_fetched(room.models, room.out)
        except KeyboardInterrupt:
            raise Leave(130) from None  # nothing is left that could answer
        room.dialogue.use(pair)
        raise
    room.models = wanted
    room.dialogue.use(pair)
    room.dialogue.tuning = fitting(room.dialogue.tuning, pair.target.template, room.out)
    room.line(f"  {who(room)} · loaded in {time.perf_counter() - began:.1f} s", "dim")
    warn_of_kernels(room)


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
    if word not in ("", "off"):
        warn_of_kernels(room)


def warn_of_kernels(room: Room) -> None:
    """Say which kernels of the pair gave wrong results."""
    for line in kernel_warnings(room.dialogue.pair.target.kernels):
        room.line(f"  {line}", "warning")


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
        room.dialogue.session.mode = room.dialogue.mode
    room.line(f"  {which.name} {shown(tuning, which)}", "dim" if value else "")


def think(room: Room, word: str) -> None:
    """`/think`: whether and how hard the target thinks, and whether that stays on the screen."""
    dialogue = room.dialogue
    if word in ("on", "off") or word in EFFORTS:
        dialogue.tuning = told_to_think(dialogue.pair.target.template, dialogue.tuning, word)
        room.line(f"  thinking {state_of(dialogue.tuning)}", "dim")
    elif word in ("show", "hide"):
        dialogue.looks = replace(dialogue.looks, show_thinking=word == "show")
        thinking = dialogue.chat.turns[-1].thinking if dialogue.chat.turns else ""
        if word == "show" and thinking:
            room.line(thinking, "dim")
        room.line(f"  thinking is {'shown' if word == 'show' else 'folded'}", "dim")
    elif word:
        raise UsageError(
            f"/think cannot be '{word}'.",
            hint="use on, off, an effort (low, medium, high), show or hide",
        )
    else:
        seen = "shown" if dialogue.looks.show_thinking else "folded"
        room.line(f"  thinking {state_of(dialogue.tuning)}, {seen}")


# Numbers ------------------------------------------------------------------------------------------


def stats(room: Room, _: str) -> None:
    """`/stats`."""
    for line in stats_page(room.dialogue, room.out):
        room.line(line)


def both(room: Room, _: str) -> None:
    """`/compare`: the last prompt twice more, by DFlash and by the target alone."""
    from dflash_mlx import Session

    dialogue = room.dialogue
    if not dialogue.drafting:
        raise UsageError("there is nothing to compare: draft is off.", hint="/draft on")
    turn, shorter = dialogue.without_last()
    prompt = messages(shorter, turn.prompt)
    options = dialogue.options()
    with Interrupt(AGAIN) as interrupt, suppress(KeyboardInterrupt):
        warm = Session(dialogue.pair, mode=dialogue.mode)
        warm_up(warm, prompt, options, room.out, interrupt)
        view = JsonView(room.out, label=f"{dialogue.mode} · ")
        ours = answer(dialogue.session, prompt, view, interrupt, **options)
        interrupt.check()
        plain = answer_plainly(dialogue.pair, prompt, room.out, interrupt, **options)
        interrupt.check()
        sampled = not dialogue.tuning.sampling.greedy
        table = Comparison(ours, plain, sampled=sampled)
        show_table(table, dialogue.tuning.sampling, dialogue.mode, dialogue.shape, room.out)
    dialogue.stopped_at = interrupt.at
    if interrupt.twice:
        raise Leave(130)
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
