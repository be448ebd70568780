"""MTP heads in every layout that is in use are read alike; others are refused by name."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from lossless import assert_lossless
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from mtp_heads import (
    GOLDEN,
    Tensors,
    fused,
    golden_head,
    one_by_one,
    parameters_of,
    quantised,
    random_head,
    save_folder,
    with_differences,
    with_prefix,
)

from dflash_mlx.drafters.load import check_drafter, load_drafter
from dflash_mlx.drafters.mtp import load as mtp
from dflash_mlx.drafters.mtp.drafter import MTPDrafter
from dflash_mlx.drafters.mtp.tensors import require_head, stores_differences
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.target import Target
from dflash_mlx.pair import Pair, load

TARGET = Checkpoint.read(GOLDEN / "target")


@pytest.fixture(scope="module")
def alone() -> Pair:
    return load(GOLDEN / "target", no_draft=True, cache_ram=0)


def read(folder: Path, target: Target, **options: Any) -> MTPDrafter:
    checkpoint = Checkpoint.read(folder)
    check_drafter(checkpoint, target.checkpoint)
    found = load_drafter(checkpoint, target, tiny.tokenizer(), **options)
    assert isinstance(found, MTPDrafter)
    return found


def same(found: Tensors, wanted: Tensors) -> bool:
    return found.keys() == wanted.keys() and all(
        tiny.apart(found[name], wanted[name]) < 1e-5 for name in wanted
    )


def prefixed(folder: Path) -> Path:
    """As the original repositories have it, in a folder of one of their shards."""
    tensors = with_prefix(with_differences(golden_head()))
    return save_folder(folder, tensors, "model-00002-of-00002.safetensors", model_type="qwen3_5")


def split(folder: Path) -> Path:
    """As mlx-vlm writes it."""
    return save_folder(folder, golden_head(), architectures=["Qwen3_5MTPDraftModel"])


def unlabelled(folder: Path) -> Path:
    """The same with a config that tells nothing, or the wrong thing."""
    return save_folder(folder, golden_head(), model_type="qwen3_5", mtp_num_hidden_layers=0)


def sidecar(folder: Path) -> Path:
    """A file beside the shards of a model, which their index does not name."""
    shutil.copytree(TARGET.path, folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    tensors = with_prefix(golden_head())
    mx.save_safetensors(str(folder / "mtp.safetensors"), tensors)
    return folder


def bare_sidecar(folder: Path) -> Path:
    mx.save_safetensors(str(sidecar(folder) / "mtp.safetensors"), golden_head())
    return folder


@pytest.mark.parametrize("layout", [prefixed, split, unlabelled, sidecar, bare_sidecar])
def test_layouts(layout: Callable[[Path], Path], alone: Pair, tmp_path: Path) -> None:
    """The parameters are the same whichever way they are stored."""
    found = read(layout(tmp_path / "draft"), alone.target)
    assert same(parameters_of(found), golden_head())
    assert found.taps == (alone.target.layers,)
    assert (found.block_size, found.config.num_experts) == (4, 0)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantised_head_is_read_as_it_is(bits: int, alone: Pair, tmp_path: Path) -> None:
    """Bits and groups are what the shapes say."""
    stored = quantised(golden_head(), bits)
    folder = save_folder(tmp_path, with_prefix(stored, "language_model.mtp."))
    found = read(folder, alone.target)
    assert same(parameters_of(found), stored)
    fc = found.model.fc
    assert isinstance(fc, nn.QuantizedLinear)
    assert (fc.bits, fc.group_size, fc.mode) == (bits, 32, "affine")


def test_other_ways_to_quantise(alone: Pair, tmp_path: Path) -> None:
    """Matrices without biases are in one of MLX's other modes."""
    stored = golden_head()
    packed = mx.quantize(stored["fc.weight"], mode="mxfp4")
    stored |= dict(zip(("fc.weight", "fc.scales"), packed, strict=True))
    found = read(save_folder(tmp_path, stored), alone.target)
    fc = found.model.fc
    assert isinstance(fc, nn.QuantizedLinear)
    assert (fc.bits, fc.group_size, fc.mode) == (4, 32, "mxfp4")


def test_a_head_in_the_shards_of_a_quantised_model(tmp_path: Path) -> None:
    """Found by `mtp`; answers stay those of plain decoding."""
    folder = tmp_path / "model"
    shutil.copytree(TARGET.path, folder)
    for file in folder.glob("model*"):
        file.unlink()
    model, _ = load_model(TARGET.path)
    nn.quantize(model, group_size=32, bits=8)
    whole: Any = dict(tree_flatten(model.parameters()))
    own = with_prefix(quantised(golden_head()), "language_model.mtp.")
    config = {**TARGET.config, "quantization": {"group_size": 32, "bits": 8}}
    pair = load(save_folder(folder, {**whole, **own}, **config), "mtp", cache_ram=0)
    assert isinstance(pair.drafter, MTPDrafter)
    assert same(parameters_of(pair.drafter), quantised(golden_head()))
    assert pair.draft_name == "mtp"
    assert_lossless(pair)


@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_next"])
@pytest.mark.parametrize("form", [fused, one_by_one, quantised, lambda tensors: tensors])
def test_experts(family: str, form: Callable[[Tensors], Tensors], tmp_path: Path) -> None:
    """Stacked, in two matrices, each by itself, or quantised: the layer has the same experts."""
    target = tiny.make_target(
        family, hidden_size=64, moe_intermediate_size=32, shared_expert_intermediate_size=32
    )
    wanted = parameters_of(random_head(target))
    stored = form(wanted)
    if form is quantised:
        wanted = stored
    found = read(save_folder(tmp_path, with_prefix(with_differences(stored))), target)
    assert same(parameters_of(found), wanted)
    assert found.config.num_experts == 4


def test_experts_one_of_which_is_missing(tmp_path: Path) -> None:
    """Is noticed before any weights are read."""
    target = tiny.make_target("qwen3_next")
    stored = one_by_one(parameters_of(random_head(target)))
    del stored["layers.0.mlp.experts.3.up_proj.weight"]
    with pytest.raises(DFlashError, match=r"switch_mlp\.up_proj"):
        read(save_folder(tmp_path, stored), target)


def test_norms_are_told_apart_by_their_content() -> None:
    """Differences from 1 are negative as often as not, or all 0; factors are not."""
    near = 0.1 * mx.random.normal((64,), key=mx.random.key(0))
    assert stores_differences([near, 1.5 + near])
    assert stores_differences([mx.zeros((64,))])
    assert not stores_differences([1 + near, 0.4 + near])
    assert not stores_differences([mx.ones((64,))])


def test_bits_of_a_head(alone: Pair, tmp_path: Path) -> None:
    """A head is quantised in memory like any drafter, experts included."""
    found = read(split(tmp_path), alone.target, bits=8)
    assert isinstance(found.model.fc, nn.QuantizedLinear)
    target = tiny.make_target("qwen3_next", hidden_size=64, moe_intermediate_size=64)
    stored = with_differences(parameters_of(random_head(target)))
    folder = save_folder(tmp_path / "experts", stored)
    layer: Any = read(folder, target, bits=4).model.layers[0]
    assert "scales" in layer.mlp.switch_mlp.up_proj


DSPARK = {"0.norm.weight": mx.ones(4), "0.markov_head.markov_w1.weight": mx.ones((4, 4))}
DEEPSEEK = {"0.e_proj.weight": mx.ones((4, 4)), "0.hnorm.weight": mx.ones(4)}


def without(name: str) -> Tensors:
    return {key: value for key, value in golden_head().items() if key != name}


REFUSED: tuple[tuple[Tensors, str], ...] = (
    (with_prefix(DSPARK), "are a DSpark drafter"),
    (with_prefix(DEEPSEEK), "of a kind that is not supported"),
    ({"lm_head.weight": mx.ones((4, 4))}, "there is no MTP head in"),
    ({**golden_head(), "layers.1.input_layernorm.weight": mx.ones(64)}, "has several layers"),
    ({**golden_head(), "layers.0.extra.weight": mx.ones(64)}, "unknown 'layers.0.extra.weight'"),
    (without("norm.weight"), "has no tensor 'norm.weight'"),
    (without("layers.0.self_attn.q_proj.weight"), "no tensor 'layers.0.self_attn.q_proj.weight'"),
)


@pytest.mark.parametrize(("stored", "message"), REFUSED)
def test_what_is_refused_is_named(stored: Tensors, message: str, tmp_path: Path) -> None:
    """Before any weights are read."""
    folder = save_folder(tmp_path, stored)
    with pytest.raises(DFlashError, match=message) as refused:
        check_drafter(Checkpoint.read(folder), TARGET)
    assert refused.value.hint


def test_targets_that_do_not_fit(tmp_path: Path) -> None:
    """Of another width, and of a family whose heads are others."""
    folder = save_folder(tmp_path, golden_head())
    narrow = Checkpoint(Path("narrow"), tiny.config_of("qwen3_5"))
    with pytest.raises(DFlashError, match="expects a target with hidden size 64, 'narrow' has 32"):
        check_drafter(Checkpoint.read(folder), narrow)
    other = Checkpoint(Path("other"), tiny.config_of("llama"))
    with pytest.raises(DFlashError, match="of the type 'llama' are not supported"):
        check_drafter(Checkpoint.read(folder), other)


def test_a_target_without_a_head(alone: Pair, tmp_path: Path) -> None:
    """A conversion by mlx-lm: the message says why, and the loaded pair goes on."""
    folder = tmp_path / "model"
    shutil.copytree(TARGET.path, folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DFlashError, match="there is no MTP head in") as refused:
        require_head(Checkpoint.read(folder))
    assert "mlx-lm's conversions leave the head out" in (refused.value.hint or "")
    plain = load(folder, no_draft=True, cache_ram=0)
    with pytest.raises(DFlashError, match="there is no MTP head in"):
        tiny.with_drafter(plain, "mtp")
    paired = tiny.with_drafter(plain, save_folder(tmp_path / "draft", golden_head()))
    assert isinstance(paired.drafter, MTPDrafter)
    assert_lossless(paired)


def test_a_smaller_model_with_a_head_of_its_own_stays_a_model() -> None:
    """It is not a head for the larger one."""
    small = Checkpoint.read(TARGET.path)
    large = Checkpoint(Path("large"), {"model_type": "qwen3_5", "hidden_size": 128})
    assert not mtp.matches(small, large)
    assert mtp.matches(small, TARGET)
