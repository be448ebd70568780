"""DFlash 2 drafters: their configs, what is loaded and refused, quantised, and cut back."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from checkpoint_edits import edit_config, edit_weights, refused
from mlx.utils import tree_flatten

from dflash_mlx import api
from dflash_mlx.drafters.dflash.config import DFlash2, parse
from dflash_mlx.drafters.dflash.model import DynamicConv, convolve
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import load
from dflash_mlx.speculation.drafts import Lattice

CASE = tiny.GOLDEN / "qwen3_dflash2"
PUBLISHED = DFlash2(2, 16, 256, 16)
CONV, CODEBOOK = "layers.0.mlp_conv.base_kernel", "candidate_selector.predecessor_codebook"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return tiny.save_pair(tmp_path, tiny.dflash2_settings)


def published(**changes: Any) -> dict[str, Any]:
    """The config.json of Qwen3.8-27B-DFlash2."""
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 248320,
        "layer_types": ["sliding_attention"] * 5,
        "sliding_window": 2048,
        "is_causal": False,
        "dflash_config": {
            "mask_token_id": 248070,
            "target_layer_ids": [5, 19, 33, 47, 61],
            "block_size": 8,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 256,
            "selector_top_k": 16,
        },
        **changes,
    }


def test_config() -> None:
    """The kind is the architecture's or the projector's; its numbers stand at either level."""
    raw = published()
    config = parse(raw)
    assert config.dflash2 == PUBLISHED
    assert [config.causal(i) for i in range(5)] == [False] * 5
    assert not parse({**raw, "is_causal": None}).causal(0)
    assert parse({**raw, "is_causal": True}).causal(0)
    nested = {**raw["dflash_config"], "causal": True}
    assert parse({**raw, "is_causal": None, "dflash_config": nested}).causal(0)
    places = ("mask_token_id", "target_layer_ids", "block_size")
    bare = {**raw, "dflash_config": {key: raw["dflash_config"][key] for key in places}}
    assert parse(bare).dflash2 == PUBLISHED
    assert parse({**bare, "selector_rank": 64, "selector_top_k": 8}).dflash2 == DFlash2(
        2, 16, 64, 8
    )
    nested = {**raw["dflash_config"], "projector_type": "dflash2"}
    named = {**raw, "architectures": ["DFlashDraftModel"], "dflash_config": nested}
    assert parse(named) == config
    assert parse({**bare, "architectures": ["DFlashDraftModel"]}).dflash2 is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv_kernel_size": 3}, r"attention_conv\.base_kernel' is \[2, 2, 32\]"),
        ({"conv_group_size": 16}, r"kernel_projection\.weight' is \[16, 32\]"),
        ({"selector_rank": 9}, r"candidate_selector\.[\w.]+' is \[8, 32\]"),
        ({"conv_group_size": 5}, "wrong 'conv_group_size: 5'"),
        ({"selector_top_k": 105}, "wrong 'selector_top_k: 105'"),
        ({"gru_hidden_dim": 8}, "unknown 'gru_hidden_dim'"),
        ({"sample_from_anchor": 2}, "sample_from_anchor: 2"),
    ],
)
def test_configs_that_do_not_fit(folders: Any, changes: dict[str, Any], message: str) -> None:
    """Numbers that are not those of the tensors, or cannot be, are refused by name."""
    edit_config(folders[1], dflash_config=changes)
    refused(message, *folders)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (CODEBOOK, f"{CODEBOOK}.weight", f"no tensor '{CODEBOOK}'"),
        (CODEBOOK, "candidate_selector.codebook", "unknown 'candidate_selector.codebook'"),
        (CONV, f"{CONV}.weight", f"no tensor '{CONV}'"),
    ],
)
def test_tensors_that_do_not_fit(folders: Any, old: str, new: str, message: str) -> None:
    """A tensor with another name is named before anything is loaded."""
    edit_weights(folders[1], lambda weights: weights.update({new: weights.pop(old)}))
    refused(message, *folders)


@pytest.mark.parametrize(("bits", "least"), [(8, 3.7), (4, 3.2)])
def test_quantised(bits: int, least: float) -> None:
    """Linear layers are quantised, codebooks and base kernels stay; answers do not change."""
    loaded = load(CASE / "target", CASE / "draft", draft_bits=bits)
    assert loaded.drafter is not None
    model = loaded.drafter.model
    parameters: Any = tree_flatten(model.parameters())
    names = {name for name, _ in parameters}
    for name in (
        "layers.0.attention_conv.kernel_projection",
        "candidate_selector.hidden_projection",
    ):
        assert f"{name}.scales" in names
    plain = [name for name in names if "codebook" in name or "base_kernel" in name]
    assert sorted(plain) == sorted(
        ["candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"]
        + [f"layers.{i}.{part}_conv.base_kernel" for i in (0, 1) for part in ("attention", "mlp")]
    )
    expected = tiny.expected("qwen3_dflash2")
    lengths = []
    for prompt, tokens in zip(expected["prompts"], expected["greedy_tokens"], strict=True):
        result = api.generate(loaded, prompt, max_tokens=expected["max_new_tokens"])
        assert result.tokens == tokens
        lengths.append(result.stats.acceptance_length)
    assert np.mean(lengths) > least


def lattice(sequence: Sequence) -> Lattice:
    assert sequence.draft_cache is not None
    block = sequence.draft_cache.block(5, 8)
    assert isinstance(block, Lattice)
    return block


def test_one_look_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is drafted and accepted with one copy to the host, at temperature 0 and above."""
    loaded = load(CASE / "target", CASE / "draft")
    prompt = tiny.expected("qwen3_dflash2")["prompts"][0]
    looks: list[int] = []
    honest, item = np.array, mx.array.item

    def scalar(found: mx.array) -> Any:
        looks.append(1)
        return item(found)

    def counted(found: Any, *args: Any, **options: Any) -> np.ndarray:
        looks.extend([1] * isinstance(found, mx.array))
        return honest(found, *args, **options)

    steps = {"block_size": 8, "max_tokens": 20, "stops": frozenset()}
    for rule, temperature in (("match", 0.0), ("token", 1.0), ("block", 1.0)):
        looks.clear()
        with monkeypatch.context() as patch:
            patch.setattr(np, "array", counted)
            patch.setattr(mx.array, "item", scalar)
            for name in ("tolist", "__bool__", "__int__", "__float__"):
                patch.setattr(mx.array, name, forbidden, raising=False)
            sequence = Sequence(loaded.target, loaded.drafter)
            sampling = SamplingParams(temperature=temperature, seed=3)
            blocks = list(tiny.start(sequence, prompt, sampling, rule, **steps))
            assert len(looks) == len(blocks)
            with pytest.raises(AssertionError, match="looked at"):
                int(mx.array(1))
            with pytest.raises(AssertionError, match="looked at"):
                bool(mx.array(1))


def forbidden(self: mx.array, *args: Any) -> Any:
    raise AssertionError("an array was looked at")


def test_a_new_convolution_changes_nothing() -> None:
    """As it is initialised: so a v1 drafter can become a DFlash 2 drafter."""
    x = mx.random.normal((2, 5, 32), key=mx.random.key(1))
    for kernel in DynamicConv(DFlash2(3, 8, 8, 4), 32)(x):
        assert (convolve(x, kernel) == x).all()
