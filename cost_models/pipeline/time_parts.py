"""Time terms: seconds by the part of a step that a user sees, their sum, and what jitter adds to them.

A term is `{part: seconds}`. Parts in `HIDDEN_PARTS` run behind others: they are shown, never added.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import TIME_PARTS as AXIS_PARTS
from cost_models.question import Question

Array = npt.NDArray[np.float64]
Term = dict[str, Array]

TIME_PARTS = (
    "compute",
    "recompute",
    "tp_comm",
    "cp_comm",
    "ep_comm",
    "pp_comm",
    "dp_comm",
    "optimizer",
    *AXIS_PARTS,
    "host",
    "jitter",
)
HIDDEN_AS = {f"{part}_hidden": part for part in AXIS_PARTS}
"""Names of hidden parts that are not communication of an axis."""
HIDDEN_PARTS = ("tp_hidden", "cp_hidden", "ep_hidden", "dp_hidden", *HIDDEN_AS)


def total(term: Term) -> Array:
    """Sum of the parts that take time of their own."""
    return sum((term[part] for part in TIME_PARTS if part in term), start=np.zeros(1))


def jitter(question: Question, columns: LayoutColumns) -> Array:
    """(N,) what stragglers and noise add, as a share: so much for each doubling of the nodes that a layout occupies.

    On a CPU also what else runs on its cores, and the turns that more processes than cores take. Rates are measured in
    a process's own time, which does not pass while another has its core.
    """
    cluster, profile = question.cluster, question.hardware
    doublings = np.log2(np.maximum(1.0, columns.ranks / cluster.gpus_per_node))
    stragglers = profile.jitter_per_doubling * doublings
    if cluster.gpu.kind != "cpu":
        return stragglers
    slowdown = (1.0 + stragglers) * (1.0 + profile.contention)
    if profile.measured_peak is not None and cluster.host_cores:
        here = np.minimum(columns.ranks, cluster.gpus_per_node)
        slowdown = slowdown * np.maximum(1.0, here / cluster.host_cores)
    return slowdown - 1.0


def with_jitter(term: Term, slowdown: Array) -> Term:
    """Adds what stragglers and noise cost, in proportion to the term."""
    seconds = total(term)
    return {**term, "jitter": (seconds.T * slowdown).T}
