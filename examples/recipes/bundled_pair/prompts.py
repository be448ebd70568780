"""Write prompts for `dflash train`, one JSON object per line; none of them is held out.

Each line ends with the right answer. The target still generates its own answer: it verifies the
right answer in one pass and continues where its own differs. This is faster than generating all.
"""

import argparse
import json
from random import Random

from text import SYSTEM, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=21)
    args = parser.parse_args()
    rng, stream = Random(args.seed), samples(args.seed)
    seen: set[str] = set()
    while len(seen) < args.count:
        sample = next(stream)
        messages = [{"role": "user", "content": sample.prompt}]
        if rng.random() < 0.25:  # make it the second question of a chat
            before = next(stream)
            answer = {"role": "assistant", "content": before.answer}
            messages = [{"role": "user", "content": before.prompt}, answer, *messages]
        if rng.random() < 0.15:
            messages.insert(0, {"role": "system", "content": rng.choice(SYSTEM)})
        think = rng.random() < 0.15
        said = f"{sample.thinking}\n</think>\n\n{sample.conclusion}" if think else sample.answer
        messages.append({"role": "assistant", "content": said})
        line = json.dumps({"messages": messages, "think": think})
        if line not in seen:
            seen.add(line)
            print(line)


if __name__ == "__main__":
    main()
