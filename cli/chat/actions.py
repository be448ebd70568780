"""The slash commands. Each takes the chat state and its argument.

Functions named after nouns complete arguments with Tab.
"""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dflash_mlx.address import is_address
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import EFFORTS

from ..answer import AnswerView, answer_prompt
from ..backend.local import check_block, local_backend
from ..config_file import config_path
from ..loading import (
    add_drafter,
    fetch_pair,
    find_pair,
    has_another_drafter,
    known_target,
    load_downloaded,
    with_known_target,
)
from ..presets import KEYS
from ..report import Comparison, baseline_answer, comparable_options, show_comparison, warm_up
from ..resolve import RECOMMENDED, drop_unknown_thinking, no_recommendation
from ..sources import ValueSource
from ..terminal.line_editor import copy_to_clipboard
from ..terminal.markdown import make_parser
from ..terminal.output import format_count
from ..terminal.signals import LeaveChat
from . import transcript
from .compact import first_turns_in_words
from .pages import show_servers, show_turns, stats_page
from .settings import (
    SETTINGS,
    apply_values,
    change_defaults,
    chat_sampling_note,
    chat_values,
    defaults_of,
    describe_thinking,
    find_setting,
    format_value,
    setting_help,
    use_recommended,
    with_value,
)
from .state import ChatState, screen_rows, shorten
from .transcript import Chat

# Pair ---------------------------------------------------------------------------------------------


def known_targets(state: ChatState) -> list[str]:
    from dflash_mlx.hub.local import local_models
    from dflash_mlx.hub.registry import entries

    here = (model.name for model in local_models(state.options.model.folders) if not model.lacks)
    return list(dict.fromkeys([*here, *(entry.target for entry in entries())]))


def drafter_arguments(state: ChatState) -> list[str]:
    from dflash_mlx.hub.registry import pairs_of

    pairs = pairs_of(state.dialogue.info.name)
    known = [repo for entry in pairs if entry.supported for repo in entry.repos[1:]]
    return ["on", "off", "lookup", "mtp", *known]


def describe_pair(state: ChatState) -> str:
    return state.dialogue.info.describe(state.dialogue.settings)


def change_model(state: ChatState, model_id: str) -> None:
    """`/model`: show the target, or load another one. The old pair is freed first."""
    if not model_id:
        state.print_line(f"  {describe_pair(state)}")
        return
    info = state.dialogue.info
    if not info.local:
        raise UsageError(
            f"this chat stays with {info.heading}, which a server runs.",
            hint=f"leave, and continue with another model: dflash chat -c -m {model_id}",
        )
    before = state.options.model
    cache = state.options.cache
    model_options = replace(before, model=model_id, draft=None, no_draft=False)
    model_options = with_known_target(model_options, state.out)
    adapter = state.tables.of_model(model_options.model).get("adapter")
    model_options = replace(model_options, adapter=adapter)
    defaults = defaults_of(state, model_options.model)
    resolved = fetch_pair(model_options, state.out, cache)
    started_at = time.perf_counter()
    local_backend(state.dialogue.backend).release()
    try:
        pair = load_downloaded(resolved, state.out)
    except BaseException:
        try:
            pair = load_downloaded(find_pair(before, state.out, cache), state.out)
        except KeyboardInterrupt:
            raise LeaveChat(130) from None  # no pair is loaded any more
        state.dialogue.set_pair(pair)
        raise
    state.options = replace(state.options, model=model_options)
    state.dialogue.set_pair(pair)
    state.dialogue.settings = drop_unknown_thinking(
        state.dialogue.settings, state.dialogue.info.thinking, state.out
    )
    state.print_line(
        f"  {describe_pair(state)} · loaded in {time.perf_counter() - started_at:.1f} s", "dim"
    )
    change_defaults(state, defaults)
    if line := chat_sampling_note(state.dialogue):
        state.print_line(f"  {line}", "dim")
    fit_new_pair(state)


def change_drafter(state: ChatState, argument: str) -> None:
    dialogue = state.dialogue
    drafting = dialogue.info.drafting
    back_to_known = argument == "on" and drafting and has_another_drafter(dialogue.pair)
    if argument in ("on", "off") and (argument == "on") == drafting and not back_to_known:
        state.print_line(f"  drafting is {argument} already")
        return
    if argument == "off":
        dialogue.set_pair(dialogue.pair, drafting=False)
    elif argument:
        if argument != "on" or back_to_known or not dialogue.pair.drafts:
            draft = None if argument == "on" else argument
            model_options = replace(state.options.model, draft=draft, no_draft=False)
            pair = add_drafter(dialogue.pair, model_options, state.out)
            state.options = replace(state.options, model=model_options)
        else:
            pair = dialogue.pair
        dialogue.set_pair(pair)
    state.print_line(f"  {describe_pair(state)}")
    if argument not in ("", "off"):
        fit_new_pair(state)


def fit_new_pair(state: ChatState) -> None:
    """Drop a block size that the new drafter does not have, and show the pair's warnings."""
    dialogue = state.dialogue
    try:
        check_block(dialogue.pair, dialogue.settings.block_size)
    except UsageError:
        dialogue.settings = replace(dialogue.settings, block_size=None)
        state.print_line("  this drafter's blocks are shorter: block is auto now", "warning")
    for line in dialogue.info.warnings:
        state.print_line(f"  {line}", "warning")


# Settings -----------------------------------------------------------------------------------------


def change_system_prompt(state: ChatState, text: str) -> None:
    chat = state.dialogue.chat
    if not text:
        state.print_line(f"  {chat.system or 'no system prompt'}")
        return
    system = None if text == "off" else text
    if text == "edit":
        with state.terminal_for_others():
            system = state.edit(chat.system or "").strip() or None
        if system == chat.system:
            state.print_line("  nothing was changed", "dim")
            return
    state.dialogue.replace_chat(replace(chat, system=system))
    state.print_line("  system prompt removed" if system is None else "  system prompt set", "dim")


def change_setting(state: ChatState, text: str) -> None:
    settings = state.dialogue.settings
    name, _, value = text.partition(" ")
    if not name:
        show_settings(state)
        return
    if text == RECOMMENDED:
        use_recommended(state)
        return
    setting = find_setting(name)
    if setting is None:
        names = ", ".join(setting_names(state))
        raise UsageError(f"there is no setting '{name}'.", hint=f"settings: {names}")
    if value.strip():
        settings = with_value(settings, setting, value.strip())
        state.dialogue.backend.check(settings)
        state.dialogue.settings = settings
    line = f"  {setting.setting} {format_value(settings, setting)}"
    state.print_line(line, "dim" if value else "")


def setting_names(state: ChatState) -> list[str]:
    return [*(setting.setting for setting in SETTINGS), RECOMMENDED]


def show_settings(state: ChatState) -> None:
    local = state.dialogue.info.local
    settings = [setting for setting in SETTINGS if local or setting.scope != "local"]
    width = max(len(setting.setting) for setting in settings) + 2
    for setting in settings:
        value = format_value(state.dialogue.settings, setting)
        state.print_line(f"  {setting.setting:{width}}{value:>10}  {setting_help(setting)}")
    if line := chat_sampling_note(state.dialogue):
        state.print_line(f"  {line}")


def change_thinking(state: ChatState, argument: str) -> None:
    dialogue = state.dialogue
    if argument in ("on", "off") or argument in EFFORTS:
        is_switch = argument in ("on", "off")
        values = {"think": argument == "on"} if is_switch else {"reasoning_effort": argument}
        settings = chat_values(dialogue.settings, values)
        dialogue.info.thinking.check(settings.think, settings.reasoning_effort)
        dialogue.settings = settings
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
    for line in stats_page(state.dialogue, state.out):
        state.print_line(line)


def compare(state: ChatState, _: str) -> None:
    dialogue = state.dialogue
    if not dialogue.info.drafting:
        raise UsageError("there is nothing to compare: draft is off.", hint="/draft on")
    turn, earlier = dialogue.split_last_turn()
    prompt = dialogue.messages(earlier, turn.prompt)
    options = comparable_options(dialogue.options())
    with dialogue.interruptible() as interrupt, suppress(KeyboardInterrupt):
        warm_up(dialogue.pair, prompt, options, state.out, interrupt)
        view = AnswerView(state.out, stdout="nothing", label=f"{options.mode} · ")
        dflash = answer_prompt(dialogue.backend, prompt, options, view, interrupt)
        interrupt.check()
        baseline = baseline_answer(dialogue.pair, prompt, options, state.out, interrupt)
        interrupt.check()
        comparison = Comparison.of(dflash, baseline, options)
        show_comparison(comparison, dialogue.info, options, state.out)
    if interrupt.requested:
        state.out.clear_status()
        state.print_line("  stopped: nothing to compare", "dim")


# `/copy`


def copy_answer(state: ChatState, argument: str) -> None:
    answer = state.dialogue.require_turns()[-1].answer
    word, _, number = argument.partition(" ")
    if not argument:
        state.print_line(f"  copied {copy_to_clipboard(answer)}", "dim")
        return
    if word != "code" or (number and not number.strip().isdecimal()):
        raise UsageError(
            f"/copy cannot be '{argument}'.", hint="use /copy, /copy code, or /copy code 2"
        )
    tokens = make_parser(blocks_only=True).parse(answer)
    blocks = [token.content for token in tokens if token.type in ("fence", "code_block")]
    if not blocks:
        raise UsageError("the last answer has no code.", hint="/copy takes all of it")
    index = int(number) if number else len(blocks)
    if not 1 <= index <= len(blocks):
        raise UsageError(
            f"the last answer has no block {index} of code.", hint=f"give 1 to {len(blocks)}"
        )
    method = copy_to_clipboard(blocks[index - 1])
    state.print_line(f"  block {index} of {len(blocks)} copied {method}", "dim")


# Saved chats, exports, leaving

LOADED_TURNS = 2  # shown of a loaded chat


def save_chat(state: ChatState, name: str) -> None:
    state.print_line(f"  saved in {state.dialogue.save(name or None)}", "dim")


def load_chat(state: ChatState, name: str) -> None:
    """`/load`: list the saved chats, or continue one; the present chat is already saved."""
    if not name:
        state.print_line(
            f"  saved chats: {transcript.summarise_names(transcript.chat_names(), 20)}"
        )
        return
    chat = state.dialogue.load(name)
    show_loaded(state, name, chat)


def show_loaded(state: ChatState, name: str, chat: Chat) -> None:
    """Show the end of a loaded chat, and a note if it was saved with another target."""
    turns = format_count(len(chat.turns), "turn", "turns")
    state.print_line(f"  {name}: {turns}", "dim")
    target = state.dialogue.info.name
    if chat.model not in (None, target):
        remote = not state.dialogue.info.local or is_address(chat.model)
        hint = "" if remote else f". /model {chat.model} changes that"
        state.print_line(f"  saved with {chat.model}; {target} goes on{hint}")
    if chat.turns:
        state.print_line("")
        show_turns(state, chat.turns, max_turns=LOADED_TURNS, max_rows=screen_rows() // 2)


def fork_chat(state: ChatState, name: str) -> None:
    dialogue = state.dialogue
    dialogue.require_turns()
    previous = dialogue.name_with_all_turns()
    dialogue.save(name or dialogue.file.unused_name(dialogue.chat))
    note = f"; {previous} stays as it is" if previous else ""
    state.print_line(f"  goes on as {dialogue.file.name}{note}", "dim")


def show_history(state: ChatState, count: str) -> None:
    turns = state.dialogue.require_turns()
    summary = state.dialogue.chat.summary
    if count and not (count.isdecimal() and int(count)):
        raise UsageError(
            f"/history cannot be '{count}'.", hint="give a number of turns, or nothing"
        )
    show_turns(state, turns[-int(count) :] if count else turns)
    if summary is not None:
        state.print_line(f"  {first_turns_in_words(summary.turns)} sent as a summary", "dim")


def export_chat(state: ChatState, name: str) -> None:
    dialogue = state.dialogue
    dialogue.require_turns()
    path = Path(name).expanduser()
    over = ", over the earlier export" if path.exists() else ""
    transcript.export(path, replace(dialogue.chat, model=dialogue.info.name))
    state.print_line(f"  written to {path}{over}", "dim")


def clear_chat(state: ChatState, _: str) -> None:
    dialogue = state.dialogue
    previous_name = dialogue.file.name
    dialogue.clear()
    state.drop_attachments()
    note = f"; the old one is saved as {previous_name}" if previous_name else ""
    state.print_line(f"  new conversation{note}", "dim")


def leave_chat(state: ChatState, _: str) -> None:
    raise LeaveChat


# `/preset`


def preset_names(state: ChatState) -> list[str]:
    with suppress(DFlashError):
        return list(state.tables.presets())
    return []


def use_preset(state: ChatState, name: str) -> None:
    if not name:
        show_presets(state)
        return
    values = state.tables.preset(name)
    keys = ", ".join(KEYS[name] for name in values)
    model = values.pop("model", None)
    if model is not None:
        target = known_target(model, state.out, state.options.model.folders)
        if target != state.dialogue.info.name:
            state.print_line(
                f"  the preset '{name}' is of another model: {target} is loaded", "dim"
            )
            change_model(state, target)
    dialogue = state.dialogue
    if values.pop("sampling_by", "") == RECOMMENDED:
        recommended = dialogue.info.recommended
        if not recommended:
            state.print_line(f"  {no_recommendation(dialogue.info).message}", "warning")
        values = {**recommended, **values}
    dialogue.backend.check(chat_values(dialogue.settings, values))
    can_draft = dialogue.info.local and dialogue.pair.drafts
    if values.get("mode", "baseline") != "baseline" and not can_draft:
        change_drafter(state, "on")
    apply_values(state, values)
    # From now on the defaults of another target do not change these.
    sources = {**state.options.sources, **dict.fromkeys(values, ValueSource.PRESET)}
    state.options = replace(state.options, sources=sources)
    state.print_line(f"  preset {name}: {keys or 'it sets nothing'}", "dim")


def show_presets(state: ChatState) -> None:
    presets = state.tables.presets()
    width = max(map(len, presets), default=0) + 2
    for name, table in presets.items():
        values = table.items() if isinstance(table, dict) else ()
        text = " · ".join(f"{key} {value}" for key, value in values)
        state.print_line(f"  {name:{width}}{shorten(text, 70)}")
    if not presets:
        state.print_line(f"  no presets; [preset.NAME] in {config_path()} makes one")


# `/mcp`


def manage_servers(state: ChatState, argument: str) -> None:
    toolbox = state.dialogue.tools
    if toolbox.servers is None or toolbox.permissions is None:
        state.print_line(
            f"  no MCP servers; [mcp.NAME] in {config_path()} makes one, --mcp FILE.json takes "
            "another program's"
        )
    elif argument == "off":
        toolbox.enabled = False
        state.print_line("  no tools are sent to the model; the servers keep running", "dim")
    elif argument == "ask":
        toolbox.permissions.forget()
        state.print_line("  nothing is allowed any more: each call is asked about", "dim")
    else:
        if argument == "on":
            toolbox.enabled = True
            toolbox.servers.start()
            toolbox.wait()
        show_servers(state)
