"""A conversation as messages for the model, an answer as its next turn, and the chat's file."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dflash_mlx.chat.messages import Messages
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.tools.call import Step, step_messages

from ..answer import Answer
from ..backend.base import ModelInfo
from ..prompt import split_attached
from ..terminal.output import Output
from . import transcript
from .transcript import Chat, Turn, call_text
from .unfinished import forget_mark

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


def with_turn(chat: Chat, prompt: str, answer: Answer) -> Chat:
    return replace(chat, turns=(*chat.turns, turn_of(prompt, [step_of(answer)])))


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


# The file of one conversation

TITLE_LENGTH = 40  # characters
FORK_NAME_LENGTH = 70  # characters of a name before a number is added


class ChatFile:
    """Saves a conversation under one name, but not over turns that another process saved there.

    name: None until the first save, which makes it from the first prompt. saved: the chat as this
    process last read or wrote it.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.saved: Chat | None = None

    def has_turns_of(self, chat: Chat) -> bool:
        return self.saved is not None and self.saved.turns == chat.turns

    def load(self, name: str) -> Chat:
        """Read a chat, and save under its name from now on; it is not offered any more."""
        chat = transcript.load(name)
        forget_mark(name)
        self.name = name
        self.saved = chat
        return chat

    def save(self, chat: Chat, name: str | None = None) -> tuple[Path, str | None]:
        """Save under a new or the present name.

        Returns the path, and the old name if the chat had to leave it because another process has
        saved there. UsageError for a taken name, DFlashError if the file cannot be written.
        """
        old_name = None
        if name is not None and name != self.name:
            if transcript.chat_path(name).exists():
                raise UsageError(
                    f"there is a saved chat '{name}' already.",
                    hint=f"give another name, or /load {name}",
                )
            self.name = name
            self.saved = None
        elif self.name is None:
            self.name = self.unused_name(chat)
        elif self._changed_elsewhere(self.name):
            old_name = self.name
            self.name = self.unused_name(chat)
        path = transcript.save(self.name, chat)
        self.saved = chat
        return path, old_name

    def update(self, chat: Chat) -> int | None:
        """Save again under the present name, from any thread; returns the bytes of the file.

        None, and nothing is written, without a name or if another process has saved there.
        """
        if self.name is None or self._changed_elsewhere(self.name):
            return None
        if chat != self.saved:
            transcript.save(self.name, chat)
            self.saved = chat
        return transcript.chat_path(self.name).stat().st_size

    def discard(self) -> None:
        """Remove the file, unless another process has saved there; the next save makes a name."""
        if self.name is not None and not self._changed_elsewhere(self.name):
            transcript.remove(self.name)
        self.name = None
        self.saved = None

    def unused_name(self, chat: Chat) -> str:
        return numbered(self.name[:FORK_NAME_LENGTH].rstrip(" .") if self.name else title(chat))

    def _changed_elsewhere(self, name: str) -> bool:
        """Whether the file exists and is not as this process last read or wrote it."""
        if not transcript.chat_path(name).exists():
            return False
        try:
            return transcript.load(name) != self.saved
        except DFlashError:
            return True  # damaged, but not by this process: the user may still repair it


def title(chat: Chat) -> str:
    """A name from the first words of the first prompt, without its files; else from the date."""
    words = []
    length = 0
    prompt, _ = split_attached(chat.turns[0].prompt if chat.turns else "")
    for word in re.findall(r"\w+", prompt):
        length += len(word) + 1
        if words and length > TITLE_LENGTH:
            break
        words.append(word[:TITLE_LENGTH].lower())
    return "-".join(words) or time.strftime("%Y-%m-%d-%H%M%S")


def numbered(name: str) -> str:
    """The name, with a number if a saved chat has it already."""
    candidate = name
    number = 2
    while transcript.chat_path(candidate).exists():
        candidate = f"{name}-{number}"
        number += 1
    return candidate


# One more turn of the chat that was saved last, for `dflash generate --continue`


def save_turn(file: ChatFile, chat: Chat, info: ModelInfo, out: Output) -> None:
    """Save a chat with its new turn; a warning if its name had to change."""
    _, old_name = file.save(replace(chat, model=info.name, draft=info.draft))
    if old_name is not None:
        out.warn(f"'{old_name}' was changed by another dflash: this chat is now '{file.name}'")
