"""Boxes: axis-aligned parts of a tensor, and the contiguous memory that they consist of."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Box:
    """`sizes` elements from `offsets` on, along every dim."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements the box holds; a scalar is one."""
        return prod(self.sizes)

    def shifted(self, by: tuple[int, ...]) -> Box:
        """This box in a tensor that contains the box's tensor at offset `by`."""
        offsets = tuple(offset + shift for offset, shift in zip(self.offsets, by, strict=True))
        return Box(offsets, self.sizes)


def boxes_of_range(shape: tuple[int, ...], begin: int, end: int) -> list[Box]:
    """Elements `begin` to `end` − 1 of a tensor of `shape`, row by row, as boxes in their order in memory."""
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
    return [Box((row, *box.offsets), (1, *box.sizes)) for box in boxes_of_range(shape[1:], begin, end)]
