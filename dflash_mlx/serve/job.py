"""What a request of any API asks for, in one form; and what an answer to it is made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_mlx.chat.tool_calls import CallPart
from dflash_mlx.session import Prompt
from dflash_mlx.stats import Stats
from dflash_mlx.structure.grammar import Grammar
from dflash_mlx.types import SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True)
class Job:
    """One request: `choices` answers to a prompt; None is what the server's settings say.

    prompt: messages as chat templates read them, a text (`raw`), or token ids. tools: those
    that the model is told of. calls: the tools as a parser reads calls of them, None where none are
    looked for; with `one_call` the first one ends an answer. clip: `max_tokens` may be more than
    the context holds.
    """

    prompt: Prompt
    sampling: SamplingParams
    raw: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    choices: int = 1
    logprobs: int | None = None
    think: bool | None = None
    effort: str | None = None
    tools: Sequence[dict[str, Any]] = ()
    grammar: Grammar | None = None
    calls: Sequence[dict[str, Any]] | None = None
    one_call: bool = False
    progress: bool = False
    clip: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Prompt tokens that are read: `read` of `total`, the `cached` ones among them; after `ms`."""

    read: int
    total: int
    cached: int
    ms: float


@dataclass(frozen=True, slots=True)
class Delta:
    """What a round added to choice `choice`; in the last one is why it ended: stop, length, calls.

    `stop` is the stop string that ended it. `stats` are those of the choice so far.
    """

    choice: int
    stats: Stats
    text: str = ""
    thinking: str = ""
    parts: tuple[CallPart, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    stop: str | None = None


@dataclass(slots=True)
class Call:
    """A whole call of a tool; `arguments` is JSON."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class Whole:
    """One choice's deltas put together."""

    stats: Stats = field(default_factory=Stats)
    text: str = ""
    thinking: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""

    def add(self, delta: Delta) -> None:
        """Add what came."""
        self.stats = delta.stats
        self.text += delta.text
        self.thinking += delta.thinking
        self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason or self.finish_reason
        for part in delta.parts:
            if part.name:
                self.calls.append(Call(part.name))
            self.calls[part.number].arguments += part.arguments
