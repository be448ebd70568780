"""A simulated first start on six Macs: how long it takes, and which kernels its answers run.

Times are made up, but plausible; a clock moves only when a library is compiled or a call runs.
Rows of zeros are raced in test_padded_rows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.kernels.dispatch import Kernels, Op
from dflash_mlx.kernels.samples import Case
from dflash_mlx.kernels.shapes import Shapes
from dflash_mlx.selfcheck.check import TIME_BUDGET, KernelCheck
from dflash_mlx.selfcheck.trials import MAX_RATIO, TRIALS, Stock, Trial

LONGER = 6.0  # seconds that the check may take at a first start
PAUSE = 5.0  # seconds in which a user reads an answer and types; nothing else runs
COMPILE = (0.05, 0.1, 0.2, 0.3, 0.5)  # seconds per library
SHAPES = Shapes(vocab=9, rows=16, dtype="bfloat16")
ANY = mx.ones(1)
PRODUCTS = "small_m_qmm"
BUCKETS = (2, 4, 8, 12, 16)  # rows
MATRICES = {"8192x4096": 18.9, "4096x12288": 28.3, "4096x4096": 9.4, "1024x4096": 2.4}  # MB
PARTS = {"near": 4.2, "far": 33.6}  # MB of keys and values

# The libraries that each comparison compiles first, as MLX does: 16 in all.
LIBRARIES = {
    PRODUCTS: (1, 1, 1, 1, 0),
    "verify_attention": (2, 0, 0, 0),
    "gated_delta_inputs": (1, 0, 0),
    "gated_delta_tape": (1, 0, 0),
    "gated_delta_tree": (1, 0),
    "gated_delta_replay": (1, 0, 0),
    "verify_accept": (2, 0, 0),
    "verify_accept_sample": (2, 0, 2, 0),
}


@dataclass(frozen=True)
class Mac:
    """A chip: memory in GB/s, and times of the products in reads of the weights, by rows.

    attention, others: times of these kernels, as a part of stock MLX's.
    """

    memory: float
    stock: tuple[float, ...]
    kernel: tuple[float, ...]
    attention: float = 0.6
    others: float = 0.7


MACS = {
    "M1": Mac(68, (2.0, 4.0, 8.0, 5.5, 5.6), (1.1, 1.3, 1.7, 2.2, 2.7)),
    "M2": Mac(100, (2.0, 4.0, 8.0, 5.0, 5.2), (1.1, 1.3, 1.6, 2.1, 2.6)),
    "M3 Max": Mac(400, (1.1, 1.3, 2.2, 3.2, 2.6), (1.3, 1.3, 1.5, 1.8, 2.1), others=1.2),
    "M3 Ultra": Mac(800, (1.1, 1.3, 2.4, 3.2, 2.5), (1.3, 1.4, 2.5, 3.0, 3.4)),
    "M4 Pro": Mac(273, (1.1, 1.3, 2.8, 4.1, 4.5), (1.2, 1.3, 1.5, 2.5, 2.6)),
    "M5 Max": Mac(614, (1.1, 1.2, 1.6, 1.2, 1.2), (1.3, 1.3, 1.5, 2.0, 2.3), attention=1.3),
}


@dataclass
class Machine:
    """A Mac on which a program is started; `compiled` are its libraries."""

    mac: Mac
    compile_seconds: float
    now: float = 0.0
    compiled: set[Any] = field(default_factory=set)

    def seconds(self, name: str, size: Any, *, kernel: bool) -> float:
        """Of one call. `size` is the number of a comparison, or what is timed."""
        mac = self.mac
        if name == PRODUCTS and not isinstance(size, int):
            reads = (mac.kernel if kernel else mac.stock)[BUCKETS.index(size[1])]
            return MATRICES[size[0]] / mac.memory / 1000 * reads
        if name == "verify_attention" and not isinstance(size, int):
            time = PARTS[size[0]] / mac.memory / 1000 * 2
            return time * mac.attention if kernel else time
        return 1e-4 * mac.others if kernel else 1e-4

    def libraries(self, name: str, size: Any) -> Iterator[tuple[str, int]]:
        case = size
        if not isinstance(size, int):
            case = min(BUCKETS.index(size[1]), 3) if name == PRODUCTS else 0
        for number in range(LIBRARIES[name][case]):
            yield name, 10 * case + number

    def trial(self, name: str) -> Trial:
        """The trial of an operation, which needs this machine's time and nothing else."""

        def launch(_: Any, x: mx.array, size: Any) -> mx.array:
            for library in self.libraries(name, size):
                if library not in self.compiled:
                    self.compiled.add(library)
                    self.now += self.compile_seconds
            self.now += self.seconds(name, size, kernel=True)
            return x

        def stock(_: Kernels, __: mx.array, size: Any) -> Stock:
            def run(x: mx.array) -> mx.array:
                self.now += self.seconds(name, size, kernel=False)
                return x

            return run

        def sizes(_: Shapes) -> Iterator[Case]:
            products = name == PRODUCTS
            for part in MATRICES if products else PARTS:
                for rows in BUCKETS if products else (8, 16):
                    yield ANY, (part, rows)

        several = name in (PRODUCTS, "verify_attention")
        op = Op(name, lambda x, _: x, launch, size=lambda _, size: size if several else None)
        cases = [(ANY, number) for number in range(len(LIBRARIES[name]))]
        return Trial(op, lambda _: cases, stock, sizes=sizes if several else None)

    def wins(self, name: str, size: Any = 0) -> bool:
        """Whether a kernel is fast enough to be used."""
        ratio = self.seconds(name, size, kernel=True) / self.seconds(name, size, kernel=False)
        return ratio <= MAX_RATIO

    @property
    def winners(self) -> set[Any]:
        """What should be used: operations, or sizes of one."""
        return {
            (trial.name, size)
            for trial in map(self.trial, LIBRARIES)
            for _, size in (trial.sizes(SHAPES) if trial.sizes else [(ANY, None)])
            if self.wins(trial.name, size or 0)
        }

    def check(self, names: Iterable[str]) -> KernelCheck:
        """The check at the start of a program, with these operations in turn."""
        launcher: Any = self
        kernels = Kernels(launcher, on=frozenset())
        trials = [self.trial(name) for name in names]
        return KernelCheck(kernels, SHAPES, clock=lambda: self.now, trials=trials)


def in_use(kernels: Kernels) -> set[Any]:
    return {(name, size) for name in kernels.on or () for size in kernels.sizes[name]}


def products(used: set[Any]) -> set[Any]:
    return {(name, size) for name, size in used if name == PRODUCTS}


@pytest.mark.parametrize("compile_seconds", COMPILE)
@pytest.mark.parametrize("chip", MACS)
def test_a_first_start_is_short(chip: str, compile_seconds: float) -> None:
    """All products that win run in the first answer, all other kernels in the third."""
    machine = Machine(MACS[chip], compile_seconds)
    check = machine.check(trial.name for trial in TRIALS if trial.name in LIBRARIES)
    check.run(TIME_BUDGET)
    assert machine.now <= LONGER
    assert products(in_use(check.kernels())) == products(machine.winners)
    checked = machine.now
    while True:
        before = machine.now
        if not check.step():  # between answers
            break
        assert machine.now - before <= 2 * compile_seconds + 0.5
    assert machine.now - checked <= 2 * PAUSE
    assert in_use(check.kernels()) == machine.winners


def test_fault_products_last() -> None:
    """The order of the check decides what the first answer runs."""
    check = Machine(MACS["M1"], 0.5).check(reversed(LIBRARIES))
    assert check.run(TIME_BUDGET)
    assert not products(in_use(check.kernels()))
