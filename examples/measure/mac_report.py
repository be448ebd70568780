"""One report of this Mac to send back: what works, which kernels are right, and how fast it is.

    make mac-report        or    .venv/bin/python examples/measure/mac_report.py [--out mac-report]

Writes mac-report.json and mac-report.md: the machine and versions, `dflash doctor`, the verdicts
about the kernels, the parity tests on the GPU, and `dflash bench` of the bundled pair and of the
smallest published pair that is already downloaded. Nothing is downloaded, your settings are not
read, and after ten minutes what is left is skipped. Every step is a program of its own, so a crash
is a line of the report.

    1    there is no Apple GPU here, or a step failed: the first line of the report says which
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dflash_mlx.hub.cache import cached_state
from dflash_mlx.hub.registry import COMFORTABLE_SHARE, entries

ROOT = Path(__file__).parents[2]
DFLASH = [sys.executable, "-m", "dflash_mlx.cli"]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-m", "metal", "-p", "no:cacheprovider"]
SECONDS = 600.0  # for all steps together
NOTHING = "no Apple GPU here: nothing in this report says anything about a Mac"
VIRTUAL = "the GPU of a virtual machine: its times say nothing"
ERRORS = 2000  # characters of stderr that are kept

Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """A program to run, and how to read its result from its stdout or from a file it writes.

    `limit` is in seconds.
    """

    name: str
    command: list[str]
    limit: float
    read: Callable[[str, Path], Found]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step. `exit_code` is None if the step was killed."""

    name: str
    status: str  # "ok", "failed", "took too long" or "skipped"
    seconds: float
    exit_code: int | None
    result: Found | None
    errors: str


def read_json(stdout: str, _: Path) -> Found:
    """The object that a command with `--json` prints."""
    return json.loads(stdout)


def read_bench(stdout: str, _: Path) -> Found:
    """The numbers of a benchmark without the answers' texts and tokens."""
    found = json.loads(stdout)
    return {name: value for name, value in found.items() if name != "answers"}


def read_tests(_: str, folder: Path) -> Found:
    """How many tests ran, and the messages of those that failed."""
    suite = ElementTree.parse(folder / "tests.xml").getroot().find("testsuite")
    assert suite is not None
    failed = {}
    for case in suite.iter("testcase"):
        fault = case.find("failure") if case.find("error") is None else case.find("error")
        if fault is not None:
            failed[case.get("name")] = (fault.get("message") or "")[:ERRORS]
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    return {**counts, "failed": failed}


def small_pair(memory: int) -> str | None:
    """The target of the smallest downloaded pair that fits a machine with `memory` bytes.

    A GPU can use about three quarters of the memory.
    """
    sizes = {
        entry.target: entry.memory_bytes
        for entry in entries()
        if entry.supported
        and entry.memory_bytes is not None
        and entry.memory_bytes < COMFORTABLE_SHARE**2 * memory
        and cached_state(entry.target) == cached_state(entry.draft) == "yes"
    }
    return min(sizes, key=lambda target: sizes[target], default=None)


def steps_for(target: str | None, prompts: int, max_tokens: int, folder: Path) -> list[Step]:
    """All steps, quick ones first."""
    size = ["--limit", str(prompts), "--max-tokens", str(max_tokens), "--repeats", "1"]
    bench = [*DFLASH, "bench", "--json", "--modes", "baseline,dflash,auto", *size]
    kernels = [*DFLASH, "doctor", "--kernels", "--json"]
    tests = [*PYTEST, f"--junitxml={folder / 'tests.xml'}", str(ROOT / "tests")]
    steps = [
        Step("doctor", [*DFLASH, "doctor", "--json"], 120, read_json),
        Step("kernels", kernels, 120, read_json),
        Step("parity tests", tests, 180, read_tests),
        Step("bench, bundled pair", bench, 120, read_bench),
    ]
    if target is not None:
        named = ["--model", target]
        steps += [
            Step(f"kernels, {target}", [*kernels, *named], 180, read_json),
            Step(f"bench, {target}", [*bench, *named, "--offline"], 240, read_bench),
        ]
    return steps


def environment(folder: Path) -> dict[str, str]:
    """Variables for a step: without the user's settings, and without the Hub."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DFLASH_")}
    return {**kept, "XDG_CONFIG_HOME": str(folder), "HF_HUB_OFFLINE": "1"}


def run_step(step: Step, seconds: float, folder: Path) -> Outcome:
    """Run a step for at most `seconds`."""
    began = time.monotonic()

    def ended(
        status: str, code: int | None, result: Found | None = None, errors: str = ""
    ) -> Outcome:
        took = round(time.monotonic() - began, 1)
        return Outcome(step.name, status, took, code, result, errors[-ERRORS:])

    limit = min(step.limit, seconds)
    if limit <= 1:
        return ended("skipped", None)
    try:
        done = subprocess.run(
            step.command,
            cwd=ROOT,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as stopped:
        return ended("took too long", None, errors=str(stopped))
    try:
        result = step.read(done.stdout, folder)
    except (ValueError, OSError, ElementTree.ParseError):
        return ended("failed", done.returncode, errors=done.stderr or done.stdout)
    return ended("failed" if done.returncode else "ok", done.returncode, result, done.stderr)


def label_of(outcomes: list[Outcome]) -> str:
    """The first line of the report: whether it is valid, or what failed."""
    device = next(
        (o.result.get("device") for o in outcomes if o.name == "kernels" and o.result), None
    )
    if device is None:
        return NOTHING
    failed = [outcome.name for outcome in outcomes if outcome.status != "ok"]
    parts = [str(device), VIRTUAL] if "virtual" in str(device).lower() else [str(device)]
    return " · ".join([*parts, *(["not well: " + ", ".join(failed)] if failed else [])])


def commit() -> str | None:
    """The commit of this clone, with "+" if files were changed."""
    if shutil.which("git") is None:
        return None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def markdown(report: Found) -> str:
    """The report in Markdown."""
    lines = [f"# {report['label']}", "", f"{report['made']} · commit {report['commit']}", ""]
    lines += ["| step | | seconds |", "|---|---|---|"]
    for step in report["steps"]:
        lines.append(f"| {step['name']} | {step['status']} | {step['seconds']} |")
    for step in report["steps"]:
        lines += ["", f"## {step['name']}", "", *details(step["result"] or {})]
        if step["errors"] and step["status"] != "ok":
            lines += ["", "```", step["errors"].strip(), "```"]
    return "\n".join(lines) + "\n"


def details(result: Found) -> list[str]:
    """The lines about one result of any kind."""
    if "checks" in result:
        return [f"- {c['status']} · {c['name']}: {c['found']}" for c in result["checks"]]
    if "kernels" in result and "ok" in result:
        return [kernel_line(kernel) for kernel in result["kernels"]] or [f"- {result['note']}"]
    if "tests" in result:
        counts = ", ".join(f"{name} {result[name]}" for name in ("tests", "failures", "skipped"))
        return [f"- {counts}", *(f"- {name}: {why}" for name, why in result["failed"].items())]
    if "rows" not in result:
        return ["- nothing could be read"]
    lines = ["| task | mode | temperature | tok/s | × plain | τ | same |", "|" + "---|" * 7]
    for row in result["rows"]:
        middle = [
            row[name] and f"{row[name]['median']:.2f}" for name in ("decode", "speedup", "tau")
        ]
        same = f"{row['identical']} of {row['compared']}" if row["compared"] else "–"
        cells = [row["task"], row["mode"], f"{row['temperature']:g}", *(m or "–" for m in middle)]
        lines.append(f"| {' | '.join([*cells, same])} |")
    return lines


def kernel_line(kernel: Found) -> str:
    """One line about a kernel."""
    right = "right" if kernel["right"] else "WRONG"
    ratio = "" if kernel["ratio"] is None else f" · {kernel['ratio']:.2f} of the time of MLX's own"
    reason = f" · {kernel['reason']}" if kernel["reason"] else ""
    return f"- {kernel['name']}: {right}{ratio}{reason}"


def main() -> int:
    """Run all steps and write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("mac-report"), help="without the ending")
    parser.add_argument("--prompts", type=int, default=4, help="of each benchmark")
    parser.add_argument("--max-tokens", type=int, default=128)
    options = parser.parse_args()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    outcomes: list[Outcome] = []
    until = time.monotonic() + SECONDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = steps_for(small_pair(memory), options.prompts, options.max_tokens, folder)
        for number, step in enumerate(steps, 1):
            print(f"{number} of {len(steps)} · {step.name} …", end=" ", file=sys.stderr, flush=True)
            outcomes.append(run_step(step, until - time.monotonic(), folder))
            print(f"{outcomes[-1].status}, {outcomes[-1].seconds} s", file=sys.stderr, flush=True)
    report = {
        "label": label_of(outcomes),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "steps": [asdict(outcome) for outcome in outcomes],
    }
    files = [options.out.with_name(options.out.name + ending) for ending in (".json", ".md")]
    files[0].write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    files[1].write_text(markdown(report), encoding="utf-8")
    print(f"{report['label']}\nwritten: {files[0]} and {files[1]}")
    well = all(outcome.status == "ok" for outcome in outcomes)
    return 0 if well and report["label"] != NOTHING else 1


if __name__ == "__main__":
    sys.exit(main())
