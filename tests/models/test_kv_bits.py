"""A quantised KV cache: each mode has the tokens of plain decoding with the same cache."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from known_costs import drafts_pay
from lossless import Hinted
from mlx_lm.models.cache import KVCache, QuantizedKVCache
from typer.testing import CliRunner

from dflash_mlx import bench
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.prompt_chunks import PREFILL_STEP_SIZE, PromptChunks
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub.registry import CONTEXT, find
from dflash_mlx.kernels import verify_attention
from dflash_mlx.kernels.dispatch import Kernels, Op
from dflash_mlx.models.cache.sizes import cache_bytes, check_quantisable
from dflash_mlx.models.target import outline
from dflash_mlx.options import GenerationOptions, SamplingParams
from dflash_mlx.pair import load
from dflash_mlx.selfcheck.shapes import shapes_of

MODES: tuple[dict[str, Any], ...] = (
    {"mode": "baseline"},
    {"mode": "dflash", "block_size": 5},
    {"mode": "ddtree", "tree_budget": 9},
    {"mode": "auto"},
)
SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.9, top_p=0.9, seed=3))
PROMPT = tiny.prompt_of(23, 4)
OTHER = [*PROMPT[:11], *tiny.prompt_of(14, 5)]  # begins as PROMPT does
LENGTH = 16
every_quantised = pytest.mark.parametrize("family", tiny.QUANTISED)


def answers(
    engine: Engine, prompts: list[list[int]], sampling: SamplingParams, **options: Any
) -> list[list[int]]:
    """One sequence's answers; to read a prompt it goes back to where the text before parts."""
    sequence = Sequence(engine.target, *engine.drafters)
    found = []
    for prompt in prompts:
        request = Request(tuple(prompt), sampling=sampling, max_tokens=LENGTH, **options)
        engine.begin(sequence, request, len(prompt) - 1)
        found.append(tiny.joined(list(tiny.rounds(engine, sequence))))
    return found


def check_modes(family: str, sampling: SamplingParams, **changes: Any) -> None:
    """Every mode against plain decoding that reads each prompt anew.

    Greedy plain decoding is mlx-lm's, with mlx-lm's quantised caches. The drafter knows the first
    answer, and ranks wrong tokens above many of its right ones.
    """
    target = tiny.make_target(family, **changes)
    plain = Engine(target)
    wanted = [answers(plain, [prompt], sampling, mode="baseline")[0] for prompt in (PROMPT, OTHER)]
    if sampling.greedy:
        assert wanted == [tiny.plain(target, prompt, LENGTH) for prompt in (PROMPT, OTHER)]
    text = [*PROMPT, *wanted[0]]
    drafter = tiny.stand_in(lambda: Hinted(text, wrong=False, vocab=tiny.VOCAB, strict=False))
    for options in MODES:
        found = answers(Engine(target, drafter), [PROMPT, OTHER, PROMPT], sampling, **options)
        assert found == [*wanted, wanted[0]], options


@pytest.fixture(autouse=True)
def costs_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode auto measures nothing, and drafts."""
    drafts_pay(monkeypatch)


@every_quantised
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
def test_every_mode_has_the_tokens_of_plain_decoding(family: str, sampling: SamplingParams) -> None:
    """Greedy and seeded, with prompts that make the cache go back."""
    check_modes(family, sampling)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
def test_beside_short_convolutions(sampling: SamplingParams) -> None:
    """The same of LFM2, whose heads are as large as its hidden size makes them."""
    check_modes("lfm2 kv8", sampling, hidden_size=128, block_dim=128)


# Bytes


@pytest.mark.parametrize(("bits", "most"), [(8, 0.55), (4, 0.30)])
def test_bytes_of_a_token(bits: int, most: float) -> None:
    """The arrays of real caches of a bfloat16 model; the estimate says the same."""
    target = tiny.make_target(f"llama_sliding kv{bits}")
    target.model.set_dtype(mx.bfloat16)
    quantised, plain = target.make_cache(), tiny.make_target("llama_sliding").make_cache()
    tokens = 256  # caches grow by that much
    for cache in (quantised, plain):
        logits, _ = target.forward(mx.array([[1] * tokens]), cache)
        mx.eval(logits, cache.state)
    assert [type(layer) is QuantizedKVCache for layer in quantised.layers] == [False, True, False]
    ours, theirs = quantised.layers[1].nbytes, plain.layers[1].nbytes
    assert ours <= most * theirs
    sizes = target.caches
    saved = cache_bytes(sizes, tokens) - cache_bytes(sizes, tokens, kv_bits=bits)
    assert saved == theirs - ours


def test_more_context_fits() -> None:
    """In the same memory."""
    families = ("qwen3", "qwen3 kv8", "qwen3 kv4")
    engines = [Engine(tiny.make_target(family, head_dim=64)) for family in families]
    for engine in engines:
        engine.fit_context(1_600_000)
    plain, eight, four = (engine.context_length for engine in engines)
    assert plain < eight < four


def test_scores_of_a_quantised_cache_fit() -> None:
    """Its prompts are read in smaller pieces, since mlx-lm's attention to it writes the scores."""
    for family, tokens in (("qwen3", 2048), ("qwen3 kv8", 1024)):
        chunks = PromptChunks(tiny.make_target(family, head_dim=64, num_attention_heads=64))
        chunks.sizes = dict.fromkeys(range(9), PREFILL_STEP_SIZE)
        assert chunks.after([500]) == tokens


@pytest.mark.every_family
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_layers_that_can_be_quantised(family: str) -> None:
    """Those with a `KVCache`, unless their attention has sinks or is MLA, or lends its rows."""
    wide: dict[str, Any] = (
        {"hidden_size": 128, "block_dim": 128} if family.startswith("lfm2") else {"head_dim": 64}
    )
    target = tiny.make_target(family, **wide)
    plain = [isinstance(layer, KVCache) for layer in target.make_cache().layers]
    refused = family in ("gpt_oss", "deepseek_v3", "kimi_k25", "glm_moe_dsa", "gemma4_unified")
    groups = [bool(size.group) for size in target.caches]
    assert groups == plain if not refused else not any(groups)


def test_a_layer_whose_rows_others_read_stays_as_it_is() -> None:
    """Gemma's last full layer with rows of its own."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 3
    config = tiny.config_of("gemma4_unified", num_hidden_layers=9, layer_types=kinds)
    sizes = outline(Checkpoint(Path("tiny"), config)).caches
    assert [size.group for size in sizes] == [0, 0, 32, 0, 0, 0]


# What is refused


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("gpt_oss", {}, "its attention has sinks"),
        ("kimi_k25", {}, "it caches latents"),
        ("gemma4_unified", {}, "no layer of full attention"),
        ("qwen3", {"head_dim": 48}, "its heads have 48 numbers"),
    ],
)
def test_a_model_without_such_layers_is_refused(
    family: str, changes: dict[str, Any], reason: str
) -> None:
    """In words; nothing of the model but its config is needed."""
    target = outline(Checkpoint(Path(family), tiny.config_of(family, **changes)))
    with pytest.raises(DFlashError, match=f"cannot be quantised: {reason}") as caught:
        check_quantisable(target.caches, family)
    assert "--kv-bits" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_bits": 5}, "kv_bits cannot be 5"),
        ({"kv_bits": 8, "exact": True}, "cannot be exact"),
    ],
)
def test_what_load_refuses(options: dict[str, Any], message: str) -> None:
    """Other bits, and exact mode."""
    with pytest.raises(UsageError, match=message) as caught:
        load(**options)
    assert caught.value.hint


def test_no_kernel_reads_quantised_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verify attention runs in sliding layers only, and only its shape there is checked."""
    target = tiny.make_target("llama_sliding kv8")
    target.kernels = Kernels(references=True)
    assert [shape.window for shape in shapes_of(target, None).attention] == [tiny.WINDOW]
    windows = []
    honest = Kernels.attempt

    def counted(self: Kernels, op: Op, *args: Any) -> Any:
        if op is verify_attention.OP:
            windows.append(args[-1].window)
        return honest(self, op, *args)

    monkeypatch.setattr(Kernels, "attempt", counted)
    target.forward(mx.array([PROMPT[:4]]), target.make_cache())
    assert windows == [tiny.WINDOW] * 2


# Where users meet it

BUNDLED = "KV cache 8 bits in 12 of 12 layers, saves "


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "bench"])
def test_bad_bits(command: str, cli_app: Any) -> None:
    """Every command that loads a pair says what is allowed."""
    result = CliRunner().invoke(cli_app, [command, "--kv-bits", "5"])
    assert result.exit_code == 2
    assert "'5' is not 4, 8 or none" in result.output


def test_what_is_shown() -> None:
    """The header of a chat, `/model`, `/stats` and a benchmark say how many layers have it."""
    pair = load(kv_bits=8)
    backend = import_module("dflash_mlx.cli.backend.local").LocalBackend(pair)
    settings = GenerationOptions(mode="dflash")
    for text in (backend.info.describe(settings, header=short) for short in (True, False)):
        assert BUNDLED in text
    rows = dict(backend.rows(settings))
    assert rows["cache"] == backend.info.kv_note
    assert rows["cache"].endswith(" per token")
    schedule = bench.Schedule(modes=bench.parse_modes("dflash"), temperatures=(0.0,))
    facts = bench.facts_of(pair, schedule)
    assert facts["pair"]["kv_cache"] in BUNDLED
    assert bench.facts_of(load(), schedule)["pair"]["kv_cache"] is None  # as in older files


def test_the_list_of_models(cli_app: Any) -> None:
    """`models list --kv-bits` counts the memory with it, except where no cache can be quantised."""

    def memory(*flags: str) -> dict[tuple[str, str], int]:
        result = CliRunner().invoke(cli_app, ["models", "list", "--json", *flags])
        assert result.exit_code == 0, result.output
        rows = json.loads(result.stdout)
        return {(row["target"], row["draft"]): row["memory_bytes"] for row in rows}

    plain, quantised = memory(), memory("--kv-bits", "8")
    entry = find("Qwen/Qwen3-8B")
    assert entry is not None
    pair = entry.target, entry.draft
    saved = plain[pair] - quantised[pair]
    assert saved == pytest.approx((1 - 0.53125) * CONTEXT * entry.kv_bytes)
    for target in ("openai/gpt-oss-20b", "moonshotai/Kimi-K2.5"):
        unchanged = [pair for pair in plain if pair[0] == target]
        assert unchanged
        assert all(plain[pair] == quantised[pair] for pair in unchanged)
