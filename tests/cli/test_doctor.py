"""`dflash doctor`: every warn and fail by a planted cause, and how the report looks."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections import namedtuple
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dflash_mlx.bench.results import machine_facts

ROOT = Path(__file__).parents[2]
NAMES = frozenset(  # scripts read them from --json
    "machine chip memory system python versions blas metal kernels cache config variables data "
    "history terminal packages command module self-test".split()
)
OTHER_VERSIONS = {
    "python": "3", "memory": 1, "facts": {"dflash": "0", "mlx": "0", "mlx-lm": "0"}
}  # fmt: skip
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="BLAS is chosen on Linux only")


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
    """No models: the self-test is known to be well."""
    monkeypatch.setattr(
        part("doctor.command"), "self_test", lambda _: part("doctor.report").ok("well")
    )


@pytest.fixture
def look(cli_app):
    """Run the command with --json: its exit code and its checks by name."""

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


def plant(folder: Path, name: str, version: str) -> None:
    """A distribution of which only the metadata is there."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_a_healthy_installation(cli_app):
    """The whole report with the real self-test, through a pipe."""
    result = CliRunner().invoke(cli_app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    starts = [line for line in result.stdout.splitlines() if line[0] != " "]
    assert {line.split()[1] for line in starts} >= NAMES
    assert {line.split()[0] for line in starts} <= {"ok", "warn"}
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "\x1b" not in result.stdout
    assert re.search(
        r"self-test \d\d tokens, the same both ways · DFlash [\d.,]+ tok/s · "
        r"plain [\d.,]+ tok/s · τ ([2-9]|1\d)\.\d\d$",
        " ".join(result.stdout.split()),
    )


def test_what_a_healthy_json_says(quick, look):
    """One object and nothing else; the shape of it is looked at by the fixture."""
    checks = look()
    assert f"{os.cpu_count()} cores" in checks["chip"]["found"]
    memory = part("terminal.output").format_bytes(machine_facts()["memory"])
    assert checks["memory"]["found"].split(" · ")[0] == memory  # as bench has it
    assert checks["python"]["found"].startswith("3.")
    assert "dflash-chat 0.1.0" in checks["versions"]["found"]
    assert "in the package: " in checks["kernels"]["found"]
    assert checks["packages"]["found"] == "no dflash or dflash-mlx beside this one"
    assert checks["config"]["found"] == "~/.config/dflash/config.toml · not there"


def test_one_check_that_breaks_off_stops_no_other(monkeypatch, quick, look):
    """Its line says why, on one line, without what steers a terminal."""

    def raise_it():
        raise ZeroDivisionError("nobody\nthought \x1b[31mof this")

    monkeypatch.setattr(part("doctor.checks"), "chip", raise_it)
    checks = look()
    assert checks["chip"]["status"] == "fail"
    assert checks["chip"]["found"] == (
        "the check broke off: ZeroDivisionError: nobody thought [31mof this"
    )
    assert "DFLASH_DEBUG=1" in checks["chip"]["hint"]
    assert [c["name"] for c in checks.values() if c["status"] == "fail"] == ["chip"]


def test_traceback_for_those_who_ask(monkeypatch, quick, cli_app):
    monkeypatch.setenv("DFLASH_DEBUG", "1")
    monkeypatch.setattr(part("doctor.checks"), "chip", lambda: 1 / 0)
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
    check = look()["packages"]
    assert check["status"] == status
    assert check["found"].startswith(f"{name} 0.9.1 has the same {common}")
    assert f"`pip uninstall {name}`" in check["hint"]


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.33.0.dev1", "1.0"])
def test_mlx_out_of_range(tmp_path, monkeypatch, quick, look, version):
    plant(tmp_path / "site", "mlx", version)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    check = look()["versions"]
    assert check["status"] == "fail"
    assert f"mlx {version} is not >=0.32,<0.33" in check["found"]
    assert re.fullmatch(r"`pip install 'mlx(\[cpu\])?>=0.32,<0.33'`", check["hint"])


def test_a_package_that_is_missing(monkeypatch, quick, look):
    installation = part("doctor.checks")
    installed = installation.installed
    monkeypatch.setattr(
        installation, "installed", lambda name: None if name == "rich" else installed(name)
    )
    check = look()["versions"]
    assert check["status"] == "fail"
    assert "rich is not installed" in check["found"]
    assert check["hint"] == "`pip install 'rich>=14.0'`"


def test_ranges_are_those_of_the_project():
    """The table cannot fall behind pyproject.toml."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    lines = {line.partition(";")[0].strip() for line in wanted}
    for name, bounds in part("doctor.checks").REQUIRED.items():
        assert name + bounds in lines


def test_versions_are_compared_as_numbers():
    satisfies = part("doctor.checks").satisfies
    assert satisfies("0.32.10", ">=0.32.9,<0.33")
    assert satisfies("1", ">=1.0")
    assert not satisfies("3.0.5", ">=3.0.50")
    assert not satisfies("0.9", ">=0.32")


def executable(path: Path) -> Path:
    """A program named `dflash`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def on_path(monkeypatch, *folders):
    """Make these folders PATH."""
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))


def test_commands_on_path(tmp_path, monkeypatch):
    """Links to this one are this one, as those of `uv tool` are."""
    command = part("doctor.checks").command
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "own"))
    ours, link = executable(tmp_path / "own/dflash"), tmp_path / "links/dflash"
    other = executable(tmp_path / "other/dflash")
    link.parent.mkdir()
    link.symlink_to(ours)
    assert command().summary == f"not on PATH; it is {ours}"
    on_path(monkeypatch, link.parent, ours.parent, tmp_path)
    assert command().status == "ok"
    on_path(monkeypatch, ours.parent, other.parent)
    assert (command().status, command().summary) == (
        "warn",
        f"2 on PATH: {ours}, {other}; the first one runs",
    )
    on_path(monkeypatch, other.parent)
    assert command().status == "warn"
    assert command().summary.startswith(f"`dflash` runs {other}, this is {ours}")


def test_module_from_an_unexpected_place(tmp_path, monkeypatch, quick, look):
    import dflash_mlx

    assert look()["module"]["status"] == "ok"
    monkeypatch.setattr(dflash_mlx, "__file__", str(tmp_path / "dflash_mlx/__init__.py"))
    check = look()["module"]
    assert check["status"] == "fail"
    assert check["found"].startswith(f"imported from {tmp_path}/dflash_mlx, installed in ")


# Settings


@pytest.mark.parametrize(
    ("text", "found", "hint"),
    [
        ("tmep = 1\n", "has an unknown setting 'tmep'.", "did you mean 'temp'?"),
        ("temp 0.7\n", "is not valid TOML", "one setting per line"),
        ("[temp]\nx = 1\n", "cannot be a table.", "give it one value"),
        ('temp = "hot"\n', "temp cannot be 'hot': ", "correct the value"),
        ("max-tokens = 0\n", "max-tokens cannot be 0: ", "correct the value"),
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
    assert look()["config"]["found"] == "~/.config/dflash/config.toml · sets temp, model"


def test_variables(monkeypatch, quick, look):
    """The value of an unknown one is nobody's business."""
    monkeypatch.delenv("DFLASH_MODE")
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


def test_secrets_are_shown_to_nobody(monkeypatch, quick, look, cli_app):
    """No key's value, also where it is wrong; every option that takes one counts as a secret."""
    environment = part("doctor.checks")
    monkeypatch.delenv("DFLASH_MODE", raising=False)
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


# Folders


def test_history_that_others_can_read(quick, look):
    file = Path(os.environ["XDG_DATA_HOME"]) / "dflash" / "history"
    file.parent.mkdir(parents=True, mode=0o755)
    file.write_text("a secret")
    for mode in (0o644, 0o640, 0o602):
        file.chmod(mode)
        check = look()["history"]
        assert check["status"] == "warn"
        assert f"mode {mode:03o}" in check["found"]
        assert check["hint"] == "`chmod 600 ~/.local/share/dflash/history`"
    file.chmod(0o600)
    checks = look()
    assert (checks["history"]["status"], checks["data"]["status"]) == ("ok", "ok")


def test_data_folder(monkeypatch, quick, look):
    base = Path(os.environ["XDG_DATA_HOME"])
    (base / "dflash").mkdir(parents=True)
    (base / "dflash").chmod(0o777)
    check = look()["data"]
    assert (check["status"], check["hint"]) == ("warn", "`chmod 700 ~/.local/share/dflash`")
    spaced = base / "with space"
    monkeypatch.setenv("XDG_DATA_HOME", str(spaced))
    assert look()["data"]["found"].endswith("not there yet")
    assert not spaced.exists()
    (spaced / "dflash").mkdir(parents=True)
    (spaced / "dflash").chmod(0o777)
    assert look()["data"]["hint"] == f"`chmod 700 '{spaced}/dflash'`"
    (spaced / "dflash").rmdir()
    (spaced / "dflash").write_text("")
    check = look()["data"]
    assert check["status"] == "fail"
    assert "XDG_DATA_HOME" in check["hint"]


def test_cache_in_use(tmp_path, quick, look):
    blobs = tmp_path / "hub" / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    with (blobs / "0123").open("wb") as blob:
        blob.truncate(2_500_000_000)
    check = look()["cache"]
    assert check["status"] == "ok"
    assert check["found"] == f"{tmp_path}/hub · 1 model, 2.5 GB · 1,000 GB free"
    assert sorted(path.name for path in (tmp_path / "hub").iterdir()) == ["models--a--b"]


def test_cache_that_takes_no_files(tmp_path, quick, look):
    (tmp_path / "hub").write_text("a file where the folder should be")
    check = look()["cache"]
    assert check["status"] == "fail"
    assert "takes no files (Not a directory)" in check["found"]
    assert "HF_HUB_CACHE" in check["hint"]


def test_little_room(monkeypatch, quick, look):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=9.9e9))
    check = look()["cache"]
    assert check["status"] == "warn"
    assert "10 GB free" in check["found"]


# The machine


@LINUX
def test_blas_switched_off(monkeypatch, quick, look):
    monkeypatch.setenv("DFLASH_BLAS", "off")
    checks = look()
    assert checks["blas"]["status"] == "warn"
    assert "`unset DFLASH_BLAS`" in checks["blas"]["hint"]
    assert checks["variables"]["status"] == "ok"


@LINUX
@pytest.mark.parametrize("cause", ["none", "off", "late"])
def test_blas_that_is_really_in_force(cause):
    """The library is the one MLX's products come from, also where OpenBLAS came too late."""
    from dflash_mlx.cpu.blas import use_openblas

    if use_openblas() is None:
        pytest.skip("no OpenBLAS here")
    program = (
        "import sys\n"
        "from importlib import import_module\n"
        f"if {cause == 'late'}: import mlx.core\n"
        "found = import_module('dflash_mlx.cli.doctor.checks').blas()\n"
        "print(found.status, found.summary)\n"
    )
    env = {**os.environ, **({"DFLASH_BLAS": "off"} if cause == "off" else {})}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env
    )
    assert ("MLX was imported before dflash_mlx" in done.stderr) == (cause == "late")
    if cause == "none":
        assert done.stdout.startswith("ok OpenBLAS · /")
    else:
        assert done.stdout.startswith("warn ")
        assert re.search(r"/libblas\S+\n$", done.stdout)


@LINUX
def test_blas_missing_says_what_to_install(monkeypatch, quick, look):
    library = Path("/x/mlx_cpu.libs/libblas-1.so.3")
    monkeypatch.setattr(part("doctor.checks"), "product_library", lambda: library)
    check = look()["blas"]
    assert check["status"] == "warn"
    assert check["found"].endswith(str(library))
    assert "`sudo apt install libopenblas0-pthread`" in check["hint"]


@pytest.fixture
def mac(monkeypatch):
    """A Mac as far as the checks can see; the dictionary is what sysctl says."""
    module, known = part("doctor.checks"), {"hw.model": "Mac16,5", "sysctl.proc_translated": ""}
    known["machdep.cpu.brand_string"] = "Apple M4 Max"
    monkeypatch.setattr(module, "on_mac", lambda: True)
    monkeypatch.setattr(module, "sysctl", known.__getitem__)
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr("platform.mac_ver", lambda: ("26.1", ("", "", ""), "arm64"))
    info = {
        "device_name": "Apple M4 Max",
        "architecture": "applegpu_g16s",
        "max_recommended_working_set_size": 48 * 2**30,
    }
    mlx = SimpleNamespace(
        metal=SimpleNamespace(is_available=lambda: True), device_info=lambda: info
    )
    monkeypatch.setattr(module, "mlx_core", lambda: mlx)
    return SimpleNamespace(known=known, mlx=mlx)


def test_a_mac(mac, quick, look):
    checks = look()
    assert checks["machine"]["found"] == "Mac16,5 · arm64"
    assert checks["chip"]["found"].startswith("Apple M4 Max · ")
    assert checks["memory"]["found"].endswith(" GB · recommended working set 51.5 GB")
    assert checks["system"]["found"] == "macOS 26.1"
    assert checks["metal"]["found"] == "Apple M4 Max · applegpu_g16s"
    assert checks["blas"]["found"].startswith("Accelerate")
    assert checks["python"]["status"] == "ok"


def test_a_mac_without_metal(mac, quick, look):
    mac.mlx.metal.is_available = lambda: False
    checks = look()
    assert checks["metal"]["status"] == "fail"
    assert checks["memory"]["status"] == "ok"


@pytest.mark.parametrize(("translated", "hint"), [("1", "arm64 Python"), ("0", "Apple silicon")])
def test_python_that_is_not_for_apple_silicon(mac, monkeypatch, quick, look, translated, hint):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    mac.known["sysctl.proc_translated"] = translated
    check = look()["python"]
    assert check["status"] == "fail"
    assert hint in check["hint"]


# The kernels


def test_kernels_without_metal(cli_app):
    """Nothing runs, and that is no fault."""
    result = CliRunner().invoke(cli_app, ["doctor", "--kernels"])
    assert result.exit_code == 0
    assert result.stdout == "ok    kernels    MLX computes on the CPU here: no kernel runs\n"
    result = CliRunner().invoke(cli_app, ["doctor", "--kernels", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "device": None,
        "note": "MLX computes on the CPU here: no kernel runs",
        "kernels": [],
        "ok": True,
    }


def test_a_model_that_no_kernel_is_proven_for(cli_app):
    """It is not loaded, and that is said."""
    said = "MLX computes on the CPU here: no kernel runs, so nothing was done with"
    said += " ./target and ./draft"
    command = ["doctor", "--kernels", "-m", "./target", "-d", "./draft"]
    assert said.split() == CliRunner().invoke(cli_app, command).stdout.split()[2:]
    assert json.loads(CliRunner().invoke(cli_app, [*command, "--json"]).stdout)["note"] == said


def test_verdicts_are_json():
    """A kernel that gives NaN has an infinite error, for which JSON has no word."""
    from dflash_mlx.selfcheck.results import KernelResult

    result_json = import_module("dflash_mlx.cli.doctor.kernels").result_json
    wrong = result_json(KernelResult("a", False, float("inf"), reason="gives what is no number"))
    assert (wrong["error"], wrong["on"]) == (None, False)
    assert json.dumps(wrong, allow_nan=False)
    assert result_json(KernelResult("a", True, 0.5, 1e-3, 0.5))["error"] == 0.5


@pytest.mark.parametrize("flag", ["--model", "--draft"])
def test_a_model_is_for_the_check_of_the_kernels(cli_app, flag):
    """No flag is ignored."""
    result = CliRunner().invoke(cli_app, ["doctor", flag, "x/y"])
    assert result.exit_code == 2
    assert f"{flag} is for the check of the kernels." in result.stderr


def test_verdicts_by_size_are_told():
    """At how many sizes a kernel is used, and that experts have none."""
    import tiny

    from dflash_mlx.selfcheck.results import KernelResult
    from dflash_mlx.selfcheck.timing import Timed

    report = import_module("dflash_mlx.cli.doctor.kernels")
    sizes = (Timed((512, 64, 4, 8), 9, 1e-3, 0.5), Timed((1024, 64, 4, 8), 9, 1e-3, 1.5))
    verdict = KernelResult("a", True, 0.0, 1e-3, 1.0, sizes=sizes)
    assert "used at 1 of 2 sizes" in report.result_entry(verdict).summary
    assert report.result_json(verdict)["sizes"]
    assert report.has_experts(tiny.make_target("gpt_oss").model)
    assert not report.has_experts(tiny.make_target("qwen3").model)


def test_what_is_known_of_kernels(mac, quick, look, monkeypatch):
    """The cached verdicts of this machine; a wrong kernel is a warning, a slow one is not."""
    from dflash_mlx.selfcheck import results
    from dflash_mlx.selfcheck.results import UNUSED, KernelResult

    monkeypatch.setattr("dflash_mlx.kernels.dispatch.by_metal", lambda: True)
    assert look()["kernels"]["found"].startswith("1")
    key = f"{results.machine_key()}-1"
    slow = KernelResult("a", True, 0.0, 2e-3, 1.4, "1.4x as slow as MLX's own")
    known = [
        slow,
        KernelResult("b", True, 0.0, 1e-3, 0.5),
        KernelResult("c", True, 0.0, reason=UNUSED),
    ]
    results.write_results(key, known)
    check = look()["kernels"]
    assert check["status"] == "ok"
    assert check["found"].endswith(
        " · 1 on at the last check · a off: 1.4x as slow as MLX's own"
    )  # fmt: skip
    wrong = KernelResult("b", False, 0.5, reason="differs from its reference by 0.5")
    results.write_results(key, [wrong])
    check = look()["kernels"]
    assert check["status"] == "warn"
    assert check["found"].endswith(" · b off: differs from its reference by 0.5")
    assert "dflash doctor --kernels" in check["hint"]
    results.write_results("another machine", [slow])
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


# The terminal, and the look


@pytest.fixture
def screen(monkeypatch):
    """Make stdout a terminal of a size and an encoding."""
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


@pytest.mark.parametrize(
    ("columns", "encoding", "kind", "status", "found"),
    [
        (80, "utf-8", "xterm", "ok", "80×24 · UTF-8 · TERM=xterm"),
        (0, "utf-8", "xterm", "warn", "its size is not known · UTF-8 · TERM=xterm"),
        (80, "ascii", "xterm", "warn", "80×24 · ascii instead of UTF-8 · TERM=xterm"),
        (80, "utf-8", "dumb", "warn", "80×24 · UTF-8 · TERM=dumb: plain text only"),
        (80, "utf-8", "", "warn", "80×24 · UTF-8 · TERM is not set"),
    ],
)
def test_terminals(screen, monkeypatch, columns, encoding, kind, status, found):
    monkeypatch.setenv("TERM", kind)
    screen(columns, encoding=encoding)
    finding = part("doctor.checks").terminal()
    assert (finding.status, finding.summary) == (status, found)
    assert bool(finding.hint) == (status == "warn")
    monkeypatch.setenv("NO_COLOR", "1")
    assert part("doctor.checks").terminal().summary == f"{found} · no colours, as NO_COLOR asks"


LONG = "OpenBLAS · /usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblasp-r0.3.21.so and more"


@pytest.mark.parametrize("columns", [24, 40, 59, 60, 80, 100, 300])
def test_report_fits_its_terminal(screen, columns):
    """No line is too long, none begins with a dot between two findings, and nothing is lost."""
    doctor, output = part("doctor.report"), part("terminal.output")
    screen(columns)
    report = doctor.CheckReport(output.Output())
    lines = report.lines(
        doctor.ReportEntry("variables", "warn", LONG, "`chmod 600 ~/a/b/c/d/e/f/g`")
    )
    assert max(map(len, lines)) <= min(columns, 100)
    assert not any(line.lstrip().startswith("·") for line in lines)
    assert lines[0].startswith("warn  variables")
    squeezed = re.sub(r"\s", "", "".join(lines))
    assert squeezed.endswith(re.sub(r"\s", "", LONG + "→`chmod 600 ~/a/b/c/d/e/f/g`"))
    hint = next(line for line in lines if "→" in line)
    assert hint == " " * (6 if columns < 60 else 17) + hint.lstrip()


def test_paths_break_after_a_slash():
    assert part("doctor.report").wrap_words("at /aaaa/bbbb/cccc now", 11) == [
        "at",
        "/aaaa/bbbb/",
        "cccc now",
    ]
    assert part("doctor.report").wrap_words("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
    assert part("doctor.report").wrap_words("", 10) == [""]


def show_on_terminal(**env):
    """What a terminal of 80 columns gets while a warning is there; no models."""
    termios = pytest.importorskip("termios")
    lead, follow = os.openpty()
    termios.tcsetwinsize(follow, (24, 80))
    plain = {name: value for name, value in os.environ.items() if name != "DFLASH_MODE"}
    program = (
        "from importlib import import_module as get\n"
        "well = get('dflash_mlx.cli.doctor.report').ok(chr(964))\n"
        "get('dflash_mlx.cli.doctor.command').self_test = lambda _: well\n"
        "get('dflash_mlx.cli.app').app(['doctor'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=follow,
        stdout=follow,
        stderr=follow,
        env={**plain, "DFLASH_TMEP": "1", **env},
    )
    os.close(follow)
    shown = b""
    while True:
        try:
            shown += os.read(lead, 4096) or b""
        except OSError:
            break
    os.close(lead)
    assert process.wait(60) == 0
    return shown.decode().replace("\r\n", "\n")


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


def test_importing_it_loads_no_model_code():
    """The help must be there at once."""
    program = (
        "import sys\n"
        "from importlib import import_module\n"
        "import_module('dflash_mlx.cli.doctor.command')\n"
        "heavy = {'mlx', 'mlx_lm', 'numpy', 'huggingface_hub', 'rich', 'prompt_toolkit'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_group(cli_app, monkeypatch, tmp_path):
    """Two ranks: a row each with versions, files and times; what is wrong with one is said."""
    ranks = import_module("ranks")
    group = part("doctor.group")
    monkeypatch.setattr(group, "RECORD_SECONDS", 120.0)  # others may have the cores
    port = str(ranks.free_ports(1)[0])
    command = [
        "doctor",
        "-n",
        "2",
        "--first-port",
        port,
        "-m",
        str(ROOT / "dflash_mlx/bundled/target"),
    ]
    result = CliRunner().invoke(cli_app, [*command, "--json"])
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"]) == (0, True), result.output
    assert [one["name"] for one in found["checks"]] == ["rank 0", "rank 1", "group"]
    for one in found["checks"][:2]:
        assert re.search(
            r"python 3.* mlx 0.* dflash 0.* 1 file, \w{12} .* µs · [\d.]+ GB/s", one["found"]
        )
    assert "2 ranks by ring" in found["checks"][2]["found"]


@pytest.mark.quick_every(3)
@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import time; time.sleep(60)", "rank 1 on this machine: it does not say its versions"),
        (
            "raise SystemExit('no such thing')",
            "rank 1 on this machine: it has ended (no such thing)",
        ),
        (
            f"print({json.dumps(OTHER_VERSIONS)!r}, flush=True); import time; time.sleep(60)",
            "rank 1 on this machine: it has dflash: 0, and rank 0 has",
        ),
    ],
)
def test_a_rank_that_is_not_well(cli_app, monkeypatch, tmp_path, program, said):
    """It is named; nothing waits for it, and it is gone afterwards."""
    group = part("doctor.group")
    monkeypatch.setattr(group, "RECORD_SECONDS", 4.0)
    begin, begun = subprocess.Popen, []

    def other(line, **how):
        line = [sys.executable, "-c", program] if begun else line
        begun.append(begin(line, **how))
        return begun[-1]

    monkeypatch.setattr(group.subprocess, "Popen", other)
    result = CliRunner().invoke(cli_app, ["doctor", "-n", "2", "--json"])
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"]) == (1, False)
    assert said in found["checks"][2]["found"]
    assert found["checks"][0]["status"] == "ok"
    assert all(process.poll() is not None for process in begun)


def test_a_model_that_ranks_have_not(cli_app):
    """Is told as that, by its whole name, and not as ranks that do not reach each other."""
    result = CliRunner().invoke(cli_app, ["doctor", "-n", "2", "-m", "qwen3:4b", "--json"])
    first, _, group = json.loads(result.stdout)["checks"]
    said = "'mlx-community/Qwen3-4B-4bit' is not on this machine"
    assert said in first["found"], first
    assert said in group["found"]
    assert "models pull mlx-community/Qwen3-4B-4bit" in group["hint"]


def test_what_a_rank_leaves_behind_is_not_waited_for(cli_app, monkeypatch, tmp_path):
    """Such as a child that holds the other end of its stderr."""
    group, begin, note, over = (
        part("doctor.group"),
        subprocess.Popen,
        tmp_path / "a",
        tmp_path / "b",
    )
    child = f"import time; time.sleep(15); open({str(over)!r}, 'w')"
    program = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.DEVNULL)\n"
        f"print(child.pid, file=open({str(note)!r}, 'a'), flush=True)\n"
        "raise SystemExit('no such thing')"
    )
    line = [sys.executable, "-c", program]
    monkeypatch.setattr(group.subprocess, "Popen", lambda _, **how: begin(line, **how))
    result = CliRunner().invoke(cli_app, ["doctor", "-n", "2", "--json"])
    assert not over.exists()
    for number in note.read_text().split():
        os.kill(int(number), signal.SIGKILL)
    assert "it has ended (no such thing)" in json.loads(result.stdout)["checks"][2]["found"]


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_rank_ends_with_who_asked(tmp_path, seconds):
    """It does not wait for others that never come, also when it waits already."""
    ports, hosts = import_module("ranks").free_ports(2), tmp_path / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
    program = "from dflash_mlx.cli.doctor import rank\nrank.main(None)"
    env = {"MLX_RANK": "0", "MLX_HOSTFILE": str(hosts), "DFLASH_LAUNCHER": "0"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    line = [sys.executable, "-c", program]
    with subprocess.Popen(line, env={**os.environ, **env}, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert "python" in json.loads(process.stdout.readline())
        time.sleep(seconds)
        process.stdin.close()
        assert process.wait(60) == -signal.SIGTERM
        assert b"Traceback" not in process.stderr.read()
