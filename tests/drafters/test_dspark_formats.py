"""DSpark drafters in every packaging are read alike; others are refused by what is wrong."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from checkpoint_edits import edit_config, edit_weights, refused
from dspark_cases import BY_NAME, HEAD, NO_HEADS, PLACES, QWEN3, gemma4, speculators
from mlx import nn

from dflash_mlx.drafters.dflash.config import DSpark, parse
from dflash_mlx.drafters.dflash.load import check, copied_parts, plain_name
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.pair import load
from dflash_mlx.train.new_drafter import warm_config

TARGET = tiny.GOLDEN / "qwen3_full" / "target"
SURE = "confidence_head.proj.weight"


def head_of(raw: dict[str, Any]) -> DSpark:
    found = parse(raw).dspark
    assert found is not None
    return found


def test_block_is_that_of_a_verify() -> None:
    """The anchor and the proposals: five of these in each packaging, from five rows or six."""
    for name, case in BY_NAME.items():
        config = parse(case.config)
        assert config.block_size == 6
        assert config.from_anchor == case.from_anchor
        assert tuple(map(config.causal, (0, 1))) == case.causal
        assert (config.dspark is None) == (name == "jetspec")
        assert config.target_layer_ids == (1, 3)


def test_plain_dflash_with_a_markov_head() -> None:
    """Of a community's drafters: what has a Markov head is DSpark."""
    nested = {"mask_token_id": 99, "target_layer_ids": [1, 3]}
    raw = {**QWEN3, "architectures": ["DFlashDraftModel"], "dflash_config": nested}
    assert parse(raw).dspark is None
    assert head_of({**raw, **HEAD}) == DSpark(8, "vanilla")
    assert head_of({**raw, "dflash_config": {**nested, **HEAD}}).markov_rank == 8


def test_defaults() -> None:
    """Those of `speculators`, where its config says nothing; else there is no head."""
    bare = {key: value for key, value in speculators().items() if key not in (*HEAD, "block_size")}
    assert head_of(bare) == DSpark(256, "vanilla")
    assert parse(bare).block_size == 9
    deepspec = {**QWEN3, **PLACES, "architectures": ["Qwen3DSparkModel"]}
    assert head_of(deepspec) == DSpark(0, "vanilla")


@pytest.mark.parametrize("packaging", ["deepspec", "speculators", "specforge", "liquid"])
def test_tensors(packaging: str, tmp_path: Path) -> None:
    """No confidence head is needed; what is missing or unknown is named before it is loaded."""
    folder = BY_NAME[packaging].save(tmp_path / "draft")

    def without(*names: str) -> None:
        def edit(weights: dict[str, mx.array]) -> None:
            for stored in [stored for stored in weights if plain_name(stored) in names]:
                del weights[stored]

        edit_weights(folder, edit)

    without(SURE, SURE.replace("weight", "bias"))
    check(Checkpoint.read(folder), Checkpoint.read(TARGET))
    edit_weights(folder, lambda weights: weights.update({"markov_head.other": mx.ones(4)}))
    refused("unknown 'markov_head.other'", TARGET, folder)
    without("markov_head.other", "markov_head.markov_w2.weight")
    refused("no tensor 'markov_head.markov_w2.weight'", TARGET, folder)


@pytest.mark.parametrize(
    ("kind", "other", "message"),
    [
        ("deepspec", {"markov_head_type": "gated"}, "no tensor 'markov_head.gate_proj.bias'"),
        ("deepspec", {"markov_head_type": "rnn"}, "no tensor 'markov_head.joint_proj.bias'"),
        ("deepspec", {"markov_rank": 4}, "its config says"),
        ("deepspec", {**NO_HEADS}, "unknown 'markov_head.markov_w1.weight'"),
        ("deepspec_dflash", HEAD, "no tensor 'markov_head.markov_w1.weight'"),
        ("deepspec", {"target_layer_ids": [1, 8]}, "reads the hidden states of the layers"),
        ("deepspec", {"mask_token_id": 104}, "mask token 104"),
        ("deepspec", {"num_target_layers": 7}, "layer count 7"),
    ],
)
def test_configs_of_other_tensors(
    kind: str, other: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Each Markov head under another's name, other sizes, other targets."""
    draft = BY_NAME[kind].save(tmp_path / "draft")
    edit_config(draft, **other)
    refused(message, TARGET, draft)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"markov_head_type": "gru"}, "markov_head_type: gru"),
        ({"markov_rank": -1}, "wrong 'markov_rank: -1'"),
        ({"markov_rank": "8"}, "wrong 'markov_rank: 8'"),
        ({"block_size": 0}, "wrong 'block_size: 0'"),
        ({"mask_token_id": None}, "no 'mask_token_id'"),
        ({"target_layer_ids": []}, r"wrong 'target_layer_ids: \[\]'"),
        ({"hidden_act": "gelu"}, "'gelu' is not supported"),
        ({"sample_from_anchor": False, "markov_head_type": "rnn"}, "rnn' is not supported with"),
        ({"architectures": ["DFlash2DraftModel"], "conv_group_size": 8}, "DFlash 2 with a Markov"),
        ({"target_hidden_size": 32}, "wrong 'target_hidden_size: 32'"),
        ({"architectures": ["KimiDSparkModel"]}, "'KimiDSparkModel' are not supported"),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str) -> None:
    """What no published code computes, and values that cannot be meant, by name."""
    raw = {**BY_NAME["deepspec"].config, "dflash_config": {}, **changes}
    with pytest.raises(DFlashError, match=message) as caught:
        parse(raw)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"enable_moe_block": True}, "enable_moe_block: True"),
        ({"hidden_size_per_layer_input": 8}, "hidden_size_per_layer_input: 8"),
        ({"hidden_activation": "relu"}, "'relu' is not supported"),
        ({"use_double_wide_mlp": True, "num_kv_shared_layers": 1}, "num_kv_shared_layers: 1"),
        ({"global_head_dim": None}, "wrong 'global_head_dim: None'"),
        ({"num_global_key_value_heads": None}, "wrong 'num_global_key_value_heads: None'"),
        ({"rope_parameters": None}, "wrong 'rope_parameters: None'"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "wrong 'rope_parameters"),
    ],
)
def test_layers_of_gemma4_that_are_refused(changes: dict[str, Any], message: str) -> None:
    """Those with experts, inputs of their own, or shared keys and values."""
    with pytest.raises(DFlashError, match=message) as caught:
        parse({**gemma4(), **changes})
    assert caught.value.hint


def test_values_of_their_own_in_gemma4_layers() -> None:
    """Where values are not keys, the heads are those of the other layers."""
    config = parse({**gemma4(), "attention_k_eq_v": False, "num_key_value_heads": 2})
    assert (config.gemma4, config.shared_values) == (True, False)
    assert (config.num_kv_heads, config.head_dim) == (2, 16)


def test_a_dspark_drafter_is_not_trained(tmp_path: Path) -> None:
    """`dflash train` cannot continue from one, and says so."""
    draft = BY_NAME["deepspec"].save(tmp_path / "draft")
    target = load(TARGET, no_draft=True, cache_ram=0).target
    with pytest.raises(DFlashError, match="of DSpark's kind, which cannot be trained"):
        warm_config(draft, target, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("name", ["deepspec", "gemma4"])
def test_copies_of_the_targets_parts_are_not_kept(name: str, bits: int) -> None:
    """Of its embedding and its head, quantised or not; a table with another mask row stays."""
    target = load(tiny.GOLDEN / BY_NAME[name].target / "target", no_draft=True, cache_ram=0).target
    config = parse(BY_NAME[name].config)
    table: mx.array = target.model["model"].embed_tokens.weight
    if bits:
        nn.quantize(target.model, group_size=64, bits=bits)
    copies = {"embed_tokens.weight": table, "lm_head.weight": table}
    assert copied_parts(copies, config, target) == ("embed_tokens", "lm_head")
    other = mx.array(table)
    other[config.mask_token_id] = table[3]
    assert copied_parts({**copies, "embed_tokens.weight": other}, config, target) == ("lm_head",)
    others = {name: mx.random.normal(table.shape) for name in copies}
    assert copied_parts(others, config, target) == ()
    assert copied_parts({}, config, target) == ()


def test_a_drafter_without_its_copies() -> None:
    """The authors' golden one shares them; others bring their own."""
    pair = load(TARGET, tiny.GOLDEN / "dspark_qwen3" / "draft", cache_ram=0)
    assert pair.drafter is not None
    assert not {"embed_tokens", "lm_head"} & pair.drafter.model.keys()
