"""What a type checker says about code that uses the package."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRONG = """
import dflash_mlx

pair = dflash_mlx.load()
dflash_mlx.generate(pair, "hi", max_token=5)
dflash_mlx.generate(pair, "hi", max_tokens="5")
dflash_mlx.stream(pair, "hi", mode="fast")
pair.generate("hi", on_block=lambda number: True)
pair.generate(["hi"])[0].txt
"""


def check(folder: Path, files: dict[str, str]) -> list[str]:
    """Errors of pyright's strict mode in these files, as "file:line"; the package is installed."""
    site = folder / "site"
    site.mkdir()
    (site / "dflash_mlx").symlink_to(ROOT / "dflash_mlx")
    user = folder / "user"
    user.mkdir()
    (user / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    for name, text in files.items():
        (user / name).write_text(text)
    done = subprocess.run(
        [Path(sys.executable).with_name("pyright"), "--pythonpath", sys.executable, "--outputjson"],
        cwd=user,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(files)
    return [
        f"{Path(one['file']).name}:{one['range']['start']['line']}: {one['message']}"
        for one in found["generalDiagnostics"]
    ]


@pytest.mark.slow
def test_examples_have_all_types_and_slips_are_found(tmp_path: Path) -> None:
    """Every line of WRONG after the loaded pair is an error, some say so twice."""
    files = {"wrong.py": WRONG}
    page = (ROOT / "examples/guide/python.md").read_text(encoding="utf-8")
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page, re.S)):
        files[f"example_{number}.py"] = code
    found = check(tmp_path, files)
    assert [error for error in found if not error.startswith("wrong.py")] == []
    lines = {int(error.split(":")[1]) for error in found}
    assert lines == {4, 5, 6, 7, 8}
