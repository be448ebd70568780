"""The pairs that a first start offers: three that fit the machine, of different strengths."""

from .registry import Entry, default_variant, fits, targets_with_variants

COUNT = 3
STRENGTHS = ("answers", "code", "speed")


def suggested_pairs(memory_bytes: int, free_disk_bytes: int) -> list[Entry]:
    """At most three pairs that fit a machine, the one with the best answers first.

    Of each strength the largest target, then the next largest of any; each in the version that its
    short name means.
    """
    offered = (default_variant(variants) for variants in targets_with_variants())
    fitting = sorted(
        (e for e in offered if e.strength and fits(e, memory_bytes, free_disk_bytes)),
        key=lambda entry: entry.params or 0,
        reverse=True,
    )
    best = {entry.strength: entry for entry in reversed(fitting)}
    chosen = [best[strength] for strength in STRENGTHS if strength in best]
    chosen += [entry for entry in fitting if entry not in chosen]
    return chosen[:COUNT]
