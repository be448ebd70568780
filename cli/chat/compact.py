"""`/compact`: the model summarises the older turns; the summary is sent in their place.

The turns stay in the chat and on disk. Undone, they are sent again.
"""

import time
from dataclasses import replace

from dflash_mlx.chat.messages import Messages
from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions

from ..answer import INTERRUPTED
from ..terminal.output import format_count
from .dialogue import Dialogue
from .messages import SUMMARY_PROMPT, chat_messages
from .state import ChatState
from .transcript import Chat, Summary

KEPT_TURNS = 2  # stay as they are
MAX_SHARE = 8  # a summary takes at most this part of the context: 1 / MAX_SHARE
UNKNOWN_CONTEXT_TOKENS = 1024  # of a summary, if the context is unknown

REQUEST = (
    f"{SUMMARY_PROMPT} You will go on from your summary alone, so keep what is needed for that: "
    "what I want, names, numbers, decisions, code that still matters, and what is open. Write only "
    "the summary."
)


def compact(state: ChatState, argument: str) -> None:
    if argument == "show":
        show_summary(state)
        return
    if argument == "undo":
        undo_summary(state)
        return
    dialogue = state.dialogue
    chat = dialogue.chat
    kept = kept_turns(argument)
    end = len(dialogue.require_turns()) - kept
    start = chat.summary.turns if chat.summary else 0
    if end <= start:
        kind = "older than the summary" if start and end == start else "to summarise"
        last = "turn stays" if kept == 1 else f"{kept} turns stay"
        raise UsageError(
            f"there are no turns {kind}: the last {last} as they are.",
            hint="/compact 1 keeps only the last turn" if kept > 1 else "go on first",
        )
    started_at = time.perf_counter()
    summary = write_summary(state, start, end)
    if summary is None:
        state.print_line("  stopped: nothing was changed", "dim")
        return
    compacted = replace(chat, summaries=(*chat.summaries, summary), left_out=end)
    before = dialogue.tokens_of(replace(chat, left_out=start))
    after = dialogue.tokens_of(compacted)
    if after >= before:
        raise UsageError(
            f"the summary is no shorter than the turns: {after:,} tokens instead of {before:,}.",
            hint="nothing was changed; /compact pays in longer chats",
        )
    dialogue.replace_chat(compacted)
    dialogue.hints.full_shown = False
    dialogue.notify(time.perf_counter() - started_at, "the summary is ready")
    about = "" if dialogue.info.local else "about "
    state.print_line(
        f"  {first_turns_in_words(end)} sent as this summary · the chat has {about}{after:,} "
        f"tokens, not {before:,} · /undo sends the turns again",
        "dim",
    )


def kept_turns(argument: str) -> int:
    """The number of turns that stay as they are; UsageError for another argument."""
    if not argument:
        return KEPT_TURNS
    if not (argument.isdecimal() and int(argument)):
        raise UsageError(
            f"/compact cannot be '{argument}'.",
            hint="give a number of turns that stay as they are, show, undo, or nothing",
        )
    return int(argument)


def write_summary(state: ChatState, start: int, end: int) -> Summary | None:
    """A summary of the first `end` turns, of which the last summary has `start`.

    Turns that do not fit into the context together are summarised one part after the other. None
    after Ctrl-C. UsageError if the model writes nothing.
    """
    dialogue = state.dialogue
    chat = dialogue.chat
    options = summary_options(dialogue)
    summary = chat.summary
    while start < end:
        part_end = end_of_part(dialogue, summary, start, end, options.token_limit)
        part = f"turn {start + 1}" if part_end == start + 1 else f"turns {start + 1} to {part_end}"
        state.print_line(f"  summarising {part} of {len(chat.turns)}", "dim")
        answer = dialogue.answer_apart(part_messages(chat, summary, start, part_end), options)
        if answer.finish_reason == INTERRUPTED:
            return None
        text = answer.text.strip()
        if not text:
            raise UsageError("the model wrote no summary.", hint="nothing was changed; try again")
        if answer.finish_reason == "length":
            tokens = format_count(options.token_limit, "token", "tokens")
            state.print_line(f"  the summary was cut after {tokens}", "warning")
        summary = Summary(text, part_end, len(chat.turns))
        start = part_end
    return summary


def summary_options(dialogue: Dialogue) -> GenerationOptions:
    """The options of a summary: those of an answer without thinking, form, tools and own limits."""
    options = dialogue.options()
    length = dialogue.context_length
    # A server may refuse the switch, unless it has taken it before.
    can_think = dialogue.info.local and dialogue.info.thinking.think_switch is not None
    if can_think or options.think:
        options = replace(options, think=False, reasoning_effort=None)
    return replace(
        options,
        max_tokens=max(length // MAX_SHARE, 1) if length else UNKNOWN_CONTEXT_TOKENS,
        schema=None,
        grammar=None,
        stop=(),
        tools=(),
    )


def end_of_part(
    dialogue: Dialogue, summary: Summary | None, start: int, end: int, reserve: int
) -> int:
    """The end of the longest part from `start` that fits into the context beside its summary."""
    limit = dialogue.context_length
    if not limit:
        return end
    for part_end in range(end, start + 1, -1):
        messages = part_messages(dialogue.chat, summary, start, part_end)
        if dialogue.estimate_tokens(messages) + reserve <= limit:
            return part_end
    return start + 1


def part_messages(chat: Chat, summary: Summary | None, start: int, end: int) -> Messages:
    part = replace(
        chat,
        turns=chat.turns[:end],
        left_out=start,
        summaries=() if summary is None else (summary,),
    )
    return chat_messages(part, REQUEST, calls=False)


def first_turns_in_words(count: int) -> str:
    return "turn 1 is" if count == 1 else f"turns 1 to {count} are"


def show_summary(state: ChatState) -> None:
    summary = state.dialogue.chat.summary
    if summary is None:
        state.print_line("  there is no summary: the turns are sent as they are")
        return
    state.print_line(f"  {first_turns_in_words(summary.turns)} sent as this summary:", "dim")
    state.print_line(summary.text)


def undo_summary(state: ChatState) -> None:
    """`/compact undo`: forget the last summary; UsageError without any."""
    dialogue = state.dialogue
    chat = dialogue.chat
    if chat.summary is None:
        raise UsageError("there is no summary to undo.", hint="/compact writes one")
    summaries = chat.summaries[:-1]
    left_out = summaries[-1].turns if summaries else 0
    dialogue.replace_chat(replace(chat, summaries=summaries, left_out=left_out))
    turns = first_turns_in_words(chat.summary.turns)
    again = "sent as the summary before" if summaries else "sent again"
    state.print_line(f"  the summary is forgotten: {turns} {again}", "dim")
