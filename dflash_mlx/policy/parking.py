"""What is done rarely while it does not pay: drafting at all, and looks that cost a little.

Counts what things brought and what they took. Knows neither plans nor how gains are foreseen.
"""

from math import ceil


class Parking:
    """Whether to draft, by what drafted rounds save against plain steps.

    Drafting is parked when the last drafts would have saved nothing and doubt has used up its share
    of what drafting has saved before. It is tried again after a wait that doubles, and is longer
    the more a try loses; at the beginning of a conversation also sooner, while all tries together
    have lost little. Seconds throughout.
    """

    SLACK = 0.05  # share of earlier savings that doubt may use up
    MOST = 2.0  # plain steps that it may use up
    PATIENCE = 25.0, 200.0  # plain steps to wait for each that a try loses: at first, at most
    UNPROVEN = 4  # times as long are the waits while no drafts were ever kept
    SETTLED = 8  # drafted rounds after which the waits begin with the shortest again
    LATELY = 0.05  # share of the last drafted round in what such rounds are late by
    RISK = 0.01  # share of all time that tries may have lost when a conversation begins with one

    def __init__(self) -> None:
        self.parked = False
        self.wait = self.tries = 0
        self._fails = self._streak = 0
        self._doubt = self._saved = self._lost = self._elapsed = self._late = 0.0
        self.foreseen = 0.0

    def begin(self) -> None:
        """A new conversation."""
        if self.parked and self._lost <= self.RISK * self._elapsed:
            self.wait = self._fails = 0

    def spend(self, seconds: float) -> None:
        """A round took so long."""
        self._elapsed += seconds

    def learn(
        self,
        foreseen: float,
        last: float,
        saved: float,
        plain: float,
        *,
        late: float,
        proven: bool,
        whole: bool = False,
    ) -> None:
        """After a drafted round: what drafts like the last ones save, like the very last, and what
        this round has saved; `plain` is a plain step, `late` what this round took longer than
        expected, `proven` that drafts were ever kept, and `whole` that this round kept all of its
        own: then a try is followed by another.
        """
        self._late += self.LATELY * (late - self._late)
        usual = max(0.0, self._late)
        self.foreseen = foreseen = foreseen - usual
        self._doubt = max(0.0, self._doubt - (last - usual))
        self._saved = min(max(0.0, self._saved + saved), self.MOST * plain / self.SLACK)
        self._streak = self._streak + 1 if foreseen >= 0 else 0
        if self.parked or foreseen < 0:
            self.tries += 1
            self._lost = max(0.0, self._lost - saved)
        if foreseen >= 0 or (not self.parked and self._doubt <= self.SLACK * self._saved):
            self.parked = False
            if self._streak >= self.SETTLED:
                self._fails = 0
            return
        if self.parked and whole:
            return
        first, most = self.PATIENCE
        steps = (1 if proven else self.UNPROVEN) * min(first * 2.0**self._fails, most)
        self.wait = ceil(max(0.1, -foreseen / plain) * steps)
        self.parked, self._doubt, self._fails = True, 0.0, min(self._fails + 1, 16)


class Interest:
    """Whether something that costs a little is worth doing, by what it brought of late.

    Where it is not, it is still done once in a while.
    """

    MEMORY = 0.98
    RARELY = 48  # times that it is due before it is done anyway

    def __init__(self) -> None:
        self._brought, self._hoped, self._idle = 0.1, 1.0, 0

    def due(self, hope: float, price: float) -> bool:
        """Whether to do it for this price, where it could bring as much as `hope`."""
        self._idle += 1
        return self._brought / self._hoped * hope >= price or self._idle > self.RARELY

    def learn(self, brought: float, hope: float) -> None:
        """It was done."""
        self._brought = self.MEMORY * self._brought + brought
        self._hoped = self.MEMORY * self._hoped + hope
        self._idle = 0
