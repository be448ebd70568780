"""`dflash doctor --hosts`: starts a process for each rank of a group, and reports what they print.

Ranks print their facts before they join each other, so a rank that fails can be named.
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
from dataclasses import dataclass, field
from typing import Any

from dflash_mlx.distributed.model_files import check_same
from dflash_mlx.errors import DFlashError

from ..launch import Hosts, environment, ssh_line
from ..terminal.output import Output, format_bytes, format_count
from ..terminal.spinner import Spinner
from .report import CheckReport, CheckResult, fail, ok

RECORD_SECONDS = 10.0  # the longest time to wait for each record of a rank
EXIT_SECONDS = 1.0  # the longest time from the end of a rank's output to its exit
RECORDS = ("its versions", "the model's files", "that it has joined", "the times of sums")
JOINED = RECORDS.index("that it has joined")
START_HINT = "`ssh HOST` has to work without a question, with this program at the same path"
JOIN_HINT = "check the addresses of the host file, the cables, and the firewall for Python"


@dataclass(slots=True)
class Rank:
    """A rank's process and the records it has printed.

    rest: the beginning of the next record. error, hint: of the first failure.
    """

    name: str
    process: subprocess.Popen[bytes]
    records: list[dict[str, Any]] = field(default_factory=list)
    rest: bytes = b""
    error: str = ""
    hint: str = ""

    def facts(self, count: int) -> dict[str, str]:
        """Versions and files in the first `count` records."""
        facts: dict[str, str] = {}
        for record in self.records[:count]:
            facts |= record.get("facts", {})
        return facts

    @property
    def running(self) -> bool:
        """Whether more records are expected."""
        return not self.error and len(self.records) < len(RECORDS)


def check_group(hosts: Hosts, port: int, model: str | None, out: Output, *, json: bool) -> bool:
    """Check a group and print an entry for each rank and for the group; False if a check fails."""
    with Spinner(out, f"asking {len(hosts.ssh)} ranks"), started(hosts, port, model) as ranks:
        for number in range(len(RECORDS)):
            if number >= JOINED and not all(rank.running for rank in ranks):
                break  # joining needs all ranks
            read_records(ranks, number + 1, time.monotonic() + RECORD_SECONDS)
            for rank in ranks:
                compare(rank, ranks[0], number + 1)
    entries = [rank_result(rank).entry(f"rank {number}") for number, rank in enumerate(ranks)]
    entries.append(group_result(hosts, ranks).entry("group"))
    healthy = all(entry.status == "ok" for entry in entries)
    report = CheckReport(out)
    if json:
        report.write_json(entries, healthy=healthy)
    else:
        for entry in entries:
            report.show(entry)
    return healthy


@contextmanager
def started(hosts: Hosts, port: int, model: str | None) -> Iterator[list[Rank]]:
    """Start all ranks as processes; kills them at the end."""
    variables, content = hosts.variables(port)
    arguments = ["-m", "dflash_mlx.cli.doctor.rank", *([model] if model else [])]
    ranks: list[Rank] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, host in enumerate(hosts.ssh):
                env = None
                line = [sys.executable, *arguments]
                if host is None:
                    env = environment(folder, variables, content, number)
                else:
                    line = ssh_line(host, variables, content, number, arguments)
                process = subprocess.Popen(
                    line,
                    env=env,
                    stdin=subprocess.PIPE,  # closes when this process ends
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


def read_records(ranks: Sequence[Rank], count: int, deadline: float) -> None:
    """Read until every rank has printed `count` records; the others fail at the deadline."""
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            assert rank.process.stdout is not None
            selector.register(rank.process.stdout, selectors.EVENT_READ, rank)
        while selector.get_map():
            for key in [*selector.get_map().values()]:
                if len(key.data.records) >= count or key.data.error:
                    selector.unregister(key.fileobj)
            ready = selector.select(deadline - time.monotonic()) if selector.get_map() else []
            if not ready:
                break
            for key, _ in ready:
                read_output(key.data)
    for rank in ranks:
        if len(rank.records) < count and not rank.error:
            seconds = f"{RECORD_SECONDS:.0f} seconds"
            rank.error = f"it does not say {RECORDS[count - 1]} within {seconds}"
            rank.hint = START_HINT if count <= JOINED else JOIN_HINT


def read_output(rank: Rank) -> None:
    """Read the records that a rank has printed; if its output has ended, set its error."""
    assert rank.process.stdout is not None
    assert rank.process.stderr is not None
    data = rank.process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
    if not data:
        with suppress(subprocess.TimeoutExpired):
            rank.process.wait(EXIT_SECONDS)
        os.set_blocking(rank.process.stderr.fileno(), False)  # a child of the rank may keep it open
        errors = (rank.process.stderr.read() or b"").decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(errors) if line.strip()), "without a word")
        rank.error = f"it has ended ({last.strip()[:200].rstrip('.')})"
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
                rank.error = str(error)
                rank.hint = record.get("hint") or JOIN_HINT
            else:
                rank.records.append(record)


def compare(rank: Rank, leader: Rank, count: int) -> None:
    """Compare the facts of a rank with rank 0's, as loading does; a difference is an error."""
    if rank.error or leader.error:
        return
    try:
        check_same(rank.facts(count), leader.facts(count))
    except DFlashError as error:
        rank.error = error.message
        rank.hint = error.hint


def rank_result(rank: Rank) -> CheckResult:
    """Name, versions, memory, files and times of a rank, or its error."""
    parts = [rank.name]
    if rank.records and "python" in rank.records[0]:
        first = rank.records[0]
        parts += [f"python {first['python']}"]
        parts += [f"{name} {first['facts'][name]}" for name in ("mlx", "mlx-lm", "dflash")]
        parts.append(format_bytes(first["memory"]))
    if files := {n: v for n, v in rank.facts(len(RECORDS)).items() if n.endswith(", sampled")}:
        parts.append(f"{format_count(len(files), 'file', 'files')}, {next(iter(files.values()))}")
    if times := next((record for record in rank.records if "row" in record), None):
        parts.append(f"sum of a row {1e6 * times['row']:,.0f} µs")
        parts.append(f"{times['rate'] / 1e9:.2f} GB/s")
    summary = " · ".join(parts)
    if rank.error:
        return fail(f"{summary}: {rank.error.rstrip('.')}", rank.hint)
    return ok(summary)


def group_result(hosts: Hosts, ranks: Sequence[Rank]) -> CheckResult:
    """The slowest sum of the group, or the error of a rank, first of one that knows the cause."""
    summary = f"{len(ranks)} ranks by {hosts.backend}"
    failed = [number for number, rank in enumerate(ranks) if rank.error]
    named = [number for number in failed if ranks[number].hint != JOIN_HINT]
    all_wait = len(failed) == len(ranks) and all(len(rank.records) == JOINED for rank in ranks)
    if all_wait and not named:
        return fail(f"{summary}: they do not reach each other", JOIN_HINT)
    if failed:
        number = (named or failed)[0]
        first = ranks[number]
        sentence = f"rank {number} on {first.name}: {first.error.rstrip('.')}"
        return fail(f"{summary} cannot work together; {sentence}", first.hint)
    slowest = max(ranks, key=lambda rank: rank.records[-1]["row"])
    return ok(
        f"{summary} · the slowest sum of a row takes {1e6 * slowest.records[-1]['row']:,.0f} µs"
    )
