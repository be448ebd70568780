"""Answers of every mode against stock mlx-lm's, token for token: greedy, and seeded three ways.

    .venv/bin/python examples/bundled_pair/seeded.py --prompts 200
    .venv/bin/python examples/bundled_pair/seeded.py --draft lookup
    .venv/bin/python examples/bundled_pair/seeded.py --target runs/smollm2/float32 --draft lookup

Stock is `mlx_lm.generate.generate_step` on a model that mlx-lm loaded, in float32, after
`mx.random.seed(seed)`. The samplings are made to differ in everything that can be set. The last
line says how many answers of each mode were equal.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from text import held_out

import dflash_mlx
from dflash_mlx import SamplingParams
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.request import MODES
from dflash_mlx.thread import mlx_thread

SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.5},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.5},
)


def stock_model(folder: Path) -> Any:
    """A target as mlx-lm loads it, in float32."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def stock_answer(
    model: Any, prompt: list[int], params: SamplingParams, stops: frozenset[int], max_tokens: int
) -> list[int]:
    """What stock mlx-lm says with this seed."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.sample_utils import make_logits_processors, make_sampler

    mx.random.seed(params.seed or 0)
    sampler = make_sampler(params.temperature, params.top_p, params.min_p, top_k=params.top_k)
    repetition = params.repetition_penalty
    processors = make_logits_processors(
        repetition_penalty=None if repetition == 1 else repetition,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
    )
    found = []
    steps = generate_step(
        mx.array(prompt),
        model,
        max_tokens=max_tokens,
        sampler=sampler,
        logits_processors=processors,
    )
    for token, _ in steps:
        found.append(int(token))
        if found[-1] in stops:
            break
    return found


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", help="a folder; left out, the bundled one")
    parser.add_argument("--draft", help="as dflash's; left out, the target's own")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    pair = dflash_mlx.load(options.target, options.draft, cache_ram=0)
    model = mlx_thread().call(stock_model, Path(options.target or bundled("target")))
    equal, total = Counter[str](), 0
    for number, sample in enumerate(held_out(options.prompts)):
        prompt = pair.target.chat_tokens([{"role": "user", "content": sample.prompt}])
        for settings in SAMPLINGS:
            params = SamplingParams(**settings, seed=1000 + number)
            wanted = mlx_thread().call(
                stock_answer, model, prompt, params, pair.target.eos_ids, options.max_tokens
            )
            total += 1
            for mode in MODES:
                result = dflash_mlx.generate(
                    pair, prompt, mode=mode, sampling=params, max_tokens=options.max_tokens
                )
                equal[mode] += result.tokens == wanted
        if number % 10 == 9:
            print(number + 1, dict(equal), "of", total, flush=True)
    print("equal to stock:", ", ".join(f"{mode} {equal[mode]} of {total}" for mode in MODES))


if __name__ == "__main__":
    main()
