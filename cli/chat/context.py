"""`/tokens`: what fills the context, part by part, and what is left for the next prompt."""

from dataclasses import dataclass, replace

from ..prompt import split_attached
from ..terminal.live_region import truncate
from ..terminal.output import Output, format_count, stderr_columns, strip_control
from ..terminal.render import bar
from .compact import first_turns_in_words
from .dialogue import Dialogue
from .state import ChatState, screen_rows
from .transcript import Chat

OTHER_ROWS = 10  # besides those of the turns: fixed parts, what is left, notes, the prompt
LABEL_COLUMNS = 15
MIN_BAR_COLUMNS = 60  # a narrower screen has no bars


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the context. tokens: an estimate if a server answers. text: how it begins."""

    label: str
    tokens: int
    text: str = ""


def show_tokens(state: ChatState, argument: str) -> None:
    """`/tokens`: print the parts of the context; `all` gives each turn its own row."""
    dialogue = state.dialogue
    dialogue.tools.offer_to(dialogue.backend)
    rows = 0 if argument else max(screen_rows() - OTHER_ROWS, 1)
    parts = fixed_parts(dialogue)
    parts += turn_parts(dialogue, sum(part.tokens for part in parts), rows)
    used = sum(part.tokens for part in parts)
    length = dialogue.context_length
    if length:
        parts.append(Part("left", max(length - used, 0)))
    for part in parts:
        state.print_line(part_line(part, length or used, state.out))
    for note in notes(dialogue, used):
        state.print_line(f"  {note}", "dim")


def fixed_parts(dialogue: Dialogue) -> list[Part]:
    """What a prompt without turns has: system prompt and chat template, and the tools."""
    system = dialogue.chat.system
    tools = dialogue.tool_tokens()
    alone = dialogue.tokens_of(Chat(system=system)) - tools
    parts = [Part("template" if system is None else "system prompt", alone, system or "")]
    if count := len(dialogue.tools.schemas):
        parts.append(Part(format_count(count, "tool", "tools"), tools))
    return parts


def turn_parts(dialogue: Dialogue, before: int, rows: int) -> list[Part]:
    """The summary and the turns that are sent, each with the tokens that it adds.

    before: the tokens in front of them. The turns have at most `rows` rows, 0 for no limit: the
    first ones become one, which also saves the time to count each.
    """
    chat = dialogue.chat
    parts: list[Part] = []
    total = before

    def add(label: str, end: int, text: str) -> None:
        nonlocal total
        shorter = replace(chat, turns=chat.turns[:end], left_out=min(chat.left_out, end))
        tokens = dialogue.tokens_of(shorter)
        parts.append(Part(label, tokens - total, text))
        total = tokens

    if chat.summary is not None:
        add("summary", chat.left_out, chat.summary.text)
    first = chat.left_out + 1
    if rows and len(chat.turns) - chat.left_out > rows:
        end = len(chat.turns) - rows + 1
        add(f"turns {first} to {end}", end, "/tokens all lists them")
        first = end + 1
    for number in range(first, len(chat.turns) + 1):
        add(f"turn {number}", number, split_attached(chat.turns[number - 1].prompt)[0])
    return parts


def part_line(part: Part, of: int, out: Output) -> str:
    """One row: label, tokens, share of `of` tokens as number and bar, the beginning of the text."""
    columns = (stderr_columns() or 80) - 1
    share = part.tokens / max(of, 1)
    line = f"  {part.label:{LABEL_COLUMNS}}{part.tokens:>7,}  {share:4.0%}"
    if columns >= MIN_BAR_COLUMNS:
        line += f"  {bar(min(share, 1), out):8}"
    text = " ".join(strip_control(part.text).split())
    return truncate(f"{line}  {text}".rstrip(), columns)


def notes(dialogue: Dialogue, used: int) -> list[str]:
    """The sum, what is not sent, and when the oldest turns will be left out."""
    chat = dialogue.chat
    length = dialogue.context_length
    about = "" if dialogue.info.local else "about "
    of = f" of {length:,}" if length else ""
    lines = [f"context {about}{used:,}{of} tokens"]
    if not dialogue.info.local:
        lines[0] += ": an estimate, only the server has the tokenizer"
    replaced = chat.summary.turns if chat.summary else 0
    if replaced:
        lines.append(f"{first_turns_in_words(replaced)} sent as the summary")
    if chat.left_out > replaced:
        more = format_count(chat.left_out - replaced, "turn is", "turns are")
        lines.append(f"{more} not sent: turn {replaced + 1} to {chat.left_out}")
    if length:
        lines.append(
            f"with less than {dialogue.reserve:,} left the oldest turns are left out; /compact "
            "sends a summary of them"
        )
    return lines
