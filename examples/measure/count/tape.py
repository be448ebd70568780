"""The dispatches of a pass, in order: what each reads and writes, and the buffers it names."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from .chips import Chip

MEBI = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """An array: a buffer of the GPU, or a view of one.

    elements: of the array; itemsize: bytes of each. contiguous: whether they lie in order without
    gaps, as MLX's flag row_contiguous. span: elements of memory from its first to its last (MLX's
    data_size); 0 means that there are no gaps. base: the array whose buffer it shares.
    """

    elements: int
    itemsize: int = 2
    contiguous: bool = True
    span: int = 0
    base: "Array | None" = None

    @property
    def bytes(self) -> int:
        """Bytes of its elements, without gaps."""
        return self.elements * self.itemsize

    @property
    def buffer(self) -> "Array":
        """The array that owns its buffer."""
        return self.base.buffer if self.base else self

    def view(self, elements: int = 0, *, contiguous: bool = True, span: int = 0) -> "Array":
        """A view of it, of all elements unless told."""
        return Array(elements or self.elements, self.itemsize, contiguous, span, self.buffer)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One launch of a kernel. read and written: bytes. more: another of its primitive follows."""

    op: str
    read: float
    written: int
    named: tuple[Array, ...]
    more: bool


@dataclass(slots=True)
class Tape:
    """The dispatches of one pass on one chip."""

    chip: Chip
    dispatches: list[Dispatch] = field(default_factory=list)

    def launch(
        self,
        op: str,
        taken: Iterable[Array],
        given: Array,
        *,
        read: float | None = None,
        more: bool = False,
    ) -> Array:
        """Launch a kernel that reads `taken` and writes `given`, which it returns.

        read: bytes, where it is not each array once. Broadcast scalars are not counted.
        """
        taken = tuple(taken)
        size = sum(one.bytes for one in taken) if read is None else read
        self.dispatches.append(Dispatch(op, size, given.bytes, (*taken, given), more))
        return given

    @property
    def read(self) -> float:
        """Bytes read."""
        return sum(one.read for one in self.dispatches)

    @property
    def written(self) -> int:
        """Bytes written."""
        return sum(one.written for one in self.dispatches)

    @property
    def buffers(self) -> int:
        """Command buffers of the pass.

        One is committed when, after a primitive, it holds more dispatches or more Mi elements than
        the chip's limit; every buffer that it names counts once, by elements and not by bytes
        (device.cpp, CommandEncoder::set_input_array and needs_commit, the second also in the
        wheel; eval.cpp, gpu::eval). The last is committed at the end (gpu::finalize).
        """
        limit = self.chip.buffer_limit
        committed = 0
        operations = 0
        elements = 0
        seen: set[int] = set()
        for one in self.dispatches:
            operations += 1
            for array in one.named:
                if id(array.buffer) not in seen:
                    seen.add(id(array.buffer))
                    elements += array.span or array.elements
            if not one.more and (operations > limit or elements // MEBI > limit):
                committed += 1
                operations = 0
                elements = 0
                seen.clear()
        return committed + 1
