"""What a chat prints besides answers: its header, `/stats`, `/tokens`, `/mcp`, earlier turns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from dflash_mlx import __version__

from ..answer import Answer, format_tokens, prompt_summary
from ..backend.base import ModelInfo
from ..prompt import split_attached
from ..terminal.live_region import truncate
from ..terminal.markdown import MarkdownStream
from ..terminal.output import Output, format_bytes, format_count, stderr_columns, strip_control
from ..terminal.render import bar, excerpt, position_rows, sparkline
from .compact import first_turns_in_words
from .dialogue import Dialogue
from .settings import chat_sampling_note
from .state import ChatState, screen_rows, shorten
from .tools import call_line, permission_key, result_lines
from .transcript import Chat, Turn

if TYPE_CHECKING:
    from dflash_mlx import Stats


def show_header(dialogue: Dialogue, load_seconds: float, preset: str | None = None) -> None:
    tools = dialogue.tools
    lines = header_lines(dialogue, load_seconds, preset)
    lines += [chat_sampling_note(dialogue), tools.summary(dialogue.info.no_tools)]
    for line in filter(None, lines):
        dialogue.note(line)
    for warning in [*tools.failures(), *dialogue.info.warnings]:
        dialogue.note(warning, "warning")
    dialogue.out.note("")


def header_lines(dialogue: Dialogue, load_seconds: float, preset: str | None = None) -> list[str]:
    info = dialogue.info
    heading = info.describe(dialogue.settings, header=True)
    named_preset = f" · preset {preset}" if preset else ""
    return [
        f"dflash {__version__} · {heading}{named_preset}",
        f"{start_summary(info, load_seconds)} · /help lists commands · Ctrl-C stops · "
        "Ctrl-D leaves",
        info.note,
    ]


def start_summary(info: ModelInfo, seconds: float) -> str:
    """How long loading took, memory and context."""
    if not info.local:
        return f"asked in {seconds:.1f} s · context {info.context}"
    import mlx.core as mx

    memory = format_bytes(mx.get_active_memory())
    return f"loaded in {seconds:.1f} s · {memory} · context {info.context}"


# `/stats`


def stats_page(dialogue: Dialogue, out: Output) -> list[str]:
    lines = [] if dialogue.last_answer is None else answer_lines(dialogue.last_answer, out)
    all_stats = dialogue.stats
    has_passes = any(stats.verifies for stats in all_stats)
    tau = f" · τ {mean_acceptance_length(all_stats):.2f}" if has_passes else ""
    answers = format_count(len(all_stats), "answer", "answers")
    tokens = f"{sum(stats.generated for stats in all_stats):,} tokens"
    if any("generated" in stats.unknown for stats in all_stats):
        tokens = "tokens unknown"
    used = dialogue.tokens_of(dialogue.chat) if dialogue.info.local else None
    context = "" if used is None else f" · context {used:,} / {dialogue.context_length:,}"
    memory = ""
    if dialogue.info.local:
        import mlx.core as mx

        memory = f" · peak {format_bytes(mx.get_peak_memory())}"
    lines.append(labelled_line("conversation", f"{answers} · {tokens}{tau}{context}{memory}"))
    rows = dialogue.backend.rows(dialogue.settings)
    return lines + [labelled_line(label, text) for label, text in rows]


def mean_acceptance_length(all_stats: Sequence["Stats"]) -> float:
    """τ over the passes of all answers; 1.0 without a pass."""
    decoded = passes = 0.0
    for stats in all_stats:
        tokens = max(stats.generated - 1, 0)
        decoded += tokens
        passes += tokens / stats.acceptance_length  # a server reports τ, not its passes
    return decoded / passes if passes else 1.0


def answer_lines(answer: Answer, out: Output) -> list[str]:
    stats = answer.stats
    lines = []
    drafts = ""
    if stats.verifies:
        drafts += f" · {format_count(stats.verifies, 'verify pass', 'verify passes')}"
    if stats.drafted:
        drafts += (
            f" · {stats.accepted:,} of {stats.drafted:,} drafts accepted "
            f"({stats.acceptance_rate:.1%})"
        )
    if stats.verifies:
        drafts += f" · τ {stats.acceptance_length:.2f}"
    if not drafts:
        drafts = " · drafts unknown" if "drafted" in stats.unknown else " · no drafts"
    lines.append(labelled_line("last answer", format_tokens(stats) + drafts))
    if rows := position_rows(stats.accepted_by_position, stats.verifies, out):
        lines.append(labelled_line("by position", "share of verify passes that kept a draft there"))
        lines += [labelled_line("", row) for row in rows]
    rate = f" · {stats.tokens_per_second:.1f} tok/s" if stats.tokens_per_second else ""
    lines.append(
        labelled_line(
            "time",
            f"first token after {stats.first_token_seconds:.2f} s (prefill "
            f"{stats.prefill_seconds:.2f} s) · decode {stats.decode_seconds:.2f} s{rate}",
        )
    )
    if rates := rates_of(answer):
        shape = sparkline(rates, out)
        numbers = f"{min(rates):,.0f} to {max(rates):,.0f} tok/s from its start to its end"
        lines.append(labelled_line("speed", f"{shape} {numbers}"))
    lines.append(labelled_line("prompt", prompt_summary(stats) + " tokens"))
    if stats.seed is not None:
        lines.append(labelled_line("seed", str(stats.seed)))
    return lines


RATE_PARTS = range(3, 25)  # of an answer; fewer show nothing
ROUNDS = 2  # of a part at least: one alone may come late, and the next at once


def rates_of(answer: Answer) -> list[float]:
    """Tokens per second in up to 24 parts of an answer, each of about as many rounds.

    Empty for an answer of a few rounds, and for one of a server, which sends no rounds.
    """
    rounds = answer.rounds
    count = min(RATE_PARTS[-1], (len(rounds) - 1) // ROUNDS)
    if count < RATE_PARTS[0] or not answer.tokens:
        return []
    ends = [part * (len(rounds) - 1) // count for part in range(count + 1)]
    rates = []
    for start, end in pairwise(ends):
        seconds = rounds[end][0] - rounds[start][0]
        tokens = sum(tokens for _, tokens, *_ in rounds[start + 1 : end + 1])
        rates.append(tokens / max(seconds, 1e-6))
    return rates


def labelled_line(label: str, text: str) -> str:
    return f"  {label:14}{text}"


# `/tokens`

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
    for note in context_notes(dialogue, used):
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


def context_notes(dialogue: Dialogue, used: int) -> list[str]:
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


# `/mcp`

PERMISSION_NOTES = {"session": " · allowed in this session", "always": " · always allowed"}


def show_servers(state: ChatState) -> None:
    toolbox = state.dialogue.tools
    servers = toolbox.servers
    assert servers is not None
    assert toolbox.permissions is not None
    width = max(len(server.config.name) for server in servers.all) + 2
    all_tools = servers.tools  # once: a server may end meanwhile
    for server in servers.all:
        tools = [tool for tool in all_tools if tool.server == server.config.name]
        status = f"{server.state}: {server.why}" if server.why else server.state
        if tools:
            status += f" · {format_count(len(tools), 'tool', 'tools')}"
        state.print_line(
            f"  {server.config.name:{width}}{status} · {shorten(server.config.source, 60)}"
        )
        for tool in tools:
            permission = toolbox.permissions.state(permission_key(server.config, tool.key))
            note = PERMISSION_NOTES.get(permission, "")
            state.print_line(f"    {tool.name}  {shorten(tool.description, 60)}{note}", "dim")
    show_offer(state)


def show_offer(state: ChatState) -> None:
    """Print whether the model knows the tools, and how many tokens their schemas take."""
    dialogue = state.dialogue
    if reason := dialogue.info.no_tools:
        state.print_line(f"  this model {reason}: the tools are not sent to it", "warning")
    elif not dialogue.tools.enabled:
        state.print_line("  the tools are not sent to the model; /mcp on sends them", "warning")
    else:
        dialogue.tools.offer_to(dialogue.backend)
        line = "  the tools are sent to the model"
        if dialogue.info.local:
            line += f": {format_count(dialogue.tool_tokens(), 'token', 'tokens')} of its context"
        state.print_line(line, "dim")


# Earlier turns, after a resume and for `/history`

TURN_NOTES = {"interrupted": "(stopped)", "length": "(cut)", "calls": "(no answer)"}


def show_turns(
    state: ChatState,
    turns: Sequence[Turn],
    *,
    max_turns: int | None = None,
    max_rows: int | None = None,
) -> None:
    """Print prompts and answers, or the last of them below a line that says what is missing."""
    from rich.text import Text

    out = state.out
    styled = out.stderr_live and state.dialogue.display.markdown
    lines: list[str] = []
    earlier = 0 if max_turns is None else max(len(turns) - max_turns, 0)
    for turn in turns[earlier:]:
        lines += [*prompt_lines(turn.prompt, out), ""]
        for step in turn.steps:
            lines += [*text_lines(step.text, out, styled=styled), ""] if step.text else []
            for call in step.calls:
                rows = [call_line(call), *result_lines(call, stderr_columns())]
                lines += [*map(strip_control, map(out.ascii_fallback, rows)), ""]
        if turn.answer or not turn.steps:
            lines += text_lines(turn.answer, out, styled=styled)
        note = TURN_NOTES.get(turn.finish_reason)
        lines += [f"  {note}", ""] if note else [""]
    lines = lines[:-1]
    missing = [format_count(earlier, "earlier turn", "earlier turns")] if earlier else []
    if max_rows is not None and len(lines) + len(missing) > max_rows:
        lines = lines[len(lines) - max_rows + 1 :]
        missing.append("more")
    if missing:
        state.print_line(f"  … {' and '.join(missing)}: /history shows all of it", "dim")
    for line in lines:
        if styled:
            out.console.print(Text.from_ansi(line), soft_wrap=True)
        else:
            state.print_line(line)


def text_lines(text: str, out: Output, *, styled: bool) -> list[str]:
    """An answer as lines; `styled`: Markdown with escape sequences, as wide as the screen."""
    text = strip_control(text)
    if not styled:
        return text.split("\n")
    from ..terminal.renderer import Renderer

    stream = MarkdownStream()
    fragments = [*stream.feed(text), *stream.finish()]
    return Renderer(ascii=out.ascii).lines(fragments, max(stderr_columns() - 1, 8))


def prompt_lines(prompt: str, out: Output) -> list[str]:
    """A prompt as typed, its files as one line; a long prompt is shortened in the middle."""
    text, files = split_attached(prompt)
    lines = [strip_control(line.replace("\t", "    ")) for line in excerpt(text.split("\n"))]
    lines += [strip_control(files.summary)] if files.files else []
    return [out.ascii_fallback("  " if i else "› ") + line for i, line in enumerate(lines)]
