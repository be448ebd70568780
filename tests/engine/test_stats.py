import pytest

from dflash_mlx.engine.stats import DraftRecord, Stats
from dflash_mlx.types import Block


def test_counts() -> None:
    """Tokens, verifies, drafts and slots; the prefill's token is in no pass, a step's alone."""
    stats = Stats()
    for block in (
        Block((1,)),
        Block((2, 3, 4), drafted=7, accepted=2),
        Block((8,)),
        Block((9,)),
        Block((5,), drafted=7, accepted=0),
        Block((6, 7), drafted=2, accepted=2, finish_reason="length"),
    ):
        stats.record(block)
    assert stats.generated == 9
    assert stats.verifies == 3
    assert stats.committed == [3, 1, 1, 1, 2]
    assert stats.acceptance_length == 1.6
    assert (stats.drafted, stats.accepted) == (16, 4)
    assert stats.acceptance_rate == 0.25
    assert stats.accepted_by_position == [2, 2, 0, 0, 0, 0, 0]


def test_nothing_yet() -> None:
    """Rates of an answer without a verify, and without a token."""
    stats = Stats()
    assert (stats.acceptance_length, stats.acceptance_rate) == (1.0, 0.0)
    assert stats.tokens_per_second == 0.0
    stats.record(Block((1,), finish_reason="stop"))
    assert stats.tokens_per_second == 0.0
    assert stats.verifies == 0


def test_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decode rate leaves out the first token and the prefill, and no time is left out."""
    clock = iter([12.0, 12.5, 13.0])
    monkeypatch.setattr("dflash_mlx.engine.stats.time.perf_counter", lambda: next(clock))
    stats = Stats(_began=10.0, _requested=3.0)
    stats.record(Block((1,)))
    stats.record(Block((2, 3, 4), drafted=3, accepted=2))
    stats.record(Block((5,), drafted=3))
    assert stats.first_token_seconds == 9.0
    assert stats.prefill_seconds == 2.0
    assert stats.decode_seconds == 1.0
    assert stats.tokens_per_second == 4.0


@pytest.mark.parametrize(
    ("passes", "accepted", "useless"),
    [(11, 0, False), (12, 0, True), (45, 0, True), (45, 1, False), (100, 2, True), (100, 3, False)],
)
def test_a_drafter_that_is_of_no_use(passes: int, accepted: int, useless: bool) -> None:
    """Nearly no draft was accepted; a few passes, or one accepted draft of few, prove nothing."""
    record = DraftRecord()
    for number in range(passes):
        record.count(own=1 + number % 15, kept=number < accepted)
        record.count(own=0, kept=0)
    assert (record.passes, record.accepted) == (passes, accepted)
    assert record.is_useless == useless


def test_only_the_first_hundred_drafts_of_a_run_count() -> None:
    """A drafter that once worked is not blamed for a text that it cannot guess."""
    record = DraftRecord()
    for number in range(1000):
        record.count(own=15, kept=15 * (number < 40))
    assert (record.passes, record.accepted) == (100, 40)
    assert not record.is_useless
