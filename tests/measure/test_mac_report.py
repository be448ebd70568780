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

import devices
import mlx.core as mx
import pytest
import yaml
from terminal import environment

from dflash_mlx.kernels import dispatch

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


def outcome(report: Any, name: str, status: str = "ok", **result: Any) -> Any:
    return report.Outcome(name, status, 1.0, 0, result or None, "")


def test_the_first_line(report: Any) -> None:
    """A real GPU is named, a virtual one is told apart, and what failed is listed."""
    facts = {"memory": 64 * 2**30, "system": "macOS 26.2"}
    well = [outcome(report, "machine", device="Apple M4", **facts)]
    assert report.machine_of(well) == "Apple M4, 64 GB"
    assert report.label_of(well) == "Apple M4, 64 GB · macOS 26.2"
    failed = [*well, outcome(report, "parity tests", "failed")]
    assert report.label_of(failed).endswith(" · macOS 26.2 · not well: parity tests")
    virtual = [outcome(report, "machine", device="Apple Paravirtual device", **facts)]
    assert "times say nothing" in report.label_of(virtual)
    assert report.label_of([outcome(report, "machine", device=None, **facts)]) == report.NOTHING
    assert report.label_of([outcome(report, "machine", "failed")]) == report.NOTHING
    assert report.machine_of([]).endswith(", no Apple GPU")


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


def test_failed_tests_are_told(report: Any, tmp_path: Path) -> None:
    """With names and messages, from what pytest writes."""
    (tmp_path / "tests.xml").write_text(
        '<testsuites><testsuite tests="3" failures="1" errors="1" skipped="0">'
        '<testcase name="a"/><testcase name="b"><failure message="off by 0.3"/></testcase>'
        '<testcase name="c"><error message="no"/></testcase></testsuite></testsuites>'
    )
    found = report.read_tests("", tmp_path)
    assert found["failed"] == {"b": "off by 0.3", "c": "no"}
    counts, *others = report.details(found, "M4")
    assert counts == "- tests 3, failures 1, skipped 0"
    assert others == ["- b: off by 0.3", "- c: no"]
    stopped = report.read_tests("session-timeout: 165.0 sec exceeded", tmp_path)
    assert report.details(stopped, "M4")[0] == f"{counts} · stopped: the time was spent"


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


def test_memory_heat_and_phases_are_told(report: Any) -> None:
    """In tables whose rows name the machine."""
    line = {"tokens": 4096, "active": 6e9, "peak": 7e9, "prompt_tok_s": 400.5, "tok_s": 30.1}
    note = {"tokens": 16384, "note": "the model has 8192"}
    lines = report.details({"loaded": 5e9, "contexts": [line, note]}, "M4")
    assert lines[-2:] == [
        "| M4 | 4,096 | 6.00 | 7.00 | 400.5 | 30.1 |",
        "| M4 | 16,384: the model has 8192 | – | – | – | – |",
    ]
    lines = report.details({"window": 60.0, "tok_s": [40.0, 35.0, 30.0]}, "M4")
    assert lines[-1] == "| M4 | 40.0 | 30.0 | 0.75 | 3 |"
    lines = report.details({"phases": {"import": 1.5, "load": 2.25}, "total": 3.75}, "M4")
    assert lines == [
        "| machine | import, s | load, s | total, s |",
        "|---|---|---|---|",
        "| M4 | 1.5 | 2.25 | 3.75 |",
    ]


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "measure"))
    return import_module("mac_probe")


def test_a_phase_inside_another_is_not_counted_twice(probe: Any) -> None:
    now = [0.0]
    phases = probe.Phases(lambda: now[0])

    def work(seconds: float) -> None:
        now[0] += seconds

    build = phases.timed("build", work)
    work(1.0)
    with phases.phase("load"):
        work(2.0)
        build(4.0)
        work(8.0)
        build(16.0)
    work(32.0)
    assert phases.seconds == {"load": 10.0, "build": 20.0}


def test_the_phases_of_a_macs_first_start(
    probe: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here on a machine that seems to compute by Metal, and whose compiler refuses each kernel."""

    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such kernel")

    for _, home, function in probe.TIMED:  # puts them back at the end
        monkeypatch.setattr(f"{home}.{function}", getattr(import_module(home), function))
    monkeypatch.setattr(dispatch, "by_metal", lambda: True)
    monkeypatch.setattr(dispatch, "MetalLauncher", lambda: refused)
    monkeypatch.delenv("DFLASH_KERNELS")
    probe.start(None)
    loaded, told = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert loaded["phases"].items() <= told["phases"].items()
    assert list(loaded["phases"]) == ["import", "load", "check: compile, compare", "build"]
    assert told["phases"].keys() - loaded["phases"].keys() == {"first answer"}
    assert told["total"] == pytest.approx(sum(told["phases"].values()), abs=0.02)
    assert told["on"] == []
    assert set(told["off"].values()) == {"raised RuntimeError: no such kernel"}


def test_the_speed_of_each_minute(probe: Any) -> None:
    """By the clock, also where an answer lasts beyond the end of a window."""
    now = [0.0]

    def tokens() -> Any:
        while True:
            now[0] += 0.9 if now[0] < 4 else 1.8  # it gets hot
            yield 9

    rates = [*probe.windows(tokens(), 8.0, 4.0, lambda: now[0])]
    assert rates == [[10.0], [10.0, 5.0]]


def test_memory_by_length_of_context(probe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    probe.memory(None, (64, 1024, 8192))
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(line["contexts"]) for line in told] == [0, 1, 2, 3]
    short, long, none = told[-1]["contexts"]
    assert told[0]["loaded"] < short["active"] <= short["peak"] < long["peak"]
    assert short["tok_s"] > 0 < long["prompt_tok_s"]
    assert none == {"tokens": 8192, "note": "the model has 4096"}


def test_what_macos_says(probe: Any, tmp_path: Path) -> None:
    """The generation of the GPU, the power mode, and the kernels of MLX's library."""
    names = ("applegpu_g13g", "applegpu_g16s", "applegpu_g17d", "air64_v27", "")
    assert [probe.generation(name) for name in names] == [13, 16, 17, None, None]
    settings = " standby              0\n lowpowermode         1\n sleep                1\n"
    assert probe.power_modes(settings) == {"lowpowermode": "1"}
    assert probe.power_modes(None) == {}
    library = tmp_path / "mlx.metallib"
    assert probe.has_matrix_kernels(library) is None
    library.write_bytes(b"MTLB affine_qmm_t_float")
    assert probe.has_matrix_kernels(library) is False
    library.write_bytes(b"MTLB affine_qmm_n_nax_float_gs_128")
    assert probe.has_matrix_kernels(library) is True
    assert probe.wheel_tag("mlx").endswith(("_x86_64", "_aarch64", "_arm64"))
    assert probe.wheel_tag("no-such-package") is None
    assert probe.said_by("no-such-program") is None


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
