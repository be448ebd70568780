"""Hold the mode auto against the fixed modes on the bundled pair, also where drafting cannot pay.

    python examples/recipes/bundled_pair/policy.py modes            against each fixed mode
    python examples/recipes/bundled_pair/policy.py modes --fixed dflash --repeats 13   the best
                                                                      of them, with less noise
    python examples/recipes/bundled_pair/policy.py worst            against plain decoding, with
                                                                      drafters that are no good
    python examples/recipes/bundled_pair/policy.py worst --draft F G   and with those in F and G
    DFLASH_BLAS=off python examples/recipes/bundled_pair/policy.py plain
                                                                      wide verifies do not pay

Every prompt is answered by each mode in turn, several times over; of a prompt's times the median
counts, and rates are all tokens over all of these. They hold for this machine only.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from statistics import median
from typing import Any

from sample import Sample
from text import held_out

import dflash_mlx
from dflash_mlx import Pair, SamplingParams, Session

MAX_TOKENS = 250
FIXED = ("baseline", "dflash", "ddtree")


def rates(
    pair: Pair, samples: list[Sample], modes: Iterable[Any], temperature: float, repeats: int
) -> dict[str, dict[str, float]]:
    """Tokens per second of each mode, by family."""
    sessions = {mode: Session(pair, mode=mode) for mode in modes}
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    tokens: dict[tuple[str, int], int] = {}
    for repeat in range(-1, repeats):  # the first run is a warm-up
        for number, sample in enumerate(samples if repeat >= 0 else samples[:4]):
            turn, first = divmod(number + repeat, len(sessions))
            order = [*sessions][first:] + [*sessions][:first]
            for mode in order[:: -1 if turn % 2 else 1]:
                session = sessions[mode]
                sampling = SamplingParams(temperature=temperature, seed=number)
                for _ in session.stream(sample.prompt, sampling=sampling, max_tokens=MAX_TOKENS):
                    pass
                if repeat >= 0:
                    seconds[mode, number].append(session.stats.decode_seconds)
                    tokens[mode, number] = session.stats.generated - 1
    families = dict.fromkeys(sample.family for sample in samples)
    found: dict[str, dict[str, float]] = {}
    for family in [*families, "all"]:
        numbers = [n for n, sample in enumerate(samples) if family in (sample.family, "all")]
        found[family] = {
            mode: sum(tokens[mode, n] for n in numbers)
            / sum(median(seconds[mode, n]) for n in numbers)
            for mode in sessions
        }
    return found


def show(found: dict[str, dict[str, float]], fixed: tuple[str, ...]) -> None:
    """Print one line per family: the rates, and the ratio of auto to the best fixed mode."""
    for family, by_mode in found.items():
        best = max(fixed, key=lambda mode: by_mode[mode])
        text = "  ".join(f"{mode} {rate:6.1f}" for mode, rate in by_mode.items())
        print(
            f"  {family:12}{text}  auto / {best} {by_mode['auto'] / by_mode[best]:.3f}", flush=True
        )


def modes(pair: Pair, samples: list[Sample], repeats: int, fixed: tuple[str, ...]) -> None:
    """Compare auto with fixed modes, by family."""
    for temperature in (0.0, 1.0):
        print(f"temperature {temperature:g}")
        show(rates(pair, samples, (*fixed, "auto"), temperature, repeats), fixed)


def plain(
    pair: Pair, samples: list[Sample], repeats: int, name: str = "the bundled drafter"
) -> None:
    """Compare auto with plain decoding."""
    print(name)
    show(rates(pair, samples, ("baseline", "auto"), 0.0, repeats), ("baseline",))


def worst(pair: Pair, samples: list[Sample], repeats: int, drafts: list[str]) -> None:
    """Compare auto with plain decoding, using drafters that make decoding slower."""
    import mlx.core as mx
    from mlx.utils import tree_map

    from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
    from dflash_mlx.drafters.dflash.model import DraftModel
    from dflash_mlx.pair import with_drafter
    from dflash_mlx.resolved_pair import resolve_pair

    target, drafter = pair.target, pair.drafter
    assert isinstance(drafter, DFlashDrafter)
    model = DraftModel(drafter.config, target.hidden_size)
    mx.random.seed(5)
    model.update(tree_map(lambda x: mx.random.normal(x.shape) * 0.05, model.parameters()))
    untrained = DFlashDrafter(model, target.embed, target.head)
    wrong = DFlashDrafter(drafter.model, target.embed, lambda hidden: -target.head(hidden))
    for name, other in (("random weights", untrained), ("always wrong", wrong)):
        plain(replace(pair, drafter=other, draft_name=name), samples, repeats, name)
    for draft in drafts:
        plain(with_drafter(pair, resolve_pair(pair, draft)), samples, repeats, draft)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("modes", "worst", "plain"))
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fixed", nargs="+", choices=FIXED, default=FIXED)
    parser.add_argument("--draft", nargs="+", default=[], help="drafters for the bundled target")
    args = parser.parse_args()
    pair, samples = dflash_mlx.load(cache_ram=0), held_out(args.prompts)
    if args.what == "worst":
        worst(pair, samples, args.repeats, args.draft)
    elif args.what == "modes":
        modes(pair, samples, args.repeats, tuple(args.fixed))
    else:
        plain(pair, samples, args.repeats)


if __name__ == "__main__":
    main()
