"""A drafter that was made for other weights of the same shapes is told by the names."""

import json
from importlib import import_module
from types import SimpleNamespace

import pytest

from dflash_mlx.hub.registry import other_weights, targets_of

FLASH = "RedHatAI/DeepSeek-V4-Flash-speculator.dflash"


def speculators(name):
    return {"speculators_config": {"verifier": {"name_or_path": name}}}


@pytest.mark.parametrize(
    ("target", "draft", "config"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash-0731", FLASH, {}),
        ("someone/DeepSeek-V4-Flash-0731-4bit", FLASH, {}),
        ("./models/DeepSeek-V4-Flash-0731", FLASH, {}),
        ("Qwen/Qwen3.6-27B", "z-lab/Qwen3.5-27B-DFlash", {}),
        ("mlx-community/Qwen3.6-27B-4bit", "Z-Lab/qwen3.5-27b-dflash", {}),
        ("Qwen/Qwen3-30B-A3B", "a/b", speculators("Qwen/Qwen3-30B-A3B-Instruct-2507")),
        ("x/Qwen3-4B-Instruct-2507", "z-lab/Qwen3-4B-DFlash-b16", {}),
    ],
)
def test_other_weights_are_told(target, draft, config):
    line = other_weights(target, draft, config)
    assert f"'{draft}' was made for {targets_of(draft, config)[0]}" in line
    assert f"'{target}'" in line


@pytest.mark.parametrize(
    ("target", "draft", "config"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", FLASH, {}),
        ("mlx-community/Qwen3-8B-4bit", "z-lab/Qwen3-8B-DFlash-b16", {}),
        ("mlx-community/Qwen3-8B-8bit", "a/b", speculators("Qwen/Qwen3-8B")),
        ("someone/Qwen3-8B-abliterated", "z-lab/Qwen3-8B-DFlash-b16", {}),  # nobody knows
        ("./my-model", "z-lab/Qwen3-8B-DFlash-b16", {}),
        ("Qwen/Qwen3-8B", "./my-drafter", {}),
        ("Qwen/Qwen3-8B", "a/b", {"speculators_config": {"verifier": {"name_or_path": 3}}}),
        ("Qwen/Qwen3-8B", "a/b", {"speculators_config": None}),
        ("Qwen/Qwen3-8B", "lookup", {}),
    ],
)
def test_nothing_is_said_of_what_may_fit(target, draft, config):
    assert other_weights(target, draft, config) == ""


def test_the_warning_is_that_of_a_loaded_pair(tmp_path):
    """A folder's config names its target; without a drafter there is nothing to warn of."""
    (tmp_path / "config.json").write_text(json.dumps(speculators("Qwen/Qwen3-8B")))
    pair = SimpleNamespace(target_name="Qwen/Qwen3-4B", draft_name=str(tmp_path), drafter=object())
    warnings = import_module("dflash_mlx.cli.backend.local").other_weights_warnings
    (line,) = warnings(pair)
    assert "was made for Qwen/Qwen3-8B" in line
    pair.drafter = None
    assert warnings(pair) == []
