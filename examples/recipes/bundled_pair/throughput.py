"""Measure the total tokens per second by the number of concurrent sequences, on the bundled pair.

    .venv/bin/python examples/recipes/bundled_pair/throughput.py --plot throughput.png
    .venv/bin/python examples/recipes/bundled_pair/throughput.py --draft FOLDER --prompts 16

Each number of sequences answers the same prompts in three ways: in rounds of the engine (auto, and
other modes if given), one request after another, and with mlx-lm's `BatchGenerator` on the stock
model. All of them run in turn in one process, several times. The table shows medians and their
spread. When a sequence ends, the next prompt takes its place. Speeds hold for this machine only.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from seeded import stock_model
from text import held_out

import dflash_mlx
from dflash_mlx import Block, Pair
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.options import Mode

COUNTS = (1, 2, 4, 8, 16)
Answers = dict[int, list[int]]


def by_engine(pair: Pair, requests: list[Request], count: int) -> Answers:
    """Answer all requests with at most `count` sequences per round."""
    waiting, running = list(enumerate(requests)), dict[int, Sequence]()
    said: Answers = {number: [] for number in range(len(requests))}
    while waiting or running:
        while waiting and len(running) < count:
            number, request = waiting.pop(0)
            running[number] = Sequence(pair.target, *pair.engine.drafters)
            pair.engine.begin(running[number], request, -1)
        blocks = pair.engine.step(list(running.values()))
        for number, block in zip(list(running), blocks, strict=True):
            assert isinstance(block, Block)
            said[number] += block.tokens
            if block.finish_reason:
                del running[number]
    return said


def by_batch_generator(model: Any, requests: list[Request], count: int) -> Answers:
    """Answer all requests with mlx-lm's batching, at most `count` at once."""
    from mlx_lm.generate import BatchGenerator

    stops = [[token] for token in requests[0].stop_ids]
    generator = BatchGenerator(
        model, stop_tokens=stops, completion_batch_size=count, prefill_batch_size=count
    )
    ids = generator.insert(
        [list(request.prompt) for request in requests], [r.token_limit for r in requests]
    )
    said: dict[int, list[int]] = {one: [] for one in ids}
    left = len(ids)
    while left:
        for response in generator.next()[1]:
            said[response.uid].append(int(response.token))
            left -= response.finish_reason is not None
    generator.close()
    return {number: said[one] for number, one in enumerate(ids)}


def measure(
    pair: Pair, requests: dict[Mode, list[Request]], repeats: int
) -> dict[str, dict[int, list[float]]]:
    """The rates of each method and count of sequences, one per repeat."""
    model = stock_model(bundled("target"))
    ways: dict[str, Callable[[int], Answers]] = {
        "BatchGenerator": lambda count: by_batch_generator(model, requests["baseline"], count)
    }
    for mode, asked in requests.items():
        ways[mode] = lambda count, asked=asked: by_engine(pair, asked, count)
    rates: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    wanted: Answers = {}
    for turn in range(repeats + 1):
        for count in COUNTS:
            for name, answer in ways.items():
                began = time.perf_counter()
                said = answer(count)
                took = time.perf_counter() - began
                wanted = wanted or said
                unequal = sum(said[number] != wanted[number] for number in wanted)
                if unequal:
                    print(f"{name} at {count}: {unequal} answers differ", flush=True)
                if turn:  # the first turn is a warm-up
                    rates[name][count].append(sum(map(len, said.values())) / took)
        print(f"turn {turn} of {repeats}", flush=True)
    return rates


def show(rates: dict[str, dict[int, list[float]]]) -> None:
    print(f"{'sequences':28}" + "".join(f"{count:>15}" for count in COUNTS))
    for name, found in rates.items():
        cells = [f"{median(found[c]):6.0f} ±{spread(found[c]):4.1%}" for c in COUNTS]
        print(f"{name:28}" + "".join(f"{cell:>15}" for cell in cells))
    for mode in rates:
        if mode != "BatchGenerator":
            best = [
                max(median(rates["dflash"][1]), median(rates["BatchGenerator"][c])) for c in COUNTS
            ]
            ratios = [median(rates[mode][c]) / b for c, b in zip(COUNTS, best, strict=True)]
            name = f"{mode} / better of both"
            print(f"{name:28}" + "".join(f"{ratio:15.2f}" for ratio in ratios))


def spread(values: list[float]) -> float:
    """Half the range, divided by the median."""
    return (max(values) - min(values)) / 2 / median(values)


def plot(rates: dict[str, dict[int, list[float]]], file: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    one = median(rates["dflash"][1])
    axes.plot(COUNTS, [one] * len(COUNTS), "--", color="grey", label="dflash, one after another")
    for name, found in rates.items():
        label = "mlx-lm BatchGenerator" if name == "BatchGenerator" else f"{name}, packed"
        axes.plot(COUNTS, [median(found[c]) for c in COUNTS], marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(COUNTS, [str(count) for count in COUNTS])
    axes.set_xlabel("sequences at once")
    axes.set_ylabel("tokens a second, all together")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draft", help="a drafter of the bundled target; default: the bundled one")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--modes", default="dflash,auto")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    pair = dflash_mlx.load(draft=options.draft, cache_ram=0)
    prompts = [
        tuple(pair.chat_tokens([{"role": "user", "content": sample.prompt}]))
        for sample in held_out(options.prompts)
    ]
    modes: list[Any] = ["baseline", *options.modes.split(",")]
    requests: dict[Mode, list[Request]] = {
        mode: [
            Request(ids, max_tokens=options.max_tokens, stop_ids=pair.target.eos_ids, mode=mode)
            for ids in prompts
        ]
        for mode in modes
    }
    rates = mlx_thread().call(measure, pair, requests, options.repeats)
    show(rates)
    if options.plot:
        plot(rates, options.plot)


if __name__ == "__main__":
    main()
