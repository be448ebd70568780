"""Measure what verify and rewind cost on a hybrid target, relative to a plain pass of mlx-lm.

    python examples/recipes/hybrid_pair/train_target.py   once: a tiny Qwen3.5, runs/hybrid/target
    python examples/recipes/hybrid_pair/cost.py           its drafter, τ, and the ratios

A plain pass reads 16 rows with mlx-lm's model and caches. The engine reads them with taps and with
the tape on, then rewinds to a random number of rows. Both are timed in turn, in random order.
`sparse` keeps only every eighth state, as for states of 2 MiB, and recomputes up to seven rows in a
rewind; for a target this narrow that costs most. Ratios hold for this machine. Other work on the
machine disturbs the ratios of wall-clock time.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import Any
from unittest.mock import patch

from dflash_mlx.cpu.blas import use_openblas

use_openblas()  # before anything imports MLX
sys.path.insert(0, str(Path(__file__).parent.parent / "bundled_pair"))

# ruff: noqa: E402
import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import ArraysCache, make_prompt_cache
from mlx_lm.utils import load_model
from text import held_out, samples

import dflash_mlx
from dflash_mlx import Pair
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.models import recurrent

ROWS, MAX_TOKENS = 16, 120
LEARNED, WEIGHTS = ("functions", "everyday"), (0, 0, 1, 1)


def train_drafter(folder: Path, steps: int) -> None:
    """Train a drafter with `dflash train` on the kinds of prompts that the target learned."""
    prompts = folder / "prompts.jsonl"
    asked = dict.fromkeys(s.prompt for s in islice(samples(21, weights=WEIGHTS), 600))
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in asked))
    flags = f"--layers 2 --batch 8 --anchors 12 --chunk 48 --lr 4e-3 --loss dpace --steps {steps}"
    command = [sys.executable, "-m", "dflash_mlx.cli", "train", str(prompts), *flags.split()]
    command += ["-m", str(folder / "target"), "--out", str(folder / "draft")]
    subprocess.run([*command, "--max-tokens", str(MAX_TOKENS)], check=True)


def check(pair: Pair, stock: Any, count: int) -> None:
    """Print τ at temperature 0, and how many answers equal stock mlx-lm's."""
    asked = [s for s in held_out(4 * count) if s.family in LEARNED][::2][:count]
    taus, same = [], 0
    for sample in asked:
        ids = pair.chat_tokens([{"role": "user", "content": sample.prompt}])
        answer = dflash_mlx.generate(pair, ids, max_tokens=MAX_TOKENS)
        plain = []
        for token, _ in generate_step(mx.array(ids), stock, max_tokens=MAX_TOKENS):
            plain.append(int(token))
            if plain[-1] in pair.target.eos_ids:
                break
        same += plain == answer.tokens
        if answer.stats.verifies:
            taus.append(answer.stats.acceptance_length)
    print(
        f"τ {mean(taus):.2f} over {len(taus)} held-out prompts; tokens equal stock mlx-lm's for "
        f"{same} of {len(asked)}"
    )


def clock(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall-clock and CPU milliseconds of a function, which must evaluate its results."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return 1000 * (time.perf_counter() - began), 1000 * (time.process_time() - used)


def ratios(pair: Pair, stock: Any, length: int, seed: int, rounds: int) -> None:
    """Print medians after `length` tokens of generated text."""
    dice, ids = random.Random(seed), []
    for sample in samples(seed, weights=WEIGHTS):
        said = [{"role": "user", "content": sample.prompt}]
        ids += [*pair.chat_tokens(said), *pair.encode(sample.answer)]
        if len(ids) >= length + ROWS:
            break
    read, block = ids[:length], mx.array(ids[length : length + ROWS])
    sequence = Sequence(pair.target, None)
    sequence.read(read)
    cache, caches = sequence.target_cache, make_prompt_cache(stock)
    mx.eval(stock(mx.array([read]), cache=caches), [c.state for c in caches])

    def plain() -> None:
        mx.eval(stock(block[None], cache=caches), [c.state for c in caches])

    def undo() -> None:
        for layer, old in zip(caches, before, strict=True):
            if isinstance(layer, ArraysCache):
                layer.cache = list(old)
            else:
                layer.trim(ROWS)

    def verify() -> None:
        found = sequence.verify(ids[length], block[1:])
        mx.eval(found.logits, found.taps, cache.state)

    def ours() -> None:
        verify()
        cache.rewind(length + kept)
        mx.eval(cache.state)

    def untaped() -> None:
        cache.tape(False)
        mx.eval(pair.target.forward(block[None], cache), cache.state)

    def sparse() -> None:
        with patch.object(recurrent, "KEPT_STATES", 2 * state):
            ours()

    state: int = next(c[1].nbytes for c in caches if isinstance(c, ArraysCache))  # type: ignore
    before = [list(c.cache) if isinstance(c, ArraysCache) else [] for c in caches]
    jobs = {"plain": plain, "untaped": untaped, "verify": verify, "ours": ours, "sparse": sparse}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for number in range(rounds + 3):
        kept = dice.randint(1, ROWS)
        for name in dice.sample(list(jobs), len(jobs)):
            spent = clock(jobs[name])
            undo() if name == "plain" else cache.rewind(length)
            if number >= 3:
                times[name].append(spent)
    for number, kind in enumerate(("clock", "processor")):
        middle = {name: median(spent[number] for spent in all_) for name, all_ in times.items()}
        print(
            f"context {length:5} seed {seed} {kind:9}: plain {middle['plain']:.2f} ms, ours "
            f"untaped {middle['untaped']:.2f}, verify {middle['verify']:.2f}, verify + rewind "
            f"{middle['ours']:.2f}, ratio {middle['ours'] / middle['plain']:.3f}; "
            f"sparse {middle['sparse'] / middle['plain']:.3f}",
            flush=True,
        )


def main() -> None:
    """Train the drafter if there is none, then measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/hybrid"))
    parser.add_argument("--steps", type=int, default=300, help="of the drafter's training")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 512, 1500])
    args = parser.parse_args()
    if not (args.folder / "draft" / "model.safetensors").exists():
        train_drafter(args.folder, args.steps)
    pair = dflash_mlx.load(args.folder / "target", args.folder / "draft", cache_ram=0)
    stock, _ = load_model(args.folder / "target")
    mx.eval(stock.parameters())
    check(pair, stock, args.prompts)
    for length in args.contexts:
        for seed in range(args.seeds):
            ratios(pair, stock, length, seed, args.rounds)


if __name__ == "__main__":
    main()
