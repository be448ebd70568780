"""A question with its only right answer, and the rule that holds samples out of training."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """A question and its answers.

    `answer`: without thinking. With thinking, the model first generates `thinking`, then
    `conclusion`.
    """

    family: str
    prompt: str
    thinking: str
    answer: str
    conclusion: str

    @property
    def held_out(self) -> bool:
        """Whether target and drafter never train on it: one prompt in 16, by its hash."""
        return hashlib.sha256(self.prompt.encode()).digest()[0] < 16
