"""Rows of zeros, raced against stock MLX and our kernel on a simulated Mac, and used in answers.

The Mac's clock moves by how often MLX reads the weights, and its kernel takes a time of its own.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
import tiny
from ledger.products import reads
from metal.packed import rows_of, weights_of
from mlx import nn

from dflash_mlx.device import Chip
from dflash_mlx.kernels import padded_rows, small_m_qmm
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.row_limits import Padding
from dflash_mlx.kernels.shapes import LinearShape, Shapes
from dflash_mlx.kernels.small_m_qmm import Weights
from dflash_mlx.models.linear import Products, multiply, single
from dflash_mlx.models.target import Target
from dflash_mlx.selfcheck import check, results
from dflash_mlx.selfcheck.check import RUNS, KernelCheck, compare_times
from dflash_mlx.selfcheck.results import STORE
from dflash_mlx.selfcheck.shapes import shapes_of
from dflash_mlx.selfcheck.trials import TRIALS, Trial

PRODUCTS, PADDED = (
    next(trial for trial in TRIALS if trial.name == name) for name in ("small_m_qmm", "padded_rows")
)
M4 = "applegpu_g16g"
KIND_NAME = "4-bit affine in 32s, float32"
KIND = LinearShape(64, 64, 4, 32, "affine", "float32")
SHAPES = Shapes(9, 12, "float32", products=((KIND, 1),), architecture=M4)
OURS = Padding(11, 13)  # the rows that are padded on it


@dataclass
class Mac:
    """Multiplies by MLX; `read` are the seconds of a read, `tile` of a matrix product.

    kernel: of our kernel. rows: of the products that MLX was asked for. order: of all products.
    """

    architecture: str = M4
    read: float = 1.0
    tile: float = 1.5
    kernel: float = 9.0
    now: float = 0.0
    rows: list[int] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    product: Any = mx.quantized_matmul

    def clock(self) -> float:
        return self.now

    def quantized_matmul(self, x: mx.array, *args: Any, **options: Any) -> mx.array:
        """MLX's own, which takes longer the more often it reads."""
        out = self.product(x, *args, **options)
        rows, chip = x.size // x.shape[-1], Chip.of(self.architecture)
        assert chip is not None
        count = reads(chip, rows, out.shape[-1], x.shape[-1])
        self.rows.append(rows)
        self.order.append("padded" if rows == OURS.width else "stock")
        self.now += self.tile if rows >= OURS.width else self.read * count
        return out

    def __call__(self, _: Any, inputs: Any, **call: Any) -> list[mx.array]:
        """Our kernel."""
        given = dict(call["template"])
        self.now += self.kernel
        self.order.append("ours")
        return [self.product(*inputs[:4], True, given["Group"], given["Bits"])]


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Mac:
    """A Mac that computes all quantised products."""
    found = Mac()
    monkeypatch.setattr(mx, "quantized_matmul", found.quantized_matmul)
    monkeypatch.setattr(small_m_qmm, "LEAST_COLUMNS", 1)
    monkeypatch.setattr(check, "CALLS", 2)
    monkeypatch.setattr(small_m_qmm, "BUCKETS", (2, 12))
    return found


def checked(mac: Mac, shapes: Shapes = SHAPES, trials: tuple[Trial, ...] = ()) -> Kernels:
    """The kernels in use after a whole check."""
    launcher: Any = mac
    kernels = Kernels(launcher, on=frozenset(), exact=shapes.exact)
    trials = trials or (PRODUCTS, PADDED)
    found = KernelCheck(kernels, shapes, clock=mac.clock, trials=trials)
    assert not found.run()
    return found.kernels()


def kept() -> results.KernelResult:
    return STORE.read()[list(STORE.read())[-1]]["padded_rows"]


@pytest.mark.parametrize(
    ("tile", "kernel", "used"),
    [
        (1.5, 9.0, "padded"),
        (1.5, 2.0, "padded"),
        (1.5, 1.0, "ours"),
        (2.9, 9.0, "stock"),  # 3 % are no gain
        (4.0, 9.0, "stock"),
        (4.0, 1.0, "ours"),
    ],
)
def test_the_fastest_of_three_multiplies(mac: Mac, tile: float, kernel: float, used: str) -> None:
    """Of 11 and 12 rows; stock MLX reads the weights three times for them, and takes 3 s."""
    mac.tile, mac.kernel = tile, kernel
    kernels = checked(mac)
    weights = weights_of(64, 64, (32, 4, "affine"))
    for count in range(1, 33):
        mac.rows.clear()
        x = rows_of(count, 64).reshape(-1, 1, 64)  # the rows of several sequences are one product
        wanted = mac.product(x, weights.values, weights.scales, weights.biases, True, 32, 4)
        out = multiply(kernels, weights, x)
        assert tiny.apart(out, wanted) < 1e-5
        padded = used == "padded" and count in (11, 12)
        ours = kernel <= 3.0 and (count > 2 or kernel == 1.0) and count <= 12 and not padded
        assert mac.rows == ([] if ours else [13] if padded else [count]), count


@pytest.mark.parametrize("kernel", [2.0, 9.0])
def test_the_race_is_with_what_runs_without_it(mac: Mac, kernel: float) -> None:
    """Our kernel where it is used, else stock MLX: nobody waits for the other."""
    mac.kernel = kernel
    launcher: Any = mac
    kernels = checked(mac, trials=(PRODUCTS,))
    mac.order.clear()
    case = rows_of(11, 64), weights_of(64, 64, (32, 4, "affine")), OURS
    launch = partial(padded_rows.launch, launcher)
    found = compare_times(PADDED, launch, case, kernels, mac.clock)
    assert mac.order == (["padded"] * 2 + ["ours" if kernel < 3 else "stock"] * 2) * (RUNS + 1)
    assert found == (1.5, 1.5 / min(kernel, 3.0))


def test_results_are_kept_and_shown(mac: Mac) -> None:
    """The second start races nothing; a file of another format is measured again."""
    kernels = checked(mac)
    began = mac.now
    assert checked(mac) == kernels
    assert mac.now == began
    result = kept()
    assert result.reason == ""
    assert result.sizes == (((64, 64, KIND_NAME, 11, 13), 1.5, 0.5, True),)
    STORE.path.unlink()
    mac.tile = 2.9
    checked(mac)
    assert kept().reason == "it gains nothing here"
    STORE.path.write_text(STORE.path.read_text().replace('"format": 5', '"format": 4'))
    began = mac.now
    checked(mac)
    assert mac.now > began


def test_what_is_raced_by_chip() -> None:
    """Each matrix once, at the fewest rows; those of 32 bits and narrow ones never."""
    kinds = tuple(
        LinearShape(outputs, inputs, bits, 64 * bool(bits), "affine" * bool(bits), dtype)
        for outputs, inputs, bits, dtype in (
            (4096, 4096, 4, "bfloat16"),
            (100_000, 4096, 4, "bfloat16"),
            (512, 1024, 8, "float16"),
            (64, 1024, 4, "bfloat16"),
            (1024, 1024, 0, "bfloat16"),
            (1024, 1024, 0, "float32"),
        )
    )
    shapes = replace(SHAPES, products=tuple((kind, 1) for kind in kinds))

    def raced(name: str) -> list[tuple[Any, ...]]:
        found = padded_rows.sizes(replace(shapes, architecture=f"applegpu_{name}"))
        sizes = ((padded_rows.size(*case), len(case[0])) for case in found)
        return sorted((*size[:2], *size[-2:], rows) for size, rows in sizes)

    assert raced("g13s") == []
    assert raced("g16s") == [
        (512, 1024, 11, 13, 11),
        (1024, 1024, 11, 16, 11),
        (4096, 4096, 11, 15, 11),
        (small_m_qmm.MOST_COLUMNS, 4096, 11, 13, 11),
    ]
    assert raced("g17s") == [
        (1024, 1024, 11, 16, 11),
        (4096, 4096, 16, 25, 16),
        (small_m_qmm.MOST_COLUMNS, 4096, 11, 13, 11),
    ]


def wrong_rows(_: Any, x: mx.array, weights: Weights, padding: Padding) -> mx.array:
    """A fault: the last rows of the product, some of them zeros."""
    rows = mx.pad(x.reshape(-1, x.shape[-1]), [(0, padding.width - len(x)), (0, 0)])
    return small_m_qmm.product(rows, weights)[-len(x) :]


def test_faults_are_wrong(mac: Mac) -> None:
    """They are caught before anything is timed, and never run in an answer."""
    fault = replace(PADDED, op=replace(PADDED.op, launch=wrong_rows))
    kernels = checked(mac, trials=(fault,))
    assert kernels.wrong == {"padded_rows"}
    assert not kept().sizes


def target_of(kernels: Kernels) -> Target:
    """A target of packed weights, which these kernels multiply."""
    target = tiny.make_target("qwen3", hidden_size=64, intermediate_size=64, head_dim=32)
    nn.quantize(target.model, 32, 4)
    target.kernels = kernels
    return target


PROMPT = tiny.prompt_of(12)


def answered(mac: Mac, kernels: Kernels, rows: int = 12) -> tuple[list[int], set[int]]:
    """A greedy answer in rounds of so many rows, and the rows of MLX's products in its rounds."""
    wanted = tiny.plain(target_of(Kernels()), PROMPT, 24, margin=1e-4)
    half = [token if at % 15 else token + 1 for at, token in enumerate(wanted)]
    drafter = tiny.scripted_drafter([*PROMPT, *half], strict=False)
    target = target_of(kernels)
    mac.rows.clear()
    blocks = tiny.speculate(target, drafter, PROMPT, block_size=rows, max_tokens=20, chunk=99)
    assert tiny.joined(blocks) == wanted[:20]
    return tiny.joined(blocks), {*mac.rows}


def on_mac(architecture: str = M4, *, exact: bool = False) -> Shapes:
    """Those of the target, on a Mac."""
    found = shapes_of(target_of(Kernels()), None)
    return replace(found, rows=12, architecture=architecture, exact=exact)


def test_answers_pad_rows_where_that_won(mac: Mac) -> None:
    """The same tokens as stock's; the fault below shows that the comparison can fail."""
    padding = checked(mac, on_mac())
    assert padding.on == {"padded_rows"}
    stock, plain_rows = answered(mac, Kernels())
    padded, padded_rows_ = answered(mac, padding)
    assert padded == stock
    assert 12 in plain_rows
    assert OURS.width not in plain_rows
    assert OURS.width in padded_rows_
    assert not {11, 12} & padded_rows_


def test_a_width_beyond_our_kernels_rows(mac: Mac) -> None:
    """On an M5 up to 24 rows are padded, in layers whose rows our kernel would read twice."""
    size = (64, 64, KIND_NAME, 16, 25)
    launcher: Any = mac
    names = frozenset({"padded_rows", "small_m_qmm"})
    ours = frozenset({(64, 64, KIND_NAME, 12)})
    kernels = Kernels(
        launcher, on=names, sizes={"padded_rows": frozenset({size}), "small_m_qmm": ours}
    )
    layer = nn.QuantizedLinear(64, 64, bias=False, group_size=32, bits=4)
    product = Products(kernels).of(single, layer)
    for count, rows in ((2, [2]), (12, []), (15, [15]), (16, [25]), (24, [25]), (25, None)):
        mac.rows.clear()
        out = product(rows_of(count, 64))
        assert (out is None) == (rows is None), count
        assert mac.rows == (rows or []), count
    few = replace(kernels, off={"padded_rows": "raised"})
    assert Products(few).of(single, layer)(rows_of(17, 64)) is None


def test_exact_mode_never_pads(mac: Mac) -> None:
    """A row's bits must not depend on the number of rows; padding has other kernels multiply it.

    It is neither checked nor used there, whatever an earlier check has found.
    """
    padding = checked(mac, on_mac())
    exact = checked(mac, on_mac(exact=True))
    assert exact.on == {"small_m_qmm"}
    assert "padded_rows" not in exact.sizes
    launcher: Any = mac
    weights = weights_of(64, 64, (32, 4, "affine"))
    mixed = replace(
        padding, launcher=launcher, exact=True, on=frozenset({"padded_rows", "small_m_qmm"})
    )
    for kernels in (exact, mixed):
        mac.rows.clear()
        multiply(kernels, weights, rows_of(12, 64))
        assert OURS.width not in mac.rows
