"""A draft computes in the dtype of the drafter's weights, whatever the target's is.

Read from the operations that MLX would run; nothing is computed, so that a CPU can say it.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from checkpoint_edits import edit_weights
from mlx import nn
from mlx.utils import tree_flatten
from trace_ops import Operation, operations

from dflash_mlx.drafters import weights
from dflash_mlx.drafters.chain import ChainBlock
from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.model import DraftModel
from dflash_mlx.models.precision import quantise
from dflash_mlx.pair import load
from dflash_mlx.speculation.drafts import Independent, Lattice

HALF = {mx.float16, mx.bfloat16}
PRODUCTS = {"Matmul", "AddMM", "QuantizedMatmul", "ScaledDotProductAttention"}
PAIRS = {
    "fp16_bf16": (mx.float16, mx.bfloat16),
    "bf16_fp16": (mx.bfloat16, mx.float16),
    "bf16_bf16": (mx.bfloat16, mx.bfloat16),
    "bf16_fp32": (mx.bfloat16, mx.float32),
    "fp32_fp32": (mx.float32, mx.float32),
}
KINDS = {
    "dflash": tiny.draft_settings,
    "dflash2": tiny.dflash2_settings,
    "dspark": tiny.dspark_settings,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def made(
    target_type: mx.Dtype,
    draft_type: mx.Dtype,
    kind: str = "dflash",
    *,
    target_bits: int = 0,
    draft_bits: int = 0,
    untied: bool = False,
) -> DFlashDrafter:
    sizes: dict[str, Any] = {"hidden_size": 64, "tie_word_embeddings": not untied}
    target = tiny.make_target("qwen3", **sizes)
    target.model.set_dtype(target_type)
    drafter = tiny.random_drafter(target, **KINDS[kind](target))
    drafter.model.set_dtype(draft_type)
    if target_bits:
        nn.quantize(target.model, bits=target_bits, class_predicate=fits)
    quantise(drafter.model, draft_bits)
    mx.eval(target.model.parameters(), drafter.model.parameters())
    return DFlashDrafter(drafter.model, target.embed, target.head, target.head_type)


def fits(_: str, module: nn.Module) -> bool:
    """Whether a layer's rows divide into groups of 64."""
    return hasattr(module, "to_quantized") and module["weight"].shape[-1] % 64 == 0


def draft(drafter: DFlashDrafter, target_type: mx.Dtype) -> tuple[list[Operation], list[mx.array]]:
    """The operations of one draft after six tokens, and the arrays that it gives and keeps."""
    seen: list[mx.array] = []

    def run(taps: mx.array) -> list[mx.array]:
        cache = drafter.make_cache()
        cache.append(taps)
        block = cache.block(5, 8)
        if isinstance(block, Lattice):
            assert block.made_of is not None
            given = [block.candidates, block.made_of[3]]  # its lattice is float32 on purpose
        elif isinstance(block, ChainBlock):
            given = [block.chains.greedy[1]]
        else:
            assert isinstance(block, Independent)
            given = [block.logits]
        seen[:] = [*given, *cache.state]
        return seen

    width = 64 * len(drafter.config.target_layer_ids)
    found = operations(run, mx.zeros((1, 6, width), dtype=target_type))
    return found, seen


def wide_products(found: list[Operation]) -> list[Operation]:
    return [op for op in found if op.name in PRODUCTS and mx.float32 in {t for _, t in op.inputs}]


def cast_weights(found: list[Operation], drafter: DFlashDrafter) -> list[Operation]:
    """The casts of whole matrices: of the drafter's, or of the head."""
    values: Any = tree_flatten(drafter.model.parameters())
    shapes = {value.shape for _, value in values if value.ndim == 2} | {(tiny.VOCAB, 64)}
    shapes |= {shape[::-1] for shape in shapes}
    return [op for op in found if op.name == "AsType" and op.inputs[0][0] in shapes]


@every_kind
@pytest.mark.parametrize("types", PAIRS.values(), ids=PAIRS)
def test_a_draft_is_computed_in_the_drafters_dtype(
    types: tuple[mx.Dtype, mx.Dtype], kind: str
) -> None:
    """Products, context rows and logits have 16 bits where weights do; no weight is ever cast.

    Where both are float32 nothing is cast at all, so no bit changes.
    """
    drafter = made(*types, kind)
    found, (logits, *rows) = draft(drafter, types[0])
    assert {row.dtype for row in rows} == {types[1]}
    assert logits.dtype == (mx.uint32 if kind == "dflash2" else types[0])
    assert not cast_weights(found, drafter)
    assert sum(op.name in PRODUCTS for op in found) > 10
    if types[1] in HALF:
        assert not wide_products(found)
    if set(types) == {mx.float32}:
        assert not [op for op in found if op.name == "AsType" and op.inputs[0][1] == mx.float32]


@pytest.mark.parametrize("untied", [False, True], ids=["tied", "untied"])
@pytest.mark.parametrize("draft_bits", [0, 8])
def test_a_quantised_target_with_other_scales(draft_bits: int, untied: bool) -> None:
    """Scales in float16 and a drafter in bfloat16, quantised or not: the same holds."""
    drafter = made(mx.float16, mx.bfloat16, target_bits=4, draft_bits=draft_bits, untied=untied)
    found, (logits, *rows) = draft(drafter, mx.float16)
    assert not wide_products(found)
    assert not cast_weights(found, drafter)
    assert {row.dtype for row in rows} == {mx.bfloat16}
    assert logits.dtype == mx.float16
    assert any(op.name == "QuantizedMatmul" for op in found)


@pytest.mark.parametrize("fault", ["entrance", "exit"])
def test_a_missing_cast_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cast at either end weights are cast and products are float32."""
    if fault == "entrance":
        monkeypatch.setattr(DFlashDrafter, "enter", lambda self, rows: rows)
    drafter = made(mx.float16, mx.bfloat16)
    if fault == "exit":
        drafter._head_type = None
    found, _ = draft(drafter, mx.float16)
    assert wide_products(found)
    assert cast_weights(found, drafter)


@pytest.mark.parametrize("name", ["norm.weight", "layers.0.self_attn.k_norm.weight"])
def test_a_float32_norm_does_not_widen_a_drafter(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights of a loaded drafter have the dtype of its projection."""
    target, folder = tiny.save_pair(tmp_path, tiny.draft_settings)

    def mixed(stored: dict[str, mx.array]) -> None:
        for key in stored:
            stored[key] = stored[key].astype(mx.float32 if key == name else mx.bfloat16)

    edit_weights(folder, mixed)
    monkeypatch.setattr(weights, "use_cpu_modules", lambda model: None)
    found = load(target, folder)
    assert found.drafter is not None
    values: Any = tree_flatten(found.drafter.model.parameters())
    assert {value.dtype for _, value in values} == {mx.bfloat16}


def test_training_keeps_its_precision() -> None:
    """A float32 drafter's loss reads float32 logits also from a 16-bit head."""
    target = tiny.make_target("qwen3")
    target.model.set_dtype(mx.bfloat16)
    config = parse(tiny.draft_settings(target))
    drafter = DFlashDrafter(
        DraftModel(config, target.hidden_size), target.embed, target.head, target.head_type
    )
    assert drafter.head(mx.zeros((2, target.hidden_size))).dtype == mx.float32
