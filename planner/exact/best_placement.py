"""The best placement of one plain layout, proven."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from cost_models.schedules import CriticalPath
from planner.exact.ilp.one_layout import place_by_ilp
from planner.exact.labels.solving import place_by_labels
from planner.exact.labels.weighed import place_weighed
from planner.placement.leaf import Leaf, Placement
from planner.placement.solution import Solution
from planner.placement.weighed_leaf import WeighedLeaf


def best_placement(
    leaf: Leaf,
    *,
    incumbent: tuple[Placement, float] | None = None,
    cut_off: float = math.inf,
    met_paths: Sequence[CriticalPath] = (),
    time_limit: float | None = None,
) -> Solution:
    """Placement by label setting, or by the integer program where there are too many labels.

    A weighed leaf has no such program: it comes back `stopped` there.
    """
    if isinstance(leaf, WeighedLeaf):
        return place_weighed(leaf, incumbent=incumbent, cut_off=cut_off, time_limit=time_limit)
    start = time.monotonic()
    found = place_by_labels(
        leaf, incumbent=incumbent, cut_off=cut_off, met_paths=met_paths, time_limit=time_limit
    )
    if found is None:
        left = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - start))
        found = place_by_ilp(leaf, incumbent=incumbent, cut_off=cut_off, met_paths=met_paths, time_limit=left)
    return found
