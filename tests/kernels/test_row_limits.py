"""MLX's row limits by chip, how often a product reads its weights, and where padding is tried."""

from types import SimpleNamespace

import pytest
from ledger.products import reads

from dflash_mlx import device
from dflash_mlx.device import Chip, check_macos, has_matrix_units
from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.row_limits import matrix_rows, padding

SIZES = (2048, 4096, 4097)


def chip(name: str) -> Chip:
    found = Chip.of(f"applegpu_{name}")
    assert found is not None
    return found


def test_16_bits_have_one_limit_on_newer_chips() -> None:
    """An M2 multiplies two rows as a matrix; so does an M3 if K is no multiple of 4."""
    assert matrix_rows(chip("g16s"), 4096, 4096, quantised=False) == 16
    assert matrix_rows(chip("g16s"), 4096, 4095, quantised=False) == 2
    assert matrix_rows(chip("g14s"), 4096, 4096, quantised=False) == 2


@pytest.mark.parametrize("name", ["g15s", "g15d", "g16g", "g17g", "g17s"])
@pytest.mark.parametrize("mode", ["affine", "mxfp4", ""])
def test_padded_rows_are_read_less_often(name: str, mode: str) -> None:
    paddings = {size: padding(chip(name), size, size, mode) for size in SIZES}
    assert any(paddings.values())
    for size, found in paddings.items():
        if found is not None:
            once = reads(chip(name), found.width, size, size, mode)
            for rows in range(found.least, found.width):
                assert once < reads(chip(name), rows, size, size, mode)


@pytest.mark.parametrize("name", ["g13g", "g14d"])
def test_older_chips_pad_nothing(name: str) -> None:
    """Before M3 there are no shared reads to gain; at 16 bits no vectors to leave."""
    assert not any(
        padding(chip(name), size, size, mode) for size in SIZES for mode in ("affine", "")
    )


def test_names_of_other_gpus() -> None:
    """A virtual machine's has no letter at its end; a processor is no chip."""
    assert Chip.of("air64_v27") is None
    assert Chip.of("x86_64") is None
    assert not has_matrix_units("x86_64")
    assert has_matrix_units("applegpu_g17g")
    assert not has_matrix_units("applegpu_g17p")


@pytest.mark.parametrize(
    ("chip", "version", "refused"),
    [
        ("applegpu_g17s", "26.1", True),
        ("applegpu_g17s", "26.0.1", True),
        ("applegpu_g17s", "26.2", False),
        ("applegpu_g17s", "27.0", False),
        ("applegpu_g16s", "26.1", False),
    ],
)
def test_an_m5_needs_a_macos_with_its_matrix_units(
    monkeypatch: pytest.MonkeyPatch, chip: str, version: str, refused: bool
) -> None:
    """MLX uses them on every macOS 26; a model is refused before it is read."""
    monkeypatch.setattr(device, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(device, "device_info", lambda: {"architecture": chip})
    asked = SimpleNamespace(run=lambda *_, **__: SimpleNamespace(stdout=f"{version}\n"))
    monkeypatch.setattr(device, "subprocess", asked)
    if refused:
        with pytest.raises(DFlashError, match=rf"need macOS 26\.2; this is macOS {version}"):
            check_macos()
    else:
        check_macos()
