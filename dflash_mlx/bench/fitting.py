"""Every source of drafts that fits a loaded target: what `dflash bench --drafts all` compares."""

from dflash_mlx.drafters import small_model
from dflash_mlx.drafters.eagle3 import load as eagle3
from dflash_mlx.drafters.gemma4_assistant import load as gemma4_assistant
from dflash_mlx.drafters.load import DrafterKind, kind_of
from dflash_mlx.drafters.mtp import load as mtp
from dflash_mlx.drafters.mtp.tensors import has_head
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub.cache import cached_checkpoint, cached_repos, cached_state
from dflash_mlx.hub.registry import pairs_of
from dflash_mlx.hub.resolve import BUNDLED, LOOKUP, MTP
from dflash_mlx.models.memory import estimate_memory, memory_fit, working_set
from dflash_mlx.models.target import Target
from dflash_mlx.pair import Pair

from .schedule import ASSISTANT, DFLASH, DSPARK, EAGLE3, NONE, Source

WORDS: dict[DrafterKind, str] = {eagle3: EAGLE3, mtp: MTP, gemma4_assistant: ASSISTANT}


def fitting_sources(pair: Pair) -> tuple[Source, ...]:
    """The downloaded drafters that fit a target, its own head, copies, and plain decoding.

    The listed ones come first, the best known before others. Left out are small models, which
    `model:ID` names, and what does not fit the memory beside the target.
    """
    target = pair.target
    sources = [Source(DFLASH)] if pair.target_name == BUNDLED else []
    for repo in dict.fromkeys([*known_drafters(pair), *cached_repos()]):
        checkpoint = cached_checkpoint(repo)
        if checkpoint is not None and (word := fitting_word(checkpoint, target)):
            sources.append(Source(word, repo))
    if has_head(target.checkpoint) and fitting_word(target.checkpoint, target):
        sources.append(Source(MTP))
    return (*sources, Source(LOOKUP), Source(NONE))


def known_drafters(pair: Pair) -> list[str]:
    """The Hub ids of the target's known drafters that this version loads, best first."""
    pairs = pairs_of(pair.target_name)
    return [repo for entry in pairs if entry.supported for repo in entry.repos[1:]]


def missing_drafters(pair: Pair) -> list[str]:
    return [repo for repo in known_drafters(pair) if cached_state(repo) != "yes"]


def fitting_word(checkpoint: Checkpoint, target: Target) -> str:
    """The kind of source for a checkpoint that is a drafter and fits a target; empty for others."""
    try:
        kind = kind_of(checkpoint, target.checkpoint)
        if kind is small_model:
            return ""
        kind.check(checkpoint, target.checkpoint)
    except DFlashError:
        return ""
    if memory_fit(estimate_memory(target, checkpoint).total, working_set()) == "refuse":
        return ""
    return WORDS.get(kind, DSPARK if checkpoint.format == "dspark" else DFLASH)
