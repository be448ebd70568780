"""No answer waits for a kernel to be compiled: each is launched once when the pair is loaded.

MLX compiles a text of its own for each name, template, and types and address spaces of buffers.
What the engine launches is compared with what is built, at published shapes; a stand-in launcher
notes both, and nothing is computed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from ledger.passes import TracedPair
from ledger.published import PAIRS, Published
from sample_trees import sample_tree

import dflash_mlx
from dflash_mlx import pair as pairs
from dflash_mlx.kernels import dispatch, outcome, small_m_qmm
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.shapes import LinearShape, Shapes
from dflash_mlx.kernels.source import DEVICE_MEMORY_SIZE, MetalLauncher, Source, pad_small
from dflash_mlx.models.linear import multiply
from dflash_mlx.options import SamplingParams
from dflash_mlx.selfcheck.check import launches, outputs
from dflash_mlx.selfcheck.results import STORE, KernelResult, result_key
from dflash_mlx.selfcheck.shapes import shapes_of
from dflash_mlx.selfcheck.trials import TRIALS
from dflash_mlx.speculation.acceptance import RULES, make_rule
from dflash_mlx.speculation.drafts import Draft, Independent

OPERATIONS = frozenset(trial.name for trial in TRIALS)
TREE = sample_tree(32)


class Noting(MetalLauncher):
    """Notes what MLX would compile; with `computes` it gives zeros, which no CPU refuses."""

    def __init__(self, *, computes: bool = False):
        super().__init__()
        self.computes, self.texts = computes, set[Any]()

    def recorded(self, function: Callable[..., Any], kind: Any) -> Callable[..., Any]:
        return lambda *args: function(self, *args)

    def __call__(self, source: Source, inputs: Sequence[mx.array], **call: Any) -> list[mx.array]:
        buffers = tuple((x.dtype, x.size < DEVICE_MEMORY_SIZE, x.ndim == 0) for x in inputs)
        types = tuple(call["output_dtypes"])
        self.texts.add((source.name, tuple(call.get("template", ())), buffers, types))
        if not self.computes:
            return super().__call__(source, inputs, **call)
        return [mx.zeros(s, t) for s, t in zip(call["output_shapes"], types, strict=True)]


def noted(launcher: Noting, run: Callable[[], Iterable[Any]]) -> set[Any]:
    launcher.texts = set()

    def inside(_: mx.array) -> list[mx.array]:
        return [array for result in run() for array in outputs(result)]

    mx.disable_compile()  # what mlx-lm compiles, such as SwiGLU, cannot be exported
    try:
        mx.export_function(lambda _: None, inside, mx.zeros(1))
    finally:
        mx.enable_compile()
    return launcher.texts


def used_and_built(published: Published) -> tuple[set[Any], set[Any]]:
    """What rounds of a pair launch, and what is launched ahead."""
    launcher = Noting()
    pair = TracedPair(published, Kernels())
    shapes = shapes_of(pair.target, pair.drafter)
    sizes = {t.name: frozenset(t.op.size(*c) for c in t.sizes(shapes)) for t in TRIALS if t.sizes}
    kernels = pair.target.kernels = Kernels(launcher, on=OPERATIONS, sizes=sizes)
    pair.target.share_kernels([pair.drafter.model])
    vocab = pair.target.vocab_size

    def decisions() -> Iterable[mx.array]:
        for name in RULES:
            for params in (SamplingParams(), SamplingParams(temperature=1.0, seed=0)):
                for rows in (2, 16):
                    rule = make_rule(name, params, vocab, kernels)
                    draft = rule.draft(Independent(mx.zeros((rows - 1, vocab))), rule.draw([]))
                    logits = mx.zeros((rows, vocab), mx.bfloat16)
                    yield rule.outcome(draft, logits, [], 0)
        forced = Draft(mx.zeros((3,), mx.int32))  # by a grammar
        rule = make_rule("match", SamplingParams(), vocab, kernels)
        yield rule.outcome(forced, mx.zeros((4, vocab), mx.bfloat16), [], 0)

    built = noted(launcher, lambda: (a for t in TRIALS for a in launches(kernels, t, shapes)))
    used = set(noted(launcher, decisions))
    for rows in (1, 2, 3, 5, 16):
        launcher.texts = set()
        pair.verify(1024, rows, kept=range(1))
        used |= launcher.texts
    launcher.computes = True  # a draft computes its context first
    for width in (2, 3, 5, 16):
        launcher.texts = set()
        pair.draft(1024, width)
        used |= launcher.texts
    launcher.computes, launcher.texts = False, set()
    pair.verify(1024, TREE.rows, TREE, TREE.path_to(31))
    return used | launcher.texts, built


@pytest.mark.quick_every(5)
@pytest.mark.parametrize("published", PAIRS, ids=lambda pair: pair.name)
def test_what_rounds_launch_is_built_and_nothing_else(published: Published) -> None:
    """Of drafts and chains of all widths, a tree, a commit, and every rule of acceptance."""
    used, built = used_and_built(published)
    assert used == built
    assert len(built) <= 24  # each takes about a tenth of a second


def test_products_of_mixed_weights_are_built() -> None:
    """A model whose layers differ in groups, modes, dtypes or biases compiles nothing later."""
    launcher = Noting()
    plain = LinearShape(1024, 128, 4, 64, "affine", "bfloat16")
    kinds = (
        plain,
        replace(plain, group=32),
        replace(plain, group=32, mode="mxfp4", dtype="uint8"),
        replace(plain, dtype="float16"),
        replace(plain, dtype="float32"),
        replace(plain, biased=True),
        replace(plain, bits=0, group=0, mode="", dtype="float32"),
    )
    shapes = Shapes(9, 4, "bfloat16", products=tuple((kind, 1) for kind in kinds))
    (trial,) = (trial for trial in TRIALS if trial.op is small_m_qmm.OP)
    sizes = {trial.name: frozenset(small_m_qmm.size(*c) for c in small_m_qmm.sizes(shapes))}
    kernels = Kernels(launcher, on=OPERATIONS, sizes=sizes)

    def layers() -> Iterable[mx.array]:
        for kind in kinds:
            for rows in (2, 4, 8, 16):
                x = mx.zeros((rows, 128), mx.bfloat16)
                weights = small_m_qmm.weights_of(kind, 1024, 128, mx.bfloat16)
                yield multiply(kernels, weights, x)

    used = set(noted(launcher, layers))
    assert used == noted(launcher, lambda: (a for a in launches(kernels, trial, shapes)))
    assert len(used) == 4 * len(kinds)


def test_fault_a_text_for_each_type_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: drafts of a drafter and of a grammar have other types."""
    monkeypatch.setattr(outcome, "ids", pad_small)
    used, built = used_and_built(PAIRS[0])
    assert used - built


@pytest.mark.parametrize("builds", [True, False], ids=["built", "fault: nothing is built"])
def test_the_first_answer_compiles_nothing(builds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that runs first proves kernels and measures costs; the next one has all that."""
    monkeypatch.setattr(dispatch, "by_metal", lambda: True)
    monkeypatch.delenv("DFLASH_KERNELS")
    seen: list[tuple[int, int]] = []

    def started() -> tuple[Noting, dflash_mlx.Pair]:
        launcher = Noting(computes=True)
        monkeypatch.setattr(dispatch, "MetalLauncher", lambda: launcher)
        return launcher, dflash_mlx.load(on_kernels=lambda *counts: seen.append(counts))

    def answered(pair: dflash_mlx.Pair) -> None:
        dflash_mlx.generate(pair, "What is 12 plus 7?", mode="auto", max_tokens=30)

    with monkeypatch.context() as patch:
        patch.setattr(pairs, "prepare_kernels", lambda *_: None)
        _, pair = started()
    shapes = shapes_of(pair.target, pair.drafter)
    used = {t.name: KernelResult(t.name, True) for t in TRIALS if t.fitting(shapes)}
    STORE.write(result_key(shapes), used)
    _, pair = started()
    answered(pair)  # costs are measured
    seen.clear()
    if not builds:
        monkeypatch.setattr(pairs, "build", lambda *_, **__: {})
    launcher, pair = started()
    assert seen == ([(done, len(used)) for done in range(len(used) + 1)] if builds else [])
    built = set(launcher.texts)
    launcher.texts.clear()
    answered(pair)
    assert launcher.texts
    assert (launcher.texts <= built) is builds
