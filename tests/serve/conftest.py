"""The bundled pair, a server of it, and OpenAI's client of that server."""

from collections.abc import Iterator

import openai
import pytest
from serving import Served, serving

from dflash_mlx.pair import Pair, load


@pytest.fixture(scope="module")
def pair() -> Pair:
    """The bundled pair."""
    return load()


@pytest.fixture(scope="module")
def served(pair: Pair) -> Iterator[Served]:
    """A server of it."""
    with serving(pair) as running:
        yield running


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    """OpenAI's client of it."""
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
