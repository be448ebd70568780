"""Shows a training run's events on stderr. Knows no training."""

from typing import TYPE_CHECKING

from ..terminal.output import Output

if TYPE_CHECKING:
    from rich.progress import TaskID

    from dflash_mlx.train.events import (
        AnswersProgress,
        Event,
        Forecast,
        Measured,
        Prepared,
        StepDone,
        TapsProgress,
    )


class View:
    """The run's progress on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, out: Output):
        from rich import progress

        self._out = out
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}"),
            progress.TimeRemainingColumn(),
            console=out.console,
            disable=not out.stderr_live,
        )
        self._task: tuple[str, TaskID] | None = None
        self._loss: float | None = None
        self._seconds: float | None = None  # of a step
        self._tenths = 0  # of all taps
        self._tau = ""

    def __enter__(self) -> "View":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: "Event") -> None:
        """Show one event of the run."""
        handle = getattr(self, f"_{type(event).__name__.lower()}", None)
        if handle:
            handle(event)

    def _forecast(self, event: "Forecast") -> None:
        parts = (event.memory, event.target, event.answers, event.steps, event.disk)
        memory, target, answers, steps, disk = (f"{part / 2**30:.1f} GiB" for part in parts)
        self._print(
            f"forecast: about {memory} of memory (target {target}, and answers {answers} or steps"
            f" {steps}) · at most {disk} of taps on disk"
        )

    def _answersprogress(self, event: "AnswersProgress") -> None:
        rate = event.tokens / max(event.seconds, 1e-9)
        note = f"{rate:,.0f} tok/s"
        self._show_bar("answers", event.done, event.total, note)
        left = (event.total - event.done) * event.seconds / max(1, event.done)
        self._print_every(
            event.done,
            max(1, event.total // 10),
            f"answers {event.done:,} of {event.total:,} · {event.tokens:,} tokens made · {note}"
            f" · {duration(left)} left",
        )

    def _tapsprogress(self, event: "TapsProgress") -> None:
        note = f"{event.done / max(event.seconds, 1e-9):,.0f} tok/s"
        self._show_bar("taps", event.done, event.total, note)
        left = (event.total - event.done) * event.seconds / event.done
        tenth = max(1, event.total // 10)
        if event.done // tenth < self._tenths:  # of the next sequences
            self._tenths = 0
        if event.done // tenth > self._tenths or event.done == event.total:
            self._tenths = event.done // tenth
            self._print_every(
                0,
                1,
                f"taps of {event.done:,} of {event.total:,} tokens · {note}"
                f" · {duration(left)} left",
            )

    def _prepared(self, event: "Prepared") -> None:
        taps = ", ".join(map(str, event.layer_ids))
        self._print(
            f"{event.sequences:,} prompts, {event.held_out:,} held out"
            + (f", {event.dropped:,} dropped (no room for an answer)" if event.dropped else "")
            + f" · drafter of {event.parameters:,} parameters · taps {taps} · mask token"
            f" {event.mask_token_id} · at most {event.cache_bytes >> 20:,} MiB of taps kept"
        )
        if not event.plots:
            self._print("τ is not drawn: plots need the package 'matplotlib'")
        if event.first_step:
            self._print(f"going on after step {event.first_step:,} of {event.steps:,}")

    def _stepdone(self, event: "StepDone") -> None:
        self._loss = event.loss if self._loss is None else 0.95 * self._loss + 0.05 * event.loss
        note = (
            f"loss {self._loss:.3f} · lr {event.rate:.1e} · "
            f"{event.blocks / event.seconds:,.0f} blocks/s{self._tau}"
        )
        self._show_bar("training", event.step, event.steps, note)
        # Steps differ in their blocks: the time of one is a running mean.
        was = self._seconds
        self._seconds = event.seconds if was is None else 0.9 * was + 0.1 * event.seconds
        left = duration(self._seconds * (event.steps - event.step))
        text = f"step {event.step:,} of {event.steps:,} · {note} · {left} left"
        self._print_every(event.step, 50, text)

    def _measured(self, event: "Measured") -> None:
        self._tau = f" · τ {event.tau:.2f}"
        self._print(
            f"step {event.step:,} · τ {event.tau:.2f} on held-out prompts"
            f" ({event.verifies:,} verifies, {event.seconds:.1f} s)"
        )
        kept = [100 * n / max(1, event.verifies) for n in event.accepted_by_position]
        self._print(f"  drafts kept by position, %: {' '.join(f'{share:.0f}' for share in kept)}")

    def _show_bar(self, name: str, done: int, total: int, note: str) -> None:
        if self._task is None or self._task[0] != name:
            if self._task:
                self._progress.remove_task(self._task[1])
            self._task = name, self._progress.add_task(name, total=total, note="")
        self._progress.update(
            self._task[1], completed=done, total=total, note=self._out.ascii_fallback(note)
        )

    def _print_every(self, number: int, every: int, text: str) -> None:
        if not self._out.stderr_live and number % every == 0:
            self._print(text)

    def _print(self, text: str) -> None:
        if not self._out.quiet:
            self._out.info(text)


def duration(seconds: float) -> str:
    """A time to come, in the unit that says it best."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
