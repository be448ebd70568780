"""Progress of a benchmark: a bar on a terminal, a line now and then elsewhere. Knows no models."""

from typing import TYPE_CHECKING

from ..terminal.output import Output

if TYPE_CHECKING:
    from dflash_mlx.bench import Record

PROGRESS_LINES = 10  # lines printed for a whole run without a live terminal


class BenchProgress:
    """The progress of a run on stderr; a context manager around the run."""

    def __init__(self, out: Output, total: int):
        from rich import progress

        self._out, self._total = out, total
        self._last_part = -1
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", style="dim"),
            progress.BarColumn(24, style="dim", complete_style="accent"),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.fields[note]}", style="dim"),
            console=out.console,
            transient=True,
            disable=not out.stderr_live,
        )
        self._task = self._progress.add_task("measuring", total=total, note="warming up")

    def __enter__(self) -> "BenchProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int, record: "Record | None" = None) -> None:
        """Set the number of answers done; `record` is the last one."""
        if record is not None:
            note = f"{record.task} · {record.key.mode} at {record.key.temperature:g}"
            self._progress.update(self._task, note=self._out.ascii_fallback(note))
        self._progress.update(self._task, completed=done)
        part = PROGRESS_LINES * done // max(1, self._total)
        if (
            not self._out.stderr_live
            and not self._out.quiet
            and part > self._last_part
            and record is not None
        ):
            self._out.info(f"{done:,} of {self._total:,} answers")
        self._last_part = max(part, self._last_part)
