"""Trade-offs as data frames: every layout as a cloud of memory and throughput, and exact frontiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.estimate import Estimate
from cost_models.estimating import estimate as price
from cost_models.memory.device import memory_limit
from cost_models.question import Question
from cost_models.specs.columns import Ints, LayoutColumns
from cost_models.specs.layout import Layout
from cost_models.specs.recompute import RECOMPUTE_POLICIES
from cost_models.workload.flops import model_flops
from planner.balanced import BalancedPrices, Floats, balanced_prices, even_layers
from planner.budget import Budget
from planner.cloud import cloud
from planner.objectives import Objective
from planner.pareto import POINTS, Frontier, exact_frontier
from planner.restrictions import Restrictions

if TYPE_CHECKING:
    import pandas as pd

MAX_EXACT = 40
"""Points of the Pareto line that are priced exactly."""


def frontier_frame(
    question: Question,
    chosen: Estimate | None = None,
    *,
    exact: bool = False,
    points: int | None = POINTS,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> pd.DataFrame:
    """A cloud of legal layouts under every recompute policy, cheaply priced, and the Pareto line of memory and time.

    A row per layout and policy: `layout`, `peak_bytes` of the fullest device, `step_seconds`, `tokens_per_second`,
    `mfu`, `fits`, `pareto` (nothing that fits is both smaller and faster), `chosen`. Blocks are spread evenly, except
    in the chosen plan. With `exact` the line is that of `planner.pareto` over all placements, with at most `points`
    points (None: all of them); without it, the best of the evenly placed ones, priced in full.

    Raises:
        InfeasibleError: `exact`, and nothing fits.
    """
    import pandas as pd

    limits = restrictions or Restrictions()
    columns = cloud(question, limits, None if chosen is None else chosen.layout)
    prices = balanced_prices(question, columns)
    limit = float(memory_limit(question, columns).min()) if chosen is None else chosen.memory_limit
    cheap = pd.DataFrame(_cheap_rows(question, columns, prices))
    if exact:
        objectives = (Objective(name="memory"), Objective(name="time"))
        walked = exact_frontier(question, objectives, points=points, restrictions=limits, budget=budget)
        line = [point.estimate for point in walked.points]
    else:
        rows = pareto_rows(prices.peak_bytes.ravel(), prices.step_seconds.ravel(), limit)
        line = [price(question, _even(question, columns, flat)) for flat in _thinned(rows, MAX_EXACT)]
    if chosen:
        line = [one for one in line if one.layout != chosen.layout] + [chosen]
    known = [_exact_row(one) for one in line]
    frame = pd.concat([cheap, pd.DataFrame(known)], ignore_index=True)
    frame["fits"] = frame["peak_bytes"] <= limit
    frame["chosen"] = False
    if chosen:
        frame.loc[frame.index[-1], "chosen"] = True
    frame["pareto"] = False
    best = len(cheap) + pareto_rows(
        frame["peak_bytes"].to_numpy()[len(cheap) :], frame["step_seconds"].to_numpy()[len(cheap) :], limit
    )
    frame.loc[best, "pareto"] = True
    return frame


def pareto_frame(frontier: Frontier) -> pd.DataFrame:
    """A row per point of an exact frontier, from the best in its first objective to the best in its second.

    Columns: `gpus`, `layout`, `step_seconds`, `tokens_per_second`, `mfu`, `peak_bytes`, `gap`, `proven`, and the two
    objectives under their names.
    """
    import pandas as pd

    rows = []
    for point in frontier.points:
        values: dict[str, object] = {
            o.name: o.value(point.question, point.estimate) for o in frontier.objectives
        }
        gpus = point.question.cluster.num_gpus
        rows.append(
            {"gpus": gpus, **_exact_row(point.estimate), "gap": point.gap, "proven": point.gap <= 0, **values}
        )
    return pd.DataFrame(rows)


def pareto_rows(size: Floats, seconds: Floats, limit: float) -> Ints:
    """Indices, by size, of the rows within `limit` that no smaller or equal row beats in time."""
    order = np.lexsort((seconds, size))
    order = order[(size[order] <= limit) & np.isfinite(seconds[order])]
    best_before = np.minimum.accumulate(np.concatenate([[np.inf], seconds[order][:-1]]))
    rows: Ints = order[seconds[order] < best_before]
    return rows


def _cheap_rows(question: Question, columns: LayoutColumns, prices: BalancedPrices) -> dict[str, object]:
    row, policy = np.nonzero(np.isfinite(prices.step_seconds))
    seconds = prices.step_seconds[row, policy]
    names = [str(columns.layout(number)) for number in range(len(columns))]
    words = ["" if name == "none" else f" recompute={name}" for name in RECOMPUTE_POLICIES]
    flops_of_tp = {
        tp: model_flops(question.model, question.training, tp) for tp in np.unique(columns.tp).tolist()
    }
    flops = np.array([flops_of_tp[tp] for tp in columns.tp[row].tolist()])
    peak = question.cluster.gpu.peak[question.training.precision]
    return {
        "layout": [names[r] + words[p] for r, p in zip(row.tolist(), policy.tolist(), strict=True)],
        "peak_bytes": prices.peak_bytes[row, policy],
        "step_seconds": seconds,
        "tokens_per_second": question.training.tokens_per_step / seconds,
        "mfu": flops / (seconds * question.cluster.num_gpus * peak),
    }


def _exact_row(estimate: Estimate) -> dict[str, object]:
    return {
        "layout": estimate.layout.brief,
        "peak_bytes": estimate.peak_bytes,
        "step_seconds": estimate.step_seconds,
        "tokens_per_second": estimate.tokens_per_second,
        "mfu": estimate.mfu,
    }


def _even(question: Question, columns: LayoutColumns, flat: int) -> Layout:
    """The layout and policy of one entry of the flattened prices, its blocks spread evenly."""
    row, policy = divmod(flat, len(RECOMPUTE_POLICIES))
    layout = columns.layout(row)
    layers = even_layers(question.model.num_layers, layout.num_stages)
    return layout.model_copy(update={"layers": layers, "recompute": (RECOMPUTE_POLICIES[policy],)})


def _thinned(rows: Ints, most: int) -> list[int]:
    """At most so many of them, both ends kept."""
    places = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(np.int64)
    return [int(rows[place]) for place in np.unique(places).tolist()]
