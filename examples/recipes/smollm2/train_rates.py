"""How fast a drafter for SmolLM2 is trained here: answers, taps and steps apart, and all together.

    .venv/bin/python examples/recipes/smollm2/train_rates.py runs/smollm2/float32

Answers are made with their taps; taps alone are for sequences whose answers were there before.
Blocks are those of steps over these answers, of three drafters. The last table says what 100,000
answer tokens take at these rates, each token an anchor once, and what they took when the project
began. Speeds hold for this machine only; those of a core's time are disturbed less by what else
runs there.
"""

import argparse
import json
import random
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from dflash_mlx.cpu.blas import use_all_cores

use_all_cores()

from dflash_mlx.files.checkpoint import Checkpoint  # noqa: E402
from dflash_mlx.pair import load_target  # noqa: E402
from dflash_mlx.train.events import (  # noqa: E402
    AnswersProgress,
    Event,
    MemoryEstimate,
    TapsProgress,
)
from dflash_mlx.train.run import Run, TrainJob  # noqa: E402
from dflash_mlx.train.settings import AnswerSettings, DrafterShape, TrainSettings  # noqa: E402

TOKENS = 100_000
# Rates of the first version on two idle cores; it computed taps in a separate pass.
ANSWERS, TAPS = 109.0, 340.0
SHAPES = {  # with the blocks per second of the first version
    "5 layers, block 16": (DrafterShape(), 21.6),
    "5 layers, block 16, vocabulary 8192": (DrafterShape(draft_vocab=8192), None),
    "3 layers, block 8": (DrafterShape(layers=3, block_size=8), 54.0),
    "3 layers, block 8, vocabulary 8192": (
        DrafterShape(layers=3, block_size=8, draft_vocab=8192),
        None,
    ),
}


@dataclass(frozen=True, slots=True)
class Rate:
    """A count of tokens or blocks, the wall-clock seconds and the CPU seconds that they took."""

    count: int
    seconds: float
    busy: float


class Clock:
    """Measures wall-clock and CPU seconds since its creation."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def rate(self, count: int) -> Rate:
        """The rate of `count` items since the creation."""
        now = time.perf_counter(), time.process_time()
        return Rate(count, now[0] - self._began[0], now[1] - self._began[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--count", type=int, default=128, help="prompts, answered at once")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1, help="every token of an answer an anchor")
    parser.add_argument("--batch", type=int, default=32, help="answers a step")
    asked = parser.parse_args()
    with TemporaryDirectory() as work:
        found = measure(asked, Path(work))
    print(f"{'':44} {'a second':>9} {'of a core':>10}")
    for name, rate in found.items():
        print(f"{name:44} {rate.count / rate.seconds:9.1f} {rate.count / rate.busy:10.1f}")
    print(f"\nseconds for {TOKENS:,} answer tokens, read once: clock, of a core, at first")
    answers = found["answer tokens with taps"]
    for name, (_, began) in SHAPES.items():
        both = answers, found[f"blocks, {name}"]
        clock, busy = (
            sum(TOKENS * getattr(rate, kind) / rate.count for rate in both)
            for kind in ("seconds", "busy")
        )
        first = sum(TOKENS / rate for rate in (ANSWERS, TAPS, began)) if began else None
        print(f"{name:44} {clock:9,.0f} {busy:10,.0f} {f'{first:,.0f}' if first else '':>9}")


def measure(asked: argparse.Namespace, work: Path) -> dict[str, Rate]:
    """The rate of each part of training."""
    from natural_prompts import SUBJECTS, WORDINGS

    subjects = [part.strip() for part in SUBJECTS.split(";") if part.strip()]
    pairs = list(product(WORDINGS, subjects))
    random.Random(0).shuffle(pairs)
    lines = [json.dumps(wording.format(subject)) for wording, subject in pairs[: asked.count]]
    settings = TrainSettings(
        steps=asked.steps, batch=asked.batch, eval_every=10**6, save_every=10**6,
        save_minutes=10**6,
    )  # fmt: skip
    answers = AnswerSettings(max_tokens=asked.max_tokens, answer_batch=asked.count)
    found: dict[str, Rate] = {}
    clock = Clock()

    def see(event: Event) -> None:
        nonlocal clock
        if isinstance(event, MemoryEstimate):
            clock = Clock()  # starts after loading the target
        if isinstance(event, AnswersProgress):
            found["answer tokens with taps"] = clock.rate(event.tokens)
        if isinstance(event, TapsProgress) and event.done == event.total:
            found["tokens for taps alone"] = clock.rate(event.done)

    def run(shape: DrafterShape, count: int, taps: str) -> Run:
        prompts = work / "prompts.jsonl"
        prompts.write_text("".join(f"{line}\n" for line in lines[:count]))
        job = TrainJob(
            prompts, work / "out", val_share=0.0, answers=work / "answers.jsonl",
            taps=work / taps, shape=shape,
        )  # fmt: skip
        target, tokenizer = load_target(Checkpoint.read(asked.target))
        return Run(target, tokenizer, job, settings, answers, see)

    runs = {name: run(shape, asked.count, "taps") for name, (shape, _) in SHAPES.items()}
    run(DrafterShape(), 16, "again")  # the answers exist, their taps do not
    for name, each in runs.items():
        blocks, clock = 0, Clock()
        for number in range(asked.steps):
            done = each.trainer.step(number)
            assert done is not None
            blocks += done.blocks
        found[f"blocks, {name}"] = clock.rate(blocks)
    return found


if __name__ == "__main__":
    main()
