"""Calls of tools as they are shown: the call as one would write it, its result folded."""

import json

from dflash_mlx.tools.call import Call, arguments_of

RESULT_LINES = 4  # of a result that are shown
MAX_CALL = 600  # characters of a call that are shown at once


def call_text(call: Call) -> str:
    """A call on one line: weather(city: "Brno")."""
    arguments = arguments_of(call)
    if arguments is None:
        return f"{call.name}({call.arguments})"
    values = {name: json.dumps(value, ensure_ascii=False) for name, value in arguments.items()}
    return f"{call.name}({', '.join(f'{name}: {value}' for name, value in values.items())})"


def call_line(call: Call) -> str:
    """The same, indented; of a long one the beginning, and how much was left out."""
    text = call_text(call)
    if len(text) <= MAX_CALL:
        return f"  › {text}"
    return f"  › {text[:MAX_CALL]} … {len(text) - MAX_CALL:,} more characters"


def result_lines(call: Call, columns: int) -> list[str]:
    """The first lines of a result, each on one row, and how many more there are.

    `columns` 0 is unknown: no line is cut.
    """
    lines = [line.replace("\t", "  ").rstrip() for line in call.result.strip("\n").split("\n")]
    shown = lines[:RESULT_LINES] if len(lines) > RESULT_LINES + 1 else lines
    state = {"done": "", "open": "not run"}.get(call.state, call.state)
    if state and not shown[0].startswith((state, "error", "not run")):
        shown = [f"{state}: {shown[0]}" if shown[0] else state, *shown[1:]]
    room = max(columns - 6, 10)
    cut = [line[: room - 1] + "…" if columns and len(line) > room else line for line in shown]
    rows = [f"  │ {line or '(nothing)'}" if len(cut) == 1 else f"  │ {line}" for line in cut]
    if left_out := len(lines) - len(shown):
        rows.append(f"  │ … {left_out:,} more lines")
    return rows


def call_lines(call: Call, columns: int) -> list[str]:
    """A call that was made, and its result."""
    return [call_line(call), *result_lines(call, columns)]
