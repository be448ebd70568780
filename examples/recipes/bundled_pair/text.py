"""The training text of the bundled pair; all of it is generated here from a seed."""

from collections.abc import Iterator, Sequence
from random import Random

from arithmetic import arithmetic
from everyday import everyday
from functions import functions
from lists import lists
from sample import Sample

FAMILIES = {
    "arithmetic": arithmetic,
    "lists": lists,
    "functions": functions,
    "everyday": everyday,
}
WEIGHTS = (4, 4, 2, 2)
SYSTEM = (
    "You are a helpful assistant.",
    "You are a friendly assistant who gives short answers.",
    "Answer the question.",
)


def samples(
    seed: int, *, held_out: bool = False, weights: Sequence[int] = WEIGHTS
) -> Iterator[Sample]:
    """An endless stream of samples, all held out or none; `weights` are the families' shares."""
    rng = Random(seed)
    while True:
        sample = rng.choices(list(FAMILIES.values()), weights)[0](rng)
        if sample.held_out == held_out:
            yield sample


def held_out(count: int, seed: int = 7) -> list[Sample]:
    """`count` different held-out samples, equally many of each family."""
    chosen: list[Sample] = []
    for number, family in enumerate(FAMILIES):
        share = count // len(FAMILIES) + (number < count % len(FAMILIES))
        unique: dict[str, Sample] = {}
        only = [int(name == family) for name in FAMILIES]
        for tries, sample in enumerate(samples(seed, held_out=True, weights=only)):
            unique.setdefault(sample.prompt, sample)
            if len(unique) == share or tries > 200 * count:
                break
        chosen += unique.values()
    return chosen


def chats(
    seed: int, weights: Sequence[int] = WEIGHTS
) -> Iterator[tuple[list[dict[str, str]], bool]]:
    """An endless stream of (messages, thinking): one to four questions with answers."""
    rng = Random(seed)
    stream = samples(seed, weights=weights)
    while True:
        thinking = rng.random() < 0.25
        messages = []
        if rng.random() < 0.2:
            messages.append({"role": "system", "content": rng.choice(SYSTEM)})
        for _ in range(rng.choice((1, 1, 2, 3, 4))):
            sample = next(stream)
            messages.append({"role": "user", "content": sample.prompt})
            said = sample.answer
            if thinking:
                said = f"<think>\n{sample.thinking}\n</think>\n\n{sample.conclusion}"
            messages.append({"role": "assistant", "content": said})
        yield messages, thinking
