"""Load the bundled pair, stream an answer, print its statistics."""

import dflash_mlx

pair = dflash_mlx.load()
session = dflash_mlx.Session(pair)
for block in session.stream("Sort these numbers from small to large: 31, 7, 84, 12"):
    print(block.text, end="", flush=True)
stats = session.stats
print(f"\n\n{stats.generated} tokens in {stats.verifies} verifies, τ {stats.acceptance_length:.2f}")
