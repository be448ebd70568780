"""Kernels are used only where they were right and fast on this machine, and the file remembers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
import tiny
from kernel_checks import GENERIC, compared

from dflash_mlx.kernels import small_m_qmm, verify_attention
from dflash_mlx.kernels.dispatch import Kernels, Op
from dflash_mlx.kernels.shapes import AttentionShape, LinearShape, Shapes
from dflash_mlx.kernels.small_m_qmm import BUCKETS, MOST_COLUMNS
from dflash_mlx.kernels.source import MetalLauncher, Source
from dflash_mlx.kernels.verify_attention import FEW_ROWS, NEAR
from dflash_mlx.pair import prepare_kernels
from dflash_mlx.selfcheck import check as checks
from dflash_mlx.selfcheck import results
from dflash_mlx.selfcheck.check import (
    CALLS,
    RUNS,
    TIME_BUDGET,
    KernelCheck,
    build,
    compare_times,
    describe_error,
    largest_error,
    outputs,
)
from dflash_mlx.selfcheck.results import (
    STARTED,
    STORE,
    UNCHECKED,
    UNTIMED,
    KernelResult,
    Timed,
    latest_results,
    result_key,
)
from dflash_mlx.selfcheck.trials import TRIALS, Trial
from dflash_mlx.types import Progress, silent

SHAPES = Shapes(vocab=9, rows=4, dtype="float32")
X = mx.array([1.0, 2.0, -3.0])


@dataclass
class Device:
    """Runs "kernels" that are functions by name, on a clock that only they move."""

    kernels: dict[str, Callable[[mx.array], Any]] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    ran: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def run(self, name: str, x: mx.array) -> Any:
        self.ran.append(name)
        self.now += self.cost.get(name, 0.5)
        return self.kernels.get(name, lambda x: 2 * x)(x)

    def stock(self, _: Kernels, *__: Any) -> Callable[[mx.array], mx.array]:
        """What MLX has of its own."""

        def double(x: mx.array) -> mx.array:
            self.now += self.cost.get("stock", 1.0)
            return 2 * x

        return double

    def trial(self, name: str) -> Trial:
        """An operation that doubles."""
        op: Any = Op(name, lambda x: 2 * x, lambda device, x: device.run(name, x))
        return Trial(op, lambda shapes: [(X,), (X * shapes.rows,)], self.stock)

    def check(self, trials: Sequence[Trial], *, exact: bool = False) -> KernelCheck:
        launcher: Any = self
        kernels = Kernels(launcher, exact=exact, on=frozenset())
        shapes = replace(SHAPES, exact=exact)
        return KernelCheck(kernels, shapes, clock=self.clock, trials=trials)

    def checked(self, *trials: Trial) -> KernelResult:
        """The result of the last one."""
        check = self.check(trials)
        check.run()
        return check.results[trials[-1].name]


def test_what_is_right_and_fast_is_used() -> None:
    """Half of stock's time, by medians of alternating series; another order of sums is no fault."""
    device = Device()
    result = device.checked(device.trial("double"))
    assert result == KernelResult("double", True, 0.0, sizes=(Timed(None, 0.5, 0.5, True),))
    assert device.ran[:2] == ["double"] * 2
    device.kernels["near"] = lambda x: mx.where(mx.abs(x) < 4, 2.0001 * x, 2 * x)  # the first case
    near = device.checked(device.trial("near"))
    assert near.right
    assert near.error == pytest.approx(5e-5, rel=0.1), "the largest of all cases"


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (lambda x: 2.06 * x, "differs from its reference by 0.03"),
        (lambda x: mx.where(x > 1, mx.nan, 2 * x), "gives what is no number"),
        (lambda x: 2 * x[:2], "gives another shape or dtype"),
        (lambda x: (2 * x).astype(mx.float16), "gives another shape or dtype"),
        (lambda x: [2 * x, x], "gives another shape or dtype"),
        (lambda x: 1 / 0, "raised ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_wrong_is_not(kernel: Callable[[mx.array], Any], reason: str) -> None:
    """Other numbers, NaN, other shapes and dtypes, exceptions; and it is not timed either."""
    device = Device({"double": kernel})
    result = device.checked(device.trial("double"))
    assert (result.right, result.reason, result.ratio) == (False, reason, None)
    assert len(device.ran) == 1


@pytest.mark.parametrize("lazy", [False, True])
def test_a_reference_that_raises_ends_no_check(*, lazy: bool) -> None:
    """At once or when MLX evaluates it: the kernel is off, and the next one is checked."""

    def reference(x: mx.array) -> mx.array:
        if lazy:
            return mx.linalg.inv(mx.zeros((x.size, x.size)), stream=mx.cpu)[0]
        raise RuntimeError("Boom")

    device = Device()
    broken, whole = device.trial("broken"), device.trial("whole")
    broken = replace(broken, op=replace(broken.op, reference=reference))
    found = device.checked(broken)
    assert not found.right
    assert found.reason.startswith("cannot be compared with its reference: RuntimeError: ")
    assert device.checked(broken, whole).reason == ""


def test_the_compilers_lines_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The reason has room for the first line only, which is the same for every such error."""
    caplog.set_level("INFO")

    def refused(_: mx.array) -> None:
        raise RuntimeError("Unable to build metal library from source\nprogram_source:3:1: error")

    device = Device({"double": refused})
    result = device.checked(device.trial("double"))
    assert result.reason == "raised RuntimeError: Unable to build metal library from source"
    assert "program_source:3:1: error" in caplog.text


def test_whole_numbers_are_equal_or_wrong() -> None:
    """No tolerance for decisions."""
    trial = Trial(
        Op("sign", lambda x: x.astype(mx.int32), lambda _, x: x.astype(mx.int32) + (x > 1)),
        lambda _: [(X,)],
        Device().stock,
    )
    result = Device().checked(trial)
    assert (result.right, result.reason) == (False, "decides otherwise than its reference")


def test_what_is_slow_is_not_used() -> None:
    """Right, but a loss; a twentieth is noise."""
    slow, noise = Device(cost={"slow": 1.4}), Device(cost={"noise": 1.04})
    result = slow.checked(slow.trial("slow"))
    assert result.right
    assert result.reason == "1.4x as slow as MLX's own"
    assert noise.checked(noise.trial("noise")).reason == ""


def test_one_operation_after_another_until_the_time_is_spent() -> None:
    """What is not checked is off, and not wrong; a later start goes on where this one ended."""
    device = Device()
    trials = [device.trial(name) for name in "abc"]
    whole = device.check(trials)
    seconds = []
    while whole.step():
        seconds.append(device.now - sum(seconds))
    assert not whole.run(1.0)
    compared, timed = 0.5, CALLS * (RUNS + 1) * 1.5
    assert seconds == [compared, compared, timed, 0.0] * 3
    STORE.path.unlink()
    for budget, on, off in (
        (0.4, "", dict.fromkeys("abc", UNCHECKED)),
        (1.0, "", {"a": UNTIMED} | dict.fromkeys("bc", UNCHECKED)),
        (1.0, "a", dict.fromkeys("bc", UNCHECKED)),
        (3 * timed, "abc", {}),
    ):
        check = device.check(trials)
        device.ran.clear()
        assert check.run(budget) is bool(off)
        kernels = check.kernels()
        assert (kernels.on, kernels.off, kernels.wrong) == ({*on}, off, frozenset())
    assert {*device.ran} == {"b", "c"}


def test_only_what_the_model_uses_is_checked() -> None:
    """Others have no result."""
    device = Device()
    check = device.check((device.trial("used"), replace(device.trial("no"), cases=lambda _: [])))
    assert not check.run()
    assert list(check.results) == ["used"]
    assert {*device.ran} == {"used"}


def sized(device: Device, name: str, times: dict[tuple[int, ...], float]) -> Trial:
    """An operation that takes these seconds at these sizes."""

    def run(_: Any, x: mx.array) -> mx.array:
        device.ran.append(f"{name} {x.size}")
        device.now += times[(x.size,)]
        return 2 * x

    whole = device.trial(name)
    op = replace(whole.op, launch=run, size=lambda x: (x.size,))
    cases = [(X[: size[0]],) for size in times]
    return replace(whole, op=op, cases=lambda _: [(X,)], sizes=lambda _: cases)


TIMES = {(1,): 0.5, (2,): 0.9, (3,): 1.4}  # stock takes a second


def test_a_kernel_is_used_at_the_sizes_where_it_won() -> None:
    """One verdict for all of them would run it where it loses, or not where it wins.

    What is shown is the mean. With exactness it runs everywhere: MLX cannot stand in.
    """
    device = Device()
    trial = sized(device, "product", TIMES)
    launcher: Any = device
    again = [(X[: size[0]],) for size in TIMES]
    found = device.checked(replace(trial, sizes=lambda _: again * 2))
    assert len(found.sizes) == len(TIMES)  # each once
    assert found.reason == ""
    assert found.ratio == pytest.approx((0.5 + 0.9 + 1.4) / 3)
    for exact, runs in ((False, [True, True, False]), (True, [True] * 3)):
        kernels = results.apply_results(Kernels(launcher, exact=exact, on=frozenset()), [found])
        assert [kernels.launches(trial.op, X[:count]) for count in (1, 2, 3)] == runs
    kernels = results.apply_results(Kernels(launcher, on=frozenset()), [found])
    assert not kernels.launches(trial.op, mx.zeros(5))  # a size that nobody has timed
    fault = replace(kernels, sizes={})
    assert fault.launches(trial.op, X)  # one verdict for all would run it where it loses
    lost = device.checked(sized(device, "lost", dict.fromkeys(TIMES, 1.4)))
    assert lost.reason == "1.4x as slow as MLX's own"
    none = device.checked(replace(trial, op=replace(trial.op, name="none"), sizes=lambda _: []))
    assert none.reason == results.NARROW


def test_sizes_that_are_left_are_timed_at_the_next_start() -> None:
    """Those that are known are in use, are not timed again, and are kept in the file."""
    device = Device()
    trial = sized(device, "product", TIMES)
    for count, won in enumerate([set(), {(1,)}, {(1,), (2,)}, {(1,), (2,)}]):
        device.ran.clear()
        check = device.check([trial])
        assert check.step()  # the comparison, of three numbers, or the next size
        assert {*device.ran} == {f"product {count or 3}"}
        assert len(STORE.read()[result_key(SHAPES)]["product"].sizes) == count
        kernels = check.kernels()
        assert kernels.sizes == ({"product": won} if won else {})
        assert kernels.off == ({} if won else {"product": UNTIMED})
    check = device.check([trial])
    device.ran.clear()
    assert check.step()  # the means
    assert not check.step()
    assert not device.ran
    assert STORE.read()[result_key(SHAPES)]["product"].reason == ""


def test_sizes_of_a_model_are_all_its_matrices() -> None:
    """Every size by every bucket of rows, the most bytes first; narrow ones are left to MLX."""
    wide, narrow = (LinearShape(n, 128, 4, 64, "affine", "float32") for n in (1024, 64))
    head = replace(wide, outputs=100_000)
    shapes = replace(SHAPES, products=((wide, 3), (narrow, 50), (head, 1)))
    found = [(small_m_qmm.size(*case), case) for case in small_m_qmm.sizes(shapes)]
    columns = [MOST_COLUMNS] * len(BUCKETS) + [1024] * len(BUCKETS)
    assert [(size[0], size[-1]) for size, _ in found] == list(
        zip(columns, [*BUCKETS] * 2, strict=True)
    )
    for size, (x, weights) in found:
        assert small_m_qmm.size(x[:-1], weights) == size
        assert small_m_qmm.size(x[None], weights) == size  # as layers have them
    forms = [
        replace(wide, group=32),
        replace(wide, dtype="float16"),
        replace(wide, group=32, mode="mxfp4", dtype="uint8"),
        replace(wide, biased=True),
    ]
    mixed = replace(SHAPES, products=tuple((kind, 1) for kind in (wide, *forms)))
    sizes = {small_m_qmm.size(*case) for case in small_m_qmm.sizes(mixed)}
    assert len(sizes) == 5 * len(BUCKETS)


@pytest.mark.parametrize("megabytes", [0.1, 30, 80])
def test_a_timing_reads_what_no_cache_holds(
    monkeypatch: pytest.MonkeyPatch, megabytes: float
) -> None:
    """At least three copies in turn, on both sides; as few as are larger than a system cache."""
    monkeypatch.setattr(checks, "COLD_BYTES", checks.COLD_BYTES // 1000)
    read: list[int] = []

    def product(x: mx.array, weights: mx.array) -> mx.array:
        read.append(id(weights))
        return x * weights[0]

    def stock(_: Kernels, __: mx.array, weights: mx.array) -> Callable[[mx.array], mx.array]:
        return lambda x: product(x, weights)

    trial = Trial(Op("product", product, product), lambda _: [], stock)
    case = X, mx.zeros(int(250 * megabytes))  # thousandths of it
    compare_times(trial, product, case, Kernels(), time.perf_counter)
    assert len(read) == 2 * CALLS * (RUNS + 1)
    turn = len({*read})
    assert read == [*(read[:turn] * CALLS)[:CALLS]] * 2 * (RUNS + 1)
    assert turn == {0.1: CALLS, 30: 7, 80: 3}[megabytes]


class Tracing(MetalLauncher):
    """Records as on a Mac, and computes zeros; `count` is how often a text was written."""

    count = 0

    def __call__(self, source: Source, inputs: Any, **call: Any) -> list[mx.array]:
        self.count += 1
        types = call["output_dtypes"]
        return [mx.zeros(s, t) for s, t in zip(call["output_shapes"], types, strict=True)]


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_kernels_are_timed_as_answers_run_them(trial: Trial) -> None:
    """MLX writes the text of a launch once, not for each call, also where ours is the rival."""
    launcher = Tracing()
    launch = partial(trial.op.launch, launcher)
    others = Kernels(launcher).without([trial.name])
    (case, *_) = trial.sizes(GENERIC) if trial.sizes else trial.fitting(GENERIC)[-1:]
    compare_times(trial, launch, case, others, time.perf_counter)
    assert launcher.count <= 3 * CALLS


@pytest.mark.parametrize(
    ("kind", "threads", "exact"),
    [
        (AttentionShape(64, 8, 64, window=128, sinks=True), 256, 512),  # gpt-oss
        (AttentionShape(32, 8, 64), 256, 512),
        (AttentionShape(4, 4, 64), 128, 256),
        (AttentionShape(32, 8, 128), 256, 256),
        (AttentionShape(16, 4, 256), 384, 256),
    ],
)
def test_the_largest_threadgroup_is_tried(kind: AttentionShape, threads: int, exact: int) -> None:
    """A chip may refuse a body with many threads: the check notices, not an answer."""
    tried: list[int] = []

    def note(_: Any, __: Any, **call: Any) -> list[mx.array]:
        tried.append(call["threadgroup"][0])
        return [mx.zeros(shape) for shape in call["output_shapes"]]

    noting: Any = note
    shapes = replace(SHAPES, attention=(kind,), rows=4)
    launches = (verify_attention.launch, threads), (verify_attention.launch_exact, exact)
    for launch, largest in launches:
        tried.clear()
        for case in verify_attention.cases(shapes):
            launch(noting, *case)
        assert max(tried) == largest


def refused(threads: int, most: int) -> ValueError:
    """MLX's error for a threadgroup of too many threads."""
    return ValueError(
        f"Thread group size ({threads}) is greater than  the maximum allowed threads per "
        f"threadgroup ({most})."
    )


@pytest.mark.parametrize("most", [1024, 256, 128])
def test_a_chip_that_refuses_three_teams_is_given_two(most: int) -> None:
    """Only where it refuses these as well is verify attention off."""
    (trial,) = (trial for trial in TRIALS if trial.name == "verify_attention")
    ran: list[int] = []

    def zeros(source: Source, _: Any, **call: Any) -> list[mx.array]:
        threads = call["threadgroup"][0]
        if source == verify_attention.MATRIX:  # the other one has few registers
            if threads > most:
                raise refused(threads, most)
            ran.append(threads)
        return [mx.zeros(shape) for shape in call["output_shapes"]]

    launcher: Any = zeros
    shapes = replace(SHAPES, attention=(AttentionShape(24, 4, 256),), rows=16, context=200)
    found = compared(launcher, replace(trial, comparable=mx.zeros_like), shapes)
    assert found.right is (most > 128)
    assert found.smaller is (most == 256)
    assert found.reason == (
        UNTIMED if found.right else f"raised {describe_error(refused(256, 128))}"
    )
    if found.right:
        assert max(ran) == (384 if most > 384 else 256)


def test_smaller_threadgroups_are_timed_used_and_kept() -> None:
    """The launch that a chip refuses is tried once on this machine, and never in an answer."""
    device = Device()
    trial = device.trial("double")

    def launch(_: Any, x: mx.array) -> mx.array:
        device.ran.append("large")
        if x is not X:
            raise refused(384, 256)
        return device.run("few", x)

    op = replace(trial.op, launch=launch, smaller=lambda _, x: device.run("small", x))
    check = device.check([replace(trial, op=op)])
    assert not check.run(100.0)
    assert device.ran[:4] == ["large", "few", "large", "small"]
    assert {*device.ran[4:]} == {"small"}
    again = device.check([replace(trial, op=op)])
    for kernels in (check.kernels(), again.kernels()):
        device.ran.clear()
        assert (kernels.on, kernels.smaller) == ({"double"}, {"double"})
        assert mx.array_equal(kernels(op, X * 4), X * 8)
        assert device.ran == ["small"]
    assert not again.step()


def test_no_other_error_makes_threadgroups_smaller() -> None:
    """A text that does not compile has no smaller launch either."""
    trial = Device().trial("double")
    op = replace(trial.op, launch=lambda _, x: 1 / 0, smaller=lambda _, x: 2 * x)
    found = Device().checked(replace(trial, op=op))
    assert (found.right, found.smaller) == (False, False)
    assert found.reason == "raised ZeroDivisionError: division by zero"


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kernels]:
    """What a start of the program makes of a device's kernels."""

    def run(
        device: Device, *names: str, exact: bool = False, on_check: Progress = silent
    ) -> Kernels:
        device.ran.clear()
        device.now = 0.0
        check = device.check([device.trial(name) for name in names], exact=exact)
        check.run(TIME_BUDGET, on_check)
        return check.kernels()

    return run


def test_the_second_start_launches_nothing(
    start: Callable[..., Kernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until MLX is another one, or a kernel's text."""
    device = Device({"wrong": lambda x: 3 * x}, {"good": 0.01, "slow": 0.02, "wrong": 0.1})
    device.cost["stock"] = 0.015
    names = ("good", "slow", "wrong")
    counts = list[tuple[int, int]]()
    for ran in (True, False):
        kernels = start(device, *names, on_check=lambda *count: counts.append(count))
        assert sorted({*counts}) == [(done, 3) for done in range(3)] * ran
        counts.clear()
        assert bool(device.ran) is ran
        assert kernels.on == {"good"}
        assert kernels.wrong == {"wrong"}
        assert kernels.off["slow"] == "1.3x as slow as MLX's own"
        assert kernels.off["wrong"] == "differs from its reference by 0.5"
    assert {name: result.right for name, result in latest_results().items()} == {
        "good": True, "slow": True, "wrong": False
    }  # fmt: skip
    exact = start(device, "good", "slow", "wrong", exact=True)
    assert exact.on == {"good", "slow"}
    for name, other in (("version", lambda name: "9.9"), ("source_hash", lambda: "other")):
        with monkeypatch.context() as patch:
            patch.setattr(results, name, other)
            start(device, "good")
            assert device.ran
            start(device, "good")
            assert not device.ran


def test_a_kernel_that_ends_the_program_is_off(start: Callable[..., Kernels]) -> None:
    """Nothing can be written after it; a user who breaks off is no such case."""

    def crash(x: mx.array) -> None:
        seen.append(STORE.read()[result_key(SHAPES)]["crash"])
        raise KeyboardInterrupt

    seen: list[KernelResult] = []
    device = Device({"crash": crash})
    with pytest.raises(KeyboardInterrupt):
        start(device, "crash")
    assert seen == [KernelResult("crash", False, reason=STARTED)]
    assert STORE.read()[result_key(SHAPES)] == {
        "crash": KernelResult("crash", True, reason=UNCHECKED)
    }
    check = device.check([device.trial("crash")])
    with pytest.raises(KeyboardInterrupt):
        check.run()
    assert not check.run()  # and ends, though not everything is checked
    STORE.write(result_key(SHAPES), {"crash": seen[0]})
    kernels = start(device, "crash")
    assert not device.ran
    assert kernels.off == {"crash": STARTED}
    assert kernels.wrong == {"crash"}


def test_two_programs_keep_each_others_results() -> None:
    """Each writes what it has found itself; one that begins anew drops what was known before."""
    device = Device()
    trials = [device.trial(name) for name in ("a", "b")]
    one, other = device.check(trials), device.check(trials)
    other.fail("b", "raised ValueError: ")
    one.step()
    assert STORE.read()[result_key(SHAPES)] == {
        "a": one.results["a"],
        "b": KernelResult("b", False, reason="raised ValueError: "),
    }
    launcher: Any = device
    kernels = Kernels(launcher, on=frozenset())
    anew = KernelCheck(kernels, SHAPES, anew=True, clock=device.clock, trials=trials[:1])
    anew.step()
    anew.step()
    assert STORE.read()[result_key(SHAPES)] == anew.results


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 100_000, '{"format": 5}',
             '{"format": 4, "verdicts": {"KEY": {"a": {"name": "a", "right": true, "sizes": []}}}}',
             '{"format": 5, "verdicts": {"KEY": {"a": {}}}}',
             '{"format": 5, "verdicts": {"KEY": {"a": {"name": "a", "right": 1, "sizes": []}}}}',
             '{"format": 5, "verdicts": {"KEY": {"a": {"name": "a", "right": true,'
             ' "sizes": [1]}}}}',
             '{"format": 5, "verdicts": {"KEY": {"a": {"name": "a", "right": true,'
             ' "sizes": [[[1, [2]], 0.5, 0.5, true]]}}}}']
)  # fmt: skip
def test_a_damaged_file_is_said_and_proven_anew(
    start: Callable[..., Kernels], caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """Whatever is in it."""
    STORE.path.parent.mkdir(parents=True)
    STORE.path.write_text(text.replace("KEY", result_key(SHAPES)))
    device = Device({}, {"a": 0.01})
    assert start(device, "a").on == {"a"}
    assert device.ran
    assert "are measured again" in caplog.text
    start(device, "a")
    assert not device.ran


@pytest.mark.parametrize("exact", [False, True])
def test_what_is_left_is_checked_between_answers(
    monkeypatch: pytest.MonkeyPatch, *, exact: bool
) -> None:
    """Exact mode only compares, but all at once."""
    device = Device()
    trials = [device.trial(name) for name in "abc"]
    given: Any = {"trials": trials, "clock": device.clock}
    monkeypatch.setattr("dflash_mlx.pair.KernelCheck", partial(KernelCheck, **given))
    monkeypatch.setattr("dflash_mlx.pair.build", partial(build, trials=trials))
    pair = tiny.make_pair(tiny.make_target("qwen3"), None)
    launcher: Any = device
    pair.target.kernels = Kernels(launcher, exact=exact, on=frozenset())
    counts: list[tuple[int, int]] = []
    prepare_kernels(pair, silent, lambda *count: counts.append(count))
    left = pair.engine.between_answers is not None
    assert left is not exact
    assert pair.target.kernels.on == ({*"abc"} if exact else {"a"})
    assert all(done < 3 for done, _ in counts)
    if exact:
        assert "".join(device.ran) == 2 * "aabbcc"  # compared, then built
        return
    counts.clear()
    pair.engine.finish_work()
    assert pair.target.kernels.on == {*"abc"}
    assert not counts  # a chat is on the screen


def test_kernels_that_fail_after_their_check_stay_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """While they are built at a larger shape, or in an answer; in this run and at later starts."""

    def refuse(x: mx.array) -> None:
        if not checking:
            raise ValueError("Thread group size (512) is greater than the maximum (448).")

    device = Device({"b": lambda x: refuse(x) or 2 * x}, dict.fromkeys("abc", 0.01))
    device.cost["stock"] = 0.015
    trials = [device.trial(name) for name in "abc"]

    def built(*args: Any, **options: Any) -> dict[str, str]:
        nonlocal checking
        checking = False
        return build(*args, trials=trials, **options)

    given: Any = {"trials": trials, "clock": device.clock}
    monkeypatch.setattr("dflash_mlx.pair.KernelCheck", partial(KernelCheck, **given))
    monkeypatch.setattr("dflash_mlx.pair.build", built)
    launcher: Any = device
    left = {"a": True, "c": True}
    for start in range(3):
        checking = True
        pair = tiny.make_pair(tiny.make_target("qwen3"), None)
        pair.target.kernels = Kernels(launcher, on=frozenset())
        prepare_kernels(pair, silent, silent)
        kernels = pair.target.kernels
        assert kernels.on == left.keys()
        assert kernels.off["b"].startswith("raised ValueError: Thread group size (512)")
        if start == 0:
            pair.engine.on_kernel_failed("c", "raised Boom in an answer")
            del left["c"]
        else:
            assert kernels.off["c"] == "raised Boom in an answer"
            assert kernels.wrong == {"b", "c"}


def test_nothing_happens_without_a_launcher() -> None:
    """On Linux nothing is proven, and nothing is built."""

    def fail(*_: int) -> None:
        pytest.fail("it is checked")

    prepare_kernels(tiny.golden_pair("qwen3_full"), fail, fail)
    assert not STORE.path.exists()


def test_every_operation_is_tried() -> None:
    """An operation without a trial would never be used, and nobody would know why."""
    import importlib
    import pkgutil

    import dflash_mlx.kernels as package

    modules = [importlib.import_module(f"{package.__name__}.{m.name}")
               for m in pkgutil.iter_modules(package.__path__)]  # fmt: skip
    operations = {module.OP.name for module in modules if hasattr(module, "OP")}
    assert {trial.name for trial in TRIALS} == operations
    for trial in TRIALS:
        assert trial.fitting(GENERIC), trial.name


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_what_a_kernel_is_timed_against_is_the_like(trial: Trial) -> None:
    """MLX's own computes the same, from the same arguments: gates and windows' masks included."""
    for shapes in (GENERIC, replace(GENERIC, attention=GENERIC.attention[:1])):
        case = trial.fitting(shapes)[-1]
        want = outputs(trial.op.reference(*case))[0]
        got = outputs(trial.stock(Kernels(), *case)(case[0]))[0]
        mx.eval(got)
        assert got.size == want.size
        if trial.name != "gated_delta_replay":  # mlx-lm finds the gates again, and writes by values
            error = largest_error(got.reshape(want.shape), want)
            assert error <= checks.TOLERANCE.get(want.dtype, 0)


def test_attention_is_timed_for_few_and_many_rows_near_and_far() -> None:
    """One verdict each: MLX has other kernels up to 8 rows, and does not divide a long context."""
    kinds = AttentionShape(8, 2, 64), AttentionShape(4, 2, 32, window=9)
    found = verify_attention.sizes(replace(SHAPES, attention=kinds, rows=16))
    full = [(8, 2, 64, 0, few, near) for few in (FEW_ROWS, 0) for near in (NEAR, 0)]
    windowed = [(4, 2, 32, 1, few, NEAR) for few in (FEW_ROWS, 0)]
    assert [verify_attention.size(*case) for case in found] == full + windowed
