"""The timed runs that a profile rests on, and how well predictions tell two layouts of one question apart.

What one cluster and one release share (clocks, fabric, kernels) cancels in the ratio of two times of one sweep, so its
error is smaller than that of either. It grows with the square root of the number n of axes on which the layouts differ,
as if each axis brought an error of its own: over the published sweeps its median is 5 % on one axis, 7 % on two, 9 % on
three. So one figure says it all, the median of |error of the ratio| / √n.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from cost_models.axes.layout import COMPARED, Layout, axes_that_differ, axis_value
from cost_models.measured.runs.cases import Case
from cost_models.measured.validation.scores import sweep_of
from cost_models.specs.hardware import TimedRuns

FEWEST_PAIRS = 10
"""Fewest pairs of runs that such an error is claimed from."""


def pair_error(cases: Sequence[Case], errors: Mapping[str, float]) -> float | None:
    """Median |error of the ratio| / √n over the pairs of layouts in the sweeps of `cases`; None where they are few.

    `errors` are predicted / measured − 1 by run. Every sweep weighs as much as it has runs, not pairs.
    """
    sweeps: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for case in cases:
        sweeps[(case.row.source, *sweep_of(case.row))].append(case)
    sizes, weights = [], []
    for runs in sweeps.values():
        for one, other in combinations(runs, 2):
            if axes := axes_that_differ(one.layout, other.layout):
                ratio = (1 + errors[one.row.row_id]) / (1 + errors[other.row.row_id])
                sizes.append(abs(np.log(ratio)) / len(axes) ** 0.5)
                weights.append(1 / (len(runs) - 1))
    if len(sizes) < FEWEST_PAIRS:
        return None
    order = np.argsort(sizes)
    below = np.cumsum(np.array(weights)[order])
    return float(np.array(sizes)[order][np.searchsorted(below, below[-1] / 2)])


_PLAINEST = Layout()


def timed_runs(cases: Sequence[Case], errors: Mapping[str, float]) -> tuple[TimedRuns, ...]:
    """The runs of each (source, GPU, stack), in order of first appearance; `errors` are by run."""
    groups: dict[tuple[str, str, str], list[Case]] = defaultdict(list)
    for case in cases:
        question = case.question
        groups[(case.row.source, question.cluster.gpu.name, question.stack.name)].append(case)
    return tuple(_of(*names, members, errors) for names, members in groups.items())


def _of(source: str, gpu: str, stack: str, members: Sequence[Case], errors: Mapping[str, float]) -> TimedRuns:
    gpus = [one.layout.num_gpus for one in members]
    used = {}
    for name in COMPARED:
        values = {axis_value(name, one.layout) for one in members}
        if values != {axis_value(name, _PLAINEST)}:
            used[name] = " ".join(sorted(values, key=lambda text: (len(text), text)))
    return TimedRuns(
        source=source,
        gpu=gpu,
        stack=stack,
        runs=len(members),
        median_error=round(float(np.median([abs(errors[one.row.row_id]) for one in members])), 4),
        fewest_gpus=min(gpus),
        most_gpus=max(gpus),
        axes=used,
    )
