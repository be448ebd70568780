"""The environment variables DFLASH_*: those of the options, and a few that belong to no option."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from dflash_mlx.errors import UsageError
from dflash_mlx.gone import gone
from dflash_mlx.text import did_you_mean

PREFIX = "DFLASH_"
KEY_VARIABLE = "DFLASH_REMOTE_KEY"
# The variables that belong to no option, with their readers.
OTHER_VARIABLES = (
    KEY_VARIABLE,  # the commands that connect to a server
    "DFLASH_BLAS",  # the CPU code: off leaves OpenBLAS alone
    "DFLASH_DEBUG",  # this program: 1 prints a traceback after an error
    "DFLASH_DEVICE",  # MLX: cpu leaves the GPU alone
    "DFLASH_KERNELS",  # the Metal kernels: on, stock or off
    "DFLASH_NEED_EMULATOR",  # CI and the tests of the kernels
    "DFLASH_PROGRAM",  # the tests of README and guide
    "DFLASH_TEST_DEVICE",  # the tests
    "DFLASH_BROWSER",  # the tests of the chat page
    "DFLASH_SCREENSHOTS",  # the tests of the chat page
)


def check_variables(group: Any) -> None:
    """Raise UsageError for a variable that nothing reads."""
    names = present_variables()
    known = known_variables(group) if names else set()
    for name in names:
        if name not in known:
            raise UsageError(
                f"the environment variable '{name}' is not known.",
                hint=unknown_variable_hint(name, known),
            )


def present_variables() -> list[str]:
    return sorted(name for name in os.environ if name.startswith(PREFIX))


def known_variables(group: Any) -> set[str]:
    return {*OTHER_VARIABLES, *(option.envvar for option in options_with_variables(group))}


def options_with_variables(group: Any) -> Iterator[Any]:
    """The parameters of a group's commands that can be set by a variable."""
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from options_with_variables(command)
        yield from (parameter for parameter in command.params if parameter.envvar)


def unknown_variable_hint(name: str, known: Iterable[str]) -> str:
    suffixes = sorted(variable.removeprefix(PREFIX) for variable in known)
    flag = "--" + name.removeprefix(PREFIX).lower().replace("_", "-")
    near = did_you_mean(name.removeprefix(PREFIX), suffixes, f"{PREFIX}{{}}")
    return f"`unset {name}`: {gone(flag) or near or 'nothing reads it'}"
