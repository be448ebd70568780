"""What `chat` and `generate` ask of a server: its key, and which options it cannot have."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.remote import session
from dflash_mlx.remote.client import parse_address
from dflash_mlx.remote.session import KINDS, Server, thinking_fields
from dflash_mlx.types import EFFORTS

from .chat_settings import ChatSettings
from .config_file import file_error_reason, flag_key
from .option_sources import option_source
from .options import ModelOptions, option
from .terminal.output import Output
from .terminal.spinner import Spinner

KEY_VARIABLE = "DFLASH_REMOTE_KEY"
# Options of a model on this machine, by the names of their fields.
LOCAL_OPTIONS = (
    *(
        "draft",
        "no_draft",
        "lookup",
        "draft_bits",
        "block_size",
        "mode",
        "tree_budget",
        "accept",
        "exact",
    ),
    *("force", "trust_remote_code", "offline", "cache_ram", "cache_disk", "sampling_by"),
    *("raw", "grammar", "compare", "demo"),
)
LOCAL_SETTINGS = ("block_size", "mode", "accept", "tree_budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """How to speak to a server that --model names."""

    remote_key_file: Annotated[
        Path | None,
        option(
            "--remote-key-file",
            metavar="FILE",
            help=f"Key of the server that --model names; or set {KEY_VARIABLE}.",
        ),
    ] = None


class RemoteSwitches:
    """What a server's API knows of thinking; the model may know less."""

    def __init__(self, kind: str):
        self._kind = kind

    @property
    def think_switch(self) -> str | None:
        """The switch of its templates."""
        return "enable_thinking" if self._kind in KINDS else None

    @property
    def efforts(self) -> tuple[str, ...]:
        """All: what a model does not know, its server refuses or lets be."""
        return EFFORTS

    def check(self, think: bool | None, effort: str | None) -> None:
        """UsageError for what has no field."""
        if think is False and effort is not None:
            raise UsageError("no thinking has no effort.", hint="leave one of them out")
        thinking_fields(think, effort, self._kind)


def check_settings(settings: ChatSettings) -> None:
    """UsageError for settings that only a model on this machine has."""
    plain = ChatSettings()
    for name in LOCAL_SETTINGS:
        if getattr(settings, name) != getattr(plain, name):
            word = "block" if name == "block_size" else name.replace("_", "-")
            raise UsageError(
                f"{word} is the server's affair: its API has no field for it.",
                hint="it is chosen where the server is started",
            )


def without_local(ctx: typer.Context, model_options: ModelOptions, out: Output) -> ModelOptions:
    """The options for a server's model.

    UsageError for flags and a preset's keys that need a model here; what variables and the config
    file say for all models is left out, and told.
    """
    left_out = []
    for parameter in ctx.command.params:
        name = parameter.name or ""
        source = option_source(ctx, name) if name in LOCAL_OPTIONS else "DEFAULT"
        if source in ("COMMANDLINE", "PRESET"):
            raise UsageError(
                f"--{flag_key(parameter)} needs a model on this machine, and --model names a "
                "server.",
                hint="leave it out: it is chosen where the server is started",
            )
        if source != "DEFAULT":
            left_out.append(flag_key(parameter))
    if left_out:
        out.note(f"  the server's affair, and left out: {', '.join(left_out)}")
    return ModelOptions(model=model_options.model)


def connect(
    ctx: typer.Context, model_options: ModelOptions, options: RemoteOptions, out: Output
) -> tuple[Server, float]:
    """The server that --model names, and the seconds it took; raises as `session.connect`."""
    began = time.perf_counter()
    assert model_options.model
    address = parse_address(model_options.model)
    key = read_key(ctx, options)
    with Spinner(out, f"asking {address.url}"):
        return session.connect(address, key), time.perf_counter() - began


def read_key(ctx: typer.Context, options: RemoteOptions) -> str | None:
    """The key: of the flag's file, else the variable's, else the file that is set elsewhere."""
    path, key = options.remote_key_file, os.environ.get(KEY_VARIABLE)
    if path is None or (key and option_source(ctx, "remote_key_file") != "COMMANDLINE"):
        return key.strip() if key and key.strip() else None
    try:
        key = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DFlashError(
            f"the key's file '{path}' cannot be read ({file_error_reason(error)}).",
            hint="--remote-key-file takes a text file with the key and nothing else",
        ) from None
    if not key:
        raise UsageError(f"the key's file '{path}' is empty.", hint="write the key into it")
    return key
