"""How long a model without requests stays loaded."""

import re
from math import inf

KEEP_ALIVE = 600.0  # seconds
UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")


def parse_keep_alive(value: str | float) -> float:
    """Seconds from a number or from 10m or 1h30m; infinite below 0. Raises ValueError."""
    text = str(value).strip().lower()
    negative = text.startswith("-")
    text = text.removeprefix("-")
    parts = PART.findall(text)
    if not text or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"'{value}' is not a time such as 10m, 90s or -1")
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    return inf if negative and seconds else seconds
