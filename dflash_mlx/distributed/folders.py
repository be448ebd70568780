"""Where a rank finds a target on its own machine; ranks other than 0 download nothing."""

from pathlib import Path

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.cache import cached_folder
from dflash_mlx.hub.resolve import BUNDLED, bundled, fetch, is_hub_id


def own_folder(name: str) -> Path:
    """The folder of a target, by Hub id, path or "bundled"; DFlashError if it is not here."""
    if name == BUNDLED:
        return bundled("target")
    if not is_hub_id(name):
        return fetch(name)
    if (folder := cached_folder(name)) is None:
        raise DFlashError(
            f"'{name}' is not on this machine, or not all of it.",
            hint=f"run `dflash models pull {name} --no-draft` there",
        )
    return folder
