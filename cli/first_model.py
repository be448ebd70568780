"""The first start without a model: offers three, and downloads the one that is chosen."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.registry import Entry

from .downloads import download_models
from .loading import has_metal, prepare_libraries
from .options import ModelOptions
from .terminal.output import Output, align_columns, format_bytes, stderr_columns
from .terminal.render import wrap_hanging
from .terminal.signals import cbreak_mode

NARROW = 60  # columns


def offer_models(model_options: ModelOptions, out: Output) -> ModelOptions:
    """Offer three pairs that fit this Mac, and download the one whose key is pressed.

    Returns the options with its target. They are unchanged, for the bundled pair, after any other
    key, offline, where nothing fits, and if the download fails or Ctrl-C stops it.
    """
    if model_options.offline or not has_metal():
        return model_options
    prepare_libraries(offline=False)
    from dflash_mlx.device import device_info
    from dflash_mlx.hub.download import free_disk
    from dflash_mlx.hub.registry import suggested_pairs
    from dflash_mlx.models.memory import working_set

    entries = suggested_pairs(working_set(), free_disk()[1])
    if not entries:
        out.note("no published pair fits the memory and the free disk of this Mac")
        return model_options
    chip = str(device_info().get("device_name", ""))
    *lines, question = offer_lines(entries, chip, stderr_columns())
    for line in lines:
        out.info(line, wraps=False)
    out.info(question, end=" ", wraps=False)
    key = read_key()
    out.info("")
    if key not in keys_of(entries):
        out.info("nothing is downloaded; `dflash models pull` does it later", "dim")
        return model_options
    entry = entries[int(key) - 1]
    try:
        download_models(entry.repos, out, yes=True)
    except KeyboardInterrupt:
        out.info("stopped: the tiny bundled pair answers. This command goes on from here:")
        out.info(f"  dflash models pull {entry.target}", wraps=False)
    except DFlashError as error:
        out.error(error.message, error.hint)
    else:
        return replace(model_options, model=entry.target)
    return model_options


def keys_of(entries: Sequence[Entry]) -> list[str]:
    return [str(number) for number in range(1, len(entries) + 1)]


def offer_lines(entries: Sequence[Entry], chip: str, columns: int) -> list[str]:
    """The rows of an offer, the question last, with forecasts of the speeds on a chip.

    A row for each pair, or two or three in narrow terminals: then 40 columns and 12 rows hold all.
    """
    from dflash_mlx.hub.forecast import plain_speed

    cells = []
    for key, entry in zip(keys_of(entries), entries, strict=True):
        speed = plain_speed(entry, chip)
        rate = "" if speed is None else f"~{speed:.0f} tok/s"
        size = format_bytes(entry.download_bytes or 0)
        cells.append((f"  {key}", entry.target.rpartition("/")[2], size, rate, entry.good))
    rows = align_columns(cells)
    if columns and max(map(len, rows)) >= columns:
        rows = []
        for key, name, *details in cells:
            rows += [f"{key} {name}", "    " + " · ".join(filter(None, details))]
    narrow = 0 < columns < NARROW
    lines = [f"No model is {'here' if narrow else 'on this Mac'} yet. These fit:", *rows]
    if any(rate for *_, rate, _ in cells):
        where = "" if narrow else f" for an {chip} without drafts"
        lines.append(f"tok/s: forecast{where}, not measured")
    *first, last = keys_of(entries)
    keys = f"{', '.join(first)} or {last}" if first else last
    question = f"Press {keys} to get one; else none:"
    if not narrow:
        question = f"Press {keys} to download one; any other key downloads nothing:"
    return wrap_hanging("\n".join([*lines, question]), columns).split("\n")


def read_key() -> str:
    """One key from the terminal on standard input, without Enter; what was typed before is lost."""
    import termios

    with cbreak_mode():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        return os.read(sys.stdin.fileno(), 64).decode(errors="replace")[:1]
