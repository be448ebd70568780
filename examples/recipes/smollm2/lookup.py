"""Compare prompt lookup on SmolLM2-135M-Instruct with plain decoding.

    .venv/bin/python examples/recipes/smollm2/lookup.py runs/real/smollm2-135m

Half of the prompts have answers that repeat their text. Every prompt is answered plainly and with
`lookup` in the modes auto and dflash, in turn and several times. The median of a prompt's times
counts. All answers must be equal. Speeds hold for this machine only.
"""

import argparse
from collections import defaultdict
from statistics import median

from repeating import NOT_REPEATING, REPEATING

import dflash_mlx
from dflash_mlx import Pair, SamplingParams, Session

MODES = ("baseline", "auto", "dflash")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--prompts", type=int, default=40, help="of each kind")
    parser.add_argument("--only", choices=("repeating", "not repeating"))
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--temp", type=float, default=0.0)
    asked = parser.parse_args()
    pair = dflash_mlx.load(asked.target, "lookup", cache_ram=0)
    for name, prompts in (("repeating", REPEATING), ("not repeating", NOT_REPEATING)):
        if asked.only not in (None, name):
            continue
        # every n-th, so that a few prompts are of all kinds
        some = prompts[:: max(1, len(prompts) // asked.prompts)][: asked.prompts]
        rates, lengths = measure(pair, some, asked)
        plain = rates["baseline"]
        for mode, rate in rates.items():
            print(
                f"{name:14} {mode:9} {rate:6.1f} tok/s  {rate / plain:5.2f} of plain  "
                f"{lengths[mode]:5.2f} tokens a verify",
                flush=True,
            )


def measure(
    pair: Pair, prompts: list[str], asked: argparse.Namespace
) -> tuple[dict[str, float], dict[str, float]]:
    """Tokens per second and per verify pass of each mode; SystemExit if two answers differ."""
    sessions = {mode: Session(pair, mode=mode, use_prefix_cache=False) for mode in MODES}
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    answers: dict[tuple[str, int], list[int]] = {}
    verifies, committed = defaultdict[str, int](int), defaultdict[str, int](int)
    for repeat in range(-1, asked.repeats):  # the first run is a warm-up
        for number, prompt in enumerate(prompts if repeat >= 0 else prompts[:2]):
            first = (number + repeat) % len(MODES)
            for mode in (*MODES[first:], *MODES[:first]):
                session = sessions[mode]
                blocks = session.stream(
                    prompt,
                    sampling=SamplingParams(temperature=asked.temp, seed=number),
                    max_tokens=asked.max_tokens,
                )
                tokens = [token for block in blocks for token in block.tokens]
                if tokens != answers.setdefault(("baseline", number), tokens):
                    raise SystemExit(f"{mode} says something else to {prompt!r}")
                if repeat >= 0:
                    seconds[mode, number].append(session.stats.decode_seconds)
                    verifies[mode] += session.stats.verifies
                    committed[mode] += session.stats.accepted + session.stats.verifies
    count = sum(len(answers["baseline", n]) - 1 for n in range(len(prompts)))
    rates = {
        mode: count / sum(median(seconds[mode, n]) for n in range(len(prompts))) for mode in MODES
    }
    return rates, {mode: committed[mode] / max(1, verifies[mode]) for mode in MODES}


if __name__ == "__main__":
    main()
