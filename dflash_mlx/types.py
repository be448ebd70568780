"""The values that cross modules."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round drafts and verifies for a sequence, in rows with the anchor's.

    1 row is a decode step. More rows verify the first `rows` - 1 drafts of a block, or a `tree` of
    `rows` - 1 nodes. The block has `drafted` rows; 0: as many as the request or the drafter says.
    With `chain_seed` the tree contains the greedy chain.
    """

    rows: int
    tree: bool = False
    chain_seed: bool = False
    drafted: int = 0


DECODE_STEP = Plan(1)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token by the target, before penalties, filters and temperature.

    `top`: the likeliest tokens at its place with their log-probabilities, the likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


CallState = Literal["open", "done", "failed", "refused", "interrupted"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. arguments: JSON. result: the text that the model gets.

    state: "open" until the call is run or refused.
    """

    name: str
    arguments: str
    result: str = ""
    state: CallState = "open"


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens that one verify pass, one decode step or the end of the prefill commits.

    `drafted`: drafts that were verified. `depth`: the positions that they were for, often fewer
    in a tree. `accepted`: how many of `tokens` are drafts. `text` and `thinking`: what
    can be shown since the last block; a stop token has no text. `finish_reason`: "stop" or
    "length" in the last block, else None. `logprobs`: those of `tokens`, if they were requested.
    `rejected`: the drafts that would have followed the accepted ones; in a tree, the likeliest.
    `calls`: the tool calls that end here, where somebody takes them out of the text. `stop`: the
    stop string that ended the answer.
    """

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    text: str = ""
    thinking: str = ""
    finish_reason: str | None = None
    depth: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    rejected: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """How many snapshots a conversation's caches keep, and how many bytes they take at most."""

    count: int
    nbytes: int


SNAPSHOT_LIMITS = SnapshotLimits(6, 1 << 30)

# The progress of long work

Progress = Callable[[int, int], None]  # done, total


def silent(done: int, total: int) -> None:
    """Ignore the progress."""
