"""The log of a run: a JSON line for each step and each measurement of τ."""

import json
from dataclasses import asdict
from pathlib import Path

from .events import Measured, StepDone


class RunLog:
    """The file log.jsonl in the folder of a run."""

    def __init__(self, folder: Path):
        self.file = folder / "log.jsonl"

    def add(self, event: StepDone | Measured) -> None:
        """Append a line."""
        with self.file.open("a") as log:
            log.write(json.dumps(asdict(event)) + "\n")

    def cut(self, step: int) -> None:
        """Keep the whole lines of the first `step` steps."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.file.write_text("".join(f"{line}\n" for line in lines if is_before(line, step)))


def is_before(line: str, step: int) -> bool:
    """Whether a log line is valid and belongs to the first `step` steps."""
    try:
        return json.loads(line)["step"] <= step
    except (ValueError, KeyError, TypeError):
        return False
