"""The drafter that `dflash bench --drafts all` found best for a target on this machine."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.files.measurements import MeasurementStore, fingerprint


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of a comparison.

    draft: a Hub id, a folder, "mtp" or "lookup", as the argument `draft` of `load`; empty for plain
    decoding. speedups: over plain decoding, of everything that was compared, by its label. day: of
    the comparison, as 2026-11-26.
    """

    draft: str
    speedup: float
    speedups: dict[str, float]
    day: str

    @property
    def reason(self) -> str:
        return (
            f"best of {len(self.speedups)} compared here on {self.day}, "
            f"{self.speedup:.2f}× plain decoding"
        )


def read_entry(entry: dict[str, Any]) -> Choice:
    """Read a choice from the file. Raises KeyError, TypeError or ValueError for another entry."""
    speedups = {str(label): float(ratio) for label, ratio in entry["speedups"].items()}
    return Choice(str(entry["draft"]), float(entry["speedup"]), speedups, str(entry["day"]))


STORE = MeasurementStore(
    "drafters.json",
    "drafters",
    "choices of drafters",
    format=1,
    limit=64,
    parse=read_entry,
    dump=asdict,
)


def key_of(target: str, config: dict[str, Any]) -> str:
    """A digest of a target's name, its quantisation and this machine.

    target: a Hub id or a folder. config: its config.json.
    """
    # Its import loads MLX, before which `use_openblas` must run.
    from dflash_mlx.device import device_info

    folder = Path(target).expanduser()
    name = str(folder.absolute()) if folder.is_dir() else target.lower()
    quantisation = json.dumps(config.get("quantization"), sort_keys=True)
    return fingerprint([name, quantisation, repr(sorted(device_info().items()))])


def find(target: str, read_config: Callable[[], dict[str, Any]]) -> Choice | None:
    """The choice for a target; None if nothing was compared.

    read_config: reads the target's config.json; empty if it is not on this machine.
    """
    known = STORE.read()
    config = read_config() if known else {}
    return known.get(key_of(target, config)) if config else None


def keep(target: str, config: dict[str, Any], choice: Choice) -> bool:
    """Store the choice for a target; False if the file cannot be written."""
    return STORE.write(key_of(target, config), choice)
