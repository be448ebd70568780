"""How many prompt tokens a round reads while others wait for their next tokens.

Numbers only; does not know sequences.
"""

STALL = 0.1  # seconds that others may wait for a round that reads
LEAST, MOST = 8, 2048  # tokens a round
FIRST = 256  # before anything was measured


class Pace:
    """`tokens` are what a round of STALL seconds has read, by the rounds so far."""

    def __init__(self) -> None:
        self.tokens = FIRST

    def learn(self, read: int, seconds: float) -> None:
        """Count a round that read so many prompt tokens beside others, in so many seconds."""
        if read:
            fits = int(read * STALL / seconds)
            self.tokens = min(MOST, max(LEAST, (self.tokens + fits) // 2))
