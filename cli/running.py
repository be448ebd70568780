"""`dflash ps` and `dflash stop`: the models of a running server."""

import os
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any

import typer

from dflash_mlx.address import parse_address
from dflash_mlx.errors import DFlashError

from .environment import KEY_VARIABLE
from .options import DisplayOptions, option_groups
from .terminal.output import Output, format_bytes

SERVER = "http://127.0.0.1:8080"
TITLES = ("MODEL", "STATE", "DRAFTER", "SIZE", "CONTEXT", "ANSWERS", "UNLOADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOption:
    server: Annotated[
        str, typer.Option("--server", metavar="URL", help="Address of the server.")
    ] = SERVER


@option_groups
def ps(
    *,
    all_models: Annotated[
        bool, typer.Option("--all", "-a", help="Also list models that are not loaded.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    where: ServerOption,
    display: DisplayOptions,
) -> None:
    """List the models that a running server has loaded."""
    out = Output(quiet=display.quiet, plain=display.plain)
    models = listed(where.server)
    shown = [model for model in models if all_models or model["state"] in ("loaded", "loading")]
    if json:
        out.write_json(shown)
        return
    out.write_table([TITLES, *map(cells, shown)])
    left = len(models) - len(shown)
    if left and out.stdout_is_tty:
        out.note(f"{left} more can be loaded: `dflash ps --all`")


@option_groups
def stop(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Its name, or the end of it.")],
    *,
    where: ServerOption,
    display: DisplayOptions,
) -> None:
    """Unload a model of a running server, after its running answers."""
    out = Output(quiet=display.quiet, plain=display.plain)
    reply = ask(where.server, "models/unload", {"model": model})
    if not reply["unloaded"]:
        raise DFlashError(f"'{reply['model']}' is not loaded.", hint="`dflash ps` lists what is")
    out.info(f"{reply['model']} is unloaded")


def listed(server: str) -> list[dict[str, Any]]:
    """The models of a server. Raises DFlashError for the server of another program."""
    reply = ask(server, "models")
    models = reply.get("data", []) if isinstance(reply, dict) else []
    if not all("state" in model for model in models):
        raise DFlashError(
            f"the server at {server} is not `dflash serve`.", hint="name another with --server URL"
        )
    return models


def ask(server: str, endpoint: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON of an endpoint of a server. Raises DFlashError, UsageError for a wrong address."""
    from dflash_mlx.remote.client import read_json

    key = (os.environ.get(KEY_VARIABLE) or "").strip() or None
    return read_json(f"{parse_address(server).url}/{endpoint}", key, body)


def cells(model: dict[str, Any]) -> tuple[str, ...]:
    context, left = model["max_model_len"], model.get("unloads_in")
    return (
        model["id"],
        model["state"],
        model["draft"] or "–",
        format_bytes(model["size"]),
        f"{context:,}" if context else "?",
        str(model.get("running", 0)),
        unloads(left) if model["state"] == "loaded" else "–",
    )


def unloads(seconds: float | None) -> str:
    """When a model is unloaded. None: only by request, or for another one."""
    if seconds is None or seconds == inf:
        return "–"
    return f"in {seconds / 60:.0f} min" if seconds >= 60 else f"in {seconds:.0f} s"
