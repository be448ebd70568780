"""Write the prompts of the benchmark suite `bundled`: held out from both trainings.

    python held_out.py > ../../../dflash_mlx/bundled/prompts.jsonl

Writes one JSON object per line. The four families alternate, so that the first lines have all of
them.
"""

import json

from text import FAMILIES, held_out

COUNT = 80


def lines() -> list[str]:
    samples = held_out(COUNT)
    by_family = [[s for s in samples if s.family == name] for name in FAMILIES]
    turns = zip(*by_family, strict=True)
    return [json.dumps({"task": s.family, "prompt": s.prompt}) for turn in turns for s in turn]


if __name__ == "__main__":
    print("\n".join(lines()))
