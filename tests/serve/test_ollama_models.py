"""What apps are told of a model: read from its folder, or from a loaded pair."""

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_mlx.files.checkpoint import Checkpoint, TensorHeader
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.pair import Pair
from dflash_mlx.serve.ollama_models import ModelCard, count_parameters, quantisation_of, read_card

QWEN = "{% if tools %}{{ tools }}{% endif %}{% if enable_thinking %}<think>{% endif %}"


def folder(path: Path, tokenizer: dict[str, Any]) -> Checkpoint:
    """A model's folder without weights."""
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return Checkpoint.read(path)


def test_quantised_weights_are_counted_unpacked() -> None:
    """64 weights of 4 bits in each row of 8 numbers; their scales and biases do not count."""
    tensors = {
        "layer.weight": TensorHeader("U32", [10, 8], 320),
        "layer.scales": TensorHeader("F16", [10, 1], 20),
        "layer.biases": TensorHeader("F16", [10, 1], 20),
        "norm.weight": TensorHeader("F16", [64], 128),
    }
    config = {"quantization": {"group_size": 64, "bits": 4}}
    assert count_parameters(tensors, config) == 10 * 64 + 64
    assert quantisation_of(tensors, config) == "4bit"
    assert quantisation_of({"norm": tensors["norm.weight"]}, {}) == "F16"
    assert quantisation_of({}, {}) == ""


@pytest.mark.parametrize(
    ("count", "text"), [(4_020_000_000, "4.0B"), (4_920_768, "4.9M"), (2048, "2.0K"), (0, "")]
)
def test_sizes_in_words(count: int, text: str) -> None:
    assert ModelCard(parameters=count).size_text == text


@pytest.mark.parametrize(
    ("template", "abilities"),
    [
        (QWEN, ("completion", "tools", "thinking")),
        ([{"name": "tool_use", "template": QWEN}, {"name": "default", "template": "{{ m }}"}],
         ("completion",)),
        (None, ("completion",)),
    ],
)  # fmt: skip
def test_abilities_of_a_folder(tmp_path: Path, template: Any, abilities: tuple[str, ...]) -> None:
    card = read_card(folder(tmp_path, {"chat_template": template}))
    assert card.abilities == abilities
    assert card.parameters == 0


def test_a_template_in_a_file_of_its_own(tmp_path: Path) -> None:
    checkpoint = folder(tmp_path, {"chat_template": "old"})
    (tmp_path / "chat_template.jinja").write_text(QWEN)
    assert read_card(checkpoint).template == QWEN


def test_a_loaded_pair_tells_the_same_as_its_folder(pair: Pair) -> None:
    """Its abilities are found by rendering, those of a folder in the template's text."""
    checkpoint = Checkpoint.read(bundled("target"))
    alone, loaded = read_card(checkpoint), read_card(checkpoint, pair)
    assert alone == loaded
    assert alone.parameters > 1_000_000
