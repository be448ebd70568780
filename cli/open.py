"""Opens what answers: the pair of the options, or the server that --model names."""

import os
import time

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.remote import session
from dflash_mlx.remote.client import parse_address

from .backend import Backend, LocalBackend, RemoteBackend
from .config_file import file_error_reason
from .loading import load_pair
from .options import KEY_VARIABLE, CacheOptions, OptionValues, Origin, RemoteOptions
from .pair_notes import check_block
from .resolve import Resolved
from .terminal.output import Output
from .terminal.spinner import Spinner


def open_backend(
    resolved: Resolved, cache: CacheOptions, remote: RemoteOptions, out: Output
) -> tuple[Backend, float]:
    """What answers: the pair of the options, or the server that --model names; and the seconds.

    Raises as `load_pair` and `connect`; UsageError for a block that is too long.
    """
    if resolved.remote:
        return connect(resolved.values, remote, out)
    pair, seconds = load_pair(resolved.model, out, cache)
    check_block(pair, resolved.generation.block_size)
    return LocalBackend(pair, drafting=resolved.generation.mode != "baseline"), seconds


def connect(
    values: OptionValues, options: RemoteOptions, out: Output
) -> tuple[RemoteBackend, float]:
    """The server that --model names, and the seconds it took; raises as `session.connect`."""
    began = time.perf_counter()
    address = parse_address(values["model"])
    key = read_key(values, options)
    with Spinner(out, f"asking {address.url}"):
        server = session.connect(address, key)
    return RemoteBackend(server), time.perf_counter() - began


def read_key(values: OptionValues, options: RemoteOptions) -> str | None:
    """The key: of the flag's file, else the variable's, else the file that is set elsewhere."""
    path = options.remote_key_file
    key = os.environ.get(KEY_VARIABLE)
    if path is None or (key and values.origin("remote_key_file") is not Origin.FLAG):
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
