"""The references of the gated delta kernels are mlx-lm's own recurrence, and its tape is enough."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from metal.delta_rows import SHAPES, TREE, path_to, rows
from mlx_lm.models.gated_delta import gated_delta_ops

from dflash_mlx.kernels import gated_delta_replay, gated_delta_tape, gated_delta_tree
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import pad_small
from dflash_mlx.models import gated_delta
from dflash_mlx.models.gated_delta import Writes


@pytest.mark.parametrize("shape", SHAPES)
def test_a_chain_is_mlx_lms_recurrence(shape: tuple) -> None:
    """Outputs and state equal mlx-lm's operations to a few last bits of float32."""
    *fed, state = rows(5, *shape)
    y, delta, after = gated_delta_tape.OP.reference(*fed, state)
    mx.disable_compile()  # on a CPU it would compile C++ for every shape
    q, k, v, g, beta, before = (part[None] for part in (*fed, state))
    wanted, wanted_after = gated_delta_ops(q, k, v, g, beta, before)
    mx.enable_compile()
    assert y.dtype == wanted.dtype
    assert delta.dtype == mx.float32
    assert mx.allclose(y, wanted[0], rtol=1e-2 if shape[4] != mx.float32 else 1e-5, atol=1e-5)
    assert mx.allclose(after, wanted_after[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_a_node_of_a_tree_is_the_end_of_its_path(shape: tuple) -> None:
    """Each node equals the last row of a chain over its path, which a wrong parent does not."""
    *fed, state = rows(len(TREE), *shape)
    y, delta = gated_delta_tree.OP.reference(*fed, state, TREE)
    for node in range(len(TREE)):
        at = mx.array(path_to(node, TREE))
        alone = gated_delta_tape.OP.reference(*(part[at] for part in fed), state)
        assert mx.array_equal(y[node], alone[0][-1])
        assert mx.array_equal(delta[node], alone[1][-1])
    other = gated_delta_tree.OP.reference(*fed, state, [-1, 0, 1, *TREE[3:]])
    assert not mx.allclose(y[2], other[0][2], atol=1e-3)


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_a_replay_gives_the_state_that_reading_the_rows_gives(count: int) -> None:
    """Two layers of a tree, committed along a path: the chain's own state, the window's rows."""
    node, layers, width = 5, [], 3
    for seed in range(2):
        layers.append(rows(len(TREE), *SHAPES[0], seed=seed))
    path = mx.array(path_to(node, TREE), mx.int32)
    tapes = [gated_delta_tree.OP.reference(*layer, TREE) for layer in layers]
    inputs = mx.random.normal((2, width + len(TREE), 7), key=mx.random.key(9))
    after, window = gated_delta_replay.OP.reference(
        mx.stack([layer[5] for layer in layers]),
        mx.stack([tape[1] for tape in tapes]),
        mx.stack([layer[1] for layer in layers]),
        mx.stack([layer[3] for layer in layers]),
        path,
        mx.array([count], mx.int32),
        inputs,
    )
    taken = path[:count]
    for number, (*fed, state) in enumerate(layers):
        want = state
        if count:
            want = gated_delta_tape.OP.reference(*(part[taken] for part in fed), state)[2]
        assert mx.allclose(after[number], want, rtol=1e-6, atol=1e-6)
        kept = mx.concatenate([inputs[number, :width], inputs[number, width:][taken]])
        assert mx.array_equal(window[number], kept[-width:])


def test_a_path_is_padded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once in each layer, where a copy costs two dispatches."""
    paths = []

    def launch(launcher: Any, *parts: mx.array) -> Any:
        path = pad_small(parts[4])
        paths.append(path)
        return gated_delta_replay.OP.reference(*parts[:4], path, *parts[5:])

    monkeypatch.setattr(gated_delta_replay, "OP", replace(gated_delta_replay.OP, launch=launch))
    launcher: Any = object()
    layers = []
    for seed in range(2):
        *fed, state = rows(5, *SHAPES[0], seed=seed)
        delta = gated_delta_tape.OP.reference(*fed, state)[1]
        inputs = mx.zeros((1, 8, 7))
        layers.append(Writes(Kernels(launcher), inputs, state, fed[1], fed[3], delta))
    found = gated_delta.replay(layers, range(3))
    plain = gated_delta.replay([replace(layer, kernels=Kernels()) for layer in layers], range(3))
    assert paths[0] is paths[1]
    for (_, ours), (_, theirs) in zip(found, plain, strict=True):
        assert mx.array_equal(ours, theirs)  # type: ignore[arg-type]


def test_what_the_kernels_take() -> None:
    """A state that is not float32, a key of 48 or 288, a tree over 64 rows: the reference's."""
    fed = rows(2, *SHAPES[0])
    assert gated_delta_tape.OP.fits(*fed)
    assert not gated_delta_tape.OP.fits(*fed[:5], fed[5].astype(mx.bfloat16))
    for size in (48, 288):
        assert not gated_delta_tape.OP.fits(*rows(2, 1, 2, size, 5, mx.float32, False))
    many = rows(65, *SHAPES[0])
    assert not gated_delta_tree.OP.fits(*many, range(-1, 64))
    assert gated_delta_tree.OP.fits(*(part[:64] for part in many[:5]), many[5], [0] * 64)
