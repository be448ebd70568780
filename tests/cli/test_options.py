"""One declaration makes an option's flag, setting and key, and the fields that servers have."""

from dataclasses import fields
from importlib import import_module
from typing import Any

import pytest
import typer

from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions, SamplingParams, declared
from dflash_mlx.remote.session import KINDS, sampling_fields
from dflash_mlx.serve.body import SamplingFields

settings = import_module("dflash_mlx.cli.chat.settings")
tables = import_module("dflash_mlx.cli.presets")
WITH_FLAG = [one for one in declared(GenerationOptions) if one.flag]
NUMBERS = [one for one in declared(GenerationOptions) if one.type in (int, float)]


def made(name: str, value: Any) -> GenerationOptions:
    if name in SamplingParams.__dataclass_fields__:
        return GenerationOptions(sampling=SamplingParams(**{name: value}))
    return GenerationOptions(**{name: value})


def test_every_flag_is_everywhere(cli_app: typer.Typer) -> None:
    """In the commands that answer, as a key of presets, and with a variable."""
    group = typer.main.get_command(cli_app)
    for command in ("chat", "generate", "serve"):
        parameters = {p.name: p for p in group.commands[command].params}  # type: ignore[attr-defined]
        for one in WITH_FLAG:
            flag = one.flag.partition("/")[0]
            assert flag in parameters[one.name].opts
            assert parameters[one.name].envvar == "DFLASH_" + flag[2:].replace("-", "_").upper()
            assert tables.KEYS[one.name] == flag[2:]


@pytest.mark.parametrize("one", NUMBERS, ids=lambda one: one.name)
def test_a_range_holds_everywhere(one: Any) -> None:
    """Outside it a value is refused by its name: in Python, and as `/set` takes it."""
    if one.low == -float("inf"):
        return
    below = one.low if one.above else one.low - 1
    beyond = [] if one.high == float("inf") else [one.high + 1]
    for value in (below, *beyond, float("nan"), "5"):
        with pytest.raises(UsageError, match=f"{one.name} cannot be"):
            made(one.name, value)
    for value in (below, *beyond) if one.setting else ():
        with pytest.raises(UsageError, match="cannot be"):
            settings.with_value(GenerationOptions(), one, str(value))
    if one.high < float("inf"):
        assert made(one.name, one.type(one.high))  # compared exactly: the largest seed is one


def test_servers_have_the_sampling() -> None:
    """A server reads each field of it, and a known server is sent each that is not its default."""
    names = {one.name for one in declared(SamplingParams)}
    assert names <= set(SamplingFields.model_fields)
    for one in declared(SamplingParams):
        values: dict[str, Any] = {one.name: 3 if one.type is int else 0.5}
        sent = sampling_fields(SamplingParams(**values), next(iter(KINDS)))
        assert sent[one.name] == values[one.name]


def test_texts_stand_for_values() -> None:
    """One text to stop at is no list of its letters; None is no value."""
    options = GenerationOptions(stop="end", tools=None, sampling=None)  # type: ignore[arg-type]
    assert (options.stop, options.tools, options.sampling) == (("end",), (), SamplingParams())
    assert {one.name for one in fields(GenerationOptions)} >= {"schema", "grammar", "raw"}
