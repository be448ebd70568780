"""The bits of a drafter's linear weights in memory, and of KV caches. Does not import MLX.

Every draft reads all of these weights. Beside a 4-bit target, a 16-bit drafter is a large share of
the bytes that a step reads. At 8 bits its drafts are accepted nearly as often (the bundled pair's
card has the numbers). So a drafter gets 8 bits beside a quantised target, and stays as published
beside others.
"""

from dflash_mlx.errors import UsageError

CHOICES = (0, 4, 8)  # 0: not quantised
BESIDE_QUANTISED = 8
SCALE_BITS = 0.5  # bits for each weight that the scales and biases of quantisation add


def check_bits(bits: int | None, name: str = "draft_bits") -> None:
    """Raise UsageError for bits that the argument `name` cannot have; None is its default."""
    if bits is not None and bits not in CHOICES:
        raise UsageError(f"{name} cannot be {bits}.", hint="give 4 or 8, or 0 not to quantise")


def chosen_bits(bits: int | None, *, target_quantised: bool) -> int:
    """`bits` unless None; by default 8 beside a quantised target, and 0 beside others."""
    if bits is not None:
        return bits
    return BESIDE_QUANTISED if target_quantised else 0


def share_of_bytes(bits: int) -> float:
    """The size of a drafter's weights at these bits, as a share of its 16-bit weights."""
    return (bits + SCALE_BITS) / 16 if bits else 1.0
