"""Times the host's work for a draft tree: building it, the ancestor mask, the walk. Needs no model.

    .venv/bin/python examples/measure/tree_cost.py

Medians of 300 rounds with random drafters of 15 slots, in milliseconds; they hold for this machine.
"""

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from dflash_mlx.speculation.tree import Candidates, best_first


def milliseconds(work: Callable[[], object], repeats: int = 300) -> float:
    """The median of several runs, after one warm-up."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return 1000 * median(seconds)


def measure(name: str, cases: int, budget: int) -> None:
    """Print one line; `cases` is 1 for DFlash, or the number of candidates for DFlash 2."""
    dice, k = np.random.default_rng(0), budget if cases == 1 else cases
    scores = 4 * dice.normal(size=(15, cases, k)).astype(np.float32)
    tokens = np.sort(dice.permuted(np.tile(np.arange(5000), (15, 1)), axis=1)[:, :k])
    totals = np.log(np.exp(scores).sum(axis=-1))
    tree = best_first(Candidates(tokens, scores, totals), budget)
    chosen = [token for path in tree.paths() for token in path[-1:] or (0,)]
    heap = milliseconds(lambda: best_first(Candidates(tokens, scores, totals), budget))
    mask, walk = milliseconds(tree.ancestors), milliseconds(lambda: tree.walk(chosen))
    print(f"{name:10}{budget:8}{heap:8.3f}{mask:8.3f}{walk:8.3f}{heap + mask + walk:8.3f}")


if __name__ == "__main__":
    print(f"{'drafter':10}{'budget':>8}{'heap':>8}{'mask':>8}{'walk':>8}{'all':>8}")
    for nodes in (15, 32, 64):
        measure("DFlash", 1, nodes)
        measure("DFlash 2", 16, nodes)
