"""What holds for Anthropic's messages, OpenAI's responses and Ollama's API alike."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import messages_api
import pytest
import responses_api
from scripted_server import HI, URL, bundled, listening, pair_saying, server_of, transport
from serving import plant

from dflash_mlx import api
from dflash_mlx.options import SamplingParams
from dflash_mlx.serve.app import Server

QUESTION = "Sort these words: pear, apple, kiwi, zebra, fig"
SEEDED = SamplingParams(temperature=2.0, top_p=0.99, seed=11)
LIMIT = 60  # tokens


@dataclass(frozen=True)
class Answer:
    texts: list[str]
    tokens: int
    prompt_tokens: int
    finish_reason: str | None


def from_messages(server: Server, sampling: SamplingParams, *, streamed: bool) -> Answer:
    ask = messages_api.ask_streamed if streamed else messages_api.ask
    message = ask(
        server,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=LIMIT,
        extra_body={
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
        },
    )
    usage = message.usage
    return Answer(
        texts=[block.text for block in message.content],
        tokens=usage.output_tokens,
        prompt_tokens=usage.input_tokens + usage.cache_read_input_tokens,
        finish_reason={"end_turn": "stop", "max_tokens": "length"}.get(message.stop_reason),
    )


def from_responses(server: Server, sampling: SamplingParams, *, streamed: bool) -> Answer:
    ask = responses_api.ask_streamed if streamed else responses_api.ask
    response = ask(
        server,
        input=QUESTION,
        max_output_tokens=LIMIT,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        extra_body={"seed": sampling.seed},
    )
    return Answer(
        texts=[response.output_text],
        tokens=response.usage.output_tokens,
        prompt_tokens=response.usage.input_tokens,
        finish_reason={"completed": "stop", "incomplete": "length"}.get(response.status),
    )


def from_ollama(server: Server, sampling: SamplingParams, *, streamed: bool) -> Answer:
    """The answer to QUESTION of Ollama's API, in whose stream each line is JSON."""
    options = {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "options": {**options, "num_predict": LIMIT},
        "stream": streamed,
    }

    async def read() -> str:
        async with transport(server) as client:
            return (await client.post(f"{URL}/api/chat", json=body)).text

    lines = [json.loads(line) for line in asyncio.run(read()).splitlines()]
    return Answer(
        texts=["".join(line["message"]["content"] for line in lines)],
        tokens=lines[-1]["eval_count"],
        prompt_tokens=lines[-1]["prompt_eval_count"],
        finish_reason=lines[-1]["done_reason"],
    )


Ask = Callable[..., Answer]
every_api = pytest.mark.parametrize(
    "ask", [from_messages, from_responses, from_ollama], ids=["messages", "responses", "ollama"]
)
both = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def check_bundled(ask: Ask, streamed: bool) -> None:
    """Answers of the bundled pair are those of `generate`, greedily and with a seed.

    Comments and pings stand between the events, which clients must leave out.
    """
    server = server_of(bundled(), keepalive=1e-6)
    for sampling in (SamplingParams(), SEEDED):
        answer = ask(server, sampling, streamed=streamed)
        result = api.generate(bundled(), QUESTION, sampling=sampling, max_tokens=LIMIT)
        assert answer == Answer(
            texts=[result.text],
            tokens=len(result.tokens),
            prompt_tokens=result.stats.prompt_tokens,
            finish_reason=result.finish_reason,
        )


@pytest.mark.quick_every(3)
@both
@every_api
def test_answers_are_those_of_generate(ask: Ask, streamed: bool) -> None:
    """The server changes no token, whole or streamed."""
    check_bundled(ask, streamed)


@pytest.mark.quick_every(4)
@both
@pytest.mark.parametrize("fault", ["seed", "text"])
@every_api
def test_another_answer_would_be_seen(
    ask: Ask, fault: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above fails for another seed, and for a piece of text that is lost."""
    plant(fault, monkeypatch)
    with pytest.raises(AssertionError):
        check_bundled(ask, streamed)


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
