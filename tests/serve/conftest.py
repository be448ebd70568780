"""The bundled pair, a server of it, OpenAI's client of that server, and a browser."""

from collections.abc import Iterator

import openai
import pytest
from browser import Browser, find_browser
from serving import Served, serving

from dflash_mlx.pair import Pair, load


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load()


@pytest.fixture(scope="module")
def served(pair: Pair) -> Iterator[Served]:
    with serving(pair) as running:
        yield running


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless browser; each of its tabs has storage of its own."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium or Chrome on this machine")
    running = Browser(program, tmp_path_factory.mktemp("browser"))
    yield running
    running.close()
