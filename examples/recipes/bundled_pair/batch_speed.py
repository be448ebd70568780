"""Compare the speeds of many prompts: one by one, packed, from a file, and with mlx-lm's batching.

    .venv/bin/python examples/recipes/bundled_pair/batch_speed.py --prompts 1000

The same held-out prompts are answered by `dflash_mlx.generate` one after another, by
`pair.generate`, by what `dflash generate --batch` runs, with the lines written to a file, and by
mlx-lm's `BatchGenerator` on the stock model. They take turns on parts of the prompts in one
process. The table has the tokens per second of all parts, their ratio to one by one and to
BatchGenerator, and how many answers differ from those one by one. Only the ratios of one run can be
compared.
"""

import argparse
import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from seeded import stock_model
from text import held_out
from throughput import by_batch_generator

import dflash_mlx
from dflash_mlx import GenerationOptions, Pair
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.files.line_file import LineFile
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.serve.batch import Defaults, answer_lines, batch_runner, read_batch
from dflash_mlx.serve.protocol import Settings

ONE_BY_ONE = "one by one"
THEIRS = "BatchGenerator"
Way = Callable[[list[str]], tuple[list[str], int]]  # prompts to texts, and the number of tokens


def ways_of(pair: Pair, options: GenerationOptions, count: int) -> dict[str, Way]:
    """All ways to answer prompts, with at most `count` sequences at once."""
    model = stock_model(bundled("target"))
    runner = batch_runner(pair, Settings(("bundled",), options, max_sequences=count))

    def one_by_one(prompts: list[str]) -> tuple[list[str], int]:
        results = [dflash_mlx.generate(pair, prompt, options) for prompt in prompts]
        return [one.text for one in results], sum(len(one.tokens) for one in results)

    def packed(prompts: list[str]) -> tuple[list[str], int]:
        results = pair.generate(prompts, options, max_sequences=count)
        return [one.text for one in results], sum(len(one.tokens) for one in results)

    def from_file(prompts: list[str]) -> tuple[list[str], int]:
        texts: dict[str, str] = {}
        total = 0

        def keep(answer: dict[str, Any], tokens: int) -> None:
            nonlocal total
            texts[answer["key"]] = answer["text"]
            total += tokens
            out.append(answer)

        def fail(line: Any, problem: Exception) -> None:
            raise problem

        with TemporaryDirectory() as folder:
            file = Path(folder) / "prompts.jsonl"
            file.write_text("\n".join(map(json.dumps, prompts)))
            lines = read_batch(file, Defaults("bundled", ""))
            with LineFile(Path(folder) / "answers.jsonl", "run") as out:
                asyncio.run(answer_lines(lines, runner, keep, fail))
        return [texts[line.key] for line in lines], total

    def theirs(prompts: list[str]) -> tuple[list[str], int]:
        limit = options.token_limit
        ends = pair.target.eos_ids
        requests = [
            Request(tuple(ids), max_tokens=limit, stop_ids=ends, mode="baseline")
            for ids in (pair.chat_tokens([{"role": "user", "content": p}]) for p in prompts)
        ]
        said = mlx_thread().call(by_batch_generator, model, requests, count)
        answers = [said[number] for number in range(len(prompts))]
        texts = [pair.tokenizer.decode([t for t in ids if t not in ends]) for ids in answers]
        return texts, sum(map(len, answers))

    return {
        ONE_BY_ONE: one_by_one,
        "pair.generate": packed,
        "generate --batch": from_file,
        THEIRS: theirs,
    }


def after_thinking(text: str) -> str:
    """The answer without its thinking and the line breaks before it, which not every way keeps."""
    _, end, answer = text.rpartition("</think>")
    is_cut = not end and text.startswith("<think>")
    return "" if is_cut else answer.lstrip("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--part", type=int, default=250, help="prompts of a turn")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--mode", default="auto")
    args = parser.parse_args()
    pair = dflash_mlx.load(cache_ram=0)
    options = GenerationOptions(mode=args.mode, max_tokens=args.max_tokens)
    ways = ways_of(pair, options, args.sequences)
    prompts = [sample.prompt for sample in held_out(args.prompts)]
    for way in ways.values():  # the first answers also measure this machine
        way(prompts[: args.sequences])
    seconds: dict[str, float] = defaultdict(float)
    tokens: dict[str, int] = defaultdict(int)
    unequal: dict[str, int] = defaultdict(int)
    for number, start in enumerate(range(0, len(prompts), args.part)):
        part = prompts[start : start + args.part]
        names = [*ways]
        texts: dict[str, list[str]] = {}
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = time.perf_counter()
            answers, count = ways[name](part)
            seconds[name] += time.perf_counter() - began
            tokens[name] += count
            texts[name] = [after_thinking(text) for text in answers]
        for name in names:
            pairs = zip(texts[name], texts[ONE_BY_ONE], strict=True)
            unequal[name] += sum(one != other for one, other in pairs)
        print(f"{start + len(part):,} of {len(prompts):,} prompts", flush=True)
    rates = {name: tokens[name] / seconds[name] for name in ways}
    print(f"\n{len(prompts):,} prompts · {args.sequences} sequences · mode {args.mode}")
    print(f"{'':18}{'tok/s':>8}{ONE_BY_ONE:>12}{THEIRS:>16}{'differ':>8}")
    for name, rate in rates.items():
        beside = f"{rate / rates[ONE_BY_ONE]:11.2f}×{rate / rates[THEIRS]:15.2f}×"
        print(f"{name:18}{rate:8.0f}{beside}{unequal[name]:8}")


if __name__ == "__main__":
    main()
