"""A checkpoint is read once, and is recognised by its config.json."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.drafters import load as drafters
from dflash_mlx.drafters.load import KINDS, check_drafter, kind_of
from dflash_mlx.files.checkpoint import Checkpoint


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "language model"),
        ({"model_type": "llama"}, "language model"),
        ({}, "language model"),
        ({"architectures": ["DFlashDraftModel"]}, "dflash"),
        ({"dflash_config": {}}, "dflash"),
        ({"architectures": ["SomebodysDraftModel"]}, "dflash"),
        ({"architectures": ["MuseGlimmerAssistantModel"]}, "dflash"),
        ({"speculators_model_type": "dflash"}, "dflash"),
        ({"architectures": ["DFlash2DraftModel"]}, "dflash2"),
        ({"dflash_config": {"projector_type": "dflash2"}}, "dflash2"),
        ({"speculators_model_type": "dflash2"}, "dflash2"),
        ({"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"}, "dspark"),
        ({"architectures": ["DSparkDraftModel"], "dflash_config": {}}, "dspark"),
        ({"dflash_config": {"projector_type": "dspark"}}, "dspark"),
        ({"architectures": ["DFlashDraftModel"], "markov_rank": 8}, "dspark"),
        ({"architectures": ["DFlashDraftModel"], "markov_rank": 0}, "dflash"),
        ({"speculators_model_type": "dspark"}, "dspark"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"model_type": "llama", "draft_vocab_size": 32000}, "eagle3"),
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"model_type": "qwen3_5_mtp", "architectures": ["Qwen3_5MTPDraftModel"]}, "mtp"),
    ],
)
def test_formats(config: dict[str, Any], wanted: str) -> None:
    """By architecture, by nested config, and by the keys of exporters."""
    assert Checkpoint(Path("x"), config).format == wanted


def test_headers(tmp_path: Path) -> None:
    """Dtype, shape and bytes of each tensor over all files; read without the weights."""
    mx.save_safetensors(str(tmp_path / "model-1.safetensors"), {"a": mx.zeros((2, 3))})
    mx.save_safetensors(str(tmp_path / "model-2.safetensors"), {"b": mx.zeros(4, mx.bfloat16)})
    checkpoint = Checkpoint(tmp_path, {"model_type": "qwen3"})
    headers = {name: (t.dtype, t.shape, t.nbytes) for name, t in checkpoint.tensors.items()}
    assert headers == {"a": ("F32", [2, 3], 24), "b": ("BF16", [4], 8)}
    assert [file.name for file in checkpoint.weight_files] == [
        "model-1.safetensors",
        "model-2.safetensors",
    ]
    for file in checkpoint.weight_files:
        file.unlink()
    assert checkpoint.tensors.keys() == {"a", "b"}


def test_a_kind_may_be_part_of_the_targets_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter whose weights are the target's own needs one more entry in the table."""
    target = Checkpoint(Path("target"), {"model_type": "qwen3", "num_nextn_predict_layers": 1})
    checked: list[Checkpoint] = []
    heads = SimpleNamespace(
        matches=lambda checkpoint, target: checkpoint is target,
        check=lambda checkpoint, target: checked.append(checkpoint),
    )
    monkeypatch.setattr(drafters, "KINDS", (heads, *KINDS))
    check_drafter(target, target)
    assert checked == [target]
    other = Checkpoint(Path("draft"), {"model_type": "qwen3"})
    assert kind_of(other, target) is not heads
