"""Answer a prompt with DFlash and with plain decoding: the same tokens at two speeds."""

import sys

import dflash_mlx

pair = dflash_mlx.load()
prompt = " ".join(sys.argv[1:]) or "Tom has 12 apples and buys 7 more. How many apples are there?"
fast = dflash_mlx.generate(pair, prompt)
plain = dflash_mlx.generate(pair, prompt, mode="baseline")
print(fast.text)
print(f"\nidentical: {fast.tokens == plain.tokens}")
print(f"plain {plain.stats.tokens_per_second:.0f} tok/s, dflash {fast.stats.tokens_per_second:.0f}")
