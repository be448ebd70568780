"""Measure the peak memory of a training step for several numbers of anchors and context rows.

    .venv/bin/python examples/measure/train_memory.py

A random drafter with the sizes of one for SmolLM2-135M (5 layers, width 576, vocabulary 49,152)
takes a step on one sequence. Prints `mx.get_peak_memory` during the step minus the memory before
it, so weights and optimiser state are left out. Needs no model.
"""

import argparse
import dataclasses

from dflash_mlx.cpu.blas import use_all_cores

use_all_cores()

import mlx.core as mx  # noqa: E402

from dflash_mlx.drafters.dflash.config import parse  # noqa: E402
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter  # noqa: E402
from dflash_mlx.drafters.dflash.model import DraftModel  # noqa: E402
from dflash_mlx.train.data import TrainingSequence  # noqa: E402
from dflash_mlx.train.dflash import DFlashStudent  # noqa: E402
from dflash_mlx.train.settings import TrainSettings  # noqa: E402
from dflash_mlx.train.step import Trainer  # noqa: E402
from dflash_mlx.train.streams import Streams  # noqa: E402

WIDTH, VOCABULARY, TAPS = 576, 49_152, 5
CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": WIDTH,
    "intermediate_size": 1536,
    "num_hidden_layers": 5,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "num_target_layers": 30,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e5,
    "max_position_embeddings": 8192,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 7, "target_layer_ids": [1, 8, 14, 20, 27]},
}


class Features:
    """Random taps of every sequence."""

    def __init__(self, sequences: list[TrainingSequence]):
        self._sequences = sequences

    def rows(self, numbers: list[int]) -> list[mx.array]:
        """Taps [S, K * Ht] of each of these sequences."""
        shapes = [(len(self._sequences[n].tokens), TAPS * WIDTH) for n in numbers]
        found = [mx.random.normal(shape).astype(mx.bfloat16) for shape in shapes]
        mx.eval(found)
        return found


def measure(rows: int, anchors: int, settings: TrainSettings) -> float:
    """Peak GiB of a training step, without weights and optimiser state."""
    mx.random.seed(0)
    config = parse(CONFIG)
    table = mx.random.normal((VOCABULARY, WIDTH)) * 0.05
    drafter = DFlashDrafter(
        DraftModel(config, WIDTH), lambda ids: table[ids], lambda x: x @ table.T
    )
    # The anchors are at the end of the sequence, so each block has at least `rows` rows of context.
    sequence = TrainingSequence(tuple(range(rows + anchors + 1)), rows)
    settings = dataclasses.replace(settings, anchors=anchors, steps=1, batch=1)
    student = DFlashStudent(drafter)
    trainer = Trainer(student, [sequence], Features([sequence]), settings, Streams(1))  # pyright: ignore[reportArgumentType]
    mx.eval(drafter.model.parameters(), trainer.optimizer.state)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    trainer.step(0)
    return (mx.get_peak_memory() - before) / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="512,2048")
    parser.add_argument("--anchors", default="16,64,256")
    parser.add_argument("--chunk", type=int, default=TrainSettings().chunk)
    parser.add_argument("--compute", default="float32")
    asked = parser.parse_args()
    settings = TrainSettings(chunk=asked.chunk, compute=asked.compute)
    counts = [int(part) for part in asked.anchors.split(",")]
    print("rows of context" + "".join(f"{n:>7} anchors" for n in counts))
    for rows in map(int, asked.rows.split(",")):
        found = [measure(rows, count, settings) for count in counts]
        print(f"{rows:15,}" + "".join(f"{gib:11.2f} GiB" for gib in found), flush=True)


if __name__ == "__main__":
    main()
