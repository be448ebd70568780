"""Compare drafters of the bundled target: acceptance, speed, what auto picks, many sequences.

    .venv/bin/python examples/recipes/bundled_pair/drafters.py dflash,eagle3:runs/eagle3,lookup

Drafters are named as for `dflash bench --drafts`; a folder trained with --dflash2 is a `dflash:`.
The first table is of the bundled prompts: tokens a round (τ) and the share of rounds in which the
drafts of each position were kept, tokens a second of chains and of auto beside plain decoding, and
the rows of auto's passes, of which one is a plain step. The second one is of all tokens a second
with several sequences in each pass, and its ratio to plain decoding of as many. Everything runs in
turn with plain decoding; speeds hold for this machine only.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from text import held_out
from throughput import COUNTS, by_engine

import dflash_mlx
from dflash_mlx import Pair, bench
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.pair import with_drafter
from dflash_mlx.resolved_pair import resolve_pair

MODES = "baseline,dflash,auto"
HEADER = """
| drafter | T | τ | kept, by position | plain | chains | auto | rows of auto's passes |
|---|--:|--:|---|--:|--:|--:|---|""".strip()


def lines_of(source: str, pair: Pair, asked: argparse.Namespace) -> Iterator[str]:
    """A line of the first table for each temperature."""
    schedule = bench.Schedule(
        modes=bench.parse_modes(MODES),
        temperatures=(0.0, 1.0),
        repeats=asked.repeats,
        max_tokens=asked.max_tokens,
    )
    questions = bench.questions_of("bundled", limit=asked.prompts)
    records = list(bench.run(pair, questions, schedule, {}))
    rows: dict[tuple[float, str], bench.Row] = {}
    for row in bench.summarise(records):  # the last ones are of all tasks
        rows[row.temperature, row.mode] = row
    for temperature in schedule.temperatures:
        plain, chains, auto = (rows[temperature, mode] for mode in MODES.split(","))
        kept = " ".join(f"{share:.0%}" for share in chains.by_position)
        cells = [source, f"{temperature:g}", f"{chains.mean_tau or 1:.2f}", kept, rate(plain)]
        cells += [f"{rate(one)} ({one.mean_speedup or 0:.2f}×)" for one in (chains, auto)]
        yield f"| {' | '.join([*cells, widths(auto)])} |"


def rate(row: bench.Row) -> str:
    """The median tokens a second of a row's answers."""
    return "–" if row.decode is None else f"{row.decode.median:.1f}"


def widths(row: bench.Row) -> str:
    """How often passes had so many rows, in percent."""
    total = sum(part.count for part in row.rounds)
    shares = (f"{part.rows}: {part.count / total:.0%}" for part in row.rounds)
    return ", ".join(shares)


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
    """A line of the second table."""
    cells = [
        f"{rates['dflash', n]:.0f} ({rates['dflash', n] / rates['baseline', n]:.2f}×)"
        for n in counts
    ]
    return f"| {' | '.join([source, *cells])} |"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("drafts", nargs="?", default="dflash,lookup", metavar="A,B")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, metavar="N")
    asked = parser.parse_args()
    sources = bench.parse_sources(asked.drafts)
    pair = dflash_mlx.load(cache_ram=0)
    many = []
    print(HEADER, flush=True)
    for source in sources:
        pair = with_drafter(pair, resolve_pair(pair, source.draft))
        source.check(pair)
        for line in lines_of(source.label, pair, asked):
            print(line, flush=True)
        many.append((source.label, mlx_thread().call(packed, pair, asked)))
    print(f"\n| sequences | {' | '.join(map(str, asked.counts))} |")
    print(f"|---|{'--:|' * len(asked.counts)}")
    for label, rates in many:
        print(packed_line(label, rates, asked.counts))


if __name__ == "__main__":
    main()
