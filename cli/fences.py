"""Fences of code blocks in Markdown. Knows text only."""

import re


def fenced(text: str, language: str = "text") -> str:
    """Text as a code block with a fence longer than any inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def close_fence(text: str) -> str:
    """Close a code fence that a cut answer left open."""
    fence = ""
    for line in text.splitlines():
        mark = re.match(r" {0,3}(`{3,}|~{3,})([^`]*)$", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not mark[2].strip():
            fence = ""
    return f"{text}\n{fence}" if fence else text
