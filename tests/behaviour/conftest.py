"""After `make real` and `make real-all`: a table of what ran with which model."""

import re
from collections import Counter, defaultdict
from typing import Any

import pytest
from real_models import SMALLEST

MODEL = re.compile(r"\[(?:.*?-)?(smollm2-135m|qwen2\.5-coder-[\d.]+b)")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    outcomes = defaultdict[tuple[str, str], Counter[str]](Counter)
    seconds = defaultdict[tuple[str, str], float](float)
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "real" in report.keywords:
                test, _, parameters = report.nodeid.rpartition("::")[2].partition("[")
                named = MODEL.search(f"[{parameters}")
                cell = test.removeprefix("test_").replace("_", " "), named[1] if named else SMALLEST
                seconds[cell] += report.duration
                if outcome:  # neither a fixture nor its end
                    outcomes[cell][outcome] += 1
    found = {model for _, model in outcomes}
    models = sorted(found, key=lambda model: (model != SMALLEST, model))
    lines = [["", *models], ["---", *("---" for _ in models)]] if models else []
    for test in dict.fromkeys(test for test, _ in outcomes):
        cells = [(outcomes[test, model], seconds[test, model]) for model in models]
        told = [
            ", ".join([*(f"{count} {what}" for what, count in ran.items()), f"{took:.0f} s"])
            if ran
            else ""
            for ran, took in cells
        ]
        lines.append([test, *told])
    for line in lines:
        terminalreporter.write_line(f"| {' | '.join(line)} |")
