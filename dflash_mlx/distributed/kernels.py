"""The kernels that all ranks of a group run, because each of them has proven them on its machine.

Ranks that run different kernels get different bits. Where they compute the same thing, such as the
experts of a token, they could then decide differently.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dflash_mlx.kernels import (
    gated_delta_inputs,
    gated_delta_replay,
    gated_delta_tape,
    gated_delta_tree,
    grouped_experts,
    padded_rows,
    small_m_qmm,
    verify_attention,
)
from dflash_mlx.kernels.dispatch import Kernels

ELSEWHERE = "not faster at the same sizes on all ranks"
# The operations in a target's layers. The others run after a pass, on rank 0 only.
LAYER_OPS = frozenset(
    module.OP.name
    for module in (
        gated_delta_inputs,
        gated_delta_replay,
        gated_delta_tape,
        gated_delta_tree,
        grouped_experts,
        padded_rows,
        small_m_qmm,
        verify_attention,
    )
)
# Such operations that run as kernels, each with its sizes (None: all of them). In JSON.
Enabled = Mapping[str, list[Any] | None]


def enabled_in_layers(kernels: Kernels) -> Enabled:
    """The operations of a target's layers that run as kernels."""
    if kernels.launcher is None:
        return {}
    sizes = {name: sorted(map(list, found)) for name, found in kernels.sizes.items()}
    return {name: sizes.get(name) for name in LAYER_OPS & (kernels.on or frozenset())}


def common(one: Enabled, other: Enabled) -> Enabled:
    """The operations and sizes that are in both."""
    found = dict[str, list[Any] | None]()
    for name in one.keys() & other.keys():
        sizes = [set(map(tuple, given)) for given in (one[name], other[name]) if given is not None]
        both = set.intersection(*sizes) if sizes else None
        if both is None or both:
            found[name] = None if both is None else sorted(map(list, both))
    return found


def with_layers(kernels: Kernels, enabled: Enabled, reasons: Mapping[str, str]) -> Kernels:
    """The kernels with exactly these enabled in a target's layers.

    reasons: to show for those that are not enabled any more.
    """
    on = kernels.on or frozenset()
    dropped = {name: reasons.get(name, ELSEWHERE) for name in (on & LAYER_OPS) - enabled.keys()}
    off = {**kernels.off, **dropped}
    others = {name: sizes for name, sizes in kernels.sizes.items() if name not in LAYER_OPS}
    sizes = {
        name: frozenset(map(tuple, found)) for name, found in enabled.items() if found is not None
    }
    return replace(
        kernels,
        on=(on - LAYER_OPS) | enabled.keys(),
        off={name: reason for name, reason in off.items() if name not in enabled},
        sizes=others | sizes,
    )
