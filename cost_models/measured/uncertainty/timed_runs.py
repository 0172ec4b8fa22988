"""What timed runs a profile rests on: of each source and stack how many, with which error, on which axes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from cost_models.axes.differing import COMPARED, axis_value
from cost_models.axes.layout import Layout
from cost_models.measured.runs.cases import Case
from cost_models.specs.hardware import TimedRuns

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
