"""Options of an answer as fields of a request, for the servers that know them.

OpenAI's own fields are taken for known everywhere, further ones where the server says what it is.
What a server has no field for is refused by the option's name: most servers ignore unknown fields.
"""

import json
from collections.abc import Sequence
from typing import Any

from dflash_mlx.errors import UsageError
from dflash_mlx.structure.grammar import Grammar
from dflash_mlx.types import SamplingParams

# By what a server's list of models says who owns them.
KINDS = {"dflash": "dflash serve", "vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}
OTHER = "this server"
OPENAI_FIELDS = {"presence_penalty": 0.0, "frequency_penalty": 0.0}
MORE_FIELDS = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}  # and the values that are off
OWN_NAMES = {("llamacpp", "repetition_penalty"): "repeat_penalty"}
WITH_PROGRESS = ("dflash", "llamacpp")


def sampling_fields(params: SamplingParams, kind: str) -> dict[str, Any]:
    """How tokens are chosen. What is off is said to be off, where the server knows the field:
    its own default may be another.
    """
    if params.logit_bias:
        raise UsageError("logit_bias is of token ids, which a server elsewhere may not share.")
    found: dict[str, Any] = {"temperature": params.temperature, "top_p": params.top_p}
    for name, off in (OPENAI_FIELDS | MORE_FIELDS).items():
        value = getattr(params, name)
        if name in OPENAI_FIELDS or kind in KINDS:
            value = -1 if name == "top_k" and not value else value  # SGLang's word for off
            if name in MORE_FIELDS or value != off:
                found[OWN_NAMES.get((kind, name), name)] = value
        elif value != off:
            raise no_field(f"--{name.replace('_', '-')}")
    if params.seed is not None:
        found["seed"] = params.seed
    return found


def thinking_fields(think: bool | None, effort: str | None, kind: str) -> dict[str, Any]:
    """Whether and how hard to think."""
    found, template = dict[str, Any](), dict[str, Any]()
    if think is not None:
        if kind not in KINDS:
            raise no_field("--think" if think else "--no-think")
        template["enable_thinking"] = think
    if effort is not None and kind == "llamacpp":
        template["reasoning_effort"] = effort
    elif effort is not None:
        found["reasoning_effort"] = effort
    return found | ({"chat_template_kwargs": template} if template else {})


def form_fields(grammar: Grammar | None) -> dict[str, Any]:
    """The form of the answer."""
    if grammar is None:
        return {}
    if grammar.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if grammar.kind != "json_schema":
        raise no_field("--grammar")
    form = {"name": "answer", "schema": json.loads(grammar.text), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def no_field(option: str) -> UsageError:
    """An option that cannot be sent."""
    return UsageError(f"the API of {OTHER} has no field for {option}.", hint=f"leave {option} out")


def request_fields(
    kind: str,
    *,
    sampling: SamplingParams | None = None,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    think: bool | None = None,
    reasoning_effort: str | None = None,
    tools: Sequence[dict[str, Any]] | None = None,
    grammar: Grammar | None = None,
) -> dict[str, Any]:
    """A request without its model and messages; the options are those of `Session.prepare`.

    UsageError for one that the server has no field for.
    """
    return {
        **sampling_fields(sampling or SamplingParams(), kind),
        **thinking_fields(think, reasoning_effort, kind),
        **form_fields(grammar),
        **({} if max_tokens is None else {"max_tokens": max_tokens}),
        **({"stop": list(stop)} if stop else {}),
        **({"tools": list(tools)} if tools else {}),
        **({"return_progress": True} if kind in WITH_PROGRESS else {}),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
