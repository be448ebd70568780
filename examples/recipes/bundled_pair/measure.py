"""Measure the bundled pair on held-out prompts: its answers, and those of quantised parts.

python examples/recipes/bundled_pair/measure.py quality   exact answers and τ, by family
python examples/recipes/bundled_pair/measure.py bits      τ of a quantised drafter
python examples/recipes/bundled_pair/measure.py kv        answers with a quantised KV cache
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import mean

from sample import Sample
from text import held_out

import dflash_mlx
from dflash_mlx import Pair, Result, SamplingParams

MAX_TOKENS = 250


def quality(pair: Pair, count: int) -> None:
    """Measure exact answers and τ at temperature 0, and τ at temperature 1."""
    rows: dict[str, list[tuple[bool, float, float]]] = defaultdict(list)
    thought = 0
    samples = held_out(count)
    for number, sample in enumerate(samples):
        greedy = dflash_mlx.generate(pair, sample.prompt, max_tokens=MAX_TOKENS)
        drawn = dflash_mlx.generate(
            pair,
            sample.prompt,
            max_tokens=MAX_TOKENS,
            sampling=SamplingParams(temperature=1.0, seed=number),
        )
        taus = [r.stats.acceptance_length for r in (greedy, drawn)]
        rows[sample.family].append((greedy.text.strip() == sample.answer, taus[0], taus[1]))
        if number % 4 == 0:
            answer = dflash_mlx.generate(pair, sample.prompt, max_tokens=MAX_TOKENS, think=True)
            thought += answer.text.strip() == sample.conclusion
    print(f"{'family':12}{'prompts':>8}{'exact':>8}{'τ at 0':>8}{'τ at 1':>8}")
    every = [row for family in rows.values() for row in family]
    for name, part in [*rows.items(), ("all", every)]:
        exact, zero, one = (mean(values) for values in zip(*part, strict=True))
        print(f"{name:12}{len(part):8}{exact:8.1%}{zero:8.2f}{one:8.2f}")
    print(f"thinking on: {thought / len(range(0, len(samples), 4)):.1%} exact of every fourth")


def answers(pair: Pair, samples: list[Sample], temperature: float) -> list[Result]:
    """Answer each sample; its number is the seed."""
    return [
        dflash_mlx.generate(
            pair,
            sample.prompt,
            max_tokens=MAX_TOKENS,
            sampling=SamplingParams(temperature=temperature, seed=number),
            mode="dflash",
        )
        for number, sample in enumerate(samples)
    ]


def taus_of(results: list[Result]) -> list[float]:
    """τ of each answer that has one."""
    return [result.stats.acceptance_length for result in results if result.stats.verifies]


def bits(pair: Pair, count: int) -> None:
    """Measure τ with the drafter quantised in memory, and count unchanged greedy answers."""
    from mlx.utils import tree_flatten

    from dflash_mlx.hub.resolve import BUNDLED
    from dflash_mlx.pair import with_drafter

    draft = None if pair.draft_name == BUNDLED else pair.draft_name
    samples, wanted = held_out(count), []
    print("| `draft_bits` | held in memory | τ at 0 | τ at 1 | greedy text unchanged |")
    print("|---|---|---|---|---|")
    for width in (0, 8, 4):
        pair = with_drafter(pair, draft, draft_bits=width)
        greedy, drawn = (answers(pair, samples, temperature) for temperature in (0.0, 1.0))
        said = [result.tokens for result in greedy]
        wanted = wanted or said
        same = sum(a == b for a, b in zip(said, wanted, strict=True))
        assert pair.drafter is not None
        weights = tree_flatten(pair.drafter.model.parameters())
        size = sum(array.nbytes for _, array in weights) / 1e6  # type: ignore
        print(
            f"| {width or 'none'} | {size:.1f} MB | {mean(taus_of(greedy)):.2f} | "
            f"{mean(taus_of(drawn)):.2f} | {same} of {len(samples)} |",
            flush=True,
        )


def kv(pair: Pair, count: int) -> None:
    """Count right and unchanged greedy answers with the target's KV cache quantised."""
    from dflash_mlx.hub.resolve import BUNDLED

    target = None if pair.target_name == BUNDLED else pair.target_name
    draft = None if pair.draft_name == BUNDLED else pair.draft_name
    samples, wanted = held_out(count), []
    print("| `kv_bits` | right answers | greedy text unchanged | τ at 0 |")
    print("|---|---|---|---|")
    for width in (0, 8, 4):
        pair = dflash_mlx.load(target, draft, kv_bits=width, cache_ram=0)
        results = answers(pair, samples, 0.0)
        said = [result.tokens for result in results]
        wanted = wanted or said
        same = sum(a == b for a, b in zip(said, wanted, strict=True))
        right = sum(r.text.strip() == s.answer for r, s in zip(results, samples, strict=True))
        tau = mean(taus_of(results))
        print(f"| {width or 'none'} | {right} of {count} | {same} of {count} | {tau:.2f} |")


def main() -> None:
    jobs = {
        "quality": (quality, 400),
        "bits": (bits, 40),
        "kv": (kv, 160),
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=jobs)
    parser.add_argument("--target", type=Path, help="instead of the bundled pair")
    parser.add_argument("--draft")
    parser.add_argument("--prompts", type=int, help="how many held-out prompts")
    args = parser.parse_args()
    job, count = jobs[args.what]
    job(dflash_mlx.load(args.target, args.draft, cache_ram=0), args.prompts or count)


if __name__ == "__main__":
    main()
