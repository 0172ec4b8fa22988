"""Scaling curves as a data frame: the best layout at each number of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cost_models.errors import InfeasibleError
from cost_models.question import Question
from cost_models.recommender.question import RecommenderQuestion
from cost_models.units import counted
from planner.search.budget import Budget
from planner.search.result import SearchResult
from planner.space.gpu_counts import possible, require_possible, resized
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    import pandas as pd

SCALING_SECONDS = 20.0
"""Time limit of one point of a scaling curve, seconds; its answer is then the best found."""
KINDS = ("strong", "weak")
"""Kinds of scaling: `strong` keeps the global batch, `weak` grows it with the GPUs."""


def scaling_frame(
    question: Question,
    gpu_counts: Sequence[int],
    *,
    kinds: Sequence[str] = KINDS,
    budget: Budget | None = None,
) -> pd.DataFrame:
    """The best layout at each number of GPUs, for strong and for weak scaling.

    Columns: `kind`, `gpus`, `global_batch`, `layout`, `step_seconds`, `tokens_per_second`, `mfu`, `gap`, and
    seconds of the step by part. Numbers of GPUs on which no layout is legal or fits are left out, and those the
    budget's time did not reach.

    Raises:
        InputError: numbers of GPUs that the cluster cannot have.
    """
    import pandas as pd

    require_possible(question.cluster, gpu_counts)
    spending = budget or Budget()
    points = _points(question, gpu_counts, kinds)
    rows: dict[tuple[int, int], dict[str, object]] = {}
    for number, (kind, gpus, global_batch) in enumerate(points, start=1):
        if spending.on_status is not None:
            spending.on_status(f"{kind} scaling, {counted(gpus, 'GPU')} ({number} of {len(points)})")
        if (gpus, global_batch) not in rows:
            try:
                found = spending.search(
                    resized(question, gpus, global_batch), Restrictions(), seconds=SCALING_SECONDS
                )
            except InfeasibleError:
                continue
            if found is None:
                continue
            rows[gpus, global_batch] = _scaling_row(gpus, global_batch, found)
    known = [{"kind": kind, **rows[gpus, batch]} for kind, gpus, batch in points if (gpus, batch) in rows]
    return pd.DataFrame(known).fillna(0.0)  # parts that some layouts lack


def _points(
    question: Question, gpu_counts: Sequence[int], kinds: Sequence[str]
) -> list[tuple[str, int, int]]:
    """(kind, GPUs, global batch) of every point."""
    base, batch = question.cluster.num_gpus, question.training.global_batch
    batches: dict[str, Callable[[int], int]] = {
        "strong": lambda gpus: batch,
        "weak": lambda gpus: batch * gpus // base,
    }
    return [(kind, gpus, batches[kind](gpus)) for kind in kinds for gpus in gpu_counts if batches[kind](gpus)]


def _scaling_row(gpus: int, global_batch: int, found: SearchResult) -> dict[str, object]:
    best = found.best
    return {
        "gpus": gpus,
        "global_batch": global_batch,
        "layout": best.layout.brief,
        "step_seconds": best.step_seconds,
        "tokens_per_second": best.tokens_per_second,
        "mfu": best.mfu,
        "gap": found.certificate.gap,
        **best.time.as_dict(),
    }


def doublings(question: Question | RecommenderQuestion) -> list[int]:
    """Numbers of GPUs for a curve: from an eighth of the cluster to four times it, in whole nodes."""
    gpus = question.cluster.num_gpus
    counts = [gpus // 8, gpus // 4, gpus // 2, gpus, 2 * gpus, 4 * gpus]
    return sorted({count for count in counts if count > 0 and possible(count, question.cluster)})
