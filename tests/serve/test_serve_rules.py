"""Rules for the tokens of an answer and forms of it, as vLLM and llama-server name them."""

import json
import re
from typing import Any

import openai
import pytest
from serving import Served, serving

from dflash_mlx import api
from dflash_mlx.grammar import Grammar
from dflash_mlx.options import Mode, SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.serve.writer import CUT_FORM

QUESTION = "What is 12 plus 7?"
USER: Any = {"role": "user", "content": QUESTION}
SEEDED = {"temperature": 1.1, "seed": 6}


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    """One answer; the fields may be beyond those of the client."""
    return client.chat.completions.create(model="m", messages=[USER], extra_body=fields)


@pytest.mark.parametrize("sampling", [{}, SEEDED], ids=["greedy", "seeded"])
def test_rules_are_those_of_plain_decoding(
    client: openai.OpenAI, pair: Pair, sampling: dict[str, Any]
) -> None:
    """Sent to a server that drafts; the same options in Python without drafts."""
    usual = api.generate(
        pair, QUESTION, mode="baseline", max_tokens=30, sampling=SamplingParams(**sampling)
    )
    mine = usual
    word = pair.tokenizer.decode([usual.tokens[-3]]).strip() or "the"
    rules: list[dict[str, Any]] = [
        {"min_tokens": 25, "stop_token_ids": (usual.tokens[5],)},
        {"ignore_eos": True},
        {"bad_words": (word, "12 plus")},
        {"allowed_token_ids": tuple(range(0, 600, 2))},
    ]
    for options in rules:
        found = ask(client, max_tokens=30, **sampling, **options)
        mine = api.generate(
            pair, QUESTION, mode="baseline", max_tokens=30,
            sampling=SamplingParams(**sampling), **options,
        )  # fmt: skip
        assert (found.choices[0].message.content or "").strip() == mine.text.strip()
        assert found.usage.completion_tokens == len(mine.tokens)
        assert found.dflash["ignored"] == []
    assert mine.tokens != usual.tokens


def test_xtc_and_the_name_of_llama_server(client: openai.OpenAI, pair: Pair) -> None:
    fields = {**SEEDED, "xtc_probability": 0.9, "xtc_threshold": 0.05}
    found = ask(client, max_tokens=30, repeat_penalty=1.2, **fields)
    params = SamplingParams(repetition_penalty=1.2, **fields)
    mine = api.generate(pair, QUESTION, mode="baseline", max_tokens=30, sampling=params)
    assert (found.choices[0].message.content or "").strip() == mine.text.strip()


SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
KIND = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["sum", "list"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": KIND}}
CHOICES = ["nineteen", "twenty"]
FORMS: tuple[tuple[dict[str, Any], Grammar], ...] = (
    ({"guided_regex": "[0-9]{2} or [0-9]{2}"}, Grammar("regex", "[0-9]{2} or [0-9]{2}")),
    ({"guided_choice": CHOICES}, Grammar.of_choices(CHOICES)),
    ({"structured_outputs": {"choice": CHOICES}}, Grammar.of_choices(CHOICES)),
    ({"guided_json": SCHEMA}, Grammar.of_schema(SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, Grammar.of_schema(SCHEMA)),
    ({"json_schema": SCHEMA}, Grammar.of_schema(SCHEMA)),
    ({"grammar": 'root ::= [0-9]+ "!"'}, Grammar("lark", 'start: /[0-9]+/ "!"')),
    ({"guided_grammar": 'start: "is " /[0-9]{2}/'}, Grammar("lark", 'start: "is " /[0-9]{2}/')),
    ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
    ({"response_format": FORM}, Grammar.of_schema(KIND)),
    ({"response_format": FORM, "temperature": 1.2, "seed": 4}, Grammar.of_schema(KIND)),
)


@pytest.mark.quick_every(4)
@pytest.mark.parametrize("mode", ["dflash", "ddtree", "auto", "baseline"])
def test_forms_are_followed_in_every_mode(pair: Pair, mode: Mode) -> None:
    """The answer is the one of plain decoding under the same grammar, by each name of a form."""
    with serving(pair, mode=mode) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        for fields, grammar in FORMS:
            found = ask(client, max_tokens=60, **fields)
            sampling = SamplingParams(**{n: fields[n] for n in SEEDED if n in fields})
            mine = api.generate(
                pair, QUESTION, mode="baseline", grammar=grammar, max_tokens=60, sampling=sampling
            )
            assert (found.choices[0].message.content or "").strip() == mine.text.strip(), fields


def test_a_form_of_a_stream_and_of_a_response(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="m", messages=[USER], response_format=FORM, max_tokens=200, stream=True
    )
    text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    assert set(json.loads(text)) == {"ok", "kind"}
    found = client.responses.create(
        model="m", input=QUESTION, max_output_tokens=200,
        text={"format": {"type": "json_schema", "name": "sum", "schema": KIND}},
    )  # fmt: skip
    assert set(json.loads(found.output_text)) == {"ok", "kind"}


def test_a_form_of_a_text_completion(client: openai.OpenAI) -> None:
    found = client.completions.create(
        model="m", prompt="The sum is", max_tokens=20, extra_body={"guided_regex": "[0-9]{3}"}
    )
    assert re.fullmatch(r"[0-9]{3}", found.choices[0].text)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_before_its_form_is_complete_says_so(
    client: openai.OpenAI, stream: bool
) -> None:
    fields: dict[str, Any] = {"guided_regex": "[0-9]{50}", "max_tokens": 5}
    if stream:
        chunks = client.chat.completions.create(
            model="m", messages=[USER], stream=True, extra_body=fields
        )
        found: Any = list(chunks)[-1]
    else:
        found = ask(client, **fields)
    assert found.choices[0].finish_reason == "length"
    assert found.dflash["incomplete"] == CUT_FORM
    free = ask(client, max_tokens=5)
    assert "incomplete" not in free.dflash


def test_a_limit_beyond_the_context_is_clipped(client: openai.OpenAI, served: Served) -> None:
    """Agents send 32,000 to everyone."""
    found = ask(client, max_tokens=32_000, stop=["1", "2", "the"])
    left = served.server.first.runner.context - found.usage.prompt_tokens
    assert found.dflash["max_tokens"] == left
    assert found.dflash["clipped_from"] == 32_000
    text = client.completions.create(model="m", prompt="a", max_tokens=32_000, stop=["e", "a"])
    assert text.model_extra["dflash"]["clipped_from"] == 32_000  # type: ignore[index]
    response: Any = client.responses.create(
        model="m", input=QUESTION, max_output_tokens=32_000, extra_body={"stop": ["1", "the"]}
    )
    assert response.dflash["clipped_from"] == 32_000
    within = ask(client, max_tokens=4)
    assert within.dflash["max_tokens"] == 4
    assert "clipped_from" not in within.dflash
