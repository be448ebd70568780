"""From a checkpoint to a drafter: which kind it is, whether it fits its target, loading."""

from collections.abc import Callable
from typing import Protocol

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub.kinds import kind_error, refused_kind
from dflash_mlx.models.ability import ALL_DRAFTS, Ability
from dflash_mlx.models.target import Target

from . import small_model
from .base import Drafter
from .dflash import load as dflash
from .eagle3 import load as eagle3
from .gemma4_assistant import load as gemma4_assistant
from .mtp import load as mtp


class DrafterKind(Protocol):
    def matches(self, checkpoint: Checkpoint, target: Checkpoint) -> bool:
        """Whether a checkpoint is of this kind; for a target's own head both are the same."""
        ...

    def check(self, checkpoint: Checkpoint, target: Checkpoint) -> None:
        """Raise DFlashError if the drafter does not fit the target. Reads no weights."""

    @property
    def load(self) -> Callable[..., Drafter]:
        """Load a checked drafter from its checkpoint and tap the target's layers that it reads.

        Its third argument are the bits: 4 or 8 quantises the drafter, 0 does not. A small model
        needs more, see `small_model.load`.
        """
        ...


# In this order: the first one goes by tensors, which the config need not name; the last one takes
# every checkpoint that the others do not.
READ_HIDDEN: tuple[DrafterKind, ...] = (mtp, gemma4_assistant, eagle3, dflash)
KINDS: tuple[DrafterKind, ...] = (*READ_HIDDEN, small_model)


def kind_of(checkpoint: Checkpoint, target: Checkpoint) -> DrafterKind:
    """The kind of drafter that a checkpoint holds. DFlashError for one that is not loaded."""
    if kind := refused_kind(checkpoint.config):
        raise kind_error(checkpoint.name, kind)
    return next(kind for kind in KINDS if kind.matches(checkpoint, target))


def check_drafter(
    checkpoint: Checkpoint, target: Checkpoint, ability: Ability = ALL_DRAFTS
) -> None:
    """Raise DFlashError if a checkpoint holds no drafter for this target. Reads no weights."""
    kind = kind_of(checkpoint, target)
    if kind in READ_HIDDEN and not ability.hidden:
        raise DFlashError(
            f"'{checkpoint.name}' reads hidden states of its target, and those of "
            f"'{target.name}' cannot be read.",
            hint="give a small model of the same family as drafter, or --draft lookup",
        )
    kind.check(checkpoint, target)


def load_drafter(
    checkpoint: Checkpoint,
    target: Target,
    tokenizer: TokenizerWrapper,
    *,
    bits: int = 0,
    trust_remote_code: bool = False,
) -> Drafter:
    """Load a checked drafter beside its target, whose tokenizer is `tokenizer`.

    `trust_remote_code` allows the Python files of the drafter's own tokenizer.
    """
    kind = kind_of(checkpoint, target.checkpoint)
    if kind is not small_model:
        return kind.load(checkpoint, target, bits)
    return small_model.load(
        checkpoint, target, tokenizer, bits, trust_remote_code=trust_remote_code
    )
