"""The commands that go back: answer again, forget, change the last prompt, return to a turn."""

from collections.abc import Sequence

from dflash_mlx.errors import UsageError

from ..prompt import split_attached
from ..terminal.live_region import truncate
from ..terminal.output import format_count, stderr_columns, strip_control
from .compact import undo_summary
from .pages import show_turns
from .several import answer_count, retry_several
from .state import ChatState, screen_rows, shorten
from .transcript import Turn, first_turns

LIST_MARGIN = 4  # rows below the list of turns, for the question and the prompt


def retry(state: ChatState, argument: str) -> None:
    if argument:
        retry_several(state, answer_count(argument))
        return
    turn, answer = state.dialogue.answer_again()
    same_text = answer.text.strip("\n") == turn.answer
    if same_text and not answer.is_empty and state.dialogue.settings.sampling.greedy:
        state.print_line("  the same again: temperature is 0. /temp 0.7 makes answers vary", "dim")


def go_on(state: ChatState, _: str) -> None:
    turn, _earlier = state.dialogue.split_last_turn()
    if not turn.answer:
        raise UsageError("the last answer has no text to go on from.", hint="/retry answers again")
    state.dialogue.ask(turn.prompt, again=True, go_on=True)


def undo(state: ChatState, _: str) -> None:
    chat = state.dialogue.chat
    if chat.summary is not None and chat.summary.written_after >= len(chat.turns):
        undo_summary(state)
        return
    turn, earlier = state.dialogue.split_last_turn()
    state.dialogue.replace_chat(earlier)
    state.print_line(f"  forgotten: {shorten(turn.prompt)}", "dim")


def edit_last(state: ChatState, _: str) -> None:
    """`/edit`: change the last prompt in an editor; the old turn stays if the text is the same."""
    turn, _earlier = state.dialogue.split_last_turn()
    with state.terminal_for_others():
        text = state.edit(turn.prompt).strip()
    if not text or text == turn.prompt.strip():
        state.print_line("  nothing was changed", "dim")
        return
    state.print_line(f"  › {text}", "dim")
    state.dialogue.answer_again(text)


# `/rewind`


def rewind(state: ChatState, argument: str) -> None:
    dialogue = state.dialogue
    turns = dialogue.require_turns()
    if not argument:
        for line in turn_list(turns, rows=screen_rows() - LIST_MARGIN):
            state.print_line(line)
        question = "  Back to the end of which turn? 0: the beginning, Enter: stay here ›"
        argument = state.ask_line(question).strip()
        state.keep_draft(argument)
    if argument in ("", str(len(turns))):  # the chat is at the end of its last turn
        state.print_line("  nothing was changed", "dim")
        return
    if not argument.isdecimal() or int(argument) > len(turns):
        raise UsageError(
            f"/rewind cannot be '{argument}'.",
            hint=f"give 0 to {len(turns)}; /rewind alone lists the turns",
        )
    count = int(argument)
    kept_as = dialogue.name_with_all_turns()
    if count:
        chat = first_turns(dialogue.chat, count)
        if kept_as:
            dialogue.save(dialogue.file.unused_name(chat), chat)
        dialogue.chat = chat
    else:
        dialogue.clear()
    forgotten = format_count(len(turns) - count, "turn", "turns")
    if kept_as:
        line = f"  back by {forgotten} · the whole chat stays saved: /load {kept_as}"
        state.print_line(line, "dim")
    else:
        state.print_line(f"  {forgotten} forgotten: this chat is not saved", "warning")
    if count:
        state.print_line("")
        show_turns(state, turns[count - 1 : count], max_rows=(screen_rows() - LIST_MARGIN) // 2)


def turn_list(turns: Sequence[Turn], rows: int) -> list[str]:
    """The numbers of the last turns with their prompts, one row each, in at most `rows` rows."""
    width = len(str(len(turns)))
    columns = (stderr_columns() or 80) - 1
    shown = len(turns) if len(turns) <= rows else rows - 1
    lines = []
    if earlier := len(turns) - shown:
        lines.append(f"  … {format_count(earlier, 'earlier turn', 'earlier turns')}: /history")
    for number in range(earlier + 1, len(turns) + 1):
        prompt = split_attached(turns[number - 1].prompt)[0]
        text = " ".join(strip_control(prompt).split())
        lines.append(truncate(f"  {number:>{width}}  {text}", columns))
    return lines
