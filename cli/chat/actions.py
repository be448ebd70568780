"""The slash commands that change or inspect the conversation.

Each takes the chat state and its argument. Knows the conversation, not how a command was typed;
`file_actions` has the commands about files.
"""

import time
from contextlib import suppress
from dataclasses import replace

from dflash_mlx.errors import UsageError
from dflash_mlx.types import EFFORTS

from ..answer import answer_prompt
from ..answer_view import JsonView
from ..chat_settings import SETTINGS, find_setting, format_value, with_value
from ..compare import Comparison, baseline_answer, show_comparison, warm_up
from ..kernel_notes import kernel_warnings
from ..loading import add_drafter, fetch_pair, has_another_drafter, load_downloaded
from ..model_names import with_known_target
from ..modes import check_block, in_bits
from ..recommended import RECOMMENDED
from ..remote import LOCAL_SETTINGS
from ..terminal.interrupt import Interrupt, LeaveChat
from ..thinking import describe_thinking, drop_unsupported, with_thinking
from . import recommendation
from .dialogue import LEAVE_WINDOW
from .remote_model import described
from .state import ChatState, shorten
from .stats_page import stats_page
from .values import change_defaults, defaults_of

# Pair ---------------------------------------------------------------------------------------------


def known_targets(state: ChatState) -> list[str]:
    """The targets in the registry."""
    from dflash_mlx.hub.registry import entries

    return [entry.target for entry in entries()]


def drafter_arguments(state: ChatState) -> list[str]:
    """Completions of `/draft`."""
    return ["on", "off", "lookup"]


def describe_pair(state: ChatState) -> str:
    """Target, drafter and mode on one line."""
    if state.dialogue.server is not None:
        return described(state.dialogue.server)
    pair, drafting = state.dialogue.pair, state.dialogue.drafting_summary
    drafter = f"drafter {pair.draft_label}{in_bits(pair)} · {drafting}" if drafting else "draft off"
    return f"{pair.target_name} · {drafter}"


def change_model(state: ChatState, model_id: str) -> None:
    """`/model`: frees the old pair before it loads the new one."""
    if not model_id:
        state.print_line(f"  {describe_pair(state)}")
        return
    if (server := state.dialogue.server) is not None:
        raise UsageError(
            f"this chat stays with {server.model}, which a server runs.",
            hint=f"leave, and go on with another: dflash chat -c -m {model_id}",
        )
    model_options = replace(state.model_options, model=model_id, draft=None, no_draft=False)
    model_options = with_known_target(model_options, state.out)
    defaults = defaults_of(state, model_options.model)
    fetch_pair(model_options, state.out)
    started_at = time.perf_counter()
    state.dialogue.release_pair()
    try:
        pair = load_downloaded(model_options, state.out, state.cache_options)
    except BaseException:
        try:
            pair = load_downloaded(state.model_options, state.out, state.cache_options)
        except KeyboardInterrupt:
            raise LeaveChat(130) from None  # no pair is loaded any more
        state.dialogue.set_pair(pair)
        raise
    state.model_options = model_options
    state.dialogue.set_pair(pair)
    state.dialogue.settings = drop_unsupported(
        state.dialogue.settings, pair.target.template, state.out
    )
    state.print_line(
        f"  {describe_pair(state)} · loaded in {time.perf_counter() - started_at:.1f} s", "dim"
    )
    change_defaults(state, defaults)
    if line := recommendation.offer(state.dialogue):
        state.print_line(f"  {line}", "dim")
    drop_long_block(state)
    warn_of_kernels(state)


def change_drafter(state: ChatState, argument: str) -> None:
    """`/draft`: another drafter for the loaded target, or none."""
    dialogue = state.dialogue
    goes_back = argument == "on" and dialogue.drafting and has_another_drafter(dialogue.pair)
    if argument in ("on", "off") and (argument == "on") == dialogue.drafting and not goes_back:
        state.print_line(f"  drafting is {argument} already")
        return
    if argument == "off":
        dialogue.set_pair(dialogue.pair, drafting=False)
    elif argument:
        if argument != "on" or goes_back or not dialogue.pair.drafts:
            model_options = replace(
                state.model_options,
                draft=None if argument == "on" else argument,
                no_draft=False,
            )
            pair = add_drafter(dialogue.pair, model_options, state.out)
            state.model_options = model_options
        else:
            pair = dialogue.pair
        dialogue.set_pair(pair)
    state.print_line(f"  {describe_pair(state)}")
    if argument not in ("", "off"):
        drop_long_block(state)
        warn_of_kernels(state)


def drop_long_block(state: ChatState) -> None:
    """Go back to the drafter's own block where another drafter's was longer."""
    dialogue = state.dialogue
    try:
        check_block(dialogue.pair, dialogue.settings.block_size)
    except UsageError:
        dialogue.settings = replace(dialogue.settings, block_size=None)
        state.print_line("  this drafter's blocks are shorter: block is auto now", "warning")


def warn_of_kernels(state: ChatState) -> None:
    """Print the kernels of the pair that gave wrong results."""
    for line in kernel_warnings(state.dialogue.pair.target.kernels):
        state.print_line(f"  {line}", "warning")


# Settings -----------------------------------------------------------------------------------------


def change_system_prompt(state: ChatState, text: str) -> None:
    """`/system`: keeps the turns; the next answer uses the new system prompt."""
    chat = state.dialogue.chat
    if not text:
        state.print_line(f"  {chat.system or 'no system prompt'}")
        return
    state.dialogue.replace_chat(replace(chat, system=None if text == "off" else text))
    state.print_line("  system prompt removed" if text == "off" else "  system prompt set", "dim")


def change_setting(state: ChatState, text: str) -> None:
    """`/set`: shows all settings, shows one, or changes one."""
    settings = state.dialogue.settings
    name, _, value = text.partition(" ")
    if not name:
        remote = state.dialogue.server is not None
        shown = [spec for spec in SETTINGS if not (remote and spec.field in LOCAL_SETTINGS)]
        width = max(len(spec.name) for spec in shown) + 2
        for spec in shown:
            state.print_line(
                f"  {spec.name:{width}}{format_value(settings, spec):>10}  {spec.help}"
            )
        if line := recommendation.listed(state):
            state.print_line(line)
        return
    if text == RECOMMENDED:
        recommendation.take(state)
        return
    spec = find_setting(name)
    if spec is None:
        names = ", ".join([*(spec.name for spec in SETTINGS), RECOMMENDED])
        raise UsageError(f"there is no setting '{name}'.", hint=f"settings: {names}")
    if value.strip():
        settings = with_value(settings, spec, value.strip())
        state.dialogue.model.check(settings)
        state.dialogue.settings = settings
        state.dialogue.use_mode()
    state.print_line(f"  {spec.name} {format_value(settings, spec)}", "dim" if value else "")


def change_thinking(state: ChatState, argument: str) -> None:
    """`/think`: sets thinking and effort, and whether thinking is displayed."""
    dialogue = state.dialogue
    if argument in ("on", "off") or argument in EFFORTS:
        dialogue.settings = with_thinking(dialogue.model.template, dialogue.settings, argument)
        state.print_line(f"  thinking {describe_thinking(dialogue.settings)}", "dim")
    elif argument in ("show", "hide"):
        dialogue.display = replace(dialogue.display, show_thinking=argument == "show")
        thinking = dialogue.chat.turns[-1].thinking if dialogue.chat.turns else ""
        if argument == "show" and thinking:
            state.print_line(thinking, "dim")
        state.print_line(f"  thinking is {'shown' if argument == 'show' else 'folded'}", "dim")
    elif argument:
        raise UsageError(
            f"/think cannot be '{argument}'.",
            hint="use on, off, an effort (low, medium, high), show or hide",
        )
    else:
        visibility = "shown" if dialogue.display.show_thinking else "folded"
        state.print_line(f"  thinking {describe_thinking(dialogue.settings)}, {visibility}")


# Numbers ------------------------------------------------------------------------------------------


def show_stats(state: ChatState, _: str) -> None:
    """`/stats`."""
    for line in stats_page(state.dialogue, state.out):
        state.print_line(line)


def compare(state: ChatState, _: str) -> None:
    """`/compare`: answers the last prompt again with DFlash and with plain decoding."""
    from dflash_mlx import Session

    dialogue = state.dialogue
    if not dialogue.drafting:
        raise UsageError("there is nothing to compare: draft is off.", hint="/draft on")
    turn, earlier = dialogue.split_last_turn()
    prompt = dialogue.messages(earlier, turn.prompt)
    options = dialogue.options()
    with Interrupt(LEAVE_WINDOW) as interrupt, suppress(KeyboardInterrupt):
        warm_session = Session(dialogue.pair, mode=dialogue.mode, shares=False)
        warm_up(warm_session, prompt, options, state.out, interrupt)
        view = JsonView(state.out, label=f"{dialogue.mode} · ")
        dflash = answer_prompt(dialogue.local.session, prompt, view, interrupt, **options)
        interrupt.check()
        baseline = baseline_answer(dialogue.pair, prompt, state.out, interrupt, **options)
        interrupt.check()
        sampled = not dialogue.settings.sampling.greedy
        comparison = Comparison(dflash, baseline, sampled=sampled)
        show_comparison(
            comparison,
            dialogue.settings.sampling,
            dialogue.mode,
            dialogue.drafting_summary,
            state.out,
        )
    dialogue.interrupted_at = interrupt.last_at
    if interrupt.requested_twice:
        raise LeaveChat(130)
    if interrupt.requested:
        state.out.clear_status()
        state.print_line("  stopped: nothing to compare", "dim")


# Turns --------------------------------------------------------------------------------------------


def retry(state: ChatState, _: str) -> None:
    """`/retry`."""
    turn, answer = state.dialogue.answer_again()
    if (
        answer.said
        and state.dialogue.settings.sampling.greedy
        and answer.text.strip("\n") == turn.answer
    ):
        state.print_line("  the same again: temperature is 0. /temp 0.7 makes answers vary", "dim")


def undo(state: ChatState, _: str) -> None:
    """`/undo`."""
    turn, earlier = state.dialogue.split_last_turn()
    state.dialogue.replace_chat(earlier)
    state.print_line(f"  forgotten: {shorten(turn.prompt)}", "dim")


def edit_last(state: ChatState, _: str) -> None:
    """`/edit`: keeps the old turn when the text comes back empty or unchanged."""
    turn, _earlier = state.dialogue.split_last_turn()
    with state.terminal_for_others():
        text = state.edit(turn.prompt).strip()
    if not text or text == turn.prompt.strip():
        state.print_line("  nothing was changed", "dim")
        return
    state.print_line(f"  › {text}", "dim")
    state.dialogue.answer_again(text)
