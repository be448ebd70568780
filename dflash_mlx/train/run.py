"""A training run: prompts, answers of the target, training steps, evaluation, checkpoints, resume.

The run reports events through a callback.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.cpu.modules import restore_modules
from dflash_mlx.drafter.config import load_config, parse
from dflash_mlx.drafter.drafter import Drafter
from dflash_mlx.drafter.model import DraftModel
from dflash_mlx.drafters import check_fit, check_tensors, load_drafter
from dflash_mlx.errors import DFlashError
from dflash_mlx.target.target import Target

from .answers import AnswerSettings, answer_all
from .batches import Sequence
from .checkpoint import export_drafter, list_checkpoints, load_state, read_state, save_state
from .data import Prompt, read_prompts, split, tokenize
from .events import Event, Measured, Prepared, Saved, StepDone
from .loop import Trainer
from .mask_token import choose_mask_token
from .settings import TrainSettings
from .shape import Shape, draft_config
from .target_hidden import TargetHiddenCache, stacked
from .tau import Acceptance, merge_counts, replay_answers
from .workers import Workers

CHECKPOINTS = "checkpoints"  # a folder in a run's
MAX_EVAL_TOKENS = 8192  # padded tokens of one evaluation batch
# Settings that may change when a run resumes: they change no step.
MAY_CHANGE = {"eval_every", "eval_prompts", "save_every", "cache_mb", "dtype", "epochs", "steps"}


@dataclass(frozen=True, slots=True)
class Job:
    """The input and output of a training run.

    val: file of held-out prompts; None takes `val_share` of the prompts. warm_start: folder of a
    drafter to start from, whose shape is used. answers: file of the target's answers; None is
    `out`/answers.jsonl.
    """

    prompts: Path
    out: Path
    val: Path | None = None
    val_share: float = 0.02
    answers: Path | None = None
    warm_start: Path | None = None
    mask_token: int | None = None
    shape: Shape = field(default_factory=Shape)
    resume: bool = False


class Run:
    """One training run of a drafter for a loaded target."""

    def __init__(
        self,
        target: Target,
        job: Job,
        settings: TrainSettings,
        answers: AnswerSettings,
        report: Callable[[Event], None],
    ):
        """Prepare the run; generates the missing answers. Raises DFlashError for invalid input."""
        self.job, self.settings, self.report = job, settings, report
        check_out(job)
        job.out.mkdir(parents=True, exist_ok=True)
        checkpoints = list_checkpoints(self._checkpoints)
        if checkpoints:  # before the target answers anything
            self._check_settings(read_state(checkpoints[-1]))
        restore_modules(target.model)
        train, val = self._prompts()
        questions = tokenize(target, train + val)
        made = answer_all(
            target, questions, answers, job.answers or job.out / "answers.jsonl", report
        )
        limit = settings.max_length
        whole = [
            Sequence((*q.tokens, *answer)[:limit], len(q.tokens))
            for q, answer in zip(questions, made, strict=True)
        ]
        sequences = [s for s in whole[: len(train)] if s.anchors]
        self._held_out = [s for s in whole[len(train) :] if s.anchors][: settings.eval_prompts]
        if not sequences:
            raise DFlashError(
                "no prompt leaves room for an answer of two tokens.", hint="raise --max-length"
            )
        self._build(target, whole)
        self._workers, budget = Workers(), settings.cache_mb << 20
        hidden = TargetHiddenCache(target, sequences, budget, self._workers)
        self._eval_hidden = TargetHiddenCache(target, self._held_out, budget, self._workers)
        self.trainer = Trainer(self.drafter, sequences, hidden, settings, self._workers)
        self._identity = self._identify(sequences)
        self.step = 0
        if checkpoints:
            self._resume(checkpoints[-1])
        report(
            Prepared(
                sequences=len(sequences),
                held_out=len(self._held_out),
                dropped=len(train) - len(sequences),
                parameters=parameter_count(self.drafter.model),
                steps=self.trainer.steps,
                first_step=self.step,
                mask_token_id=self.drafter.config.mask_token_id,
                layer_ids=self.drafter.config.target_layer_ids,
                cache_bytes=settings.cache_mb << 20,
            )
        )

    @property
    def _checkpoints(self) -> Path:
        return self.job.out / CHECKPOINTS

    def _prompts(self) -> tuple[list[Prompt], list[Prompt]]:
        prompts = read_prompts(self.job.prompts)
        if self.job.val:
            return prompts, read_prompts(self.job.val)
        train, val = split(prompts, self.job.val_share)
        return (train, val) if train else (val, [])

    def _build(self, target: Target, sequences: list[Sequence]) -> None:
        """Make the drafter: new, or with the weights and the shape of `warm_start`."""
        used = {token for s in sequences for token in s.tokens}
        if self.job.warm_start:
            self.raw = load_config(self.job.warm_start)
            config, name = parse(self.raw), self.job.warm_start.name
            if config.dflash2 or config.draft_vocab_size:
                kind = "DFlash 2 drafter" if config.dflash2 else "drafter with its own vocabulary"
                raise DFlashError(
                    f"'{name}' is a {kind}, which cannot be trained yet.",
                    hint="start from a DFlash v1 drafter, or from nothing",
                )
            check_fit(config, target.config, name, target.path.name)
            check_tensors(self.job.warm_start, config, target.hidden_size)
            self.drafter = load_drafter(self.job.warm_start, config, target)
            self.drafter.model.set_dtype(mx.float32)
            restore_modules(self.drafter.model)
            mx.eval(self.drafter.model.parameters())
            return
        mask = choose_mask_token(target, used, self.job.mask_token)
        self.raw = draft_config(target, self.job.shape, mask)
        config = parse(self.raw)
        target.tap(config.target_layer_ids)
        mx.random.seed(self.settings.seed)
        model = DraftModel(config, target.hidden_size)
        mx.eval(model.parameters())
        self.drafter = Drafter(model, target.embed, target.head)

    def _identify(self, sequences: list[Sequence]) -> dict[str, Any]:
        """The values that must be equal when a run resumes."""
        data = hashlib.sha256(json.dumps([(s.answer, s.tokens) for s in sequences]).encode())
        return {
            "settings": self._kept_settings(),
            "steps": self.trainer.steps,
            "data": data.hexdigest(),
            "draft": self.raw,
        }

    def _kept_settings(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self.settings).items() if k not in MAY_CHANGE}

    def _check_settings(self, state: dict[str, Any]) -> None:
        """Raise DFlashError, which names both values, for settings that the run has otherwise."""
        was = state["settings"]
        changed = [
            f"{name} {was.get(name)}, not {value}"
            for name, value in self._kept_settings().items()
            if was.get(name) != value
        ]
        if changed:
            raise DFlashError(
                f"'{self.job.out}' was started with other settings: {'; '.join(changed)}.",
                hint="give the settings of the first start, or another folder",
            )

    def _resume(self, place: Path) -> None:
        state = read_state(place)
        for name, now in self._identity.items():
            if json.loads(json.dumps(now)) != state.get(name):
                raise DFlashError(
                    f"'{self.job.out}' was started with other {name}.",
                    hint="give the flags and files of the first start, or another --out",
                )
        load_state(place, self.drafter.model, self.trainer.optimizer)
        self.step = state["step"]
        log = self.job.out / "log.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        kept = [line for line in lines if is_before(line, self.step)]
        log.write_text("".join(f"{line}\n" for line in kept))

    def train(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Do the remaining steps, with evaluations and checkpoints.

        If `stop` returns true after a step, saves and returns False; else returns True.
        """
        try:
            return self._train(stop)
        finally:
            self._workers.close()

    def _train(self, stop: Callable[[], bool]) -> bool:
        settings, last = self.settings, self.trainer.steps
        while self.step < last:
            began = time.perf_counter()
            done = self.trainer.step(self.step)
            self.step += 1
            seconds = time.perf_counter() - began
            event = StepDone(self.step, last, seconds=seconds, **asdict(done))
            self._log(event)
            if self.step % settings.eval_every == 0 or self.step == last:
                self.evaluate()
            stopped = stop() and self.step < last
            if self.step % settings.save_every == 0 or self.step == last or stopped:
                self.save()
            if stopped:
                return False
        return True

    def evaluate(self) -> Acceptance | None:
        """Log the acceptance length on the held-out prompts; None if there are none."""
        began = time.perf_counter()
        lengths = [len(s.tokens) for s in self._held_out]
        numbers = sorted(range(len(lengths)), key=lengths.__getitem__)
        parts = []
        while numbers:
            longest = lengths[numbers[-1]]
            part = numbers[-max(1, MAX_EVAL_TOKENS // longest) :]
            numbers = numbers[: -len(part)]
            target_hidden = stacked(self._eval_hidden.rows(part), longest)
            parts.append(
                replay_answers(self.drafter, target_hidden, [self._held_out[n] for n in part])
            )
        if not parts:
            return None
        result = merge_counts(parts)
        seconds = time.perf_counter() - began
        self._log(
            Measured(self.step, result.tau, result.verifies, result.accepted_by_position, seconds)
        )
        return result

    def save(self) -> None:
        """Write a checkpoint and the drafter folder."""
        state = {"step": self.step, **self._identity}
        place = save_state(self._checkpoints, self.drafter.model, self.trainer.optimizer, state)
        export_drafter(self.job.out, self.raw, self.drafter.model, self.settings.dtype)
        self.report(Saved(self.step, str(place)))

    def _log(self, event: StepDone | Measured) -> None:
        with (self.job.out / "log.jsonl").open("a") as log:
            log.write(json.dumps(asdict(event)) + "\n")
        self.report(event)


def has_checkpoints(out: Path) -> bool:
    """Whether the folder of a run has a checkpoint to go on from."""
    return bool(list_checkpoints(out / CHECKPOINTS))


def check_out(job: Job) -> None:
    """Raise DFlashError if the folder holds a run that is not to resume, or none that is."""
    if has_checkpoints(job.out) and not job.resume:
        raise DFlashError(
            f"'{job.out}' already holds a run.",
            hint="go on with it with --resume, or give another --out",
        )
    if job.resume and not has_checkpoints(job.out):
        raise DFlashError(f"there is no run in '{job.out}'.", hint="leave --resume out")


def parameter_count(model: DraftModel) -> int:
    """The number of trained parameters."""
    return sum(array.size for _, array in tree_flatten(model.parameters()))  # type: ignore


def is_before(line: str, step: int) -> bool:
    """Whether a log line is valid and belongs to the first `step` steps."""
    try:
        return json.loads(line)["step"] <= step
    except (ValueError, KeyError, TypeError):
        return False
