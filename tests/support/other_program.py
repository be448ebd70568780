"""Another program that has a model loaded, or says so: a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

RUN = """
import sys
from dflash_mlx.files.programs import Notice
model, nbytes, address = sys.argv[1:]
notices = [Notice(model, int(nbytes))]
if address:
    notices.append(Notice(address=address))
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def other_program(
    model: str, nbytes: int, address: str = ""
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process with this model, as it says, until the context or its standard input ends."""
    command = [sys.executable, "-P", "-c", RUN, model, str(nbytes), address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()
