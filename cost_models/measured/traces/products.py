"""Matrix products of a trace: kernels joined with the operators that launched them, which tell their shapes."""

from __future__ import annotations

import re
from array import array
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cost_models.arrays import Ints
from cost_models.measured.traces.events import Columns, Event, whole_number
from cost_models.measured.traces.step_parts import patterns

_OPERATORS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1, "aten::_scaled_mm": 0}
"""Operator → index of the first factor among the inputs; the second follows."""
_RUNTIME = ("cuda_runtime", "cuda_driver")
"""Categories of launches; ROCm's are called alike."""
_MAX_EVENTS, _MAX_NAMES = 2_000_000, 100_000


class Product(NamedTuple):
    """Shape of a matrix product, `batch` times (rows, inner) x (inner, columns)."""

    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> float:
        """FLOPs of the product, summed over the batch."""
        return 2.0 * self.batch * self.rows * self.inner * self.columns

    def __str__(self) -> str:
        words = f"{self.rows} x {self.inner} x {self.columns}"
        return words if self.batch == 1 else f"{self.batch} x ({words})"


@lru_cache(maxsize=_MAX_NAMES)
def _multiplies(name: str) -> bool:
    """Whether a kernel multiplies matrices, by its name."""
    return bool(re.search(patterns().kernels["compute"][0], name.lower()))


class Products:
    """Matrix-product kernels of a trace, collected with the launches and operators that tell their shapes."""

    def __init__(self) -> None:
        self._shapes: dict[Product, int] = {}
        self._operators = Columns("qi")
        """Id of an operator, and number of its shape."""
        self._launches = Columns("qq")
        """Number of a launch, and id of its operator."""
        self._kernels = Columns("qd")
        """Id of a kernel's operator, or minus the number of its launch; and its seconds."""

    def add_kernel(self, event: Event) -> None:
        """Add a kernel if it multiplies matrices."""
        if event.category == "kernel" and len(self._kernels) < _MAX_EVENTS and _multiplies(event.name):
            operator, launch = (
                whole_number(event.details.get(key)) for key in ("External id", "correlation")
            )
            if operator or launch:
                self._kernels.append(operator or -launch, event.seconds)

    def add_operator(self, event: Event) -> None:
        """Record a trace event if it is an operator that multiplies matrices, or a kernel launch."""
        operator = whole_number(event.details.get("External id"))
        if event.category == "cpu_op" and event.name in _OPERATORS and len(self._operators) < _MAX_EVENTS:
            if operator and (shape := _shape(event.details.get("Input Dims"), _OPERATORS[event.name])):
                self._operators.append(operator, self._shapes.setdefault(shape, len(self._shapes)))
        elif event.category in _RUNTIME and operator and len(self._launches) < 10 * _MAX_EVENTS:
            self._launches.append(whole_number(event.details.get("correlation")), operator)

    def seconds_by_shape(self) -> dict[Product, array[float]]:
        """Shape of a matrix product → seconds of each of its kernels in the trace."""
        kernel, seconds = self._kernels.arrays()
        launched = _values_of(-kernel, *self._launches.arrays(), none=0)
        operator = np.where(kernel < 0, launched, kernel)
        shape = _values_of(operator, *self._operators.arrays(), none=-1)
        shapes = list(self._shapes)
        numbers = dict.fromkeys(shape[shape >= 0].tolist())
        return {shapes[number]: array("d", seconds[shape == number]) for number in numbers}


def _values_of(keys: Ints, known_keys: Ints, values: Ints, *, none: int) -> Ints:
    """Look up each of `keys` in `known_keys` and return its value, the last where there are several; `none`
    for unknown keys."""
    if not len(known_keys):
        return np.full(len(keys), none)
    order = np.argsort(known_keys, kind="stable")
    place = np.searchsorted(known_keys, keys, side="right", sorter=order) - 1
    indices = order[np.maximum(place, 0)]
    return np.where(known_keys[indices] == keys, values[indices], none)


def _shape(dims: Any, first: int) -> Product | None:
    """Shape of the matrix product of two inputs with dimensions `dims`, from the input `first` on; None where
    they do not fit."""
    pair = dims[first : first + 2] if isinstance(dims, list) else []
    sized = (isinstance(one, list) and len(one) in (2, 3) and all(map(whole_number, one)) for one in pair)
    if len(pair) < 2 or not all(sized):
        return None
    left, right = pair
    if len(left) != len(right) or left[-1] != right[-2]:
        return None
    return Product(left[0] if len(left) == 3 else 1, left[-2], left[-1], right[-1])
