"""A conversation as messages for the model, and an answer as its next turn."""

from collections.abc import Sequence

from dflash_mlx.chat.messages import Messages
from dflash_mlx.tools.call import Step, step_messages

from ..answer import Answer
from .transcript import Chat, Turn, call_text

NOTHING = Step("")
SUMMARY_PROMPT = "Summarise our conversation so far."  # is sent before the summary


def chat_messages(
    chat: Chat, prompt: str, steps: Sequence[Step] = (), *, calls: bool = True
) -> Messages:
    """The messages to send: system prompt, summary, turns that are not left out, a new prompt.

    steps: the first steps of the answer to it. Without `calls`, for a model that calls no tools,
    earlier tool calls and their results become text of the answers.
    """
    messages: Messages = []
    if chat.system is not None:
        messages.append({"role": "system", "content": chat.system})
    if chat.summary is not None:
        messages.append({"role": "user", "content": SUMMARY_PROMPT})
        messages.append({"role": "assistant", "content": chat.summary.text})
    for turn in chat.turns[chat.left_out :]:
        messages.append({"role": "user", "content": turn.prompt})
        if calls:
            messages += step_messages(turn.steps, messages)
        answer = turn.answer if calls or not turn.steps else answer_with_calls(turn)
        messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": prompt})
    return [*messages, *step_messages(steps, messages)]


def answer_with_calls(turn: Turn) -> str:
    parts = []
    for step in turn.steps:
        parts += [step.text, *(f"{call_text(call)}\n{call.result}" for call in step.calls)]
    return "\n\n".join(part for part in (*parts, turn.answer) if part)


def step_of(answer: Answer, begun: Step = NOTHING) -> Step:
    """An answer that goes on from a step as one step; calls only count if it is complete."""
    calls = answer.calls if answer.finish_reason == "stop" else ()
    text = (begun.text + answer.text).strip("\n")
    thinking = begun.thinking or answer.thinking.strip("\n")
    return Step(text, thinking, calls, answer.finish_reason)


def turn_of(prompt: str, steps: Sequence[Step]) -> Turn:
    """A prompt and its steps as a turn; the answer is empty if the last step has tool calls."""
    last = steps[-1]
    if not last.calls:
        return Turn(prompt, last.text, last.thinking, last.finish_reason, tuple(steps[:-1]))
    stopped = any(call.state == "interrupted" for call in last.calls)
    return Turn(prompt, "", "", "interrupted" if stopped else "calls", tuple(steps))
