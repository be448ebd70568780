"""`dflash doctor`: every warn and fail by a planted cause, and how the report looks."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections import namedtuple
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
import typer
from terminal import Terminal
from tiny import GOLDEN
from typer.testing import CliRunner

from dflash_mlx.bench.results import machine_facts
from dflash_mlx.installation import install_command

NAMES = frozenset(  # scripts read them from --json
    "machine memory power versions mlx metal products kernels cache config variables service "
    "command self-test".split()
)


def part(name: str) -> Any:
    """A module of the command line; type checkers cannot follow `dflash_mlx.cli` to its folder."""
    return import_module(f"dflash_mlx.cli.{name}")


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """A cache and a PATH of the test's own, so that only what is planted is found."""
    constants = import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(2e12, 1e12, 1e12))


@pytest.fixture
def quick(monkeypatch):
    """No models and no process for MLX: the self-test and MLX are known to be well."""
    monkeypatch.setattr(
        part("doctor.command"), "self_test", lambda _: part("doctor.report").ok("well")
    )
    known = part("doctor.mlx_checks")
    on_mac = sys.platform == "darwin"
    chip = {"device_name": "Apple M4", "architecture": "applegpu_g16g"}
    facts = known.MLXFacts("", Path("/x/mlx"), on_mac, chip)
    monkeypatch.setattr(known, "ask_mlx", lambda: facts)


@pytest.fixture
def look(cli_app):
    def run():
        result = CliRunner().invoke(cli_app, ["doctor", "--json"])
        found = json.loads(result.stdout)
        assert set(found) == {"checks", "ok"}
        checks = {check["name"]: check for check in found["checks"]}
        assert len(checks) == len(found["checks"])
        assert checks.keys() >= NAMES
        for check in checks.values():
            assert set(check) == {"name", "status", "found", "hint"}
            assert bool(check["hint"]) == (check["status"] != "ok"), check
        failed = any(check["status"] == "fail" for check in checks.values())
        assert found["ok"] is not failed
        assert result.exit_code == failed
        return checks

    return run


def plant(folder: Path, name: str, version: str) -> Path:
    """A distribution of which only the metadata is there; returns the metadata's folder."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return info


def test_a_healthy_installation(cli_app):
    result = CliRunner().invoke(cli_app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    starts = [line for line in result.stdout.splitlines() if line[0] != " "]
    assert {line.split()[1] for line in starts} >= NAMES
    assert {line.split()[0] for line in starts} <= {"ok", "warn"}
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "\x1b" not in result.stdout
    assert re.search(
        r"self-test the bundled pair · \d\d tokens, the same both ways · DFlash [\d.,]+ tok/s · "
        r"plain [\d.,]+ tok/s · τ ([2-9]|1\d)\.\d\d$",
        " ".join(result.stdout.split()),
    )


def test_what_a_healthy_json_says(quick, look):
    """One object and nothing else; the shape of it is looked at by the fixture."""
    checks = look()
    assert f"{os.cpu_count()} cores" in checks["machine"]["found"]
    memory = part("terminal.output").format_bytes(machine_facts()["memory"])
    assert checks["memory"]["found"].split(" · ")[0] == memory  # as bench has it
    assert re.match(
        r"dflash-chat 0\.1\.0 from .*/dflash_mlx · Python 3\.", checks["versions"]["found"]
    )
    assert "in the package: " in checks["kernels"]["found"]
    assert checks["config"]["found"] == "~/.config/dflash/config.toml · not there"


def test_one_check_that_breaks_off_stops_no_other(monkeypatch, quick, look, cli_app):
    """Its line says why, on one line, without what steers a terminal."""

    def raise_it():
        raise ZeroDivisionError("nobody\nthought \x1b[31mof this")

    monkeypatch.setattr(part("doctor.machine"), "power", raise_it)
    checks = look()
    assert checks["power"]["found"] == (
        "the check broke off: ZeroDivisionError: nobody thought [31mof this"
    )
    assert "DFLASH_DEBUG=1" in checks["power"]["hint"]
    assert [c["name"] for c in checks.values() if c["status"] == "fail"] == ["power"]
    monkeypatch.setenv("DFLASH_DEBUG", "1")  # for those who ask
    result = CliRunner().invoke(cli_app, ["doctor", "--json"])
    assert "Traceback" in result.stderr
    assert json.loads(result.stdout)["ok"] is False


# Packages and places


@pytest.mark.parametrize(
    ("name", "status", "common"), [("dflash", "warn", "command"), ("dflash-mlx", "fail", "module")]
)
def test_distributions_that_collide(tmp_path, monkeypatch, quick, look, name, status, common):
    plant(tmp_path / "site", name, "0.9.1")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    check = look()["command"]
    assert check["status"] == status
    assert check["found"].startswith(f"{name} 0.9.1 has the same {common}")
    assert f"`pip uninstall {name}`" in check["hint"]


def test_packages_out_of_range_or_missing(tmp_path, monkeypatch, quick, look):
    plant(tmp_path / "site", "mlx", "0.33.0.dev1")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    checks = part("doctor.checks")
    installed = checks.installed
    monkeypatch.setattr(
        checks, "installed", lambda name: None if name == "rich" else installed(name)
    )
    check = look()["versions"]
    assert check["status"] == "fail"
    assert "mlx 0.33.0.dev1 is not <0.33,>=0.32.4" in check["found"]
    assert re.search(r"pip install .*'mlx(\[cpu\])?<0.33,>=0.32.4'`", check["hint"])
    assert "rich is not installed" in check["found"]
    assert install_command("rich<16,>=14.0") in check["hint"]


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_commands_on_path(tmp_path, monkeypatch):
    """Links to this one are this one, as those of `uv tool` are."""
    command = part("doctor.checks").command
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "own"))
    ours, link = executable(tmp_path / "own/dflash"), tmp_path / "links/dflash"
    other = executable(tmp_path / "other/dflash")
    link.parent.mkdir()
    link.symlink_to(ours)
    assert command().summary == f"`dflash` is not on PATH; it is {ours}"
    monkeypatch.setenv("PATH", f"{link.parent}:{ours.parent}")
    assert (command().status, command().summary) == ("ok", str(link))
    monkeypatch.setenv("PATH", f"{other.parent}:{ours.parent}")
    assert command().status == "warn"
    assert command().summary.startswith(f"`dflash` runs {other}, this is {ours}")


# Settings


@pytest.mark.parametrize(
    ("text", "found", "hint"),
    [
        ("tmep = 1\n", "has an unknown setting 'tmep'.", "did you mean 'temp'?"),
        ('temp = "hot"\n', "temp cannot be 'hot': ", "correct the value"),
        (None, "cannot be read (Is a directory).", "TOML file"),
    ],
)
def test_config_file_that_no_command_would_take(quick, look, text, found, hint):
    """Other commands end with the message; this one goes on to the next check."""
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash" / "config.toml"
    path.parent.mkdir(parents=True)
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    check = look()["config"]
    assert check["status"] == "fail"
    assert found in check["found"]
    assert hint in check["hint"]


def test_config_file_in_force(quick, look):
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text('temp = 0.5\nmodel = "x/y"\n')
    assert look()["config"]["found"] == (
        "~/.config/dflash/config.toml · sets temp, model · `dflash doctor -m x/y` checks its model"
    )


def test_variables(monkeypatch, no_variables, quick, look):
    """The value of an unknown one is nobody's business."""
    monkeypatch.setenv("DFLASH_TEMP", "0.5")
    assert look()["variables"] == {
        "name": "variables", "status": "ok", "found": "DFLASH_TEMP=0.5", "hint": ""
    }  # fmt: skip
    monkeypatch.setenv("DFLASH_TMEP", "secret")
    check = look()["variables"]
    assert check["status"] == "warn"
    assert check["found"] == "DFLASH_TEMP=0.5 · DFLASH_TMEP is not known"
    assert check["hint"] == "`unset DFLASH_TMEP`: did you mean DFLASH_TEMP?"
    monkeypatch.setenv("DFLASH_QQQQ", "1")
    assert look()["variables"]["hint"].startswith("`unset DFLASH_QQQQ`: nothing reads it; ")
    monkeypatch.setenv("DFLASH_TEMP", "hot")
    check = look()["variables"]
    assert check["status"] == "fail"
    assert " · DFLASH_TEMP cannot be 'hot': it must be a number · " in check["found"]
    assert "; `unset DFLASH_TEMP`; " in check["hint"]


def test_secrets_are_shown_to_nobody(monkeypatch, no_variables, quick, look, cli_app):
    """No key's value, also where it is wrong; every option that takes one counts as a secret."""
    environment = part("doctor.checks")
    monkeypatch.setenv("DFLASH_API_KEY", "sekret")
    monkeypatch.setenv("DFLASH_REMOTE_KEY", "sekret")
    found = look()
    assert found["variables"]["found"] == "DFLASH_API_KEY is set · DFLASH_REMOTE_KEY is set"
    assert "sekret" not in json.dumps(found)
    context = typer.Context(typer.main.get_command(cli_app))
    options = list(environment.options_with_variables(context.command))
    assert [one.name for one in options if one.metavar == "KEY"] == ["api_key"]
    assert {one.name for one in options if environment.is_secret(one.name)} == {"api_key"}

    def refuse(context, value):
        raise typer.BadParameter(f"{value} is no key.")

    refusing = SimpleNamespace(name="api_key", process_value=refuse)
    (error,) = environment.value_errors(context, "api-key", refusing, "sekret")
    assert error == "api-key cannot have its value"


# The machine


def test_the_cache(tmp_path, monkeypatch, quick, look):
    """What it holds, how much is free, and whether it takes files."""
    blobs = tmp_path / "hub" / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    with (blobs / "0123").open("wb") as blob:
        blob.truncate(2_500_000_000)
    assert look()["cache"]["found"] == f"{tmp_path}/hub · 1 model, 2.5 GB · 1,000 GB free"
    assert sorted(path.name for path in (tmp_path / "hub").iterdir()) == ["models--a--b"]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=9.9e9))
    check = look()["cache"]
    assert (check["status"], "10 GB free" in check["found"]) == ("warn", True)
    (tmp_path / "hub").rename(tmp_path / "moved")
    (tmp_path / "hub").write_text("a file where the folder should be")
    check = look()["cache"]
    assert check["status"] == "fail"
    assert "takes no files (Not a directory)" in check["found"]
    assert "HF_HUB_CACHE" in check["hint"]


@pytest.mark.skipif(sys.platform != "linux", reason="BLAS is chosen on Linux only")
def test_blas_missing_says_what_to_install(monkeypatch, quick, look):
    monkeypatch.setattr("dflash_mlx.cpu.blas.use_openblas", lambda: None)
    check = look()["metal"]
    assert check["status"] == "warn"
    assert "`sudo apt install libopenblas0-pthread`" in check["hint"]
    monkeypatch.setenv("DFLASH_BLAS", "off")
    assert "`unset DFLASH_BLAS`" in look()["metal"]["hint"]


M5 = "applegpu_g17s"


class Mac:
    """A Mac with an M4 Max as far as the checks can see; tests set what they want wrong.

    pmset, battery, heat: what these programs print. translated: whether by Rosetta. wheel: the
    platform of MLX's, None without one; origin: of a wheel that was built here; kernels: names in
    its library. facts: changed fields of `MLXFacts`.
    """

    processor, translated, macos = "arm64", "", "26.3"
    pmset = "Currently in use:\n standby 1\n lowpowermode         0\n womp 1"
    battery = "Now drawing from 'AC Power'"
    heat = "com.apple.system.thermalpressurelevel 0"
    wheel: str | None = "macosx_26_0_arm64"
    origin = ""
    kernels = "affine_qmm_t_nax_float"
    architecture = "applegpu_g16s"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = {}
        (folder / "lib").mkdir(parents=True)

    def output(self, program: str, *arguments: str) -> str:
        if program == "/usr/sbin/sysctl":
            return {
                "hw.model": "Mac16,5",
                "sysctl.proc_translated": self.translated,
                "kern.osproductversion": self.macos,
            }[arguments[1]]
        if program == "/usr/bin/notifyutil":
            return self.heat
        assert program == "/usr/bin/pmset"
        return self.battery if "batt" in arguments else self.pmset

    def ask_mlx(self) -> Any:
        (self.folder / "lib" / "mlx.metallib").write_text(self.kernels)
        if self.wheel is not None:
            info = plant(self.folder / "site", "mlx-metal", "0.32.4")
            (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: py3-none-{self.wheel}\n")
            (info / "direct_url.json").write_text(self.origin)
        gpu = {
            "device_name": "Apple M4 Max",
            "architecture": self.architecture,
            "max_recommended_working_set_size": 48 * 2**30,
        }
        facts = {"folder": self.folder, "gpu": True, "info": gpu, **self.facts}
        return part("doctor.mlx_checks").MLXFacts(**facts)


@pytest.fixture
def mac(tmp_path, monkeypatch, quick):
    """A healthy Mac; `look` sees what a test has changed."""
    mac = Mac(tmp_path / "mlx")
    machine = part("doctor.machine")
    monkeypatch.setattr(machine, "on_mac", lambda: True)
    monkeypatch.setattr(machine, "output", mac.output)
    monkeypatch.setattr("platform.machine", lambda: mac.processor)
    monkeypatch.syspath_prepend(str(mac.folder / "site"))
    monkeypatch.setattr(part("doctor.mlx_checks"), "ask_mlx", mac.ask_mlx)
    return mac


def test_a_mac(mac, look):
    checks = look()
    machine = f"Mac16,5 · Apple M4 Max · arm64 · {os.cpu_count()} cores · macOS 26.3"
    assert checks["machine"]["found"] == machine
    assert checks["memory"]["found"].endswith(" GB · recommended working set 51.5 GB")
    said = "low power mode off · on mains power · thermal pressure nominal"
    assert checks["power"]["found"] == said
    assert checks["mlx"]["found"] == f"{mac.folder} · wheel macosx_26_0_arm64 on macOS 26.3"
    assert checks["metal"]["found"] == "Apple M4 Max · applegpu_g16s"
    assert [check["name"] for check in checks.values() if check["status"] != "ok"] == []
    mac.architecture = M5
    mac.pmset = mac.battery = mac.heat = ""  # a program that is missing is no fault
    checks = look()
    assert checks["mlx"]["found"].endswith(" · with kernels for the matrix units")
    said = "power mode not told · power source not told · thermal pressure not told"
    assert checks["power"]["found"] == said


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo 'libc++abi: terminating' >&2; kill -ABRT $$", "libc++abi: terminating (SIGABRT)"),
        ("echo 'ImportError: no libmlx' >&2; exit 1", "ImportError: no libmlx"),
        ("kill -SEGV $$", "it said nothing (SIGSEGV)"),
        ("exec /bin/sleep 60", "no answer within 1 seconds"),
    ],
)
def test_mlx_may_end_its_process(tmp_path, monkeypatch, script, error):
    """An abort, an error, a hang: in another process, so that doctor can tell."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    known = part("doctor.mlx_checks")
    monkeypatch.setattr(known, "sys", SimpleNamespace(executable=str(python)))
    monkeypatch.setattr(known, "PATIENCE", 1.0)
    assert known.ask_mlx() == known.MLXFacts(error)


def test_an_import_that_aborts(tmp_path):
    """The whole program, with an MLX that ends the process: doctor goes on without it."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "core.py").write_text("import os\nos.write(2, b'no GPU')\nos.abort()\n")
    line = [sys.executable, "-m", "dflash_mlx.cli", "doctor", "--json"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(line, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["mlx"]["found"] == "cannot be imported: no GPU (SIGABRT)"
    assert checks["self-test"]["status"] == "warn"
    assert checks["config"]["status"] == "ok"


NO_GPU = "-[__NSArray0 objectAtIndex:]: index 0 beyond bounds (SIGABRT)"
NOT_PYPI = "not the wheel of PyPI: kernels for the matrix units of M5 can be missing or wrong"
MACHINES = {  # what is wrong with a Mac, the check that sees it, and what doctor says
    "slow and hot": (
        {"pmset": " lowpowermode         1", "battery": "Now drawing from 'Battery Power'",
         "heat": Mac.heat.replace("0", "2")},
        "power", "warn", "low power mode, which slows the GPU down · on battery · "
        "thermal pressure heavy: the Mac is hot, and slower"),
    "rosetta": ({"processor": "x86_64", "translated": "1"}, "versions", "fail",
                "made for Intel, runs under Rosetta"),
    "intel": ({"processor": "x86_64", "translated": "0"}, "versions", "fail",
              "this Mac has an Intel processor"),
    "no gpu": ({"facts": {"error": NO_GPU, "folder": None, "info": {}}}, "mlx", "fail",
               f"cannot be imported: {NO_GPU}"),
    "homebrew": ({"wheel": None}, "mlx", "warn", NOT_PYPI),
    "own build": ({"origin": '{"url": "file:///src/mlx", "dir_info": {}}'}, "mlx", "warn",
                  NOT_PYPI),
    "old wheel": ({"architecture": M5, "wheel": "macosx_15_0_arm64", "kernels": "affine_qmm"},
                  "mlx", "warn", "wheel macosx_15_0_arm64 on macOS 26.3 has no kernels for this "
                  "GPU's matrix units"),
    "old macos": ({"architecture": M5, "macos": "26.1"}, "mlx", "fail", "wheel macosx_26_0_arm64 "
                  "on macOS 26.1: MLX uses this GPU's matrix units, which need macOS 26.2"),
    "no metal": ({"facts": {"gpu": False}}, "metal", "fail", "MLX finds no Metal device"),
}  # fmt: skip


@pytest.mark.parametrize("harm", MACHINES)
def test_machines(mac, look, monkeypatch, harm):
    """The check says it, with a hint, and no other check does. `pytest -s` prints them all."""
    monkeypatch.delenv("DFLASH_MODE")
    changes, name, status, found = MACHINES[harm]
    for attribute, value in changes.items():
        setattr(mac, attribute, value)
    checks = look()
    check = checks[name]
    print(f"\n{harm:18} {status:5} {name:10} {check['found']}\n{'':36}→ {check['hint']}")
    assert check["status"] == status
    assert found in check["found"]
    blamed = {one["name"] for one in checks.values() if one["status"] != "ok"}
    assert blamed == {
        name,
        *(("metal", "products", "kernels", "self-test") if harm == "no gpu" else ()),
    }


def test_a_build_that_multiplies_wrongly(monkeypatch, quick, look):
    multiply = mx.quantized_matmul
    monkeypatch.setattr(
        mx, "quantized_matmul", lambda x, *rest, **named: multiply(x, *rest, **named) * (len(x) < 9)
    )
    check = look()["products"]
    found = "16 rows at once differ from each row alone: 4-bit by 1.00 of the largest number"
    assert (check["status"], check["found"]) == ("fail", found)


# The files of a model


def test_a_drafter_of_another_target(cli_app):
    """Its files are well, and yet it cannot be used: that is said before a chat begins."""
    target, draft = GOLDEN / "qwen3_full/target", GOLDEN / "qwen3_full/draft"
    pairs = ((target, draft, True), ("bundled", "bundled", True), ("bundled", draft, False))
    for target, draft, fits in pairs:
        flags = ["-m", str(target), "-d", str(draft), "--json"]
        result = CliRunner().invoke(cli_app, ["doctor", *flags])
        found = json.loads(result.stdout)
        assert (found["ok"], result.exit_code) == (fits, not fits)
        words = "fits the target · about " if fits else "expects a target with hidden size 64"
        assert words in found["checks"][-1]["found"]


# The kernels


def test_kernels_without_metal(cli_app):
    """Nothing runs, no model is loaded, and that is no fault."""

    def run(*flags):
        result = CliRunner().invoke(cli_app, ["doctor", "--kernels", *flags])
        assert result.exit_code == 0
        return result.stdout

    said = "MLX computes on the CPU here: no kernel runs"
    assert run() == f"ok    kernels    {said}\n"
    document = {"device": None, "note": said, "kernels": [], "ok": True}
    assert json.loads(run("--json")) == document
    models = ["-m", "./target", "-d", "./draft"]
    said += ", so nothing was done with ./target and ./draft"
    assert run(*models).split()[2:] == said.split()
    assert json.loads(run(*models, "--json"))["note"] == said


def test_verdicts_are_json():
    """A kernel that gives NaN has an infinite error, for which JSON has no word."""
    from dflash_mlx.selfcheck.results import KernelResult

    result_json = import_module("dflash_mlx.cli.doctor.kernels").result_json
    wrong = result_json(KernelResult("a", False, float("inf"), reason="gives what is no number"))
    assert (wrong["error"], wrong["on"]) == (None, False)
    assert json.dumps(wrong, allow_nan=False)
    assert result_json(KernelResult("a", True, 0.5))["error"] == 0.5


def test_verdicts_by_size_are_told():
    """At how many sizes a kernel is used, and that experts of an unknown kind have none."""
    import tiny
    from mlx import nn

    from dflash_mlx.selfcheck.results import KernelResult, Timed

    report = import_module("dflash_mlx.cli.doctor.kernels")
    sizes = (Timed((512, 64, 4), 1e-3, 0.5, True), Timed((1024, 64, 4), 1e-3, 1.5, False))
    verdict = KernelResult("a", True, 0.0, sizes=sizes)
    assert "used at 1 of 2 sizes" in report.line_of(verdict).summary
    shown = report.result_json(verdict)
    assert (shown["seconds"], shown["ratio"], len(shown["sizes"])) == (1e-3, 1.0, 2)
    mixture: Any = tiny.make_target("qwen3_moe").model
    assert not report.has_other_experts(mixture)
    assert not report.has_other_experts(tiny.make_target("qwen3").model)
    mixture.layers[0].mlp.switch_mlp.activation = nn.SiLU()
    assert report.has_other_experts(mixture)


def test_what_is_known_of_kernels(mac, look, monkeypatch):
    """The cached verdicts of this machine; a wrong kernel is a warning, a slow one is not."""
    from dflash_mlx.selfcheck.results import STORE, KernelResult, machine_key

    monkeypatch.setattr("dflash_mlx.kernels.dispatch.by_metal", lambda: True)
    monkeypatch.delenv("DFLASH_KERNELS")
    assert look()["kernels"]["found"].startswith("1")
    key = f"{machine_key()}-1"
    slow = KernelResult("a", True, 0.0, "1.4x as slow as MLX's own")
    STORE.write(key, {"a": slow, "b": KernelResult("b", True, 0.0)})
    check = look()["kernels"]
    assert check["status"] == "ok"
    assert check["found"].endswith(
        " · 1 on at the last check · a off: 1.4x as slow as MLX's own"
    )  # fmt: skip
    wrong = KernelResult("b", False, 0.5, reason="differs from its reference by 0.5")
    STORE.write(key, {"a": slow, "b": wrong})
    check = look()["kernels"]
    assert check["status"] == "warn"
    assert check["found"].endswith(" · b off: differs from its reference by 0.5")
    assert "dflash doctor --kernels" in check["hint"]
    STORE.write("another machine", {"a": slow})
    assert "b off" in look()["kernels"]["found"]
    monkeypatch.setenv("DFLASH_KERNELS", "stock")
    assert "not used: DFLASH_KERNELS is stock" in look()["kernels"]["found"]


# The self-test


def test_self_test_sees_a_wrong_token(monkeypatch, look):
    """An acceptance that keeps one draft too many is a fail; planted in the engine itself."""
    import mlx.core as mx

    from dflash_mlx.kernels import outcome

    count = outcome.count_prefix
    monkeypatch.setattr(
        outcome, "count_prefix", lambda flags: mx.minimum(count(flags) + 1, flags.size)
    )
    check = look()["self-test"]
    assert check["status"] == "fail"
    assert re.fullmatch(
        r"DFlash and plain decoding differ from token \d+ on", check["found"]
    )  # fmt: skip
    assert "report it" in check["hint"]


def test_self_test_sees_drafts_that_are_worth_nothing(monkeypatch, look):
    """Right words without any speed-up are a warning."""
    from dflash_mlx.kernels import outcome

    monkeypatch.setattr(outcome, "count_prefix", lambda flags: 0 * flags.sum())
    check = look()["self-test"]
    assert check["status"] == "warn"
    assert "the same both ways" in check["found"]
    assert check["found"].endswith("τ 1.00, which is low")


def test_self_test_without_the_bundled_pair(monkeypatch, look):
    """A DFlashError keeps its message and its hint."""
    from dflash_mlx.errors import DFlashError
    from dflash_mlx.hub import resolve

    def missing(_part):
        raise DFlashError("the bundled pair is missing.", hint="install it")

    monkeypatch.setattr(resolve, "bundled", missing)
    check = look()["self-test"]
    assert (check["status"], check["found"], check["hint"]) == (
        "fail",
        "the bundled pair is missing.",
        "install it",
    )


# The look


@pytest.fixture
def screen(monkeypatch):
    termios = pytest.importorskip("termios")
    opened = []

    def make(columns, rows=24, encoding="utf-8"):
        lead, follow = os.openpty()
        termios.tcsetwinsize(follow, (rows, columns))
        stream = os.fdopen(follow, "w", encoding=encoding)
        opened.extend([lambda: os.close(lead), stream.close])
        monkeypatch.setattr(sys, "stdout", stream)

    yield make
    monkeypatch.undo()
    for close in opened:
        close()


LONG = "OpenBLAS · /usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblasp-r0.3.21.so and more"


@pytest.mark.parametrize("columns", [24, 40, 59, 60, 80, 100, 300])
def test_report_fits_its_terminal(screen, columns):
    """No line is too long, none begins with a dot between two findings, and nothing is lost."""
    doctor, output = part("doctor.report"), part("terminal.output")
    screen(columns)
    report = doctor.CheckReport(output.Output())
    lines = report.lines("variables", doctor.warn(LONG, "`chmod 600 ~/a/b/c/d/e/f/g`"))
    assert max(map(len, lines)) <= min(columns, 100)
    assert not any(line.lstrip().startswith("·") for line in lines)
    assert lines[0].startswith("warn  variables")
    squeezed = re.sub(r"\s", "", "".join(lines))
    assert squeezed.endswith(re.sub(r"\s", "", LONG + "→`chmod 600 ~/a/b/c/d/e/f/g`"))
    hint = next(line for line in lines if "→" in line)
    assert hint == " " * (6 if columns < 60 else 17) + hint.lstrip()


def show_on_terminal(**env):
    plain = {k: value for k, value in os.environ.items() if not k.startswith("DFLASH_")}
    program = (
        "from importlib import import_module as get\n"
        "well = get('dflash_mlx.cli.doctor.report').ok(chr(964))\n"
        "get('dflash_mlx.cli.doctor.command').self_test = lambda _: well\n"
        "get('dflash_mlx.cli.app').app(['doctor'])\n"
    )
    shown = Terminal([sys.executable, "-c", program], {**plain, "DFLASH_TMEP": "1", **env})
    assert shown.ends() == 0
    shown.close()
    return shown.raw.replace("\r\n", "\n")


def test_colours_on_a_terminal():
    shown = show_on_terminal(TERM="xterm-256color")
    assert "\x1b[36mok\x1b[0m    machine    " in shown
    assert "\x1b[33mwarn\x1b[0m  variables  DFLASH_TMEP is not known\n" in shown
    assert shown.count("self-test") == 1


def test_no_colours_where_none_are_wanted():
    shown = show_on_terminal(TERM="xterm-256color", NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*3\d", shown)
    shown = show_on_terminal(
        TERM="dumb", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii"
    )
    assert "\x1b" not in shown
    assert shown.isascii()
    assert "-> `unset DFLASH_TMEP`: did you mean DFLASH_TEMP?" in shown
    assert shown.endswith("self-test  tau\n")
