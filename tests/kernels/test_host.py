"""What the host does for a launch: MLX writes a kernel's text once for each set of shapes."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from kernel_checks import GENERIC

from dflash_mlx.kernels import verify_attention
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import RECORDED, MetalLauncher, Source
from dflash_mlx.selfcheck.trials import TRIALS, Trial

ROWS, LAYERS = 5, 3


@pytest.fixture
def host_time(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "measure"))
    return import_module("host_time")


class Counted(MetalLauncher):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __call__(self, source: Source, *args: Any, **call: Any) -> list[mx.array]:
        self.texts.append(source.name)
        return super().__call__(source, *args, **call)


class Forgetful(Counted):
    """Keeps nothing, as a fault."""

    def recorded(self, function: Callable[..., Any], kind: Any) -> Callable[..., Any]:
        return lambda *args: function(self, *args)


def built(run: Callable[[], Any]) -> None:
    """Run where launches are recorded on any machine; nothing is traced or computed."""

    def inside(unused: mx.array) -> mx.array:
        run()
        return unused

    mx.export_function(lambda _: None, inside, mx.zeros((1,)))


def verifies(target: Any, launcher: Counted, rows: Sequence[int]) -> list[int]:
    """The texts written for verifies of so many rows, one after another."""
    found: list[int] = []
    target.kernels = Kernels(launcher)

    def run() -> None:
        for count in rows:
            held, tokens = target.make_cache(), mx.zeros((1, count), mx.int32)
            mx.eval(tokens)
            before = len(launcher.texts)
            target.forward(tokens, held)
            found.append(len(launcher.texts) - before)

    built(run)
    return found


def test_a_kernel_is_written_once_for_each_number_of_rows(host_time: Any) -> None:
    """All layers and all later verifies use the same text: a product of each shape, attention."""
    first, again, other, back = verifies(
        host_time.narrow_target(LAYERS), Counted(), (ROWS, ROWS, 7, ROWS)
    )
    assert 0 < first == other < 2 * 7
    assert again == back == 0


@pytest.mark.parametrize("trial", [t for t in TRIALS if not t.recorded], ids=lambda t: t.name)
def test_launches_share_their_texts(trial: Trial) -> None:
    """They are written once for each number of rows: the first time, for all layers and rounds."""
    case = trial.fitting(GENERIC)[-1]

    def texts(launcher: Counted) -> int:
        built(lambda: [trial.op.launch(launcher, *case) for _ in range(LAYERS)])
        return len(launcher.texts)

    assert texts(Forgetful()) == LAYERS * texts(Counted()) > 0


class Lazy(MetalLauncher):
    """Computes products of packed weights by MLX, as part of its graph, as a Mac would."""

    def __call__(self, source: Source, inputs: Any, **call: Any) -> list[mx.array]:
        given = dict(call["template"])
        x, *packed = inputs[:4]
        weight, scales, biases = packed
        out = mx.quantized_matmul(x, weight, scales, biases, True, given["Group"], given["Bits"])
        return [out if not given["Biased"] else out + inputs[4]]


def test_what_is_kept_has_the_arrays_of_each_call(host_time: Any) -> None:
    """Each layer's own weights, those that it has now, and its rows; the bits are MLX's."""
    target, tokens = host_time.narrow_target(LAYERS), mx.array([[5, 3, 9, 4, 1]])

    def logits(kernels: Kernels) -> mx.array:
        target.kernels = kernels
        held = target.make_cache()
        target.forward(tokens + 7, held)
        return target.forward(tokens, held)[0]

    for factor in (1.0, 1.25):
        down: Any = target.model.layers[1].mlp.down_proj
        down.scales = down.scales * factor
        stock = logits(Kernels())
        ours = logits(Kernels(Lazy(), on=frozenset({"small_m_qmm"})))
        assert mx.array_equal(ours, stock)


def test_few_functions_are_kept() -> None:
    """Each capacity of a cache has its own; the oldest are forgotten."""
    launcher = MetalLauncher()
    kept = [launcher.recorded(verify_attention.attend, size) for size in range(RECORDED)]
    assert launcher.recorded(verify_attention.attend, 0) is kept[0]
    launcher.recorded(verify_attention.attend, RECORDED)
    assert launcher.recorded(verify_attention.attend, 0) is kept[0]
    assert launcher.recorded(verify_attention.attend, 1) is not kept[1]
    assert len(launcher._recorded) == RECORDED


@pytest.mark.parametrize("rows", [1, 4])
def test_the_example_measures(rows: int, host_time: Any) -> None:
    stock, target = (host_time.narrow_target(1) for _ in range(2))
    target.kernels = Kernels(MetalLauncher())
    assert host_time.milliseconds(stock, target, rows) > 0
