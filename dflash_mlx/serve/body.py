"""Bodies of requests: reading them, and the fields that all APIs share."""

import asyncio
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Optional

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import from_json
from starlette.requests import Request

from dflash_mlx.constrained.grammar import ebnf_grammar
from dflash_mlx.errors import DFlashError
from dflash_mlx.grammar import Grammar
from dflash_mlx.options import GenerationOptions, Option, SamplingParams, declared
from dflash_mlx.text import whole_text

from .protocol import Limits, Problem, wrong


class Fields(BaseModel):
    """An object in a body; `FieldRegister` checks the fields that a class does not declare."""

    model_config = ConfigDict(extra="allow", strict=True)


class StructuredOutputs(Fields):
    """vLLM's object for the form of the answer, of which one field is given."""

    json_schema: dict[str, Any] | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class FormatFields(Fields):
    """The fields of vLLM and llama-server for the form of the answer, of which one is given."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None
    grammar: str | None = None


FORMS: dict[str, Callable[[Any], Grammar]] = {
    "response_format": Grammar.of_schema,
    "json": Grammar.of_schema,
    "json_schema": Grammar.of_schema,
    "json_object": lambda value: Grammar("json_object"),
    "regex": lambda value: Grammar("regex", value),
    "choice": Grammar.of_choices,
    "grammar": ebnf_grammar,
}


def grammar_of(body: FormatFields, response_format: dict[str, Any] | None) -> Grammar | None:
    """None for free text. Raises Problem 400 for a form that is wrong, and for several forms."""
    outputs = body.structured_outputs or StructuredOutputs()
    asked = {"response_format": read_response_format(response_format)}
    for name, declared_field in StructuredOutputs.model_fields.items():
        asked[f"structured_outputs.{declared_field.alias or name}"] = getattr(outputs, name)
    for name in FormatFields.model_fields:
        if name != "structured_outputs":
            asked[name] = getattr(body, name)
    free = (None, False)
    given = {n: v for n, v in asked.items() if v not in free and (n, v) != ("grammar", "")}
    if len(given) > 1:
        names = " and ".join(given)
        raise Problem(400, f"{names} contradict each other: give one.", next(iter(given)))
    for name, value in given.items():
        kind = name.rpartition(".")[2].removeprefix("guided_")
        try:
            return value if isinstance(value, Grammar) else FORMS[kind](value)
        except DFlashError as error:
            raise Problem(400, f"{name}: {error.message}", name) from error
    return None


def read_response_format(form: dict[str, Any] | None) -> dict[str, Any] | Grammar | None:
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return None
    if kind == "json_object" and form.get("schema") is None:
        return Grammar("json_object")
    # llama-server puts the schema into a json_object, OpenAI into a json_schema.
    holder = form if kind == "json_object" else form.get("json_schema")
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if kind not in ("json_object", "json_schema") or not isinstance(schema, dict):
        why = "must be text, json_object, or json_schema with a schema"
        raise wrong("response_format", why)
    return schema


# OpenAI's ranges where they differ from the engine's; vLLM's -1 is a top_k of 0.
API_RANGES = {
    "temperature": {"ge": 0, "le": 2},
    "top_k": {"ge": -1},
    "presence_penalty": {"ge": -2, "le": 2},
    "frequency_penalty": {"ge": -2, "le": 2},
    "seed": {},
}


def declared_range(option: Option) -> dict[str, Any]:
    limits = {"gt" if option.above else "ge": option.low, "le": option.high}
    return {name: limit for name, limit in limits.items() if not math.isinf(limit)}


def answer_range(name: str) -> Any:
    (option,) = (option for option in declared(GenerationOptions) if option.name == name)
    return Field(**declared_range(option))


NO_LIMIT = 2**31 - 1  # tokens


# -1 is no limit, as in llama-server and Ollama.
no_limit = BeforeValidator(lambda value: NO_LIMIT if value == -1 else value)
TokenLimit = Annotated[int, no_limit, answer_range("max_tokens")]


def sampling_field(option: Option) -> Any:
    kind = int if option.type is int else float
    limits = API_RANGES.get(option.name, declared_range(option))
    if limits:
        kind = Annotated[kind, Field(**limits)]
    return (Optional[kind], None)  # noqa: UP045, an annotated type takes no `|` for a type checker


SAMPLING = {option.name: sampling_field(option) for option in declared(SamplingParams)}


RULES = ("min_tokens", "ignore_eos", "stop_token_ids", "allowed_token_ids", "bad_words")


class SamplingFields(create_model("SamplingFields", __base__=FormatFields, **SAMPLING)):
    """None is the server's setting. repeat_penalty: llama-server's name of repetition_penalty."""

    logit_bias: dict[str, float] | None = None
    repeat_penalty: Annotated[float, answer_range("repetition_penalty")] | None = None
    min_tokens: Annotated[int, answer_range("min_tokens")] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = Field(default=None, min_length=1)
    bad_words: list[str] | None = None

    def options(self, defaults: GenerationOptions) -> GenerationOptions:
        """The server's options with the body's sampling. Raises Problem 400 as the engine."""
        values = {name: getattr(self, name) for name in SAMPLING if getattr(self, name) is not None}
        if values.get("top_k") == -1:
            values["top_k"] = 0
        if "seed" in values:
            values["seed"] %= 2**64
        biases = (self.logit_bias or {}).items()
        values["logit_bias"] = tuple((token_id(key), bias) for key, bias in biases)
        if self.repeat_penalty is not None:
            if values.get("repetition_penalty", self.repeat_penalty) != self.repeat_penalty:
                raise wrong("repeat_penalty", "and repetition_penalty differ: give one of them")
            values["repetition_penalty"] = self.repeat_penalty
        rules = {name: getattr(self, name) for name in RULES if getattr(self, name) is not None}
        try:
            sampling = replace(defaults.sampling, **values)
            return replace(defaults, sampling=sampling, **rules)
        except DFlashError as error:
            raise Problem(400, error.message) from error


def token_id(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise wrong("logit_bias", f"has the key '{text:.20}': give token ids")
    return int(text)


def read_body(model: type[Any], body: Any) -> Any:
    """Validate a body. Raises Problem 400 that names the first wrong field."""
    if not isinstance(body, dict):
        raise Problem(400, "the body is not a JSON object.")
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        raise Problem(400, f"{place}: {message}.", param=place or None) from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply.") from None


async def read_raw(request: Request, limits: Limits) -> bytes:
    """Raises Problem 413 for a body that is too large, 408 for one that is too slow."""
    too_large = Problem(413, f"the body is larger than {limits.body_bytes >> 20} MiB.")
    size = request.headers.get("content-length", "0")
    if not size.isdecimal() or len(size) > 18 or int(size) > limits.body_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > limits.body_bytes:
                    raise too_large
    except TimeoutError:
        message = f"the body did not come within {limits.body_seconds:g} seconds."
        raise Problem(408, message) from None
    return bytes(body)


def read_json(raw: bytes) -> Any:
    """Parse a body, with texts as `whole_text`.

    Raises Problem 400 if it is not JSON, or has more than 200 levels.
    """
    with suppress(ValueError):  # of half a character, too
        return from_json(raw, allow_inf_nan=False)
    try:
        value = json.loads(raw.decode("utf-8", "surrogatepass"))
        return from_json(whole_text(json.dumps(value, ensure_ascii=False)), allow_inf_nan=False)
    except (ValueError, RecursionError):
        message = "the body is not JSON in UTF-8, or nested too deeply."
        raise Problem(400, message) from None


async def read_name(request: Request, limits: Limits) -> str:
    """The model that a body names, which has no other field. Raises Problem 400."""
    body = read_json(await read_raw(request, limits))
    name = (body.get("model") or body.get("name")) if isinstance(body, dict) else None
    if not isinstance(name, str):
        raise wrong("model", "must be a name")
    return name
