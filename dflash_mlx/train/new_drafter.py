"""The DFlash drafter that a run begins with: new weights, or those of another drafter."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.cpu.modules import restore_modules
from dflash_mlx.drafters.dflash.config import DFLASH2, default_layer_ids, parse
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.load import check
from dflash_mlx.drafters.dflash.load import load as load_drafter
from dflash_mlx.drafters.dflash.model import DraftModel
from dflash_mlx.drafters.weights import own_parts
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import Checkpoint, text_config
from dflash_mlx.files.formats import V1, V2
from dflash_mlx.models.target import Target

from .data import TrainingSequence
from .dflash import DFlashStudent, block_hidden
from .loss import Head, cross_entropy
from .memory import BlockSizes
from .settings import BLOCKS, DrafterShape


class DFlashPlan:
    """The drafter that a run will train: of the shape that is asked for, or the one in `warm`.

    raw: its config.json, which `make` completes. taps: the target's layers that it reads, as
    `Target.tap` numbers them.
    """

    def __init__(
        self, target: Target, shape: DrafterShape, warm: Path | None, mask_token: int | None
    ):
        """Raises UsageError for a shape that is not possible, DFlashError for a wrong `warm`."""
        self._target = target
        self._shape = shape
        self._warm = warm
        self._mask_token = mask_token
        # The mask token of a new drafter is chosen when all tokens are known.
        self.raw = warm_config(warm, target, shape) if warm else draft_config(target, shape, 0)
        self.taps = parse(self.raw).target_layer_ids

    @property
    def mask_token_id(self) -> int:
        return parse(self.raw).mask_token_id

    def sizes(self) -> BlockSizes:
        config = parse(self.raw)
        return BlockSizes(
            config.block_size,
            config.num_layers,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.intermediate_size,
        )

    def untrained(self) -> DraftModel:
        """A model with random weights, which are never computed; frozen parts are frozen."""
        model = DraftModel(parse(self.raw), self._target.hidden_size)
        if model.config.draft_vocab_size:
            freeze_head(model)
        return model

    def answerer(self) -> DFlashDrafter | None:
        return load_drafter(Checkpoint.read(self._warm), self._target) if self._warm else None

    def make(
        self,
        tokenizer: TokenizerWrapper,
        whole: Sequence[TrainingSequence],
        trained: Sequence[TrainingSequence],
        seed: int,
        begun: dict[str, Any] | None,
    ) -> DFlashStudent:
        """The drafter that the run begins with; taps the target.

        whole: all sequences, of which some are trained on. begun: `raw` of a run that is resumed.
        """
        if self._warm:
            return DFlashStudent(warm_drafter(self._warm, self.raw, self._target))
        if begun is not None and self._mask_token is None:
            mask = begun["dflash_config"]["mask_token_id"]
        else:
            used = {token for s in whole for token in s.tokens}
            mask = choose_mask_token(self._target, tokenizer, used, self._mask_token)
        self.raw = draft_config(self._target, self._shape, mask)
        count = self._shape.draft_vocab
        tokens = None if count is None else frequent_tokens(self._target, trained, count)
        return DFlashStudent(new_drafter(self.raw, self._target, seed, tokens))


# The `config.json` of a new drafter, with Z Lab's keys


def layer_ids(target_layers: int, taps: str) -> tuple[int, ...]:
    """The target layers to read: a number of them by Z Lab's default rule, or their ids."""
    ids = tuple(map(int, taps.split(",")))
    if len(ids) == 1:
        if ids[0] < 1:
            raise UsageError("a drafter needs at least one tap.", hint="give --taps 5")
        ids = default_layer_ids(target_layers, min(ids[0], target_layers))
        return tuple(sorted({min(max(i, 0), target_layers - 1) for i in ids}))
    if len(set(ids)) < len(ids) or not all(0 <= i < target_layers for i in ids):
        raise UsageError(
            f"the taps {', '.join(map(str, ids))} are not layers of this target.",
            hint=f"name different layers from 0 to {target_layers - 1}",
        )
    return ids


def draft_config(target: Target, shape: DrafterShape, mask_token_id: int) -> dict[str, Any]:
    """A config in Z Lab's layout. Raises UsageError for a shape that is not possible."""
    raw = text_config(target.config)
    layers = shape.layers or min(5, max(1, target.layers // 4))
    softcap = raw.get("final_logit_softcapping")
    config = {
        "architectures": [V2 if shape.dflash2 else V1],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": raw.get("bos_token_id"),
        "eos_token_id": raw.get("eos_token_id"),
        "pad_token_id": raw.get("pad_token_id"),
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": ["full_attention"] * layers,
        "max_window_layers": layers,
        "num_hidden_layers": layers,
        "num_target_layers": target.layers,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
        **layer_sizes(target, shape),
        "block_size": shape.rows,
        "dflash_config": {
            "mask_token_id": mask_token_id,
            "target_layer_ids": list(layer_ids(target.layers, shape.taps)),
            "block_size": shape.rows,
            **({"final_logit_softcapping": softcap} if softcap else {}),
        },
    }
    if shape.dflash2:
        config["is_causal"] = False
        config["dflash_config"] |= dflash2_entries(shape, target.hidden_size)
    if (drafted := shape.draft_vocab) is not None:
        if shape.dflash2:
            raise UsageError(
                "a DFlash 2 drafter cannot have a smaller vocabulary than its target.",
                hint="give either --dflash2 or --draft-vocab",
            )
        least = len(target.eos_ids)
        if not least <= drafted < target.vocab_size:
            raise UsageError(
                f"a drafter of this target cannot have {drafted:,} tokens of its own.",
                hint=f"give --draft-vocab from {least} to {target.vocab_size - 1:,}",
            )
        config["draft_vocab_size"] = drafted
    return config


def layer_sizes(target: Target, shape: DrafterShape) -> dict[str, Any]:
    """The config's entries of Qwen3 layers. Raises UsageError for a shape that is not possible."""
    raw = text_config(target.config)
    heads = shape.heads or target.heads
    kv_heads = shape.kv_heads or min(heads, raw.get("num_key_value_heads") or heads)
    head_dim = shape.head_dim or raw.get("head_dim") or target.hidden_size // heads
    rope = raw.get("rope_parameters") or {}
    if heads % kv_heads or head_dim % 2:
        raise UsageError(
            f"{heads} heads of size {head_dim} with {kv_heads} for keys and values do not fit.",
            hint="heads must be a multiple of --kv-heads and --head-dim even",
        )
    if shape.rows < 2:
        raise UsageError(
            "a block needs two positions at least.",
            hint=f"give --block-size {BLOCKS[shape.kind]}",
        )
    return {
        "head_dim": head_dim,
        "hidden_size": target.hidden_size,
        "intermediate_size": shape.intermediate
        or raw.get("intermediate_size")
        or 3 * target.hidden_size,
        "max_position_embeddings": target.context_length,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": raw.get("rms_norm_eps", 1e-6),
        "rope_scaling": None,
        "rope_theta": raw.get("rope_theta") or rope.get("rope_theta") or 10000.0,
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "vocab_size": target.vocab_size,
    }


def dflash2_entries(shape: DrafterShape, hidden_size: int) -> dict[str, Any]:
    """The additional entries of `dflash_config`; UsageError for a size that is not possible."""
    if hidden_size % DFLASH2["conv_group_size"] or shape.selector_rank < 1:
        raise UsageError(
            f"a DFlash 2 drafter of width {hidden_size} and rank {shape.selector_rank} is not"
            " possible.",
            hint=f"a multiple of {DFLASH2['conv_group_size']} as width, 1 or more as rank are",
        )
    return {**DFLASH2, "selector_rank": shape.selector_rank, "projector_type": "dflash2"}


# A drafter's own, smaller vocabulary

STEP = 64  # columns of the head at once


def frequent_tokens(target: Target, sequences: Iterable[TrainingSequence], count: int) -> list[int]:
    """The sorted ids of `count` tokens: those that end answers, then the most frequent in answers.

    If these are fewer, the prompts' most frequent ones follow, then the lowest ids.
    """
    answers = Counter[int]()
    prompts = Counter[int]()
    for sequence in sequences:
        answers.update(sequence.tokens[sequence.answer :])
        prompts.update(sequence.tokens[: sequence.answer])
    ranks = (sorted(seen, key=lambda token: (-seen[token], token)) for seen in (answers, prompts))
    tokens = dict.fromkeys(sorted(t for t in target.eos_ids if t < target.vocab_size))
    for rank in (*ranks, range(target.vocab_size)):
        tokens |= dict.fromkeys(rank)
    return sorted(list(tokens)[:count])


def freeze_head(model: DraftModel) -> None:
    """Exclude the token map and the head of a drafter with its own vocabulary from training."""
    model.freeze(keys=["d2t"], recurse=False)
    model.lm_head.freeze()


def head_rows(target: Target, ids: mx.array) -> mx.array:
    """The rows [n, H] of the target's head of these tokens, float32, however it is stored."""
    size = target.hidden_size
    parts = []
    for first in range(0, size, STEP):
        unit = mx.eye(min(STEP, size - first), size, first, dtype=target.head_type or mx.float32)
        parts.append(mx.take(target.head(unit), ids, axis=-1).astype(mx.float32).T)
        mx.eval(parts[-1])
    return mx.concatenate(parts, axis=1)


# New drafters, and drafters that continue from another

PROBES = 32  # random hidden states for the spread of the logits; rows of context for the first loss
NEAR_UNIFORM = 1.0  # nats that the first loss may be above that of a uniform guess
MAX_DOUBLINGS = 8


def warm_config(folder: Path, target: Target, shape: DrafterShape) -> dict[str, Any]:
    """The config of a drafter that continues from the one in a folder.

    A DFlash v1 drafter becomes a DFlash 2 drafter if the shape asks for one. DFlashError where it
    cannot be trained, or was made for another target.
    """
    checkpoint = Checkpoint.read(folder)
    raw = checkpoint.config
    if checkpoint.format == "mtp":
        raise DFlashError(f"'{folder.name}' is an MTP head.", hint="give --kind mtp")
    config = parse(raw)
    of_dspark = config.dspark or config.from_anchor
    if of_dspark or config.draft_vocab_size:
        kind = "of DSpark's kind" if of_dspark else "with its own vocabulary"
        raise DFlashError(
            f"'{folder.name}' is a drafter {kind}, which cannot be trained yet.",
            hint="start from another drafter, or from nothing",
        )
    check(checkpoint, target.checkpoint)
    if not shape.dflash2 or config.dflash2:
        return raw
    nested = {**(raw.get("dflash_config") or {}), **dflash2_entries(shape, target.hidden_size)}
    made = {**raw, "architectures": [V2], "dflash_config": nested}
    if not parse(made).dflash2:
        raise DFlashError(
            f"'{folder.name}' is not in Z Lab's format, so it cannot become a DFlash 2 drafter.",
            hint="leave --dflash2 out, or start from another drafter",
        )
    return made


def warm_drafter(folder: Path, raw: dict[str, Any], target: Target) -> DFlashDrafter:
    """The drafter in a folder with the config of `warm_config`, in float32.

    The parts that DFlash 2 adds to a DFlash v1 drafter do not change its drafts at first.
    """
    drafter = load_drafter(Checkpoint.read(folder), target)
    own = drafter.config
    drafter.model.set_dtype(mx.float32)
    restore_modules(drafter.model)
    if parse(raw).dflash2 and not own.dflash2:
        weights: list[tuple[str, mx.array]] = tree_flatten(drafter.model.parameters())  # type: ignore
        model = random_model(raw, target, own_parts(name for name, _ in weights))
        model.load_weights(weights, strict=False)
        drafter = DFlashDrafter(model, target.embed, target.head)
    mx.eval(drafter.model.parameters())
    return drafter


def new_drafter(
    raw: dict[str, Any], target: Target, seed: int, tokens: list[int] | None = None
) -> DFlashDrafter:
    """A drafter with random weights whose first loss is near that of a uniform guess.

    tokens: the sorted ids of its own vocabulary, if it has one.
    """
    target.tap(parse(raw).target_layer_ids)
    mx.random.seed(seed)
    model = random_model(raw, target)
    if tokens is not None:
        ids = mx.array(tokens)
        model.d2t = (ids - mx.arange(len(tokens))).astype(mx.int32)
        model.lm_head.weight = head_rows(target, ids)
        freeze_head(model)
    drafter = DFlashDrafter(model, target.embed, target.head)
    scale_weights(drafter, len(drafter.taps) * target.hidden_size)
    mx.eval(drafter.model.parameters())
    return drafter


def scale_weights(drafter: DFlashDrafter, taps_width: int) -> None:
    """Scale random weights until the first loss is near that of a uniform guess.

    A block begins with the mask token's embedding. With a tied head, what is left of it in the
    hidden states makes the mask token likely, which is never a label. So the layers' outputs are
    scaled up, and the last norm is scaled down until logits have a standard deviation of at most 1.
    """
    model = drafter.model
    config = drafter.config
    level_logits(model.norm, drafter.own_logits)
    rows = mx.random.normal((1, PROBES, taps_width))  # taps_width: K * Ht
    first = mx.random.randint(0, config.vocab_size, (1, 8))
    places = mx.full(first.shape, PROBES)
    labels = mx.random.randint(0, config.drafted, (first.size * (config.block_size - 1),))
    for _ in range(MAX_DOUBLINGS):
        hidden = block_hidden(drafter, model.context(rows, 0), first, places)
        hidden = hidden.reshape(-1, config.hidden_size)
        (losses,) = cross_entropy(drafter.own_logits, hidden, labels)
        if float(losses.mean()) < math.log(config.drafted) + NEAR_UNIFORM:
            return
        for layer in model.layers:
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                linear.weight = 2 * linear.weight


def level_logits(norm: nn.RMSNorm, head: Head) -> None:
    """Scale a last norm down until logits have a standard deviation of at most 1."""
    rows = mx.random.normal((PROBES, norm.weight.size))
    spread = float(mx.std(head(rows).astype(mx.float32), axis=-1).mean())
    norm.weight = norm.weight / max(1.0, spread)


def random_model(
    raw: dict[str, Any], target: Target, own: frozenset[str] = frozenset()
) -> DraftModel:
    """A model with random weights; its selector, if it has one, does not change any draft yet."""
    model = DraftModel(parse(raw), target.hidden_size, own)
    if (selector := model.selector) is not None:
        selector.successor_codebook = mx.zeros_like(selector.successor_codebook)
    return model


# Choice of the mask token

RESERVED = re.compile(r"reserved|unused|extra_id|placeholder|audio|vision", re.IGNORECASE)
MEANINGFUL = re.compile(
    r"think|im_start|im_end|tool|eot|eom|header|begin|end_?of|turn|unk|pad|^</?s>$|bos|eos|sep",
    re.IGNORECASE,
)
# Tokens that a tokenizer may need; each may be missing.
ROLES = ("unk", "bos", "eos", "pad", "sep", "cls")


def choose_mask_token(
    target: Target,
    tokenizer: TokenizerWrapper,
    used: Iterable[int],
    wanted: int | None = None,
) -> int:
    """The id of the mask token: `wanted`, or one named "mask", reserved, without a token, or added.

    Never one that the data (`used`) or the chat template use, that ends answers, or that the
    tokenizer needs, as for unknown text. Raises DFlashError if there is none, or for a `wanted` in
    use.
    """
    roles = (getattr(tokenizer, f"{role}_token_id", None) for role in ROLES)
    taken = set(used) | set(target.eos_ids) | {token for token in roles if token is not None}
    if wanted is not None:
        if not 0 <= wanted < target.vocab_size or wanted in taken:
            raise DFlashError(
                f"{wanted} is not a free token of this target.",
                hint="leave --mask-token out to have one chosen",
            )
        return wanted
    template = str(tokenizer.chat_template or "")
    names = {token: added.content for token, added in tokenizer.added_tokens_decoder.items()}
    taken |= {token for token, name in names.items() if name in template}
    named = [t for t, name in names.items() if "mask" in name.lower()]
    plain = [t for t, name in names.items() if not MEANINGFUL.search(name)]
    reserved = [t for t in plain if RESERVED.search(names[t])]
    rowless = range(len(tokenizer), target.vocab_size)
    for group in (named, reserved, rowless, plain):
        free = [token for token in group if token not in taken and token < target.vocab_size]
        if free:
            return free[0]
    raise DFlashError(
        "the target's vocabulary has no token that never occurs in text.",
        hint="name one that your texts do not use with --mask-token",
    )
