"""Write prompts for `dflash train`, one JSON object per line; none of them is held out.

Each line is the start of a chat as `text` makes them, with the right answer at its end. The target
still generates its own answer: it verifies the right answer in one pass and continues where its own
differs. This is faster than generating all.
"""

import argparse
import json
from collections.abc import Sequence
from random import Random
from typing import Any

from sample import Chat, answer_text, assistant, is_held_out, user
from text import FAMILIES, WEIGHTS, a_chat


def one_question(rng: Random, shares: Sequence[float]) -> Chat:
    """A chat of one question of the four families, in these shares; not a held-out one."""
    while True:
        sample = rng.choices([*FAMILIES.values()], shares)[0](rng)
        if not sample.held_out and not is_held_out(sample.prompt):
            return Chat([user(sample.prompt), assistant(sample.answer)])


def prompt_line(rng: Random, chat: Chat) -> str:
    """A chat up to one of its answers, as a line of JSON."""
    answers = [n for n, message in enumerate(chat.messages) if message["role"] == "assistant"]
    place = answers[-1] if chat.thinking else rng.choice(answers)
    message = chat.messages[place]
    said = answer_text(message)
    if chat.thinking:
        said = f"{message['reasoning_content']}\n</think>\n\n{said}"
    line: dict[str, Any] = {
        "messages": [*chat.messages[:place], {"role": "assistant", "content": said}],
        "think": chat.thinking,
    }
    if chat.tools:
        line["tools"] = list(chat.tools)
    return json.dumps(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--tools", type=float, default=0.5, help="share of chats drawn with tools")
    parser.add_argument("--alone", type=float, default=0.0, help="share of lone questions")
    parser.add_argument(
        "--shares", type=float, nargs=4, default=WEIGHTS, help=f"of them, by {', '.join(FAMILIES)}"
    )
    args = parser.parse_args()
    rng = Random(args.seed)
    seen: set[str] = set()
    while len(seen) < args.count:
        if rng.random() < args.alone:
            chat = one_question(rng, args.shares)
        else:
            chat = a_chat(rng, tools=rng.random() < args.tools)
        line = prompt_line(rng, chat)
        if line not in seen:
            seen.add(line)
            print(line)


if __name__ == "__main__":
    main()
