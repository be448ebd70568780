"""Every operation's kernel on a real Apple GPU, against its reference: what no emulator can say."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from kernel_checks import GENERIC, compared

from dflash_mlx.kernels.shapes import (
    AttentionShape,
    GatedDeltaShape,
    LinearShape,
    SelectorShape,
    Shapes,
)
from dflash_mlx.kernels.source import MetalLauncher, Source
from dflash_mlx.selfcheck.trials import TRIALS, Trial

pytestmark = [
    pytest.mark.metal,
    pytest.mark.skipif(not mx.metal.is_available(), reason="needs an Apple GPU"),
]


def with_dtype(dtype: str) -> Shapes:
    assert GENERIC.selector is not None
    products = tuple(
        (kind if kind.dtype == "uint8" else replace(kind, dtype=dtype), count)
        for kind, count in GENERIC.products
    )
    selector = replace(GENERIC.selector, dtype=dtype)
    return replace(GENERIC, dtype=dtype, selector=selector, products=products)


# Every size of head that the attention takes, windows and sinks among them; odd values.
HEADS = replace(
    GENERIC,
    attention=tuple(
        AttentionShape(4, 2, dim, window, sinks=bool(window))
        for dim, window in ((64, 0), (80, 7), (96, 0), (128, 40), (192, 0), (256, 100))
    ),
    delta=GatedDeltaShape(1, 3, 128, 2, window=3, channels=130),
    selector=None,
    rows=33,
)
# A model of 9 billion weights: 32 layers, three quarters of them Gated DeltaNet, 4 bits.
LARGE = Shapes(
    vocab=248_320,
    rows=16,
    dtype="bfloat16",
    attention=(AttentionShape(16, 4, 256),),
    delta=GatedDeltaShape(16, 32, 128, 128, window=3, channels=8192),
    selector=SelectorShape(16, 256, "bfloat16"),
    products=((LinearShape(12_288, 4096, 4, 64, "affine", "bfloat16"), 1),),
)
CASES = {
    **{dtype: with_dtype(dtype) for dtype in ("float32", "float16", "bfloat16")},
    "heads": HEADS,
    "large": LARGE,
}


class Verbose(MetalLauncher):
    """MLX writes the generated text of every kernel to stdout, which a failed test shows."""

    def __call__(self, source: Source, inputs: Any, **options: Any) -> list[mx.array]:
        return super().__call__(source, inputs, verbose=True, **options)


@pytest.mark.parametrize("shapes", CASES.values(), ids=CASES)
@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_a_kernel_gives_what_its_reference_gives(
    trial: Trial, shapes: Shapes, caplog: pytest.LogCaptureFixture
) -> None:
    """The cases of the proof that every user's machine does, at more shapes."""
    caplog.set_level("INFO")
    launcher = Verbose()
    for exact in (False, True):
        asked = replace(shapes, exact=exact)
        if trial.fitting(asked):
            result = compared(launcher, trial, asked)
            assert result.right, result.reason
