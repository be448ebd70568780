"""`dflash doctor --hosts`: starts the ranks of a group, and says what each has and what is wrong.

Ranks speak for themselves before they join each other, so one that does not can be named.
"""

import json as jsonlib
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from dflash_mlx.distributed.environment import LAUNCHER
from dflash_mlx.distributed.model_files import check_same
from dflash_mlx.errors import DFlashError

from ..launch.command import Hosts, environment, ssh_line
from ..terminal.output import Output, format_bytes, format_count
from ..terminal.spinner import Spinner
from .report import CheckReport, CheckResult, ReportEntry, fail, ok, one_line

ANSWER = 10.0  # seconds that a rank has for each of its lines
END = 1.0  # seconds from its last word to its end
LINES = ("its versions", "the model's files", "that it has joined", "the times of sums")
JOINED = LINES.index("that it has joined")
START_HINT = "`ssh HOST` has to work without a question, with this program at the same path"
JOIN_HINT = "check the addresses of the host file, the cables, and the firewall for Python"


@dataclass(slots=True)
class Rank:
    """A rank's process, and the records it has printed; `wrong` is its first fault."""

    name: str
    process: subprocess.Popen[bytes]
    records: list[dict[str, Any]] = field(default_factory=list)
    rest: bytes = b""
    wrong: str = ""
    hint: str = ""

    def facts(self, count: int) -> dict[str, str]:
        """Versions and files in the first `count` records."""
        return {k: v for line in self.records[:count] for k, v in line.get("facts", {}).items()}

    @property
    def open(self) -> bool:
        """Whether more records are to come."""
        return not self.wrong and len(self.records) < len(LINES)


def check_group(hosts: Hosts, port: int, model: str | None, out: Output, *, json: bool) -> bool:
    """Check a group and print an entry for each rank and for the group; False if a check fails."""
    with Spinner(out, f"asking {len(hosts.ssh)} ranks"), started(hosts, port, model) as ranks:
        for number in range(len(LINES)):
            if number >= JOINED and not all(rank.open for rank in ranks):
                break  # nobody can join; the records before that do not need the others
            listen(ranks, number + 1, time.monotonic() + ANSWER)
            for rank in ranks:
                compare(rank, ranks[0], number + 1)
    rows = [(f"rank {number}", row(rank)) for number, rank in enumerate(ranks)]
    rows.append(("group", group_row(hosts, ranks)))
    entries = [
        ReportEntry(name, result.status, one_line(result.found), one_line(result.hint))
        for name, result in rows
    ]
    healthy = all(entry.status == "ok" for entry in entries)
    if json:
        document = {"checks": [asdict(entry) for entry in entries], "ok": healthy}
        out.write(jsonlib.dumps(document, ensure_ascii=out.stdout_is_tty) + "\n")
    else:
        report = CheckReport(out)
        for entry in entries:
            report.show(entry)
    return healthy


@contextmanager
def started(hosts: Hosts, port: int, model: str | None) -> Iterator[list[Rank]]:
    """All ranks as processes; at the end they are killed."""
    variables, content = hosts.variables(port)
    arguments = ["-m", "dflash_mlx.cli.doctor.rank", *([model] if model else [])]
    ranks: list[Rank] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, host in enumerate(hosts.ssh):
                env = None
                line = [sys.executable, *arguments]
                if host is None:
                    env = environment(folder, variables, content, number) | {LAUNCHER: "0"}
                else:
                    line = ssh_line(host, variables, content, number, arguments)
                process = subprocess.Popen(
                    line,
                    env=env,
                    stdin=subprocess.PIPE,  # which ends with this process
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
                ranks.append(Rank(host or "this machine", process))
            yield ranks
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.wait()


def listen(ranks: Sequence[Rank], count: int, until: float) -> None:
    """Read until every rank has printed `count` records; the others are wrong at `until`."""
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            assert rank.process.stdout is not None
            selector.register(rank.process.stdout, selectors.EVENT_READ, rank)
        while selector.get_map():
            for key in [*selector.get_map().values()]:
                if len(key.data.records) >= count or key.data.wrong:
                    selector.unregister(key.fileobj)
            ready = selector.select(until - time.monotonic()) if selector.get_map() else []
            if not ready:
                break
            for key, _ in ready:
                read(key.data)
    silent = [rank for rank in ranks if len(rank.records) < count and not rank.wrong]
    for rank in silent:
        seconds = f"{ANSWER:.0f} seconds"
        rank.wrong = f"it does not say {LINES[count - 1]} within {seconds}"
        rank.hint = START_HINT if count <= JOINED else JOIN_HINT


def read(rank: Rank) -> None:
    """Read the records that a rank has printed; at the end of its output, the reason."""
    assert rank.process.stdout is not None
    assert rank.process.stderr is not None
    data = rank.process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
    if not data:
        with suppress(subprocess.TimeoutExpired):
            rank.process.wait(END)
        os.set_blocking(rank.process.stderr.fileno(), False)  # a child of it may hold the other end
        words = (rank.process.stderr.read() or b"").decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(words) if line.strip()), "without a word")
        rank.wrong = f"it has ended ({last.strip()[:200].rstrip('.')})"
        rank.hint = START_HINT
        return
    *lines, rank.rest = (rank.rest + data).split(b"\n")
    for line in lines:
        try:
            record = jsonlib.loads(line)
        except ValueError:
            continue  # a login shell's greeting
        if isinstance(record, dict):
            if error := record.get("error"):
                rank.wrong = str(error)
                rank.hint = record.get("hint") or JOIN_HINT
            else:
                rank.records.append(record)


def compare(rank: Rank, leader: Rank, count: int) -> None:
    """Compare the first records of a rank with rank 0's, as loading does."""
    if rank.wrong or leader.wrong:
        return
    try:
        check_same(rank.facts(count), leader.facts(count))
    except DFlashError as error:
        rank.wrong = error.message
        rank.hint = error.hint


def row(rank: Rank) -> CheckResult:
    """The result of one rank."""
    parts = [rank.name]
    if rank.records and "python" in rank.records[0]:
        first = rank.records[0]
        parts += [f"python {first['python']}"]
        parts += [f"{name} {first['facts'][name]}" for name in ("mlx", "mlx-lm", "dflash")]
        parts.append(format_bytes(first["memory"]))
    if files := {n: v for n, v in rank.facts(len(LINES)).items() if n.endswith(", sampled")}:
        parts.append(f"{format_count(len(files), 'file', 'files')}, {next(iter(files.values()))}")
    if times := next((line for line in rank.records if "row" in line), None):
        parts.append(f"sum of a row {1e6 * times['row']:,.0f} µs")
        parts.append(f"{times['rate'] / 1e9:.2f} GB/s")
    summary = " · ".join(parts)
    if rank.wrong:
        return fail(f"{summary}: {rank.wrong.rstrip('.')}", rank.hint)
    return ok(summary)


def group_row(hosts: Hosts, ranks: Sequence[Rank]) -> CheckResult:
    """The result of the group."""
    summary = f"{len(ranks)} ranks by {hosts.backend}"
    wrong = [number for number, rank in enumerate(ranks) if rank.wrong]
    if len(wrong) == len(ranks) and all(len(rank.records) == JOINED for rank in ranks):
        return fail(f"{summary}: they do not reach each other", JOIN_HINT)
    if wrong:
        first = ranks[wrong[0]]
        sentence = f"rank {wrong[0]} on {first.name}: {first.wrong.rstrip('.')}"
        return fail(f"{summary} cannot work together; {sentence}", first.hint)
    slowest = max(ranks, key=lambda rank: rank.records[-1]["row"])
    return ok(
        f"{summary} · the slowest sum of a row takes {1e6 * slowest.records[-1]['row']:,.0f} µs"
    )
