"""How long a user waits: `dflash --help`, and `dflash chat` until the first prompt can be typed.

    .venv/bin/python examples/measure/startup.py [--repeat 5]

The chat runs on the bundled pair in a pseudo-terminal; its clock stops when the prompt's arrow is
on the screen. Medians, with the quickest and the slowest.
"""

import argparse
import os
import pty
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

DFLASH = [sys.executable, "-m", "dflash_mlx.cli"]
CURSOR = b"\x1b[6n"  # prompt_toolkit's query for the position of the cursor, and a reply


def help_seconds() -> float:
    """Seconds of one `dflash --help`."""
    began = time.perf_counter()
    subprocess.run([*DFLASH, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def chat_seconds(
    program: Sequence[str] = DFLASH, environment: Mapping[str, str] = os.environ
) -> float:
    """Seconds from the start of `dflash chat --demo` to its prompt; then presses Ctrl-D.

    Raises CalledProcessError if the chat ends with another exit code than 0.
    """
    command = [*program, "chat", "--demo", "--no-history"]
    began = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.execve(command[0], command, {**environment, "TERM": "xterm-256color"})
    seen = b""
    while "›".encode() not in seen:
        seen += os.read(terminal, 65536)
        if CURSOR in seen:
            os.write(terminal, b"\x1b[1;1R")
            seen = seen.replace(CURSOR, b"")
    seconds = time.perf_counter() - began
    os.write(terminal, b"\x04")
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # Linux raises this when the other end was closed
        pass
    _, status = os.waitpid(child, 0)
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), command)
    return seconds


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--repeat", type=int, default=5)
    repeat = options.parse_args().repeat
    measured: list[tuple[str, Callable[[], float]]] = [
        ("dflash --help", help_seconds),
        ("dflash chat, to the prompt", chat_seconds),
    ]
    for name, run in measured:
        run()  # warm-up: reads the files into memory
        times = sorted(run() for _ in range(repeat))
        print(
            f"{name:28}{statistics.median(times):6.2f} s   ({times[0]:.2f} to {times[-1]:.2f}, "
            f"{repeat} runs)"
        )


if __name__ == "__main__":
    main()
