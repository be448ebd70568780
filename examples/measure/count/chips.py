"""The chips: what MLX asks of a GPU before it picks a kernel."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """A GPU. generation and size stand in its architecture's name: 13 and g in applegpu_g13g.

    size: g is a base chip, s a Pro or a Max, d an Ultra. A comment in device.cpp calls g "base,
    pro", but an M2 Pro is an applegpu_g14s and an M4 Pro an applegpu_g16s, as their owners report.
    """

    name: str
    generation: int
    size: str

    @property
    def nax(self) -> bool:
        """Whether it has matrix units, which MLX uses from macOS 26.2 on (is_nax_available)."""
        return self.generation >= 17

    @property
    def large(self) -> bool:
        """Whether it is larger than a base chip."""
        return self.size in "sd"

    @property
    def buffer_limit(self) -> int:
        """Dispatches, and Mi elements, that a command buffer holds (device.cpp, Device::Device)."""
        return 50 if self.large else 40


CHIPS = tuple(
    Chip(f"M{number}{suffix}", generation, size)
    for number, generation in ((1, 13), (2, 14), (3, 15), (4, 16), (5, 17))
    for suffix, size in (("", "g"), (" Pro", "s"), (" Max", "s"), (" Ultra", "d"))
    if size != "d" or number <= 3  # no M4 Ultra nor M5 Ultra was sold
)


def chip_named(name: str) -> Chip:
    """The chip of that name, like "M4 Max". Raises ValueError for another."""
    found = [chip for chip in CHIPS if chip.name.lower() == name.lower()]
    if not found:
        raise ValueError(f"no chip is called {name!r}: {', '.join(chip.name for chip in CHIPS)}")
    return found[0]
