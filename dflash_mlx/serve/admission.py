"""Who is answered now and who waits: places, memory, and a line that is kept in order.

Lives in one event loop. Knows numbers only.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from .problem import Problem


@dataclass(eq=False, slots=True)
class Ticket:
    """A place in the line for one answer that needs so many bytes."""

    need: int
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


class Admission:
    """At most `places` answers at once, in at most `room` bytes; first come, first served."""

    def __init__(self, places: int, room: int, queue: int):
        self.places, self.room, self._most_waiting = places, room, queue
        self._line: deque[Ticket] = deque()
        self._inside: set[Ticket] = set()

    @property
    def running(self) -> int:
        """Answers that are being found."""
        return len(self._inside)

    @property
    def waiting(self) -> int:
        """Answers that wait for a place."""
        return len(self._line)

    @property
    def used(self) -> int:
        """Bytes that are set aside for those inside."""
        return sum(ticket.need for ticket in self._inside)

    def line_up(self, needs: list[int]) -> list[Ticket]:
        """Places in the line for answers of one request, all or none.

        Problem 400 for one that can never fit, 429 where too many wait.
        """
        if most := max((need for need in needs if need > self.room), default=0):
            raise Problem(
                400,
                f"prompt is too long: its answer would need {most / 1e9:.2f} GB of memory, and "
                f"{self.room / 1e9:.2f} GB are free beside the model. (Shorten it, or ask for "
                "fewer max_tokens.)",
                code="context_length_exceeded",
            )
        free = self.places - self.running
        if self.waiting + len(needs) > self._most_waiting + free:
            raise Problem(
                429,
                f"too many requests: {self.running} are answered and {self.waiting} wait.",
                code="rate_limit_exceeded",
                retry_after=1 + self.waiting // max(self.places, 1),
            )
        tickets = [Ticket(need) for need in needs]
        self._line.extend(tickets)
        self._advance()
        return tickets

    def leave(self, ticket: Ticket) -> None:
        """Give a place back, in the line or inside."""
        if ticket in self._inside:
            self._inside.remove(ticket)
        elif ticket in self._line:
            self._line.remove(ticket)
        self._advance()

    @asynccontextmanager
    async def inside(self, ticket: Ticket) -> AsyncIterator[None]:
        """Wait for a ticket's turn, and give its place back afterwards."""
        try:
            await ticket.admitted.wait()
            yield
        finally:
            self.leave(ticket)

    def _advance(self) -> None:
        """Let in whose turn it is; a large one is not overtaken for ever."""
        while self._line and self.running < self.places:
            first = self._line[0]
            if self.used + first.need > self.room and self._inside:
                return
            self._inside.add(self._line.popleft())
            first.admitted.set()
