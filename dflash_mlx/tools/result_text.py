"""What an MCP tool gives back, as text for a model."""

import json
from typing import Any


def result_text(result: Any) -> str:
    """The texts of a `CallToolResult`, a line break between them; what is no text is named.

    Structured content stands for a result without any.
    """
    parts = [part_text(part) for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def part_text(part: Any) -> str:
    """One part."""
    if part.type == "text":
        return part.text
    if part.type == "resource_link":
        return f"[{part.name}: {part.uri}]"
    if part.type == "resource":
        text = getattr(part.resource, "text", None)
        return text if text is not None else f"[{part.resource.uri}: no text, left out]"
    return f"[{part.type} {part.mime_type}: left out, only text is read]"
