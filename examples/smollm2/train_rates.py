"""How fast a drafter for SmolLM2 is trained here: answers, taps and steps apart, and all together.

    .venv/bin/python examples/smollm2/train_rates.py runs/smollm2/float32

Answers are made with their taps; taps alone are for sequences whose answers were there before.
Blocks are those of steps over these answers. The last lines say what 100,000 answer tokens take at
these rates, each token an anchor once. Speeds hold for this machine only; those of a core's time
are disturbed less by what else runs there.
"""

import argparse
import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a thread a core is at work

from dflash_mlx.cpu import blas

blas.use_openblas()

from dflash_mlx.target.target import Target  # noqa: E402
from dflash_mlx.train.answers import AnswerSettings  # noqa: E402
from dflash_mlx.train.events import AnswersProgress, Event, Forecast, TapsProgress  # noqa: E402
from dflash_mlx.train.job import Job  # noqa: E402
from dflash_mlx.train.run import Run  # noqa: E402
from dflash_mlx.train.settings import TrainSettings  # noqa: E402

TOKENS = 100_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--prompts", type=Path, help="JSONL, as natural_prompts.py prints")
    parser.add_argument("--count", type=int, default=32, help="prompts")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--anchors", type=int, default=24)
    parser.add_argument("--compute", default="float32")
    asked = parser.parse_args()
    with TemporaryDirectory() as work:
        found = measure(asked, Path(work))
    print(f"{'':24} a second  a second of a core")
    for name, (count, seconds, busy) in found.items():
        print(f"{name:24} {count / seconds:8.1f}  {count / busy:8.1f}")
    for place, word in ((1, "minutes"), (2, "minutes of a core")):
        each = [found[name][place] / found[name][0] for name in ("answer tokens", "blocks")]
        print(
            f"{TOKENS:,} answer tokens, made and trained on: {TOKENS * sum(each) / 60:.0f} {word}"
        )


class Clock:
    """Seconds, and seconds in which a core was busy for this process, since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Both."""
        now = time.perf_counter(), time.process_time()
        return now[0] - self._began[0], now[1] - self._began[1]


def measure(asked: argparse.Namespace, work: Path) -> dict[str, tuple[int, float, float]]:
    """Counts of the three parts of training, with their seconds and busy seconds."""
    prompts = work / "prompts.jsonl"
    if asked.prompts:
        lines = asked.prompts.read_text().splitlines()[: asked.count]
    else:
        from natural_prompts import SUBJECTS

        subjects = [part.strip() for part in SUBJECTS.split(";") if part.strip()]
        lines = [json.dumps(f"Explain {subject} to a child.") for subject in subjects][
            : asked.count
        ]
    prompts.write_text("".join(f"{line}\n" for line in lines))
    settings = TrainSettings(
        steps=asked.steps, batch=4, anchors=asked.anchors, compute=asked.compute,
        eval_every=10**6, save_every=10**6, save_minutes=10**6,
    )  # fmt: skip
    answers = AnswerSettings(max_tokens=asked.max_tokens, batch=64)
    found: dict[str, tuple[int, float, float]] = {}
    clock = Clock()

    def see(event: Event) -> None:
        nonlocal clock
        if isinstance(event, Forecast):
            clock = Clock()  # the target is loaded
        if isinstance(event, AnswersProgress):
            found["answer tokens"] = event.tokens, *clock.read()
        if isinstance(event, TapsProgress) and event.done == event.total:
            found["tokens for taps alone"] = event.done, *clock.read()

    def run(out: str) -> Run:
        job = Job(prompts, work / out, val_share=0.0, answers=work / "answers.jsonl")
        return Run(Target.load(asked.target), job, settings, answers, see)

    first = run("first")
    run("again")  # the answers are there, their taps are not
    blocks, clock = 0, Clock()
    for number in range(asked.steps):
        done = first.trainer.step(number)
        assert done is not None
        blocks += done.blocks
        print(f"step {number + 1}: loss {done.loss:.2f}", flush=True)
    found["blocks"] = blocks, *clock.read()
    return found


if __name__ == "__main__":
    main()
