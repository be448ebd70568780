"""`dflash serve` beside mlx-lm's server: the same target, the same clients, by how many at once.

    .venv/bin/python examples/bundled_pair/serving_speed.py --plot serving_speed.png

Both servers run as programs of their own and are asked in turn, each level with prompts of its own,
so that no cache helps. mlx-lm's server gets OpenBLAS and a target in float32, as ours computes; it
packs requests by itself. A client that has its answer asks the next prompt at once. Tokens are
those of `usage`; the first one is the first event with text. Speeds hold for this machine only.
"""

import argparse
import asyncio
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import dflash_mlx  # before MLX, whose matrix products on the CPU it makes fast

# isort: split
import httpx
import mlx.core as mx
from text import held_out

from dflash_mlx.hub.resolve import bundled

OTHER = (
    "import dflash_mlx, runpy, sys; sys.argv[0] = 'mlx_lm.server'; "
    "runpy.run_module('mlx_lm.server', run_name='__main__')"
)


@dataclass(frozen=True)
class Answer:
    """One request: its tokens, seconds to the first, and its text."""

    tokens: int
    first: float
    text: str


@contextmanager
def running(command: list[str], port: int) -> Iterator[str]:
    """The address of a server that runs while the context lasts."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                if httpx.get(f"{url}/health", timeout=1).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.1)
        try:
            yield url
        finally:
            program.terminate()


def free_port() -> int:
    """A port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def float32_copy(folder: Path) -> Path:
    """The bundled target with float32 weights."""
    shutil.copytree(bundled("target"), folder, dirs_exist_ok=True)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    wide = {name: array.astype(mx.float32) for name, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), wide, {"format": "mlx"})
    return folder


async def ask(http: httpx.AsyncClient, model: str, prompt: str, max_tokens: int) -> Answer:
    """One streamed answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},  # mlx-lm's server thinks unless told
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first, tokens, text = time.perf_counter(), 0.0, 0, ""
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            data = json.loads(line[6:])
            for choice in data["choices"]:
                delta = choice["delta"]
                piece = (delta.get("reasoning") or "") + (delta.get("content") or "")
                if piece and not first:
                    first = time.perf_counter() - began
                text += delta.get("content") or ""
            if usage := data.get("usage"):
                tokens = usage["completion_tokens"]
    return Answer(tokens, first, text.strip())


async def level(
    url: str, model: str, prompts: list[str], clients: int, max_tokens: int
) -> tuple[float, list[Answer]]:
    """So many clients share the prompts: the seconds of all, and the answers by prompt."""
    left = list(enumerate(prompts))
    found: dict[int, Answer] = {}

    async def client() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=600) as http:
            while left:
                number, prompt = left.pop(0)
                found[number] = await ask(http, model, prompt, max_tokens)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - began, [found[number] for number in range(len(prompts))]


def show(rates: dict[str, Any], firsts: dict[str, Any]) -> None:
    """The tables."""
    names = list(rates)
    levels = list(rates[names[0]])
    print(f"{'clients at once':22}" + "".join(f"{n:>14}" for n in levels))
    for name in names:
        cells = [f"{median(rates[name][n]):.0f} tok/s" for n in levels]
        print(f"{name:22}" + "".join(f"{cell:>14}" for cell in cells))
    ours, other = names
    ratios = [median(rates[ours][n]) / median(rates[other][n]) for n in levels]
    print(f"{'ratio':22}" + "".join(f"{ratio:14.2f}" for ratio in ratios))
    for name in names:
        cells = []
        for n in levels:
            ordered = sorted(firsts[name][n])
            late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
            cells.append(f"{1e3 * median(ordered):.0f} / {1e3 * late:.0f}")
        print(f"{name + ', first':22}" + "".join(f"{cell:>14}" for cell in cells))
    print("first: milliseconds to the first text, median / 95th percentile")


def plot(rates: dict[str, Any], file: Path) -> None:
    """A picture of the rates."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    levels = list(next(iter(rates.values())))
    for name, found in rates.items():
        axes.plot(levels, [median(found[n]) for n in levels], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(levels, [str(n) for n in levels])
    axes.set_xlabel("clients at once")
    axes.set_ylabel("tokens a second, all together")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=130)


def main() -> None:
    """Start both, ask, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=20, help="a level and repeat")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--levels", default="1,2,4,8,16", help="clients at once")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    levels = [int(one) for one in options.levels.split(",")]
    needed = options.prompts * len(levels) * (options.repeats + 1)
    texts = [sample.prompt for sample in held_out(needed)]
    print(f"dflash {dflash_mlx.__version__}, {len(set(texts))} prompts", flush=True)
    rates: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    firsts: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    mine, theirs = free_port(), free_port()
    program = str(Path(sys.executable).parent / "dflash")
    with tempfile.TemporaryDirectory() as folder:
        copy = float32_copy(Path(folder) / "target")
        flags = ["serve", "--port", str(mine), "--mode", options.mode, "--cache-ram", "0"]
        other = [sys.executable, "-c", OTHER, "--model", str(copy), "--port", str(theirs)]
        with running([program, *flags], mine) as our_url, running(other, theirs) as their_url:
            ways = {"dflash serve": (our_url, "bundled"), "mlx_lm.server": (their_url, str(copy))}
            for turn in range(options.repeats + 1):
                for clients in levels:
                    prompts = [texts.pop() for _ in range(options.prompts)]
                    said = {}
                    for name, (url, model) in ways.items():
                        try:
                            seconds, answers = asyncio.run(
                                level(url, model, prompts, clients, options.max_tokens)
                            )
                        except httpx.TransportError:
                            sys.exit(f"{name} ended at {clients} clients: leave --levels below it")
                        said[name] = [answer.text for answer in answers]
                        if turn:  # the first turn warms up
                            rates[name][clients].append(sum(a.tokens for a in answers) / seconds)
                            firsts[name][clients] += [a.first for a in answers if a.first]
                    differ = sum(a != b for a, b in zip(*said.values(), strict=True))
                    if differ:
                        print(f"{differ} of {len(prompts)} texts differ at {clients}", flush=True)
                print(f"turn {turn} of {options.repeats}", flush=True)
    show(rates, firsts)
    if options.plot:
        plot(rates, options.plot)


if __name__ == "__main__":
    main()
