"""Measure the bundled target on questions whose writer had not seen the rules of its training text.

    python examples/recipes/bundled_pair/strangers.py [outside sums ...] [--show]

The questions are in strangers/. An answer is right if it has the expected number or words in it; a
task with tools if it has the expected calls, and those words in its last answer.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from everyday import HONEST

import dflash_mlx
from dflash_mlx import Pair
from dflash_mlx.tools.loop import CallSplitter

FOLDER = Path(__file__).with_name("strangers")
Line = dict[str, Any]


def answer(pair: Pair, messages: list[Line]) -> str:
    """The answer at temperature 0."""
    mode = "dflash" if pair.drafter else "baseline"
    return dflash_mlx.generate(pair, messages, max_tokens=400, mode=mode).text.strip()


def has(text: str, wanted: object) -> bool:
    """Whether the text has these words, or a number that is no part of another one."""
    words = re.escape(str(wanted).lower())
    return not words or re.search(rf"(?<!\d){words}(?!\d)", text.lower()) is not None


def last_number(text: str) -> str:
    """The last number in a text; empty without one."""
    numbers = re.findall(r"-?\d+", text)
    return numbers[-1] if numbers else ""


def honest(pair: Pair, line: Line) -> tuple[bool, str]:
    """A question outside the toy's world."""
    said = answer(pair, [{"role": "user", "content": line["prompt"]}])
    return said == HONEST, said


def number(pair: Pair, line: Line) -> tuple[bool, str]:
    """A question whose answer ends with a number."""
    said = answer(pair, [{"role": "user", "content": line["prompt"]}])
    return last_number(said) == str(line["result"]), said


def words(pair: Pair, line: Line) -> tuple[bool, str]:
    """A question whose answer has some words."""
    said = answer(pair, [{"role": "user", "content": line["prompt"]}])
    return has(said, line["result"]), said


def turns(pair: Pair, line: Line) -> tuple[bool, str]:
    """A chat, with the model's own earlier answers."""
    messages: list[Line] = []
    right = True
    for ask, wanted in zip(line["turns"], line["results"], strict=True):
        messages.append({"role": "user", "content": ask})
        messages.append({"role": "assistant", "content": answer(pair, messages)})
        right = right and has(messages[-1]["content"], wanted)
    return right, " | ".join(message["content"] for message in messages[1::2])


def tools(pair: Pair, line: Line) -> tuple[bool, str]:
    """A task with tools, whose results are given; the calls must be the expected ones in order."""
    schemas = [{"type": "function", "function": tool} for tool in line["tools"]]
    messages: list[Line] = [{"role": "user", "content": line["prompt"]}]
    mode = "dflash" if pair.drafter else "baseline"
    for wanted in [*line["calls"], None]:
        splitter = CallSplitter(pair.tokenizer, schemas)
        blocks = dflash_mlx.stream(pair, messages, max_tokens=400, tools=schemas, mode=mode)
        text = "".join(splitter.split(block).text for block in blocks).strip()
        calls = [(call.name, json.loads(call.arguments)) for call in splitter.calls]
        expected = [] if wanted is None else [(wanted["name"], wanted["arguments"])]
        if calls != expected:
            return False, f"{calls} {text}"
        if wanted is None:
            return has(text, line["final"]), text
        function = {"name": wanted["name"], "arguments": wanted["arguments"]}
        call = {"type": "function", "id": f"call{len(messages):05d}", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": wanted["result"], "tool_call_id": call["id"]})
    raise AssertionError("the last turn has no call")


Judge = Callable[[Pair, Line], tuple[bool, str]]
TABLES: dict[str, Judge] = {
    "outside": honest,
    "sums": number,
    "stories": number,
    "lists": words,
    "turns": turns,
    "tools": tools,
}


def lines_of(name: str) -> Iterator[Line]:
    """The questions of a table."""
    text = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
    return map(json.loads, text.splitlines())


def measure(pair: Pair, name: str, show: bool) -> None:
    """Print the share of right answers, and by group where there are groups."""
    groups: dict[str, list[bool]] = {}
    for line in lines_of(name):
        right, said = TABLES[name](pair, line)
        calls = f"{len(line['calls'])} calls" if "calls" in line else ""
        groups.setdefault(line.get("kind", calls), []).append(right)
        if show and not right:
            print(f"  {line.get('prompt', line.get('turns'))!r}\n    {said!r}")
    everything = [right for group in groups.values() for right in group]
    print(f"{name:10}{sum(everything):5} of {len(everything)}", flush=True)
    for group, results in groups.items():
        if group:
            print(f"  {group:30}{sum(results):5} of {len(results)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; default all")
    parser.add_argument("--target", type=Path, help="instead of the bundled one")
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--show", action="store_true", help="print wrong answers")
    args = parser.parse_args()
    without = args.target is not None and args.draft is None
    load = partial(dflash_mlx.load, args.target, cache_ram=0)
    pair = load(no_draft=True) if without else load(args.draft)
    for name in args.tables or TABLES:
        if name not in TABLES:
            parser.error(f"there is no table '{name}'; there are {', '.join(TABLES)}")
        measure(pair, name, args.show)


if __name__ == "__main__":
    main()
