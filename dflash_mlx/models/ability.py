"""What a target can do with drafts, which follows from its caches and layers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ability:
    """What a target can do; `reason` says why it cannot do all, in a few words.

    drafts: whether it can take drafts back. hidden: whether drafters can read its hidden states.
    scattered: whether the rows of a pass may be at any positions: those of a tree, or of several
    sequences. Without it sequences take turns.
    """

    drafts: bool = True
    hidden: bool = True
    scattered: bool = True
    reason: str = ""

    @property
    def words(self) -> str:
        """For people, such as "all drafts" or "no drafts: the state of Mamba cannot be ..."."""
        can = "no drafts"
        if self.drafts:
            can = "all drafts" if self.hidden else "copies and drafts of small models"
            can += "" if self.scattered else ", no trees"
        return f"{can}: {self.reason}" if self.reason else can


ALL_DRAFTS = Ability()
# Model classes of mlx-lm that compute several rows otherwise than one, by their modules: a draft
# would be judged by another model than the one that decodes.
UNEQUAL = {
    "phi3small": "mlx-lm lets rows of one pass see later ones in its block-sparse layers",
    "plamo3": "mlx-lm's windows of several rows are one token longer than those of one",
}
