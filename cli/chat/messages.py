"""A conversation as messages for the model, and an answer as its next turn."""

from collections.abc import Sequence
from dataclasses import replace

from dflash_mlx.chat.messages import Messages
from dflash_mlx.tools.call import Step
from dflash_mlx.tools.call_messages import step_messages

from ..answer import Answer
from .turn import Chat, Turn


def chat_messages(chat: Chat, prompt: str, steps: Sequence[Step] = ()) -> Messages:
    """The messages to send: system prompt, turns that are not left out, and a new prompt.

    `steps` are those that the answer to it already has.
    """
    sent: Messages = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    for turn in chat.turns[chat.left_out :]:
        sent.append({"role": "user", "content": turn.prompt})
        sent += step_messages(turn.steps, sent)
        sent.append({"role": "assistant", "content": turn.answer})
    sent.append({"role": "user", "content": prompt})
    return [*sent, *step_messages(steps, sent)]


def with_turn(chat: Chat, prompt: str, answer: Answer) -> Chat:
    """The conversation with a prompt and its answer."""
    return replace(chat, turns=(*chat.turns, turn_of(prompt, [step_of(answer)])))


def step_of(answer: Answer) -> Step:
    """An answer as a step, with the calls that are to be run."""
    text, thinking = answer.text.strip("\n"), answer.thinking.strip("\n")
    calls = answer.calls if answer.finish_reason == "stop" else ()
    return Step(text, thinking, calls, answer.finish_reason)


def turn_of(prompt: str, steps: Sequence[Step]) -> Turn:
    """A prompt and all that was said to it; the answer is empty where calls were the last."""
    last = steps[-1]
    if not last.calls:
        return Turn(prompt, last.text, last.thinking, last.finish_reason, tuple(steps[:-1]))
    stopped = any(call.state == "interrupted" for call in last.calls)
    return Turn(prompt, "", "", "interrupted" if stopped else "calls", tuple(steps))
