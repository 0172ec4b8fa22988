"""Scaling curves of both families: their points, each searched once within a shared budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cost_models.errors import InfeasibleError
from cost_models.question import Question
from cost_models.recommender.question import RecommenderQuestion
from cost_models.units import counted
from planner.search.budget import Budget
from planner.space.gpu_counts import possible

KINDS = ("strong", "weak")
"""Kinds of scaling: `strong` keeps the global batch, `weak` grows it with the GPUs."""
Row = dict[str, object]


def scaling_rows(
    question: Question | RecommenderQuestion,
    gpu_counts: Sequence[int],
    kinds: Sequence[str],
    budget: Budget,
    row_at: Callable[[int, int], Row | None],
) -> list[Row]:
    """Rows of the points (kind, GPUs, global batch) from `row_at(gpus, global batch)`, called once for each pair.

    Points on which nothing fits, and those for which `row_at` returns None, are left out.
    """
    cluster_gpus, batch = question.cluster.num_gpus, question.training.global_batch
    points = [
        (kind, gpus, batch if kind == "strong" else batch * gpus // cluster_gpus)
        for kind in kinds
        for gpus in gpu_counts
    ]
    if isinstance(question, RecommenderQuestion):  # GPUs have equal parts of the batch
        points = [point for point in points if not point[2] % point[1]]
    points = [point for point in points if point[2]]
    rows: dict[tuple[int, int], Row] = {}
    for number, (kind, gpus, samples) in enumerate(points, start=1):
        budget.tell(f"{kind} scaling, {counted(gpus, 'GPU')} ({number} of {len(points)})")
        if (gpus, samples) in rows:
            continue
        try:
            row = row_at(gpus, samples)
        except InfeasibleError:
            continue
        if row is not None:
            rows[gpus, samples] = row
    return [{"kind": kind, **rows[key]} for kind, *rest in points if (key := (rest[0], rest[1])) in rows]


def doublings(question: Question | RecommenderQuestion) -> list[int]:
    """Numbers of GPUs for a curve: from an eighth of the cluster to four times the cluster, in whole nodes."""
    gpus = question.cluster.num_gpus
    counts = [gpus // 8, gpus // 4, gpus // 2, gpus, 2 * gpus, 4 * gpus]
    return sorted({count for count in counts if count > 0 and possible(count, question.cluster)})
