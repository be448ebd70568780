"""A conversation as messages for the model, and an answer as its next turn."""

from dataclasses import replace

from ..answer import Answer
from .transcript import Chat, Turn


def chat_messages(chat: Chat, prompt: str) -> list[dict[str, str]]:
    """The messages to send: system prompt, turns that are not left out, and a new prompt."""
    sent = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    for turn in chat.turns[chat.left_out :]:
        sent.append({"role": "user", "content": turn.prompt})
        sent.append({"role": "assistant", "content": turn.answer})
    return [*sent, {"role": "user", "content": prompt}]


def with_turn(chat: Chat, prompt: str, answer: Answer) -> Chat:
    """The conversation with a prompt and its answer."""
    text, thinking = answer.text.strip("\n"), answer.thinking.strip("\n")
    turn = Turn(prompt, text, thinking, answer.finish_reason)
    return replace(chat, turns=(*chat.turns, turn))
