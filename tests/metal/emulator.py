"""Runs Metal kernels on the CPU: the text MLX would give to Apple's compiler, thread by thread.

`run` and `check` are for tests of one kernel; `emulated` and `Emulator.launch` put emulated
kernels into a whole MLX program. What is not emulated is refused (`Refused`), never guessed.
"""

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np

from .build import kernel_library
from .source import Buffer, Refused, Unit, translate
from .trace import Launch, trace
from .worker import Block, Job, Worker

RACE, TRAFFIC = 1, 2
WATCH = {"race": RACE | TRAFFIC, "traffic": TRAFFIC}
COMPILED = {"traffic": "race"}  # builds that differ only in what is watched
POISON = 0x7FD1  # NaN as float, half and bfloat: what unset outputs hold
_workers: dict[str, Worker] = {}


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
class Record:
    """One executed launch."""

    launch: Launch
    findings: tuple[Finding, ...]
    traffic: dict[str, Traffic]  # by buffer name; empty unless the build counts
    threadgroup_bytes: int


@dataclass(frozen=True)
class Outcome:
    """What a function gave and what its kernels did."""

    outputs: tuple[mx.array, ...]
    records: tuple[Record, ...]
    findings: tuple[Finding, ...]

    @property
    def traffic(self) -> dict[str, Traffic]:
        """By buffer name, of the last launch."""
        return self.records[-1].traffic


@dataclass
class Emulator:
    """Executes launches and keeps what they did."""

    build: str = "plain"  # plain, zero, sanitize, race, traffic
    schedule: str = "forward"  # forward, reverse, random:SEED
    limit: float = 20.0  # seconds of CPU a launch
    strict: bool = True  # raise KernelFault for any finding, not only for those that end a launch
    records: list[Record] = field(default_factory=list)

    def launch(
        self,
        kernel: Callable[..., Any],
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        stream: Any = None,
        verbose: bool = False,
    ) -> list[mx.array]:
        """As calling `kernel`, made by `mx.fast.metal_kernel`, with these arguments on a Mac.

        Raises KernelFault for a fault that ends the launch and Refused for what is not emulated.
        """
        arrays = [x if isinstance(x, mx.array) else mx.array(x) for x in inputs]
        mx.eval(arrays)
        call = dict(
            output_shapes=output_shapes,
            output_dtypes=output_dtypes,
            grid=grid,
            threadgroup=threadgroup,
            **({"template": template} if template else {}),
        )
        launches = trace(lambda *xs: kernel(inputs=list(xs), **call), *arrays)
        assert len(launches) == 1
        return self.execute(launches[0], arrays, init_value)

    def execute(
        self, launch: Launch, arrays: Sequence[mx.array], init_value: float | None = None
    ) -> list[mx.array]:
        """Run a traced launch on these inputs."""
        threads = int(np.prod(np.minimum(launch.threadgroup, launch.grid)))
        if threads > 1024:
            raise KernelFault(Finding("threads", f"{threads} threads in a threadgroup: over 1024"))
        unit = _translated(launch)
        host = [_host(a, launch.row_contiguous) for a in arrays]
        outputs = [_output(spec.shape, spec.dtype, init_value) for spec in launch.outputs]
        blocks = tuple(_block(b, host, outputs, init_value) for b in unit.buffers)
        compiled = COMPILED.get(self.build, self.build)
        library = kernel_library(unit.text, compiled)
        job = Job(
            library=library,
            blocks=blocks,
            grid=launch.grid,
            threadgroup=tuple(map(min, launch.threadgroup, launch.grid)),
            schedule=self.schedule,
            watch=WATCH.get(self.build, 0),
            zero=self.build == "zero",
            limit=self.limit,
        )
        kind = "sanitize" if self.build == "sanitize" else "plain"
        answer = _workers.setdefault(kind, Worker(kind)).run(job)
        findings = tuple(_finding(f, library) for f in answer["findings"])
        names = [b.name for b in unit.buffers]
        counts = [Traffic(*c) for c in answer["counts"]] if WATCH.get(self.build) else []
        traffic = dict(zip(names, counts, strict=False))
        self.records.append(Record(launch, findings, traffic, answer["shared"]))
        if findings and (self.strict or answer["died"]):
            raise KernelFault(findings[0])
        return [_array(o, spec.dtype) for o, spec in zip(outputs, launch.outputs, strict=True)]


@contextmanager
def emulated(build: str = "plain", schedule: str = "forward", **options: Any) -> Iterator[Emulator]:
    """Within it, kernels that `mx.fast.metal_kernel` makes run emulated when called.

    `mx.compile` is off within it: kernels run eagerly. Kernels made before keep refusing; give
    those to `Emulator.launch`.
    """
    emulator = Emulator(build, schedule, **options)
    make = mx.fast.metal_kernel

    def metal_kernel(*args: Any, **kwargs: Any) -> Callable[..., list[mx.array]]:
        kernel = make(*args, **kwargs)
        return lambda **call: emulator.launch(kernel, **call)

    mx.disable_compile()
    try:
        with patch.object(mx.fast, "metal_kernel", metal_kernel):
            yield emulator
    finally:
        mx.enable_compile()


def run(
    fn: Callable[..., Any], *arrays: mx.array, schedule: str = "forward", build: str = "plain"
) -> Outcome:
    """`fn(*arrays)` with its kernels emulated; findings are returned, not raised.

    `fn` makes its kernels itself, or takes a keyword `launch` (see `Emulator.launch`) and
    launches them through it.
    """
    with emulated(build, schedule, strict=False) as emulator:
        call = {"launch": emulator.launch} if _takes_launch(fn) else {}
        try:
            result = fn(*arrays, **call)
            outputs = tuple(result) if isinstance(result, list | tuple) else (result,)
            mx.eval(outputs)
        except KernelFault as fault:
            found = [f for r in emulator.records for f in r.findings] or [fault.finding]
            return Outcome((), tuple(emulator.records), tuple(found))
    findings = tuple(f for r in emulator.records for f in r.findings)
    return Outcome(outputs, tuple(emulator.records), findings)


def check(
    fn: Callable[..., Any],
    reference: Callable[..., Any],
    *arrays: mx.array,
    rtol: float = 0.0,
    atol: float = 0.0,
    schedules: Sequence[str] = ("forward", "reverse", "random:1"),
    builds: Sequence[str] = ("zero", "sanitize", "race"),
) -> Outcome:
    """Run `fn` under every schedule and build and hold each result to `reference(*arrays)`.

    Equal within `atol + rtol * |reference|`; both 0 mean bit for bit, NaN equal to NaN. Raises
    AssertionError that names the run. Returns the outcome of the last build, with its traffic.
    """
    wanted = reference(*arrays)
    wanted = tuple(wanted) if isinstance(wanted, list | tuple) else (wanted,)
    runs = [(s, "plain") for s in schedules] + [("forward", b) for b in builds]
    outcome = None
    for schedule, build in runs:
        outcome = run(fn, *arrays, schedule=schedule, build=build)
        label = f"{build}, {schedule}"
        assert outcome.records, "no kernel ran"
        assert not outcome.findings, f"[{label}] " + "; ".join(map(str, outcome.findings[:4]))
        assert len(outcome.outputs) == len(wanted), label
        for i, (got, want) in enumerate(zip(outcome.outputs, wanted, strict=True)):
            compare(got, want, rtol, atol, f"[{label}] output {i}")
    assert outcome is not None
    return outcome


def compare(got: mx.array, want: mx.array, rtol: float, atol: float, label: str) -> None:
    """Raise AssertionError where two arrays differ by more than allowed."""
    assert got.shape == want.shape, f"{label}: shape {got.shape}, not {want.shape}"
    assert got.dtype == want.dtype, f"{label}: {got.dtype}, not {want.dtype}"
    floating = mx.issubdtype(got.dtype, mx.floating)
    g, w = (np.array(a.astype(mx.float32) if floating else a) for a in (got, want))
    if not floating:
        bad = g != w
    else:
        with np.errstate(invalid="ignore"):
            near = np.abs(g - w) <= atol + rtol * np.abs(w)
        bad = ~(near | (g == w) | (np.isnan(g) & np.isnan(w)))
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise AssertionError(
            f"{label}: {bad.sum()} of {bad.size} differ, {at}: {g[at]} not {w[at]}"
        )


_units: dict[str, Unit] = {}


def _translated(launch: Launch) -> Unit:
    if launch.source not in _units:
        _units[launch.source] = translate(launch)
    return _units[launch.source]


def _takes_launch(fn: Callable[..., Any]) -> bool:
    code = getattr(fn, "__code__", None)
    return bool(code and "launch" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _bits(dtype: mx.Dtype) -> Any:
    """The integer type numpy can hold a dtype's bits in."""
    return {1: (mx.uint8, np.uint8), 2: (mx.uint16, np.uint16), 4: (mx.uint32, np.uint32)}.get(
        dtype.size, (mx.uint64, np.uint64)
    )


def _host(array: mx.array, contiguous: bool) -> np.ndarray:
    if not array.size:
        raise Refused("an empty input")
    view = array if array.dtype == mx.bool_ else array.view(_bits(array.dtype)[0])
    host = np.asarray(view)
    return np.ascontiguousarray(host).reshape(host.shape) if contiguous else host


def _output(shape: tuple[int, ...], dtype: mx.Dtype, init_value: float | None) -> np.ndarray:
    if init_value is not None:
        filled = mx.full(shape, init_value, dtype)
        return np.array(filled if dtype == mx.bool_ else filled.view(_bits(dtype)[0]))
    raw = np.full(-(-int(np.prod(shape)) * dtype.size // 2), POISON, np.uint16)
    kind = np.uint8 if dtype == mx.bool_ else _bits(dtype)[1]
    return raw.view(np.uint8)[: int(np.prod(shape)) * dtype.size].view(kind).reshape(shape)


def _array(host: np.ndarray, dtype: mx.Dtype) -> mx.array:
    if dtype == mx.bool_:
        return mx.array(host).astype(mx.bool_)
    return mx.array(host).view(dtype)


def _block(
    buffer: Buffer,
    host: list[np.ndarray],
    outputs: list[np.ndarray],
    init_value: float | None,
) -> Block:
    if buffer.role == "output":
        array = outputs[buffer.of]
        return Block(buffer.name, array, 0, array.nbytes, True, init_value is not None)
    array = host[buffer.of]
    if buffer.role == "shape":
        array = np.array(array.shape, np.int32)
    elif buffer.role == "strides":
        array = np.array([s // array.itemsize for s in array.strides], np.int64)
    elif buffer.role == "ndim":
        array = np.array(array.ndim, np.int32)
    spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    low, high = sum(s for s in spans if s < 0), sum(s for s in spans if s > 0)
    return Block(buffer.name, array, low, high + array.itemsize if array.size else 0)


def _finding(raw: list, library: Any) -> Finding:
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


def _line(library: Any, address: int) -> int:
    """The line of the kernel's source an address belongs to; 0 if unknown."""
    out = subprocess.run(
        ["addr2line", "-i", "-e", str(library), hex(address)], capture_output=True, text=True
    ).stdout
    found = re.findall(r"kernel\.metal:(\d+)", out)
    return int(found[-1]) if found else 0
