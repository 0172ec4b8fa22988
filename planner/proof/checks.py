"""Checks of a plan file: their verdicts, and the one that needs no search (evenly placed layouts, priced in full)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.axes.pipeline import even_layers
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import MixedQuestion
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.units import counted, format_seconds
from planner.answers.choosing import choose
from planner.answers.optimum import PROVEN
from planner.objectives import Objective
from planner.placement.even_prices import balanced_prices
from planner.plan import Plan
from planner.plan_recommended import PlanChoice
from planner.search.result import SearchResult
from planner.space.plain_layouts import cloud

TOLERANCE = 1e-9
"""Relative difference of two prices that counts as rounding."""
_NAMED = 3
"""Most differences named in one sentence."""
TRIED = 40
"""Number of evenly placed layouts, by their quick price the fastest, that are priced in full against the plan."""


@dataclass(frozen=True, slots=True)
class Check:
    """The verdict on one claim of a plan file."""

    name: str
    passed: bool | None
    """Whether the claim holds; None: it could not be decided."""
    what: str
    """What was found, in words."""


def evenly_placed(plan: Plan, priced: Estimate) -> Check:
    """Check that no evenly placed layout is better: candidates by a formula of their own, then priced in full."""
    limits = plan.restrictions.read
    question = limits.held(plan.question)
    objective = plan.objective.terms if plan.objective is not None else Objective()
    if isinstance(question, MixedQuestion):
        return Check("spot check", True, "is made on clusters of one kind of GPU")
    if objective.name in ("memory", "mfu"):
        return Check("spot check", True, f"compares step times, so it says nothing of `{objective.name}`")
    columns = cloud(question, limits, plan.layout)
    prices = balanced_prices(question, columns)
    usable = np.array([policy in limits.recompute(question) for policy in RECOMPUTE_POLICIES])
    promising = np.where((prices.peak_bytes <= priced.memory_limit) & usable, prices.step_seconds, np.inf)
    gap = plan.certificate.gap if plan.certificate is not None else 0.0
    least = min(priced.compared_seconds, plan.proved_seconds) * (1 - gap - PROVEN)
    tried, best = 0, math.inf
    for flat in np.argsort(promising, axis=None, kind="stable")[:TRIED].tolist():
        row, policy = divmod(flat, len(RECOMPUTE_POLICIES))
        if not math.isfinite(promising[row, policy]):
            break
        layout = columns.layout(row)
        layers = even_layers(question.model.num_layers, layout.num_stages)
        even = layout.model_copy(update={"layers": layers, "recompute": (RECOMPUTE_POLICIES[policy],)})
        other = price(question, even)
        tried += 1
        if other.peak_bytes > min(priced.memory_limit, other.memory_limit):
            continue
        if other.compared_seconds < least:
            return Check(
                "spot check",
                False,
                f"`{even.brief}` takes {format_seconds(other.compared_seconds)}, which is less",
            )
        best = min(best, other.compared_seconds)
    found = f", the fastest that fits takes {format_seconds(best)}" if math.isfinite(best) else ", none fits"
    return Check("spot check", True, f"{tried} promising layouts, evenly placed{found}")


def chosen_again(plan: Plan, claimed: PlanChoice, found: SearchResult) -> Check:
    """Check that the same layout is chosen again in place of the fastest of its kind."""
    again = choose(plan.question, found, lambda _: True, lambda: True)
    other, said = (found.best.layout, None) if again is None else again
    if said is None or other != plan.layout:
        return Check("choice", False, f"chosen again it is `{other.brief}`")
    pairs = {
        name: (getattr(claimed, name), getattr(said, name))
        for name in ("first_seconds", "share", "layouts", "middle_seconds", "first_middle_seconds")
    }
    return same("choice", pairs)


def same(name: str, pairs: Mapping[str, tuple[float, float]]) -> Check:
    """Check that all claims are right up to rounding."""
    wrong = [
        f"`{part}` says {claimed:.6g}, priced again it is {right:.6g}"
        for part, (claimed, right) in pairs.items()
        if not math.isclose(claimed, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-3)
    ]
    if not wrong:
        return Check(name, True, f"{counted(len(pairs), 'number')} priced again, equal to {TOLERANCE:g}")
    more = f", and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return Check(name, False, "; ".join(wrong[:_NAMED]) + more)
