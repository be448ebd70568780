"""The first start without a model: offers three, and downloads one while the chat goes on."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock, Thread

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.registry import Entry

from .loading import free_disk, has_metal, prepare_libraries
from .options import ModelOptions
from .terminal.output import Output, align_columns, format_bytes, stderr_columns
from .terminal.render import wrap_hanging
from .terminal.signals import cbreak_mode

NARROW = 60  # columns


def offer_models(model_options: ModelOptions, out: Output) -> "BackgroundDownload | None":
    """Offer three pairs that fit this Mac, and start the download of one after its key.

    None after any other key, offline, and where nothing is to be offered.
    """
    if model_options.offline or not has_metal():
        return None
    prepare_libraries(offline=False)
    from dflash_mlx.device import device_info
    from dflash_mlx.hub.registry import suggested_pairs
    from dflash_mlx.models.memory import working_set

    entries = suggested_pairs(working_set(), free_disk())
    if not entries:
        out.note("no published pair fits the memory and the free disk of this Mac")
        return None
    chip = str(device_info().get("device_name", ""))
    *lines, question = offer_lines(entries, chip, stderr_columns())
    for line in lines:
        out.info(line, wraps=False)
    out.info(question, end=" ", wraps=False)
    key = read_key()
    out.info("")
    if key not in keys_of(entries):
        out.info("nothing is downloaded; `dflash models pull` does it later", "dim")
        return None
    download = BackgroundDownload(entries[int(key) - 1])
    download.start()
    out.info(f"{download.status()}; the tiny bundled pair answers meanwhile", "dim")
    return download


def keys_of(entries: Sequence[Entry]) -> list[str]:
    """The key of each offered pair: 1, 2 and 3."""
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
        cells.append((f"  {key}", short_name(entry.target), size, rate, entry.good))
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
        question = f"Press {keys} to download one while you chat; any other key downloads nothing:"
    return wrap_hanging("\n".join([*lines, question]), columns).split("\n")


def short_name(target: str) -> str:
    """A target's name without its owner."""
    return target.rpartition("/")[2]


def read_key() -> str:
    """One key from the terminal on standard input, without Enter; what was typed before is lost."""
    import termios

    with cbreak_mode():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        return os.read(sys.stdin.fileno(), 64).decode(errors="replace")[:1]


@dataclass(frozen=True, slots=True)
class DownloadState:
    """How far a download is, in bytes. ended: also by `error`."""

    done: int = 0
    total: int = 0
    ended: bool = False
    error: DFlashError | None = None

    @property
    def complete(self) -> bool:
        return self.ended and self.error is None

    @property
    def share(self) -> str:
        return f"{100 * self.done // max(self.total, 1)}%"


class BackgroundDownload:
    """Downloads a pair in a thread of its own, which ends with the program."""

    def __init__(self, entry: Entry):
        self.target = entry.target
        self._repos = [entry.target] if entry.own_head else [entry.target, entry.draft]
        self._lock = Lock()
        self._state = DownloadState(total=entry.download_bytes or 0)

    @property
    def state(self) -> DownloadState:
        with self._lock:
            return self._state

    def start(self) -> None:
        Thread(target=self._run, daemon=True).start()

    def status(self) -> str:
        """One line on how far it is."""
        state = self.state
        name = short_name(self.target)
        if state.error is not None:
            return f"the download of {name} has stopped"
        if state.complete:
            return f"{name} answers from now on"
        return f"downloading {name}: {state.share} of {format_bytes(state.total)}"

    def _run(self) -> None:
        from dflash_mlx.hub.download import download, plan

        error = None
        try:
            plans = [plan(repo) for repo in self._repos]
            total = sum(pending.total_bytes for pending in plans)
            before = 0
            for pending in plans:

                def on_download(done: int, _: int, before: int = before) -> None:
                    self._set(DownloadState(before + done, total))

                download(pending.repo, on_download)
                before += pending.total_bytes
        except DFlashError as raised:
            error = raised
        except Exception as raised:  # the chat reports it; the thread has nobody to raise it to
            error = DFlashError(
                f"the download failed ({type(raised).__name__}: {raised}).",
                hint=f"`dflash models pull {self.target}` goes on from what is there",
            )
        state = self.state
        self._set(DownloadState(state.done, state.total, ended=True, error=error))

    def _set(self, state: DownloadState) -> None:
        with self._lock:
            self._state = state
