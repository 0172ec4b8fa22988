"""Any run of elements of a tensor is a few boxes, which cover it once and lie in memory in order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from executor.boxes import Box, boxes_of_range
from executor.checkpoints.checkpointer import uncovered


@given(data=st.data(), shape=st.lists(st.integers(1, 5), max_size=4).map(tuple))
def test_boxes_are_the_range(data: st.DataObject, shape: tuple[int, ...]) -> None:
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    begin = data.draw(st.integers(0, whole.size))
    end = data.draw(st.integers(begin, whole.size))
    boxes = boxes_of_range(shape, begin, end)
    pieces = [
        whole[tuple(slice(at, at + size) for at, size in zip(box.offsets, box.sizes, strict=True))]
        for box in boxes
    ]
    elements = np.concatenate([piece.reshape(-1) for piece in pieces]) if pieces else np.empty(0)
    assert elements.tolist() == list(range(begin, end))
    assert sum(box.elements for box in boxes) == end - begin
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_a_box_is_moved_to_where_its_tensor_lies() -> None:
    assert boxes_of_range((4, 8), 8, 24)[0].shifted((4, 0)) == Box((5, 0), (2, 8))


@given(data=st.data(), shape=st.lists(st.integers(1, 4), max_size=3).map(tuple))
def test_what_boxes_leave_is_found(data: st.DataObject, shape: tuple[int, ...]) -> None:
    """A box that none of them holds, the first element that is missing at its begin; None where nothing is."""
    covered, boxes = np.zeros(shape, dtype=bool), []
    for _ in range(data.draw(st.integers(0, 6))):
        offsets = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
        sizes = tuple(data.draw(st.integers(0, size - at)) for size, at in zip(shape, offsets, strict=True))
        boxes.append(Box(offsets, sizes))
        covered[_slices(boxes[-1])] = True
    missing = uncovered(shape, boxes)
    if covered.all():
        assert missing is None
    else:
        assert missing is not None
        assert not covered[_slices(missing)].any()
        assert missing.elements > 0
        assert missing.offsets == tuple(np.argwhere(~covered)[0])


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(box.offsets, box.sizes, strict=True))
