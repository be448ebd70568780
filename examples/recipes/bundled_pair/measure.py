"""Measure the bundled pair on held-out prompts: quality, speed, and what the engine adds.

    python examples/recipes/bundled_pair/measure.py quality   exact answers and τ, by family
    python examples/recipes/bundled_pair/measure.py speed     against stock mlx_lm generation
    python examples/recipes/bundled_pair/measure.py overhead  round time less the bare passes
    python examples/recipes/bundled_pair/measure.py bits      τ of a quantised drafter
    python examples/recipes/bundled_pair/measure.py kv        answers with a quantised KV cache

Speeds are medians over prompts measured in one process, in turn; they hold for this machine only.
"""

import argparse
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean, median

from sample import Sample
from text import held_out

import dflash_mlx
from dflash_mlx import Pair, Result, SamplingParams

MAX_TOKENS = 250


def ids_of(pair: Pair, sample: Sample) -> list[int]:
    """The prompt's token ids, with the template's default for thinking."""
    return pair.chat_tokens([{"role": "user", "content": sample.prompt}])


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


def speed(pair: Pair, count: int) -> None:
    """Measure the decode rates of stock mlx-lm and DFlash, in turn for each prompt."""
    import mlx.core as mx
    from mlx_lm import stream_generate
    from mlx_lm.sample_utils import make_sampler
    from mlx_lm.utils import load_model

    stock, _ = load_model(pair.target.path)
    stock.set_dtype(mx.float32)
    mx.eval(stock.parameters())
    for temperature in (0.0, 1.0):
        plain, fast, ratios, same = [], [], [], 0
        prompts = [ids_of(pair, s) for s in held_out(count)]
        for number, ids in enumerate([prompts[0], *prompts]):  # the first one is a warm-up
            sampler = make_sampler(temperature)
            tokens, first = [], 0.0
            for part in stream_generate(
                stock, pair.tokenizer, ids, max_tokens=MAX_TOKENS, sampler=sampler
            ):
                first = first or time.perf_counter()
                tokens.append(part.token)
            seconds = time.perf_counter() - first
            result = dflash_mlx.generate(
                pair,
                ids,
                max_tokens=MAX_TOKENS,
                sampling=SamplingParams(temperature=temperature, seed=number),
            )
            if number and len(tokens) > 1 and result.stats.verifies:
                plain.append((len(tokens) - 1) / seconds)
                fast.append(result.stats.tokens_per_second)
                ratios.append(fast[-1] / plain[-1])
                same += tokens == result.tokens
        print(
            f"temperature {temperature:g}: mlx_lm {median(plain):.0f} tok/s, "
            f"dflash {median(fast):.0f} tok/s, ratio {median(ratios):.2f} "
            f"(quartiles {quartile(ratios, 1):.2f} to {quartile(ratios, 3):.2f}, "
            f"{len(ratios)} prompts)"
            + (f", identical tokens {same}/{len(ratios)}" if temperature == 0 else "")
        )


def quartile(values: list[float], number: int) -> float:
    """The lower (1) or upper (3) quartile."""
    return sorted(values)[number * len(values) // 4]


def overhead(pair: Pair, count: int) -> None:
    """Replay greedy answers with bare draft and verify passes, and compare the times of rounds."""
    import mlx.core as mx

    from dflash_mlx.engine.sequence import Sequence

    shares, rounds, drafts, verifies = [], [], [], []
    for number, sample in enumerate(held_out(count)):
        ids = ids_of(pair, sample)
        result = dflash_mlx.generate(pair, ids, max_tokens=MAX_TOKENS)
        stats = result.stats
        if not number or stats.verifies < 2:
            continue
        sequence = Sequence(pair.target, pair.drafter)
        sequence.read(ids)
        cache = sequence.draft_cache
        assert cache is not None
        assert pair.drafter is not None
        draft_time = verify_time = 0.0
        anchor, rest, taps = result.tokens[0], result.tokens[1:], None
        for kept in stats.committed:
            width = pair.drafter.config.block_size
            room = MAX_TOKENS - len(result.tokens) + len(rest)
            began = time.perf_counter()
            if taps is not None:
                cache.append(taps)
            drafted = cache.block(anchor, width).greedy().tokens[:room]
            mx.eval(drafted, cache.state)
            middle = time.perf_counter()
            found = sequence.verify(anchor, drafted)
            mx.eval(mx.argmax(found.logits, axis=-1), found.taps)
            verify_time += time.perf_counter() - middle
            draft_time += middle - began
            sequence.target_cache.rewind(len(sequence.tokens) + kept)
            sequence.tokens += (anchor, *rest[: kept - 1])
            taps, anchor, rest = found.taps[:, :kept], rest[kept - 1], rest[kept:]
        n = len(stats.committed)
        rounds.append(1000 * stats.decode_seconds / n)
        drafts.append(1000 * draft_time / n)
        verifies.append(1000 * verify_time / n)
        shares.append(1 - (drafts[-1] + verifies[-1]) / rounds[-1])
    print(
        f"round {median(rounds):.2f} ms, bare draft {median(drafts):.2f} ms, bare verify "
        f"{median(verifies):.2f} ms, overhead {median(shares):.1%} of the round (medians over "
        f"{len(shares)} prompts; below 0 means that drafting overlapped)"
    )


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
        "speed": (speed, 40),
        "overhead": (overhead, 40),
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
