"""What a Mac's owner runs and sends back, and where tests compute on a Mac."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
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
    script = ROOT / "examples" / "measure" / "mac_report.py"
    command = [sys.executable, str(script), "--out", "found"]
    size = ["--prompts", "1", "--max-tokens", "12", "--long-run", "2"]
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
    pair = "bundled pair"
    assert list(steps) == [
        "machine",
        f"first start, {pair}",
        f"second start, {pair}",
        *("doctor", "kernels", "parity tests", f"bench, {pair}"),
        f"memory, {pair}",
        f"long run, {pair}",
    ], done.stderr
    phases = [steps[f"{which} start, {pair}"]["result"]["phases"] for which in ("first", "second")]
    assert {"import", "load", "first answer"} <= phases[0].keys()
    checks = {name for name in phases[0] if name.startswith("check")}
    assert phases[1].keys() == phases[0].keys() - checks  # kernels are known then
    assert len(steps[f"long run, {pair}"]["result"]["tok_s"]) == 2
    assert [line["tokens"] for line in steps[f"memory, {pair}"]["result"]["contexts"]] == [
        *(4096, 16384, 32768)
    ]
    tests, bench = steps["parity tests"]["result"], steps["bench, bundled pair"]["result"]
    assert tests["tests"] > 10
    assert {row["mode"] for row in bench["rows"]} == {"baseline", "dflash", "auto"}
    assert {"chip", "memory", "system", "device"} <= set(bench["machine"])
    assert {"dflash", "mlx", "mlx_lm", "python"} <= set(bench["versions"])
    assert "answers" not in bench
    assert "| dflash | 0 |" in text
    assert done.stderr.count(" of 9 · ") == 9
    assert text.startswith(f"# {found['label']}\n")
    assert {step["status"] for step in found["steps"] if step["name"] != "parity tests"} == {"ok"}
    assert (tmp_path / "found-tests.xml").exists()
    if not mx.metal.is_available():
        assert done.returncode == 1
        assert "no Apple GPU here" in done.stdout.splitlines()[0]
        assert tests["skipped"] == tests["tests"]


def test_a_step_that_hangs_or_breaks_is_a_line(report: Any, tmp_path: Path) -> None:
    """It is ended at its limit, its exit code and last words are kept, and the others go on."""

    def step(program: str, limit: float = 20.0, read: Any = None) -> Any:
        made = report.Step("x", [sys.executable, "-c", program], limit, read or report.read_json)
        return report.run_step(made, 100.0, tmp_path)

    assert step("import time; time.sleep(9)", 1.5).status == "took too long"
    told = 'print(\'{"a": 1}\\n{"b": 2}\\n{"c": \', end=\'\', flush=True)'
    late = step(f"import time; {told}; time.sleep(9)", 1.5, report.read_lines)
    assert (late.status, late.result) == ("took too long", {"a": 1, "b": 2})
    broken = step("import sys; sys.exit('no GPU')")
    assert (broken.status, broken.exit_code, broken.errors) == ("failed", 1, "no GPU\n")
    assert step("print('no json')").status == "failed"
    assert step("pass", read=report.read_lines).status == "failed"
    wrong = step("import sys; print('{\"ok\": false}'); sys.exit(1)")
    assert (wrong.status, wrong.result) == ("failed", {"ok": False})
    assert step("print('{}')", 0.5).status == "skipped"


def test_a_report_that_is_interrupted(report: Any, tmp_path: Path) -> None:
    """The files have the steps before, and what pytest and the self-check left."""

    def pressed(*_: Any) -> None:
        raise KeyboardInterrupt

    program = [sys.executable, "-c", "print('{\"checks\": []}')"]
    steps = [report.Step(name, program, 20.0, report.read_json) for name in ("a", "b")]
    steps.append(report.Step("c", program, 20.0, pressed))
    (tmp_path / "dflash").mkdir()
    for file in ("tests.xml", "dflash/kernels.json"):
        (tmp_path / file).write_text("kept")
    asked = SimpleNamespace(out=tmp_path / "out", seconds=60.0)
    with pytest.raises(KeyboardInterrupt):
        report.run_steps(steps, asked, tmp_path)
    found = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert [step["name"] for step in found["steps"]] == ["a", "b"]
    assert "| b | ok |" in (tmp_path / "out.md").read_text("utf-8")
    for name in ("out-tests.xml", "out-kernels.json"):
        assert (tmp_path / name).read_text() == "kept"


def test_verdicts_are_told(report: Any) -> None:
    """A wrong kernel cannot be overlooked; times are told by size, of a machine."""
    wrong = {"name": "verify_attention", "right": False, "ratio": None, "reason": "differs by 0.3"}
    slow = {"name": "small_m_qmm", "right": True, "ratio": 1.2, "reason": "1.2x as slow"}
    sizes = [[[16, 4096, 1024], 2e-3, 0.5, True], [None, 1e-3, 1.5, False]]
    zeros = {"name": "padded_rows", "right": True, "ratio": 0.9, "reason": ""}
    kernels = [{**wrong, "sizes": []}, {**slow, "sizes": sizes}, {**zeros, "sizes": []}]
    assert report.details({"ok": False, "kernels": kernels}, "M4") == [
        "- verify_attention: WRONG · differs by 0.3",
        "- small_m_qmm: right · 1.20 of the time without it · 1.2x as slow",
        "- padded_rows: right · 0.90 of the time without it",
        "",
        "| machine | kernel | size | ms | of the time without it | used |",
        "|---|---|---|---|---|---|",
        "| M4 | small_m_qmm | 16×4096×1024 | 2.000 | 0.50 | yes |",
        "| M4 | small_m_qmm | the model's | 1.000 | 1.50 | no |",
    ]


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


def jobs(name: str) -> dict[str, Any]:
    return yaml.safe_load((WORKFLOWS / name).read_text("utf-8"))["jobs"]


def commands(job: dict[str, Any]) -> list[list[str]]:
    return [shlex.split(step["run"]) for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("name", ["ci.yml", "mac.yml"])
def test_the_commands_of_a_workflow_exist(name: str, report: Any) -> None:
    """Targets of the Makefile, files of this clone, and options that are known."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    for command in [words for job in jobs(name).values() for words in commands(job)]:
        if command[0] == "make":
            assert command[1] in targets, command
            for words in command[2:]:
                assert words.startswith("REPORT=")
                report.options(shlex.split(words.removeprefix("REPORT=")))
        for word in command:
            if word.startswith((".ci/", "tests/", "examples/")):
                assert (ROOT / word).exists(), command


def test_what_a_hosted_mac_does() -> None:
    """The kernels on its GPU, which must be there; nothing timed may fail it.

    The steps end before the job does, which would drop their files.
    """
    metal = jobs("ci.yml")["metal"]
    strict = [step for step in metal["steps"] if not step.get("continue-on-error", False)]
    said = " ".join(step.get("run", "") for step in strict)
    assert "--need-gpu" in said
    assert "-m metal" in said
    assert "doctor --kernels" in said
    assert "mac-report" not in said
    own = jobs("mac.yml")["report"]
    for job in (metal, own):
        *steps, last = job["steps"]
        limits = [step["timeout-minutes"] for step in steps if "run" in step]
        assert sum(limits) < job["timeout-minutes"]
        assert last["uses"].startswith("actions/upload-artifact")
        assert last["if"] == "always()"
        assert "mac-report*" in last["with"]["path"].split()
