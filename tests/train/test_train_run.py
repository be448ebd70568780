"""Whole training runs of a tiny drafter: kills, resuming, what is left on disk, τ."""

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
import tiny
from train_runs import (
    SHAPE,
    check_answers,
    check_replay,
    losses,
    parameters,
    start,
    taps_of,
    weights,
)
from typer.testing import CliRunner

import dflash_mlx
from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.drafters.dflash.model import target_ids
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.target import Target
from dflash_mlx.train import run as run_module
from dflash_mlx.train.data import TrainingSequence
from dflash_mlx.train.evaluate import replay_answers
from dflash_mlx.train.events import (
    AnswersProgress,
    Prepared,
    Saved,
    StepDone,
    TapsProgress,
)
from dflash_mlx.train.memory import BlockSizes
from dflash_mlx.train.settings import AnswerSettings, DrafterShape, TrainJob, TrainSettings

TARGET = tiny.GOLDEN / "qwen3_full" / "target"


@pytest.fixture
def target() -> Target:
    return tiny.load_target(TARGET)


def test_taps_are_kept_and_damaged_ones_made_again(target, prompts, tmp_path):
    """Guards the taps on disk: answers leave theirs, the rest is read once, nothing is believed.

    What the answers' packed passes gave is what passes over whole sequences give.
    """
    flags: Any = {"steps": 4, "cache_taps": 0}
    answers = tmp_path / "answers.jsonl"
    run, events = start(target, prompts, tmp_path / "a", answers=answers, **flags)
    assert not [e for e in events if isinstance(e, TapsProgress)]
    run.train()
    sequences = run.trainer.sequences
    for kept, sequence in zip(run._taps.rows(sequences[:2]), sequences[:2], strict=True):
        wanted = taps_of(target, [sequence])[0]
        rows = len(kept)
        assert rows == len(wanted) - 1
        assert mx.allclose(kept, wanted[:rows], rtol=0.02, atol=0.02)
        assert not mx.allclose(kept[1:], wanted[: rows - 1], rtol=0.02, atol=0.02)
    (shard,) = (tmp_path / "a" / "taps").glob("*/shard-*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-3])
    again, more = start(target, prompts, tmp_path / "b", answers=answers, taps=shard.parents[1],
                        **flags)  # fmt: skip
    read = [e for e in more if isinstance(e, TapsProgress)]
    assert read[-1].done == read[-1].total > 0
    again.train()
    for (_, wanted), (_, got) in zip(losses(events), losses(more), strict=True):
        assert got == pytest.approx(wanted, rel=0.01)
    _, last = start(target, prompts, tmp_path / "c", answers=answers, taps=shard.parents[1],
                    **flags)  # fmt: skip
    assert not [e for e in last if isinstance(e, TapsProgress)]


def test_a_stop_within_a_step_loses_only_that_step(target, prompts, tmp_path):
    """Guards SIGTERM in a step of minutes: it waited for the step's end."""
    run, events = start(target, prompts, tmp_path, chunk=1)
    asked = []

    def stop():
        asked.append(run.step)
        return len(asked) > 40

    assert not run.train(stop)
    done = max(step for step, _ in losses(events))
    assert asked[-2:] == [done, done]  # between two slices
    assert [e.step for e in events if isinstance(e, Saved)][-1] == done
    rest, _ = start(tiny.load_target(TARGET), prompts, tmp_path, resume=True, chunk=1)
    assert rest.step == done


def test_what_cannot_fit_is_refused_with_numbers(target, prompts, tmp_path, monkeypatch):
    """Guards a machine from hours of swapping; nothing is answered before."""
    monkeypatch.setattr(run_module, "working_set", lambda: 1 << 20)
    with pytest.raises(DFlashError, match=r"about 0.\d GiB of memory \(target 0.0 GiB") as caught:
        start(target, prompts, tmp_path, answers=tmp_path / "none.jsonl")
    assert "--chunk" in caught.value.hint
    assert not (tmp_path / "none.jsonl").exists()
    sizes, settings = BlockSizes(6, 1, 4, 2, 16, 32), TrainSettings()
    few, more = (  # three prompts need no memory for 64 answers at once
        run_module.estimate_memory(
            target, sizes, 3, 1000, [9, 9, 9], settings, AnswerSettings(answer_batch=batch), 1
        )
        for batch in (3, 64)
    )
    assert few == more


def test_a_run_goes_on_without_its_taps(target, prompts, tmp_path):
    """Guards runs whose taps are gone: they resume, with their mask token."""
    run, _ = start(target, prompts, tmp_path)
    run.train(lambda: run.step == 6)
    (state,) = (tmp_path / "checkpoints").glob("*/state.json")
    old = json.loads(state.read_text())
    old["draft"]["dflash_config"]["mask_token_id"] = 98
    state.write_text(json.dumps(old))
    shutil.rmtree(tmp_path / "taps")
    rest, _ = start(tiny.load_target(TARGET), prompts, tmp_path, resume=True)
    assert rest.drafter.config.mask_token_id == 98
    assert rest.train()


def test_a_run_of_another_version_is_named_and_left(cli_app, target, prompts, tmp_path):
    """Guards a run with other settings or flags: its files stay as they are."""
    run, _ = start(target, prompts, tmp_path)
    run.train(lambda: run.step == 6)
    (state,) = (tmp_path / "checkpoints").glob("*/state.json")
    old = json.loads(state.read_text())
    del old["settings"]["compute"]
    state.write_text(json.dumps(old))
    (tmp_path / "run.json").write_text('{"flags": {"temperature": 0}, "files": {}}')
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(DFlashError, match="other settings: compute None, not float32"):
        start(tiny.load_target(TARGET), prompts, tmp_path, resume=True)
    done = CliRunner().invoke(cli_app, ["train", "--resume", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert f"the file '{tmp_path / 'run.json'}' is of another version" in done.stderr
    assert kept == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("warm", [False, True])
def test_a_dflash2_drafter(target, prompts, tmp_path, warm):
    """Guards DFlash 2: every part learns, the replay walks as decoding does, the engine loads it.

    A warm start from DFlash v1 drafts at first as that does.
    """
    first = None
    if warm:
        run, _ = start(target, prompts, tmp_path / "v1", steps=20, dtype="float32")
        run.train()
        first, target = run.evaluate(), tiny.load_target(TARGET)
    shape = dataclasses.replace(SHAPE, dflash2=True, selector_rank=8)
    run, events = start(
        target, prompts, tmp_path / "v2", shape=shape, steps=30, save_every=1000,
        warm_start=tmp_path / "v1" if warm else None,
    )  # fmt: skip
    assert run.evaluate() == first if warm else True
    untrained = parameters(run.drafter.model)
    run.train()
    curve = [value for _, value in losses(events)]
    assert sum(curve[-5:]) < (0.9 if warm else 0.8) * sum(curve[:5])
    for name, weight in parameters(run.drafter.model).items():
        assert not mx.array_equal(weight, untrained[name]), name
    assert Checkpoint.read(tmp_path / "v2").config["architectures"] == ["DFlash2DraftModel"]
    check_answers(dflash_mlx.load(TARGET, tmp_path / "v2"))
    check_replay(run, tiny.load_target(TARGET))


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("loss", ["decay", "dpace"])
def test_training_lowers_the_loss_and_leaves_the_target_alone(target, prompts, tmp_path, loss):
    """Guards the gradient: it reaches every tensor of the drafter and none of the target."""
    run, events = start(target, prompts, tmp_path, steps=40, loss=loss)
    before = parameters(target.model)
    untrained = parameters(run.drafter.model)
    run.train()
    curve = [value for _, value in losses(events)]
    assert curve[0] < math.log(target.vocab_size) + 2  # a sharp guess of the mask token costs more
    assert sum(curve[-5:]) < 0.6 * sum(curve[:5])
    for name, weight in parameters(target.model).items():
        assert mx.array_equal(weight, before[name]), name
    for name, weight in parameters(run.drafter.model).items():
        assert not mx.array_equal(weight, untrained[name]), name


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resumed_run_takes_the_same_steps(target, prompts, tmp_path, optimizer):
    """Guards --resume after a kill: weights, optimiser, order and anchors go on as if nothing was.

    The killed run has done two steps more than it saved; they are done again, and logged once.
    """
    whole, events = start(target, prompts, tmp_path / "whole", optimizer=optimizer)
    assert whole.train()
    cut, first = start(target, prompts, tmp_path / "cut", optimizer=optimizer)
    assert not cut.train(lambda: cut.step == 6)
    cut._log_and_report(StepDone(7, 12, 9.0, 0.0, 0.0, 1, 1, 1.0))  # then the kill, in mid-line
    with (tmp_path / "cut" / "log.jsonl").open("a") as log:
        log.write('{"step": 8, "lo')
    again = tiny.load_target(TARGET)
    rest, second = start(again, prompts, tmp_path / "cut", resume=True, optimizer=optimizer)
    assert rest.step == 6
    assert rest.train()
    together = losses(first)[:6] + losses(second)
    assert [step for step, _ in together] == list(range(1, 13))
    for (_, wanted), (_, got) in zip(losses(events), together, strict=True):
        assert got == pytest.approx(wanted, rel=1e-5)
    for name, weight in weights(tmp_path / "whole").items():
        assert mx.allclose(weight, weights(tmp_path / "cut")[name], atol=1e-2), name
    lines = [json.loads(line) for line in (tmp_path / "cut" / "log.jsonl").open()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))


def test_checkpoints_are_whole_and_few(target, prompts, tmp_path):
    """Guards the disk: two checkpoints, nothing half written, a usable drafter at each."""
    run, events = start(target, prompts, tmp_path / "run", steps=9, save_every=2)
    run.train()
    assert [e.step for e in events if isinstance(e, Saved)] == [2, 4, 6, 8, 9]
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "step-000008",
        "step-000009",
    ]
    # tau.png comes with matplotlib only.
    assert sorted(p.name for p in (tmp_path / "run").iterdir() if p.suffix != ".png") == [
        "checkpoints",
        "config.json",
        "log.jsonl",
        "model.safetensors",
        "taps",
    ]
    often, events = start(
        target, prompts, tmp_path / "often", steps=3, save_every=99, save_minutes=1e-9
    )
    often.train()
    assert [e.step for e in events if isinstance(e, Saved)] == [1, 2, 3]


def test_the_drafter_folder_is_z_labs_format(target, prompts, tmp_path):
    """Guards the export: names, shapes and keys of the reference, and the engine loads it."""
    run, _ = start(target, prompts, tmp_path, steps=2)
    run.train()
    raw, known = (
        Checkpoint.read(tmp_path).config,
        Checkpoint.read(tiny.GOLDEN / "qwen3_full" / "draft").config,
    )
    assert known.keys() - {"layer_types"} <= raw.keys()
    assert parse(raw) == run.drafter.config
    assert raw["dflash_config"] == {
        "mask_token_id": 99,
        "target_layer_ids": [1, 3, 5],
        "block_size": 6,
    }
    written, reference = weights(tmp_path), weights(tiny.GOLDEN / "qwen3_full" / "draft")
    assert {w.dtype for w in written.values()} == {mx.bfloat16}
    assert written.keys() == {n for n in reference if not n.startswith(("layers.1", "layers.2"))}
    check_answers(dflash_mlx.load(TARGET, tmp_path))


def test_a_vocabulary_of_its_own(target, prompts, tmp_path):
    """Guards --draft-vocab: the frozen head is the target's rows, and answers stay the target's."""
    shape = dataclasses.replace(SHAPE, draft_vocab=40)
    with mock.patch.object(run_module, "estimate_memory", wraps=run_module.estimate_memory) as seen:
        run, _ = start(target, prompts, tmp_path, shape=shape, steps=60)
    # A frozen head has no gradient and no moments.
    assert seen.call_args.args[3] == run_module.parameter_count(run.drafter.model)
    config, model = run.drafter.config, run.drafter.model
    ids = target_ids(model.d2t)
    hidden = mx.random.normal((3, target.hidden_size))
    wanted = target.head(hidden)[:, ids]
    assert mx.allclose(run.drafter.own_logits(hidden), wanted, atol=1e-5)
    assert not mx.allclose(run.drafter.own_logits(hidden), mx.roll(wanted, 1, 1), atol=1e-5)
    said = {t for s in run.trainer.sequences for t in s.tokens[s.answer :]}
    kept = {int(n) for n in np.array(ids)}
    assert len(said) <= 40
    assert said | (target.eos_ids & {98}) <= kept
    before = model.lm_head.weight + 0
    first = run.trainer.step(0)
    assert first is not None
    assert first.loss < math.log(40) + 2
    run.step = 1
    assert run.train()
    assert mx.array_equal(model.lm_head.weight, before)
    check_replay(run, target)
    written = weights(tmp_path)
    assert written["d2t"].dtype == mx.int32
    assert parse(Checkpoint.read(tmp_path).config) == config
    assert config.drafted == 40
    check_answers(dflash_mlx.load(TARGET, tmp_path))
    again, _ = start(target, prompts, tmp_path, shape=run.job.shape, steps=60, resume=True)
    assert mx.array_equal(again.drafter.model.d2t, model.d2t)


def test_batched_walk_counts_as_one_by_one(target, prompts, tmp_path):
    """Guards τ: known answers take the very rounds that decoding takes, also in a batch.

    An answer that has ended takes no more rounds.
    """
    run, _ = start(target, prompts, tmp_path, steps=40, save_every=1000)
    run.train()
    check_replay(run, target)
    some = [TrainingSequence(s.tokens[: s.answer + n], s.answer) for n, s in
            zip((2, 9, 17), run.trainer.sequences, strict=False)]  # fmt: skip
    together = replay_answers(run.student, taps_of(target, some), some)
    alone = [replay_answers(run.student, taps_of(target, [one]), [one]) for one in some]
    assert together.committed == sum(a.committed for a in alone)
    assert together.verifies == sum(a.verifies for a in alone)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores are chosen on Linux only")
def test_streams_end_with_the_process():
    """Tasks of unequal length, on one core: MLX aborts where a stream ends late."""
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from dflash_mlx.train.streams import Streams\n"
        "import mlx.core as mx\n"
        "def task(n):\n"
        "    for _ in range(n):\n"
        "        yield (made := mx.ones((99, 99)) @ mx.ones((99, n)))\n"
        "    return made.shape[1]\n"
        "for _ in range(2):\n"
        "    found = list(Streams(2).together(map(task, [3, 1, 2, 1])))\n"
        "    assert found == [[], [1], [], [3, 2], [1]], found\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_end_among_the_answers_is_no_abort(prompts, tmp_path):
    """Ctrl-C while the target answers: MLX aborted (rc 134) where threads left streams behind.

    On a machine of two cores that was two processes of three. What is answered by then is kept.
    """
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from dflash_mlx.cpu.modules import restore_modules\n"
        "from dflash_mlx.files.checkpoint import Checkpoint\n"
        "from dflash_mlx.pair import load_target\n"
        "from dflash_mlx.train.answers import answer_all\n"
        "from dflash_mlx.train.settings import AnswerSettings\n"
        "from dflash_mlx.train.data import read_prompts, tokenize\n"
        "def press(event):\n"
        "    raise KeyboardInterrupt\n"
        f"target, tokenizer = load_target(Checkpoint.read(Path({str(TARGET)!r})))\n"
        "restore_modules(target.model)\n"
        f"questions = tokenize(target, tokenizer, read_prompts(Path({str(prompts)!r})))\n"
        "settings = AnswerSettings(max_tokens=200, answer_batch=2)\n"
        "try:\n"
        f"    answer_all(target, questions, settings, Path({str(tmp_path / 'a')!r}), press)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    for number in range(1, 4):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (130, "")
        assert len((tmp_path / "a").read_text().splitlines()) == number


def test_warm_start_goes_on_from_a_drafter(target, prompts, tmp_path):
    """Guards --warm-start: the first loss is the trained one, the shape is that drafter's."""
    run, events = start(target, prompts, tmp_path / "a", steps=30, dtype="float32")
    run.train()
    again, more = start(
        tiny.load_target(TARGET), prompts, tmp_path / "b", steps=1, warm_start=tmp_path / "a"
    )
    again.train()
    assert again.drafter.config == run.drafter.config
    assert losses(more)[0][1] < 0.7 * losses(events)[0][1]
    kept = DrafterShape(block_size=16)  # the default, given by name
    assert TrainJob(prompts, tmp_path, warm_start=tmp_path / "a", shape=kept).shape == kept
    other = tiny.make_target("llama")
    other.path = TARGET
    with pytest.raises(DFlashError, match="hidden size"):
        start(other, prompts, tmp_path / "c", warm_start=tmp_path / "a")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-length", "8"], "no prompt leaves room for an answer of two tokens."),
        (["--draft-vocab", "0"], "cannot have 0 tokens of its own."),
        (["--draft-vocab", str(tiny.VOCAB + 1)], "tokens of its own."),
        (["--dflash2", "--draft-vocab", "40"], "cannot have a smaller vocabulary"),
        (["--taps", "99,1"], "the taps 99, 1 are not layers of this target."),
        (["--block-size", "1"], "a block needs two positions at least."),
        (["--mask-token", "98"], "98 is not a free token of this target."),
    ],
)
def test_what_the_target_cannot_have_is_refused(cli_app, prompts, tmp_path, flags, message):
    """Guards against a run that could only fail later."""
    answers = ["--answers", str(prompts.with_name("answers.jsonl")), "--max-tokens", "20"]
    command = ["train", str(prompts), "-m", str(TARGET), "-o", str(tmp_path / "out"), *answers]
    result = CliRunner().invoke(cli_app, [*command, *flags])
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Hint:" in result.stderr


def test_a_prompt_without_room_is_not_answered(target, tmp_path):
    """Guards hours of the target and the forecast from a prompt that is not trained on."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'"{text}"\n' for text in ("ab", "cd", "ef", "gh" * 60, "ij")))
    run, events = start(target, path, tmp_path / "out", max_length=60)
    (told,) = (event for event in events if isinstance(event, Prepared))
    assert told.sequences + told.held_out == 4
    assert [event.total for event in events if isinstance(event, AnswersProgress)][-1] == 4
    assert all(len(each.tokens) <= 60 for each in run.trainer.sequences)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-tokens", "0"], "max_tokens cannot be 0."),
        (["--answer-batch", "0"], "batch cannot be 0."),
        (["--seed", "-1"], "seed cannot be -1."),
        (["--val-share", "5"], "val_share cannot be 5.0."),
        (["--layers", "0"], "layers cannot be 0."),
        (["--warm-start", "x", "--block-size", "8"], "--warm-start keeps the shape"),
        (["--warm-start", "x", "--mask-token", "3"], "--warm-start keeps the shape"),
        (["--out", "FILE"], "is a file."),
        (["--val", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--lr", "0"], "rate cannot be 0.0."),
        (["--gamma", "-1"], "gamma cannot be -1.0."),
    ],
)
def test_wrong_flags_are_refused_before_any_work(
    cli_app, prompts, tmp_path, monkeypatch, flags, message
):
    """Guards hours of answers from a run that cannot be; nothing is left behind."""
    monkeypatch.setattr(Target, "load", None)
    (tmp_path / "file").write_text("kept")
    flags = [str(tmp_path / "file") if flag == "FILE" else flag for flag in flags]
    command = ["train", str(prompts), "-m", str(TARGET), "-o", str(tmp_path / "out"), *flags]
    result = CliRunner().invoke(cli_app, command)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Hint:" in result.stderr
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "file").read_text() == "kept"


def test_learning_rate_warms_up_and_falls_to_zero():
    """Guards the schedule: 4 % linear up, then half a cosine."""
    settings = TrainSettings(rate=1.0)
    rates = [settings.rate_at(step, 100) for step in range(100)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[52] == pytest.approx(0.5, abs=0.01)
    assert 0 < rates[99] < 0.001


def arguments(prompts, out, *more):
    return [
        "train", str(prompts), "-m", str(TARGET), "-o", str(out), "--layers", "1",
        "--block-size", "4", "--answers", str(prompts.with_name("answers.jsonl")),
        "--max-tokens", "20", "--val-share", "0.2", "--batch", "3", "--eval-every", "2", *more,
    ]  # fmt: skip


def test_command_line(cli_app, prompts, tmp_path):
    """Guards the command: a drafter at the end, progress on stderr, nothing on stdout."""
    said = CliRunner().invoke(cli_app, arguments(prompts, tmp_path / "no", "--forecast"))
    assert said.exit_code == 0, said.output
    assert "forecast: about" in said.stderr
    assert "prompts" not in said.stderr
    result = CliRunner().invoke(cli_app, arguments(prompts, tmp_path, "--steps", "2"))
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert "forecast: about" in result.stderr
    assert "drafts kept by position" in result.stderr
    assert "τ" in result.stderr
    assert parse(Checkpoint.read(tmp_path).config).block_size == 4
    again = CliRunner().invoke(cli_app, arguments(prompts, tmp_path, "--steps", "2"))
    assert again.exit_code == 1
    assert "--resume" in again.stderr
    wrong = CliRunner().invoke(cli_app, arguments(prompts, tmp_path, "--taps", "a"))
    assert wrong.exit_code == 2


class Press:
    """A view that sends this process signals at chosen events."""

    def __init__(self, monkeypatch, number, when):
        self.view = import_module("dflash_mlx.cli.train").View
        show, self.seen = self.view.show, []

        def pressing(view, event):
            show(view, event)
            self.seen.append(event)
            if when(event):
                os.kill(os.getpid(), number)

        monkeypatch.setattr(self.view, "show", pressing)


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_resume_needs_no_flag(
    cli_app, prompts, tmp_path, monkeypatch, number, request
):
    """Guards an evening's work: Ctrl-C or SIGTERM ends the step, saves, and says how to go on.

    That command alone goes on: it needed every flag of the first start, or all prompts were
    answered anew. SIGTERM, which ended a background run at once, counts while SIGINT is ignored.
    """
    if number == signal.SIGTERM:
        ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
        request.addfinalizer(lambda: signal.signal(signal.SIGINT, ignored))
    with monkeypatch.context() as patch:
        Press(patch, number, lambda event: isinstance(event, StepDone) and event.step == 2)
        result = CliRunner().invoke(cli_app, arguments(prompts, tmp_path, "--steps", "5"))
    assert result.exit_code == 128 + number
    command = f"dflash train --resume --out {tmp_path}"
    assert f"`{command}` goes on from here" in " ".join(result.stderr.split())
    count = len(prompts.with_name("answers.jsonl").read_text().splitlines())
    result = CliRunner().invoke(cli_app, command.split()[1:])
    assert result.exit_code == 0, result.output
    assert len(prompts.with_name("answers.jsonl").read_text().splitlines()) == count
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").open()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5]


def test_bundled_is_the_bundled_target(cli_app, prompts, tmp_path, monkeypatch):
    """The name that other commands accept: the same target as without -m."""
    seen = []

    def load(checkpoint, *, trust_remote_code):
        seen.append(checkpoint.path)
        raise DFlashError("seen.")

    monkeypatch.setattr("dflash_mlx.pair.load_target", load)
    for flags in ([], ["-m", "bundled"]):
        command = ["train", str(prompts), "--out", str(tmp_path / "out"), *flags]
        assert "seen." in CliRunner().invoke(cli_app, command).stderr
    assert seen[0] == seen[1]


def test_resume_before_the_first_step(cli_app, prompts, tmp_path, monkeypatch):
    """Ctrl-C among the answers: --resume went with "there is no run", now it goes on there."""
    flags = arguments(prompts, tmp_path / "out", "--steps", "2")
    flags[flags.index("--answers") + 1] = str(tmp_path / "answers")
    with monkeypatch.context() as patch:
        Press(patch, signal.SIGINT, lambda event: isinstance(event, AnswersProgress))
        assert CliRunner().invoke(cli_app, flags).exit_code == 130
    some = (tmp_path / "answers").read_text()
    assert 0 < len(some.splitlines()) < 12
    again = ["train", "--resume", "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(cli_app, again).exit_code == 0
    assert (tmp_path / "answers").read_text().startswith(some)


def test_resume_refuses_other_flags_before_any_work(cli_app, prompts, tmp_path, monkeypatch):
    """Guards a run from a second start that only finds out after hours that it does not fit."""
    out = tmp_path / "out"
    copy = tmp_path / "prompts.jsonl"
    copy.write_bytes(prompts.read_bytes())
    flags = arguments(prompts, out, "--steps", "2")
    flags[1] = str(copy)
    assert CliRunner().invoke(cli_app, flags).exit_code == 0
    moved = copy.rename(tmp_path / "moved.jsonl")
    other = tmp_path / "other.jsonl"
    other.write_text('"something else"\n')
    again = ["train", "--resume", "--out", str(out)]
    model = str(tiny.GOLDEN / "llama_full" / "target")
    with monkeypatch.context() as patch:
        patch.setattr(Target, "load", None)  # nothing is loaded
        for given, message in (
            (["--lr", "0.001", "--batch", "4"], "has --lr 0.0006, not 0.001; --batch 3, not 4."),
            (["--steps", "3", "--temp", "0.7"], "has --steps 2, not 3; --temp 0.0, not 0.7."),
            ([str(other)], f"has prompts {copy}, not {other}."),
            ([str(moved), "-m", model], f"has model {TARGET.resolve()}, not {model}."),
        ):
            result = CliRunner().invoke(cli_app, [*again, *given])
            assert result.exit_code == 2
            assert message in result.stderr
            assert "Hint:" in result.stderr
        other.rename(copy)
        assert f"other contents of '{copy}'" in CliRunner().invoke(cli_app, again).stderr
        none = CliRunner().invoke(cli_app, ["train", "--resume", "--out", str(tmp_path / "no")])
        assert "there is no run in" in none.stderr
    same = [*again, str(moved), "--lr", "6e-4", "--eval-every", "7"]
    assert CliRunner().invoke(cli_app, same).exit_code == 0
