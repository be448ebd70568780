"""A conversation as messages for the model, and an answer as its next turn."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dflash_mlx.chat.messages import Messages
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.tools.call import Step, step_messages

from ..answer import Answer
from ..backend.base import Backend
from ..prompt import split_attached
from ..terminal.output import Output
from . import transcript
from .transcript import Chat, Turn, call_text, latest_chat_name


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


# The file of one conversation

TITLE_LENGTH = 40  # characters
FORK_NAME_LENGTH = 70  # characters of a name that are kept when a number is added


class ChatFile:
    """Saves a conversation under one name; never over turns that another process saved there.

    `name` is None until the first save, which makes one of the first prompt; `held` is what the
    file has.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.held: Chat | None = None

    def holds(self, chat: Chat) -> bool:
        """Whether the file has all turns of this conversation."""
        return self.held is not None and self.held.turns == chat.turns

    def load(self, name: str) -> Chat:
        """Read a chat, and save under its name from now on."""
        chat = transcript.load(name)
        self.name, self.held = name, chat
        return chat

    def save(self, chat: Chat, name: str | None = None) -> tuple[Path, str | None]:
        """Save under a new or the present name.

        Returns the path, and the name that was left because another process has saved there. Raises
        UsageError for a taken name, DFlashError for what cannot be written.
        """
        left = None
        if name is not None and name != self.name:
            if transcript.chat_path(name).exists():
                raise UsageError(
                    f"there is a saved chat '{name}' already.",
                    hint=f"give another name, or /load {name}",
                )
            self.name, self.held = name, None
        elif self.name is None:
            self.name = self.unused_name(chat)
        elif self._changed_elsewhere(self.name):
            left, self.name = self.name, self.unused_name(chat)
        path = transcript.save(self.name, chat)
        self.held = chat
        return path, left

    def unused_name(self, chat: Chat) -> str:
        """A name for this conversation that no saved chat has."""
        return unused(self.name[:FORK_NAME_LENGTH].rstrip(" .") if self.name else title(chat))

    def _changed_elsewhere(self, name: str) -> bool:
        """Whether the file is there and does not hold what this process knows of it."""
        if not transcript.chat_path(name).exists():
            return False
        try:
            return transcript.load(name) != self.held
        except DFlashError:
            return True  # not this process's work, and perhaps mended by hand


def title(chat: Chat) -> str:
    """A name of the first words of the first prompt, without its files; else of the date."""
    words, length = [], 0
    prompt, _ = split_attached(chat.turns[0].prompt if chat.turns else "")
    for word in re.findall(r"\w+", prompt):
        length += len(word) + 1
        if words and length > TITLE_LENGTH:
            break
        words.append(word[:TITLE_LENGTH].lower())
    return "-".join(words) or time.strftime("%Y-%m-%d-%H%M%S")


def unused(name: str) -> str:
    """The name, with a number if there is such a chat."""
    found, number = name, 2
    while transcript.chat_path(found).exists():
        found, number = f"{name}-{number}", number + 1
    return found


# One more turn of the chat that was saved last, for `dflash generate --continue`.


def load_latest(saved: ChatFile, *, raw: bool, compare: bool) -> Chat:
    """The chat that was saved last, which `saved` then holds."""
    for flag, given in (("--raw", raw), ("--compare", compare)):
        if given:
            raise UsageError(
                f"--continue and {flag} do not go together.", hint="leave one of them out"
            )
    return saved.load(latest_chat_name())


def keep_turn(saved: ChatFile, chat: Chat, backend: Backend, out: Output) -> None:
    """Save a chat with its new turn, and say so when that is under another name."""
    _, left = saved.save(replace(chat, model=backend.target_name, draft=backend.draft_name))
    if left is not None:
        out.warn(f"'{left}' was changed by another dflash: this chat is now '{saved.name}'")
