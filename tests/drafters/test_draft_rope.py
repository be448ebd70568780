"""The drafter's rotary embedding, held against complex numbers in numpy."""

import dataclasses
import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny

from dflash_mlx.drafters.dflash.model import DraftModel

DIMS, BASE = 64, 150_000.0
GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
KIMI = {**GPT_OSS, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 16.0}


def yarn_angles(scaling: dict[str, Any]) -> np.ndarray:
    """Radians a position of each pair of dimensions [DIMS / 2] in float64, one pair at a time.

    A pair that turns more than `beta_fast` times in the original context keeps its angle, one that
    turns less than `beta_slow` times has it divided by `factor`; between them the pair's number
    decides, not its angle.
    """
    context, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    ends = []
    for turns in (scaling.get("beta_fast", 32.0), scaling.get("beta_slow", 1.0)):
        # context * BASE ** (-2 n / DIMS) / 2 pi = turns, solved for n
        ends.append(DIMS / 2 * math.log(context / (2 * math.pi * turns), BASE))
    if scaling.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    angles = []
    for pair in range(DIMS // 2):
        divided = min(max((pair - ends[0]) / (ends[1] - ends[0]), 0.0), 1.0)
        angle = BASE ** (-2 * pair / DIMS)
        angles.append(angle * (1 - divided) + angle / factor * divided)
    return np.array(angles)


@pytest.mark.parametrize(
    ("more", "scale"),
    [
        (GPT_OSS, 1 + 0.1 * math.log(32)),
        ({**GPT_OSS, "truncate": True}, 1 + 0.1 * math.log(32)),
        ({**GPT_OSS, "truncate": False}, 1 + 0.1 * math.log(32)),
        ({**GPT_OSS, "attention_factor": 1.5}, 1.5),
        ({**KIMI, "truncate": False}, 1.0),
    ],
)
def test_yarn_is_that_of_transformers(more: dict[str, Any], scale: float) -> None:
    """Guards `truncate: false` and `attention_factor`, which mlx-lm's YaRN ignores."""
    config = dataclasses.replace(
        tiny.DRAFT_CONFIG, head_dim=DIMS, rope_theta=BASE, rope_scaling=more
    )
    rope = DraftModel(config, 12).layers[0].self_attn.rope
    x = mx.random.normal((2, 3, 5, DIMS), key=mx.random.key(1))
    offsets = np.array([0, 700])
    turns = np.exp(1j * np.multiply.outer(offsets[:, None] + np.arange(5), yarn_angles(more)))
    first, second = np.split(np.array(x).astype(np.float64), 2, axis=-1)
    turned = scale * (first + 1j * second) * turns[:, None]
    wanted = np.concatenate([turned.real, turned.imag], axis=-1)
    assert np.abs(np.array(rope(x, offset=mx.array(offsets))) - wanted).max() < 2e-3
    each = [np.array(rope(x[n : n + 1], offset=int(o))) for n, o in enumerate(offsets)]
    assert np.abs(np.concatenate(each) - wanted).max() < 2e-3
