"""Exactness mode on the bundled pair, at 16 bits and quantised: the very bits of plain decoding.

Not only the tokens are the same: the keys and values that an answer leaves in the caches have the
same bits, whichever way its tokens were verified. The references stand in for the kernels here;
tests/metal has the same for those.
"""

from functools import cache
from typing import Any, cast

import exact_rows
import mlx.core as mx
import pytest
import tiny
from metal.ours import same_bits
from mlx import nn
from mlx_lm.utils import load_model
from text import held_out

from dflash_mlx import Pair, Session, load
from dflash_mlx.bench.questions import bundled_questions
from dflash_mlx.cpu.modules import CpuSwiGLU
from dflash_mlx.drafters.load import load_drafter
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.kernels import small_m_qmm, verify_attention
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.linear import StandIn
from dflash_mlx.models.packed import SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.selfcheck.exact import check_exact

WAYS: list[tuple[Any, dict[str, Any]]] = [
    ("dflash", {}),
    ("dflash", {"block_size": 5}),
    ("ddtree", {"tree_budget": 15}),
    ("ddtree", {"tree_budget": 32}),
]


@cache
def pair_of(bits: int) -> Pair:
    """The bundled pair with its target at bfloat16, its weights packed if `bits` is not 0."""
    path, whole = bundled("target"), load()
    model, config = load_model(path)
    model.set_dtype(mx.bfloat16)
    if bits:
        nn.quantize(model, group_size=64, bits=bits)
    checkpoint = Checkpoint(path, config)
    target = Target(model, checkpoint, whole.target.eos_ids, Kernels(exact=True))
    drafter = load_drafter(Checkpoint.read(bundled("draft")), target, whole.tokenizer)
    return Pair.of(target, drafter, whole.tokenizer, "", "")


def answer(
    pair: Pair, prompt: str, mode: Any, most: int, **options: Any
) -> tuple[list[int], list[mx.array], float]:
    """The tokens of a greedy answer, what it left in the caches, and τ."""
    session = Session(pair, mode=mode)
    blocks = list(session.stream(prompt, max_tokens=most, **options))
    held, count = session.sequence.target_cache.layers, len(session.sequence.tokens)

    def rows() -> list[mx.array]:
        parts = [part[..., :count, :] for layer in held for part in (layer.keys, layer.values)]
        mx.eval(parts)
        return parts

    arrays = mlx_thread().call(rows)  # a rewind may be left to evaluate there
    return tiny.joined(blocks), arrays, session.stats.acceptance_length


def differing(a: list[mx.array], b: list[mx.array]) -> int:
    """Number of arrays that have other bits in the rows that both have."""
    rows = [min(x.shape[-2], y.shape[-2]) for x, y in zip(a, b, strict=True)]
    return sum(
        not same_bits(mx.contiguous(x[..., :n, :]), mx.contiguous(y[..., :n, :]))
        for x, y, n in zip(a, b, rows, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("bits", [0, 4, *tiny.ALL * [5, 6, 8]])
def test_answers_have_the_bits_of_plain_decoding(bits: int) -> None:
    """Chains and trees of several sizes; drafts are kept and thrown away on the way."""
    pair, taus, most = pair_of(bits), [], 200 if tiny.ALL else 16 if bits else 40
    for sample in held_out(200)[:: 20 if tiny.ALL else 200 if bits else 80]:
        tokens, rows, _ = answer(pair, sample.prompt, "baseline", most)
        for mode, options in WAYS:
            found, kept, tau = answer(pair, sample.prompt, mode, most, **options)
            assert found == tokens, (mode, options)
            assert not differing(kept, rows), (mode, options)
            taus.append(tau)
    assert max(taus) > 3
    assert min(taus) < 16


def test_without_exactness_bits_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: MLX's own attention sums otherwise for several rows."""
    pair, sample = pair_of(4), held_out(1)[0]
    tokens, rows, _ = answer(pair, sample.prompt, "baseline", 12)
    monkeypatch.setattr(pair.target, "_kernels", Kernels())
    found, kept, _ = answer(pair, sample.prompt, "dflash", 12)
    assert differing(kept, rows) or found != tokens


def width_counts(reference: Any, width: Any) -> Any:
    """A fault: the bits of a result depend on how many rows it has."""
    return lambda *args: reference(*args) * (1 + 2**-7 * (width(*args) > 1))


@pytest.mark.parametrize(
    ("op", "width"),
    [
        (small_m_qmm.OP, lambda x, weights: x.size // x.shape[-1]),
        (verify_attention.OP, lambda q, *rest: q.shape[1]),
    ],
)
def test_a_row_that_knows_its_neighbours_is_noticed(op: Any, width: Any) -> None:
    """Planted in each operation that exactness rests on."""
    pair, sample = pair_of(0), held_out(1)[0]
    _, rows, _ = answer(pair, sample.prompt, "baseline", 20)
    honest = op.reference
    object.__setattr__(op, "reference", width_counts(honest, width))
    try:
        _, kept, _ = answer(pair, sample.prompt, "dflash", 20)
    finally:
        object.__setattr__(op, "reference", honest)
    assert differing(kept, rows)


def test_loading_exactly() -> None:
    """`load(exact=True)`: no module that computes several rows otherwise than one is left."""
    pair = load(exact=True)
    assert pair.target.kernels.exact
    modules = pair.target.model.modules()
    assert not any(isinstance(module, CpuSwiGLU) for module in modules)
    assert any(isinstance(module, StandIn) for module in modules)
    assert not any(isinstance(m, StandIn) for m in load().target.model.modules())
    prompt = bundled_questions()[0].turns[0][0]["content"]
    tokens, rows, _ = answer(pair, prompt, "baseline", 30)
    found, kept, tau = answer(pair, prompt, "dflash", 30)
    assert (found, differing(kept, rows)) == (tokens, 0)
    assert tau > 3


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "gpt_oss", "gemma4", "lfm2_moe"])
def test_the_model_is_checked_at_load(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows at once against one by one; nothing is in the way of a model that is exact."""
    target = exact_rows.target_of(family, Kernels(exact=True), mx.float32)
    check_exact(target, family)
    rope = mx.fast.rope

    def other(x: mx.array, *args: Any, **options: Any) -> mx.array:
        """A single row by another kernel, which rounds otherwise."""
        found = rope(x, *args, **options)
        return found * (1 + 2**-20) if x.shape[-2] == 1 else found

    monkeypatch.setattr(mx.fast, "rope", other)
    with pytest.raises(DFlashError, match=f"'{family}' cannot be exact here") as caught:
        check_exact(target, family)
    assert caught.value.hint


def test_a_pair_that_is_not_exact_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum whose order depends on the number of rows, in a place that no kernel has."""
    honest = mx.fast.rms_norm

    def careless(x: mx.array, *args: Any, **options: Any) -> mx.array:
        return honest(x, *args, **options) * (1 + 2**-20 * (x.shape[-2] == 2))

    monkeypatch.setattr(mx.fast, "rms_norm", careless)
    with pytest.raises(DFlashError, match="cannot be exact here"):
        load(exact=True)
    assert load().target.kernels.exact is False


def test_more_rows_than_exactness_has() -> None:
    """Refused before anything is read; and the mode auto chooses among fewer."""
    session = Session(pair_of(0), mode="ddtree")
    with pytest.raises(UsageError, match="64 in exact mode"):
        session.stream("hi", tree_budget=64)
    with pytest.raises(UsageError, match="65 in exact mode"):
        session.stream("hi", block_size=65)


def test_layers_that_quantise_their_input_are_refused() -> None:
    """They are nobody's stand-in: said by name."""
    target = tiny.make_target("llama")
    layer = cast(Any, target.model).layers[0]
    layer.mlp.up_proj = nn.QQLinear(64, 64)
    with pytest.raises(DFlashError, match="QQLinear") as caught:
        target.kernels = Kernels(exact=True)
    assert caught.value.hint


def with_and_without_company(family: str, dtype: mx.Dtype) -> list[bool]:
    """Whether rows of sequences in one pass have the bits that they have alone."""
    target = exact_rows.target_of(family, Kernels(exact=True), dtype)
    tree = exact_rows.TREE
    reads = [(5, [7, 8, 9, 3], None), (19, [4], None), (30, [6, *tree.tokens], tree)]

    def parts() -> list[SequenceRows]:
        found = []
        for length, tokens, read in reads:
            sequence = exact_rows.context_of(target, tiny.prompt_of(length, length))
            found.append(SequenceRows(sequence.target_cache, mx.array(tokens), read))
        return found

    pairs = zip(target.read(parts()), [target.read([p])[0] for p in parts()], strict=True)
    return [same_bits(a.taps, b.taps) and same_bits(a.logits, b.logits) for a, b in pairs]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "gpt_oss", "gemma4", "lfm2_moe"])
def test_bits_do_not_depend_on_company(family: str) -> None:
    """Chains, plain steps and trees of several sequences in one pass; experts at float32."""
    dtype = mx.bfloat16 if family.startswith("qwen") else mx.float32
    assert all(with_and_without_company(family, dtype))


def test_company_that_changes_bits_is_noticed() -> None:
    """The test above can fail: a product whose bits depend on all the rows of a pass."""
    op = small_m_qmm.OP
    honest = op.reference
    object.__setattr__(
        op, "reference", width_counts(honest, lambda x, _: x.size // x.shape[-1] // 6)
    )
    try:
        assert not all(with_and_without_company("qwen3", mx.bfloat16))
    finally:
        object.__setattr__(op, "reference", honest)
