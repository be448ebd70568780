"""Names of arguments that a function does not have, refused with the name that was meant."""

import difflib
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import ParamSpec, TypeVar, get_args, get_type_hints

from .errors import UsageError
from .types import SamplingParams

P = ParamSpec("P")
T = TypeVar("T")
# What others call the fields of SamplingParams.
OTHER_NAMES = {"temp": "temperature"}


def check_names(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which raises UsageError instead of TypeError for an unknown argument name."""
    shape = expanded(function)
    known = shape.parameters

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        for name in options:
            if name not in known:
                raise UsageError(
                    f"{function.__name__} has no argument '{name}'.",
                    hint=meant(name, [n for n in known if n != "self"]),
                )
        return function(*args, **options)

    call.__signature__ = shape  # type: ignore[attr-defined]
    return call


def expanded(function: Callable[..., object]) -> Signature:
    """A function's signature; `**options` of a TypedDict as keywords of their own.

    So help, notebooks and editors show them. One without a value given is left to whom it is
    passed on to.
    """
    found: list[Parameter] = []
    for one in (shape := signature(function)).parameters.values():
        if one.kind is not Parameter.VAR_KEYWORD:
            found.append(one)
            continue
        (options,) = get_args(one.annotation)
        found += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=..., annotation=kind)
            for name, kind in get_type_hints(options).items()
        ]
    return shape.replace(parameters=found)


def meant(name: str, known: list[str]) -> str:
    """What to write instead of an unknown name."""
    field = OTHER_NAMES.get(name, name)
    if field in {f.name for f in fields(SamplingParams)}:
        return f"give sampling=SamplingParams({field}=...)"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"it has {', '.join(known)}"
