"""Decode rates of this engine and of Z Lab's own MLX code on one pair, prompt by prompt in turn.

Z Lab's package pins its own versions of MLX and mlx-lm, so it runs in an environment of its own:

    uv venv --python 3.11 runs/zlab
    uv pip install --python runs/zlab/bin/python dflash==0.1.0 'mlx[cpu]==0.32.0' \
        mlx-lm==0.31.3 huggingface-hub==1.27.0
    .venv/bin/python examples/compare_zlab.py --other runs/zlab/bin/python

Both engines load the same weights as float32 and, on Linux, both get OpenBLAS. Each is a process of
its own; only one computes at a time. The rate counts tokens after the first, over their seconds.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "bundled_pair"))

OURS = """
import json, sys
import dflash_mlx
pair = dflash_mlx.load({target!r}, {draft!r})
for line in sys.stdin:
    job = json.loads(line)
    sampling = dflash_mlx.SamplingParams(temperature=job["temperature"], seed=job["seed"])
    result = dflash_mlx.generate(pair, job["ids"], sampling=sampling, max_tokens=job["max_tokens"])
    s = result.stats
    print(json.dumps([result.tokens, s.decode_seconds, s.verifies]), flush=True)
"""

THEIRS = """
import ctypes, json, sys, time
if sys.platform == "linux":
    ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)
import mlx.core as mx
import dflash.model_mlx as z
z.snapshot_download = lambda folder, **_: folder
model, tokenizer = z.load({target!r})
draft = z.load_draft({draft!r})
if mx.default_device() == mx.Device(mx.cpu):
    model.set_dtype(mx.float32); draft.set_dtype(mx.float32)
    mx.eval(model.parameters(), draft.parameters())
for line in sys.stdin:
    job = json.loads(line)
    mx.random.seed(job["seed"])
    tokens, first, rounds = [], None, 0
    for r in z.stream_generate(model, draft, tokenizer, job["ids"],
                               max_tokens=job["max_tokens"], temperature=job["temperature"]):
        now = time.perf_counter()
        first = first or now
        tokens += r.tokens
        rounds += r.accepted is not None
    print(json.dumps([tokens, now - first, rounds]), flush=True)
"""


class Worker:
    """One engine in a process of its own."""

    def __init__(self, python: str, code: str, target: Path, draft: Path):
        script = code.format(target=str(target), draft=str(draft))
        self.process = subprocess.Popen(
            [python, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self, job: dict) -> tuple[list[int], float, int]:
        """Tokens, decode seconds, verify passes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        tokens, seconds, rounds = json.loads(self.process.stdout.readline())
        return tokens, seconds, rounds


def main() -> None:
    """Run the prompts and print one table."""
    from text import held_out

    from dflash_mlx.hub.resolve import bundled
    from dflash_mlx.target.target import Target

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--other", required=True, help="the python that has dflash==0.1.0")
    parser.add_argument("--target", type=Path, default=bundled("target"))
    parser.add_argument("--draft", type=Path, default=bundled("draft"))
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=200)
    args = parser.parse_args()

    target = Target.load(args.target)
    prompts = [
        target.chat_tokens([{"role": "user", "content": s.prompt}]) for s in held_out(args.prompts)
    ]
    engines = {
        "dflash-chat": Worker(sys.executable, OURS, args.target, args.draft),
        "Z Lab": Worker(args.other, THEIRS, args.target, args.draft),
    }
    for temperature in (0.0, 1.0):
        rates: dict[str, list[float]] = {name: [] for name in engines}
        totals = {name: [0, 0.0, 0] for name in engines}
        same = 0
        for number, ids in enumerate([prompts[0], *prompts]):  # the first one warms up
            texts = []
            order = list(engines) if number % 2 else list(engines)[::-1]
            for name in order:
                job = {"ids": ids, "max_tokens": args.max_tokens}
                job |= {"temperature": temperature, "seed": number}
                tokens, seconds, rounds = engines[name].answer(job)
                texts.append(tokens)
                if number and len(tokens) > 1:
                    rates[name].append((len(tokens) - 1) / seconds)
                    for slot, value in enumerate((len(tokens) - 1, seconds, rounds)):
                        totals[name][slot] += value
            same += bool(number) and texts[0] == texts[1]
        print(f"\ntemperature {temperature:g} · {len(prompts)} prompts · alternating order")
        print(f"{'':14}{'median tok/s':>14}{'τ':>7}{'ms a round':>12}")
        for name, values in rates.items():
            tokens, seconds, rounds = totals[name]
            print(
                f"{name:14}{statistics.median(values):14.0f}{tokens / rounds:7.2f}"
                f"{1000 * seconds / rounds:12.2f}"
            )
        ours, theirs = rates["dflash-chat"], rates["Z Lab"]
        print(
            f"ratio of the medians {statistics.median(ours) / statistics.median(theirs):.2f}, "
            "median of the prompts' ratios "
            f"{statistics.median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}",
            end="",
        )
        print(f" · identical tokens {same}/{len(prompts)}" if temperature == 0 else "")


if __name__ == "__main__":
    main()
