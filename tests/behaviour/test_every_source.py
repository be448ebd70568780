"""Every source of drafts where people meet it: several clients of a server, turns taken back."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import tiny
from serving import plant_seed, serving

from dflash_mlx import api
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair, load
from dflash_mlx.session import Session

EAGLE = tiny.GOLDEN / "eagle3"
SOURCES: dict[str, tuple[Any, Any]] = {  # target and drafter, as `load` has them
    "dflash": (None, None),
    "lookup": (None, "lookup"),
    "model": (None, bundled("target")),
    "eagle3": (EAGLE / "target", EAGLE / "draft"),
    "dspark": (tiny.GOLDEN / "qwen3_full" / "target", tiny.GOLDEN / "dspark_qwen3" / "draft"),
    "mtp": (tiny.GOLDEN / "mtp_qwen35" / "target", "mtp"),
}
TEXTS = (
    "Write the numbers from 1 to 9, then again the numbers from 1 to 9.",
    "Sort the words pear, apple and plum, then pear, plum and kiwi.",
    "Count from 3 to 9.",
)
SAMPLINGS: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, {"temperature": 0.9, "seed": 3})


@pytest.fixture(scope="module", params=SOURCES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return load(*SOURCES[request.param], cache_ram=1 << 28)


def tokens_of(pair: Pair, text: str) -> list[int]:
    if pair.target_name == "bundled":
        return pair.chat_tokens([{"role": "user", "content": text}])
    return pair.encode(text)


def check_served(pair: Pair, mode: Any) -> None:
    """Six requests at once get what each gets alone by plain decoding."""
    cases = [(tokens_of(pair, text), sampling) for text in TEXTS for sampling in SAMPLINGS]

    def ask(case: tuple[list[int], dict[str, Any]]) -> str:
        prompt, sampling = case
        found = client.completions.create(model="m", prompt=prompt, max_tokens=30, **sampling)
        return found.choices[0].text

    with serving(pair, mode=mode) as served, ThreadPoolExecutor(len(cases)) as pool:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
        said = list(pool.map(ask, cases))
    for (prompt, sampling), found in zip(cases, said, strict=True):
        params = SamplingParams(**sampling)
        plain = api.generate(pair, prompt, mode="baseline", sampling=params, max_tokens=30)
        tokens = [token for token in plain.tokens if token not in pair.target.eos_ids]
        assert found == pair.tokenizer.decode(tokens)


@pytest.mark.quick_every(8)
@pytest.mark.parametrize("mode", ["dflash", "ddtree"])
def test_clients_of_a_server(pair: Pair, mode: str) -> None:
    check_served(pair, mode)


@pytest.mark.quick_every(4)
def test_a_server_that_draws_with_another_seed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_seed(monkeypatch)
    with pytest.raises(AssertionError):
        check_served(pair, "dflash")


@pytest.mark.quick_every(4)
def test_turns_are_taken_back(pair: Pair) -> None:
    """Going on from an earlier place, with drafts, says what a fresh sequence says without."""
    session, drafted = Session(pair, mode="dflash", use_prefix_cache=False), 0
    first, second, third = (tokens_of(pair, text) for text in TEXTS)
    for prompt in ([*first, *second], [*first, *third], first, [*first, *second]):
        fresh = Session(pair, mode="baseline", use_prefix_cache=False)
        both = [
            [token for block in one.stream(prompt, max_tokens=30) for token in block.tokens]
            for one in (session, fresh)
        ]
        assert both[0] == both[1]
        drafted += session.stats.drafted
    assert drafted
