"""Which pipeline ranks lie in which pool of GPUs: marks beside the ranks of a chart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from matplotlib.axes import Axes

from meshwright.plots.parts import style


class PoolSpan(NamedTuple):
    """Neighbouring pipeline ranks of one pool."""

    name: str
    first: int
    last: int


def pool_spans(pools: Sequence[str]) -> list[PoolSpan]:
    """The pool of each rank → spans of ranks; none where there is one pool only, or none is named."""
    spans: list[PoolSpan] = []
    for name, run in groupby(pools):
        first = spans[-1].last + 1 if spans else 0
        spans.append(PoolSpan(name, first, first + len(list(run)) - 1))
    return spans if len(spans) > 1 else []


def mark_along_x(axes: Axes, spans: Sequence[PoolSpan]) -> None:
    """Ranks across: names at the top, a line between pools."""
    for span in spans:
        middle = (span.first + span.last) / 2
        across = axes.get_xaxis_transform()
        axes.text(
            middle, 0.985, span.name, transform=across, ha="center", va="top", color=style.SOFT, weight="bold"
        )
        if span.first:
            axes.axvline(span.first - 0.5, color=style.GREY, linewidth=0.9)


def mark_along_y(axes: Axes, spans: Sequence[PoolSpan], *, named: bool) -> None:
    """Ranks downwards: names right of the chart, a line between pools."""
    for span in spans:
        if named:
            axes.text(
                1.008,
                (span.first + span.last) / 2,
                span.name,
                transform=axes.get_yaxis_transform(),
                rotation=270,
                va="center",
                color=style.SOFT,
                weight="bold",
            )
        if span.first:
            axes.axhline(span.first - 0.5, color=style.GREY, linewidth=0.9)
