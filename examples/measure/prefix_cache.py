"""Measures what the prefix cache saves and costs: time to first token of prompts with one prefix.

    .venv/bin/python examples/measure/prefix_cache.py

Asks the bundled pair questions after one long system message: without the cache, with it in memory,
and with it on disk after a restart. Then times the look-up of a prompt of 100,000 tokens among
1,000 others.
"""

import statistics
import tempfile
import time
from pathlib import Path

import dflash_mlx
from dflash_mlx.engine.prefix_cache.disk import DiskCache, Labels
from dflash_mlx.engine.prefix_cache.tree import RadixTree

QUESTIONS = ("What is 12 plus 7?", "Reverse this list: red, blue, green", "Is ice cold?")
SYSTEM = "You are a friendly helper who answers in short sentences and shows each step. "
TOKENS, TEXTS = 100_000, 1000


def first_tokens(pair: dflash_mlx.Pair) -> tuple[str, str]:
    """Milliseconds to the first token and cached tokens of each question."""
    system = SYSTEM * ((pair.target.context_length - 200) // len(pair.encode(SYSTEM)))
    seconds, cached = [], []
    for question in QUESTIONS:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        stats = dflash_mlx.generate(pair, messages, max_tokens=16).stats
        seconds.append(f"{1000 * stats.prefill_seconds:.0f} ms")
        cached.append(f"{stats.cached_tokens} of {stats.prompt_tokens}")
    return " ".join(f"{one:>8}" for one in seconds), ", ".join(cached)


def look_up() -> float:
    """Milliseconds to look up one long prompt in a tree of many."""
    import numpy as np

    tree, dice = RadixTree(), np.random.default_rng(0)
    prompt = dice.integers(50_000, size=TOKENS).astype(np.int32)
    for number in range(TEXTS):
        start = number * TOKENS // TEXTS
        path = tree.walk(prompt[:start])
        parent = path[-1].node if path else tree.root
        tree.add(parent, start, prompt[start : start + TOKENS // TEXTS])
        tree.add(parent, start, dice.integers(50_000, size=50).astype(np.int32) + 50_000)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        assert tree.walk(prompt)[-1].end == TOKENS
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def main() -> None:
    pair = dflash_mlx.load(cache_ram=0)
    list(dflash_mlx.stream(pair, "Hello", max_tokens=4))
    print(f"{'off':18}", *first_tokens(pair))
    pair.engine.prefix_cache.limit = 1 << 30
    with tempfile.TemporaryDirectory() as folder:
        labels = Labels(pair.target_name, pair.draft_name)
        pair.engine.prefix_cache.disk = disk = DiskCache("pair", labels, 1 << 30, Path(folder))
        print(f"{'in memory':18}", *first_tokens(pair))
        disk.wait()
        pair.engine.prefix_cache.clear()  # as after a restart
        print(f"{'on disk':18}", *first_tokens(pair))
        disk.wait()
    print(f"look-up of {TOKENS:,} tokens in {TEXTS:,} segments: {look_up():.1f} ms")


if __name__ == "__main__":
    main()
