"""The best layout for each pair of tensor and pipeline degrees, or why there is none, as a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import log
from typing import TYPE_CHECKING

from cost_models.axes.axis import divisors
from cost_models.axes.layout import Layout
from cost_models.errors import DoesNotFitError, InfeasibleError
from cost_models.estimate import Estimate
from cost_models.question import MixedQuestion, Question
from planner.search.budget import Budget
from planner.search.pools import count_layouts
from planner.space.layouts import Restrictions, legal_space
from planner.space.limits import left_out

if TYPE_CHECKING:
    import pandas as pd

BETWEEN = " / "
"""Parts the reasons of one pair."""
MOST_DEGREES = 10
"""Of one axis; of more those that are powers of two, and the plan's own."""


def heatmap_frame(
    question: Question,
    chosen: Estimate | None = None,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> pd.DataFrame:
    """A row for each pair of `tp` and `pp`: `layout`, `mfu`, `step_seconds`, `peak_bytes` and `gap` of the best layout
    with them, NaN where there is none.

    `reason` says why there is none: `memory` (then `peak_bytes` is that of the layout that comes closest), `rule`,
    `limit` where plans are not searched for unless asked (`planner.space.limits`), or `time` where the budget was
    spent; `why` says it in words, every rule between slashes. `chosen` marks the pair of a plan. What the restrictions
    say of both degrees is left aside, all else holds. Degrees are those that divide the GPUs: `tp` those that divide a
    node and the first over nodes, `pp` up to the first beyond the blocks.
    """
    import pandas as pd

    limits, spending = (restrictions or Restrictions()).without(("tp", "pp")), budget or Budget()
    own = None if chosen is None else (chosen.layout.tp, chosen.layout.pp)
    cluster, model = question.cluster, question.model
    whole = divisors(cluster.num_gpus)
    of_a_node = [one for one in whole if one > cluster.gpus_per_node or cluster.gpus_per_node % one == 0]
    tps = _degrees(of_a_node, cluster.gpus_per_node, own and own[0])
    pps = _degrees(whole, model.num_layers, own and own[1])
    pairs = list(product(tps, pps))
    if own is not None:  # where time runs out, what is far from the plan is left
        pairs.sort(key=lambda pair: abs(log(pair[0] / own[0])) + abs(log(pair[1] / own[1])))
    rows: list[dict[str, object]] = []
    with spending.spaces.shared():
        _ = isinstance(question, MixedQuestion) or legal_space(limits.held(question), limits)
    for tp, pp in pairs:
        spending.tell(f"tp{tp} pp{pp} ({len(rows) + 1} of {len(pairs)})")
        untried = () if own and tp == own[0] else left_out(question, limits, Layout(tp=tp))
        row = {"tp": tp, "pp": pp, **_cell(question, tp, pp, limits, untried, spending)}
        rows.append({**row, "chosen": (tp, pp) == own})
    return pd.DataFrame(rows).sort_values(["tp", "pp"], ignore_index=True)


def _cell(
    question: Question, tp: int, pp: int, limits: Restrictions, untried: Sequence[str], budget: Budget
) -> dict[str, object]:
    """The best layout with both degrees, or why there is none; `untried` is why a plan would not be searched there."""
    within = replace(limits, only={**limits.only, "tp": frozenset({tp}), "pp": frozenset({pp})})
    nothing = dict.fromkeys(("mfu", "step_seconds", "peak_bytes", "gap"), float("nan"))
    if untried and count_layouts(question, within):
        return {"layout": "", **nothing, "reason": "limit", "why": untried[0]}
    try:
        found = budget.search(question, within, effort="bounds")
    except DoesNotFitError as error:
        why = BETWEEN.join(f"{one.where}: {one.what}" for one in error.problems)
        return {"layout": "", **nothing, "peak_bytes": error.least_bytes, "reason": "memory", "why": why}
    except InfeasibleError as error:
        why = BETWEEN.join(one.what for one in error.problems) or error.headline
        return {"layout": "", **nothing, "reason": "rule", "why": why}
    if found is None:
        return {"layout": "", **nothing, "reason": "time", "why": "time ran out"}
    best = found.best
    return {
        "layout": best.layout.brief,
        "mfu": best.mfu,
        "step_seconds": best.step_seconds,
        "peak_bytes": best.peak_bytes,
        "gap": found.certificate.gap,
        "reason": "",
        "why": "",
    }


def _degrees(whole: Sequence[int], most: int, own: int | None) -> Sequence[int]:
    """Those up to a number, the plan's own, and the first beyond."""
    beyond = [one for one in whole if one > most][:1]
    within = [one for one in whole if one <= most]
    if len(within) > MOST_DEGREES:
        within = [one for one in within if one & (one - 1) == 0 or one == own]
    return sorted({*within, *beyond, *([] if own is None else [own])})
