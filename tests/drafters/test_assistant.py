"""Meta's own drafter of Muse Glimmer: transformers' results, and what its files are read as."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from lossless import assert_lossless

from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.pair import load

GOLDEN = tiny.GOLDEN / "assistant"
TARGET = tiny.GOLDEN / "qwen3_full" / "target"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The golden drafter as transformers runs it: its head has no factor.

    A row sees one that is `sliding_window` before it, too; elsewhere distances are smaller.
    """
    raw = json.loads((GOLDEN / "draft" / "config.json").read_text())
    raw |= {"output_multiplier": 1.0, "final_logit_softcapping": 0.0}
    raw["sliding_window"] += 1
    (tmp_path / "config.json").write_text(json.dumps(raw))
    weights = GOLDEN / "draft" / "model.safetensors"
    (tmp_path / "model.safetensors").write_bytes(weights.read_bytes())
    return tmp_path


def test_logits_are_those_of_transformers(folder: Path) -> None:
    """Blocks after contexts shorter than the window and longer."""
    pair = load(TARGET, folder, cache_ram=0)
    expected = json.loads((GOLDEN / "expected.json").read_text())
    tokens = expected["tokens"]
    for length, logits in zip(expected["lengths"], expected["logits"], strict=True):
        sequence = Sequence(pair.target, pair.drafter)
        sequence.read(tokens[:length])
        assert sequence.draft_cache is not None
        ours = np.array(sequence.draft_cache.draft_logits(tokens[length], 8))
        assert np.abs(ours - np.array(logits)).max() < 1e-4


def test_the_published_folder_drafts() -> None:
    """As it is, with the factor and the softcap of the target it is for."""
    pair = load(TARGET, GOLDEN / "draft", cache_ram=0)
    assert pair.drafter is not None
    assert pair.drafter.config.final_logit_softcapping == 20.0
    assert_lossless(pair)


def test_the_published_config() -> None:
    """meta-models/Muse-Glimmer-30B-assistant: what it does not say is its target's."""
    raw = json.loads((GOLDEN / "draft" / "config.json").read_text())
    raw |= {"hidden_size": 6656, "block_size": 16, "mask_token_id": 201818, "sliding_window": 2048}
    del raw["vocab_size"]
    config = parse(raw)
    assert (config.vocab_size, config.block_size, config.window) == (202048, 16, 2048)
    assert config.output_multiplier == pytest.approx((6656 / 256) ** -0.5)
    assert config.is_causal is False
