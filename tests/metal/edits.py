"""Faults of barriers, as edits of a kernel's text."""

from .ours import Edit

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
WEAK = "simdgroup_barrier(mem_flags::mem_threadgroup);"
NONE = "threadgroup_barrier(mem_flags::mem_none);"
# What stands after the barriers of the reductions over simdgroups, up to what tells them apart.
REDUCE = (
    "\nif (thread_id == 0) {\n  for (uint group = 1; group < DFLASH_SIMDGROUPS; group++) {\n    "
)


def dropped(after: str) -> Edit:
    return BARRIER + after, after


def weakened(after: str, barrier: str = WEAK) -> Edit:
    return BARRIER + after, barrier + after
