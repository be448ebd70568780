from collections.abc import Iterator

import pytest
import tiny

from dflash_mlx.pair import Pair


@pytest.fixture(scope="module")
def shared() -> Pair:
    return tiny.golden_pair("qwen3_full")


@pytest.fixture
def pair(shared: Pair) -> Iterator[Pair]:
    """The same pair, which no answer uses any more after a test."""
    yield shared
    assert not shared.engine._running
