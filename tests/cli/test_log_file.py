"""`--log-file`: all output of a process in files that do not grow for ever."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import os, sys
from importlib import import_module
from pathlib import Path
log_file = import_module("dflash_mlx.cli.log_file")
log = log_file.LogFile(Path(sys.argv[1]), max_bytes=200)
for number in range(int(sys.argv[2])):
    print(f"out {number}", flush=True)
    print(f"err {number}", file=sys.stderr)
    os.write(2, b"C library\\n")
    os.system("echo child")
    log.rotate()
raise SystemError("the end")
"""


def write(path: Path, lines: int) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", PROGRAM, str(path), str(lines)]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


def test_all_output_and_no_more_than_five_files(tmp_path: Path) -> None:
    """Also of C libraries, of other programs, and the traceback at the end; nothing is lost."""
    path = tmp_path / "logs/serve.log"
    done = write(path, 4)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    files = [path, *(path.with_name(f"serve.log.{number}") for number in range(1, 5))]
    found = "".join(file.read_text() for file in reversed(files) if file.exists())
    for number in range(4):
        assert f"out {number}\n" in found
        assert f"err {number}\n" in found
    assert found.count("C library\n") == found.count("child\n") == 4
    assert found.endswith("SystemError: the end\n")
    assert path.stat().st_mode & 0o077 == 0
    write(path, 60)
    assert sorted(path.parent.iterdir()) == sorted(files)
    assert all(file.stat().st_size < 200 + 60 for file in files[1:])
    assert files[1].read_text().count("out 5") > 0
    assert "out 59\n" in "".join(file.read_text() for file in files[:2])


def test_a_file_that_cannot_be_written(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = run("serve", "--log-file", str(tmp_path / "file/x.log"))
    assert told.exit_code == 1
    assert "the log" in told.stderr
    assert "cannot be written" in told.stderr


@pytest.mark.parametrize("dated", [False, True])
@pytest.mark.parametrize("as_json", [False, True])
def test_lines_have_the_time(as_json: bool, dated: bool, capfd: Any) -> None:
    """In a file with the date; JSON has both."""
    serve = import_module("dflash_mlx.cli.serve")
    output = import_module("dflash_mlx.cli.terminal.output").Output()
    serve.write_line("200 POST /", output, data=as_json, dated=dated)
    written = capfd.readouterr()
    if as_json:
        assert written.out == "200 POST /\n"
    else:
        day = r"\d{4}-\d\d-\d\d " if dated else ""
        assert re.fullmatch(day + r"\d\d:\d\d:\d\d 200 POST /\n", written.err)
