"""Checks of a plan file: their verdicts, and the one that needs no search (evenly placed layouts, priced in full)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.axes.pipeline import even_layers
from cost_models.documents import printable
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import MixedQuestion
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.units import counted, format_seconds
from planner.answers.optimum import PROVEN
from planner.objectives import Objective
from planner.placement.even_prices import balanced_prices
from planner.plan import Plan
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
    parts = limits.by_recompute(question) or (limits,)  # a trainer lacks policies that the stack has
    searched = {policy for one in parts for policy in one.recompute(question)}
    usable = np.array([policy in searched for policy in RECOMPUTE_POLICIES])
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


def same(name: str, claimed: Mapping[str, Any], right: Mapping[str, Any]) -> Check:
    """Check that all that fields claim is right: numbers up to rounding, where one that is not there is 0."""
    said, found = dict(_leaves(claimed)), dict(_leaves(right))
    wrong = [
        f"`{part}` says {_words(said.get(part))}, computed again it is {_words(found.get(part))}"
        for part in {**found, **said}
        if not _equal(said.get(part), found.get(part))
    ]
    if not wrong:
        return Check(name, True, f"{counted(len(found), 'value')} computed again, equal to {TOLERANCE:g}")
    more = f", and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return Check(name, False, "; ".join(wrong[:_NAMED]) + more)


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The single values of fields, each with its place, `rank_memory.0.weights`, and how many a list has."""
    if isinstance(value, (list, tuple)):
        yield f"{place}.entries", len(value)
    if isinstance(value, (Mapping, list, tuple)):
        inner = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, one in inner:
            yield from _leaves(one, f"{place}.{name}" if place else str(name))
    else:
        yield place, value


def _equal(claimed: Any, right: Any) -> bool:
    numbers = [0.0 if one is None else one for one in (claimed, right)]
    if any(isinstance(one, (bool, str)) for one in numbers):
        return bool(claimed == right)
    return math.isclose(*numbers, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-3)


def _words(value: Any) -> str:
    if value is None:
        return "nothing"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value), 60)
