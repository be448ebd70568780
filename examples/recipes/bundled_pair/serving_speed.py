"""`dflash serve` beside other servers: the same target, the same clients, by how many at once.

    .venv/bin/python examples/recipes/bundled_pair/serving_speed.py --plot serving_speed.png

mlx-lm's server is always there. More are added with `--other NAME=COMMAND`, such as
`--other "llama.cpp=PYTHON examples/recipes/bundled_pair/llama_server.py {target} {port}"`, with the
Python of an environment that has it, and, with OpenBLAS as here, `--other "vllm-mlx=env
LD_PRELOAD=libopenblas.so.0 ENVIRONMENT/bin/vllm-mlx serve {target} --port {port}
--continuous-batching"`.

All servers run as programs of their own and are asked in turn, each level with prompts of its own,
so that no cache helps. mlx-lm's server gets OpenBLAS and a target in float32, as ours computes; it
packs requests by itself. A client that has its answer asks the next prompt at once. Tokens are
those of `usage`; the first one is the first event with text. A gap is the time between two events
with text of one stream. A server whose process ends at a level is begun again for the others.

`--long N` adds the gaps of a stream while another client's prompt of about N tokens is read. The
bundled pair's context is 4,096: copies of it that claim more are served, and speak nonsense at the
speed of sense, so there each event with tokens counts. Speeds hold for this machine only.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import dflash_mlx  # before MLX, so that OpenBLAS is loaded first

# isort: split
import httpx
from servers import ask, copy_of, level, programs
from text import held_out


@dataclass
class Found:
    """The results of one server with one number of clients; `ended`: the server's process ended."""

    rates: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    ended: bool = False


def gaps_of(stamps: Sequence[float]) -> list[float]:
    """The differences between consecutive times."""
    return [b - a for a, b in pairwise(stamps)]


async def gaps_beside(url: str, model: str, long: str, eos: list[int]) -> tuple[list[float], int]:
    """A stream's gaps while another client's long prompt is read, and that prompt's length."""
    stamps: list[float] = []
    endless = {"logit_bias": {str(token): -100 for token in eos}, "logprobs": True}
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        running = asyncio.create_task(ask(http, model, "Hi.", 6000, stamps=stamps, **endless))
        while len(stamps) < 10:
            await asyncio.sleep(0.01)
        read = await ask(http, model, long, 2, **endless)
        await asyncio.sleep(0.2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    until = read.began + read.first
    near = [(a, b) for a, b in pairwise(stamps) if b > read.began and a < until]
    return [b - a for a, b in near], read.prompt_tokens


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def pair_of(values: Sequence[float], low: float, high: float) -> str:
    """Two quantiles in milliseconds."""
    return f"{1e3 * quantile(values, low):.0f} / {1e3 * quantile(values, high):.0f}"


def show(found: dict[str, dict[int, Found]]) -> None:
    levels = list(next(iter(found.values())))

    def line(name: str, cells: list[str]) -> None:
        print(f"{name:30}" + "".join(f"{cell:>14}" for cell in cells))

    def each(name: str, cell: Any) -> list[str]:
        return ["ended" if one.ended else cell(one) for one in found[name].values()]

    line("clients at once", [str(n) for n in levels])
    for name in found:
        line(name, each(name, lambda one: f"{median(one.rates):.0f} tok/s"))
    ours, *others = found
    for name in others:
        pairs = zip(found[ours].values(), found[name].values(), strict=True)
        cells = [
            "-" if a.ended or b.ended else f"{median(a.rates) / median(b.rates):.2f}"
            for a, b in pairs
        ]
        line(f"{ours} / {name}", cells)
    for name in found:
        line(f"{name}, first", each(name, lambda one: pair_of(one.firsts, 0.5, 0.95)))
    for name in found:
        line(f"{name}, gap", each(name, lambda one: pair_of(one.gaps, 0.95, 1)))
    print("first: milliseconds to the first text, median / 95th percentile")
    print("gap: milliseconds between two texts of a stream, 95th percentile / longest")
    if any(one.ended for levels in found.values() for one in levels.values()):
        print("ended: the server's process ended at so many clients")


def plot(found: dict[str, dict[int, Found]], file: Path) -> None:
    """Plot the rates."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    levels = list(next(iter(found.values())))
    for name, by_level in found.items():
        kept = {n: median(one.rates) for n, one in by_level.items() if not one.ended}
        label = name if len(kept) == len(levels) else f"{name} (ended above)"
        axes.plot(list(kept), list(kept.values()), marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(levels, [str(n) for n in levels])
    axes.set_xlabel("clients at once")
    axes.set_ylabel("tokens a second, all together")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=130)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, dict[int, Found]]:
    """Measure all servers with each number of clients."""
    levels = [int(one) for one in options.levels.split(",")]
    needed = options.prompts * len(levels) * (options.repeats + 1)
    texts = [sample.prompt for sample in held_out(needed)]
    print(f"dflash {dflash_mlx.__version__}, {len(set(texts))} prompts", flush=True)
    flags = ["--mode", options.mode]
    target = copy_of("target", folder / "target")
    with programs(flags, target, "bundled", options.other) as servers:
        found = {name: {n: Found() for n in levels} for name in servers}
        for turn in range(options.repeats + 1):
            for clients in levels:
                prompts = [texts.pop() for _ in range(options.prompts)]
                said = []
                for name, program in servers.items():
                    one = found[name][clients]
                    if one.ended:
                        continue
                    try:
                        seconds, answers = asyncio.run(
                            level(program.url, program.model, prompts, clients, options.max_tokens)
                        )
                    except httpx.TransportError:
                        print(f"{name} ended at {clients} clients", flush=True)
                        one.ended = True
                        continue
                    said.append([answer.text for answer in answers])
                    if turn:  # the first turn is a warm-up
                        one.rates.append(sum(a.tokens for a in answers) / seconds)
                        one.firsts += [a.first for a in answers if a.stamps]
                        one.gaps += [gap for a in answers for gap in gaps_of(a.stamps)]
                differ = sum(len(set(texts)) > 1 for texts in zip(*said, strict=True))
                if differ:
                    print(f"{differ} of {len(prompts)} texts differ at {clients}", flush=True)
            print(f"turn {turn} of {options.repeats}", flush=True)
    return found


def measure_long(options: argparse.Namespace, folder: Path) -> None:
    """Measure a stream's gaps during a long prompt, for both servers."""
    context = options.long + 8192
    target, draft = (copy_of(one, folder / f"long-{one}", context) for one in ("target", "draft"))
    words = " ".join(sample.prompt for sample in held_out(options.long // 8)).split()
    flags = ["-m", str(target), "-d", str(draft), "--alias", "long", "--mode", options.mode]
    eos = json.loads((target / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    eos = eos if isinstance(eos, list) else [eos]
    with programs(flags, target, "long") as servers:
        for name, program in servers.items():
            url, gaps, tokens = program.url, [], 0
            for turn in range(options.repeats):
                long = " ".join([f"{turn}:", *words[: options.long * 2 // 3]])
                more, tokens = asyncio.run(gaps_beside(url, program.model, long, eos))
                gaps += more
            told = f"{pair_of(gaps, 0.95, 1)} ms (95th percentile / longest of {len(gaps)})"
            print(f"{name}: gaps beside a prompt of {tokens:,} tokens {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=20, help="a level and repeat")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--levels", default="1,2,4,8,16", help="clients at once; empty: none")
    parser.add_argument("--long", type=int, default=0, help="tokens of a prompt beside a stream")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.levels:
            found = measure(options, Path(name))
            show(found)
            if options.plot:
                plot(found, options.plot)
        if options.long:
            measure_long(options, Path(name))


if __name__ == "__main__":
    main()
