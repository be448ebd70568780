"""One question with its only right answer, and the rule that keeps some out of training."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """A question and its answers.

    `answer` is said without thinking; with thinking on, `thinking` comes first and `conclusion`
    is said after it.
    """

    family: str
    prompt: str
    thinking: str
    answer: str
    conclusion: str

    @property
    def held_out(self) -> bool:
        """One prompt in sixteen, by its hash: never trained on, by the target or by the drafter."""
        return hashlib.sha256(self.prompt.encode()).digest()[0] < 16
