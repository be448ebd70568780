"""Messages of Anthropic's API as those of OpenAI's chat API: content blocks to texts and calls.

Turns of one role that follow one another are one turn, as Anthropic says. Does not know HTTP.
"""

from typing import Any

from .problem import Problem

# Claude Code's note to Anthropic's servers: other in each request, and not for the model.
BILLING = "x-anthropic-billing-header:"
Block = tuple[str, dict[str, Any]]  # its place in the request, and the block


def chat_messages(system: Any, messages: list[Any]) -> list[dict[str, Any]]:
    """The messages; Problem 400 names the block that is wrong or cannot be read."""
    found: list[dict[str, Any]] = []
    told = [block for block in blocks_of(system, "system") if not is_billing(block)]
    if told:
        found.append({"role": "system", "content": joined(told)})
    names: dict[str, str] = {}
    turns = turns_of(messages)
    for role, blocks in turns:
        if role == "assistant":
            found.append(assistant(blocks, names))
        elif role == "system":
            found.append({"role": "system", "content": joined(blocks)})
        else:
            found += user(blocks, names)
    if turns and turns[-1][0] == "assistant":
        raise Problem(
            400,
            "the last message is the assistant's: this server cannot go on from its text. "
            "(End with the user's message.)",
            "messages",
        )
    return found


def turns_of(messages: list[Any]) -> list[tuple[str, list[Block]]]:
    """Each turn's role and blocks."""
    turns: list[tuple[str, list[Block]]] = []
    for number, message in enumerate(messages):
        place = f"messages.{number}"
        if not isinstance(message, dict):
            raise Problem(400, f"{place} is not an object.", place)
        role = message.get("role")
        if role not in ("user", "assistant", "system"):
            raise Problem(400, f"{place}.role must be user, assistant or system.", f"{place}.role")
        if message.get("content") is None:
            raise Problem(400, f"{place}.content is missing.", f"{place}.content")
        blocks = blocks_of(message["content"], f"{place}.content")
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    return turns


def blocks_of(content: Any, place: str) -> list[Block]:
    """A content as blocks; a text is one."""
    if content is None:
        return []
    if isinstance(content, str):
        return [(place, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise Problem(400, f"{place} must be a text or a list of blocks.", place)
    for number, block in enumerate(content):
        if not isinstance(block, dict):
            raise Problem(400, f"{place}.{number} is not an object.", f"{place}.{number}")
    return [(f"{place}.{number}", block) for number, block in enumerate(content)]


def assistant(blocks: list[Block], names: dict[str, str]) -> dict[str, Any]:
    """An assistant's turn; `names` learns the names of its calls by their ids."""
    texts, thoughts, calls = [], [], []
    for place, block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(field(block, "thinking", str, place))
        elif kind == "tool_use":
            number, name = field(block, "id", str, place), field(block, "name", str, place)
            function = {"name": name, "arguments": field(block, "input", dict, place)}
            calls.append({"id": number, "type": "function", "function": function})
            names[number] = name
        elif kind != "redacted_thinking":  # nobody but its maker can read that
            texts.append(text_of(block, place))
    found: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        found["reasoning_content"] = "\n".join(thoughts)
    if calls:
        found["tool_calls"] = calls
    return found


def user(blocks: list[Block], names: dict[str, str]) -> list[dict[str, Any]]:
    """A user's turn: results of tools are messages of their own."""
    found: list[dict[str, Any]] = []
    for place, block in blocks:
        if block.get("type") == "tool_result":
            number = field(block, "tool_use_id", str, place)
            result = joined(blocks_of(block.get("content"), f"{place}.content"))
            if block.get("is_error") and "error" not in result.lower():
                result = f"error: {result}" if result else "error"  # templates have no place for it
            name = {"name": names[number]} if number in names else {}
            found.append({"role": "tool", "tool_call_id": number, **name, "content": result})
            continue
        text = text_of(block, place)
        if found and found[-1]["role"] == "user":
            found[-1]["content"] += "\n" + text
        else:
            found.append({"role": "user", "content": text})
    return found


def joined(blocks: list[Block]) -> str:
    """Blocks of text as one text."""
    return "\n".join(text_of(block, place) for place, block in blocks)


def text_of(block: dict[str, Any], place: str) -> str:
    """A block's text. Problem 400 for images and other blocks."""
    if block.get("type") != "text":
        raise Problem(
            400,
            f"{place} is of the type '{block.get('type')!s:.40}': this server reads text only.",
            place,
        )
    return field(block, "text", str, place)


def field(block: dict[str, Any], name: str, kind: type, place: str) -> Any:
    """A block's field. Problem 400 where it is missing or of another type."""
    if not isinstance(block.get(name), kind):
        what = "a text" if kind is str else "an object"
        raise Problem(400, f"{place}.{name} must be {what}.", f"{place}.{name}")
    return block[name]


def is_billing(block: Block) -> bool:
    """Whether a block of the system prompt is no instruction."""
    text = block[1].get("text")
    return isinstance(text, str) and text.startswith(BILLING)
