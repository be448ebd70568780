"""Training runs of a tiny drafter."""

import tiny

from dflash_mlx.train.run import Run, TrainJob
from dflash_mlx.train.settings import AnswerSettings, DrafterShape, TrainSettings

SHAPE = DrafterShape(layers=1, block_size=6, taps=3, intermediate=32)
QUICK = {"steps": 12, "batch": 3, "rate": 5e-3, "eval_every": 100, "save_every": 6, "chunk": 16}


def start(
    target, prompts, out, *, resume=False, warm_start=None, shape=SHAPE, answers=None, taps=None,
    **settings,
):  # fmt: skip
    """A run that is ready to train, and the list that gets its events."""
    events = []
    if warm_start is not None:
        shape = DrafterShape(dflash2=shape.dflash2, selector_rank=shape.selector_rank)
    job = TrainJob(
        prompts,
        out,
        val_share=0.2,
        answers=answers or prompts.with_name("answers.jsonl"),
        taps=taps,
        resume=resume,
        warm_start=warm_start,
        shape=shape,
    )
    numbers = TrainSettings(**{**QUICK, **settings})
    tokenizer = tiny.tokenizer()
    return Run(
        target, tokenizer, job, numbers, AnswerSettings(max_tokens=20), events.append
    ), events
