"""How far a benchmark is: a bar on a terminal, a line now and then elsewhere. Knows no models."""

from typing import TYPE_CHECKING

from ..output import Output

if TYPE_CHECKING:
    from dflash_mlx.bench import Record

PARTS = 10  # lines of a whole run where nothing can move


class BenchView:
    """The progress of a run on stderr; use it as a context manager around the run."""

    def __init__(self, out: Output, total: int):
        from rich import progress

        self._out, self._total = out, total
        self._said = -1
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}", style="dim"),
            progress.BarColumn(24, style="dim", complete_style="accent"),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.fields[note]}", style="dim"),
            console=out.console,
            transient=True,
            disable=not out.live,
        )
        self._task = self._bars.add_task("measuring", total=total, note="warming up")

    def __enter__(self) -> "BenchView":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, done: int, record: "Record | None" = None) -> None:
        """So many answers are there; `record` is the last one."""
        if record is not None:
            note = f"{record.task} · {record.key.mode} at {record.key.temperature:g}"
            self._bars.update(self._task, note=self._out.glyphs(note))
        self._bars.update(self._task, completed=done)
        part = PARTS * done // max(1, self._total)
        if not self._out.live and not self._out.quiet and part > self._said and record is not None:
            self._out.tell(f"{done:,} of {self._total:,} answers")
        self._said = max(part, self._said)
