"""What a target can do with drafts, which follows from its caches and layers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ability:
    """What a target can do, and why not more, in a few words.

    drafts: whether it can take drafts back. hidden: whether drafters can read its hidden states.
    reason: why one of these is False. in_order: why the rows of a pass can only follow one another,
    so that there are no trees, and sequences take turns; empty if they can be anywhere.
    """

    drafts: bool = True
    hidden: bool = True
    reason: str = ""
    in_order: str = ""

    @property
    def scattered(self) -> bool:
        """Whether the rows of a pass may be those of a tree, or of several sequences."""
        return self.drafts and not self.in_order

    @property
    def words(self) -> str:
        """For people, such as "all drafts, no trees: its layers count positions by themselves"."""
        can = "no drafts"
        if self.drafts:
            can = "all drafts" if self.hidden else "copies and drafts of small models"
            can += ", no trees" if self.in_order else ""
        reasons = "; ".join(filter(None, (self.reason, self.in_order)))
        return f"{can}: {reasons}" if reasons else can


ALL_DRAFTS = Ability()
# Model classes of mlx-lm that compute several rows otherwise than one, by their modules: a draft
# would be judged by another model than the one that decodes.
UNEQUAL = {
    "phi3small": "mlx-lm lets rows of one pass see later ones in its block-sparse layers",
    "plamo3": "mlx-lm's windows of several rows are one token longer than those of one",
}
