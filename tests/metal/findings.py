"""What a launch did wrong, and what it moved, in words and numbers."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """One fault: `kind` is race, unset, unwritten, outside, divergence, sanitizer and so on."""

    kind: str
    text: str
    lines: tuple[int, ...] = ()  # of the kernel's source, where known

    def __str__(self) -> str:
        at = f" (line {' and '.join(map(str, self.lines))})" if self.lines else ""
        return f"{self.kind}: {self.text}{at}"


class KernelFault(Exception):
    """A launch ended early: an access outside, divergence, an endless loop and the like."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass(frozen=True)
class Traffic:
    """Bytes one buffer was loaded and stored: by each thread; distinct bytes of each simdgroup
    and of each threadgroup, summed; distinct bytes of the launch (`touched`)."""

    loads: int = 0
    stores: int = 0
    simd_loads: int = 0
    simd_stores: int = 0
    group_loads: int = 0
    group_stores: int = 0
    touched_loads: int = 0
    touched_stores: int = 0


@dataclass(frozen=True)
class Work:
    """What a launch did, besides loads and stores of buffers.

    `barriers` of all threadgroups, each once; calls of simd functions of all simdgroups, `products`
    of matrices among them; bytes of threadgroup memory by each thread, only where traffic counts.
    """

    barriers: int = 0
    simd_calls: int = 0
    products: int = 0
    shared_loads: int = 0
    shared_stores: int = 0


def finding(raw: list, library: Path) -> Finding:
    """A finding as the runner reports it: kind, text and addresses in the library."""
    kind, text, where = raw
    if kind == "sanitizer":
        return _sanitizer_finding(text)
    return Finding(kind, text, tuple(_line(library, address) for address in where))


def _sanitizer_finding(report: str) -> Finding:
    wanted = re.search(r"(runtime error: .*|ERROR: AddressSanitizer: \S+)", report)
    extra = re.search(r"emulator: (.*)", report)
    size = re.search(r"(READ|WRITE) of size \d+", report)
    line = re.search(r"kernel\.metal:(\d+)", report)
    parts = [m.group(1 if m is extra else 0) for m in (wanted, size, extra) if m]
    return Finding("sanitizer", ", ".join(parts) or report[-500:], (int(line[1]),) if line else ())


def _line(library: Path, address: int) -> int:
    """The line of the kernel's source an address belongs to; 0 if unknown."""
    out = subprocess.run(
        ["addr2line", "-i", "-e", str(library), hex(address)], capture_output=True, text=True
    ).stdout
    found = re.findall(r"kernel\.metal:(\d+)", out)
    return int(found[-1]) if found else 0
