"""What is known of a schedule without its table: which rank holds which stage, and whether backward is split."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import SCHEDULES, V_SHAPED, Schedule
from cost_models.axes.recompute import RECOMPUTE_POLICIES, Recompute

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SPLIT_BACKWARD: frozenset[Schedule] = frozenset({"zero-bubble", "zbv", "dualpipev"})
"""Schedules that run the two halves of a backward pass, towards input and weights, at different times."""


ALWAYS_SPLIT: frozenset[Schedule] = frozenset({"zero-bubble", "zbv"})
"""Those of them that split every backward pass; DualPipeV does so in warm-up and cool-down only."""

KEEPS_ALL_LOGITS: frozenset[Schedule] = frozenset({"gpipe", "dualpipev"})
"""Schedules that run something else between the forward and the backward pass of the head."""


def always_split(columns: LayoutColumns) -> Bools:
    """(N,): layouts whose schedule splits every backward pass."""
    return _is_one_of(columns, ALWAYS_SPLIT)


def turns_at_once(columns: LayoutColumns) -> Bools:
    """(N,): layouts whose head runs the whole backward pass of a microbatch directly after its forward pass."""
    return ~_is_one_of(columns, ALWAYS_SPLIT | KEEPS_ALL_LOGITS)


def keeps_all_logits(columns: LayoutColumns) -> Bools:
    """(N,): layouts whose schedule runs something else in between."""
    return _is_one_of(columns, KEEPS_ALL_LOGITS)


def v_shaped(columns: LayoutColumns) -> Bools:
    """(N,): layouts whose first and last stage are on one rank of several."""
    return _is_one_of(columns, V_SHAPED)


def _is_one_of(columns: LayoutColumns, some: frozenset[Schedule]) -> Bools:
    return np.isin(columns.schedule, [SCHEDULES.index(schedule) for schedule in sorted(some)])


def rank_of_stage(schedule: Schedule, pp: int, vpp: int) -> Ints:
    """(S,): the pipeline rank that holds each virtual stage.

    Stages go round the ranks, chunk after chunk; in a V they go down and come back up, so stages pp − 1 and pp
    are neighbours on one rank.
    """
    chunk_S, place_S = np.divmod(np.arange(pp * vpp), pp)
    if schedule in V_SHAPED:
        return np.where(chunk_S % 2 == 1, pp - 1 - place_S, place_S)
    return place_S


def stages_of_rank(schedule: Schedule, pp: int, vpp: int) -> Ints:
    """(R, V): the virtual stages of each pipeline rank, in model order."""
    return np.argsort(rank_of_stage(schedule, pp, vpp), kind="stable").reshape(pp, vpp)


def allowed_recompute(schedule: Schedule) -> tuple[Recompute, ...]:
    """The recompute policies that a schedule's stages may use.

    PyTorch recomputes a checkpointed region for every piece of its backward pass. A split one has a piece for each
    parameter: whole blocks would be recomputed about seven times, and per-operator policies refuse the second time.
    """
    return ("none",) if schedule in SPLIT_BACKWARD else RECOMPUTE_POLICIES
