"""MLX's row limits by chip, how often a product reads its weights, and where padding is tried."""

from types import SimpleNamespace

import pytest
from ledger.products import reads

from dflash_mlx import device
from dflash_mlx.device import Chip, check_macos, has_matrix_units
from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.row_limits import Padding, matrix_rows, padding

SIZES = (2048, 4096, 4097)


def chip(name: str) -> Chip:
    found = Chip.of(f"applegpu_{name}")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("g12p", (18, 12, 10)),
        ("g13g", (14, 10, 6)),
        ("g13s", (14, 10, 7)),
        ("g13d", (32, 18, 12)),
        ("g14g", (14, 10, 6)),
        ("g14s", (14, 10, 6)),
        ("g14d", (32, 18, 12)),
        ("g15g", (13, 15, 13)),
        ("g15s", (13, 15, 13)),
        ("g15d", (32, 18, 12)),
        ("g16g", (13, 15, 13)),
        ("g16s", (13, 15, 13)),
        ("g17g", (33, 25, 13)),
        ("g17s", (33, 25, 13)),
        ("g17d", (32, 18, 12)),
    ],
)
def test_the_limits_of_mlx(name: str, limits: tuple[int, ...]) -> None:
    """By the larger of rows and columns."""
    for size, limit in zip(SIZES, limits, strict=True):
        assert matrix_rows(chip(name), size, 64) == limit
        assert matrix_rows(chip(name), 64, size) == limit


def test_16_bits_have_one_limit_on_newer_chips() -> None:
    """An M2 multiplies two rows as a matrix; so does an M3 if K is no multiple of 4."""
    assert matrix_rows(chip("g16s"), 4096, 4096, quantised=False) == 16
    assert matrix_rows(chip("g16s"), 4096, 4095, quantised=False) == 2
    assert matrix_rows(chip("g14s"), 4096, 4096, quantised=False) == 2


def test_reads_of_the_weights() -> None:
    """Row by row before M3, once per five rows from there on, and once per 32 from the limit on."""
    assert [reads(chip("g13g"), rows, 4096, 12288) for rows in (1, 2, 5, 6, 32)] == [1, 2, 5, 1, 1]
    of = [reads(chip("g16s"), rows, 4096, 12288) for rows in (1, 5, 6, 10, 11, 12, 13, 32, 33)]
    assert of == [1, 1, 2, 2, 3, 3, 1, 1, 2]
    assert [reads(chip("g17s"), rows, 4096, 4096) for rows in (16, 24, 25)] == [4, 5, 1]
    assert reads(chip("g13g"), 5, 4096, 12288, "mxfp4") == 1
    assert [reads(chip("g16s"), rows, 4096, 4096, "") for rows in (5, 15, 16)] == [1, 3, 1]
    assert [reads(chip("g13g"), rows, 4096, 4096, "") for rows in (1, 2, 15)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "small", "medium", "large"),
    [
        ("g13g", None, None, None),
        ("g14d", None, None, None),
        ("g15s", (11, 13), (11, 15), (11, 13)),
        ("g16g", (11, 13), (11, 15), (11, 13)),
        ("g15d", (20, 32), (11, 18), (9, 12)),
        ("g17s", None, (16, 25), (11, 13)),
    ],
)
def test_where_padding_is_tried(name: str, small: object, medium: object, large: object) -> None:
    """Where a few more rows are read once, not three times; 33 rows are read twice anyway."""
    assert [padding(chip(name), size, size) for size in SIZES] == [small, medium, large]


def test_padding_of_16_bits() -> None:
    """From 16 rows on MLX multiplies as a matrix; before M3 there are no vectors to leave."""
    assert padding(chip("g17s"), 4096, 4096, "") == Padding(11, 16)
    assert padding(chip("g14s"), 4096, 4096, "") is None


@pytest.mark.parametrize("name", ["g15s", "g15d", "g16g", "g17g", "g17s"])
@pytest.mark.parametrize("mode", ["affine", "mxfp4", ""])
def test_padded_rows_are_read_less_often(name: str, mode: str) -> None:
    for size in SIZES:
        if found := padding(chip(name), size, size, mode):
            once = reads(chip(name), found.width, size, size, mode)
            for rows in range(found.least, found.width):
                assert once < reads(chip(name), rows, size, size, mode)


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
