"""What a chat template reads can be given; other variables and efforts are named."""

from typing import Any

import pytest
import tiny
from scripted_server import pair_saying

from dflash_mlx.chat.template import Template
from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.serve.anthropic_messages import MessagesBody
from dflash_mlx.serve.anthropic_messages import to_request as messages_request
from dflash_mlx.serve.ollama_chat import OllamaChatBody
from dflash_mlx.serve.ollama_chat import to_request as ollama_request
from dflash_mlx.serve.openai_chat import ChatBody, to_request
from dflash_mlx.serve.openai_responses import ResponsesBody
from dflash_mlx.serve.openai_responses import to_request as responses_request
from dflash_mlx.serve.protocol import Problem, Settings
from dflash_mlx.session import Session

ASK: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
# Three efforts, the highest by default, as Qwen3.8's; others are refused.
EFFORT = (
    "{%- set effort = reasoning_effort | default('xhigh') -%}"
    "{%- if effort not in ('low', 'medium', 'xhigh') -%}{{ raise_exception('no') }}{%- endif -%}"
    "<{{ effort }}>"
)
TEXT = (
    "{%- macro line(m) -%}{%- generation -%}[{{ m.role }}]{{ m.content }}{%- endgeneration -%}"
    "{%- endmacro -%}{%- if not style is defined %}{% set style = 'plain' %}{% endif -%}"
    "({{ style }}{% if preserve_thinking %} keep{% endif %}{{ bos_token }}"
    "{%- for d in documents or [] %} {{ d.text }}{% endfor %})"
    "{%- for m in messages -%}{{ line(m) }}{%- if false %}{% break %}{% endif -%}{%- endfor -%}"
)
SWITCH = "{%- if enable_thinking is defined and not enable_thinking -%}quiet{%- endif -%}"


def pair_of(template: str) -> Pair:
    return pair_saying("yes", ASK, tiny.byte_tokenizer(template=template), strict=False)


def prompted(pair: Pair, request: Any) -> str:
    """The prompt of a request."""
    prepared = Session(pair, mode="baseline").prepare(request.prompt, request.options)
    return pair.tokenizer.decode(list(prepared.request.prompt))


def asked(pair: Pair, **fields: Any) -> Any:
    body = ChatBody.model_validate({"messages": ASK, **fields})
    return to_request(body, pair, Settings(("m",), GenerationOptions(mode="baseline")))


def test_what_is_read() -> None:
    """Not the names that the template sets itself, nor those of transformers."""
    read = pair_of(EFFORT + TEXT + SWITCH).template.variables
    wanted = "reasoning_effort style preserve_thinking documents enable_thinking bos_token"
    assert read == frozenset(wanted.split())


def test_a_template_that_only_transformers_can_read() -> None:
    tokenizer = tiny.byte_tokenizer(template="{% some tag %}{{ style }}")
    assert "style" in Template(tokenizer, "m").variables


def test_variables_reach_the_template() -> None:
    pair = pair_of(TEXT)
    given = {"style": "grand", "preserve_thinking": True, "documents": [{"text": "D"}]}
    request = asked(pair, chat_template_kwargs=given)
    assert prompted(pair, request) == "(grand keep D)[user]go"
    assert request.ignored == ()


def test_others_are_named() -> None:
    """Also the arguments of transformers, which would change what is rendered."""
    pair = pair_of(TEXT)
    names = ("colour", "add_generation_prompt", "tokenize", "messages", "raise_exception")
    request = asked(pair, chat_template_kwargs=dict.fromkeys(names, 1))
    assert prompted(pair, request) == prompted(pair, asked(pair))
    assert request.ignored == tuple(
        f"chat_template_kwargs.{name} (the chat template does not read it)" for name in names
    )
    with pytest.raises(Problem, match="more than 200"):
        asked(pair, chat_template_kwargs={f"x{n}": 1 for n in range(201)})


def test_in_python() -> None:
    """`generate` takes them, and refuses those that are not read."""
    pair = pair_of(TEXT)
    session = Session(pair, mode="baseline")
    ids = session.prepare("go", chat_template_kwargs={"style": "grand"}).request.prompt
    assert "(grand" in pair.tokenizer.decode(list(ids))
    with pytest.raises(UsageError, match="reads no 'colour'"):
        session.prepare("go", chat_template_kwargs={"colour": 1})
    with pytest.raises(UsageError, match="need a chat template"):
        session.prepare("go", raw=True, chat_template_kwargs={"style": "grand"})


@pytest.mark.parametrize(
    ("effort", "used"),
    [
        ("low", "low"),
        ("minimal", "low"),
        ("none", "low"),
        ("medium", "medium"),
        ("high", "xhigh"),
        ("max", "xhigh"),
    ],
)
def test_the_nearest_effort(effort: str, used: str) -> None:
    """By the field, by the template's variable, and in the other APIs; it is named."""
    pair = pair_of(EFFORT + TEXT)
    settings = Settings(("m",), GenerationOptions(mode="baseline"))
    responses = ResponsesBody.model_validate({"input": "go", "reasoning": {"effort": effort}})
    messages = MessagesBody.model_validate(
        {"messages": ASK, "max_tokens": 3, "output_config": {"effort": effort}}
    )
    for request in (
        asked(pair, reasoning_effort=effort),
        asked(pair, chat_template_kwargs={"reasoning_effort": effort}),
        responses_request(responses, pair, settings),
        messages_request(messages, pair, settings),
    ):
        assert f"<{used}>" in prompted(pair, request)
        named = [note for note in request.ignored if f"effort {effort}" in note and used in note]
        assert bool(named) == (effort != used)


def test_ollamas_nearest_effort_is_named_beside_other_fields() -> None:
    pair = pair_of("{% if false %}<think>{% endif %}" + EFFORT + TEXT)
    body = OllamaChatBody.model_validate({"messages": ASK, "think": "high"})
    request = ollama_request(body, pair, Settings(("m",), GenerationOptions(mode="baseline")))
    assert "<xhigh>" in prompted(pair, request)
    assert request.ignored == ("reasoning_effort high (this model has xhigh nearest to it)",)


def test_no_effort_where_thinking_can_be_switched_off() -> None:
    """Then none means that."""
    pair = pair_of(EFFORT + TEXT + SWITCH)
    assert prompted(pair, asked(pair, reasoning_effort="none")).endswith("quiet")


def test_a_word_that_is_no_effort() -> None:
    with pytest.raises(Problem, match="cannot be 'ultra': give low, medium, xhigh"):
        asked(pair_of(EFFORT + TEXT), reasoning_effort="ultra")


def test_the_template_itself_refuses_what_it_does_not_read() -> None:
    with pytest.raises(UsageError, match="reads no 'a'"):
        pair_of(TEXT).template.write(ASK, GenerationOptions(chat_template_kwargs={"b": 1, "a": 1}))
