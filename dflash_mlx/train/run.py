"""A training run: prompts, answers of the target, training steps, evaluation, checkpoints, resume.

The run reports events through a callback.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.cpu.modules import restore_modules
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.models.memory import working_set
from dflash_mlx.models.target import Target

from .answers import answer_all, fingerprint
from .checkpoint import export_drafter, list_checkpoints, load_state, read_state, save_state
from .data import Prompt, TokenizedPrompt, TrainingSequence, read_prompts, split, tokenize
from .evaluate import Acceptance, can_draw, draw_tau, evaluate
from .events import Event, Prepared, Saved, StepDone, TauMeasured
from .memory import check_disk, check_memory, estimate_memory
from .mtp import MTPPlan
from .new_drafter import DFlashPlan
from .settings import AnswerSettings, DrafterShape, Kind, TrainSettings
from .step import Trainer
from .streams import Streams, stream_count
from .student import Plan
from .taps import Taps, TapStore, key_of

# What a training run reads and where it writes.

CHECKPOINTS = "checkpoints"  # a folder in a run's
PLANS: dict[Kind, Callable[..., Plan]] = {"dflash": DFlashPlan, "mtp": MTPPlan}


@dataclass(frozen=True, slots=True)
class TrainJob:
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
    shape: DrafterShape = field(default_factory=DrafterShape)
    resume: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid value."""
        if not 0 <= self.val_share < 1:
            raise UsageError(
                f"val_share cannot be {self.val_share}.", hint="give a share, such as 0.02"
            )
        shape = self.shape
        if shape.kind != "dflash" and self.mask_token is not None:
            raise UsageError("an MTP head has no mask token.", hint="leave --mask-token out")
        if self.warm_start is None:
            return
        kept = DrafterShape(shape.kind, dflash2=shape.dflash2, selector_rank=shape.selector_rank)
        if replace(shape, block_size=shape.rows) != replace(kept, block_size=kept.rows) or (
            self.mask_token is not None
        ):
            raise UsageError(
                "--warm-start keeps the shape and the mask token of its drafter.",
                hint="leave its sizes out, or --warm-start",
            )

    @property
    def taps_folder(self) -> Path:
        return self.taps or self.out / "taps"

    @property
    def checkpoints(self) -> Path:
        return self.out / CHECKPOINTS


def has_checkpoints(out: Path) -> bool:
    return bool(list_checkpoints(out / CHECKPOINTS))


def check_out(job: TrainJob) -> None:
    """Raise DFlashError if `out` holds a run without `resume`, or no run with it."""
    if job.out.exists() and not job.out.is_dir():
        raise UsageError(f"'{job.out}' is a file.", hint="give --out a folder")
    if has_checkpoints(job.out) and not job.resume:
        raise DFlashError(
            f"'{job.out}' already holds a run.",
            hint="continue it with --resume, or give another --out",
        )
    if job.resume and not has_checkpoints(job.out):
        raise DFlashError(f"there is no run in '{job.out}'.", hint="leave --resume out")


# The log of a run


class RunLog:
    """The file log.jsonl in the folder of a run."""

    def __init__(self, folder: Path):
        self.file = folder / "log.jsonl"

    def add(self, event: StepDone | TauMeasured) -> None:
        with self.file.open("a") as log:
            log.write(json.dumps(asdict(event)) + "\n")

    def cut(self, step: int) -> None:
        """Keep the whole lines of the first `step` steps."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.file.write_text("".join(f"{line}\n" for line in lines if is_before(line, step)))


def is_before(line: str, step: int) -> bool:
    """Whether a log line is valid and belongs to the first `step` steps."""
    try:
        return json.loads(line)["step"] <= step
    except (ValueError, KeyError, TypeError):
        return False


# Settings that may change when a run resumes. `_identify` still compares the total of steps.
MAY_CHANGE = {
    "eval_every", "eval_prompts", "save_every", "save_minutes", "cache_taps", "dtype", "epochs",
    "steps",
}  # fmt: skip


class Run:
    """One training run of a drafter for a loaded target."""

    def __init__(
        self,
        target: Target,
        tokenizer: TokenizerWrapper,
        job: TrainJob,
        settings: TrainSettings,
        answers: AnswerSettings,
        report: Callable[[Event], None],
    ):
        """Make missing answers and taps. Raises DFlashError for bad input or too little room."""
        self.job = job
        self.settings = settings
        self.report = report
        check_out(job)
        job.out.mkdir(parents=True, exist_ok=True)
        checkpoints = list_checkpoints(job.checkpoints)
        state = read_state(checkpoints[-1]) if checkpoints else None
        if state is not None:  # before the target answers anything
            self._check_settings(state)
        train, val = self._prompts()
        questions, count = self._with_room(tokenize(target, tokenizer, train + val), len(train))
        make_plan = PLANS[job.shape.kind]
        self._plan = make_plan(target, job.shape, job.warm_start, job.mask_token)
        self._estimate_memory(target, questions, answers)
        store = self._store(target)
        answer_tokens = self._answers(target, questions, answers, store)
        restore_modules(target.model)
        limit = settings.max_length
        whole = [
            TrainingSequence((*q.tokens, *answer)[:limit], len(q.tokens))
            for q, answer in zip(questions, answer_tokens, strict=True)
        ]
        sequences = [s for s in whole[:count] if s.anchors]
        self._held_out = [s for s in whole[count:] if s.anchors][: settings.eval_prompts]
        if not sequences:
            raise DFlashError(
                "no answer has two tokens.", hint="raise --max-tokens, or give other prompts"
            )
        begun = None if state is None else state["draft"]
        self.student = self._plan.make(tokenizer, whole, sequences, settings.seed, begun)
        self.drafter: Any = self.student.drafter
        streams = Streams()
        self._taps = Taps(target, sequences, settings.cache_taps << 20, streams, store)
        self._held_out_taps = Taps(target, self._held_out, 0, streams, store)
        check_disk(job.taps_folder, self._taps.missing_bytes + self._held_out_taps.missing_bytes)
        for taps in (self._held_out_taps, self._taps):
            taps.make(report)
        self.trainer = Trainer(self.student, sequences, self._taps, settings, streams)
        self._identity = self._identify(sequences)
        self._log = RunLog(job.out)
        self.step = 0
        self._saved = -1
        if checkpoints:
            self._resume(checkpoints[-1])
        else:
            self._log.cut(0)
        report(
            Prepared(
                sequences=len(sequences),
                held_out=len(self._held_out),
                dropped=len(train) - len(sequences),
                parameters=parameter_count(self.drafter.model),
                steps=self.trainer.steps,
                first_step=self.step,
                mask_token_id=self._plan.mask_token_id,
                layer_ids=self._plan.taps,
                cache_bytes=settings.cache_taps << 20,
                plots=can_draw(),
            )
        )

    def _prompts(self) -> tuple[list[Prompt], list[Prompt]]:
        prompts = read_prompts(self.job.prompts)
        if self.job.val:
            return prompts, read_prompts(self.job.val)
        train, val = split(prompts, self.job.val_share)
        return (train, val) if train else (val, [])

    def _with_room(
        self, questions: list[TokenizedPrompt], trained: int
    ) -> tuple[list[TokenizedPrompt], int]:
        """The prompts with room for a two-token answer, and how many of them are for training."""
        room = [len(q.tokens) + 2 <= self.settings.max_length for q in questions]
        if not any(room[:trained]):
            raise DFlashError(
                "no prompt leaves room for an answer of two tokens.", hint="raise --max-length"
            )
        return [q for q, fits in zip(questions, room, strict=True) if fits], sum(room[:trained])

    def _estimate_memory(
        self, target: Target, questions: list[TokenizedPrompt], answers: AnswerSettings
    ) -> None:
        """Report what memory and disk the run needs; raise DFlashError if memory is too small."""
        plan = self._plan
        estimate = estimate_memory(
            target,
            plan.sizes(),
            len(plan.taps),
            parameter_count(plan.untrained()),
            [len(q.tokens) for q in questions],
            self.settings,
            answers,
            stream_count(),
        )
        self.report(estimate)
        check_memory(estimate, working_set())

    def _store(self, target: Target) -> TapStore:
        """The taps of this target and these layers in the folder of taps."""
        ids = self._plan.taps
        digest = hashlib.sha256(json.dumps([fingerprint(target.path), ids]).encode()).hexdigest()
        folder = self.job.taps_folder / digest[:16]
        return TapStore(folder, len(ids) * target.hidden_size)

    def _answers(
        self,
        target: Target,
        questions: list[TokenizedPrompt],
        settings: AnswerSettings,
        store: TapStore,
    ) -> list[list[int]]:
        """The answers; taps that are read on the way are stored."""
        path = self.job.answers or self.job.out / "answers.jsonl"
        limit = self.settings.max_length
        drafter = self._plan.answerer()
        target.tap(self._plan.taps)

        def keep(tokens: tuple[int, ...], taps: mx.array) -> None:
            if (key := key_of(tokens[:limit])) not in store:
                store.add(key, taps[:limit])

        try:
            return answer_all(
                target, questions, settings, path, self.report,
                drafter=drafter, keep=keep,
            )  # fmt: skip
        finally:
            store.flush()

    def _identify(self, sequences: list[TrainingSequence]) -> dict[str, Any]:
        """The values that must be equal when a run resumes."""
        data = hashlib.sha256(json.dumps([(s.answer, s.tokens) for s in sequences]).encode())
        return {
            "settings": self._kept_settings(),
            "steps": self.trainer.steps,
            "data": data.hexdigest(),
            "draft": self._plan.raw,
        }

    def _kept_settings(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self.settings).items() if k not in MAY_CHANGE}

    def _check_settings(self, state: dict[str, Any]) -> None:
        """Raise DFlashError, with both values, if a setting is not that of the first start."""
        before = state["settings"]
        settings = self._kept_settings()
        if before.keys() != settings.keys():
            raise DFlashError(
                f"the run in '{self.job.out}' was begun by another version of dflash, "
                "and cannot go on in this one.",
                hint="give another --out; this run stays as it is",
            )
        changed = [
            f"{name} {before[name]}, not {value}"
            for name, value in settings.items()
            if before[name] != value
        ]
        if changed:
            raise DFlashError(
                f"'{self.job.out}' was started with other settings: {'; '.join(changed)}.",
                hint="give the settings of the first start, or another folder",
            )

    def _resume(self, checkpoint: Path) -> None:
        state = read_state(checkpoint)
        for name, value in self._identity.items():
            if json.loads(json.dumps(value)) != state.get(name):
                raise DFlashError(
                    f"'{self.job.out}' was started with other {name}.",
                    hint="give the flags and files of the first start, or another --out",
                )
        load_state(checkpoint, self.drafter.model, self.trainer.optimizer)
        self.step = self._saved = state["step"]
        self._log.cut(self.step)

    def train(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Do the remaining steps, with evaluations and checkpoints.

        If `stop` returns true, abandons the current step, saves the last complete one and returns
        False. Otherwise returns True.
        """
        try:
            return self._train(stop)
        finally:
            self._taps.close()

    def _train(self, stop: Callable[[], bool]) -> bool:
        settings = self.settings
        last = self.trainer.steps
        saved_at = time.monotonic()
        while self.step < last:
            began = time.perf_counter()
            done = self.trainer.step(self.step, stop)
            if done is None:
                self.save()
                return False
            self.step += 1
            seconds = time.perf_counter() - began
            self._log_and_report(StepDone(self.step, last, seconds=seconds, **asdict(done)))
            if self.step % settings.eval_every == 0 or self.step == last:
                self.evaluate()
            stopped = stop() and self.step < last
            late = time.monotonic() - saved_at >= 60 * settings.save_minutes
            if self.step % settings.save_every == 0 or self.step == last or stopped or late:
                self.save()
                saved_at = time.monotonic()
            if stopped:
                return False
        return True

    def evaluate(self) -> Acceptance | None:
        """Log the acceptance length on the held-out prompts; None if there are none."""
        began = time.perf_counter()
        acceptance = evaluate(self.student, self._held_out_taps, self._held_out)
        if acceptance is None:
            return None
        seconds = time.perf_counter() - began
        self._log_and_report(
            TauMeasured(
                self.step,
                acceptance.tau,
                acceptance.verifies,
                acceptance.accepted_by_position,
                seconds,
            )
        )
        if can_draw():
            draw_tau(self._log.file, self.job.out / "tau.png")
        return acceptance

    def save(self) -> None:
        """Write a checkpoint and the drafter folder, unless this step's are written."""
        if self._saved == self.step:
            return
        state = {"step": self.step, **self._identity}
        place = save_state(self.job.checkpoints, self.drafter.model, self.trainer.optimizer, state)
        export_drafter(self.job.out, self._plan.raw, self.drafter.model, self.settings.dtype)
        self._saved = self.step
        self.report(Saved(self.step, str(place)))

    def _log_and_report(self, event: StepDone | TauMeasured) -> None:
        self._log.add(event)
        self.report(event)


def parameter_count(model: nn.Module) -> int:
    return sum(array.size for _, array in tree_flatten(model.trainable_parameters()))  # type: ignore
