"""Every published kind of drafter that is not loaded gets a sentence that names it."""

import pytest

from dflash_mlx.drafters.load import check_drafter
from dflash_mlx.drafters.refused import NAMES
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.hub import registry
from dflash_mlx.hub.kinds import KINDS, LOADED
from dflash_mlx.hub.resolve import pair_names

QWEN = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 100}
CONFIGS = [
    ({**QWEN, "architectures": ["DominoDraftModel"], "dflash_config": {}}, "the kind Domino"),
    ({**QWEN, "architectures": ["OrthrusForCausalLM"]}, "the kind Orthrus"),
    ({**QWEN, "auto_map": {"AutoModel": "modeling_longspark.LongSpark"}}, "the kind LongSpark"),
    ({**QWEN, "architectures": ["D3DDraftModel"]}, "the kind D3D"),
    ({**QWEN, "architectures": ["DFlareDraftModel"]}, "the kind DFlare"),
    ({**QWEN, "architectures": ["XPressDraftModel"]}, "the kind xPress"),
    ({**QWEN, "architectures": ["TreeFlashModel"]}, "the kind TreeFlash"),
    ({"speculators_model_type": "peagle"}, "the kind P-EAGLE"),
    ({"speculators_model_type": "mtp"}, "the kind FastMTP"),
    ({"architectures": ["LagunaDFlashDraftModel"]}, "the kind DFlash of Laguna"),
    ({"model_type": "deepseek_v4_mtp"}, "the kind MTP head of deepseek_v4"),
    ({"model_type": "glm4_moe_lite_mtp"}, "the kind MTP head of glm4_moe_lite"),
    ({"model_type": "inkling_mtp"}, "the kind MTP head of inkling"),
    ({"architectures": ["MiniMaxDFlash2DraftModel"], "dflash_config": {}}, "'MiniMaxDFlash2"),
    (
        {**QWEN, "architectures": ["SomethingNew"]},
        "SomethingNew.* is no drafter of a known",
    ),
]


@pytest.mark.parametrize(("config", "words"), CONFIGS)
def test_a_kind_that_is_not_loaded_is_named(config, words, tmp_path):
    """Not "there is no tokenizer", and not a tensor that nobody has asked for."""
    target = Checkpoint(tmp_path, QWEN)
    with pytest.raises(DFlashError, match=words) as refused:
        check_drafter(Checkpoint(tmp_path, config, "owner/draft"), target)
    assert "lookup" in refused.value.hint or "models list" in refused.value.hint


def test_a_listed_drafter_is_refused_before_it_is_downloaded():
    """Whatever its config says: the registry has the kind."""
    refused = [entry for entry in registry.entries() if entry.kind not in LOADED]
    assert refused
    for entry in refused:
        if entry.own_head:
            continue
        with pytest.raises(DFlashError, match=f"'{entry.draft}' is of the kind"):
            pair_names("owner/target", entry.draft)
    for entry in registry.entries():
        if entry.kind in LOADED:
            assert pair_names("owner/target", entry.draft).draft == entry.draft


def test_kinds_that_are_loaded_are_not_refused():
    """A name in the table of refusals would hide a kind that is loaded."""
    assert not {KINDS[kind] for kind in LOADED} & set(NAMES.values())
