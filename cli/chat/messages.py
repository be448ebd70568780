"""A conversation as messages for the model, and an answer as its next turn."""

from collections.abc import Sequence
from dataclasses import replace

from dflash_mlx.chat.messages import Messages
from dflash_mlx.tools.call import Step
from dflash_mlx.tools.call_messages import step_messages

from ..answer import Answer
from .call_view import call_text
from .turn import Chat, Turn


def chat_messages(
    chat: Chat, prompt: str, steps: Sequence[Step] = (), *, calls: bool = True
) -> Messages:
    """The messages to send: system prompt, turns that are not left out, and a new prompt.

    `steps` are those that the answer to it already has. Without `calls`, for a model that calls no
    tools, what was called and came of it is text of the answers.
    """
    sent: Messages = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    for turn in chat.turns[chat.left_out :]:
        sent.append({"role": "user", "content": turn.prompt})
        if calls:
            sent += step_messages(turn.steps, sent)
        answer = turn.answer if calls or not turn.steps else answer_with_calls(turn)
        sent.append({"role": "assistant", "content": answer})
    sent.append({"role": "user", "content": prompt})
    return [*sent, *step_messages(steps, sent)]


def answer_with_calls(turn: Turn) -> str:
    """A turn's answer behind what was said and called before it, as one text."""
    parts = []
    for step in turn.steps:
        parts += [step.text, *(f"{call_text(call)}\n{call.result}" for call in step.calls)]
    return "\n\n".join(part for part in (*parts, turn.answer) if part)


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
