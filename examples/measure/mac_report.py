"""One report of this Mac to send back: what works, which kernels are right, and how fast it is.

    make mac-report        or    .venv/bin/python examples/measure/mac_report.py [--out mac-report]

Writes mac-report.json and mac-report.md: the machine, macOS and MLX, `dflash doctor`, the seconds
of a first start and of a second one, the verdicts about the kernels by size, the parity tests on
the GPU, `dflash bench`, the memory of long contexts, and the speed in each minute of a long run.
The pairs are the bundled one and the smallest published one that is already downloaded, or that of
--model. Nothing is downloaded, and your settings and stored measurements are not used.

The long run at the end takes ten minutes, all other steps together ten more. A step without time
left is skipped. Every step is a program of its own, so a crash is a line of the report. The files
are written after each step, and Ctrl-C keeps them. Two more files hold the generated sources of
kernels that fail (mac-report-tests.xml) and the stored verdicts (mac-report-kernels.json).

    1    there is no Apple GPU here, or a step failed: the first line of the report says which
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from dflash_mlx.hub.cache import cached_state
from dflash_mlx.hub.registry import COMFORTABLE_SHARE, best_known

ROOT = Path(__file__).parents[2]
DFLASH = [sys.executable, "-m", "dflash_mlx.cli"]
PROBE = [sys.executable, str(Path(__file__).with_name("mac_probe.py"))]
# What failed tests wrote is kept: the generated sources and the compiler's lines.
KEPT = ["-o", "junit_logging=all", "-o", "junit_log_passing_tests=false"]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-m", "metal", "-p", "no:cacheprovider", *KEPT]
SECONDS = 600.0  # for all steps but the long run
LONG_RUN = 600.0  # seconds: a Mac without a fan is hot by then
LONG_STEP = "long run"
LOADING = 120.0  # seconds that the long run may take to load its pair
ENDING = 15.0  # seconds in which pytest writes its report
NOTHING = "no Apple GPU here: nothing in this report says anything about a Mac"
NOT_READ = "- nothing could be read"
VIRTUAL = "the GPU of a virtual machine: its times say nothing"
ERRORS = 2000  # characters of stderr that are kept
TESTS, KERNELS = "tests.xml", "kernels.json"  # kept beside the report

UNREADABLE = (ValueError, OSError, ElementTree.ParseError)  # results of a step that was cut off

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


def read_lines(stdout: str, _: Path) -> Found:
    """The objects that a step of mac_probe.py prints, joined; a last line cut off is left out."""
    found: Found = {}
    for line in stdout.splitlines(keepends=True):
        if line.startswith("{") and line.endswith("\n"):
            found |= json.loads(line)
    if not found:
        raise ValueError("it printed nothing")
    return found


def read_bench(stdout: str, _: Path) -> Found:
    """The numbers of a benchmark without the answers' texts and tokens."""
    found = json.loads(stdout)
    return {name: value for name, value in found.items() if name != "answers"}


def read_tests(stdout: str, folder: Path) -> Found:
    """How many tests ran, the messages of those that failed, and whether the time was spent."""
    suite = ElementTree.parse(folder / TESTS).getroot().find("testsuite")
    assert suite is not None
    failed = {}
    for case in suite.iter("testcase"):
        fault = case.find("failure") if case.find("error") is None else case.find("error")
        if fault is not None:
            failed[case.get("name")] = (fault.get("message") or "")[:ERRORS]
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    return {**counts, "failed": failed, "stopped": "session-timeout" in stdout}


def small_pair(memory: int) -> str | None:
    """The target of the smallest downloaded pair that fits a machine with `memory` bytes.

    A GPU can use about three quarters of the memory.
    """
    sizes = {
        entry.target: entry.memory_bytes
        for entry in best_known()
        if entry.supported
        and entry.memory_bytes is not None
        and entry.memory_bytes < COMFORTABLE_SHARE**2 * memory
        and entry.draft
        and cached_state(entry.target) == cached_state(entry.draft) == "yes"
    }
    return min(sizes, key=lambda target: sizes[target], default=None)


def steps_for(target: str | None, asked: argparse.Namespace, folder: Path) -> list[Step]:
    """All steps, quick ones first, the long run last."""
    size = ["--limit", str(asked.prompts), "--max-tokens", str(asked.max_tokens), "--repeats", "1"]
    bench = [*DFLASH, "bench", "--json", "--modes", "baseline,dflash,auto", *size]
    kernels = [*DFLASH, "doctor", "--kernels", "--json"]
    within = f"--session-timeout={max(1, min(180, asked.seconds) - ENDING):.0f}"
    tests = [*PYTEST, within, f"--junitxml={folder / TESTS}", str(ROOT / "tests/kernels")]
    steps = [
        Step("machine", [*PROBE, "machine"], 60, read_lines),
        *start_steps(None),
        Step("doctor", [*DFLASH, "doctor", "--json"], 120, read_json),
        Step("kernels", kernels, 120, read_json),
        Step("parity tests", tests, 180, read_tests),
        Step("bench, bundled pair", bench, 120, read_bench),
    ]
    named: list[str] = []
    if target is not None:
        named = ["--model", target]
        steps += [
            *start_steps(target),
            Step(f"kernels, {target}", [*kernels, *named], 180, read_json),
            Step(f"bench, {target}", [*bench, *named, "--offline"], 240, read_bench),
        ]
    steps.append(Step(f"memory, {pair_label(target)}", [*PROBE, "memory", *named], 180, read_lines))
    if asked.long_run:
        long_run = [*PROBE, "sustained", *named, "--seconds", f"{asked.long_run:g}"]
        limit = asked.long_run + LOADING
        steps.append(Step(f"{LONG_STEP}, {pair_label(target)}", long_run, limit, read_lines))
    return steps


def start_steps(target: str | None) -> list[Step]:
    """A first start, with no measurement stored for this pair, and a second one."""
    command = [*PROBE, "start", *([] if target is None else ["--model", target])]
    return [
        Step(f"{which} start, {pair_label(target)}", command, 120, read_lines)
        for which in ("first", "second")
    ]


def pair_label(target: str | None) -> str:
    """The name of a pair in the names of steps."""
    return target or "bundled pair"


def environment(folder: Path) -> dict[str, str]:
    """Variables for a step: without the user's settings and measurements, and without the Hub."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DFLASH_")}
    own = {"XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    return {**kept, **own, "HF_HUB_CACHE": constants.HF_HUB_CACHE}


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
        told = stopped.stdout or b""
        text = told if isinstance(told, str) else told.decode("utf-8", "replace")
        with suppress(*UNREADABLE):
            return ended("took too long", None, step.read(text, folder), str(stopped))
        return ended("took too long", None, errors=str(stopped))
    try:
        result = step.read(done.stdout, folder)
    except UNREADABLE:
        return ended("failed", done.returncode, errors=done.stderr or done.stdout)
    return ended("failed" if done.returncode else "ok", done.returncode, result, done.stderr)


def machine_of(outcomes: list[Outcome]) -> str:
    """The machine, as each line names it."""
    facts = next((o.result for o in outcomes if o.name == "machine" and o.result), {})
    if not facts.get("device"):
        return f"{platform.system()} {platform.machine()}, no Apple GPU"
    return f"{facts['device']}, {facts['memory'] / 2**30:.0f} GB"


def label_of(outcomes: list[Outcome]) -> str:
    """The first line of the report: whether it is valid, or what failed."""
    facts = next((o.result for o in outcomes if o.name == "machine" and o.result), {})
    if not facts.get("device"):
        return NOTHING
    parts = [machine_of(outcomes), facts["system"]]
    if "virtual" in facts["device"].lower():
        parts.append(VIRTUAL)
    failed = [outcome.name for outcome in outcomes if outcome.status != "ok"]
    return " · ".join([*parts, *(["not well: " + ", ".join(failed)] if failed else [])])


def commit() -> str | None:
    """The commit of this clone, with "+" if files were changed."""
    if shutil.which("git") is None:
        return None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def markdown(report: Found) -> str:
    """The report in Markdown. Each row of a table names the machine."""
    machine = report["machine"]
    lines = [f"# {report['label']}", "", f"{report['made']} · commit {report['commit']}", ""]
    steps = [[step[name] for name in ("name", "status", "seconds")] for step in report["steps"]]
    lines += table(machine, ["step", "", "seconds"], steps)
    for step in report["steps"]:
        lines += ["", f"## {step['name']}", "", *details(step["result"] or {}, machine)]
        if step["errors"] and step["status"] != "ok":
            lines += ["", "```", step["errors"].strip(), "```"]
    return "\n".join(lines) + "\n"


def table(machine: str, columns: list[str], rows: list[list[Any]]) -> list[str]:
    """A table whose first column is the machine; None is a dash."""
    lines = [f"| machine | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 1)]
    for row in rows:
        cells = ["–" if cell is None else str(cell) for cell in row]
        lines.append(f"| {' | '.join([machine, *cells])} |")
    return lines


def details(result: Found, machine: str) -> list[str]:
    """The lines about one result of any kind."""
    if "checks" in result:
        return [f"- {c['status']} · {c['name']}: {c['found']}" for c in result["checks"]]
    if "kernels" in result and "ok" in result:
        return kernel_lines(result, machine)
    if "tests" in result:
        counts = ", ".join(f"{name} {result[name]}" for name in ("tests", "failures", "skipped"))
        stopped = " · stopped: the time was spent" if result["stopped"] else ""
        failed = [f"- {name}: {why}" for name, why in result["failed"].items()]
        return [f"- {counts}{stopped}", *failed]
    if "phases" in result:
        phases = {**result["phases"], "total": result.get("total")}
        return table(machine, [f"{name}, s" for name in phases], [[*phases.values()]])
    if "contexts" in result:
        return memory_lines(result, machine)
    if "tok_s" in result:
        return minute_lines(result, machine)
    if "rows" in result:
        return bench_lines(result, machine)
    return [f"- {name}: {json.dumps(value)}" for name, value in result.items()] or [NOT_READ]


def kernel_lines(result: Found, machine: str) -> list[str]:
    """The verdict on each kernel, then the times by size."""
    lines = [kernel_line(kernel) for kernel in result["kernels"]] or [f"- {result['note']}"]
    sizes = [
        [kernel["name"], *size_cells(timed)]
        for kernel in result["kernels"]
        for timed in kernel["sizes"]
    ]
    columns = ["kernel", "size", "ms", "of the time without it", "used"]
    return [*lines, "", *table(machine, columns, sizes)] if sizes else lines


def size_cells(timed: list[Any]) -> list[str]:
    """The cells of a kernel at one size."""
    size, seconds, ratio, won = timed
    words = "×".join(map(str, size)) if size else "the model's"
    return [words, f"{1e3 * seconds:.3f}", f"{ratio:.2f}", "yes" if won else "no"]


def kernel_line(kernel: Found) -> str:
    """One line about a kernel."""
    right = "right" if kernel["right"] else "WRONG"
    ratio = "" if kernel["ratio"] is None else f" · {kernel['ratio']:.2f} of the time without it"
    reason = f" · {kernel['reason']}" if kernel["reason"] else ""
    return f"- {kernel['name']}: {right}{ratio}{reason}"


def memory_lines(result: Found, machine: str) -> list[str]:
    """Bytes and speeds by length of context."""
    rows: list[list[Any]] = [["models alone", f"{result['loaded'] / 1e9:.2f}", None, None, None]]
    for line in result["contexts"]:
        if "note" in line:
            rows.append([f"{line['tokens']:,}: {line['note']}", None, None, None, None])
            continue
        sizes = [f"{line[name] / 1e9:.2f}" for name in ("active", "peak")]
        rows.append([f"{line['tokens']:,}", *sizes, line["prompt_tok_s"], line["tok_s"]])
    columns = ["tokens of context", "active, GB", "peak, GB", "prompt tok/s", "tok/s"]
    return table(machine, columns, rows)


def minute_lines(result: Found, machine: str) -> list[str]:
    """The speed of the first and of the last minute, or shorter window."""
    first, last = result["tok_s"][0], result["tok_s"][-1]
    columns = [f"first {result['window']:g} s, tok/s", f"last {result['window']:g} s", "last/first"]
    share = f"{last / first:.2f}" if first else None
    return table(machine, [*columns, "windows"], [[first, last, share, len(result["tok_s"])]])


def bench_lines(result: Found, machine: str) -> list[str]:
    """The rows of a benchmark."""
    rows = []
    for row in result["rows"]:
        middle = [
            row[name] and f"{row[name]['median']:.2f}" for name in ("decode", "speedup", "tau")
        ]
        same = f"{row['identical']} of {row['compared']}" if row["compared"] else None
        rows.append([row["task"], row["mode"], f"{row['temperature']:g}", *middle, same])
    columns = ["task", "mode", "temperature", "tok/s", "× plain", "τ", "same"]
    return table(machine, columns, rows)


def write_report(out: Path, outcomes: list[Outcome], folder: Path) -> Found:
    """Write the files with what is known so far, and return the report."""
    report = {
        "label": label_of(outcomes),
        "machine": machine_of(outcomes),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "steps": [asdict(outcome) for outcome in outcomes],
    }
    beside(out, ".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    beside(out, ".md").write_text(markdown(report), encoding="utf-8")
    for file, kept in ((folder / TESTS, TESTS), (folder / "dflash" / KERNELS, KERNELS)):
        if file.exists():
            shutil.copyfile(file, beside(out, f"-{kept}"))
    return report


def beside(out: Path, ending: str) -> Path:
    """A file of the report."""
    return out.with_name(out.name + ending)


def run_steps(steps: list[Step], asked: argparse.Namespace, folder: Path) -> Found:
    """Run the steps, write the report after each, and return the last one."""
    outcomes: list[Outcome] = []
    report = write_report(asked.out, outcomes, folder)
    until = time.monotonic() + asked.seconds
    for number, step in enumerate(steps, 1):
        print(f"{number} of {len(steps)} · {step.name} …", end=" ", file=sys.stderr, flush=True)
        own = step.name.startswith(LONG_STEP)
        left = step.limit if own else until - time.monotonic()
        outcomes.append(run_step(step, left, folder))
        print(f"{outcomes[-1].status}, {outcomes[-1].seconds} s", file=sys.stderr, flush=True)
        report = write_report(asked.out, outcomes, folder)
    return report


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("mac-report"), help="without the ending")
    parser.add_argument("--model", help="the published pair, by its target's Hub id")
    parser.add_argument("--prompts", type=int, default=4, help="of each benchmark")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all but the long run")
    parser.add_argument("--long-run", type=float, default=LONG_RUN, help="seconds; 0: none")
    return parser.parse_args(arguments)


def main() -> int:
    """Run all steps."""
    asked = options()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = steps_for(asked.model or small_pair(memory), asked, folder)
        try:
            report = run_steps(steps, asked, folder)
        except KeyboardInterrupt:
            print("\nstopped: the report has the steps before", file=sys.stderr)
            return 1
    print(f"{report['label']}\nwritten: {beside(asked.out, '.json')} and .md")
    well = all(step["status"] == "ok" for step in report["steps"])
    return 0 if well and report["label"] != NOTHING else 1


if __name__ == "__main__":
    sys.exit(main())
