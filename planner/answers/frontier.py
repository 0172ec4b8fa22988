"""Trade-offs of memory and throughput as data frames: a cloud of all layouts, and exact Pareto frontiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.pipeline import even_layers
from cost_models.estimate import Estimate
from cost_models.memory.device import memory_limit
from cost_models.operators.flops import model_flops
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.answers.pareto import POINTS, Frontier, exact_frontier
from planner.objectives import Objective
from planner.placement.even_prices import BalancedPrices, balanced_prices
from planner.search.budget import Budget
from planner.space.plain_layouts import cloud
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    import pandas as pd

MOST_PRICED = 150
"""Most layouts of a cloud that are priced in full: those whose quick price beats every plan known."""


def frontier_frame(
    question: Question,
    chosen: Estimate | None = None,
    *,
    exact: bool = False,
    points: int | None = POINTS,
    most_named: int | None = None,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> pd.DataFrame:
    """A cloud of legal layouts under every recompute policy, cheaply priced, and the Pareto frontier of memory and
    time.

    A row per layout and policy: `layout`, `peak_bytes` of the fullest device, `step_seconds`, `tokens_per_second`,
    `mfu`, `fits`, `pareto` (nothing known that fits is both smaller and faster), `proven` (no layout at all is),
    `chosen`. Blocks are spread evenly, except in the chosen plan. With `exact` the frontier starts from that of
    `planner.answers.pareto` over all placements, with at most `points` points (None: all). Rows whose cheap price beats
    the frontier are priced in full, and join it or fall below; none is left above. Of a cloud of more than `most_named`
    rows (None: any number) only those priced in full have a name, as writing the others takes longer than pricing them.

    Raises:
        InfeasibleError: `exact`, and nothing fits.
    """
    import pandas as pd

    limits, spending = restrictions or Restrictions(), budget or Budget()
    columns = cloud(question, limits, None if chosen is None else chosen.layout)
    limit = float(memory_limit(question, columns).min()) if chosen is None else chosen.memory_limit
    line, proven = [], set()
    if exact:
        objectives = (Objective(name="memory"), Objective(name="time"))
        walked = exact_frontier(question, objectives, points=points, restrictions=limits, budget=spending)
        line = [point.estimate for point in walked.points]
        proven = {point.estimate.layout for point in walked.points if point.gap <= 0}
    if chosen:
        line = [one for one in line if one.layout != chosen.layout] + [chosen]
    cheap, found = _price_near_the_line(question, columns, limit, line, spending, most_named)
    line = found + line  # what was chosen stays the last
    frame = pd.concat([cheap, pd.DataFrame([_exact_row(one) for one in line])], ignore_index=True)
    frame["fits"] = frame["peak_bytes"] <= limit
    for name in ("pareto", "proven", "chosen"):
        frame[name] = False
    exact_rows = slice(len(cheap), None)
    peaks, seconds = (frame[name].to_numpy()[exact_rows] for name in ("peak_bytes", "step_seconds"))
    frame.loc[len(cheap) + pareto_rows(peaks, seconds, limit), "pareto"] = True
    frame.loc[exact_rows, "proven"] = [one.layout in proven for one in line]
    if chosen:
        frame.loc[frame.index[-1], "chosen"] = True
    return frame


def _price_near_the_line(
    question: Question,
    columns: LayoutColumns,
    limit: float,
    line: list[Estimate],
    budget: Budget,
    most_named: int | None,
) -> tuple[pd.DataFrame, list[Estimate]]:
    """The cloud as rows, none of which beats a known plan, and the plans found by pricing in full what looked better.

    A cheap price is sometimes too good; the best-looking layouts are priced in full until none looks better any more.
    Beyond `MOST_PRICED` of them the others are left out, since nobody knows how good they are.
    """
    import pandas as pd

    prices = balanced_prices(question, columns)
    seconds, peaks = prices.step_seconds.ravel(), prices.peak_bytes.ravel()
    open_rows = np.isfinite(seconds)
    found: list[Estimate] = []
    while True:
        known = [*line, *found]
        better = np.flatnonzero(open_rows & (peaks <= limit))
        better = better[_beats(peaks[better], seconds[better], known)]
        best = better[pareto_rows(peaks[better], seconds[better], limit)]
        if not len(best) or len(found) + len(best) > MOST_PRICED:
            break
        budget.tell(f"pricing {len(best)} layouts near the frontier in full")
        found += [price(question, _evenly_spread(question, columns, int(flat))) for flat in best]
        open_rows[best] = False
    open_rows[better] = False
    return pd.DataFrame(_cheap_rows(question, columns, prices, open_rows, most_named)), found


def _beats(peaks: Array, seconds: Array, known: Sequence[Estimate]) -> Bools:
    """(N,): points that are smaller or faster than every known plan that fits."""
    order = sorted((one.peak_bytes, one.step_seconds) for one in known if one.fits)
    sizes = np.array([size for size, _ in order])
    fastest = np.minimum.accumulate(np.array([np.inf, *(step for _, step in order)]))
    return seconds < fastest[np.searchsorted(sizes, peaks, side="right")]


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


def pareto_rows(size: Array, seconds: Array, limit: float) -> Ints:
    """Indices, by rising size, of the rows within `limit` that are faster than every smaller or equal one."""
    order = np.lexsort((seconds, size))
    order = order[(size[order] <= limit) & np.isfinite(seconds[order])]
    best_before = np.minimum.accumulate(np.concatenate([[np.inf], seconds[order][:-1]]))
    return order[seconds[order] < best_before]


def _cheap_rows(
    question: Question,
    columns: LayoutColumns,
    prices: BalancedPrices,
    shown: Bools,
    most_named: int | None,
) -> dict[str, object]:
    """Columns of the data frame for those of the flattened prices that are shown."""
    row, policy = np.nonzero(shown.reshape(prices.step_seconds.shape))
    seconds = prices.step_seconds[row, policy]
    named = np.unique(row) if most_named is None or len(row) <= most_named else row[:0]
    names = {number: str(columns.layout(number)) for number in named.tolist()}
    words = ["" if name == "none" else f" recompute={name}" for name in RECOMPUTE_POLICIES]
    flops_of_tp = {
        tp: model_flops(question.model, question.training, tp) for tp in np.unique(columns.tp).tolist()
    }
    flops = np.array([flops_of_tp[tp] for tp in columns.tp[row].tolist()])
    peak = question.cluster.gpu.peak[question.training.precision]
    return {
        "layout": [
            names[r] + words[p] if r in names else ""
            for r, p in zip(row.tolist(), policy.tolist(), strict=True)
        ],
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


def _evenly_spread(question: Question, columns: LayoutColumns, flat: int) -> Layout:
    """The layout and recompute policy of one entry of the flattened prices, with its blocks spread evenly."""
    row, policy = divmod(flat, len(RECOMPUTE_POLICIES))
    layout = columns.layout(row)
    layers = even_layers(question.model.num_layers, layout.num_stages)
    return layout.model_copy(update={"layers": layers, "recompute": (RECOMPUTE_POLICIES[policy],)})
