"""The prompts that the tests of this folder train on."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 12 prompts, and beside it the target's answers, made by the first run."""
    path = tmp_path_factory.mktemp("train") / "prompts.jsonl"
    path.write_text("".join(f'"say {n * n}"\n' for n in range(12)))
    return path
