"""Verification of a cache's plan: bytes and hits of its rows, room for them, and the bound on what others would hit."""

from __future__ import annotations

from cost_models.errors import InfeasibleError
from cost_models.units import format_bytes
from planner.proof.checks import TOLERANCE, Check, same
from planner.serving.knapsack import filling_order
from planner.serving.serving_plan import ServingPlan, require_host


def verify_cache(plan: ServingPlan) -> tuple[Check, ...]:
    """Checks of a plan against the tables of its own question."""
    try:
        require_host(plan.question)
    except InfeasibleError as error:
        return (Check("host", False, error.headline),)
    tables, order = plan.question.tables, filling_order(plan.question.tables)
    filled, hits = float(tables.counts @ (plan.rows * tables.row_bytes)), tables.hits(plan.rows)
    row_bytes = float(tables.counts @ tables.row_bytes)  # as the size that was asked for ends within a row
    least, most = (float(order.hits(max(0.0, filled + more))) for more in (-row_bytes, row_bytes))
    bound_holds = max(least, hits) * (1 - TOLERANCE) <= plan.bound <= max(most, hits) * (1 + TOLERANCE)
    room = max(0.0, plan.question.most_bytes)
    fills = f"fills {format_bytes(filled)} of {format_bytes(room)} that a GPU has for it"
    best = f"`bound` says {plan.bound:.6g}; the best cache of this size hits {most:.6g}"
    return (
        same(
            "cache", plan.model_dump(include={"cache_bytes", "hits"}), {"cache_bytes": filled, "hits": hits}
        ),
        Check("fits", filled <= room * (1 + TOLERANCE), fills),
        Check("bound", bound_holds, best),
    )
