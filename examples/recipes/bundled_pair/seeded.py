"""Answers of every mode against stock mlx-lm's, token for token: greedy, and seeded three ways.

    python examples/recipes/bundled_pair/seeded.py --prompts 200
    python examples/recipes/bundled_pair/seeded.py --draft lookup
    python examples/recipes/bundled_pair/seeded.py --target runs/real/smollm2-135m --min-p 0.05 \
        --file runs/smollm2-prompts.jsonl --draft lookup,FOLDER --modes dflash,ddtree --together 8

Stock is `mlx_lm.generate.generate_step` on a model that mlx-lm loaded, in float32, after
`mx.random.seed(seed)`. The samplings are made to differ in everything that can be set. The
last line of each drafter and mode says how many answers were equal, of each sampling too.

MLX draws from float32 sums over the vocabulary, where the last bits of logits, which the rows of a
pass change, can choose between neighbours: often where nothing cuts a tail of many thousands, which
--min-p does, and seldom else. So stock's answer depends on the steps in which it reads the prompt;
answers that are stock's in other steps than its default are counted apart.
"""

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from text import held_out

import dflash_mlx
from dflash_mlx import Pair, Result, SamplingParams
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.options import MODES, Mode
from dflash_mlx.pair import with_drafter
from dflash_mlx.resolved_pair import resolve_pair

Case = tuple[list[int], SamplingParams, list[int]]  # prompt, sampling, stock's answer
STEPS = (1, 2, 3, 5, 7, 16, 32)  # values for stock's `prefill_step_size`; default: 2,048
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.5},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.5},
)


def stock_model(folder: Path) -> Any:
    """Load a target with mlx-lm, in float32."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def stock_answer(
    model: Any,
    prompt: list[int],
    params: SamplingParams,
    stops: frozenset[int],
    max_tokens: int,
    step: int = 2048,
    cache: Any = None,
) -> list[int]:
    """The answer of stock mlx-lm with this seed, `prefill_step_size` and `prompt_cache`."""
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
        prefill_step_size=step,
        prompt_cache=cache,
        sampler=sampler,
        logits_processors=processors,
    )
    for token, _ in steps:
        found.append(int(token))
        if found[-1] in stops:
            break
    return found


def read_prompts(options: argparse.Namespace) -> list[str]:
    """The first prompts of a file, or prompts held out from the bundled pair's training."""
    if options.file is None:
        return [sample.prompt for sample in held_out(options.prompts)]
    lines = options.file.read_text().splitlines()[: options.prompts]
    return [json.loads(line) for line in lines]


def stock_cases(pair: Pair, model: Any, options: argparse.Namespace) -> list[Case]:
    """All prompts with all samplings and stock's answers; reuses answers in the file --stock."""
    file: Path = options.stock or Path(os.devnull)
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    cases = list[Case]()
    for number, text in enumerate(read_prompts(options)):
        prompt = pair.chat_tokens([{"role": "user", "content": text}])
        for settings in SAMPLINGS:
            least = {"min_p": max(options.min_p, settings.get("min_p", 0.0))}
            params = SamplingParams(**settings | least, seed=1000 + number)
            stops, count = pair.target.eos_ids, options.max_tokens
            if len(cases) < len(known):
                wanted = known[len(cases)]
            else:
                wanted = mlx_thread().call(stock_answer, model, prompt, params, stops, count)
                with file.open("a") as lines:
                    lines.write(f"{json.dumps(wanted)}\n")
            cases.append((prompt, params, wanted))
        if number % 10 == 9:
            print(f"stock: {len(cases)} answers", flush=True)
    return cases


def compare(pair: Pair, mode: Mode, cases: list[Case], model: Any, options: Any) -> None:
    """Answer all cases in a mode, several at once; print how many equal stock's answers."""
    most, stops = options.max_tokens, pair.target.eos_ids

    def ask(case: Case) -> Result:
        prompt, params, _ = case
        told = {"sampling": params, "max_tokens": most, "block_size": options.block_size}
        return dflash_mlx.generate(pair, prompt, mode=mode, **told)

    def in_other_steps(case: Case, found: list[int]) -> bool:
        told = (*case[:2], stops, most)
        return any(mlx_thread().call(stock_answer, model, *told, step) == found for step in STEPS)

    verifies = accepted = apart = 0
    equal, asked = [0] * len(SAMPLINGS), [0] * len(SAMPLINGS)
    with ThreadPoolExecutor(options.together) as pool:
        for number, (result, case) in enumerate(zip(pool.map(ask, cases), cases, strict=True), 1):
            kind = (number - 1) % len(SAMPLINGS)
            asked[kind] += 1
            if result.tokens == case[2]:
                equal[kind] += 1
            elif in_other_steps(case, result.tokens):
                apart += 1
            else:
                prompt = (number - 1) // len(SAMPLINGS)
                print(f"prompt {prompt}, sampling {kind} differs", flush=True)
            verifies += result.stats.verifies
            accepted += result.stats.accepted
            if number % 100 == 0 or number == len(cases):
                length = 1 + accepted / max(1, verifies)
                print(
                    f"{pair.draft_name}, {mode}: {sum(equal)} of {number} equal stock's "
                    f"({', '.join(f'{e} of {a}' for e, a in zip(equal, asked, strict=True))}), "
                    f"{apart} more stock's in other steps, {length:.2f} tokens a verify",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", help="a folder; left out, the bundled one")
    parser.add_argument(
        "--draft", default="", help="as dflash's, or several with commas; an empty one is the known"
    )
    parser.add_argument("--file", type=Path, help="prompts: a JSON string a line")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--exact", action="store_true", help="keep the bits of plain decoding")
    parser.add_argument("--min-p", type=float, default=0.0, help="at least, of every sampling")
    parser.add_argument("--stock", type=Path, help="keeps stock's answers to these very prompts")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--block-size", type=int, help="as dflash's")
    parser.add_argument("--together", type=int, default=1, help="requests at once")
    options = parser.parse_args()
    drafts = [draft or None for draft in options.draft.split(",")]
    pair = dflash_mlx.load(options.target, drafts[0], cache_ram=0, exact=options.exact)
    model = mlx_thread().call(stock_model, Path(options.target or bundled("target")))
    cases = stock_cases(pair, model, options)
    for draft in drafts:
        if draft is not drafts[0]:
            pair = with_drafter(pair, resolve_pair(pair, draft))
        for mode in options.modes.split(","):
            compare(pair, mode, cases, model, options)


if __name__ == "__main__":
    main()
