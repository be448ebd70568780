"""Checks the messages of a chat before the template gets them."""

from typing import Any

from dflash_mlx.errors import UsageError

Messages = list[dict[str, Any]]
HINT = 'a message is {"role": "user", "content": "..."}'


def checked_messages(messages: list[Any]) -> Messages:
    """The messages, with lists of text parts joined to one text. Everything else stays as it is.

    Raises UsageError for a message that is not an object, and for a part that is not text.
    """
    for message in messages:
        if not isinstance(message, dict):
            raise UsageError(f"a message cannot be a {type(message).__name__}.", hint=HINT)
    return [
        {**message, "content": joined_text(message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def joined_text(parts: list[Any]) -> str:
    """OpenAI's content parts of type text as one text, one part per line."""
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text":
            raise UsageError(
                f"a message has a part of the type '{kind}', but only text is supported.",
                hint="leave it out",
            )
        if not isinstance(part.get("text"), str):
            raise UsageError(
                "a message has a part of the type 'text' without a text.",
                hint='a part is {"type": "text", "text": "..."}',
            )
    return "\n".join(part["text"] for part in parts)
