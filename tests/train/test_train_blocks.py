"""Training sees exactly what inference sees: blocks, masks, positions, losses."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx.optimizers import Muon
from mlx.utils import tree_flatten
from train_runs import blocks_of, largest_difference

from dflash_mlx.drafters.dflash.config import DraftConfig
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.model import DraftModel
from dflash_mlx.train import dflash as blocks_module
from dflash_mlx.train import loss as head_loss
from dflash_mlx.train.data import Text
from dflash_mlx.train.dflash import DFlashStudent, block_hidden
from dflash_mlx.train.loss import cross_entropy, decay_weights, dpace_weights
from dflash_mlx.train.settings import TrainSettings
from dflash_mlx.train.step import BlockGradient, StreamedMuon
from dflash_mlx.train.streams import Streams

SLIDING = dataclasses.replace(tiny.DRAFT_CONFIG, sliding=(True, False), window=4)
HIDDEN, LENGTH = 12, 14


def make_drafter(config: DraftConfig) -> DFlashDrafter:
    mx.random.seed(3)
    embedding = mx.random.normal((config.vocab_size, config.hidden_size))
    model = DraftModel(config, HIDDEN)
    mx.eval(embedding, model.parameters())
    return DFlashDrafter(model, lambda ids: embedding[ids], lambda hidden: hidden @ embedding.T)


def make_data() -> tuple[mx.array, mx.array]:
    """Taps [2, S, 2 * Ht] and tokens [2, S] of two sequences."""
    mx.random.seed(4)
    return mx.random.normal((2, LENGTH, 2 * HIDDEN)), mx.random.randint(0, 39, (2, LENGTH))


def inference_logits(
    drafter: DFlashDrafter, target_hidden: mx.array, anchor: int, position: int
) -> mx.array:
    """What the drafter proposes after `position` committed tokens."""
    cache = drafter.make_cache()
    cache.append(target_hidden[:, :position])
    return cache.draft_logits(anchor, drafter.config.block_size)


def training_logits(
    drafter: DFlashDrafter, target_hidden: mx.array, tokens: mx.array, anchors: mx.array
):
    """Logits of all blocks at once, as training computes them."""
    first = mx.take_along_axis(tokens, anchors, axis=1)
    hidden = block_hidden(drafter, drafter.model.context(target_hidden, 0), first, anchors)
    return drafter.head(hidden)


@pytest.mark.parametrize("config", [tiny.DRAFT_CONFIG, SLIDING], ids=["full", "sliding"])
def test_training_block_equals_inference_draft(config):
    """Guards the mask and the positions: one wrong row and the drafter learns another task."""
    drafter = make_drafter(config)
    target_hidden, tokens = make_data()
    anchors = mx.array([[1, 6, 9], [3, 8, 12]])
    trained = training_logits(drafter, target_hidden, tokens, anchors)
    for row in range(2):
        for column in range(3):
            at = int(anchors[row, column])
            anchor = int(tokens[row, at])
            drafted = inference_logits(drafter, target_hidden[row : row + 1], anchor, at)
            assert mx.allclose(trained[row, column], drafted, atol=1e-5), (row, at)


def test_labels_and_counted_slots():
    """Guards the shift (slot k predicts the token at anchor + k) and the sequence's end."""
    drafter = make_drafter(tiny.DRAFT_CONFIG)
    target_hidden, tokens = make_data()
    anchors, lengths = mx.array([[2, 11], [8, -1]]), mx.array([LENGTH, 10])
    student = DFlashStudent(drafter)
    text = Text(target_hidden, tokens, lengths)
    losses, counts = student.losses(student.context(text), text, anchors)
    assert counts.tolist() == [[[1, 1, 1, 1], [1, 1, 0, 0]], [[1, 0, 0, 0], [0, 0, 0, 0]]]
    logits = training_logits(drafter, target_hidden, tokens, mx.maximum(anchors, 0))
    for slot in range(4):
        chances = mx.softmax(logits[0, 0, slot])
        wanted = -mx.log(chances[int(tokens[0, 2 + slot + 1])])
        assert float(losses[0, 0, slot]) == pytest.approx(float(wanted), abs=1e-4)


@dataclass(frozen=True)
class RepeatedRows:
    """A layer's context, repeated for every block."""

    keys: mx.array
    values: mx.array

    def mix(self, queries, keys, values, scale, mask):
        rows = (mx.concatenate([self.keys, keys], 2), mx.concatenate([self.values, values], 2))
        return mx.fast.scaled_dot_product_attention(queries, *rows, scale=scale, mask=mask)


def gradient_of_repeated_rows(drafter: DFlashDrafter, taps, tokens, grid, weights):
    """(loss, weight), gradient: the context repeated for every block, all in one graph."""
    config, (n, m) = drafter.config, grid.shape
    flat = grid.reshape(-1)

    def loss(parameters):
        drafter.model.update(parameters)
        context = drafter.model.context(taps, 0)
        repeated: Any = [RepeatedRows(*(mx.repeat(x, m, axis=0) for x in one)) for one in context]
        first = mx.take_along_axis(tokens, grid, axis=1).reshape(-1, 1)
        ids = mx.concatenate([first, mx.full((n * m, config.block_size - 1), 39)], axis=1)
        masks = blocks_module.attention_masks(config, flat, taps.shape[1])
        hidden = drafter.model(drafter.embed(ids), repeated, flat, masks)[:, 1:]
        at = grid[..., None] + mx.arange(1, config.block_size)
        inside = mx.minimum(at, LENGTH - 1).reshape(n, -1)
        labels = mx.take_along_axis(tokens, inside, axis=1).reshape(n * m, -1)
        chances = mx.softmax(drafter.head(hidden), axis=-1)
        losses = -mx.log(mx.take_along_axis(chances, labels[..., None], axis=-1)[..., 0])
        counted = weights * (at < LENGTH).reshape(n * m, -1)
        return (losses * counted).sum(), counted.sum()

    parameters = drafter.model.trainable_parameters()
    found = mx.value_and_grad(loss)(parameters)
    drafter.model.update(parameters)
    return found


@pytest.mark.parametrize("config", [tiny.DRAFT_CONFIG, SLIDING], ids=["full", "sliding"])
def test_gradient_equals_that_of_repeated_rows(config):
    """Guards the context that is held once and the slices: nothing may be missing from the sums."""
    drafter = make_drafter(config)
    taps, tokens = make_data()
    anchors = np.array([[1, 6, 9], [3, 8, 12]])
    settings = TrainSettings(chunk=2, gamma=4.0)
    part = blocks_of(anchors, taps, tokens)
    assert len(part[1].slices(settings.chunk)) == 3
    (loss, weight), gradient = gradient_of_repeated_rows(
        drafter, taps, tokens, mx.array(anchors), decay_weights(5, 4.0)
    )
    sums = BlockGradient(DFlashStudent(drafter), settings, Streams(2)).sums([part], lambda: False)
    assert sums is not None
    assert largest_difference(sums["gradient"], gradient) < 1e-5
    assert float(sums["loss"]) == pytest.approx(float(loss), rel=1e-5)
    assert float(sums["weight"]) == pytest.approx(float(weight), rel=1e-6)


def test_memory_does_not_grow_with_the_anchors():
    """Guards a step's peak: with four times the anchors it was three times as high."""
    config = dataclasses.replace(tiny.DRAFT_CONFIG, max_position_embeddings=512)
    drafter, peaks = make_drafter(config), dict[int, list[int]]()
    taps, tokens = mx.random.normal((1, 400, 2 * HIDDEN)), mx.random.randint(0, 39, (1, 420))
    for count in (16, 128) * 4:  # how far MLX runs ahead of what it frees is never the same
        at = np.linspace(300, 400, count).astype(int)[None]
        part = blocks_of(at, taps, tokens)
        gradient = BlockGradient(DFlashStudent(drafter), TrainSettings(chunk=8), Streams(1))
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        assert gradient.sums([part], lambda: False) is not None
        peaks.setdefault(count, []).append(mx.get_peak_memory() - before)
    assert max(peaks[128]) < 1.15 * max(peaks[16]), peaks


def test_bfloat16_computes_the_same_direction():
    """Guards mixed precision: float32 gradients of float32 weights, near those of float32."""
    drafter = make_drafter(tiny.DRAFT_CONFIG)
    taps, tokens = make_data()
    part = blocks_of(np.array([[1, 6], [3, 8]]), taps, tokens)
    exact, mixed = (
        BlockGradient(DFlashStudent(drafter), TrainSettings(compute=name), Streams(1)).sums(
            [part], lambda: False
        )
        for name in ("float32", "bfloat16")
    )
    assert exact is not None
    assert mixed is not None
    pairs: Any = zip(tree_flatten(exact["gradient"]), tree_flatten(mixed["gradient"]), strict=True)
    for (name, a), (_, b) in pairs:
        assert b.dtype == mx.float32
        cosine = (a * b).sum() / mx.sqrt((a * a).sum() * (b * b).sum())
        assert float(cosine) > 0.99, name
        assert not mx.array_equal(a, b), name
    parameters: Any = tree_flatten(drafter.model.parameters())
    assert all(array.dtype == mx.float32 for _, array in parameters)


def test_muon_on_streams_is_muon():
    """Guards the optimiser: which stream a matrix is on changes none of its bits."""
    ours, theirs = StreamedMuon(Streams(2), 0.02), Muon(0.02)
    key = mx.random.key(3)
    mine = {str(n): mx.random.normal((8, 6 + n), key=key) for n in range(5)}
    other = dict(mine)
    for _ in range(3):
        slopes = {name: mx.sin(9 * array) for name, array in mine.items()}
        mine, other = ours.apply_gradients(slopes, mine), theirs.apply_gradients(slopes, other)
    assert all(mx.array_equal(mine[name], other[name]) for name in mine)


def test_padding_changes_no_loss():
    """Guards batching: taps and tokens after a sequence's end must not leak into its blocks."""
    drafter = make_drafter(tiny.DRAFT_CONFIG)
    target_hidden, tokens = make_data()
    anchors, lengths = mx.array([[3, 6]]), mx.array([9])
    student = DFlashStudent(drafter)
    texts = (Text(target_hidden[:1, :end], tokens[:1, :end], lengths) for end in (9, LENGTH))
    alone, padded = (student.losses(student.context(text), text, anchors) for text in texts)
    assert mx.allclose(alone[0] * alone[1], padded[0] * padded[1], atol=1e-5)


def test_sliced_head_gives_the_same_loss_and_gradient(monkeypatch):
    """Guards the slices that bound memory for big vocabularies."""
    drafter = make_drafter(tiny.DRAFT_CONFIG)
    hidden, labels = mx.random.normal((7, 16)), mx.array([1, 5, 39, 0, 7, 7, 2])

    def total(hidden: mx.array) -> mx.array:
        return (cross_entropy(drafter.own_logits, hidden, labels)[0] * mx.arange(7)).sum()

    whole = mx.value_and_grad(total)(hidden)
    monkeypatch.setattr(head_loss, "MAX_LOGITS", 3 * 40)
    sliced = mx.value_and_grad(total)(hidden)
    assert mx.allclose(whole[0], sliced[0]), (whole[0], sliced[0])
    assert mx.allclose(whole[1], sliced[1], atol=1e-5)


def test_candidates_have_their_labels_and_their_gradient(monkeypatch):
    """Guards DFlash 2's loss: the head's slopes by hand equal those of logits that are kept."""
    drafter = make_drafter(tiny.DRAFT_CONFIG)
    hidden, labels = mx.random.normal((7, 16)), mx.array([1, 5, 39, 0, 7, 7, 2])
    monkeypatch.setattr(head_loss, "MAX_LOGITS", 3 * 40)
    ids = cross_entropy(drafter.own_logits, hidden, labels, 4)[1]
    assert (ids == labels[:, None]).any(axis=-1).all()
    best = mx.argsort(-drafter.head(hidden), axis=-1)[:, :3]
    assert mx.array_equal(ids[:, :3], best)
    weights = mx.random.normal((7, 4))

    def ours(hidden: mx.array) -> mx.array:
        losses, _, logits = cross_entropy(drafter.own_logits, hidden, labels, 4)
        return (losses * mx.arange(7)).sum() + (weights * logits).sum()

    def kept(hidden: mx.array) -> mx.array:
        logits = drafter.head(hidden)
        right = mx.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        losses = mx.logsumexp(logits, axis=-1) - right
        some = mx.take_along_axis(logits, ids, axis=-1)
        return (losses * mx.arange(7)).sum() + (weights * some).sum()

    (ours_value, ours_slope), (value, slope) = (
        mx.value_and_grad(total)(hidden) for total in (ours, kept)
    )
    assert mx.allclose(ours_value, value, rtol=1e-5)
    assert mx.allclose(ours_slope, slope, atol=1e-4)


def test_dpace_weights_by_hand():
    """Guards D-PACE's sums of products, and that no gradient goes through its weights."""
    entropies = -mx.log(mx.array([[0.5, 0.2, 1.0]]))
    weights = dpace_weights(entropies, mx.array([[1.0, 1.0, 0.0]]))
    first, second = 0.75, 0.75 * 0.6
    assert np.allclose(np.array(weights), [[first + second, second, 0.0]], atol=1e-6)
    slope = mx.grad(lambda e: dpace_weights(e, mx.ones((1, 3))).sum())(entropies)
    assert not slope.any()
