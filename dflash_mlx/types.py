"""The values that cross modules."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round verifies: `rows` of the target, the anchor's included.

    1 row is a plain step, without a draft. More are a chain of drafts, the first `rows` - 1 of the
    block that is drafted; or a `tree` of as many nodes, which with `chain_seed` has that chain in
    it.
    """

    rows: int
    tree: bool = False
    chain_seed: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token by the target, before penalties, filters and temperature.

    `top` are the likeliest tokens of its place with theirs, the likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens committed together: those of one verify, the prefill's one token, or a plain step's.

    `drafted` is how many drafts the verify checked (0 outside a verify), `depth` how many positions
    they were for, which is less where they were a tree, and `accepted` how many of `tokens` are
    drafts. `text` and `thinking` are what became readable with this block; a stop
    token has no text. `finish_reason` is None but in the last block: "stop" or "length".
    `logprobs` are those of the tokens, where they were asked for.
    """

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    text: str = ""
    thinking: str = ""
    finish_reason: str | None = None
    depth: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """How many snapshots a conversation's caches keep, and how many bytes they take at most."""

    count: int
    nbytes: int


SNAPSHOT_LIMITS = SnapshotLimits(6, 1 << 30)

# What long work tells those who watch it.

Progress = Callable[[int, int], None]  # what is done, and all


def silent(done: int, total: int) -> None:
    """Ignore the progress."""
