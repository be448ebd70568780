"""A child process that executes compiled kernels, and the memory shared with it.

One process per kind of build stays alive between launches; after a fault it is replaced.
"""

import ctypes
import json
import mmap
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .build import CACHE, runner

GAP = 256  # bytes between buffers: no access may fall there
ASAN = "detect_leaks=0:detect_stack_use_after_return=0:allow_user_segv_handler=1:symbolize=1"


@dataclass(frozen=True)
class Block:
    """One buffer of a launch: bytes from `low` to `high` around element 0 of `array`."""

    name: str
    array: np.ndarray
    low: int
    high: int
    output: bool = False
    written: bool = True
    shift: int = 0  # bytes that element 0 stands off a 16-byte boundary


@dataclass(frozen=True)
class Job:
    library: Path
    blocks: tuple[Block, ...]
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    schedule: str
    watch: int
    zero: bool
    limit: float  # seconds of CPU


class Worker:
    """Runs jobs of one build in a child process."""

    def __init__(self, build: str) -> None:
        self.build = build
        self.child: subprocess.Popen[str] | None = None
        self.size = 0

    def run(self, job: Job) -> dict:
        """The child's answer. The arrays of output blocks are filled in place.

        A sanitizer's report comes back as a finding of kind `sanitizer`, with `died` set.
        """
        places, end = [], 4096
        for block in job.blocks:
            places.append(end + block.shift)
            end += -(-(block.shift + block.high - block.low) // 16) * 16 + GAP
        self._ready(end)
        for block, place in zip(job.blocks, places, strict=True):
            source = block.array.ctypes.data + block.low
            ctypes.memmove(self.address + place, source, block.high - block.low)
        answer = self._ask(self._line(job, places))
        if not answer["died"]:
            for block, place in zip(job.blocks, places, strict=True):
                if block.output:
                    target = block.array.ctypes.data + block.low
                    ctypes.memmove(target, self.address + place, block.high - block.low)
        return answer

    def close(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.communicate()
            self.child = None
            self.errors.close()

    def _line(self, job: Job, places: list[int]) -> str:
        words: list[object] = [f"./{job.library.name}", len(job.blocks)]
        for block, place in zip(job.blocks, places, strict=True):
            size = block.high - block.low
            words += [block.name, place, -block.low, size, int(block.output), int(block.written)]
            words.append(block.shift)
        kind, _, seed = job.schedule.partition(":")
        words += [*job.grid, *job.threadgroup, kind, int(seed or 0), job.watch, int(job.zero)]
        return " ".join(map(str, ["run", *words, int(job.limit * 1000)]))

    def _ready(self, size: int) -> None:
        """A living child that sees at least `size` bytes."""
        if size > self.size:
            fd = os.memfd_create("kernel buffers")
            self.size = max(size, 1 << 20) * 2
            os.ftruncate(fd, self.size)
            self.close()
            if hasattr(self, "fd"):
                os.close(self.fd)
            self.fd = fd
            self.memory = mmap.mmap(fd, self.size)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        if self.child is None:
            self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
            self.child = subprocess.Popen(
                [runner(self.build), str(self.fd)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                bufsize=1,
                pass_fds=(self.fd,),
                cwd=CACHE,  # the libraries
                env={**os.environ, "ASAN_OPTIONS": ASAN, "UBSAN_OPTIONS": "print_stacktrace=1"},
            )
            assert self.child.stdin is not None
            self.child.stdin.write(f"map {self.size}\n")

    def _ask(self, line: str) -> dict:
        child = self.child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(line + "\n")
        reply = child.stdout.readline()
        answer = json.loads(reply) if reply else None
        if answer and not answer["died"]:
            return answer
        child.wait()
        self.errors.seek(0)
        report = self.errors.read()
        self.close()
        return answer or {
            "died": True,
            "shared": 0,
            "work": [0] * 5,
            "findings": [["sanitizer", report or f"exit status {child.returncode}", []]],
            "counts": [],
        }
