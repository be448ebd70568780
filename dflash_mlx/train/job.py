"""What a training run reads and where it writes. Knows files only."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from dflash_mlx.errors import DFlashError, UsageError

from .checkpoint import list_checkpoints
from .shape import Shape

CHECKPOINTS = "checkpoints"  # a folder in a run's


@dataclass(frozen=True, slots=True)
class Job:
    """The input and output of a training run.

    val: file of held-out prompts; None takes `val_share` of the prompts. warm_start: folder of a
    drafter to start from, whose shape is used. answers: file of the target's answers; None is
    `out`/answers.jsonl. taps: folder of the target's taps; None is `out`/taps.
    """

    prompts: Path
    out: Path
    val: Path | None = None
    val_share: float = 0.02
    answers: Path | None = None
    taps: Path | None = None
    warm_start: Path | None = None
    mask_token: int | None = None
    shape: Shape = field(default_factory=Shape)
    resume: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid value."""
        if not 0 <= self.val_share < 1:
            raise UsageError(
                f"val_share cannot be {self.val_share}.", hint="give a share, such as 0.02"
            )
        if self.warm_start is None:
            return
        kept = replace(Shape(), dflash2=self.shape.dflash2, selector_rank=self.shape.selector_rank)
        if self.shape != kept or self.mask_token is not None:
            raise UsageError(
                "--warm-start keeps the shape and the mask token of its drafter.",
                hint="leave its sizes out, or --warm-start",
            )

    @property
    def answers_file(self) -> Path:
        """Where the answers are kept."""
        return self.answers or self.out / "answers.jsonl"

    @property
    def taps_folder(self) -> Path:
        """Where the taps are kept."""
        return self.taps or self.out / "taps"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are kept."""
        return self.out / CHECKPOINTS


def has_checkpoints(out: Path) -> bool:
    """Whether the folder of a run has a checkpoint to go on from."""
    return bool(list_checkpoints(out / CHECKPOINTS))


def check_out(job: Job) -> None:
    """Raise DFlashError if the folder holds a run that is not to resume, or none that is."""
    if job.out.exists() and not job.out.is_dir():
        raise UsageError(f"'{job.out}' is a file.", hint="give --out a folder")
    if has_checkpoints(job.out) and not job.resume:
        raise DFlashError(
            f"'{job.out}' already holds a run.",
            hint="go on with it with --resume, or give another --out",
        )
    if job.resume and not has_checkpoints(job.out):
        raise DFlashError(f"there is no run in '{job.out}'.", hint="leave --resume out")
