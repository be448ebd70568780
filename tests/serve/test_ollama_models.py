"""What Ollama's apps are told of a model, from its folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.serve.ollama_models import Listed

QWEN = "{% if tools %}{{ tools }}{% endif %}{% if enable_thinking %}<think>{% endif %}"


def listed(path: Path, template: Any, **config: Any) -> Listed:
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3", **config}))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return Listed("qwen", {"size": 5}, Checkpoint.read(path))


@pytest.mark.parametrize(
    ("template", "capabilities"),
    [
        (QWEN, ["completion", "tools", "thinking"]),
        ([{"name": "tool_use", "template": QWEN}, {"name": "default", "template": "{{ m }}"}],
         ["completion"]),
        (None, ["completion"]),
    ],
)  # fmt: skip
def test_capabilities(tmp_path: Path, template: Any, capabilities: list[str]) -> None:
    assert listed(tmp_path, template).abilities["capabilities"] == capabilities


def test_a_template_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(QWEN)
    assert listed(tmp_path, "old").template == QWEN


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}, "dtype": "bfloat16"}, "4bit"),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({}, ""),
    ],
)
def test_details(tmp_path: Path, config: dict[str, Any], level: str) -> None:
    details = listed(tmp_path, None, **config).details
    assert details["family"] == "qwen3"
    assert details["quantization_level"] == level
