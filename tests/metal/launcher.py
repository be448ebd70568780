"""Executes kernel launches on the CPU, one at a time, for tests and for whole MLX programs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any
from unittest.mock import patch

import mlx.core as mx

from .build import kernel_library
from .findings import Finding, KernelFault, Traffic, Work, finding
from .host import block, empty_output, to_host, to_mlx
from .source import Refused, Unit, translate
from .trace import Launch, trace
from .worker import Job, Worker

RACE, TRAFFIC = 1, 2
WATCH = {"race": RACE | TRAFFIC, "traffic": TRAFFIC}
COMPILED = {"traffic": "race"}  # builds that differ only in what is watched
_workers: dict[str, Worker] = {}
_units: dict[str, Unit] = {}
_make = mx.fast.metal_kernel


@dataclass(frozen=True)
class Record:
    launch: Launch
    findings: tuple[Finding, ...]
    traffic: dict[str, Traffic]  # by buffer name; empty unless the build counts
    threadgroup_bytes: int
    work: Work

    @property
    def groups(self) -> int:
        sizes = zip(self.launch.grid, self.launch.threadgroup, strict=True)
        return prod(-(-all_threads // threads) for all_threads, threads in sizes)


@dataclass
class Emulator:
    """Executes launches and keeps what they did."""

    build: str = "plain"  # plain, pattern, zero, sanitize, race, traffic
    schedule: str = "forward"  # forward, reverse, random:SEED
    limit: float = 20.0  # seconds of CPU a launch
    strict: bool = True  # raise KernelFault for any finding, not only for those that end a launch
    shift: int = 0  # elements that inputs stand off a boundary, as slices on a Mac do
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
        return self.execute(launches[0], arrays)

    def execute(self, launch: Launch, arrays: Sequence[mx.array]) -> list[mx.array]:
        x, y, z = (min(t, g) for t, g in zip(launch.threadgroup, launch.grid, strict=True))
        group, threads = (x, y, z), x * y * z
        if threads < 1:
            raise Refused(f"an empty grid or threadgroup: {launch.grid}, {launch.threadgroup}")
        if threads > 1024:
            raise KernelFault(Finding("threads", f"{threads} threads in a threadgroup: over 1024"))
        unit = _translated(launch)
        given = [to_host(a, launch.row_contiguous) for a in arrays]
        outputs = [empty_output(o.shape, o.dtype) for o in launch.outputs]
        blocks = tuple(block(b, given, outputs, self.shift) for b in unit.buffers)
        library = kernel_library(unit.text, COMPILED.get(self.build, self.build))
        job = Job(
            library=library,
            blocks=blocks,
            grid=launch.grid,
            threadgroup=group,
            schedule=self.schedule,
            watch=WATCH.get(self.build, 0),
            zero=self.build == "zero",
            limit=self.limit,
        )
        kind = "sanitize" if self.build == "sanitize" else "plain"
        answer = _workers.setdefault(kind, Worker(kind)).run(job)
        findings = tuple(finding(f, library) for f in answer["findings"])
        names = [b.name for b in unit.buffers]
        counts = [Traffic(*c) for c in answer["counts"]] if WATCH.get(self.build) else []
        traffic = dict(zip(names, counts, strict=False))
        self.records.append(
            Record(launch, findings, traffic, answer["shared"], Work(*answer["work"]))
        )
        if findings and (self.strict or answer["died"]):
            raise KernelFault(findings[0])
        return [to_mlx(o, spec.dtype) for o, spec in zip(outputs, launch.outputs, strict=True)]


@contextmanager
def emulated(build: str = "plain", schedule: str = "forward", **options: Any) -> Iterator[Emulator]:
    """Within it, kernels that `mx.fast.metal_kernel` makes run emulated when called.

    `mx.compile` is off within it: kernels run eagerly. Kernels made before keep refusing; give
    those to `Emulator.launch`.
    """
    emulator = Emulator(build, schedule, **options)

    def metal_kernel(*args: Any, **kwargs: Any) -> Callable[..., list[mx.array]]:
        kernel: Any = _make(*args, **kwargs)
        return lambda **call: emulator.launch(kernel, **call)

    mx.disable_compile()
    try:
        with patch.object(mx.fast, "metal_kernel", metal_kernel):
            yield emulator
    finally:
        mx.enable_compile()


def _translated(launch: Launch) -> Unit:
    if launch.source not in _units:
        _units[launch.source] = translate(launch)
    return _units[launch.source]
