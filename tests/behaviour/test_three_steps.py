"""The bundled pair completes a task of three steps with tools in Python.

With drafts, it runs the same calls and gets the same answers as with plain decoding.
"""

import json
from typing import Literal

import pytest
from desk_tools import CALLS, REPORT, TASK, TOOLS

import dflash_mlx
from dflash_mlx import Pair, SamplingParams, tools

Mode = Literal["baseline", "dflash"]
MODES: tuple[Mode, Mode] = ("baseline", "dflash")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return dflash_mlx.load()


def run_in_python(pair: Pair, mode: Mode, temperature: float) -> tools.Answered:
    """The task by `tools.run`."""
    sampling = SamplingParams(temperature=temperature, seed=4)
    return tools.run(pair, TASK, TOOLS, mode=mode, sampling=sampling, max_tokens=200)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_in_python(pair: Pair, temperature: float) -> None:
    plain, drafted = (run_in_python(pair, mode, temperature) for mode in MODES)
    assert drafted.messages == plain.messages
    assert sum(stats.accepted for stats in drafted.stats) > 20
    if temperature == 0:
        made = [call for step in drafted.steps for call in step.calls]
        assert [(c.name, json.loads(c.arguments), c.result) for c in made] == CALLS
        assert drafted.text == REPORT
