"""Fields that several APIs share, read and checked.

What changes an answer and cannot be had is refused by its name; what does not is let be.
"""

import json
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dflash_mlx.chat.tool_support import without_tools
from dflash_mlx.errors import DFlashError
from dflash_mlx.pair import Pair
from dflash_mlx.types import SamplingParams

from .problem import Problem
from .settings import Settings


def number(value: Any) -> Any:
    """A value that is a number, and not true or false."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ValueError("must be a number")
    return value


Number = Annotated[float, BeforeValidator(number)]
Whole = Annotated[int, BeforeValidator(number)]


class Fields(BaseModel):
    """A request's body; fields that it does not name are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class SamplingFields(Fields):
    """How tokens are chosen; None is what the server's settings say."""

    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    seed: Whole | None = None
    logit_bias: dict[str, Number] | None = None

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """The engine's parameters; Problem 400 for what the engine does not take."""
        said = {
            name: value
            for name in SamplingFields.model_fields
            if name != "logit_bias" and (value := getattr(self, name)) is not None
        }
        if said.get("top_k") == -1:  # vLLM's word for off
            said["top_k"] = 0
        if "seed" in said:
            said["seed"] %= 2**64
        values = {f: getattr(defaults, f) for f in SamplingParams.__dataclass_fields__} | said
        values["logit_bias"] = tuple((token_id(k), v) for k, v in (self.logit_bias or {}).items())
        try:
            return SamplingParams(**values)
        except DFlashError as error:
            raise Problem(400, error.message) from error


def token_id(text: str) -> int:
    """A key of logit_bias."""
    if not text.isdecimal() or len(text) > 9:
        raise Problem(400, f"logit_bias has the key '{text:.20}': give token ids.", "logit_bias")
    return int(text)


def read_body(model: type[Any], body: Any) -> Any:
    """A body as a model's fields. Problem 400 names the first one that is wrong."""
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
    """A body's JSON. Problem 400 for what is none."""
    try:
        found = json.loads(raw, parse_constant=refuse_constant)
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        raise Problem(400, "the body is not JSON in UTF-8.") from None
    return found


def refuse_constant(name: str) -> NoReturn:
    """NaN and Infinity are no JSON."""
    raise ValueError(name)


def check_model(name: str | None, settings: Settings) -> None:
    """Problem 404 for a model that is not served."""
    if name is not None and name not in settings.names:
        raise Problem(
            404,
            f"the model '{name:.100}' is not served here: this is '{settings.names[0]}'.",
            param="model",
            code="model_not_found",
        )


def check_tools(pair: Pair) -> None:
    """Problem 400 where the model cannot be told of tools, or its calls cannot be read."""
    if why := without_tools(pair.target):
        raise Problem(400, f"this model {why}.", param="tools")


def refuse(fields: Fields, names: dict[str, str]) -> None:
    """Problem 400 for a field that is set, would change the answer, and cannot be had."""
    for name, why in names.items():
        if getattr(fields, name):
            raise Problem(400, f"{name} is not supported: {why}.", param=name)
