"""The options of the prefix cache, for the commands that answer prompts."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from .options import option
from .terminal.output import Output
from .terminal.spinner import Spinner

if TYPE_CHECKING:
    from dflash_mlx import Pair


def parse_size(value: str | int) -> int:
    """Bytes: a number, with a unit of 1000 (kB, MB, GB, TB) or 1024 (KiB, ...); ValueError else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", str(value).strip().lower())
    if not found:
        raise ValueError(f"'{value}' is not a size such as 500MB or 4GB")
    number, unit, binary = found.groups()
    power = " kmgt".index(unit) if unit else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """How much of what was read of prompts is kept, so that it need not be read again."""

    cache_ram: Annotated[
        int | None,
        option(
            "--cache-ram",
            metavar="SIZE",
            parser=parse_size,
            help="Memory for beginnings of prompts, 0: none. [a quarter of what models leave]",
        ),
    ] = None
    cache_disk: Annotated[
        int,
        option(
            "--cache-disk",
            metavar="SIZE",
            parser=parse_size,
            help="Keep them on disk too, for the next start; see `dflash cache`. [0: do not]",
        ),
    ] = 0


NO_CACHE = CacheOptions(cache_ram=0)


def finish_writing(pair: "Pair | None", out: Output) -> None:
    """Wait until what was read is on disk; shown where it takes more than a second."""
    disk = None if pair is None else pair.engine.prefixes.disk
    if disk is not None:
        with Spinner(out, "keeping what was read for the next time"):
            disk.wait()
