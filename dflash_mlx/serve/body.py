"""Bodies of requests: reading them, and the fields that all APIs share."""

import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Optional

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import from_json

from dflash_mlx.errors import DFlashError
from dflash_mlx.options import GenerationOptions, Option, SamplingParams, declared
from dflash_mlx.text import whole_text

from .protocol import Problem


def check_number(value: Any) -> Any:
    """Raise ValueError for anything but a number or None; bool is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ValueError("must be a number")
    return value


Number = Annotated[float, BeforeValidator(check_number)]
Integer = Annotated[int, BeforeValidator(check_number)]


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


def check_limit(value: Any) -> Any:
    """A number of tokens; -1 is NO_LIMIT, as in llama-server and Ollama."""
    return NO_LIMIT if check_number(value) == -1 else value


TokenLimit = Annotated[int, BeforeValidator(check_limit), answer_range("max_tokens")]


def sampling_field(option: Option) -> Any:
    kind = Integer if option.type is int else Number
    limits = API_RANGES.get(option.name, declared_range(option))
    if limits:
        kind = Annotated[kind, Field(**limits)]
    return (Optional[kind], None)  # noqa: UP045, an annotated type takes no `|` for a type checker


SAMPLING = {option.name: sampling_field(option) for option in declared(SamplingParams)}


RULES = ("min_tokens", "ignore_eos", "stop_token_ids", "allowed_token_ids", "bad_words")


class SamplingFields(create_model("SamplingFields", __base__=FormatFields, **SAMPLING)):
    """None is the server's setting. repeat_penalty: llama-server's name of repetition_penalty."""

    logit_bias: dict[str, Number] | None = None
    repeat_penalty: Annotated[Number, answer_range("repetition_penalty")] | None = None
    min_tokens: Annotated[Integer, answer_range("min_tokens")] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[Integer] | None = None
    allowed_token_ids: list[Integer] | None = Field(default=None, min_length=1)
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
                message = "repeat_penalty and repetition_penalty differ: give one of them."
                raise Problem(400, message, "repeat_penalty")
            values["repetition_penalty"] = self.repeat_penalty
        rules = {name: getattr(self, name) for name in RULES if getattr(self, name) is not None}
        try:
            sampling = replace(defaults.sampling, **values)
            return replace(defaults, sampling=sampling, **rules)
        except DFlashError as error:
            raise Problem(400, error.message) from error


def token_id(text: str) -> int:
    """The token of a key of logit_bias."""
    if not text.isdecimal() or len(text) > 9:
        raise Problem(400, f"logit_bias has the key '{text:.20}': give token ids.", "logit_bias")
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
        message = first["msg"].removeprefix("Value error, ")
        raise Problem(400, f"{place}: {message}.", param=place or None) from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply.") from None


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
