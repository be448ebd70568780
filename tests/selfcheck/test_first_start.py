"""A simulated first start on six Macs: how long it takes, and which kernels its answers run.

Times are made up, but plausible; a clock moves only when a library is compiled or a call runs.
`python tests/selfcheck/test_first_start.py` prints the table.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.engine.engine import Engine
from dflash_mlx.kernels.dispatch import Kernels, Op
from dflash_mlx.pair import finish_check
from dflash_mlx.selfcheck.cases import Sized
from dflash_mlx.selfcheck.check import TIME_BUDGET, PairCheck, build
from dflash_mlx.selfcheck.results import STORE
from dflash_mlx.selfcheck.shapes import Shapes
from dflash_mlx.selfcheck.timing import MAX_TIME_RATIO
from dflash_mlx.selfcheck.trials import TRIALS, Trial

LONGER = 6.0  # seconds that the first start may take longer than the second
PAUSE = 5.0  # seconds in which a user reads an answer and types; nothing else runs
COMPILE = (0.05, 0.1, 0.2, 0.3, 0.5)  # seconds per library
SHAPES = Shapes(vocab=9, rows=16, dtype="bfloat16")
ANY = mx.ones(1)
PRODUCTS, PADDED = "small_m_qmm", "padded_rows"
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
    PADDED: (0, 0),
}
FEW = 12  # rows of the bucket in which rows are padded


@dataclass(frozen=True)
class Mac:
    """A chip: memory in GB/s, and times of the products in reads of the weights, by rows.

    attention, others: times of these kernels, as a part of stock MLX's. padded: the time of padded
    rows, in reads; 0 where MLX needs none.
    """

    memory: float
    stock: tuple[float, ...]
    kernel: tuple[float, ...]
    attention: float = 0.6
    others: float = 0.7
    padded: float = 0.0


MACS = {
    "M1": Mac(68, (2.0, 4.0, 8.0, 5.5, 5.6), (1.1, 1.3, 1.7, 2.2, 2.7)),
    "M2": Mac(100, (2.0, 4.0, 8.0, 5.0, 5.2), (1.1, 1.3, 1.6, 2.1, 2.6)),
    "M3 Max": Mac(
        400, (1.1, 1.3, 2.2, 3.2, 2.6), (1.3, 1.3, 1.5, 1.8, 2.1), others=1.2, padded=2.7
    ),
    "M3 Ultra": Mac(800, (1.1, 1.3, 2.4, 3.2, 2.5), (1.3, 1.4, 2.5, 3.0, 3.4), padded=2.5),
    "M4 Pro": Mac(273, (1.1, 1.3, 2.8, 4.1, 4.5), (1.2, 1.3, 1.5, 2.5, 2.6), padded=4.6),
    "M5 Max": Mac(614, (1.1, 1.2, 1.6, 1.2, 1.2), (1.3, 1.3, 1.5, 2.0, 2.3), attention=1.3),
}


@dataclass
class Machine:
    """A Mac on which programs are started; `compiled` are the libraries of the running one."""

    mac: Mac
    compile_seconds: float
    now: float = 0.0
    compiled: set[Any] = field(default_factory=set)
    stock_calls: int = 0

    def seconds(self, name: str, size: Any, *, kernel: bool) -> float:
        """Of one call. `size` is the number of a comparison, or what is timed."""
        mac = self.mac
        if name in (PRODUCTS, PADDED) and not isinstance(size, int):
            times = mac.kernel if kernel else mac.stock
            reads = mac.padded if name == PADDED and kernel else times[BUCKETS.index(size[1])]
            return MATRICES[size[0]] / mac.memory / 1000 * reads
        if name == "verify_attention" and not isinstance(size, int):
            time = PARTS[size[0]] / mac.memory / 1000 * 2
            return time * mac.attention if kernel else time
        return 1e-4 * mac.others if kernel else 1e-4

    def libraries(self, name: str, size: Any) -> Iterator[tuple[str, int]]:
        """What a call needs compiled."""
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

        def stock(x: mx.array, size: Any) -> mx.array:
            self.stock_calls += 1
            self.now += self.seconds(name, size, kernel=False)
            return x

        def sizes(_: Shapes) -> Iterator[Sized]:
            rows_of = {PRODUCTS: BUCKETS, PADDED: (FEW,)}
            for part in MATRICES if name in rows_of else PARTS:
                for rows in rows_of.get(name, (8, 16)):
                    yield Sized((part, rows), 1, (ANY, (part, rows)))

        op = Op(name, lambda x, _: x, launch, size=lambda _, size: size)
        cases = [(ANY, number) for number in range(len(LIBRARIES[name]))]
        several = name in (PRODUCTS, PADDED, "verify_attention")
        trial = Trial(op, lambda _: cases, stock, sizes=sizes if several else None)
        if name != PADDED:
            return trial
        return replace(trial, needs=lambda _: self.mac.padded > 0, rival=self.trial(PRODUCTS).op)

    def wins(self, name: str, size: Any = 0) -> bool:
        """Whether a kernel is fast enough to be used; rows of zeros have to be the fastest."""
        if name == PADDED:
            others = [self.seconds(PRODUCTS, size, kernel=False)]
            if self.wins(PRODUCTS, size):
                others.append(self.seconds(PRODUCTS, size, kernel=True))
            ours = self.seconds(name, size, kernel=True)
            return self.mac.padded > 0 and ours * MAX_TIME_RATIO <= min(others)
        ratio = self.seconds(name, size, kernel=True) / self.seconds(name, size, kernel=False)
        return ratio <= MAX_TIME_RATIO

    @property
    def winners(self) -> set[Any]:
        """What should be used: operations, or sizes of one."""
        return {
            (trial.name, sized.size)
            for trial in map(self.trial, LIBRARIES)
            for sized in (trial.sizes(SHAPES) if trial.sizes else [Sized((0,), 1, ())])
            if self.wins(trial.name, sized.size if trial.sizes else 0)
        }

    def start(self) -> "Start":
        """Start a program, and let it answer three times."""
        self.compiled.clear()
        self.stock_calls = 0
        trials = [self.trial(trial.name) for trial in TRIALS if trial.name in LIBRARIES]
        began = self.now
        launcher: Any = self
        target: Any = SimpleNamespace(
            kernels=Kernels(launcher, on=frozenset()), config={"head_dim": 128}, kv_bits=0
        )
        engine = Engine(target)
        check = PairCheck(target.kernels, SHAPES, clock=lambda: self.now, trials=trials)
        if check.run(TIME_BUDGET):
            engine.between_answers = finish_check(check, engine)
        checked = self.now - began
        target.kernels = check.kernels()
        build(target.kernels, SHAPES, trials=trials)
        start = Start(checked, self.now - began, self.stock_calls)
        for _ in range(3):
            start.answers.append(in_use(target.kernels))
            paused = self.now
            while self.now - paused < PAUSE:
                before = self.now
                if not engine.work_between_answers():
                    break
                start.wait = max(start.wait, self.now - before)
        return start


@dataclass
class Start:
    """What one start took in seconds, and what each answer ran.

    checked: the part of the check. wait: the longest step between answers.
    """

    checked: float
    seconds: float
    stock_calls: int
    wait: float = 0.0
    answers: list[set[Any]] = field(default_factory=list)


def in_use(kernels: Kernels) -> set[Any]:
    """Operations, or sizes of one."""
    return {
        (name, size)
        for name in kernels.on or ()
        for size in kernels.sizes.get(name, frozenset({(0,)}))
    }


def products(used: set[Any]) -> set[Any]:
    """The sizes of matrix products among them."""
    return {(name, size) for name, size in used if name == PRODUCTS}


@pytest.mark.parametrize("compile_seconds", COMPILE)
@pytest.mark.parametrize("chip", MACS)
def test_the_first_start_is_as_fast_as_the_second(chip: str, compile_seconds: float) -> None:
    """All products that win run in the first answer, all other kernels in the third."""
    machine = Machine(MACS[chip], compile_seconds)
    first, second, third = (machine.start() for _ in range(3))
    assert first.checked <= LONGER
    assert first.seconds - second.seconds <= LONGER
    assert products(first.answers[0]) == products(machine.winners)
    assert first.answers[2] == machine.winners
    assert first.wait <= 2 * compile_seconds + 0.5
    assert second.answers[0] == machine.winners
    assert second.checked == second.stock_calls == 0
    assert second.seconds == pytest.approx(third.seconds)


def test_fault_products_last() -> None:
    """The order of the check decides what the first answer runs."""
    machine = Machine(MACS["M1"], 0.5)
    trials = [machine.trial(name) for name in reversed(LIBRARIES)]
    launcher: Any = machine
    kernels = Kernels(launcher, on=frozenset())
    check = PairCheck(kernels, SHAPES, clock=lambda: machine.now, trials=trials)
    assert check.run(TIME_BUDGET)
    assert not products(in_use(check.kernels()))


def table() -> str:
    """The figures of all simulated starts, as Markdown."""
    lines = [
        "| chip | s per library | check, s | first start, s | second, s | products that win"
        " | in answer 1 | all that win | in answers 1, 2, 3 | longest step, s |",
        "|---|" + "---:|" * 9,
    ]
    for chip, mac in MACS.items():
        for seconds in COMPILE:
            STORE.path.unlink(missing_ok=True)
            machine = Machine(mac, seconds)
            first, second = machine.start(), machine.start()
            won = machine.winners
            used = ", ".join(str(len(answer)) for answer in first.answers)
            cells = (
                *(chip, seconds, f"{first.checked:.1f}", f"{first.seconds:.1f}"),
                *(f"{second.seconds:.1f}", len(products(won)), len(products(first.answers[0]))),
                *(len(won), used, f"{first.wait:.2f}"),
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        print(table())
