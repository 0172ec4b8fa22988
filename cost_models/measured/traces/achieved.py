"""What products and collectives of a job's traces reached, by shape and size, beside what its profile expects.

A collective's kernel runs while its rank waits for the others; the shortest of a kind's is the nearest to its own time.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication import collectives
from cost_models.communication.topology import Groups, axis_groups, group_of
from cost_models.compute.gemm import device_of, gemm_seconds
from cost_models.measured.traces.exchanges import Exchange
from cost_models.measured.traces.job import Job
from cost_models.measured.traces.products import Product
from cost_models.measured.traces.step_parts import AXES
from cost_models.question import Question

_PRICES: dict[str, Callable[..., Array]] = {
    "all_reduce": collectives.all_reduce_seconds,
    "all_gather": collectives.all_gather_seconds,
    "reduce_scatter": collectives.reduce_scatter_seconds,
    "broadcast": collectives.broadcast_seconds,
    "all_to_all": collectives.all_to_all_seconds,
}


class Achieved(NamedTuple):
    """Kernels of one shape or size."""

    axis: str
    """Of a collective; "" of a product."""
    what: str
    """Shape of a product, operation of a collective."""
    ranks: int
    """Of a collective; else 0."""
    message_bytes: float
    """Of the whole tensor; of a product 0."""
    kernels: int
    """On one rank: in the trace, of collectives in a step."""
    seconds: float
    """Of one: the median, of collectives of the shortest over ranks."""
    predicted: float
    """By the profile; 0: not told, as where no size is."""
    rate: float
    """FLOP/s of a product; of a collective message bytes a second."""

    @property
    def excess(self) -> float:
        """Seconds beyond the profile's of all of them."""
        return self.kernels * (self.seconds - self.predicted) if self.predicted else 0.0


def products(job: Job, question: Question) -> list[Achieved]:
    """Products by shape, those first that lose most."""
    device = device_of(question)
    times: dict[Product, array[float]] = {}
    for rank in job.traced:
        for product, seconds in rank.products.items():
            times.setdefault(product, array("d")).extend(seconds)
    ranks = len(job.traced)
    found = []
    for product, seconds in times.items():
        batch, rows, inner, columns = (np.array([float(one)]) for one in product)
        predicted = float(gemm_seconds(rows, columns, inner, device, batch)[0])
        found.append(_product(product, seconds, ranks, predicted))
    return sorted(found, key=lambda one: -one.excess)


def _product(product: Product, seconds: Sequence[float], ranks: int, predicted: float) -> Achieved:
    usual = median(seconds)
    return Achieved(
        axis="",
        what=str(product),
        ranks=0,
        message_bytes=0.0,
        kernels=-(-len(seconds) // ranks),
        seconds=usual,
        predicted=predicted,
        rate=product.flops / usual if usual else 0.0,
    )


def exchanged(job: Job, question: Question, layout: Layout) -> list[Achieved]:
    """Collectives of a step by axis, operation and size, those first that lose most."""
    every: dict[tuple[str, str, int, float], list[list[float]]] = defaultdict(list)
    for rank in job.traced:
        for kind, times in rank.exchanges.items():
            if kind.operation and kind.axis in AXES:
                key = (kind.axis, kind.operation, _size(kind, layout), kind.message_bytes)
                every[key].append([seconds for _, seconds in times])
    found = []
    for (axis, operation, size, message), own in every.items():
        usual = min(median(each) for each in own)
        price, groups = _PRICES.get(operation), _groups(axis, size, question, layout)
        told = price is not None and message > 0 and groups is not None
        predicted = float(price(message, groups, question.hardware)[0]) if told and price else 0.0
        count = max(len(each) for each in own)
        rate = message / usual if usual else 0.0
        found.append(Achieved(axis, operation, size, message, count, usual, predicted, rate))
    return sorted(found, key=lambda one: (-one.excess, -one.kernels * one.seconds))


def _size(kind: Exchange, layout: Layout) -> int:
    return kind.size or int(getattr(layout, kind.axis))


def _groups(axis: str, size: int, question: Question, layout: Layout) -> Groups | None:
    """The links of the groups of an axis; of those of another size, neighbours; None where there are not as many."""
    own: Groups = getattr(axis_groups(question.cluster, LayoutColumns.of([layout])), axis)
    if int(own.size[0]) == size:
        return own
    return group_of(question.cluster, size) if 1 < size <= question.cluster.num_gpus else None
