"""Scaling curves of transformers as a data frame: the best layout at each number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_models.question import Question
from planner.search.budget import Budget
from planner.search.scaling import KINDS, Row, scaling_rows
from planner.space.gpu_counts import require_possible, resized
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    import pandas as pd


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

    def row_at(gpus: int, global_batch: int) -> Row | None:
        there = resized(question, gpus, global_batch)
        found = spending.search(there, Restrictions(), effort="bounds")
        if found is None:
            return None
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

    rows = scaling_rows(question, gpu_counts, kinds, spending, row_at)
    return pd.DataFrame(rows).fillna(0.0)  # parts that some layouts lack
