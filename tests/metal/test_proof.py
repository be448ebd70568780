"""The proof of every kernel in the emulator: broken ones are found, said and not used."""

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import mlx.core as mx
import pytest
import typer
from kernel_checks import GENERIC, compared
from typer.testing import CliRunner

import dflash_mlx
from dflash_mlx.kernels import dispatch
from dflash_mlx.kernels.source import Launcher, MetalLauncher, Source
from dflash_mlx.selfcheck import check, results
from dflash_mlx.selfcheck.results import KernelResult
from dflash_mlx.selfcheck.trials import TRIALS

from .emulator import Emulator, emulated
from .ours import Edit, Faulty

# Padded rows are multiplied by MLX: there is no source to emulate.
TRIAL = {trial.name: trial for trial in TRIALS if trial.name != "padded_rows"}
# Each gives other results in any order of threads.
FAULTS: list[tuple[str, Edit]] = [
    ("verify_accept", ("outcome[2] = chosen[end];", "outcome[2] = chosen[end - 1];")),
    ("verify_accept", ("0x7fffffffu) > 0x7f800000u", "0x7fffffffu) >= 0x7f800000u")),
    ("verify_accept_sample", ("exclusive_sum(own)", "inclusive_sum(own)")),
    ("verify_accept_sample", ("bits >> 8", "bits >> 9")),
    ("selector_walk", ("score[i] > score[best]", "score[i] >= score[best]")),
    ("selector_walk", ("hidden[slot * rank + r]", "hidden[r]")),
    ("small_m_qmm", ("fma(part[j], w[c][j]", "fma(part[j], w[c][0]")),
    ("small_m_qmm", ("weights, some[part]", "weights, some[0]")),
    ("grouped_experts", ("pair / (P / R)", "pair % R")),
    ("grouped_experts", ("expert * N + min", "min")),
    ("gated_delta_inputs", ("weight[c * K + tap]", "weight[c * K + W - tap]")),
    ("gated_delta_inputs", ("dt_bias[hv]", "dt_bias[0]")),
    ("gated_delta_tape", ("simd_shuffle_xor(x, step)", "simd_shuffle_xor(x, 1)")),
    ("gated_delta_tape", ("int i = 1; i < N", "int i = 0; i < N")),
    ("gated_delta_tree", ("parents[t] != t - 1", "parents[t] > t")),
    ("gated_delta_tree", ("a = t - 1; a >= 0", "a = t - 1; a > 0")),
    ("gated_delta_replay", ("layer * T + path[a]", "layer * T + a")),
    ("gated_delta_replay", ("uint from = row + n", "uint from = row + n + 1")),
    ("verify_attention", ("here - there < window", "here - there <= window")),
    ("verify_attention", ("(seen >> (i - old)) & 1", "1")),
    ("verify_attention", ("float weights = exp(sink - highest)", "float weights = 1.0f")),
]


class Neighbourly(MetalLauncher):
    """Several rows come out a little larger than one."""

    def __call__(self, source: Source, inputs: Any, **call: Any) -> list[mx.array]:
        first, *rest = super().__call__(source, inputs, **call)
        rows = inputs[0].shape[1] if "attention" in source.name else len(inputs[0])
        several = rows > 1 and source.name != "verify_attention_combine"
        larger = 2**-12 if first.dtype == mx.float32 else 2**-7
        return [(first * (1 + several * larger)).astype(first.dtype), *rest]


def result_of(name: str, launcher: Launcher) -> KernelResult:
    with emulated(strict=False):
        return compared(launcher, TRIAL[name])


@pytest.mark.quick_every(8)
@pytest.mark.parametrize("name", TRIAL)
def test_honest_kernels_are_right(name: str) -> None:
    """And nearer to their references than the proof asks for: by a step of bfloat16 at most."""
    found = result_of(name, MetalLauncher())
    assert found.right, found.reason
    assert found.error is not None
    assert found.error <= 2**-8


@pytest.mark.quick_every(4)
@pytest.mark.parametrize(("name", "edit"), FAULTS)
def test_broken_kernels_are_wrong(name: str, edit: Edit) -> None:
    """At least two faults an operation."""
    launcher = Faulty(edit)
    found = result_of(name, launcher)
    assert sum(launcher.found.values())
    assert not found.right
    assert "its reference" in found.reason or "no number" in found.reason


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("name", [trial.name for trial in TRIALS if trial.alone])
def test_bits_of_a_row_alone(name: str) -> None:
    """A kernel whose rows know how many they are is right, and for exactness it is wrong."""
    for launcher, exact, right in (
        (MetalLauncher(), True, True),
        (Neighbourly(), False, True),
        (Neighbourly(), True, False),
    ):
        with emulated(strict=False):
            shapes = replace(GENERIC, exact=exact)
            found = compared(launcher, TRIAL[name], shapes)
        assert found.right == right, found.reason
        assert right or "alone" in found.reason


class Lonely(MetalLauncher):
    """A kernel that cannot be built for a single row."""

    def __call__(self, source: Source, inputs: Any, **call: Any) -> list[mx.array]:
        if len(inputs[0]) == 1:
            raise RuntimeError("no such kernel")
        return super().__call__(source, inputs, **call)


def test_a_kernel_that_raises_for_a_row_alone_is_wrong() -> None:
    """And takes nothing with it; the cases of one row are left out, where it would show before."""
    trial = TRIAL["small_m_qmm"]
    several = replace(trial, cases=lambda shapes: [c for c in trial.cases(shapes) if len(c[0]) > 1])
    with emulated(strict=False):
        shapes = replace(GENERIC, exact=True)
        found = compared(Lonely(), several, shapes)
    assert not found.right
    assert found.reason.startswith("raised RuntimeError")


@pytest.fixture
def emulated_mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """A machine that seems to compute by Metal, where every kernel takes half of MLX's time."""
    monkeypatch.setattr(dispatch, "by_metal", lambda: True)
    monkeypatch.delenv("DFLASH_KERNELS")
    monkeypatch.setattr(check, "compare_times", lambda *_: (1e-3, 0.5))
    with emulated(strict=False) as emulator:
        yield emulator


@pytest.mark.slow
def test_doctor_and_answers_with_a_broken_kernel(
    emulated_mac: Emulator, monkeypatch: pytest.MonkeyPatch, cli_app: typer.Typer
) -> None:
    """Its line says `off`, others `ok`; answers are those of the references, and say so too."""

    def run(*args: str, code: int = 0) -> Any:
        result = CliRunner().invoke(cli_app, [*args])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if "--json" in args else result.stdout

    ask = ("generate", "What is 12 plus 7?", "--max-tokens", "12", "--json")
    with monkeypatch.context() as patch:
        patch.setenv("DFLASH_KERNELS", "stock")
        wanted = run(*ask)
        assert wanted["kernels"] is None
    name, edit = FAULTS[0]
    monkeypatch.setattr(dispatch, "MetalLauncher", lambda: Faulty(edit))
    shown = run("doctor", "--kernels", code=1)
    lines = [line.split(maxsplit=2) for line in shown.splitlines() if line[0] != " "]
    assert {line[1]: line[0] for line in lines} == {
        trial.name: "off" if trial.name == name else "ok" for trial in TRIALS
    }
    assert "decides otherwise than its reference" in shown
    found = run("doctor", "--kernels", "--json", code=1)
    assert found["ok"] is False
    assert [kernel["name"] for kernel in found["kernels"] if not kernel["right"]] == [name]

    emulated_mac.records.clear()
    said = run(*ask)
    assert said["tokens"] == wanted["tokens"]
    assert said["kernels"]["off"] == {name: "decides otherwise than its reference"}
    assert "verify_accept_sample" in said["kernels"]["on"]
    assert not any("argmax" in record.launch.name for record in emulated_mac.records)

    pair = dflash_mlx.load()
    notes = import_module("dflash_mlx.cli.backend.local")
    assert notes.kernel_warnings(pair.target.kernels) == [
        "kernel verify_accept off: decides otherwise than its reference (dflash doctor --kernels)"
    ]
    assert "verify_accept off: decides otherwise" in notes.kernels_line(pair.target.kernels)

    monkeypatch.setattr(dispatch, "MetalLauncher", MetalLauncher)
    results.STORE.path.unlink()
    said = run(*ask)
    assert said["tokens"] == wanted["tokens"]
    off = set(said["kernels"]["off"].values())
    assert off <= {results.UNTIMED, results.UNCHECKED}  # slow machines check no more
    assert any("argmax" in record.launch.name for record in emulated_mac.records)
