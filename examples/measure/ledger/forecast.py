"""Forecasts the tokens per second of a pair on a chip from counted bytes, products and dispatches.

Some numbers of the chips are estimates (chips.toml), so nothing here is a measurement. Covers MLX's
own kernels only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dflash_mlx.errors import UsageError
from dflash_mlx.hub.bits import chosen_bits

from .chips import Chip
from .counted import CountedPair
from .published import Published
from .tally import Tally

WIDTHS = (2, 3, 4, 5, 8)  # rows of a draft and its verify pass, besides the drafter's own block


@dataclass(frozen=True, slots=True)
class Forecast:
    """Tokens per second: of decode steps, and of the best chain of `rows`."""

    plain: float
    drafted: float
    rows: int


def forecast(pair: CountedPair, depth: int, chip: Chip, tokens: float) -> Forecast:
    """The forecast after `depth` tokens; `tokens` is the acceptance length with whole blocks.

    The acceptance length of narrower rounds assumes that each draft is accepted with one
    probability. UsageError if no whole block commits so many tokens.
    """
    chance = chance_of(tokens, pair.block)
    rates: dict[float, int] = {}
    for rows in (*(rows for rows in WIDTHS if rows < pair.block), pair.block):
        draft = pair.draft(depth, rows, chip)
        seconds = round_of(draft, pair.verify(depth, rows, chip), chip)
        rates[committed(chance, rows) / seconds] = rows
    plain = 1 / step_of(pair.verify(depth, 1, chip), chip)
    return Forecast(plain, max(rates), rates[max(rates)])


def round_of(draft: Tally, verify: Tally, chip: Chip) -> float:
    """Seconds of a round: the host builds the verify pass during the draft and waits once."""
    drafting = max(draft.seconds(chip), chip.host * verify.dispatches)
    return chip.host * draft.dispatches + drafting + verify.seconds(chip) + chip.sync


def step_of(step: Tally, chip: Chip) -> float:
    """Seconds of a decode step: the host builds the next one meanwhile."""
    return max(step.seconds(chip), chip.host * step.dispatches)


def committed(chance: float, rows: int) -> float:
    """Acceptance length of a round if each draft is accepted with this probability."""
    return sum(chance**place for place in range(rows))


def chance_of(tokens: float, rows: int) -> float:
    """The probability for which `committed` returns `tokens`; UsageError if there is none."""
    if not 1 <= tokens <= rows:
        raise UsageError(
            f"a round cannot commit {tokens:g} tokens.", hint=f"give 1 to {rows} for this drafter"
        )
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if committed(middle, rows) < tokens else (low, middle)
    return high


def counted(pairs: Sequence[Published], tokens: float) -> dict[str, CountedPair]:
    """Each pair by its name; UsageError if a block cannot commit so many tokens."""
    known: dict[str, CountedPair] = {}
    for published in pairs:
        bits = chosen_bits(None, target_quantised=published.mode != "none")
        pair = CountedPair(published, bits)
        chance_of(tokens, pair.block)
        known[published.name] = pair
    return known


def table(
    pairs: Mapping[str, CountedPair], every: Iterable[Chip], depth: int, tokens: float
) -> Iterator[str]:
    """The lines of a table: plain and drafted speeds of each pair, and the best number of rows."""
    yield f"| chip | {' | '.join(pairs)} |"
    yield f"|---|{'---|' * len(pairs)}"
    for chip in every:
        found = [forecast(pair, depth, chip, tokens) for pair in pairs.values()]
        cells = [f"{one.plain:.0f} → {one.drafted:.0f} ({one.rows})" for one in found]
        yield f"| {' | '.join([chip.name, *cells])} |"
