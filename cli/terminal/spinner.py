"""Shows progress of work that takes more than a second: loading, downloading, prefill."""

from threading import RLock, Timer, current_thread
from typing import TYPE_CHECKING

from .output import Output, stderr_columns, strip_control

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType
    from rich.progress import Progress

SHOW_AFTER = 1.0  # seconds; quicker work shows no spinner
BAR_COLUMNS = 70  # narrower terminals get no bar
FOOTER_ROWS = 4  # rows of the text that the user types meanwhile


class Spinner:
    """A spinner that turns into a bar once a total is known; it disappears at the end.

    has_line: where no spinner can be shown, the label is printed once instead.
    """

    def __init__(self, out: Output, label: str, *, unit: str = "", has_line: bool = False):
        self._out = out
        self._has_line = has_line
        self._label = label
        self._unit = unit
        self._lock = RLock()
        self._timer: Timer | None = None
        self._progress: Progress | None = None
        self._done = 0
        self._total = 0

    def __enter__(self) -> "Spinner":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        if self._out.stderr_live or (self._has_line and not self._out.quiet):
            self._timer = Timer(SHOW_AFTER, self._show)
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._progress is not None:
                self._progress.stop()
                self._progress = None

    def relabel(self, label: str, unit: str = "") -> None:
        """Switch to other work; does nothing when the label is the same."""
        with self._lock:
            if label != self._label:
                self.stop()
                self._label = label
                self._unit = unit
                self._done = 0
                self._total = 0
                self.start()

    def update(self, done: int, total: int) -> None:
        """Report progress; a new total restarts the count."""
        with self._lock:
            if total == self._total:
                done = max(done, self._done)
            self._done = done
            self._total = total
            if self._progress is not None:
                self._progress.update(
                    self._progress.task_ids[0], completed=done, total=total or None
                )

    def _show(self) -> None:
        with self._lock:
            if self._timer is None or current_thread() is not self._timer:
                return  # stopped or restarted in the meantime
            if not self._out.stderr_live:
                self._out.info(self._label)
                return
            self._progress = make_progress(self._out, self._unit)
            self._progress.add_task(
                self._out.ascii_fallback(strip_control(self._label)),
                total=self._total or None,
                completed=self._done,
            )
            self._progress.start()


def make_progress(out: Output, unit: str) -> "Progress":
    """A Rich progress line: bytes with rate and time left, a count, or only a spinner."""
    from rich import progress
    from rich.text import Text

    class WithFooter(progress.Progress):
        def get_renderables(self) -> "Iterable[RenderableType]":
            yield from super().get_renderables()
            footer = out.footer(stderr_columns() - 1, FOOTER_ROWS)
            yield from (Text.from_ansi(line, no_wrap=True) for line in footer)

    progress_columns: list[progress.ProgressColumn] = [
        progress.SpinnerColumn("line" if out.ascii else "dots", style="dim"),
        progress.TextColumn("{task.description}", style="dim"),
    ]
    if unit and stderr_columns() >= BAR_COLUMNS:
        progress_columns.append(progress.BarColumn(24, style="dim", complete_style="accent"))
    if unit == "bytes":
        progress_columns += [
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(compact=True),
        ]
    elif unit:
        progress_columns.append(
            progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit)
        )
    return WithFooter(*progress_columns, console=out.console, transient=True)
