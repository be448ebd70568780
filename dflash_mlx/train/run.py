"""A training run: prompts, answers of the target, training steps, evaluation, checkpoints, resume.

The run reports events through a callback.
"""

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.cpu.modules import restore_modules
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.models.memory import working_set
from dflash_mlx.models.target import Target

from .answers import answer_all, fingerprint
from .checkpoint import export_drafter, list_checkpoints, load_state, save_state
from .data import TokenizedPrompt, TrainingSequence, read_prompts, split, tokenize
from .evaluate import Acceptance, can_draw, draw_tau, evaluate
from .events import Event, Prepared, Saved, StepDone, TauMeasured
from .memory import check_disk, check_memory, estimate_memory
from .mtp import MTPPlan
from .new_drafter import DFlashPlan
from .settings import MAY_CHANGE, AnswerSettings, TrainJob, TrainSettings
from .step import Trainer
from .streams import Streams, stream_count
from .taps import TapStore


def check_out(job: TrainJob) -> None:
    """Raise DFlashError if `out` holds a run without `resume`, or no run with it."""
    if job.out.exists() and not job.out.is_dir():
        raise UsageError(f"'{job.out}' is a file.", hint="give --out a folder")
    has_run = bool(list_checkpoints(job.checkpoints))
    if has_run and not job.resume:
        raise DFlashError(
            f"'{job.out}' already holds a run.",
            hint="continue it with --resume, or give another --out",
        )
    if job.resume and not has_run:
        raise DFlashError(f"there is no run in '{job.out}'.", hint="leave --resume out")


class Run:
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
        self._log = job.out / "log.jsonl"
        check_out(job)
        job.out.mkdir(parents=True, exist_ok=True)
        checkpoints = list_checkpoints(job.checkpoints)
        others = {*MAY_CHANGE, "epochs", "steps"}  # the total of steps is compared by itself
        kept = {k: v for k, v in asdict(settings).items() if k not in others}
        state = json.loads((checkpoints[-1] / "state.json").read_text()) if checkpoints else {}
        if state:  # compared before the target answers anything
            self._compare(state, {"settings": kept})
        questions, count, dropped = self._questions(target, tokenizer)
        make_plan = DFlashPlan if job.shape.kind == "dflash" else MTPPlan
        self._plan = make_plan(target, job.shape, job.warm_start, job.mask_token)
        estimate = estimate_memory(
            target,
            self._plan.sizes(),
            len(self._plan.taps),
            parameter_count(self._plan.untrained()),
            [len(q.tokens) for q in questions],
            settings,
            answers,
            stream_count(),
        )
        report(estimate)
        check_memory(estimate, working_set())
        whole = self._sequences(target, questions, answers)
        restore_modules(target.model)
        sequences = [s for s in whole[:count] if s.anchors]
        self._held_out = [s for s in whole[count:] if s.anchors][: settings.eval_prompts]
        if not sequences:
            raise DFlashError(
                "no answer has two tokens.", hint="raise --max-tokens, or give other prompts"
            )
        begun = state.get("draft")
        self.student = self._plan.make(tokenizer, whole, sequences, settings.seed, begun)
        self.drafter: Any = self.student.drafter
        streams = Streams()
        check_disk(job.taps, self._taps.missing_bytes([*self._held_out, *sequences]))
        for some in (self._held_out, sequences):
            self._taps.make(some, streams, report)
        self.trainer = Trainer(self.student, sequences, self._taps, settings, streams)
        texts = json.dumps([(s.answer, s.tokens) for s in sequences])
        self._identity: dict[str, Any] = {
            "settings": kept,
            "steps": self.trainer.steps,
            "data": hashlib.sha256(texts.encode()).hexdigest(),
            "draft": self._plan.raw,
        }
        self.step = 0
        self._saved = -1
        if state:
            self._compare(state, self._identity)
            load_state(checkpoints[-1], self.drafter.model, self.trainer.optimizer)
            self.step = self._saved = state["step"]
        self._cut_log()
        report(
            Prepared(
                sequences=len(sequences),
                held_out=len(self._held_out),
                dropped=dropped + count - len(sequences),
                parameters=parameter_count(self.drafter.model),
                steps=self.trainer.steps,
                first_step=self.step,
                mask_token_id=self._plan.mask_token_id,
                layer_ids=self._plan.taps,
                cache_bytes=settings.cache_taps << 20,
                plots=can_draw(),
            )
        )

    def _compare(self, state: dict[str, Any], identity: dict[str, Any]) -> None:
        """Raise DFlashError, with the values of a setting, if the run began with others."""
        for name, value in json.loads(json.dumps(identity)).items():
            before = state.get(name)
            if before == value:
                continue
            text = name
            if name == "settings" and before:
                changed = (key for key in value if before.get(key) != value[key])
                text += f": {'; '.join(f'{k} {before.get(k)}, not {value[k]}' for k in changed)}"
            raise DFlashError(
                f"'{self.job.out}' was started with other {text}.",
                hint="give the flags and files of the first start, or another --out",
            )

    def _questions(
        self, target: Target, tokenizer: TokenizerWrapper
    ) -> tuple[list[TokenizedPrompt], int, int]:
        """The prompts with room for a two-token answer, those for training first.

        Also returns how many are for training, and how many of these have no room.
        """
        job = self.job
        train = read_prompts(job.prompts)
        if job.val:
            val = read_prompts(job.val)
        else:
            train, val = split(train, job.val_share)
            train, val = (train, val) if train else (val, [])
        questions = tokenize(target, tokenizer, train + val)
        room = [len(q.tokens) + 2 <= self.settings.max_length for q in questions]
        count = sum(room[: len(train)])
        if not count:
            raise DFlashError(
                "no prompt leaves room for an answer of two tokens.", hint="raise --max-length"
            )
        kept = [q for q, fits in zip(questions, room, strict=True) if fits]
        return kept, count, len(train) - count

    def _sequences(
        self, target: Target, questions: list[TokenizedPrompt], settings: AnswerSettings
    ) -> list[TrainingSequence]:
        """The prompts with the target's answers; taps that are read on the way are stored."""
        path = self.job.answers or self.job.out / "answers.jsonl"
        limit = self.settings.max_length
        drafter = self._plan.answerer()
        target.tap(self._plan.taps)
        text = json.dumps([fingerprint(target.path), self._plan.taps])
        folder = self.job.taps / hashlib.sha256(text.encode()).hexdigest()[:16]
        self._taps = TapStore(folder, target, self.settings.cache_taps << 20)

        def keep(tokens: tuple[int, ...], taps: Any) -> None:
            if (key := TrainingSequence(tokens[:limit], 0).key) not in self._taps:
                self._taps.add(key, taps[:limit])

        try:
            answers = answer_all(
                target, questions, settings, path, self.report, drafter=drafter, keep=keep
            )
        finally:
            self._taps.flush()
        return [
            TrainingSequence((*q.tokens, *answer)[:limit], len(q.tokens))
            for q, answer in zip(questions, answers, strict=True)
        ]

    def _cut_log(self) -> None:
        """Remove the lines of steps that are to be done, and those that a kill cut off."""
        kept = []
        for line in self._log.read_text().splitlines() if self._log.exists() else []:
            with suppress(ValueError, KeyError, TypeError):
                if json.loads(line)["step"] <= self.step:
                    kept.append(f"{line}\n")
        self._log.write_text("".join(kept))

    def train(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Do the remaining steps, with evaluations and checkpoints.

        If `stop` returns true, abandons the current step, saves the last complete one and returns
        False. Otherwise returns True.
        """
        settings = self.settings
        last = self.trainer.steps
        saved_at = time.monotonic()
        while self.step < last:
            done = self.trainer.step(self.step, stop)
            if done is None:
                self.save()
                return False
            self.step += 1
            self._log_and_report(done)
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
        counts = evaluate(self.student, self._taps, self._held_out)
        if counts is not None:
            seconds = time.perf_counter() - began
            by_position = counts.accepted_by_position
            self._log_and_report(
                TauMeasured(self.step, counts.tau, counts.verifies, by_position, seconds)
            )
            if can_draw():
                draw_tau(self._log, self.job.out / "tau.png")
        return counts

    def save(self) -> None:
        """Write a checkpoint and the drafter folder, unless this step's are written."""
        if self._saved == self.step:
            return
        model = self.drafter.model
        state = {"step": self.step, **self._identity}
        save_state(self.job.checkpoints, model, self.trainer.optimizer, state)
        export_drafter(self.job.out, self._plan.raw, model, self.settings.dtype)
        self._saved = self.step
        self.report(Saved(self.step))

    def _log_and_report(self, event: StepDone | TauMeasured) -> None:
        with self._log.open("a") as log:
            log.write(json.dumps(asdict(event)) + "\n")
        self.report(event)


def parameter_count(model: nn.Module) -> int:
    return sum(array.size for _, array in tree_flatten(model.trainable_parameters()))  # type: ignore
