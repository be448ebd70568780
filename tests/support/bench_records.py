"""Made-up records of bench runs, for tests of their evaluation."""

from dataclasses import replace

from dflash_mlx.bench.records import Key, Record, Rounds, Turn
from dflash_mlx.bench.schedule import Schedule, parse_modes

KEY = Key("s", 1, "d", "dflash", 0.0, 1)
FACTS = {"pair": {"target": "a"}, "settings": {"max_tokens": 8}}


def schedule_of(names="baseline,dflash", **values) -> Schedule:
    return Schedule(modes=parse_modes(names), **{"max_tokens": 8, **values})


def turn(count=11, seconds=1.0, **values) -> Turn:
    """An answer of `count` tokens, ten of them decoded in `seconds`."""
    given = {
        "prompt_tokens": 20, "cached_tokens": 0, "text": "x", "tokens": tuple(range(count)),
        "finish_reason": "stop", "prefill_seconds": 0.5, "first_token_seconds": 0.6,
        "decode_seconds": seconds, "verifies": 0, "drafted": 0, "accepted": 0,
        "accepted_by_position": (), "rounds": (Rounds(1, count - 1, count - 1, seconds),),
    }  # fmt: skip
    return Turn(**{**given, **values})


def record(key=KEY, *turns, task="s", **changes) -> Record:
    return Record(replace(key, **changes), task, turns or (turn(),), 1000)
