"""This engine beside others on one pair, prompt by prompt in turn: rates and time to first token.

Others pin their own versions of MLX and mlx-lm, so each runs in an environment of its own:

    uv venv --python 3.11 runs/zlab && uv pip install --python runs/zlab/bin/python \
        dflash==0.1.0 'mlx[cpu]==0.32.0' mlx-lm==0.31.3 huggingface-hub==1.27.0
    uv venv --python 3.11 runs/dspark && uv pip install --python runs/dspark/bin/python \
        'mlx[cpu]' mlx-dspark==0.20.3
    uv venv --python 3.11 runs/vlm && uv pip install --python runs/vlm/bin/python \
        'mlx[cpu]' mlx-vlm==0.7.10
    .venv/bin/python examples/measure/compare_engines.py zlab=runs/zlab/bin/python \
        dspark=runs/dspark/bin/python vlm=runs/vlm/bin/python

All load the same weights as float32 and, on Linux, all get OpenBLAS. Each is a process of its own;
only one computes at a time. The rate counts tokens after the first, over their seconds; the whole
is an answer's tokens over all its seconds. mlx-vlm runs without a drafter, which it has none of
this target's kind for: only its first token can be compared.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes" / "bundled_pair"))

# Each prints [tokens, seconds to the first token, seconds after it, verify passes] as JSON.
OURS = """
import json, sys
import dflash_mlx
pair = dflash_mlx.load({target!r}, {draft!r}, cache_ram=0)
for line in sys.stdin:
    job = json.loads(line)
    sampling = dflash_mlx.SamplingParams(temperature=job["temperature"], seed=job["seed"])
    result = dflash_mlx.generate(pair, job["ids"], sampling=sampling, max_tokens=job["max_tokens"])
    s = result.stats
    print(json.dumps([result.tokens, s.prefill_seconds, s.decode_seconds, s.verifies]), flush=True)
"""

FAST_BLAS = """
import ctypes, json, sys, time
if sys.platform == "linux":
    ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)
import mlx.core as mx
def exact(*models):
    if mx.default_device() == mx.Device(mx.cpu):
        for model in models:
            model.set_dtype(mx.float32)
            mx.eval(model.parameters())
"""

ZLAB = """
import dflash.model_mlx as z
z.snapshot_download = lambda folder, **_: folder
model, tokenizer = z.load({target!r})
draft = z.load_draft({draft!r})
exact(model, draft)
for line in sys.stdin:
    job = json.loads(line)
    mx.random.seed(job["seed"])
    tokens, first, rounds, began = [], None, 0, time.perf_counter()
    for r in z.stream_generate(model, draft, tokenizer, job["ids"],
                               max_tokens=job["max_tokens"], temperature=job["temperature"]):
        now = time.perf_counter()
        first = first or now
        tokens += r.tokens
        rounds += r.accepted is not None
    print(json.dumps([tokens, first - began, now - first, rounds]), flush=True)
"""

DSPARK = """
from mlx_dspark.generate import dflash_generate
from mlx_dspark.load import load_dflash, load_target
target, tokenizer = load_target({target!r}, require_tap=True)[:2]
draft = load_dflash({draft!r}, quantize=False)
draft = draft[0] if isinstance(draft, tuple) else draft
exact(target.model, draft)
for line in sys.stdin:
    job, first = json.loads(line), []
    began = time.perf_counter()
    r = dflash_generate(target, tokenizer, draft, prompt_ids=job["ids"], seed=job["seed"],
                        max_new_tokens=job["max_tokens"], temperature=job["temperature"],
                        on_text=lambda *_, **__: first.append(time.perf_counter()))
    ended = time.perf_counter()
    at = first[0] if first else ended
    print(json.dumps([list(r.token_ids), at - began, ended - at, r.num_rounds]), flush=True)
"""

VLM = """
from pathlib import Path
from mlx_vlm.generate.ar import generate_step
from mlx_vlm.utils import load_model
model = load_model(Path({target!r}))
exact(model)
for line in sys.stdin:
    job, tokens, first = json.loads(line), [], None
    began = time.perf_counter()
    for token, _ in generate_step(mx.array([job["ids"]]), model, None, None,
                                  max_tokens=job["max_tokens"], temperature=job["temperature"]):
        tokens.append(int(token))
        first = first or time.perf_counter()
        if tokens[-1] in job["ends"]:
            break
    seconds = time.perf_counter() - first
    print(json.dumps([tokens, first - began, seconds, len(tokens) - 1]), flush=True)
"""

OTHERS = {"zlab": ZLAB, "dspark": DSPARK, "vlm": VLM}
Answer = tuple[list[int], float, float, int]


class Worker:
    """A process that runs one engine."""

    def __init__(self, python: str, code: str, target: Path, draft: Path):
        script = code.replace("{target!r}", repr(str(target)))
        script = script.replace("{draft!r}", repr(str(draft)))
        self.process = subprocess.Popen(
            [python, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self, job: dict) -> Answer:
        """Tokens, seconds to the first token, seconds after it, verify passes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith("["):
            assert line, "an engine has ended"
        tokens, first, seconds, rounds = json.loads(line)
        return tokens, first, seconds, rounds


def show(answers: dict[str, list[Answer]], temperature: float) -> None:
    """Print one line per engine with medians over prompts, and the ratios of ours to them."""
    print(f"\ntemperature {temperature:g} · {len(answers['ours'])} answers each, order by turns")
    print(
        f"{'':10}{'tok/s':>8}{'whole':>8}{'τ':>7}{'first ms':>10}"
        f"{'ours: rate':>12}{'whole':>8}{'first':>8}{'identical':>11}"
    )

    def numbers(said: list[Answer]) -> tuple[list[float], list[float], list[float]]:
        rates = [(len(tokens) - 1) / after for tokens, _, after, _ in said if len(tokens) > 7]
        whole = [len(tokens) / (first + after) for tokens, first, after, _ in said]
        return rates, whole, [first for _, first, _, _ in said]

    ours = [statistics.median(values) for values in numbers(answers["ours"])]
    for name, said in answers.items():
        rate, whole, first = (statistics.median(values) for values in numbers(said))
        tau = sum(len(a[0]) - 1 for a in said) / sum(a[3] for a in said)
        same = sum(a[0] == b[0] for a, b in zip(said, answers["ours"], strict=True))
        print(
            f"{name:10}{rate:8.0f}{whole:8.0f}{tau:7.2f}{1000 * first:10.1f}"
            f"{ours[0] / rate:12.2f}{ours[1] / whole:8.2f}{ours[2] / first:8.2f}{same:11}"
        )


def main() -> None:
    """Run the prompts and print one table per temperature."""
    from text import held_out

    import dflash_mlx
    from dflash_mlx.hub.resolve import bundled

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("others", nargs="+", help="zlab, dspark or vlm, = and its python")
    parser.add_argument("--target", type=Path, default=bundled("target"))
    parser.add_argument("--draft", type=Path, default=bundled("draft"))
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=200)
    args = parser.parse_args()

    pair = dflash_mlx.load(args.target, no_draft=True)
    ends = list(pair.target.eos_ids)
    prompts = [
        pair.chat_tokens([{"role": "user", "content": s.prompt}]) for s in held_out(args.prompts)
    ]
    engines = {"ours": Worker(sys.executable, OURS, args.target, args.draft)}
    for name, python in (other.split("=", 1) for other in args.others):
        engines[name] = Worker(python, FAST_BLAS + OTHERS[name], args.target, args.draft)
    for temperature in (0.0, 1.0):
        answers: dict[str, list[Answer]] = {name: [] for name in engines}
        for number, ids in enumerate([prompts[0], *prompts * args.repeats]):  # the first warms up
            first = number % len(engines)
            for name in [*engines][first:] + [*engines][:first]:
                job = {"ids": ids, "max_tokens": args.max_tokens, "ends": ends}
                answer = engines[name].answer(job | {"temperature": temperature, "seed": number})
                if number:
                    answers[name].append(answer)
        show(answers, temperature)


if __name__ == "__main__":
    main()
