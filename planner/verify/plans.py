"""Verification of a transformer's plan file: its inputs are priced again, and its search is repeated with
another solver.

Every check is a sentence with a verdict. Only the question is taken from the file: numbers are compared with
this version's results, the layout with its restrictions, the certificate with a new search, and the optimum
with layouts from another, simpler formula (blocks spread evenly, priced in full one by one).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cost_models.axes.stages import policy_mask
from cost_models.errors import InfeasibleError, InputError, RunError
from cost_models.estimate import Estimate
from cost_models.pipeline.pricing import estimate as price
from cost_models.units import counted, format_bytes, format_seconds
from planner.answers.frontier import evenly_spread
from planner.answers.optimum import PROVEN, Optimum, answered_question, offers_of, optimise, rank_offers
from planner.answers.recommend import recommend
from planner.objectives import Certificate, Objective
from planner.plan import (
    Plan,
    PlanRestrictions,
    Prediction,
    package_version,
    priced_again,
    priced_within_restrictions,
)
from planner.search.search import Budget
from planner.space.restrictions import satisfies
from planner.space.sizes import resized
from planner.space.space import balanced_prices, cloud
from planner.verify import TOLERANCE, Check, check_equal

MAX_TRIED = 40
"""Maximum number of layouts with evenly placed blocks, the fastest by quick price, that are priced in full to
find a better one."""
_PROVERS = {"search": "a search", "ilp": "an integer program"}
"""Words in check results for each method that proves optimality, by method."""


def verify(plan: Plan, budget: Budget | None = None) -> Iterator[Check]:
    """Yield the result of every check of a plan file; without a certificate only its price is checked."""
    problems = "; ".join(problem.what for problem in plan.problems())
    yield Check("layout", not problems, problems or "breaks no rule of its question")
    if problems:
        return
    priced, choice, limits = priced_again(plan), priced_within_restrictions(plan), plan.restrictions.read
    obeys, words = satisfies(plan.question, limits, plan.layout), ", ".join(limits.flags)
    kept_words = f"the layout {'keeps to' if obeys else 'breaks'} {words}"
    yield Check("restrictions", obeys, kept_words) if words else Check("restrictions", True, "none asked for")
    claimed, right = plan.prediction.model_dump(), Prediction.of(priced).model_dump()
    step = ["step_seconds", "weighed_seconds", "mfu", "hfu", "tokens_per_second"]
    sizes = [name for name in right if name not in (*step, "time", "trust")]
    for name, fields in (("step", step), ("time parts", ["time"]), ("rank memory", sizes)):
        yield check_equal(name, *({field: values[field] for field in fields} for values in (claimed, right)))
    trust, right_trust = plan.prediction.trust, right["trust"]
    difference = "" if trust == right_trust else f"`trust` says `{trust}`; it is `{right_trust}`"
    yield Check("trust", not difference, difference or trust)
    peak = f"the fullest rank peaks at {format_bytes(choice.peak_bytes)}, the limit is {choice.limit_words}"
    yield Check("fits", choice.fits, peak)
    if plan.certificate is None:
        if plan.recommendation is not None or plan.objective is not None:
            claim = "is missing, though the layout is said to be chosen among others"
            yield Check("certificate", False, claim)
        return
    mistakes = "; ".join(_contradictions(plan, plan.certificate, priced))
    yield Check("certificate", not mistakes, mistakes or "its bound and gap agree with the step")
    yield _check_even_placements(plan, choice, plan.certificate.gap)
    spending = budget or Budget()
    spending.solver = "cbc"  # not the default solver
    search = _repeat_search(plan, plan.certificate, priced, spending)
    for name, checks in (("optimum", search), ("clusters", _check_other_clusters(plan, spending))):
        try:
            yield from checks
        except (InputError, InfeasibleError) as error:
            yield Check(name, False, f"asked again there is no answer: {error.headline}")
        except RunError as error:
            yield Check(name, None, error.headline)


def _contradictions(plan: Plan, certificate: Certificate, priced: Estimate) -> Iterator[str]:
    """Yield a sentence for each contradiction between a plan's certificate, its step, and its stored
    objective (value, deadline, and the sizes, precisions and offers to choose from)."""
    gap = 1 - certificate.bound / plan.proved_seconds
    if not math.isclose(certificate.gap, gap, rel_tol=0, abs_tol=TOLERANCE):
        yield f"its `gap` is {certificate.gap:.3g}; bound and step say {gap:.3g}"
    written, question = plan.objective, plan.question
    if written is None:
        return
    objective, gpus, per_node = written.terms, question.cluster.num_gpus, written.gpus_per_node
    try:
        objective.require_complete(question)
    except InputError as error:
        yield from (error.headline, *map(str, error.problems))
        return
    value = objective.value(question, priced)
    if not math.isclose(value, written.value, rel_tol=TOLERANCE):
        yield f"its `value` ({written.name}) says {written.value:.6g}; it is {value:.6g}"
    if not objective.meets_deadline(question, priced.step_seconds):
        yield "it misses its deadline"
    if written.gpus:
        per_node = resized(answered_question(plan), gpus).cluster.gpus_per_node
    if per_node != question.cluster.gpus_per_node or (written.gpus and gpus not in written.gpus):
        yield "its cluster is none of `gpus` with `gpus_per_node`"
    if written.precisions and question.training.precision not in written.precisions:
        yield "its precision is none of `precisions`"
    offers = [
        offer
        for offer in offers_of(plan)
        if gpus in offer.sizes
        and offer.question.cluster.gpus_per_node == written.gpus_per_node
        and replace(resized(offer.question, gpus), training=question.training) == question
    ]
    price = written.price if written.name == "cost" else None
    if written.offers and (not offers or price not in (None, offers[0].price)):
        yield "its cluster, `gpus_per_node`, profile and price are those of none of `offers`"


def _check_even_placements(plan: Plan, choice: Estimate, gap: float) -> Check:
    """Check that no layout with evenly spread blocks is faster than the plan: candidates are chosen by a
    simpler formula and priced in full."""
    limits, name = plan.restrictions.read, "spot check"
    question = limits.apply_confidence(plan.question)
    if question.has_pools:
        return Check(name, True, "is made on clusters of one kind of GPU")
    if plan.objective_name in ("memory", "mfu"):
        return Check(name, True, f"compares step times, so it says nothing of `{plan.objective_name}`")
    columns = cloud(question, limits, plan.layout)
    prices = balanced_prices(question, columns)
    parts = limits.by_recompute(question) or (limits,)  # a trainer lacks policies that the stack has
    usable = policy_mask({policy for part in parts for policy in part.recompute(question)})
    fitting = (prices.peak_bytes <= choice.memory_limit) & usable
    promising = np.where(fitting, prices.step_seconds, np.inf).ravel()
    limit_seconds = min(choice.compared_seconds, plan.proved_seconds) * (1 - gap - PROVEN)
    order, fastest = np.argsort(promising, kind="stable")[:MAX_TRIED], math.inf
    tried = order[np.isfinite(promising[order])].tolist()
    for flat in tried:
        candidate = price(question, evenly_spread(question, columns, flat))
        seconds = candidate.compared_seconds
        if candidate.peak_bytes > min(choice.memory_limit, candidate.memory_limit):
            continue
        if seconds < limit_seconds:
            layout = candidate.layout.brief
            return Check(name, False, f"`{layout}` takes {format_seconds(seconds)}, which is less")
        fastest = min(fastest, seconds)
    words = f"the fastest that fits takes {format_seconds(fastest)}" if fastest < math.inf else "none fits"
    return Check(name, True, f"{len(tried)} promising layouts, evenly placed, {words}")


def _repeat_search(plan: Plan, certificate: Certificate, priced: Estimate, budget: Budget) -> Iterator[Check]:
    """Repeat the plan's search with another solver; yield checks that no plan is better and that the
    certificate is the same."""
    written, recommendation, limits = plan.objective, plan.recommendation, plan.user_restrictions
    objective = Objective() if written is None else written.terms
    sizes, precisions = ((), ()) if written is None else (written.gpus, written.precisions)
    top, question = 1 if recommendation is None else recommendation.top, answered_question(plan)
    optimum = optimise(
        question, objective, sizes=sizes, precisions=precisions, top=top, restrictions=limits, budget=budget
    )
    if recommendation is None:
        yield _check_optimum(plan, objective, priced, optimum)
    else:
        recommended = recommend(plan.question, optimum.result, limits, budget)
        if recommended is None:
            yield _undecided_check("optimum", budget)
            return
        optimum = optimum.recommending(recommended.estimate, recommended.certificate)
        yield _check_optimum(plan, objective, priced, replace(optimum, bound=optimum.value))
        claimed = recommendation.model_dump() | {"restrictions": plan.restrictions.model_dump()}
        right = recommended.for_file(limits, top).model_dump()
        right["restrictions"] = PlanRestrictions.of(recommended.within).model_dump()
        yield check_equal("recommendation", claimed, right)
    if recommendation is None and optimum.gap > PROVEN and certificate.gap <= 0:
        yield _undecided_check("proof", budget)
        return
    yield _check_proof(plan, certificate, optimum)
    settled = optimum.result.certificate.settled
    if settled is not None and certificate.gap <= 0:  # by the closing integer program of another solver
        layouts, columns = counted(settled.layouts, "layout"), counted(settled.columns, "column")
        equal = math.isclose(plan.proved_seconds, settled.objective, rel_tol=PROVEN)
        finding = "the same optimum" if equal else f"{settled.objective:.8g}, not {plan.proved_seconds:.8g}"
        words = f"{settled.solver} chooses among {layouts} and {columns}, and finds {finding}"
        yield Check("program", equal, words)


def _undecided_check(name: str, budget: Budget) -> Check:
    """Create the check result `name` without a verdict, because time ran out."""
    words = f"not proven again within {format_seconds(budget.seconds_spent)}; allow more time"
    return Check(name, None, words)


def _check_optimum(plan: Plan, objective: Objective, priced: Estimate, optimum: Optimum) -> Check:
    """Check that the repeated search finds a plan as good as the file's, and none better."""
    measure, written, recommended = objective.measure, plan.objective, plan.recommendation is not None
    value = objective.value(plan.question, priced)
    gained = (measure.loss(value) - measure.loss(optimum.value)) / abs(value)
    claimed_gap = 0.0 if plan.certificate is None else plan.certificate.gap
    if written is not None:
        claimed_gap = measure.gap(written.value, measure.open if written.bound is None else written.bound)
    prover = _PROVERS[optimum.result.certificate.proved_by]
    layout, gpus = optimum.result.best.layout.brief, counted(optimum.question.cluster.num_gpus, "GPU")
    best = f"`{layout}` on {gpus} has {measure.label} {optimum.value:.6g}"
    if gained > PROVEN + claimed_gap:
        better = "recommended in place of" if recommended else "better than"
        return Check("optimum", False, f"{best}, {better} {value:.6g}")
    if gained < -PROVEN and optimum.gap <= PROVEN:
        missing = f"{prover} finds nothing as good, so it does not cover this layout; {best}"
        return Check("optimum", False, missing)
    finding = f"{prover} of its own finds nothing better than {measure.label} {value:.6g}"
    if gained > PROVEN:
        finding = f"{best}, better than {value:.6g} by no more than the plan leaves open"
    elif recommended:
        finding = f"{best}, and is recommended again"
    return Check("optimum", True, finding)


def _check_proof(plan: Plan, claimed: Certificate, optimum: Optimum) -> Check:
    """Check that the repeated search gives the same certificate as the plan file. Another release may cover
    other layouts, or name them differently: for its plans only the bound is compared."""
    second, complete = optimum.result.certificate, claimed.gap <= 0
    prover, same_release = _PROVERS[second.proved_by], plan.meshwright_version == package_version()
    names = {"minimised", "scenarios", *["bound"] * complete, *["layouts"] * same_release}
    equal = check_equal("proof", claimed.model_dump(include=names), second.model_dump(include=names))
    mistakes = [equal.what] * (not equal.passed)
    if same_release and not {*claimed.space.split(" | ")} <= {*second.space.split(" | ")}:
        mistakes.append(f"`space` names another than {prover} covers")
    if plan.objective is not None and complete:
        bound = plan.objective.bound
        if bound is None or not math.isclose(bound, optimum.bound, rel_tol=PROVEN):
            mistakes.append(f"the objective's `bound` says {bound}, {prover} proves {optimum.bound:.8g}")
    counts = f"{second.infeasible:,} do not fit, {second.pruned:,} by bound, {second.solved:,} placed"
    summary = f"{counted(second.layouts, 'layout')}: {counts}, with the bound that the certificate says"
    summary += f"; release {plan.meshwright_version} covered {claimed.layouts:,}" * (not same_release)
    return Check("proof", not mistakes, "; ".join(mistakes) or summary)


def _check_other_clusters(plan: Plan, budget: Budget) -> Iterator[Check]:
    """Yield a check that no other cluster on offer has a better plan; nothing if the plan was not chosen
    among clusters."""
    written, offers, limits = plan.objective, offers_of(plan), plan.restrictions.read
    if written is None or not offers:
        return
    objective, precisions = replace(written.terms, price=None), written.precisions
    ranking = rank_offers(offers, objective, precisions=precisions, restrictions=limits, budget=budget)
    optimum, measure = ranking.best.optimum, objective.measure
    gpus = counted(optimum.question.cluster.num_gpus, "GPU")
    best = f"{ranking.best.offer.name} on {gpus} has {measure.label} {optimum.value:.6g}"
    if measure.loss(optimum.value) < measure.loss(written.value) - PROVEN * abs(written.value):
        yield Check("clusters", False, f"{best}, better than {written.value:.6g}")
    elif ranking.gap > PROVEN:
        yield _undecided_check("clusters", budget)
    else:
        yield Check("clusters", True, f"of {len(written.offers)} none is better: {best}")
