"""Messages of a chat: checked before the template gets them, and changed where it refuses them."""

from collections.abc import Callable, Iterator
from typing import Any

from dflash_mlx.errors import UsageError

Messages = list[dict[str, Any]]
SYSTEM = ("system", "developer")  # roles
TEXTS = ("content", "reasoning_content", "thinking")  # fields that are joined
HINT = 'a message is {"role": "user", "content": "..."}'


def checked_messages(messages: list[Any]) -> Messages:
    """The messages, with lists of text parts joined to one text. Everything else stays as it is.

    Raises UsageError for a message that is not an object, and for a part that is not text.
    """
    for message in messages:
        if not isinstance(message, dict):
            raise UsageError(f"a message cannot be a {type(message).__name__}.", hint=HINT)
        if isinstance(message.get("content"), bytes | bytearray):
            raise UsageError("the content of a message cannot be bytes.", hint="decode them")
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


def is_begun(messages: Messages) -> bool:
    """Whether the last message is the assistant's: the answer goes on from its text."""
    return bool(messages) and messages[-1].get("role") == "assistant"


# Templates that allow only some roles, in turns


def accepted_forms(messages: Messages) -> Iterator[Messages]:
    """The messages as they are, then forms that stricter templates accept, with ever more changes.

    Neighbours of the same role are joined, then system messages become part of the user's: the
    later ones first. Last, the same with short ids of tool calls.
    """
    yield messages
    tried = [messages]
    leading = next((n for n, m in enumerate(messages) if not is_system(m)), len(messages))
    for form in (messages, with_short_ids(messages)):
        for new in (
            form,
            joined(form),
            joined([*form[:leading], *map(from_user, form[leading:])]),
            joined([*map(from_user, form)]),
        ):
            if new not in tried:
                tried.append(new)
                yield new


def is_system(message: dict[str, Any]) -> bool:
    return message.get("role") in SYSTEM


def from_user(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "role": "user"} if is_system(message) else message


def joined(messages: Messages) -> Messages:
    """Neighbours of the same role as one message, their texts with a blank line between.

    Results of tools stay apart.
    """
    result: Messages = []
    for message in messages:
        role = message.get("role")
        if result and role != "tool" and result[-1].get("role") == role:
            result[-1] = joined_pair(result[-1], message)
        else:
            result.append(message)
    return result


def joined_pair(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    pair = {**first, **second}
    for name in TEXTS:
        texts = [message[name] for message in (first, second) if message.get(name)]
        if texts:
            pair[name] = "\n\n".join(map(str, texts))
    calls = [call for message in (first, second) for call in message.get("tool_calls") or ()]
    return {**pair, "tool_calls": calls} if calls else pair


def with_short_ids(messages: Messages) -> Messages:
    """Tool calls with the ids that Mistral's templates require: nine letters and digits."""
    ids: dict[Any, str] = {}

    def short(known: Any) -> str:
        return ids.setdefault(known, call_id(len(ids) + 1))

    return with_ids(messages, lambda call: short(call.get("id")), short)


def with_ids(
    messages: Messages, of_call: Callable[[dict[str, Any]], str], of_result: Callable[[Any], Any]
) -> Messages:
    """The messages with other ids of calls, by the call, and of their results, by the old id."""
    result: Messages = []
    for message in messages:
        if message.get("tool_calls"):
            calls = [{**call, "id": of_call(call)} for call in message["tool_calls"]]
            message = {**message, "tool_calls": calls}
        elif "tool_call_id" in message:
            message = {**message, "tool_call_id": of_result(message["tool_call_id"])}
        result.append(message)
    return result


def call_id(number: int) -> str:
    """The id of a chat's call: nine letters and digits, because Mistral's templates require it."""
    return f"call{number:05d}"
