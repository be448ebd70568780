"""What a Mac's owner runs and sends back, and where tests compute on a Mac."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import devices
import mlx.core as mx
import pytest
import yaml
from terminal import environment

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "measure"))
    return import_module("mac_report")


@pytest.mark.slow
def test_a_report_of_this_machine(tmp_path: Path) -> None:
    """All steps run with the bundled pair; without an Apple GPU the report says so and ends with 1.

    The user's settings are left out: these name a model that is not there.
    """
    (tmp_path / "dflash").mkdir()
    (tmp_path / "dflash" / "config.toml").write_text('model = "./none"')
    settings = {"XDG_CONFIG_HOME": str(tmp_path), "DFLASH_MODEL": "./nothing"}
    command = [
        sys.executable,
        str(ROOT / "examples" / "measure" / "mac_report.py"),
        "--out",
        "found",
    ]
    size = ["--prompts", "1", "--max-tokens", "12"]
    done = subprocess.run(
        [*command, *size],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    text = (tmp_path / "found.md").read_text("utf-8")
    steps = {step["name"]: step for step in found["steps"]}
    assert list(steps) == ["doctor", "kernels", "parity tests", "bench, bundled pair"], done.stderr
    tests, bench = steps["parity tests"]["result"], steps["bench, bundled pair"]["result"]
    assert tests["tests"] > 10
    assert {row["mode"] for row in bench["rows"]} == {"baseline", "dflash", "auto"}
    assert {"chip", "memory", "system", "device"} <= set(bench["machine"])
    assert {"dflash", "mlx", "mlx_lm", "python"} <= set(bench["versions"])
    assert "answers" not in bench
    assert "| dflash | 0 |" in text
    assert done.stderr.count(" of 4 · ") == 4
    assert text.startswith(f"# {found['label']}\n")
    assert {steps[name]["status"] for name in ("doctor", "bench, bundled pair")} == {"ok"}
    if not mx.metal.is_available():
        assert done.returncode == 1
        assert "no Apple GPU here" in done.stdout.splitlines()[0]
        assert tests["skipped"] == tests["tests"]


def outcome(report: Any, name: str, status: str = "ok", **result: Any) -> Any:
    """What became of a step."""
    return report.Outcome(name, status, 1.0, 0, result or None, "")


def test_the_first_line(report: Any) -> None:
    """A real GPU is named, a virtual one is told apart, and what failed is listed."""
    well = [outcome(report, "kernels", device="Apple M4")]
    assert report.label_of(well) == "Apple M4"
    failed = [*well, outcome(report, "parity tests", "failed")]
    assert report.label_of(failed) == "Apple M4 · not well: parity tests"
    virtual = [outcome(report, "kernels", device="Apple Paravirtual device")]
    assert "times say nothing" in report.label_of(virtual)
    assert report.label_of([outcome(report, "kernels", note="none")]) == report.NOTHING
    assert report.label_of([outcome(report, "kernels", "failed")]) == report.NOTHING


def test_a_step_that_hangs_or_breaks_is_a_line(report: Any, tmp_path: Path) -> None:
    """It is ended at its limit, its exit code and last words are kept, and the others go on."""

    def step(program: str, limit: float = 20.0) -> Any:
        made = report.Step("x", [sys.executable, "-c", program], limit, report.read_json)
        return report.run_step(made, 100.0, tmp_path)

    assert step("import time; time.sleep(9)", 1.5).status == "took too long"
    broken = step("import sys; sys.exit('no GPU')")
    assert (broken.status, broken.exit_code, broken.errors) == ("failed", 1, "no GPU\n")
    assert step("print('no json')").status == "failed"
    wrong = step("import sys; print('{\"ok\": false}'); sys.exit(1)")
    assert (wrong.status, wrong.result) == ("failed", {"ok": False})
    assert step("print('{}')", 0.5).status == "skipped"


def test_failed_tests_are_told(report: Any, tmp_path: Path) -> None:
    """With names and messages, from what pytest writes."""
    (tmp_path / "tests.xml").write_text(
        '<testsuites><testsuite tests="3" failures="1" errors="1" skipped="0">'
        '<testcase name="a"/><testcase name="b"><failure message="off by 0.3"/></testcase>'
        '<testcase name="c"><error message="no"/></testcase></testsuite></testsuites>'
    )
    found = report.read_tests("", tmp_path)
    assert found["failed"] == {"b": "off by 0.3", "c": "no"}
    assert report.details(found)[1:] == ["- b: off by 0.3", "- c: no"]


def test_verdicts_are_told(report: Any) -> None:
    """A wrong kernel cannot be overlooked."""
    kernel = {"name": "verify_attention", "right": False, "ratio": None, "reason": "differs by 0.3"}
    said = report.details({"ok": False, "kernels": [kernel]})
    assert said == ["- verify_attention: WRONG · differs by 0.3"]


def test_the_published_pair_is_the_smallest_on_the_disk(
    report: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is named that would have to be downloaded, or that is too large."""
    kept = {"mlx-community/Qwen3-8B-4bit", "z-lab/Qwen3-8B-DFlash-b16", "Qwen/Qwen3-8B"}
    monkeypatch.setattr(report, "cached_state", lambda repo: "yes" if repo in kept else "no")
    assert report.small_pair(64 * 10**9) == "mlx-community/Qwen3-8B-4bit"
    assert report.small_pair(10**9) is None
    kept.remove("z-lab/Qwen3-8B-DFlash-b16")
    assert report.small_pair(64 * 10**9) is None


@pytest.mark.parametrize(
    ("metal", "wanted", "expected"),
    [(False, "cpu", [mx.cpu]), (True, "cpu", [mx.gpu]), (False, "", []), (True, "", [])],
)
def test_the_device_of_a_test(
    metal: bool, wanted: str, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DFLASH_TEST_DEVICE=cpu keeps the GPU for those that ask for it by their mark."""
    chosen: list[Any] = []
    monkeypatch.setattr(mx, "set_default_device", chosen.append)
    monkeypatch.setattr(devices, "DEVICE", wanted)
    test: Any = SimpleNamespace(get_closest_marker=lambda name: metal or None)
    devices.use_device(test)
    assert chosen == expected


PROGRAM = """
import os
import dflash_mlx.engine.worker_thread
import mlx.core as mx
dflash_mlx.engine.worker_thread.mlx_thread()
print(mx.default_device().type.name, os.environ["DFLASH_KERNELS"])
"""


@pytest.mark.parametrize("variables", ["its test's", "a terminal's"])
def test_a_program_that_a_test_starts(variables: str, tmp_path: Path) -> None:
    """Its kernels are MLX's own, and DFLASH_TEST_DEVICE=cpu keeps it from the GPU, too."""
    kept = dict(os.environ) if variables == "its test's" else environment(tmp_path)
    assert kept["DFLASH_KERNELS"] == "stock"
    assert kept.get("DFLASH_DEVICE", "") == devices.DEVICE
    command = [sys.executable, "-c", PROGRAM]
    kept["DFLASH_DEVICE"] = "cpu"
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=True)
    assert done.stdout == "cpu stock\n"


def jobs(name: str) -> dict[str, Any]:
    """The jobs of a workflow."""
    return yaml.safe_load((WORKFLOWS / name).read_text("utf-8"))["jobs"]


def test_hosted_macs_prove_nothing() -> None:
    """Their virtual GPU may fail without failing the run, and nothing is timed on it."""
    hosted = jobs("ci.yml")
    assert "macos-15" in hosted["check"]["strategy"]["matrix"]["os"]
    assert hosted["check"]["env"]["DFLASH_TEST_DEVICE"] == "cpu"
    assert hosted["metal"]["continue-on-error"] is True
    said = [step.get("run", "") for step in hosted["metal"]["steps"]]
    assert not [line for line in said if "bench" in line or "doctor" in line]
    own = jobs("mac.yml")["report"]
    assert "self-hosted" in own["runs-on"]
    assert any(step.get("run") == "make mac-report" for step in own["steps"])
    assert "macos-14" not in "".join(file.read_text("utf-8") for file in WORKFLOWS.iterdir())
