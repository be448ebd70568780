"""Every published kind of drafter that is not loaded gets a sentence that names it."""

import pytest

from dflash_mlx.drafters.load import check_drafter
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub import registry
from dflash_mlx.hub.kinds import KINDS, LOADED, REFUSED, refused_kind
from dflash_mlx.hub.resolve import pair_names

QWEN = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 100}


@pytest.mark.parametrize(("part", "kind"), REFUSED.items())
def test_a_kind_that_is_not_loaded_is_named(part, kind, tmp_path):
    """Not "there is no tokenizer", and not a tensor that nobody has asked for."""
    config = {**QWEN, "architectures": [f"{part.title()}DraftModel"], "dflash_config": {}}
    with pytest.raises(DFlashError, match=f"'owner/draft' is of the kind {kind}, which") as refused:
        check_drafter(Checkpoint(tmp_path, config, "owner/draft"), Checkpoint(tmp_path, QWEN))
    assert "lookup" in refused.value.hint


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"auto_map": {"AutoModel": "modeling_longspark.LongSpark"}}, "LongSpark"),
        ({"speculators_model_type": "peagle"}, "P-EAGLE"),
        ({"speculators_model_type": "mtp"}, "FastMTP"),
        ({"model_type": "glm4_moe_lite_mtp"}, "MTP head of GLM-4.7-Flash"),
        ({"architectures": ["MiniMaxDFlash2DraftModel"]}, "MiniMax DFlash 2"),
        ({"architectures": ["DFlashLagunaForCausalLM"], "dflash_config": {}}, "DFlash of Laguna"),
        ({"architectures": ["LagunaForCausalLM"], "model_type": "laguna"}, ""),
        ({"model_type": "qwen3_5_mtp"}, ""),
    ],
)
def test_where_the_name_stands(config, kind):
    """Anywhere in config.json; what is loaded, and a target, are not taken for such a kind."""
    assert refused_kind(config) == kind


def test_an_unknown_architecture_is_named(tmp_path):
    """It has no tokenizer, so it is no language model."""
    config = {**QWEN, "architectures": ["SomethingNew"]}
    with pytest.raises(DFlashError, match=r"SomethingNew.* is no drafter of a known"):
        check_drafter(Checkpoint(tmp_path, config), Checkpoint(tmp_path, QWEN))


def test_a_listed_drafter_is_refused_before_it_is_downloaded():
    """Whatever its config says: the registry has the kind."""
    refused = [entry for entry in registry.entries() if entry.kind in REFUSED]
    assert refused
    for entry in refused:
        if entry.own_head:
            continue
        kind = KINDS[entry.kind]
        with pytest.raises(DFlashError, match=f"'{entry.draft}' is of the kind {kind}, which"):
            pair_names("owner/target", entry.draft)
    for entry in registry.entries():
        if entry.kind in LOADED:
            assert pair_names("owner/target", entry.draft).draft == entry.draft
