"""A checkpoint is read once, and is recognised by its config.json."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
import tiny

from dflash_mlx.drafters import load as drafters
from dflash_mlx.drafters.load import KINDS, check_drafter, kind_of
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint, text_config

# Prints which JSON files this package opens itself while it loads a pair.
COUNT_OPENS = """
import json, sys
from pathlib import Path
import dflash_mlx
from dflash_mlx import load
opened = []

def by_us():
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(("mlx_lm", "transformers", "tokenizers", "huggingface_hub")):
            return False
        if name.startswith("dflash_mlx"):
            return True
        frame = frame.f_back
    return False

def hook(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".json") and by_us():
        path = Path(str(arguments[0]))
        opened.append(f"{path.parent.name}/{path.name}")

sys.addaudithook(hook)
load(*sys.argv[1:], cache_ram=0)
print(json.dumps(opened))
"""


def opened_by_load(*names: str | Path) -> list[str]:
    """The JSON files of model folders that loading opens, as folder/file."""
    command = [sys.executable, "-c", COUNT_OPENS, *map(str, names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [name for name in json.loads(done.stdout) if name.startswith(("target/", "draft/"))]


def test_load_opens_each_config_once() -> None:
    """Of the bundled pair and of a pair in folders; no other JSON file is opened twice either."""
    folder = tiny.GOLDEN / "qwen3_full"
    for names in ((), (folder / "target", folder / "draft")):
        opened = opened_by_load(*names)
        assert opened.count("target/config.json") == 1
        assert opened.count("draft/config.json") == 1
        assert len(opened) == len(set(opened))


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


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    """A missing file, and one that is shorter than its header says."""
    checkpoint = Checkpoint(tmp_path, {})
    with pytest.raises(DFlashError, match="no weights"):
        _ = checkpoint.tensors
    file = tmp_path / "model.safetensors"
    mx.save_safetensors(str(file), {"a": mx.zeros(8)})
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DFlashError, match=r"model\.safetensors"):
        _ = checkpoint.tensors


def test_labels() -> None:
    """Messages use the label, or the folder's name."""
    assert Checkpoint(Path("a/b"), {}, "owner/model").name == "owner/model"
    assert Checkpoint(Path("a/b"), {}).name == "b"


def test_text_config() -> None:
    """The language model's entries come on top; the outer type stays."""
    nested = {"model_type": "outer", "hidden_size": 1, "text_config": {"hidden_size": 2}}
    assert text_config(nested)["hidden_size"] == 2
    assert text_config(nested)["model_type"] == "outer"
    assert text_config({"hidden_size": 1}) == {"hidden_size": 1}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"dflash_config": {}}, "dflash_mlx.drafters.dflash.load"),
        ({"architectures": ["Qwen3DSparkModel"]}, "dflash_mlx.drafters.dflash.load"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "dflash_mlx.drafters.eagle3.load"),
        ({"model_type": "qwen3_5_mtp"}, "dflash_mlx.drafters.mtp.load"),
        ({"model_type": "qwen3"}, "dflash_mlx.drafters.small_model"),
    ],
)
def test_kinds_of_drafters(config: dict[str, Any], kind: str) -> None:
    """Exactly one kind takes a checkpoint."""
    target = Checkpoint(Path("target"), {"model_type": "qwen3"})
    checkpoint = Checkpoint(Path("draft"), config)
    assert kind_of(checkpoint, target) is sys.modules[kind]
    assert [other.matches(checkpoint, target) for other in KINDS].count(True) == 1


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
