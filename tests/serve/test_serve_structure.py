"""Answers in a given form, asked for by OpenAI's own client."""

import json
from typing import Any

import openai
import pytest
from serving import Served, serving

from dflash_mlx import api
from dflash_mlx.grammar import Grammar
from dflash_mlx.options import Mode, SamplingParams
from dflash_mlx.pair import Pair

ASKED: Any = [{"role": "user", "content": "What is 12 plus 7?"}]


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["sum", "list"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}


@pytest.mark.quick_every(4)
@pytest.mark.parametrize("mode", ["dflash", "ddtree", "auto", "baseline"])
def test_a_schema_is_followed_in_every_mode(pair: Pair, mode: Mode) -> None:
    """The answer is the one of plain decoding under the same grammar, greedy and seeded."""
    with serving(pair, mode=mode) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        for options in ({}, {"temperature": 1.2, "seed": 4}):
            found = client.chat.completions.create(
                model="m", messages=ASKED, response_format=FORM, max_tokens=200, **options
            )
            mine = api.generate(
                pair, "What is 12 plus 7?", mode="baseline", schema=SCHEMA, max_tokens=200,
                sampling=SamplingParams(**options),
            )  # fmt: skip
            content = found.choices[0].message.content or ""
            assert content.strip() == mine.text.strip()
            assert json.loads(content)["kind"] in ("sum", "list")
            assert found.choices[0].finish_reason == "stop"


def test_streams_too(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="m", messages=ASKED, response_format=FORM, max_tokens=200, stream=True
    )
    text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    assert set(json.loads(text)) == {"ok", "kind"}


def test_any_object(client: openai.OpenAI, pair: Pair) -> None:
    found = client.chat.completions.create(
        model="m", messages=ASKED, response_format={"type": "json_object"}, max_tokens=60
    )
    mine = api.generate(
        pair, "What is 12 plus 7?", grammar=Grammar("json_object"), max_tokens=60, mode="baseline"
    )
    assert (found.choices[0].message.content or "").strip() == mine.text.strip()


@pytest.mark.parametrize(
    "form",
    [
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": [1]}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "unknown"}}},
    ],
)
def test_wrong_forms_are_named(client: openai.OpenAI, served: Served, form: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=r"response_format|schema"):
        client.chat.completions.create(model="m", messages=ASKED, response_format=form)
    assert served.busy == 0


def test_forms_of_the_other_apis(client: openai.OpenAI) -> None:
    found = client.responses.create(
        model="m", input="What is 12 plus 7?", max_output_tokens=200,
        text={"format": {"type": "json_schema", "name": "sum", "schema": SCHEMA}},
    )  # fmt: skip
    assert set(json.loads(found.output_text)) == {"ok", "kind"}
