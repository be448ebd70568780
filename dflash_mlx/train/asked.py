"""What the target is asked to answer, and what was found. Knows no model."""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt with its key: at most `room` tokens go on from `tokens`, drawn from `seed`."""

    key: str
    tokens: tuple[int, ...]
    room: int
    seed: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The tokens found for a key, and the taps [S, K * Ht] of all that was read, bfloat16.

    The last token was not read; `taps` is None where none are tapped.
    """

    key: str
    tokens: tuple[int, ...]
    taps: mx.array | None
