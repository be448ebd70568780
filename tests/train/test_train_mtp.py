"""MTP heads in training: what they compute is what they draft, and what a run makes is loaded."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx.utils import tree_flatten
from mtp_heads import GOLDEN, golden_head, quantised, random_head, save_folder
from train_runs import (
    blocks_of,
    check_answers,
    check_replay,
    largest_difference,
    losses,
    parameters,
    start,
    weights,
)
from typer.testing import CliRunner

import dflash_mlx
from dflash_mlx.drafters.mtp import load as heads
from dflash_mlx.drafters.mtp.drafter import BLOCK, MTPDrafter
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.target import Target
from dflash_mlx.train.data import Text
from dflash_mlx.train.mtp import MTPPlan, MTPStudent, RowRope
from dflash_mlx.train.settings import DrafterShape, TrainSettings
from dflash_mlx.train.step import BlockGradient
from dflash_mlx.train.streams import Streams

TARGET = tiny.GOLDEN / "qwen3_full" / "target"
SHAPE = DrafterShape("mtp", intermediate=32)
LENGTH = 14
ANCHORS = np.array([[1, 6, 9], [3, 8, 12]])


def new_student(target: Target, seed: int = 1) -> MTPStudent:
    """A new head for a target, with norms that are not all alike."""
    plan = MTPPlan(target, DrafterShape("mtp"), None, None)
    student = plan.make(tiny.tokenizer(), [], [], seed, None)
    tiny.randomise(student.drafter.model, seed, 1.5)
    return student


def gated_student(target: Target) -> MTPStudent:
    drafter = random_head(target)
    attention: Any = drafter.model.layers[0].self_attn
    attention.rope = RowRope(attention.rope)
    return MTPStudent(drafter)


STUDENTS: dict[str, Callable[[], MTPStudent]] = {
    "qwen3": lambda: new_student(tiny.make_target("qwen3")),
    "qwen3_5": lambda: gated_student(tiny.make_target("qwen3_5")),
    "qwen3_next": lambda: gated_student(tiny.make_target("qwen3_next")),
}


def make_text() -> Text:
    key = mx.random.key(4)
    taps = mx.random.normal((2, LENGTH, tiny.BASE["hidden_size"]), key=key)
    tokens = mx.random.randint(0, 90, (2, LENGTH + BLOCK), key=key)
    return Text(taps, tokens, mx.array([LENGTH, LENGTH - 1]))


def drafted_logits(drafter: MTPDrafter, text: Text, row: int, at: int) -> mx.array:
    """Logits [B - 1, V] of the drafts after `at` in decoding, whose tokens are the sequence's."""
    tokens: list[int] = text.tokens[row].tolist()  # type: ignore[assignment]
    cache = drafter.make_cache()
    cache.append(text.taps[row : row + 1, :at], tokens[:at])
    following = iter(tokens[at + 1 :])
    _, logits = drafter.chains(
        [cache], [tokens[at]], BLOCK - 1, lambda logits: mx.array([next(following)])
    )
    return logits[:, 0]


def check_drafts(student: MTPStudent) -> None:
    """What training computes of three blocks in each of two sequences is what decoding does."""
    text = make_text()
    hidden = student.hidden(student.context(text), text, mx.array(ANCHORS))
    trained = student.drafter.own_logits(hidden)
    for row, column in np.ndindex(ANCHORS.shape):
        wanted = drafted_logits(student.drafter, text, row, int(ANCHORS[row, column]))
        assert tiny.apart(trained[row, column], wanted) < 2e-4, (row, column)


@pytest.mark.parametrize("family", STUDENTS)
def test_training_computes_what_decoding_drafts(family: str) -> None:
    """Guards positions, masks and hidden states; a plain layer, and those of Qwen3.5 and Next."""
    check_drafts(STUDENTS[family]())


def test_gradient_is_that_of_one_graph() -> None:
    """Guards the sums over slices, and the gradient that goes through the earlier tokens' rows."""
    student = STUDENTS["qwen3"]()
    model = student.drafter.model
    text = make_text()
    weight = mx.exp(-mx.arange(BLOCK - 1) / 2.0)

    def loss(parameters: Any) -> mx.array:
        model.update(parameters)
        found, counts = student.losses(student.context(text), text, mx.array(ANCHORS))
        return (found * counts * weight).sum()

    before = model.trainable_parameters()
    wanted = mx.grad(loss)(before)
    model.update(before)
    part = blocks_of(ANCHORS, text.taps, text.tokens[:, :LENGTH], (LENGTH, LENGTH - 1))
    settings = TrainSettings(chunk=2, gamma=2.0)
    sums = BlockGradient(student, settings, Streams(1)).sums([part], lambda: False)
    assert sums is not None
    assert largest_difference(sums["gradient"], wanted) < 1e-4


def test_a_run_makes_a_head_that_is_loaded(prompts, tmp_path):
    """Guards the whole way: every tensor learns, none of the target's, the head drafts, exactly."""
    target = tiny.load_target(TARGET)
    run, events = start(target, prompts, tmp_path, shape=SHAPE, steps=24, save_every=1000)
    one = run.trainer.sequences[0]
    (kept,) = run._taps.rows([one])  # those of the final norm, as in decoding
    normed = tiny.body_of(target)(mx.array([one.tokens[: len(kept)]]))[0]
    assert mx.allclose(kept, normed, rtol=0.02, atol=0.02)
    before = parameters(target.model)
    untrained = parameters(run.drafter.model)
    first = run.evaluate()
    run.train()
    curve = [value for _, value in losses(events)]
    assert sum(curve[-5:]) < 0.7 * sum(curve[:5])
    for name, weight in parameters(target.model).items():
        assert mx.array_equal(weight, before[name]), name
    for name, weight in parameters(run.drafter.model).items():
        assert not mx.array_equal(weight, untrained[name]), name
    assert first is not None
    assert (last := run.evaluate()) is not None
    assert last.accepted_by_position[0] > first.accepted_by_position[0]
    check_replay(run, tiny.load_target(TARGET))
    assert Checkpoint.read(tmp_path).config["model_type"] == "qwen3_mtp"
    assert weights(tmp_path).keys() == parameters(run.drafter.model).keys()
    pair = dflash_mlx.load(TARGET, tmp_path)
    assert pair.drafter is not None
    assert pair.drafter.block_size == BLOCK
    assert isinstance(pair.drafter, MTPDrafter)
    check_answers(pair)


def test_warm_start_goes_on_from_a_head(prompts, tmp_path):
    """Guards --warm-start: its weights and its number of drafts; others are refused by name."""
    shape = DrafterShape("mtp", block_size=3, intermediate=32)
    options: Any = {"dtype": "float32", "save_every": 1000}
    run, events = start(
        tiny.load_target(TARGET), prompts, tmp_path / "a", shape=shape, steps=12, **options
    )
    run.train()
    target = tiny.load_target(TARGET)
    again, more = start(
        target, prompts, tmp_path / "b", shape=SHAPE, steps=1, warm_start=tmp_path / "a", **options
    )
    assert again.evaluate() == run.evaluate()
    again.train()
    assert losses(more)[0][1] < 0.8 * losses(events)[0][1]
    pair = dflash_mlx.load(TARGET, tmp_path / "b")
    assert pair.drafter is not None
    assert pair.drafter.block_size == 3
    dflash = tiny.GOLDEN / "qwen3_full" / "draft"
    with pytest.raises(DFlashError, match="is no folder of an MTP head"):
        MTPPlan(target, SHAPE, dflash, None)
    with pytest.raises(DFlashError, match="'a' is an MTP head") as caught:
        start(target, prompts, tmp_path / "c", warm_start=tmp_path / "a")
    assert caught.value.hint == "give --kind mtp"
    wide = tiny.make_target("qwen3")
    with pytest.raises(DFlashError, match="expects a target with hidden size 64"):
        MTPPlan(wide, SHAPE, tmp_path / "a", None)


def test_a_familys_own_head_learns_on(tmp_path):
    """Guards a split head of Qwen3.5 as a start, gate and all; a quantised one is refused."""
    target = dflash_mlx.load(GOLDEN / "target", no_draft=True, cache_ram=0).target
    folder = save_folder(tmp_path / "head", golden_head())
    plan = MTPPlan(target, SHAPE, folder, None)
    student = plan.make(tiny.tokenizer(), [], [], 0, None)
    assert student.drafter.block_size == plan.sizes().rows == BLOCK
    taps = mx.random.normal((2, LENGTH, target.hidden_size), key=mx.random.key(4))
    text = make_text()
    part = blocks_of(ANCHORS, taps, text.tokens[:, :LENGTH])
    sums = BlockGradient(student, TrainSettings(), Streams(1)).sums([part], lambda: False)
    assert sums is not None
    slopes: Any = tree_flatten(sums["gradient"])
    assert all(slope.any() for _, slope in slopes)
    small = save_folder(tmp_path / "small", quantised(golden_head()))
    with pytest.raises(DFlashError, match="is quantised"):
        MTPPlan(target, SHAPE, small, None)


@pytest.mark.parametrize("family", ["llama_sliding", "qwen3_next", "gemma4", "deepseek_v3"])
def test_targets_of_other_families(family, tmp_path):
    """Guards a head's shape where the target's layers are of another kind: it has its own config.

    It is loaded from it alone.
    """
    target = tiny.make_target(family)
    student = new_student(target)
    check_drafts(student)
    plan = MTPPlan(target, DrafterShape("mtp"), None, None)
    tensors = parameters(student.drafter.model)
    folder = save_folder(tmp_path, tensors, **plan.raw)
    heads.check(Checkpoint.read(folder), target.checkpoint)
    loaded = heads.load(Checkpoint.read(folder), target)
    text = make_text()
    wanted = drafted_logits(student.drafter, text, 0, 6)
    assert tiny.apart(drafted_logits(loaded, text, 0, 6), wanted) < 1e-4


def test_a_broken_config_is_named(tmp_path):
    """Guards against a traceback from mlx-lm's own reading of it."""
    target = tiny.make_target("qwen3")
    student = new_student(target)
    plan = MTPPlan(target, DrafterShape("mtp"), None, None)
    raw = {name: value for name, value in plan.raw.items() if name != "rms_norm_eps"}
    folder = save_folder(tmp_path, parameters(student.drafter.model), **raw)
    with pytest.raises(DFlashError, match="the drafter's config cannot be used"):
        heads.check(Checkpoint.read(folder), target.checkpoint)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layers", "2"], "an MTP head has no --layers."),
        (["--dflash2", "--taps", "3"], "an MTP head has no --taps, --dflash2."),
        (["--draft-vocab", "40"], "an MTP head has no --draft-vocab."),
        (["--mask-token", "3"], "an MTP head has no mask token."),
        (["--block-size", "1"], "a block needs two positions at least."),
        (["--heads", "3"], "3 heads of size 16 with 2 for keys and values do not fit."),
        (["--kind", "eagle3"], "'eagle3' is not one of 'dflash', 'mtp'."),
        (["--warm-start", "x", "--block-size", "3"], "--warm-start keeps the shape"),
    ],
)
def test_flags_that_do_not_fit_are_refused(cli_app, prompts, tmp_path, flags, message):
    """Guards hours of answers from a run that cannot be."""
    command = ["train", str(prompts), "-m", str(TARGET), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(cli_app, [*command, "--kind", "mtp", *flags])
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.stderr.split())


def test_command_line(cli_app, prompts, tmp_path):
    """Guards the command: no mask token is shown, and --resume knows the kind."""
    flags = ["--answers", str(prompts.with_name("answers.jsonl")), "--max-tokens", "20"]
    command = ["train", str(prompts), "-m", str(TARGET), "-o", str(tmp_path), "--kind", "mtp"]
    result = CliRunner().invoke(cli_app, [*command, *flags, "--steps", "1", "--val-share", "0.2"])
    assert result.exit_code == 0, result.output
    assert f"taps {Checkpoint.read(TARGET).config['num_hidden_layers']} ·" in result.stderr
    assert "mask token" not in result.stderr
    assert "drafts kept by position" in result.stderr
    again = CliRunner().invoke(cli_app, ["train", "--resume", "--out", str(tmp_path)])
    assert again.exit_code == 0, again.output
