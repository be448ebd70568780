"""What holds for all APIs of chats alike."""

import asyncio
from types import ModuleType
from typing import Any

import messages_api
import pytest
import responses_api
from every_api import CHAT, PATHS, ask
from scripted_server import HI, bundled, listening, pair_saying, server_of

from dflash_mlx import api
from dflash_mlx.options import SamplingParams

QUESTION = "Sort these words: pear, apple, kiwi, zebra, fig"
ASKED = [{"role": "user", "content": QUESTION}]
SEEDED = SamplingParams(temperature=2.0, top_p=0.99, seed=11)
LIMIT = 60  # tokens


FINISH = {"end_turn": "stop", "completed": "stop", "max_tokens": "length", "incomplete": "length"}


@pytest.mark.quick_every(3)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", PATHS)
def test_answers_are_those_of_generate(path: str, streamed: bool) -> None:
    """The server changes no token, whole or streamed, greedily and with a seed.

    Comments and pings stand between the events, which clients must leave out.
    """
    server = server_of(bundled(), keepalive=1e-6)
    usage = {"stream_options": {"include_usage": True}} if path == CHAT else {}
    for sampling in (SamplingParams(), SEEDED):
        values = {name: getattr(sampling, name) for name in ("temperature", "top_p", "seed")}
        answer = ask(server, path, ASKED, limit=LIMIT, stream=streamed, **values, **usage)
        result = api.generate(bundled(), QUESTION, sampling=sampling, max_tokens=LIMIT)
        assert answer.text == result.text
        assert (answer.tokens, answer.prompt_tokens) == (
            len(result.tokens),
            result.stats.prompt_tokens,
        )
        assert FINISH.get(answer.reason, answer.reason) == result.finish_reason


@pytest.mark.parametrize(
    ("client", "limit", "event"),
    [
        (messages_api, "max_tokens", "text_delta"),
        (responses_api, "max_output_tokens", "output_text.delta"),
    ],
    ids=["messages", "responses"],
)
def test_a_client_that_goes_stops_its_answer(client: ModuleType, limit: str, event: str) -> None:
    """Nothing runs on for nobody, and the place in the line is free."""
    server = server_of(pair_saying("long " * 400, HI))
    body: dict[str, Any] = {**client.BODY, limit: 2000, "stream": True}

    async def go() -> int:
        async with listening(server, client.PATH, body) as listener:
            while event not in await listener.next():
                pass
            assert server.models.admission.running == 1
        return server.models.admission.running

    assert asyncio.run(go()) == 0
    assert client.ask(server, **{limit: 5}).usage.output_tokens == 5
