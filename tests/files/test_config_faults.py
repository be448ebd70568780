"""JSON files of a model's folder from other programs: marks at their start, missing entries."""

import codecs
import json
from pathlib import Path

import pytest
import tiny
from adapters import save_adapter
from checkpoint_edits import edit_config, refused

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.cache import first_missing_file
from dflash_mlx.pair import load
from dflash_mlx.train.new_drafter import DrafterShape, layer_sizes

MARKED = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return tiny.save_pair(tmp_path / "pub", tiny.draft_settings)


@pytest.mark.parametrize("encoding", MARKED)
def test_a_mark_at_the_start_is_no_text(pair: tuple[Path, Path], encoding: str) -> None:
    """In each JSON file and template of both folders."""
    target, draft = pair
    (target / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (target / "generation_config.json").write_text('{"eos_token_id": 5, "temperature": 0.5}')
    index = {"weight_map": {"lm_head.weight": "model.safetensors"}}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    for folder in pair:
        for file in [*folder.glob("*.json"), *folder.glob("*.jinja")]:
            file.write_bytes(MARKED[encoding] + file.read_text().encode(encoding))
    loaded = load(str(target), str(draft))
    assert loaded.drafter is not None
    assert 5 in loaded.target.eos_ids
    assert loaded.template.write([{"role": "user", "content": "hi"}]) == "hi"
    assert first_missing_file(target) == ""
    assert tiny.memory_of(target, draft).weights > 0


def test_of_an_adapter(pair: tuple[Path, Path], tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter", pair[0])
    config = adapter / "adapter_config.json"
    config.write_bytes(codecs.BOM_UTF8 + config.read_bytes())
    assert load(str(pair[0]), no_draft=True, adapter=str(adapter)).target.adapter is not None


@pytest.mark.parametrize("name", ["num_attention_heads", "hidden_size"])
def test_an_entry_that_is_missing(pair: tuple[Path, Path], name: str) -> None:
    """Of a target and of a drafter; so says the estimate of their memory, which comes first."""
    target, draft = pair
    edit_config(draft, head_dim=None, **{name: None})
    refused(f"has no '{name}'", str(target), str(draft))
    with pytest.raises(DFlashError, match=f"has no '{name}'"):
        tiny.memory_of(target, draft)
    edit_config(target, **{name: None})
    refused(name, str(target), no_draft=True)
    with pytest.raises(DFlashError, match=name):
        tiny.memory_of(target, None)


def test_a_drafter_for_a_target_that_names_no_heads() -> None:
    """As Gemma 3, whose config leaves them to the class: they are those of its attention."""
    target = tiny.make_target("qwen3")
    wanted = layer_sizes(target, DrafterShape())
    del target.config["num_attention_heads"]
    assert layer_sizes(target, DrafterShape()) == wanted


@pytest.mark.parametrize(
    ("quantisation", "reason"),
    [
        ({"bits": 4, "group_size": 64}, "in a format that its config.json does not name"),
        ("fp8", "stored as FP8"),
        ([1], r"stored as \[1\]"),
    ],
)
def test_a_quantisation_in_another_form(
    pair: tuple[Path, Path], quantisation: object, reason: str
) -> None:
    edit_config(pair[0], quantization_config=quantisation)
    refused(reason, str(pair[0]), no_draft=True)
