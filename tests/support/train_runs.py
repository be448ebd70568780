"""Training runs of a tiny drafter, and blocks of made-up sequences."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import tiny
from mlx import nn
from mlx.utils import tree_flatten

import dflash_mlx
from dflash_mlx.models.target import Target
from dflash_mlx.pair import Pair
from dflash_mlx.train.data import Rectangle, Text, TrainingSequence
from dflash_mlx.train.evaluate import replay_answers
from dflash_mlx.train.events import StepDone
from dflash_mlx.train.run import Run
from dflash_mlx.train.settings import AnswerSettings, DrafterShape, TrainJob, TrainSettings
from dflash_mlx.train.streams import Streams
from dflash_mlx.train.taps import compute, stacked

SHAPE = DrafterShape(layers=1, block_size=6, taps="3", intermediate=32)
QUICK = {"steps": 12, "batch": 3, "rate": 5e-3, "eval_every": 100, "save_every": 6, "chunk": 16}


def start(
    target, prompts, out, *, resume=False, warm_start=None, shape=SHAPE, answers=None, taps=None,
    **settings,
):  # fmt: skip
    """A run that is ready to train, and the list that gets its events."""
    events = []
    if warm_start is not None:
        shape = DrafterShape(shape.kind, dflash2=shape.dflash2, selector_rank=shape.selector_rank)
    job = TrainJob(
        prompts,
        out,
        val_share=0.2,
        answers=answers or prompts.with_name("answers.jsonl"),
        taps_folder=taps,
        resume=resume,
        warm_start=warm_start,
        shape=shape,
    )
    numbers = TrainSettings(**{**QUICK, **settings})
    tokenizer = tiny.tokenizer()
    return Run(
        target, tokenizer, job, numbers, AnswerSettings(max_tokens=20), events.append
    ), events


def losses(events):
    return [(e.step, e.loss) for e in events if isinstance(e, StepDone)]


def weights(folder: Path) -> dict[str, mx.array]:
    return mx.load(str(folder / "model.safetensors"))  # type: ignore[return-value]


def parameters(model: nn.Module) -> dict[str, mx.array]:
    """A model's tensors by name; new arrays replace them, these stay."""
    return dict(tree_flatten(model.parameters()))  # type: ignore[arg-type]


def taps_of(target: Target, sequences: list[TrainingSequence]) -> mx.array:
    """The taps of sequences by passes of the target, padded: [n, S, K * Ht]."""
    made = {s: rows for part in compute(target, sequences, Streams(2)) for s, rows in part}
    return stacked([made[s] for s in sequences], max(len(s.tokens) for s in sequences))


def check_answers(pair: Pair) -> None:
    """Greedy answers with drafts are those of plain decoding."""
    for text in ("say 5", "say 16"):
        answer = dflash_mlx.generate(pair, text, max_tokens=12, mode="dflash")
        plain = dflash_mlx.generate(pair, text, max_tokens=12, mode="baseline")
        assert answer.tokens == plain.tokens


def check_replay(run: Run, target: Target) -> None:
    """Hold the replay of known answers against decoding."""
    target.tap(run.drafter.taps)
    for sequence in run.trainer.sequences[:4]:
        length = len(sequence.tokens)
        walked = replay_answers(run.student, taps_of(target, [sequence]), [sequence])
        blocks = tiny.speculate(
            target,
            run.drafter,
            list(sequence.tokens[: sequence.answer]),
            block_size=run.drafter.block_size,
            max_tokens=length - sequence.answer,
            stops=target.eos_ids,
        )
        assert tuple(tiny.joined(blocks)) == sequence.tokens[sequence.answer :]
        rounds = [block for block in blocks if block.drafted or block is not blocks[0]]
        assert walked.verifies == len(rounds)
        assert walked.committed == sum(len(block.tokens) for block in rounds)
        assert sum(walked.accepted_by_position) == sum(block.accepted for block in rounds)


def blocks_of(
    anchors: np.ndarray, taps: mx.array, tokens: mx.array, lengths: tuple[int, ...] = ()
) -> tuple[Text, Rectangle]:
    rows = len(anchors)
    ends = mx.array(lengths or [tokens.shape[1]] * rows)
    text = Text(taps[:, : int(anchors.max())], tokens, ends)
    mx.eval(text.taps, tokens)
    return text, Rectangle(tuple(range(rows)), anchors)


def largest_difference(ours, wanted) -> float:
    """Of two gradients, relative to each tensor's largest number."""
    pairs: Any = zip(tree_flatten(ours), tree_flatten(wanted), strict=True)
    return max(float(mx.abs(a - b).max() / mx.abs(b).max()) for (_, a), (_, b) in pairs)
