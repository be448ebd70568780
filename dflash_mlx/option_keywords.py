"""The options of an answer as keywords of functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypedDict, TypeVar, get_type_hints

from .errors import UsageError
from .grammar import Grammar
from .options import AcceptanceRule, GenerationOptions, Mode, SamplingParams
from .text import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")
SAMPLING_NAMES = {member.name for member in fields(SamplingParams)}


class OptionKeywords(TypedDict, total=False):
    """The fields of `GenerationOptions` as keywords, for type checkers."""

    sampling: SamplingParams | None
    max_tokens: int | None
    stop: str | Iterable[str] | None
    think: bool | None
    reasoning_effort: str | None
    mode: Mode
    block_size: int | None
    tree_budget: int | None
    accept: AcceptanceRule
    chain_seed: bool
    logprobs: int | None
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: Iterable[int] | None
    allowed_token_ids: Iterable[int] | None
    bad_words: Iterable[str] | None
    tools: Sequence[dict[str, Any]] | None
    schema: dict[str, Any] | str | None
    grammar: Grammar | str | None
    raw: bool
    chat_template_kwargs: dict[str, Any] | None


def takes_options(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function whose `**keywords` are the fields of `GenerationOptions`.

    The fields appear in its signature, for help and notebooks. An unknown keyword raises UsageError
    instead of TypeError.
    """
    own = [p for p in signature(function).parameters.values() if p.kind != p.VAR_KEYWORD]
    own_names = {parameter.name for parameter in own}
    hints = get_type_hints(GenerationOptions)
    keywords_of_options = [
        Parameter(
            member.name,
            Parameter.KEYWORD_ONLY,
            default=SamplingParams() if member.name == "sampling" else member.default,
            annotation=hints[member.name],
        )
        for member in fields(GenerationOptions)
        if member.name not in own_names
    ]
    full_signature = signature(function).replace(parameters=[*own, *keywords_of_options])
    names = [name for name in full_signature.parameters if name != "self"]

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> T:
        for name in keywords:
            if name not in names:
                raise UsageError(
                    f"{function.__name__} has no argument '{name}'.", hint=suggest(name, names)
                )
        return function(*args, **keywords)

    call.__signature__ = full_signature  # type: ignore[attr-defined]
    return call


def suggest(name: str, known: list[str]) -> str:
    sampling_name = {"temp": "temperature"}.get(name, name)
    if sampling_name in SAMPLING_NAMES:
        return f"give sampling=SamplingParams({sampling_name}=...)"
    return did_you_mean(name, known) or f"it has {', '.join(known)}"


def options_of(
    options: GenerationOptions | None, keywords: Mapping[str, Any], mode: Mode
) -> GenerationOptions:
    """The options of a call: the object if there is one, else those of the keywords.

    `mode` is the default of keywords. UsageError if both are given.
    """
    if options is None:
        return GenerationOptions(**{"mode": mode, **keywords})
    if not isinstance(options, GenerationOptions):
        raise UsageError(
            f"options cannot be {options!r:.60}.",
            hint="give a GenerationOptions, or its fields by name, such as sampling=...",
        )
    if keywords:
        raise UsageError(
            f"{next(iter(keywords))} was given together with a GenerationOptions.",
            hint="give it in there: dataclasses.replace(options, ...)",
        )
    return options
