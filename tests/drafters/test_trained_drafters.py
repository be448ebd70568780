"""Drafters that `dflash train` writes are read by the authors' code and by ours alike."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from train_runs import start

from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.files.checkpoint import tensor_headers
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import load
from dflash_mlx.train.settings import DrafterShape

TARGET, GOLDEN = tiny.GOLDEN / "qwen3_full" / "target", tiny.GOLDEN / "trained"
every_kind = pytest.mark.parametrize("kind", ["dflash", "dflash2"])


@every_kind
def test_the_authors_code_says_the_same(kind: str) -> None:
    """Tokens, what every verify commits, and the drafter's logits of the first blocks."""
    pair = load(TARGET, GOLDEN / kind, cache_ram=0)
    expected = json.loads((GOLDEN / "expected.json").read_text())
    options: dict[str, Any] = {"max_tokens": expected["new"], "stops": pair.target.eos_ids}
    for prompt, said in zip(expected["prompts"], expected[kind], strict=True):
        sequence = Sequence(pair.target, pair.drafter)
        blocks = list(tiny.start(sequence, prompt, SamplingParams(), **options))
        assert tiny.joined(blocks) == said["tokens"]
        committed = [len(block.tokens) for block in blocks[1:]]
        assert committed == said["committed"]
        sequence = Sequence(pair.target, pair.drafter)
        sequence.read(prompt)
        tokens = iter(said["tokens"])
        for logits, count in zip(said["logits"], committed, strict=False):
            anchor = next(tokens)
            assert sequence.draft_cache is not None
            ours = np.array(sequence.draft_cache.draft_logits(anchor, 8))
            assert np.abs(ours - np.array(logits)).max() < 2e-4
            rest = [anchor, *(next(tokens) for _ in range(count - 1))]
            found = sequence.verify(anchor, mx.array(rest[1:], dtype=mx.int32))
            sequence.commit(tuple(rest), found.taps)


@every_kind
def test_a_run_writes_what_they_read(kind: str, tmp_path: Path) -> None:
    """The names, shapes and config of today's export are those of the drafters they have read."""
    shape = DrafterShape(layers=1, block_size=8, taps="1,3,5", intermediate=64)
    if kind == "dflash2":
        shape = dataclasses.replace(shape, dflash2=True, selector_rank=16)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'"say {n}"\n' for n in range(6)))
    run, _ = start(tiny.load_target(TARGET), prompts, tmp_path / "run", shape=shape, steps=1)
    run.train()
    for name in ("config.json", "model.safetensors"):
        ours, theirs = tmp_path / "run" / name, GOLDEN / kind / name
        if name == "config.json":
            assert json.loads(ours.read_text()) == json.loads(theirs.read_text())
        else:
            shapes = [
                {name: found.shape for name, found in tensor_headers(file).items()}
                for file in (ours, theirs)
            ]
            assert shapes[0] == shapes[1]
