"""The options of the prefix cache, for the commands that answer prompts."""

import re
from dataclasses import dataclass
from typing import Annotated

from .options import option


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


NO_CACHE = CacheOptions(cache_ram=0)
