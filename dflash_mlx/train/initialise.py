"""The drafter that a run begins with: new weights, or those of another drafter."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.cpu.modules import restore_modules
from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.model import DraftModel
from dflash_mlx.drafters.load import check_fit, check_tensors, load_drafter, own_parts
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import load_config
from dflash_mlx.hub.formats import V2
from dflash_mlx.models.target import Target

from .data import TrainingSequence
from .loss import block_hidden, cross_entropy
from .settings import Shape, dflash2_entries

# A drafter's own, smaller vocabulary

STEP = 64  # columns of the head at once


def frequent_tokens(target: Target, sequences: Iterable[TrainingSequence], count: int) -> list[int]:
    """The ids, sorted, of the `count` most frequent tokens of answers; those that end one first.

    Where answers have fewer, the prompts' follow, then the lowest ids.
    """
    answers = Counter[int]()
    prompts = Counter[int]()
    for sequence in sequences:
        answers.update(sequence.tokens[sequence.answer :])
        prompts.update(sequence.tokens[: sequence.answer])
    ranks = (sorted(seen, key=lambda token: (-seen[token], token)) for seen in (answers, prompts))
    found = dict.fromkeys(sorted(t for t in target.eos_ids if t < target.vocab_size))
    for rank in (*ranks, range(target.vocab_size)):
        found |= dict.fromkeys(rank)
    return sorted(list(found)[:count])


def give_head(model: DraftModel, target: Target, tokens: list[int]) -> None:
    """Give a drafter of `len(tokens)` tokens its map and its head, which stay as they are."""
    ids = mx.array(tokens)
    model.d2t = (ids - mx.arange(len(tokens))).astype(mx.int32)
    model.lm_head.weight = head_rows(target, ids)
    freeze_head(model)


def freeze_head(model: DraftModel) -> None:
    """Train neither the map nor the head of a drafter with a vocabulary of its own."""
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


PROBES = 32  # random hidden states, and rows of random context, by which scales are found
NEAR = 1.0  # nats above a uniform guess that a first loss may have
MOST_DOUBLINGS = 8


def warm_config(folder: Path, target: Target, shape: Shape) -> dict[str, Any]:
    """The config of the drafter to train, which goes on from the one in a folder.

    A DFlash v1 drafter becomes a DFlash 2 drafter if the shape asks for one. DFlashError where it
    cannot be trained, or was made for another target.
    """
    raw = load_config(folder)
    config = parse(raw)
    if config.draft_vocab_size:
        raise DFlashError(
            f"'{folder.name}' is a drafter with its own vocabulary, which cannot be trained yet.",
            hint="start from another drafter, or from nothing: --draft-vocab",
        )
    check_fit(config, target.config, folder.name, target.path.name)
    check_tensors(folder, config, target.hidden_size)
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
    """The drafter in a folder as `warm_config` wants it, in float32.

    What a DFlash v1 drafter lacks of DFlash 2 begins by changing nothing.
    """
    own = parse(load_config(folder))
    drafter = load_drafter(folder, own, target)
    drafter.model.set_dtype(mx.float32)
    restore_modules(drafter.model)
    if parse(raw).dflash2 and not own.dflash2:
        weights: list[tuple[str, mx.array]] = tree_flatten(drafter.model.parameters())  # type: ignore
        model = begun(raw, target, own_parts(name for name, _ in weights))
        model.load_weights(weights, strict=False)
        drafter = DFlashDrafter(model, target.embed, target.head)
    mx.eval(drafter.model.parameters())
    return drafter


def new_drafter(
    raw: dict[str, Any], target: Target, seed: int, tokens: list[int] | None = None
) -> DFlashDrafter:
    """A drafter of random weights whose first loss is near a uniform guess's.

    `tokens`: those that it drafts where it has a vocabulary of its own, sorted.
    """
    target.tap(parse(raw).target_layer_ids)
    mx.random.seed(seed)
    model = begun(raw, target)
    if tokens is not None:
        give_head(model, target, tokens)
    drafter = DFlashDrafter(model, target.embed, target.head)
    calm(drafter, len(parse(raw).target_layer_ids) * target.hidden_size)
    mx.eval(drafter.model.parameters())
    return drafter


def calm(drafter: DFlashDrafter, width: int) -> None:
    """Scale random weights until the first guesses are not sharp and wrong; width: K * Ht.

    A block begins with the mask token's embedding. Where the head is tied to the embedding, what is
    left of it in the hidden states is a sharp guess of that token, which never comes: twice the
    loss of no guess on SmolLM2, seven times on a narrow model. So the layers' outputs are made
    large beside it, and the last norm small enough for logits of a standard deviation of 1.
    """
    model = drafter.model
    config = drafter.config
    logits = drafter.own_logits(mx.random.normal((PROBES, config.hidden_size))).astype(mx.float32)
    spread = float(mx.std(logits, axis=-1).mean())
    model.norm.weight = model.norm.weight / max(1.0, spread)
    rows = mx.random.normal((1, PROBES, width))
    first = mx.random.randint(0, config.vocab_size, (1, 8))
    places = mx.full(first.shape, PROBES)
    labels = mx.random.randint(0, config.drafted, (first.size * (config.block_size - 1),))
    for _ in range(MOST_DOUBLINGS):
        hidden = block_hidden(drafter, model.context(rows, 0), first, places)
        hidden = hidden.reshape(-1, config.hidden_size)
        losses = cross_entropy(drafter, hidden, labels)
        if float(losses.mean()) < math.log(config.drafted) + NEAR:
            return
        for layer in model.layers:
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                linear.weight = 2 * linear.weight


def begun(raw: dict[str, Any], target: Target, own: frozenset[str] = frozenset()) -> DraftModel:
    """A model of random weights, whose selector, if it has one, changes nothing yet."""
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
# What a tokenizer may use a token for; each is some token's id, or none's.
ROLES = ("unk", "bos", "eos", "pad", "sep", "cls")


def choose_mask_token(target: Target, used: Iterable[int], wanted: int | None = None) -> int:
    """The id of the mask token: `wanted` if given, else an unused token.

    used: ids that occur in the data. The order of choice is: tokens named "mask", reserved tokens,
    embedding rows without a token, other added tokens; never one that the data or the chat template
    use, that ends answers, or that the tokenizer needs, as for unknown text. Raises DFlashError if
    there is none, or if `wanted` is in use.
    """
    tokenizer = target.tokenizer
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
        "the target's vocabulary has no token that never stands in text.",
        hint="name one that your texts do not use with --mask-token",
    )
