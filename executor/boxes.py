"""Boxes: axis-aligned parts of a tensor, and how a contiguous run of a tensor's elements divides into boxes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Box:
    """Axis-aligned part of a tensor: `sizes` elements from `offsets` on, along every dim."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements of the box; 1 for a scalar."""
        return prod(self.sizes)

    def overlap(self, other: Box) -> Box | None:
        """Elements that this box and another of the same tensor have in common; None if there are none."""
        bounds = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        ranges = [(max(a, b), min(a + size, b + other_size)) for a, size, b, other_size in bounds]
        if any(begin >= end for begin, end in ranges):
            return None
        return Box(tuple(begin for begin, _ in ranges), tuple(end - begin for begin, end in ranges))

    def slices_in(self, outer: Box) -> tuple[slice, ...]:
        """Slices, along every dim, of a tensor that has the elements of box `outer`, which give this box."""
        begins = [offset - first for offset, first in zip(self.offsets, outer.offsets, strict=True)]
        return tuple(slice(begin, begin + size) for begin, size in zip(begins, self.sizes, strict=True))

    def shifted(self, by: tuple[int, ...]) -> Box:
        """This box as part of a larger tensor that contains the box's tensor at offset `by`."""
        offsets = tuple(offset + shift for offset, shift in zip(self.offsets, by, strict=True))
        return Box(offsets, self.sizes)


def boxes_of_range(shape: tuple[int, ...], begin: int, end: int) -> list[Box]:
    """Boxes, in memory order, that make up elements `begin` to `end` − 1 of a row-major tensor of `shape`."""
    if begin >= end:
        return []
    if not shape:
        return [Box((), ())]
    row = prod(shape[1:])
    first, last = begin // row, end // row  # the row `begin` is in, and the row that `end` does not complete
    if begin == first * row and end == last * row:
        return [Box((first,) + (0,) * (len(shape) - 1), (last - first, *shape[1:]))]
    if first == last:
        return _inside_row(shape, first, begin - first * row, end - first * row)
    boxes = []
    if begin > first * row:
        boxes += _inside_row(shape, first, begin - first * row, row)
        first += 1
    boxes += boxes_of_range(shape, first * row, last * row)
    return boxes + _inside_row(shape, last, 0, end - last * row)


def _inside_row(shape: tuple[int, ...], row: int, begin: int, end: int) -> list[Box]:
    """Boxes of elements `begin` to `end` − 1 of one row of a tensor of `shape`."""
    return [Box((row, *box.offsets), (1, *box.sizes)) for box in boxes_of_range(shape[1:], begin, end)]
