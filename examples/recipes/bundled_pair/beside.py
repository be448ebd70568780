"""Compare drafter plus prompt lookup (`--lookup`) with the drafter alone, in the mode auto.

    .venv/bin/python examples/recipes/bundled_pair/beside.py --prompts 24 --repeats 3

Uses held-out prompts, and each of them a second time in the same chat, where the answer is already
in the context. Both ways and plain decoding run in turn. All answers must be equal, and the median
of a prompt's times counts. Speeds hold for this machine only.
"""

import argparse
from collections import defaultdict
from dataclasses import replace
from statistics import median
from typing import Any

from text import held_out

import dflash_mlx
from dflash_mlx import SamplingParams, Session
from dflash_mlx.options import Mode

WAYS: tuple[tuple[str, bool, Mode], ...] = (
    ("plain", False, "baseline"),
    ("drafter", False, "auto"),
    ("with copies", True, "auto"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--temp", type=float, default=0.0)
    asked = parser.parse_args()
    pair = dflash_mlx.load(cache_ram=0)
    both = replace(pair, lookup=True)
    texts = [sample.prompt for sample in held_out(asked.prompts)]
    once = [[{"role": "user", "content": text}] for text in texts]
    twice = [
        [*chat, {"role": "assistant", "content": said(pair, chat, asked)}, *chat] for chat in once
    ]
    for name, chats in (("asked once", once), ("asked again", twice)):
        seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
        answers: dict[int, list[int]] = {}
        sessions = {
            way: Session(both if copies else pair, mode=mode, use_prefix_cache=False)
            for way, copies, mode in WAYS
        }
        for repeat in range(-1, asked.repeats):  # the first run is a warm-up
            for number, chat in enumerate(chats if repeat >= 0 else chats[:3]):
                order = [*sessions.items()]
                for way, session in order if (number + repeat) % 2 else order[::-1]:
                    params = SamplingParams(temperature=asked.temp, seed=number)
                    blocks = session.stream(chat, sampling=params, max_tokens=asked.max_tokens)
                    tokens = [token for block in blocks for token in block.tokens]
                    if tokens != answers.setdefault(number, tokens):
                        raise SystemExit(f"{way} says something else to {chat[-1]['content']!r}")
                    if repeat >= 0:
                        seconds[way, number].append(session.stats.decode_seconds)
        total = {way: sum(median(seconds[way, n]) for n in range(len(chats))) for way in sessions}
        drafter, copies = (total["plain"] / total[way] for way in ("drafter", "with copies"))
        print(
            f"{name:12} drafter {drafter:5.2f} of plain, with copies {copies:5.2f}: "
            f"{copies / drafter:5.3f} of the drafter alone",
            flush=True,
        )


def said(pair: dflash_mlx.Pair, chat: list[dict[str, Any]], asked: argparse.Namespace) -> str:
    """The answer to a chat."""
    return dflash_mlx.generate(pair, chat, max_tokens=asked.max_tokens).text


if __name__ == "__main__":
    main()
