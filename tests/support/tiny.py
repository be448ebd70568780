"""Tiny random targets and drafters, and plain decoding to compare with."""

import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from mlx_lm.utils import _get_classes, load_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dflash_mlx import pair as pair_module
from dflash_mlx.chat.reasoning_parser import eos_ids_of
from dflash_mlx.constrained.compiler import Compiler
from dflash_mlx.drafters.dflash.config import DraftConfig, parse
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.model import DraftModel
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.cache.rows import quantised_caches
from dflash_mlx.models.memory import MemoryEstimate, estimate_memory
from dflash_mlx.models.target import Target, outline
from dflash_mlx.options import Mode, SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.policy.policy import Policy
from dflash_mlx.resolved_pair import LoadOptions, resolve_pair
from dflash_mlx.speculation.acceptance import Match
from dflash_mlx.speculation.drafts import Draft, DraftBlock, Independent
from dflash_mlx.types import Block

ALL = os.environ.get("LOSSLESS") == "all"
exhaustive = pytest.mark.skipif(not ALL, reason="takes long: LOSSLESS=all runs it")
GOLDEN = Path(__file__).parents[1] / "golden"
CASES = (
    "qwen3_full",
    "qwen3_sliding_causal",
    "llama_full",
    "qwen3_dflash2",
    "qwen35_hybrid",
    "gemma4",
)
VOCAB = 104
WINDOW = 12
MASK = 99
BASE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 98,
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
SLIDING = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": WINDOW,
}
# Of three layers the second has full attention.
DELTA = {
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.5,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
SHARED = {**MOE, "shared_expert_intermediate_size": 24}
ROUTED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "attention_bias": False,
}
LATENT = {
    **ROUTED,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
# Of three layers the second has full attention.
CONV = {
    "conv_L_cache": 3,
    "conv_bias": False,
    "norm_eps": 1e-6,
}
# Sixteen heads: with fewer, the indexer has many ties.
INDEXED = {
    **LATENT,
    "index_head_dim": 16,
    "index_n_heads": 16,
    "index_topk": WINDOW,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
GEMMA = {
    **SLIDING,
    "global_head_dim": 32,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 272,  # enough for the byte tokenizer
    "use_double_wide_mlp": False,
}
# Six layers: the last two share the keys and values of two earlier ones.
GEMMA_SMALL = {
    **GEMMA,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 8,
    "use_double_wide_mlp": True,
}
GEMMA_MOE = {
    **GEMMA,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3"},
    "qwen3_untied": {"model_type": "qwen3", "tie_word_embeddings": False},
    "qwen3_moe": {"model_type": "qwen3_moe", **MOE},
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "llama_sliding": {"model_type": "llama", **SLIDING},
    "qwen3_5": {"model_type": "qwen3_5", "text_config": {**DELTA, "rope_parameters": ROPE}},
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": {**DELTA, **SHARED, "rope_parameters": ROPE, "tie_word_embeddings": False},
    },
    "qwen3_next": {"model_type": "qwen3_next", **DELTA, **SHARED},
    "gemma4": {"model_type": "gemma4", "text_config": GEMMA_MOE},
    "gemma4_text": {"model_type": "gemma4_text", **GEMMA},
    "gemma4_unified": {"model_type": "gemma4_unified", "text_config": GEMMA_SMALL},
    "gpt_oss": {
        "model_type": "gpt_oss",
        **SLIDING,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    },
    "lfm2": {
        "model_type": "lfm2",
        **CONV,
        "full_attn_idxs": [1],
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": True,
    },
    "lfm2_moe": {
        "model_type": "lfm2_moe",
        **CONV,
        "layer_types": ["conv", "full_attention", "conv"],
        **MOE,
        "use_expert_bias": True,
        "num_dense_layers": 1,
    },
    "minimax": {
        "model_type": "minimax",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 0,
        "rotary_dim": 8,
        "tie_word_embeddings": False,
    },
    "deepseek_v3": {"model_type": "deepseek_v3", **LATENT, "tie_word_embeddings": False},
    "kimi_k25": {"model_type": "kimi_k25", "text_config": {**LATENT, "tie_word_embeddings": False}},
    "glm4_moe": {
        "model_type": "glm4_moe",
        **ROUTED,
        "rope_scaling": None,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False,
    },
    "glm_moe_dsa": {"model_type": "glm_moe_dsa", **INDEXED, "tie_word_embeddings": False},
    "muse_glimmer": {"model_type": "muse_glimmer", **SLIDING, "tie_word_embeddings": False},
}
# The families in `make test`: full, sliding, latent and recurrent layers, dense and MoE, tied and
# separate heads, scaled embeddings.
QUICK_FAMILIES = ("qwen3", "qwen3_next", "gemma4", "deepseek_v3")
# Families with a quantised KV cache: in all layers, beside windows, beside recurrent layers.
QUANTISED = ("qwen3 kv8", "llama_sliding kv4", "qwen3_5 kv8")
# Seeds without ties between the two best tokens in the answers that tests compare.
SEEDS = {
    "qwen3_5": 5,
    "qwen3_5_moe": 6,
    "qwen3_next": 5,
    "gemma4": 2,
    "gemma4_text": 3,
    "gemma4_unified": 3,
    "gpt_oss": 2,
    "lfm2": 3,
    "lfm2_moe": 2,
    "minimax": 5,
    "glm4_moe": 3,
    "glm_moe_dsa": 5,
    "muse_glimmer": 7,
}
# A drafter with full attention.
DRAFT_CONFIG = DraftConfig(
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=40,
    rms_norm_eps=1e-6,
    block_size=5,
    mask_token_id=39,
    target_layer_ids=(0, 2),
    num_target_layers=4,
    sliding=(False, False),
    window=None,
    is_causal=None,
    rope_theta=10000.0,
    rope_scaling=None,
    max_position_embeddings=64,
    attention_bias=False,
    input_embedding_scale=1.0,
    output_multiplier=1.0,
    final_logit_softcapping=None,
)


@cache
def tokenizer() -> TokenizerWrapper:
    """The tokenizer of the golden cases: one character per token, a chat template, no thinking."""
    return load_tokenizer(GOLDEN / "qwen3_full" / "target", eos_token_ids=[98])


def byte_tokenizer(
    end: str = "<|end|>",
    marks: Sequence[str] = ("<think>", "</think>"),
    template: str | None = None,
) -> TokenizerWrapper:
    """One byte per token; then come the end token 256 and a token for each of the `marks`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens([AddedToken(end, special=True)])
    bare.add_tokens([AddedToken(mark) for mark in marks])
    fast = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token=end)
    fast.chat_template = template
    detokenizer: Any = BPEStreamingDetokenizer  # annotated too narrowly in mlx-lm
    return TokenizerWrapper(fast, detokenizer)


@cache
def sentencepiece_tokenizer(strips: bool, size: int = 0) -> TokenizerWrapper:
    """A small tokenizer in the form of Llama 2's (`strips`) or Gemma's.

    Spaces are "▁", and characters without a token are bytes: <0x00> is token 3. strips: a space is
    put in front of a text, and `decode` drops it. `size`: words w0, w1 and so on fill it up.
    """
    special = ["<unk>", "<s>", "</s>"]
    words = "▁▁▁▁ ▁it ▁is ▁so ▁a ▁b ▁Paris ▁, é \n\n".split(" ")
    starts = [word[:end] for word in words for end in range(1, len(word) + 1)]
    letters = [chr(number) for number in range(33, 127)]
    names = [*special, *(f"<0x{n:02X}>" for n in range(256)), *dict.fromkeys([*starts, *letters])]
    names += [f"▁w{number}" for number in range(len(names), size)]
    vocab = {name: number for number, name in enumerate(names)}
    merges = [(start[:-1], start[-1]) for start in dict.fromkeys(starts) if len(start) > 1]
    model = models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>")
    bare = Tokenizer(model)
    space = normalizers.Replace(" ", "▁")
    prepend = normalizers.Sequence([normalizers.Prepend("▁"), space])
    bare.normalizer = prepend if strips else space
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    bare.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if strips else [])])
    bare.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    fast = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="</s>")
    fast.chat_template = "{% for m in messages %}<s>[INST] {{ m.content }} [/INST]{% endfor %}"
    return TokenizerWrapper(fast)


def randomise(model: nn.Module, seed: int, scale: float, sober: bool = False) -> None:
    """Set random weights, large enough that greedy text does not repeat itself at once."""
    key = mx.random.key(seed)

    def draw(name: str, value: mx.array) -> mx.array:
        nonlocal key
        key, mine = mx.random.split(key)
        if "norm" in name:
            return 1 + 0.1 * mx.random.normal(value.shape, key=mine)
        if "layer_scalar" in name:  # Gemma's; at 1 its scaled embeddings would outweigh the layers
            return 0.4 + 0.1 * mx.random.normal(value.shape, key=mine)
        return mx.random.normal(value.shape, key=mine) * (scale / value.shape[-1] ** 0.5)

    model.update(tree_map_with_path(draw, model.parameters()))
    if sober:
        model.update(tree_map_with_path(sobered(model), model.parameters()))
    mx.eval(model.parameters())


def sobered(model: nn.Module) -> Callable[[str, mx.array], mx.array]:
    """A function that scales random weights to the magnitudes of a trained model's.

    Embeddings get a standard deviation of 1, and every layer adds less than that. Without this,
    norms of vectors near 0 amplify rounding errors from 1e-7 to 1e-5. In families that normalise a
    layer's output, the scale is in the weight of that norm. Gemma does not scale its attention
    scores, so there the scale is in `q_norm`.
    """
    names = [name for name, _ in tree_flatten(model.parameters())]
    normed = any("pre_feedforward_layernorm" in name for name in names)  # type: ignore
    centred = any("CenteredRMSNorm" in type(module).__name__ for module in model.modules())

    def change(name: str, value: mx.array) -> mx.array:
        if "embed_tokens.weight" in name:
            return value / mx.std(value)
        if any(part in name for part in ("o_proj", "out_proj", "down_proj")):
            return 0.4 * value
        if normed and any(
            f"post_{part}_layernorm" in name for part in ("attention", "feedforward")
        ):
            return 0.4 * value - centred
        if centred and "_layernorm" in name:
            return value - 1
        if normed and not centred and "q_norm" in name:
            return value * value.shape[-1] ** -0.5
        return value

    return change


def config_of(family: str, **changes: Any) -> dict[str, Any]:
    """A tiny config.json, with a `text_config` if real ones of the family have it.

    A family of QUANTISED gets heads as large as the smallest group of a quantised cache by default.
    """
    name, _, bits = family.partition(" kv")
    own = FAMILIES[name]
    changes = {"head_dim": 64, **changes} if bits else changes
    if "text_config" not in own:
        return {**BASE, **own, **changes}
    inner = {**BASE, **own["text_config"], **changes}
    outer = {"model_type": own["model_type"], "vocab_size": inner["vocab_size"]}
    return {**outer, "text_config": inner}


def make_target(
    family: str,
    seed: int | None = None,
    scale: float = 1.6,
    sober: bool = False,
    **changes: Any,
) -> Target:
    """A random target in memory; always a new one, because taps change it."""
    name, _, bits = family.partition(" kv")
    config = config_of(family, **changes)
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(deepcopy(config)))
    randomise(model, seed or SEEDS.get(name, 1), scale, sober)
    model.eval()
    checkpoint = Checkpoint(Path(f"tiny-{family}"), config)
    return Target(model, checkpoint, eos_ids_of(tokenizer()), kv_bits=int(bits or 0))


def body_of(target: Target) -> Any:
    layers = target.parts.layers
    modules: list[Any] = target.model.modules()
    return next(one for one in modules if any(value is layers for value in one.values()))


def with_ends(target: Target, own: TokenizerWrapper) -> Target:
    return Target(target.model, target.checkpoint, eos_ids_of(own))


def load_target(folder: Path) -> Target:
    from dflash_mlx.pair import load_target

    return load_target(Checkpoint.read(folder))[0]


def with_drafter(pair: Pair, draft: str | Path | None = None, **options: Any) -> Pair:
    resolved = resolve_pair(pair, draft, LoadOptions(**options))
    return pair_module.with_drafter(pair, resolved)


def memory_of(
    target: Path, draft: Path | None = None, *args: Any, **options: Any
) -> MemoryEstimate:
    drafter = None if draft is None else Checkpoint.read(draft)
    return estimate_memory(outline(Checkpoint.read(target)), drafter, *args, **options)


def make_pair(
    target: Target,
    drafter: Any,
    target_name: str = "",
    draft_name: str | None = "",
    own: TokenizerWrapper | None = None,
) -> Pair:
    """A pair; its default tokenizer is that of the golden cases."""
    return Pair.of(target, drafter, own or tokenizer(), target_name, draft_name)


@cache
def compiler(vocab_size: int, eos_ids: frozenset[int]) -> Compiler:
    return Compiler(tokenizer(), vocab_size, eos_ids)


def compiler_of(target: Target) -> Compiler:
    return compiler(target.vocab_size, target.eos_ids)


def draft_settings(target: Target, **changes: Any) -> dict[str, Any]:
    keys = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    return {
        **{key: target.config[key] for key in keys},
        "architectures": ["DFlashDraftModel"],
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_target_layers": target.layers,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2], "block_size": 8},
        **changes,
    }


def dflash2_settings(target: Target, **changes: Any) -> dict[str, Any]:
    base = draft_settings(target)
    extra = {"conv_group_size": 8, "selector_rank": 8, "selector_top_k": 6}
    return {
        **base,
        "architectures": ["DFlash2DraftModel"],
        "layer_types": ["sliding_attention"] * base["num_hidden_layers"],
        "sliding_window": WINDOW,
        "is_causal": False,
        "dflash_config": {**base["dflash_config"], **extra},
        **changes,
    }


def dspark_settings(target: Target, head: str = "vanilla", **changes: Any) -> dict[str, Any]:
    return {
        **draft_settings(target),
        "architectures": ["DSparkDraftModel"],
        "markov_rank": 4,
        "markov_head_type": head,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        **changes,
    }


def random_drafter(target: Target, seed: int = 2, **changes: Any) -> DFlashDrafter:
    config = parse(draft_settings(target, **changes))
    model = DraftModel(config, target.hidden_size)
    randomise(model, seed, 1.0)
    target.tap(config.target_layer_ids)
    return DFlashDrafter(model, target.embed, target.head, target.head_type)


def save_model(folder: Path, model: nn.Module, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = cast(dict[str, mx.array], dict(tree_flatten(model.parameters())))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


def save_pair(
    folder: Path, settings_of: Callable[[Target], dict[str, Any]], **changes: Any
) -> tuple[Path, Path]:
    target = make_target("qwen3", **changes)
    save_model(folder / "target", target.model, target.config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        data = (GOLDEN / "qwen3_full" / "target" / name).read_bytes()
        (folder / "target" / name).write_bytes(data)
    settings = settings_of(target)
    save_model(folder / "draft", random_drafter(target, **settings).model, settings)
    return folder / "target", folder / "draft"


class ScriptedCache:
    """Replaces a DraftCache: always drafts the right text, or always wrong tokens.

    Counts rows like a real cache and looks up drafts by this count alone. So a missing or surplus
    row changes the drafts. If `strict`, the anchor must be the known token.
    """

    def __init__(self, text: Sequence[int], wrong: bool, vocab: int, strict: bool):
        self.text, self.wrong, self.vocab, self.strict = list(text), wrong, vocab, strict
        self.offset = 0

    @property
    def state(self) -> list[mx.array]:
        """Empty: there is nothing to evaluate."""
        return []

    def append(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        self.offset += taps.shape[1]

    def rewind(self, length: int) -> None:
        assert 0 <= length <= self.offset
        self.offset = length

    def block(self, anchor: int, width: int) -> DraftBlock:
        return Independent(self.draft_logits(anchor, width))

    def draft_logits(self, anchor: int, width: int) -> mx.array:
        """One-hot logits for positions offset + 1 to offset + width - 1."""
        known = self.offset < len(self.text) and self.strict
        assert not known or anchor == self.text[self.offset]
        known = self.text[self.offset + 1 : self.offset + width]
        drafts = [*known, *[0] * (width - 1 - len(known))]
        drafts = [(token + self.wrong) % self.vocab for token in drafts]
        return 20.0 * mx.eye(self.vocab)[mx.array(drafts)]


def scripted_drafter(
    text: Sequence[int],
    *,
    wrong: bool = False,
    block_size: int = 8,
    vocab: int = VOCAB,
    strict: bool = True,
) -> DFlashDrafter:
    """A drafter that always drafts `text` (prompt included), or always wrong tokens."""
    return stand_in(lambda: ScriptedCache(text, wrong, vocab, strict), block_size)


def stand_in(make_cache: Callable[[], ScriptedCache], block_size: int = 8) -> DFlashDrafter:
    """A drafter that only makes caches; the caches draft."""
    fake = SimpleNamespace(
        model=nn.Identity(),
        config=SimpleNamespace(block_size=block_size),
        block_size=block_size,
        taps=(),
        accept="match",
        row_bytes=lambda item: 32 * item,
        make_cache=make_cache,
        follow=lambda cache, target: None,
        preview=lambda cache, anchor, width: None,
        draft=lambda caches, anchors, width, draws=(): [
            cache.block(anchor, width) for cache, anchor in zip(caches, anchors, strict=True)
        ],
    )
    return cast(DFlashDrafter, fake)


def chosen(rule: Match, logits: mx.array, history: list[int], place: int = 0) -> int:
    return rule.accept(Draft.none(), rule.step(logits, history, place)[1]).bonus


def golden_pair(case: str) -> Pair:
    from dflash_mlx.pair import load

    return load(GOLDEN / case / "target", GOLDEN / case / "draft", cache_ram=0)


def golden_pair_of(pair: Pair, layer_ids: tuple[int, ...]) -> Pair:
    other = golden_pair(Path(pair.target_name).parent.name)
    other.target.tap(layer_ids)
    return other


def expected(case: str) -> dict[str, Any]:
    return json.loads((GOLDEN / case / "expected.json").read_text())


def plain(
    target: Target,
    prompt: list[int],
    max_tokens: int,
    stops: frozenset[int] = frozenset(),
    margin: float = 1e-3,
) -> list[int]:
    """The greedy answer of stock mlx-lm.

    Checks that the two best log-probabilities always differ by more than `margin`, so that tests do
    not depend on rounding.
    """
    tokens: list[int] = []
    layers = make_prompt_cache(target.model)
    if target.kv_bits:
        layers = quantised_caches(layers, target.kv_groups, target.kv_bits)
    steps = generate_step(
        mx.array(prompt), target.model, max_tokens=max_tokens, prompt_cache=layers
    )
    for token, logprobs in steps:
        tokens.append(int(token))
        best = mx.sort(logprobs)[-2:]
        assert apart(best[1], best[0]) > margin, "choose another seed: two tokens are level"
        if token in stops:
            break
    return tokens


def start(
    sequence: TokenSequence,
    prompt: list[int],
    sampling: SamplingParams,
    accept: Any = "match",  # tests pass rules by name
    *,
    block_size: int | None = None,
    max_tokens: int = 64,
    stops: frozenset[int] = frozenset(),
    mode: Mode = "dflash",
    chunk: int = 2048,
    policy: Policy | None = None,
    **options: Any,
) -> Iterator[Block]:
    """Answer a prompt with one sequence and a new engine."""
    target = sequence.target
    engine = Engine(target, *sequence.drafters, compiler=compiler_of(target))
    engine.scheduler.prompt_chunks.sizes = {0: chunk}
    if not sequence.drafters:
        mode, block_size = "baseline", None
    request = Request(
        tuple(prompt),
        sampling=sampling,
        max_tokens=max_tokens,
        stop_ids=stops,
        mode=mode,
        block_size=block_size,
        accept=accept,
        **options,
    )
    engine.begin(sequence, request, len(prompt) - 1)
    if policy is not None:
        sequence.answer.policy = policy
        sequence.answer.acceptance = policy.new_sequence(len(sequence.drafters))
    yield from rounds(engine, sequence)


def rounds(engine: Engine, sequence: TokenSequence) -> Generator[Block]:
    try:
        while not sequence.answer.finish_reason:
            (block,) = engine.step([sequence])
            if not isinstance(block, Block):
                raise block
            if block.tokens:
                yield block
    finally:
        engine.stop(sequence)


def speculate(
    target: Target,
    drafter: DFlashDrafter,
    prompt: list[int],
    *,
    block_size: int,
    max_tokens: int,
    stops: frozenset[int] = frozenset(),
    chunk: int = 2048,
    policy: Policy | None = None,
    **options: Any,
) -> list[Block]:
    """A greedy answer with DFlash; checks that the caches hold all tokens but the last."""
    sequence = TokenSequence(target, drafter)
    blocks = list(
        start(
            sequence,
            prompt,
            SamplingParams(),
            block_size=block_size,
            max_tokens=max_tokens,
            stops=stops,
            chunk=chunk,
            policy=policy,
            **options,
        )
    )
    assert sequence.tokens == [*prompt, *joined(blocks)][:-1]
    assert sequence.draft_cache is not None
    assert sequence.target_cache.offset == sequence.draft_cache.offset == len(sequence.tokens)
    return blocks


def apart(a: mx.array, b: mx.array) -> float:
    return float(np.abs(np.array(a) - np.array(b)).max())


def joined(blocks: Sequence[Block]) -> list[int]:
    return [token for block in blocks for token in block.tokens]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return mx.random.randint(0, 96, (length,), key=mx.random.key(seed)).tolist()  # type: ignore


def count_forwards(target: Target, monkeypatch: Any) -> list[int]:
    """A list that gets the number of tokens of each pass through the target's model from now on."""
    sizes: list[int] = []
    model_class: Any = type(target.model)
    call: Callable[..., mx.array] = model_class.__call__

    def counted(self: nn.Module, inputs: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        sizes.append(inputs.shape[1])
        return call(self, inputs, *args, **kwargs)

    monkeypatch.setattr(model_class, "__call__", counted)
    return sizes
