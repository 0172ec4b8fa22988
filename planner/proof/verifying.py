"""Verifying a plan file: its prices are computed again from its own inputs, and its proof is done again.

Every check is a sentence with a verdict. Nothing is taken from the file but the question: numbers are compared with
what this version computes, the layout with its own restrictions, the certificate with a search of its own, and the
optimum with layouts that another, simpler formula (blocks spread evenly, priced in full one by one) puts forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from cost_models.errors import InfeasibleError, InputError, RunError
from cost_models.estimate import Estimate
from cost_models.units import counted, format_bytes, format_seconds
from planner.answers.offers import offers_of, rank_offers
from planner.answers.optimum import PROVEN, Optimum, answered_question, optimise
from planner.answers.recommend import recommend
from planner.certificate import Certificate, Settled
from planner.objectives import Objective
from planner.plan import Plan, PlanObjective, PlanRestrictions, Prediction
from planner.plan_files import priced_again, priced_as_held
from planner.proof.checks import TOLERANCE, Check, evenly_placed, same
from planner.search.budget import Budget
from planner.search.result import SearchResult
from planner.space.gpu_counts import resized
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
        if plan.recommendation is not None or plan.objective is not None:
            yield Check(
                "certificate", False, "is missing, though the layout is said to be chosen among others"
            )
        return
    yield _arithmetic(plan, plan.certificate)
    yield evenly_placed(plan, held)
    spending = budget or Budget()
    spending.solver = "cbc"  # not the usual one
    yield from _asked_again(plan, plan.certificate, priced, spending)
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
    """Check all that is predicted against the price computed now."""
    said, right = claimed.model_dump(), Prediction.of(priced).model_dump()
    step = ("step_seconds", "weighed_seconds", "mfu", "hfu", "tokens_per_second")
    sizes = [field for field in right if field not in (*step, "time", "trust")]
    for name, fields in (("step", step), ("time parts", ["time"]), ("rank memory", sizes)):
        yield same(name, *({field: own[field] for field in fields} for own in (said, right)))
    what = f"says `{claimed.trust}`; it is `{priced.trust}`"
    trusted = claimed.trust == str(priced.trust)
    yield Check("trust", trusted, claimed.trust if trusted else f"`trust` {what}")


def _memory(priced: Estimate) -> Check:
    words = f"the fullest rank peaks at {format_bytes(priced.peak_bytes)}, the limit is {priced.limit_words}"
    return Check("fits", priced.fits, words)


def _arithmetic(plan: Plan, certificate: Certificate) -> Check:
    """Check that the certificate does not contradict itself."""
    step = plan.proved_seconds
    wrong = []
    if not math.isclose(certificate.gap, 1 - certificate.bound / step, rel_tol=0, abs_tol=TOLERANCE):
        gap = 1 - certificate.bound / step
        wrong.append(f"its `gap` is {certificate.gap:.3g}; bound and step say {gap:.3g}")
    if plan.objective is not None:
        wrong += _objective_words(plan, plan.objective)
    return Check("certificate", not wrong, "; ".join(wrong) or "its bound and gap agree with the step")


def _objective_words(plan: Plan, written: PlanObjective) -> list[str]:
    """What is wrong with the objective's value and deadline, in sentences."""
    try:
        written.terms.require_complete(plan.question)
    except InputError as error:
        return [error.headline, *map(str, error.problems)]
    wrong, priced = [], priced_again(plan)
    value = written.terms.value(plan.question, priced)
    if not math.isclose(value, written.value, rel_tol=TOLERANCE):
        wrong.append(f"its `value` ({written.name}) says {written.value:.6g}; it is {value:.6g}")
    if not written.terms.meets_deadline(plan.question, priced):
        wrong.append("it misses its deadline")
    return wrong + _choice_words(plan, written)


def _choice_words(plan: Plan, written: PlanObjective) -> list[str]:
    """Sentences on the sizes, precisions and offers that the plan says it was chosen from, where it is none of them."""
    question, gpus, wrong = plan.question, plan.question.cluster.num_gpus, []
    per_node = written.gpus_per_node
    if written.gpus:
        per_node = resized(answered_question(plan), gpus).cluster.gpus_per_node
    if per_node != question.cluster.gpus_per_node or (written.gpus and gpus not in written.gpus):
        wrong.append("its cluster is none of `gpus` with `gpus_per_node`")
    if written.precisions and question.training.precision not in written.precisions:
        wrong.append("its precision is none of `precisions`")
    price = written.price if written.name == "cost" else None
    offers = [
        one
        for one in offers_of(plan)
        if gpus in one.sizes
        and one.question.cluster.gpus_per_node == written.gpus_per_node
        and replace(resized(one.question, gpus), training=question.training) == question
    ]
    if written.offers and (not offers or price not in (None, offers[0].price)):
        wrong.append("its cluster, `gpus_per_node`, profile and price are those of none of `offers`")
    return wrong


def _asked_again(plan: Plan, certificate: Certificate, priced: Estimate, budget: Budget) -> Iterator[Check]:
    """Ask the question again, and check that nothing is better and that the same is said of it."""
    written, told = plan.objective, plan.recommendation
    objective, sizes = (Objective(), ()) if written is None else (written.terms, written.gpus)
    precisions = () if written is None else written.precisions
    try:
        optimum = optimise(
            answered_question(plan),
            objective,
            sizes=sizes,
            precisions=precisions,
            top=1 if told is None else told.top,
            restrictions=plan.user_restrictions,
            budget=budget,
        )
        again = (
            None if told is None else recommend(plan.question, optimum.result, plan.user_restrictions, budget)
        )
    except (InputError, InfeasibleError) as error:
        yield Check("optimum", False, f"asked again there is no answer: {error.headline}")
        return
    except RunError as error:
        yield Check("optimum", None, error.headline)
        return
    late = f"not proven again within {format_seconds(budget.seconds_spent)}; allow more time"
    if told is not None:
        if again is None:
            yield Check("optimum", None, late)
            return
        result = SearchResult(estimates=(again.estimate,), certificate=again.certificate)
        value = again.estimate.compared_seconds
        optimum = replace(optimum, result=result, value=value, bound=value)
    yield _optimum(plan, objective, priced, optimum)
    if again is not None and told is not None:
        said = told.model_dump() | {"restrictions": plan.restrictions.model_dump()}
        right = again.written(plan.user_restrictions, told.top).model_dump()
        right["restrictions"] = PlanRestrictions.of(again.within).model_dump()
        yield same("recommendation", said, right)
    if optimum.gap > PROVEN and certificate.gap <= 0:
        yield Check("proof", None, late)
        return
    yield _proof(plan, certificate, optimum)
    settled = optimum.result.certificate.settled
    if settled is not None and certificate.gap <= 0:
        yield _program(plan, settled)


def _claimed_gap(plan: Plan) -> float:
    """Share of the plan's value that could still be gained, as the plan itself claims."""
    if (written := plan.objective) is None:
        return 0.0 if plan.certificate is None else plan.certificate.gap
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


def _optimum(plan: Plan, objective: Objective, priced: Estimate, optimum: Optimum) -> Check:
    measure = objective.measure
    value = objective.value(plan.question, priced)
    gained = measure.loss(value) - measure.loss(optimum.value)
    layout, certificate = optimum.result.best.layout.brief, optimum.result.certificate
    found = f"`{layout}` on {counted(optimum.question.cluster.num_gpus, 'GPU')} has {measure.label} {optimum.value:.6g}"
    again = _PROVERS[certificate.proved_by]
    if gained > (PROVEN + _claimed_gap(plan)) * abs(value):
        better = "better than" if plan.recommendation is None else "recommended in place of"
        return Check("optimum", False, f"{found}, {better} {value:.6g}")
    if gained > PROVEN * abs(value):
        return Check(
            "optimum", True, f"{found}, better than {value:.6g} by no more than the plan leaves open"
        )
    if gained < -PROVEN * abs(value) and optimum.gap <= PROVEN:
        return Check(
            "optimum", False, f"{again} finds nothing as good, so it does not cover this layout; {found}"
        )
    if plan.recommendation is not None:
        return Check("optimum", True, f"{found}, and is recommended again")
    return Check("optimum", True, f"{again} of its own finds nothing better than {measure.label} {value:.6g}")


def _proof(plan: Plan, claimed: Certificate, optimum: Optimum) -> Check:
    """Check that a second proof gives the same certificate."""
    found = optimum.result.certificate
    again, complete = _PROVERS[found.proved_by], claimed.gap <= 0
    names = {"layouts", "minimised", "scenarios", *(["bound"] if complete else [])}
    right = same("proof", claimed.model_dump(include=names), found.model_dump(include=names))
    wrong = [] if right.passed else [right.what]
    if not {*claimed.space.split(" | ")} <= {*found.space.split(" | ")}:
        wrong.append(f"`space` names another than {again} covers")
    if plan.objective is not None and complete:
        stored, here = plan.objective.bound, optimum.bound
        if stored is None or not math.isclose(stored, here, rel_tol=PROVEN):
            wrong.append(f"the objective's `bound` says {stored}, {again} proves {here:.8g}")
    if wrong:
        return Check("proof", False, "; ".join(wrong))
    counts = f"{found.infeasible:,} do not fit, {found.pruned:,} by bound, {found.solved:,} placed"
    return Check(
        "proof",
        True,
        f"{counted(found.layouts, 'layout')}: {counts}, with the bound that the certificate says",
    )


def _program(plan: Plan, found: Settled) -> Check:
    """Check that the closing integer program of another solver finds the optimum that the certificate says."""
    chosen = f"{found.solver} chooses among {counted(found.layouts, 'layout')} and {counted(found.columns, 'column')}"
    if not math.isclose(plan.proved_seconds, found.objective, rel_tol=PROVEN):
        return Check(
            "program", False, f"{chosen}, and finds {found.objective:.8g}, not {plan.proved_seconds:.8g}"
        )
    return Check("program", True, f"{chosen}, and finds the same optimum")
