"""How many bits the weights of a drafter's linear layers have in memory. Does not import MLX.

A draft reads all of them. Beside a target of 4 bits a drafter of 16 is a large share of what a step
reads, and at 8 bits it is right nearly as often (the bundled pair's card has the figures); so it
has 8 bits where the target is quantised, and those that were published elsewhere.
"""

from dflash_mlx.errors import UsageError

CHOICES = (0, 4, 8)  # 0: as published
BESIDE_QUANTISED = 8
SCALE_BITS = 0.5  # bits for each weight that the scales and biases of quantisation add


def check_bits(asked: int | None) -> None:
    """UsageError for bits that there are not; None leaves them to `chosen_bits`."""
    if asked is not None and asked not in CHOICES:
        raise UsageError(
            f"draft_bits cannot be {asked}.", hint="give 4 or 8, or 0 for what was published"
        )


def chosen_bits(asked: int | None, *, target_quantised: bool) -> int:
    """The bits that were asked for; else 8 beside a quantised target, and 0 beside others."""
    if asked is not None:
        return asked
    return BESIDE_QUANTISED if target_quantised else 0


def share_of_bytes(bits: int) -> float:
    """What is left of a drafter's 16-bit weights at these bits."""
    return (bits + SCALE_BITS) / 16 if bits else 1.0
