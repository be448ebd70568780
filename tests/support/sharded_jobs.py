"""Runs jobs on ranks with a sharded target, and compares with the whole target's answers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ranks import Job, ranks, results
from sharded_answers import ALL, run

BUNDLED: Job = [None, None]
FEW = ("dflash", "ddtree", "packed", "shared")


def sharded(
    folder: Path, count: int, jobs: list[Job], kinds: Sequence[str] = ALL, **env: str
) -> list[dict[str, Any]]:
    """Run jobs on `count` ranks; returns rank 0's results."""
    env["ANSWERS"] = " ".join(kinds)
    file = folder / "jobs.json"
    file.write_text(json.dumps(jobs))
    with ranks(folder, count, ["tests/support/sharded_answers.py", str(file)], **env) as processes:
        return json.loads(results(processes)[0].splitlines()[-1])


def check_equal(found: dict[str, Any], job: Job, kinds: Sequence[str] = ALL) -> None:
    """Check that answers equal the whole target's, with one packet per pass and no gather."""
    whole = run(job, None, kinds)
    for kind in kinds:
        same = whole[kind] if kind != "shared" else pytest.approx(whole[kind], abs=1e-3)
        assert found[kind] == same, (job, kind)
    packets, passes, packet_bytes = found["packets"]
    assert packets == passes > 50
    assert packet_bytes < 250 * packets
    assert found["gathers"] == 0
