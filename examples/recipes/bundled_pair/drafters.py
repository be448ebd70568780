"""Total tokens a second of several sequences in each pass, by drafter of the bundled target.

    .venv/bin/python examples/recipes/bundled_pair/drafters.py dflash,eagle3:runs/eagle3,lookup

Drafters are named as for `dflash bench --drafts`; a folder trained with --dflash2 is a `dflash:`.
A cell has the rate of chains, and its ratio to plain decoding of as many, which runs in turn with
it. Speeds hold for this machine only.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from text import held_out
from throughput import COUNTS, by_engine

import dflash_mlx
from dflash_mlx import Pair, bench
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.pair import with_drafter


def packed(pair: Pair, asked: argparse.Namespace) -> dict[tuple[str, int], float]:
    """The median tokens a second of plain decoding and of chains, by sequences at once."""
    prompts = [
        tuple(pair.chat_tokens([{"role": "user", "content": sample.prompt}]))
        for sample in held_out(max(asked.prompts, max(asked.counts)))
    ]
    modes: tuple[Any, ...] = ("baseline", "dflash")
    rates: dict[tuple[str, int], list[float]] = defaultdict(list)
    wanted: dict[int, list[int]] = {}
    for turn in range(asked.repeats + 1):
        for count in asked.counts:
            for mode in modes:
                requests = [
                    Request(
                        ids, max_tokens=asked.max_tokens, stop_ids=pair.target.eos_ids, mode=mode
                    )
                    for ids in prompts
                ]
                began = time.perf_counter()
                said = by_engine(pair, requests, count)
                took = time.perf_counter() - began
                wanted = wanted or said
                if said != wanted:
                    raise SystemExit(f"{mode} with {count} sequences says something else")
                if turn:  # the first turn is a warm-up
                    rates[mode, count].append(sum(map(len, said.values())) / took)
    return {key: median(found) for key, found in rates.items()}


def packed_line(source: str, rates: dict[tuple[str, int], float], counts: Sequence[int]) -> str:
    """A line of the table."""
    cells = [
        f"{rates['dflash', n]:.0f} ({rates['dflash', n] / rates['baseline', n]:.2f}×)"
        for n in counts
    ]
    return f"| {' | '.join([source, *cells])} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("drafts", nargs="?", default="dflash,lookup", metavar="A,B")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, metavar="N")
    asked = parser.parse_args()
    pair = dflash_mlx.load(cache_ram=0)
    print(f"| sequences | {' | '.join(map(str, asked.counts))} |")
    print(f"|---|{'--:|' * len(asked.counts)}", flush=True)
    for source in bench.parse_sources(asked.drafts):
        pair = with_drafter(pair, source.draft)
        source.check(pair)
        rates = mlx_thread().call(packed, pair, asked)
        print(packed_line(source.label, rates, asked.counts), flush=True)


if __name__ == "__main__":
    main()
