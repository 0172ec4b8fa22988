"""Verifying a plan file: its prices are computed again from its own inputs, and its proof is done again.

Every check is a sentence with a verdict. Nothing is taken from the file but the question: numbers are compared with
what this version computes, the layout with its own restrictions, the certificate with a search of its own, and the
optimum with layouts that another, simpler formula (blocks spread evenly, priced in full one by one) puts forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cost_models.errors import InfeasibleError, InputError, RunError
from cost_models.estimate import Estimate
from cost_models.units import counted, format_bytes, format_seconds
from planner.answers.offers import offers_of, rank_offers
from planner.answers.optimising import optimise
from planner.answers.optimum import PROVEN, Optimum, answered_question
from planner.certificate import Certificate, Settled
from planner.objectives import Objective
from planner.plan import Plan, PlanObjective, Prediction
from planner.plan_files import priced_again, priced_as_held
from planner.proof.checks import TOLERANCE, Check, chosen_again, evenly_placed, same
from planner.search.budget import Budget
from planner.space.restrictions import keeps_to

_PROVERS = {"search": "a search", "ilp": "an integer program"}
"""What proved an answer, in words."""


def verify(plan: Plan, budget: Budget | None = None) -> Iterator[Check]:
    """Yield every check of a plan; without a certificate only its price is checked."""
    problems = plan.problems()
    yield Check(
        "layout",
        not problems,
        "; ".join(problem.what for problem in problems) or "breaks no rule of its question",
    )
    if problems:
        return
    priced = priced_again(plan)
    held = priced_as_held(plan)
    yield _restrictions(plan)
    yield from _prediction(plan.prediction, priced)
    yield _memory(held)
    if plan.certificate is None:
        return
    yield _arithmetic(plan, plan.certificate)
    yield evenly_placed(plan, held)
    spending = budget or Budget()
    settled = plan.certificate.settled
    if settled is not None:
        spending.solver = "cbc" if settled.solver == "highs" else "highs"
    yield from _searched(plan, plan.certificate, priced, spending)
    if plan.objective is not None and plan.objective.offers:
        yield _chosen_cluster(plan, plan.objective, spending)


def _restrictions(plan: Plan) -> Check:
    limits = plan.restrictions.read
    words = limits.flags
    if not words:
        return Check("restrictions", True, "none asked for")
    kept = keeps_to(plan.question, limits, plan.layout)
    return Check("restrictions", kept, f"the layout {'keeps to' if kept else 'breaks'} {', '.join(words)}")


def _prediction(claimed: Prediction, priced: Estimate) -> Iterator[Check]:
    """Check every predicted number against the price computed now."""
    headline = {
        name: (getattr(claimed, name), getattr(priced, name))
        for name in ("step_seconds", "mfu", "hfu", "tokens_per_second")
    }
    if claimed.weighed_seconds is not None and priced.weighed_seconds is not None:
        headline["weighed_seconds"] = (claimed.weighed_seconds, priced.weighed_seconds)
    yield same("step", headline)
    yield same("time parts", _pairs(claimed.time, priced.time.as_dict()))
    sizes = {name: (getattr(claimed, name), getattr(priced, name)) for name in ("peak_bytes", "memory_limit")}
    if len(claimed.rank_memory) != len(priced.rank_memory):
        what = f"names {counted(len(claimed.rank_memory), 'rank')}; the layout has {len(priced.rank_memory)}"
        yield Check("rank memory", False, what)
    else:
        for rank, (mine, right) in enumerate(zip(claimed.rank_memory, priced.rank_memory, strict=True)):
            pairs = _pairs(mine, right.as_dict())
            sizes |= {f"rank {rank} {part}": pair for part, pair in pairs.items()}
        yield same("rank memory", sizes)
    trusted = claimed.trust == str(priced.trust)
    yield Check(
        "trust", trusted, claimed.trust if trusted else f"says `{claimed.trust}`; it is `{priced.trust}`"
    )


def _pairs(claimed: Mapping[str, float], right: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Part → (claimed, computed) value; a missing part counts as 0."""
    return {part: (claimed.get(part, 0.0), right.get(part, 0.0)) for part in {**right, **claimed}}


def _memory(priced: Estimate) -> Check:
    words = f"the fullest rank peaks at {format_bytes(priced.peak_bytes)}, the limit is {priced.limit_words}"
    return Check("fits", priced.fits, words)


def _arithmetic(plan: Plan, certificate: Certificate) -> Check:
    """Check that the certificate does not contradict itself."""
    step = plan.proved_seconds
    total = certificate.infeasible + certificate.pruned + certificate.solved + certificate.undecided
    wrong = []
    if total != certificate.layouts:
        wrong.append(f"its counts add up to {total:,}, not to {certificate.layouts:,} layouts")
    if min(certificate.infeasible, certificate.pruned, certificate.solved, certificate.undecided) < 0:
        wrong.append("it counts fewer than no layouts")
    if not math.isclose(certificate.gap, 1 - certificate.bound / step, rel_tol=0, abs_tol=TOLERANCE):
        gap = 1 - certificate.bound / step
        wrong.append(f"its gap is {certificate.gap:.3g}; bound and step say {gap:.3g}")
    if plan.objective is not None:
        wrong += _objective_words(plan, plan.objective)
    return Check(
        "certificate", not wrong, "; ".join(wrong) or "its counts, bound and gap agree with one another"
    )


def _objective_words(plan: Plan, written: PlanObjective) -> list[str]:
    """What is wrong with the objective's value and deadline, in sentences."""
    try:
        written.terms.require_complete(plan.question)
    except InputError as error:
        return [error.headline, *map(str, error.problems)]
    value = written.terms.value(plan.question, priced_again(plan))
    wrong = []
    if not math.isclose(value, written.value, rel_tol=TOLERANCE):
        wrong.append(f"its {written.name} says {written.value:.6g}; it is {value:.6g}")
    if not written.terms.meets_deadline(plan.question, priced_again(plan)):
        wrong.append("it misses its deadline")
    return wrong


def _searched(plan: Plan, certificate: Certificate, priced: Estimate, budget: Budget) -> Iterator[Check]:
    """Search the question again and check that nothing is better and that the same certificate comes out."""
    written = plan.objective
    objective, sizes = (Objective(), ()) if written is None else (written.terms, written.gpus)
    precisions = () if written is None else written.precisions
    question = answered_question(plan)
    try:
        optimum = optimise(
            question,
            objective,
            sizes=sizes,
            precisions=precisions,
            top=certificate.top,
            restrictions=plan.restrictions.read,
            budget=budget,
        )
    except (InputError, InfeasibleError) as error:
        yield Check("optimum", False, f"asked again there is no answer: {error.headline}")
        return
    except RunError as error:
        yield Check("optimum", None, error.headline)
        return
    yield _optimum(plan, objective, priced, optimum)
    if plan.recommendation is not None and plan.recommendation.choice is not None and optimum.gap <= 0:
        yield chosen_again(plan, plan.recommendation.choice, optimum.result)
    if optimum.gap > PROVEN and certificate.gap <= 0:
        yield Check(
            "proof", None, f"not proven again within {format_seconds(budget.seconds_spent)}; allow more time"
        )
        return
    yield _proof(plan, certificate, optimum)
    if certificate.settled is not None and certificate.gap <= 0 and budget.proof == "search":
        yield _settled(certificate.settled, optimum.result.certificate.settled)


def _claimed_gap(plan: Plan) -> float:
    """Share of the plan's value that could still be gained, as the plan itself claims."""
    if (written := plan.objective) is None:
        chosen = plan.recommendation is not None and plan.recommendation.choice is not None
        behind = 1 - plan.proved_seconds / plan.prediction.step_seconds if chosen else 0.0
        return 0.0 if plan.certificate is None else plan.certificate.gap + behind
    measure = written.terms.measure
    return measure.gap(written.value, measure.open if written.bound is None else written.bound)


def _chosen_cluster(plan: Plan, written: PlanObjective, budget: Budget) -> Check:
    """Check that no other cluster on offer has a better plan."""
    try:
        ranking = rank_offers(
            offers_of(plan),
            replace(written.terms, price=None),
            precisions=written.precisions,
            restrictions=plan.restrictions.read,
            budget=budget,
        )
    except (InputError, InfeasibleError) as error:
        return Check("clusters", False, f"asked again there is no answer: {error.headline}")
    except RunError as error:
        return Check("clusters", None, error.headline)
    best, measure = ranking.best, ranking.measure
    found = f"{best.offer.name} on {counted(best.optimum.question.cluster.num_gpus, 'GPU')}"
    found = f"{found} has {measure.label} {best.optimum.value:.6g}"
    if measure.loss(best.optimum.value) < measure.loss(written.value) - PROVEN * abs(written.value):
        return Check("clusters", False, f"{found}, better than {written.value:.6g}")
    if ranking.gap > PROVEN:
        return Check(
            "clusters",
            None,
            f"not proven again within {format_seconds(budget.seconds_spent)}; allow more time",
        )
    return Check("clusters", True, f"of {len(written.offers)} none is better: {found}")


def _settled(claimed: Settled, found: Settled | None) -> Check:
    """Check that another solver chooses among as many layouts and finds the same optimum."""
    if found is None:
        return Check("program", None, "the integer program was not solved again in time")
    wrong = [
        f"`{name}` says {getattr(claimed, name)}, {getattr(found, name)} were met"
        for name in ("layouts", "columns")
        if getattr(claimed, name) != getattr(found, name)
    ]
    if not math.isclose(claimed.objective, found.objective, rel_tol=PROVEN):
        wrong.append(f"its optimum says {claimed.objective:.8g}, {found.solver} finds {found.objective:.8g}")
    if wrong:
        return Check("program", False, "; ".join(wrong))
    chosen = f"{found.solver} chooses among {counted(found.layouts, 'layout')} and {counted(found.columns, 'column')}"
    return Check("program", True, f"{chosen}, and finds the same optimum")


def _optimum(plan: Plan, objective: Objective, priced: Estimate, optimum: Optimum) -> Check:
    measure = objective.measure
    value = objective.value(plan.question, priced)
    gained = measure.loss(value) - measure.loss(optimum.value)
    layout = optimum.result.best.layout.brief
    found = f"`{layout}` on {counted(optimum.question.cluster.num_gpus, 'GPU')} has {measure.label} {optimum.value:.6g}"
    allowed, again = _claimed_gap(plan), _PROVERS[optimum.result.certificate.proved_by]
    if gained > (PROVEN + allowed) * abs(value):
        return Check("optimum", False, f"{found}, better than {value:.6g}")
    if gained > PROVEN * abs(value):
        return Check(
            "optimum", True, f"{found}, better than {value:.6g} by no more than the plan leaves open"
        )
    if gained < -PROVEN * abs(value) and optimum.gap <= PROVEN:
        return Check(
            "optimum", False, f"{again} finds nothing as good, so it does not cover this layout; {found}"
        )
    return Check("optimum", True, f"{again} of its own finds nothing better than {measure.label} {value:.6g}")


def _proof(plan: Plan, claimed: Certificate, optimum: Optimum) -> Check:
    """Check that a second proof gives the same certificate."""
    found = optimum.result.certificate
    again = _PROVERS[found.proved_by]
    # what rules a layout out depends on what was known before
    names = ["layouts", "undecided", "bound", "gap"]
    complete = claimed.gap <= 0 and not claimed.undecided
    wrong = [
        f"`{name}` says {getattr(claimed, name):.8g}, {again} counts {getattr(found, name):.8g}"
        for name in (names if complete else names[:1])
        if not math.isclose(
            getattr(claimed, name), getattr(found, name), rel_tol=TOLERANCE, abs_tol=TOLERANCE
        )
    ]
    if claimed.space != found.space:
        wrong.append(f"it names another space than {again} covers")
    if plan.objective is not None and complete:
        stored, here = plan.objective.bound, optimum.bound
        if stored is None or not math.isclose(stored, here, rel_tol=PROVEN):
            wrong.append(f"the objective's bound says {stored}, {again} proves {here:.8g}")
    if wrong:
        return Check("proof", False, "; ".join(wrong))
    counts = f"{found.infeasible:,} do not fit, {found.pruned:,} by bound, {found.solved:,} placed"
    done = f"{counted(found.layouts, 'layout')}: {counts}"
    alike = all(getattr(claimed, name) == getattr(found, name) for name in ("infeasible", "pruned", "solved"))
    same = "as" if alike else "with the bound that"
    return Check("proof", True, f"{done}, {same} the certificate says")
