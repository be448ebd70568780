"""A moving line for work that takes more than a second: loading, downloading, reading a prompt.

Knows amounts and a label, not what the work is.
"""

from threading import RLock, Timer, current_thread
from types import TracebackType
from typing import TYPE_CHECKING

from ..output import Output, clean, columns

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY = 1.0  # seconds; quicker work shows nothing
WIDE = 70  # columns from which there is room for a bar


class Wait:
    """A spinner that becomes a bar once there is something to count; gone when the work is done."""

    def __init__(self, out: Output, label: str, *, unit: str = ""):
        self._out, self._label, self._unit = out, label, unit
        self._lock = RLock()
        self._timer: Timer | None = None
        self._bar: Progress | None = None
        self._done, self._total = 0, 0

    def __enter__(self) -> "Wait":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """The work begins; in a second there is something to see."""
        if self._out.live:
            self._timer = Timer(DELAY, self._show)
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        """The work is over: leave no trace."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def turn(self, label: str, unit: str = "") -> None:
        """Other work begins, if it is other work."""
        with self._lock:
            if label != self._label:
                self.stop()
                self._label, self._unit, self._done, self._total = label, unit, 0, 0
                self.start()

    def update(self, done: int, total: int) -> None:
        """Say how much is done; a new total starts a new count."""
        with self._lock:
            if total == self._total:
                done = max(done, self._done)
            self._done, self._total = done, total
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=done, total=total or None)

    def _show(self) -> None:
        with self._lock:
            if self._timer is None or current_thread() is not self._timer:
                return  # over in the meantime
            self._bar = make_bar(self._out, self._unit)
            self._bar.add_task(
                self._out.glyphs(clean(self._label)),
                total=self._total or None,
                completed=self._done,
            )
            self._bar.start()


def make_bar(out: Output, unit: str) -> "Progress":
    """A Rich progress line: bytes with rate and time left, a count, or only a spinner."""
    from rich import progress

    parts: list[progress.ProgressColumn] = [
        progress.SpinnerColumn("line" if out.ascii else "dots", style="dim"),
        progress.TextColumn("{task.description}", style="dim"),
    ]
    if unit and columns() >= WIDE:
        parts.append(progress.BarColumn(24, style="dim", complete_style="accent"))
    if unit == "bytes":
        parts += [
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(compact=True),
        ]
    elif unit:
        parts.append(progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit))
    return progress.Progress(*parts, console=out.console, transient=True)
