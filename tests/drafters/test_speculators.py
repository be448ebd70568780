"""Drafters that bring what others share with their target: configs in the `speculators` format, a
reduced vocabulary, an embedding, a head, or a row for the mask token."""

import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from checkpoint_edits import edit_weights, refused
from lossless import assert_lossless
from sampling_law import LIMIT, SETTINGS, Tables, block_surprise, random_tables

from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import MASK_FILE
from dflash_mlx.files.formats import is_drafter
from dflash_mlx.models.target import Target
from dflash_mlx.pair import load
from dflash_mlx.speculation.acceptance import RULES
from dflash_mlx.speculation.drafts import Independent

FEW = 40  # tokens of the reduced vocabulary
KEPT = sorted(set(range(0, 2 * FEW, 2)) - {0} | {98})  # what they are in the target's


def settings(target: Target, **changes: Any) -> dict[str, Any]:
    """A v1 drafter's config.json as `speculators` writes it."""
    zlab = tiny.draft_settings(target)
    nested = zlab["dflash_config"]
    layer = {k: v for k, v in zlab.items() if k not in ("architectures", "dflash_config")}
    layer["layer_types"] = ["sliding_attention", "full_attention"]
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "transformer_layer_config": {**layer, "model_type": "qwen3", "sliding_window": 9},
        "aux_hidden_state_layer_ids": [number + 1 for number in nested["target_layer_ids"]],
        "block_size": nested["block_size"],
        "mask_token_id": nested["mask_token_id"],
        "draft_vocab_size": tiny.VOCAB,
        "sliding_window_non_causal": False,
        "projector_type": "dflash",
        "pure_draft_prefix_len": 1,
        "shift_label": False,
        "speculators_config": {"algorithm": "dflash"},
        **changes,
    }


def reduced(target: Target) -> dict[str, Any]:
    return settings(target, draft_vocab_size=FEW)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    paths = tiny.save_pair(tmp_path, reduced)
    maps = {
        "d2t": mx.array(KEPT) - mx.arange(FEW),
        "t2d": mx.array([token in KEPT for token in range(tiny.VOCAB)]),
    }
    edit_weights(paths[1], lambda weights: weights.update(maps))
    return paths


def test_config_is_that_of_zlab() -> None:
    """Layer ids lose their one; sliding layers are causal unless it says so, full ones never."""
    target = tiny.make_target("qwen3")
    config = parse(settings(target))
    zlab = {
        **tiny.draft_settings(target),
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 9,
    }
    assert config == parse(zlab)
    assert config.target_layer_ids == (0, 2)
    assert [config.causal(layer) for layer in (0, 1)] == [True, False]
    free = parse(settings(target, sliding_window_non_causal=True))
    assert [free.causal(layer) for layer in (0, 1)] == [False, False]
    assert parse(reduced(target)).draft_vocab_size == FEW
    assert is_drafter(settings(target))


def test_second_kind() -> None:
    """`dflash2` is DFlash 2, seen whole by default."""
    target = tiny.make_target("qwen3")
    numbers = {"conv_group_size": 8, "selector_rank": 8, "selector_top_k": 6}
    raw = settings(target, speculators_model_type="dflash2", draft_ffn_type="dense", **numbers)
    del raw["sliding_window_non_causal"]
    config = parse(raw)
    assert config.dflash2 is not None
    assert (config.dflash2.conv_kernel_size, config.dflash2.selector_top_k) == (2, 6)
    assert not config.causal(0)
    with pytest.raises(DFlashError, match="draft_vocab_size: 40"):
        parse({**raw, "draft_vocab_size": FEW})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "eagle3"}, "speculators_model_type: eagle3"),
        ({"speculators_model_type": "peagle"}, "speculators_model_type: peagle"),
        ({"projector_type": "domino"}, "projector_type: domino"),
        ({"sample_from_anchor": "all"}, "wrong 'sample_from_anchor: all'"),
        ({"shift_label": True}, "shift_label: True"),
        ({"draft_ffn_type": "moe"}, "draft_ffn_type: moe"),
        ({"transformer_layer_config": None}, "no 'transformer_layer_config'"),
        ({"aux_hidden_state_layer_ids": None}, "wrong 'aux_hidden_state_layer_ids"),
        ({"aux_hidden_state_layer_ids": [1, "3"]}, "wrong 'aux_hidden_state_layer_ids"),
        ({"mask_token_id": None}, "no 'mask_token_id'"),
        ({"draft_vocab_size": 0}, "wrong 'draft_vocab_size"),
        ({"draft_vocab_size": tiny.VOCAB + 1}, "wrong 'draft_vocab_size"),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str) -> None:
    """Other speculators, and values that cannot be meant, by name."""
    with pytest.raises(DFlashError, match=message) as caught:
        parse(settings(tiny.make_target("qwen3"), **changes))
    assert caught.value.hint


def test_rope_of_each_layer_type_is_refused() -> None:
    """Not read as one that has no theta."""
    raw = settings(tiny.make_target("qwen3"))
    rope = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
    raw["transformer_layer_config"]["rope_parameters"] = rope
    with pytest.raises(DFlashError, match="rope_parameters"):
        parse(raw)


def test_reduced_vocabulary(folders: Any) -> None:
    """It loads, is lossless, and proposes none but its tokens, with the logits of its head."""
    loaded = load(*folders)
    assert_lossless(loaded)
    drafter = loaded.drafter
    assert isinstance(drafter, DFlashDrafter)
    hidden = mx.random.normal((3, 32), key=mx.random.key(1))
    logits = drafter.head(hidden)
    assert logits.shape == (3, tiny.VOCAB)
    assert (logits[:, mx.array(KEPT)] == drafter.model.lm_head(hidden)).all()
    others = mx.array(sorted(set(range(tiny.VOCAB)) - set(KEPT)))
    assert (logits[:, others] == -mx.inf).all()


@pytest.mark.quick_every(3)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("setting", ["plain", "top_k_top_p", "everything"])
def test_law_with_a_reduced_vocabulary(rule: str, setting: str) -> None:
    """Tokens that are never drafted keep their probability."""
    full = random_tables()
    block: Any = full.block
    fewer = mx.where(mx.array([True, False, True, False, True]), block.logits, -mx.inf)
    tables = Tables(Independent(fewer), full.rows, full.history)
    assert block_surprise(RULES[rule], SETTINGS[setting], tables) < LIMIT


def set_map(values: list[int]) -> Any:
    return lambda weights: weights.update({"d2t": mx.array(values)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.__delitem__("d2t"), "no tensor 'd2t'"),
        (lambda weights: weights.__delitem__("lm_head.weight"), r"no tensor 'lm_head\.weight'"),
        (set_map([0] * (FEW - 1)), r"'d2t' is \[39\]"),
        (set_map([tiny.VOCAB] * FEW), "does not lead into"),
        (set_map([-1] * FEW), "does not lead into"),
        (set_map([5, 4] + [5] * (FEW - 2)), "does not lead into"),
    ],
)
def test_maps_that_do_not_fit(folders: Any, change: Any, message: str) -> None:
    """A missing head or map, and one that leads outside or to a token twice, are refused."""
    edit_weights(folders[1], change)
    refused(message, *folders)


def test_own_embedding_and_head(tmp_path: Path) -> None:
    """A drafter that brings its own table and head uses them."""
    target, draft = tiny.save_pair(tmp_path, settings)
    shape = (tiny.VOCAB, 32)
    table, head = (mx.random.normal(shape, key=mx.random.key(i)) for i in (1, 2))
    shared = load(target, draft).drafter
    assert isinstance(shared, DFlashDrafter)
    own = {"embed_tokens.weight": table, "lm_head.weight": head, "verifier_norm.weight": table[0]}
    edit_weights(draft, lambda weights: weights.update(own))
    loaded = load(target, draft)
    assert_lossless(loaded)
    drafter = loaded.drafter
    assert isinstance(drafter, DFlashDrafter)
    ids = mx.array([[4, tiny.MASK]])
    assert (drafter.embed(ids) == table[ids]).all()
    assert tiny.apart(drafter.head(table[:3]), table[:3] @ head.T) < 1e-4
    assert tiny.apart(shared.embed(ids), table[ids]) > 0.1


def mask_row() -> mx.array:
    """A row as no embedding has it."""
    return mx.sin(mx.arange(64)).astype(mx.bfloat16)


def test_mask_embedding(tmp_path: Path) -> None:
    """The drafter's own row stands in for the mask token's, and only for it."""
    source = tiny.GOLDEN / "qwen3_full"
    draft = tmp_path / "draft"
    shutil.copytree(source / "draft", draft)
    edit_weights(draft, lambda weights: weights.update(mask_embedding=mask_row()))
    pair, plain = load(source / "target", draft), load(source / "target", source / "draft")
    assert isinstance(pair.drafter, DFlashDrafter)
    assert isinstance(plain.drafter, DFlashDrafter)
    ids = mx.array([[4, tiny.MASK, tiny.MASK]])
    ours, before = pair.drafter.embed(ids)[0], plain.drafter.embed(ids)[0]
    assert (ours[0] == before[0]).all()
    assert (ours[1:] == mask_row()).all()
    assert tiny.apart(ours[1], before[1]) > 0.1
    assert_lossless(pair)


def test_a_mask_embedding_is_refused_in_a_file_of_pytorch(tmp_path: Path) -> None:
    """Without it the drafter would guess worse, and nobody would know why."""
    target, draft = tiny.save_pair(tmp_path, tiny.draft_settings)
    (draft / MASK_FILE).write_bytes(b"")
    refused(f"PyTorch file .'{MASK_FILE}'., which is not read", target, draft)
