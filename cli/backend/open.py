"""Opens the backend: loads a pair, or connects to a server."""

import os
import time
from typing import TYPE_CHECKING

from dflash_mlx.address import is_address, parse_address

from ..environment import KEY_VARIABLE
from ..keys import read_key_file
from ..loading import load_pair
from ..options import CacheOptions, Options, RemoteOptions
from ..sources import ValueSource
from ..terminal.output import Output
from ..terminal.spinner import Spinner
from .base import Backend
from .local import LocalBackend

if TYPE_CHECKING:
    from .remote import RemoteBackend


def open_backend(
    options: Options, cache: CacheOptions, remote: RemoteOptions, out: Output
) -> tuple[Backend, float]:
    """The pair of the options, or the server that --model names; and the seconds it took.

    Raises as `load_pair` and `connect`.
    """
    if is_address(options.model.model):
        return connect(options, remote, out)
    pair, seconds = load_pair(options.model, out, cache)
    return LocalBackend(pair, drafting=options.generation.mode != "baseline"), seconds


def connect(options: Options, remote: RemoteOptions, out: Output) -> tuple["RemoteBackend", float]:
    """The server of --model, and the seconds until it answered. Raises as `session.connect`."""
    from dflash_mlx.remote import session  # its HTTP client is slow to import

    from .remote import RemoteBackend

    started_at = time.perf_counter()
    assert options.model.model is not None
    address = parse_address(options.model.model)
    key = read_key(options, remote)
    with Spinner(out, f"asking {address.url}"):
        server = session.connect(address, key)
    return RemoteBackend(server), time.perf_counter() - started_at


def read_key(options: Options, remote: RemoteOptions) -> str | None:
    """The server's key, from the first of: the file of the flag --remote-key-file, the variable
    DFLASH_REMOTE_KEY, a file that the config file or a variable names. Raises as `read_key_file`.
    """
    path = remote.remote_key_file
    key = os.environ.get(KEY_VARIABLE)
    if path is None or (key and options.source("remote_key_file") is not ValueSource.FLAG):
        return key.strip() if key and key.strip() else None
    return read_key_file(path, "--remote-key-file")
