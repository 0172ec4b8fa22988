"""Trade-off curves as data frames: memory against throughput over all layouts, and scaling over GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cost_models.errors import InfeasibleError, InputError, Problem
from cost_models.estimate import Estimate
from cost_models.estimating import estimate as price
from cost_models.memory.device import memory_limit
from cost_models.question import Question
from cost_models.specs.columns import Ints, LayoutColumns
from cost_models.specs.layout import Layout
from cost_models.specs.recompute import RECOMPUTE_POLICIES
from cost_models.workload.flops import model_flops
from planner.balanced import BalancedPrices, Floats, balanced_prices, even_layers
from planner.search import search
from planner.search_space import Restrictions, enumerate_layouts

if TYPE_CHECKING:
    import pandas as pd

SCALING_SECONDS = 20.0
"""Time limit of one point of a scaling curve; its answer is then the best found."""
MAX_EXACT = 40
"""Points of the Pareto line that are priced exactly."""


def frontier_frame(question: Question, chosen: Estimate | None = None) -> pd.DataFrame:
    """Every legal layout under every recompute policy, cheaply priced, and the Pareto line of them priced exactly.

    A row per layout and policy: `layout`, `peak_bytes` of the fullest device, `step_seconds`, `tokens_per_second`,
    `mfu`, `fits`, `pareto` (nothing that fits is both smaller and faster), `chosen`. Blocks are spread evenly, except
    in the chosen plan.
    """
    import pandas as pd

    columns = enumerate_layouts(question, Restrictions())
    prices = balanced_prices(question, columns)
    limit = float(memory_limit(question, columns).min()) if chosen is None else chosen.memory_limit
    cheap = pd.DataFrame(_cheap_rows(question, columns, prices))
    line = pareto_rows(prices.peak_bytes.ravel(), prices.step_seconds.ravel(), limit)
    exact = [price(question, _even(question, columns, flat)) for flat in _thinned(line, MAX_EXACT)]
    if chosen:
        exact = [one for one in exact if one.layout != chosen.layout] + [chosen]
    known = [_exact_row(one) for one in exact]
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


def pareto_rows(size: Floats, seconds: Floats, limit: float) -> Ints:
    """Indices, by size, of the rows within `limit` that no smaller or equal row beats in time."""
    order = np.lexsort((seconds, size))
    order = order[(size[order] <= limit) & np.isfinite(seconds[order])]
    best_before = np.minimum.accumulate(np.concatenate([[np.inf], seconds[order][:-1]]))
    rows: Ints = order[seconds[order] < best_before]
    return rows


def scaling_frame(
    question: Question, gpu_counts: Sequence[int], on_point: Callable[[str], None] | None = None
) -> pd.DataFrame:
    """The best layout at each number of GPUs: `strong` keeps the global batch, `weak` grows it with the GPUs.

    Columns: `kind`, `gpus`, `global_batch`, `layout`, `step_seconds`, `tokens_per_second`, `mfu`, `gap`. Numbers
    of GPUs on which no layout is legal or fits are left out.

    Raises:
        InputError: numbers of GPUs that the cluster cannot have.
    """
    import pandas as pd

    _require_possible(question, gpu_counts)

    base = question.cluster.num_gpus
    batch = question.training.global_batch
    points = [("strong", gpus, batch) for gpus in gpu_counts]
    points += [("weak", gpus, batch * gpus // base) for gpus in gpu_counts if batch * gpus >= base]
    rows = []
    for kind, gpus, global_batch in points:
        if on_point is not None:
            on_point(f"{kind} scaling, {gpus} GPUs")
        try:
            found = search(_resized(question, gpus, global_batch), top=1, time_limit=SCALING_SECONDS)
        except InfeasibleError:
            continue
        best = found.estimates[0]
        rows.append(
            {
                "kind": kind,
                "gpus": gpus,
                "global_batch": global_batch,
                "layout": best.layout.brief,
                "step_seconds": best.step_seconds,
                "tokens_per_second": best.tokens_per_second,
                "mfu": best.mfu,
                "gap": found.certificate.gap,
            }
        )
    return pd.DataFrame(rows)


def doublings(question: Question) -> list[int]:
    """GPU counts worth a curve: an eighth of the cluster to four times it, in whole nodes."""
    gpus, per_node = question.cluster.num_gpus, question.cluster.gpus_per_node
    counts = [gpus // 8, gpus // 4, gpus // 2, gpus, 2 * gpus, 4 * gpus]
    connected = question.cluster.links.inter_node is not None
    return sorted({count for count in counts if count > 0 and _possible(count, per_node, connected)})


def _possible(count: int, per_node: int, connected: bool) -> bool:
    return count <= per_node or (connected and count % per_node == 0)


def _require_possible(question: Question, counts: Sequence[int]) -> None:
    cluster = question.cluster
    per_node, connected = cluster.gpus_per_node, cluster.links.inter_node is not None
    reason = "no whole number of nodes" if connected else "more than a node, and nodes are not connected"
    problems = [
        Problem("", f"{count:,} GPUs are {reason}; a node has {per_node}")
        for count in counts
        if not _possible(count, per_node, connected)
    ]
    if problems:
        raise InputError(f"`{cluster.name}` cannot have these numbers of GPUs", problems=problems)


def _resized(question: Question, gpus: int, global_batch: int) -> Question:
    cluster = question.cluster
    per_node = min(gpus, cluster.gpus_per_node)
    return replace(
        question,
        cluster=cluster.model_copy(update={"gpus_per_node": per_node, "nodes": gpus // per_node}),
        training=question.training.model_copy(update={"global_batch": global_batch}),
    )


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
