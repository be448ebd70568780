"""Show each block of an answer in colour: accepted drafts green, the target's own token bold."""

import sys

from rich.console import Console
from rich.text import Text

import dflash_mlx

console = Console(highlight=False)
pair = dflash_mlx.load()
decode = pair.tokenizer.decode
prompt = " ".join(sys.argv[1:]) or "Write a Python function that adds 3 to a number."
for block in dflash_mlx.stream(pair, prompt):
    accepted, own = block.tokens[: block.accepted], block.tokens[block.accepted :]
    line = Text(f"{block.accepted:2} of {block.drafted:2}  ", style="dim")
    line.append(repr(decode(list(accepted)))[1:-1], style="green")
    line.append(repr(decode(list(own)))[1:-1], style="bold")
    console.print(line)
