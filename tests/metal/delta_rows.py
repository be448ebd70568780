"""Random rows and states of Gated DeltaNet layers."""

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

TREE = [-1, 0, 0, 1, 2, 4, 3, 0, 5]  # a branch in each generation, one node after its parent
# (Hk, Hv, Dk, Dv, dtype, gates one an element): grouped heads, odd Dv, one and eight parts a lane.
SHAPES = [
    (1, 2, 64, 5, mx.float32, False),
    (2, 4, 32, 33, mx.float16, True),
    (1, 3, 128, 2, mx.bfloat16, False),
    (1, 1, 256, 3, mx.bfloat16, True),
]


def rows(
    count: int, hk: int, hv: int, dk: int, dv: int, dtype: mx.Dtype, vector: bool, seed: int = 0
) -> list[mx.array]:
    """q, k, v, g, beta and the state before; keys of length one, so that a state stays bounded."""
    keys = mx.random.split(mx.random.key(seed), 6)
    q, k = (mx.random.normal((count, hk, dk), key=key) for key in keys[:2])
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    v = mx.random.normal((count, hv, dv), key=keys[2])
    g = mx.random.uniform(0.5, 1.0, (count, hv, dk) if vector else (count, hv), key=keys[3])
    beta = mx.random.uniform(0.0, 1.0, (count, hv), key=keys[4])
    state = mx.random.normal((hv, dv, dk), key=keys[5])
    return [q.astype(dtype), k.astype(dtype), v.astype(dtype), g, beta.astype(dtype), state]


def path_to(node: int, parents: list[int]) -> list[int]:
    return ([] if parents[node] < 0 else path_to(parents[node], parents)) + [node]


def random_tree(count: int, seed: int) -> list[int]:
    """Parents of a random tree, several of them roots; half of the nodes follow the one before."""
    draw = random.Random(seed)
    return [node - 1 if draw.random() < 0.5 else draw.randrange(-1, node) for node in range(count)]


def projected(
    count: int,
    hk: int,
    hv: int,
    dk: int,
    dv: int,
    dtype: mx.Dtype,
    places: list[list[int]] | None = None,
    width: int = 3,
    types: tuple[mx.Dtype, mx.Dtype] = (mx.float32, mx.bfloat16),
    seed: int = 0,
) -> list[Any]:
    """The arguments of `gated_delta_inputs`: A_log and dt_bias have the `types`; a chain if there
    are no `places`."""
    channels = 2 * hk * dk + hv * dv
    shapes = [(count, channels), (count, hv), (count, hv), (width, channels)]
    shapes += [(channels, width + 1, 1), (hv,), (hv,)]
    keys = mx.random.split(mx.random.key(seed), len(shapes))
    made = [mx.random.normal(s, key=k) for s, k in zip(shapes, keys, strict=True)]
    of = [*[dtype] * 5, *types]
    arrays = [part.astype(kind) for part, kind in zip(made, of, strict=True)]
    chain = [[*range(row, row + width + 1)] for row in range(max(count, 8))]
    return [*arrays, mx.array(places or chain, mx.int32), hk, dk]


def windows(parents: Sequence[int], size: int = 4) -> list[list[int]]:
    """The places of each row's last inputs along its path; several roots follow the window."""
    before = [*range(size - 1)]
    found: list[list[int]] = []
    for row, parent in enumerate(parents):
        path = before if parent < 0 else found[parent][1:]
        found.append([*path, size - 1 + row])
    return found
