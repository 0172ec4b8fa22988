"""Bounds of a core and variant in each of its shapes, before any of them is written out: most never are.

They take the costs that the shapes share, let every block have the fastest policy, and ask what the pipeline of a
shape does with them. A schedule whose stages are priced by other rules gets no bound of its own here.
"""

from __future__ import annotations

import numpy as np

from cost_models.axes.columns import Ints
from cost_models.schedules import REGISTRY
from planner.bounds.relaxed import Floats, Passes
from planner.bounds.step import pipeline_seconds


def shape_bounds(passes: Passes, *, pp: Ints, shapes: Ints, microbatches: Ints, num_layers: int) -> Floats:
    """(N,) seconds that no placement in (N, 2) shapes (vpp and schedule) undercuts.

    One stage a rank: the paths of `planner.bounds.step`, all work shared evenly but for whole blocks. Several chunks:
    every rank holds all of them with the fewest blocks the search covers, and the last rank waits for the others.
    """
    x, m, (vpp, schedule) = passes, microbatches, shapes.T
    block, stage = x.forward + x.backward, x.stage_forward + x.stage_backward
    work = num_layers * block + x.embedding + x.head + pp * stage
    cycle = work + 2 * (pp - 1) * x.p2p
    busiest = np.maximum(work / pp, stage + -(-num_layers // pp) * block)
    chunk = stage + num_layers // (pp * vpp) * block
    waits = (pp - 1) * (chunk + 2 * x.p2p) + m * (vpp * chunk + x.head)
    in_chunks = np.maximum(m * (vpp * chunk + x.embedding), waits)
    seconds = np.zeros(len(pp))
    for number, (name, known) in enumerate(REGISTRY.items()):
        if known.is_plain or known.goes_round:
            own = pipeline_seconds(name, pp, m, cycle, busiest) if known.is_plain else in_chunks
            seconds = np.where(schedule == number, own + x.follows, seconds)
    return seconds
