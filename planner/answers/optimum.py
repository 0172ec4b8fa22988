"""The best plan for any objective, over numbers of GPUs, precisions and clusters, from proven time-optimal
searches.

On one number of GPUs the step time is minimised, except for MFU (one search for each padding of the
vocabulary, the best of which counts) and peak memory. With several numbers of GPUs each is searched; for the
fewest GPUs in rising order until one meets the deadline and all smaller ones are proven not to. With several
clusters each is searched on each of its numbers of GPUs, and the answers are ranked: the best is proven if
every search is.

The least peak memory of any layout and placement comes from time-optimal searches under falling limits. A
limit under which nothing fits proves that every plan peaks above it. The limits are halved until the gap is
small, then taken to just below the least known peak, until nothing fits: there are finitely many peaks, so
this ends, and the last plan has the least peak. Peaks within a billionth of each other count as equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.defaults import questions_by_precision
from cost_models.errors import DoesNotFitError, InfeasibleError, Problem, RunError
from cost_models.estimate import Estimate
from cost_models.memory.device import memory_limit
from cost_models.operators.flops import model_flops
from cost_models.question import Question
from cost_models.specs.cluster import Precision
from cost_models.units import counted, format_bytes, format_count, format_days
from planner.objectives import DAY, Certificate, Effort, Measure, Objective
from planner.placement.leaf import TOLERANCE
from planner.plan import Plan, PlanObjective, PlanOffer
from planner.search.branching import SearchResult, by_speed
from planner.search.pools import count_layouts
from planner.search.search import Budget
from planner.space.limits import tried_tensor_degrees
from planner.space.restrictions import Restrictions
from planner.space.sizes import resized

PROVEN = 2e-9
"""Gap up to which a least peak counts as proved, because of rounding."""
LATE_HINT = "more GPUs, fewer tokens or a later deadline would do"
POINTS = 12
"""Default maximum points of a frontier against memory."""
CLOSE = 5e-3
"""Relative gap of the least peak below which the memory limit is no longer halved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best plans for an objective, best first, with a proven bound."""

    question: Question
    """Question with the best plan's number of GPUs and precision."""
    result: SearchResult
    """Plans and certificate; the latter counts the layouts of all searches, and its `bound` and `gap` are of
    the step time."""
    objective: Objective
    sizes: tuple[int, ...]
    """Numbers of GPUs to choose from; empty: only the question's own."""
    value: float
    """Objective value of the best plan, in the unit of its measure."""
    bound: float
    """Proven bound: no covered plan has a better value."""
    precisions: tuple[Precision, ...] = ()
    """Precisions of matrix products to choose from; empty: only the question's own."""
    left_out: tuple[tuple[int, str], ...] = ()
    """Numbers of GPUs without an answer, each with the reason."""
    others: tuple[tuple[Question, Estimate], ...] = ()
    """Best plan in every other precision."""

    @property
    def gap(self) -> float:
        """Relative gain that is still possible; 0 is proof."""
        return self.objective.measure.gap(self.value, self.bound)

    def value_of(self, estimate: Estimate) -> float:
        """Objective value of one of the ranked plans, on its own number of GPUs."""
        return self.objective.value(resized(self.question, estimate.layout.num_gpus), estimate)

    @property
    def plain(self) -> bool:
        """Whether the objective is the fastest step on the question's own GPUs."""
        return self.objective == Objective() and not self.sizes

    def written(self, gpus_per_node: int) -> PlanObjective | None:
        """The objective as a plan file holds it, for nodes of `gpus_per_node` GPUs; None for the fastest step on the
        question's own GPUs and precision."""
        objective = self.objective
        if self.plain and not self.precisions:
            return None
        return PlanObjective(
            name=objective.name,
            price=objective.price,
            deadline=None if objective.deadline is None else f"{objective.deadline!r} s",  # type: ignore[arg-type]
            operations=objective.operations,
            gpus=self.sizes,
            precisions=self.precisions,
            gpus_per_node=gpus_per_node,
            value=self.value,
            bound=self.bound if self.gap < 1 else None,
        )


def answered_question(plan: Plan) -> Question:
    """Question that a plan answers, with complete nodes if the number of GPUs was part of the answer."""
    question, objective = plan.question, plan.objective
    if objective is None or not objective.gpus:
        return question
    return question.updated("cluster", gpus_per_node=objective.gpus_per_node, nodes=1)


def optimise(
    question: Question,
    objective: Objective,
    *,
    sizes: Sequence[int] = (),
    precisions: Sequence[Precision] = (),
    top: int = 5,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> Optimum:
    """The `top` best plans of a question for an objective.

    `sizes` are numbers of GPUs and `precisions` precisions of GEMMs to choose from, instead of the question's
    own. When the budget's time runs out, or on Ctrl-C if it keeps interrupts, the best so far is returned
    with its proven gap. All ranked plans have the best one's precision.

    Raises:
        InputError: the objective lacks what it needs, or the GPU has no matrix rate in a precision.
        InfeasibleError: nothing fits, or nothing meets the deadline.
        RunError: time ran out before anything was placed.
    """
    objective.require_complete(question)
    questions = questions_by_precision(question, precisions) if precisions else (question,)
    limits, spending, attempts = restrictions or Restrictions(), budget or Budget(), list[_Attempt]()
    counts = tuple(sorted(sizes)) or (question.cluster.num_gpus,)
    for number, gpus in enumerate(counts, start=1):
        if len(counts) > 1:
            spending.tell(f"{counted(gpus, 'GPU')} ({number} of {len(counts)})")
        sized = [resized(asked, gpus) for asked in questions] if sizes else questions
        attempts += [_attempt(asked, objective, limits, top, spending) for asked in sized]
        if objective.name == "gpus" and any(one.estimates for one in attempts):
            break
    answers = [one for one in attempts if one.estimates]
    if not answers:
        raise _no_answer(question, objective, attempts, spending)
    measure = objective.measure

    def loss(attempt: _Attempt, estimate: Estimate) -> float:
        return measure.loss(objective.value(attempt.question, estimate))

    # the fastest plan of an attempt may not be the best of it while the least peak is unproven
    ranks = [(min(loss(one, each) for each in one.estimates), one.gpus, at) for at, one in enumerate(answers)]
    by_loss, value = [answers[at] for _, _, at in sorted(ranks)], measure.loss(min(ranks)[0])
    chosen, unfinished = by_loss[0], [one for one in attempts if one.is_unfinished]
    bound = measure.loss(min(measure.loss(one.bound) for one in answers))
    if objective.name == "gpus":
        bound = float(min([*(one.gpus for one in unfinished), chosen.gpus]))
    elif unfinished:
        bound = measure.open
    same_precision = [one for one in answers if one.precision == chosen.precision]
    ranked = sorted(
        ((one, each) for one in same_precision for each in one.estimates),
        key=lambda pair: (loss(*pair), pair[0].gpus, *by_speed(pair[1])),
    )
    left_out = [(one.gpus, one.error.headline) for one in attempts if one.error is not None]
    endings = (f" for {one.precision}" if precisions else "" for one in unfinished)
    left_out += [(one.gpus, spending.why_ended + end) for one, end in zip(unfinished, endings, strict=True)]
    others = {one.precision: one for one in by_loss[::-1] if one.precision != chosen.precision}
    certificate = _certificate(objective, chosen, attempts, limits, measure.gap(value, bound), spending)
    return Optimum(
        question=chosen.question,
        result=SearchResult(
            estimates=tuple(estimate for _, estimate in ranked[:top]),
            certificate=certificate,
            searches=() if chosen.result is None else chosen.result.searches,
        ),
        objective=objective,
        sizes=tuple(sizes),
        precisions=tuple(precisions),
        value=value,
        bound=bound,
        left_out=tuple(sorted(left_out)),
        others=tuple((one.question, one.estimates[0]) for one in others.values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """Result of searching one number of GPUs in one precision: plans, an error, or neither before time ran out."""

    question: Question
    result: SearchResult | None = None
    """Best plans that meet the deadline, possibly none; None if nothing fits, or time ran out."""
    bound: float = 0.0
    """Proven bound on the value of any covered plan, in the unit of the objective's measure."""
    error: InfeasibleError | None = None
    """Reason why there is no plan: nothing fits, or nothing is fast enough."""
    late_seconds: tuple[float, ...] = ()
    """Training times, seconds, of plans that miss the deadline, if faster plans are not ruled out."""

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        return () if self.result is None else self.result.estimates

    @property
    def is_unfinished(self) -> bool:
        return self.result is None and self.error is None

    @property
    def gpus(self) -> int:
        return self.question.cluster.num_gpus

    @property
    def precision(self) -> Precision:
        return self.question.training.precision


def _attempt(
    question: Question, objective: Objective, limits: Restrictions, top: int, budget: Budget
) -> _Attempt:
    """Best plans of one question that meet the deadline, from one or several searches."""
    results, errors = list[SearchResult | None](), list[InfeasibleError]()
    groups = paddings(question, limits) if objective.name == "mfu" else [limits]
    for group in groups:
        try:
            if objective.name == "memory":
                smallest = least_memory(question, objective, group, top=top, budget=budget)
                if smallest is None:
                    return _Attempt(question=question)
                result, bound = smallest
                in_time = tuple(e for e in result.estimates if objective.meets_deadline(question, e))
                result = replace(result, estimates=in_time, searches=())
                return _Attempt(question=question, result=result, bound=bound)
            results.append(budget.search(question, group, top=top))
        except InfeasibleError as error:
            errors.append(error)
    if len(errors) == len(groups):
        return _Attempt(question=question, error=errors[0])
    decided = [result for result in results if result is not None]
    return _ranked(question, objective, decided, top, everywhere=len(decided) == len(results))


def _ranked(
    question: Question, objective: Objective, results: Sequence[SearchResult], top: int, *, everywhere: bool
) -> _Attempt:
    """One attempt from several searches of a question."""
    measure = objective.measure
    in_time = [e for result in results for e in result.estimates if objective.meets_deadline(question, e)]
    if not in_time:
        soonest = min((result.certificate.bound for result in results), default=0.0)
        if not everywhere or objective.may_meet_deadline(question, soonest):
            fastest = [result.best.step_seconds for result in results]
            late = tuple(objective.training_seconds(question, seconds) for seconds in fastest)
            return _Attempt(question=question, late_seconds=late)
        error = InfeasibleError(f"at least {format_days(objective.training_seconds(question, soonest))}")
        certificate = _merged([result.certificate for result in results])
        nothing = SearchResult(estimates=(), certificate=certificate)
        return _Attempt(question=question, result=nothing, error=error)
    ranked = sorted(in_time, key=lambda e: (measure.loss(objective.value(question, e)), *by_speed(e)))
    best, least_losses = ranked[0], []
    for result in results:  # no plan of a search is better than its best would be at the bound
        bound, faster = result.certificate.bound, measure.open
        if bound > 0:
            at_bound = result.best.compared_seconds / bound
            rates = {name: getattr(result.best, name) * at_bound for name in ("mfu", "hfu", "causal_mfu")}
            bounded = replace(result.best, step_seconds=bound, weighed_seconds=None, **rates)
            faster = objective.value(question, bounded)
        least_losses.append(measure.loss(faster))
    bound = measure.loss(min(least_losses)) if everywhere else measure.open
    by_best = sorted(results, key=lambda result: all(one is not best for one in result.estimates))
    certificate = _merged([result.certificate for result in by_best])
    if len(results) > 1:
        gap = measure.gap(objective.value(question, best), bound) if everywhere else 1.0
        certificate = certificate.model_copy(update={"gap": gap, "bound": best.compared_seconds * (1 - gap)})
    searches = tuple(search for result in results for search in result.searches)
    result = SearchResult(estimates=tuple(ranked[:top]), certificate=certificate, searches=searches)
    return _Attempt(question=question, result=result, bound=bound)


def _merged(certificates: Sequence[Certificate]) -> Certificate:
    """Certificate with the counts of all; its bound and gap are those of the first."""
    counts = ("layouts", "infeasible", "pruned", "solved", "undecided", "seconds")
    sums = {name: sum(getattr(one, name) for one in certificates) for name in counts}
    return certificates[0].model_copy(update=sums)


def _certificate(
    objective: Objective,
    chosen: _Attempt,
    attempts: Sequence[_Attempt],
    limits: Restrictions,
    gap: float,
    budget: Budget,
) -> Certificate:
    """The chosen answer's certificate, with the layouts of all searches counted and the gap over all of them."""
    assert chosen.result is not None
    certificate = chosen.result.certificate
    if objective.name == "memory" and gap > PROVEN:
        certificate = certificate.model_copy(update={"gap": 1.0, "bound": 0.0, "settled": None})
    certificates = [
        one.result.certificate for one in attempts if one is not chosen and one.result is not None
    ]
    unfinished = [one for one in attempts if one.is_unfinished]
    unfit = sum(count_layouts(one.question, limits) for one in attempts if one.error and one.result is None)
    if not certificates and not unfit and not unfinished:
        return certificate
    unsearched = sum(count_layouts(one.question, limits) for one in unfinished)
    merged, covered = _merged([certificate, *certificates]), [one for one in attempts if one.error is None]
    gpus = dict.fromkeys(str(one.gpus) for one in covered)
    types = dict.fromkeys(one.precision for one in covered)
    changed: dict[str, object] = {
        "seconds": budget.seconds_spent,
        "space": f"{' / '.join(types)} on {', '.join(gpus)} GPUs: {merged.space}",
        "layouts": merged.layouts + unfit + unsearched,
        "undecided": merged.undecided + unsearched,
        "infeasible": merged.infeasible + unfit,
    }
    if objective.name not in ("memory", "gpus"):
        changed |= {"gap": gap, "bound": chosen.estimates[0].compared_seconds * (1 - gap)}
    return merged.model_copy(update=changed)


def _no_answer(
    question: Question, objective: Objective, attempts: Sequence[_Attempt], budget: Budget
) -> InfeasibleError | RunError:
    """Error for no plan on any number of GPUs, for faster plans not ruled out, or for searches that ended
    without a plan."""
    deadline, errors = objective.deadline, [(one.gpus, one.error) for one in attempts if one.error]
    late = [seconds for one in attempts for seconds in one.late_seconds]
    if late and deadline is not None and not budget.interrupted:
        return RunError(
            f"no plan found meets the deadline of {format_days(deadline)}: the fastest takes"
            f" {format_days(min(late))}, and faster ones are not ruled out",
            hint="allow more with --time-limit, or a later --deadline",
        )
    if any(one.is_unfinished for one in attempts):
        return budget.nothing_found()
    last = errors[-1][1]
    if len(errors) == 1 and deadline is None:
        return last
    words = [
        ": ".join([error.headline, *(problem.what for problem in error.problems[:1])]) for _, error in errors
    ]
    problems = [Problem(counted(gpus, "GPU"), what) for (gpus, _), what in zip(errors, words, strict=True)]
    headline = no_plan_words(question, deadline)
    hint = last.hint if deadline is None else LATE_HINT
    if deadline is None and isinstance(last, DoesNotFitError):
        return DoesNotFitError(headline, problems=problems, hint=hint, state_bytes=last.state_bytes)
    return InfeasibleError(headline, problems=problems, hint=hint)


def no_plan_words(question: Question, deadline: float | None) -> str:
    """Headline of the error that no plan fits, or that none meets a deadline (seconds)."""
    if deadline is None:
        return f"no plan of {question.model.name} fits"
    tokens = format_count(question.training.tokens or 0.0)
    return f"no plan of {question.model.name} trains on {tokens} tokens within {format_days(deadline)}"


def paddings(question: Question, limits: Restrictions) -> list[Restrictions]:
    """Restrictions split by groups of tensor-parallel degrees with equal model FLOPs (padded vocabulary),
    most FLOPs first."""
    groups: dict[float, set[int]] = {}
    for tp in tried_tensor_degrees(question, limits):
        groups.setdefault(model_flops(question.model, question.training, tp), set()).add(tp)
    if len(groups) < 2:
        return [limits]
    ranked = [frozenset(groups[flops]) for flops in sorted(groups, reverse=True)]
    return [replace(limits, only={**limits.only, "tp": degrees}) for degrees in ranked]


def least_memory(
    question: Question,
    objective: Objective,
    restrictions: Restrictions,
    *,
    top: int,
    budget: Budget,
    known: SearchResult | None = None,
) -> tuple[SearchResult, float] | None:
    """Fastest plans among those with the least peak that meet the objective's deadline, and the proven lower
    bound of every peak, bytes; the bound is within a billionth of the least peak if that is proven. None if
    no plan was found in time.

    `known` is the result of the search for the fastest.

    Raises:
        InfeasibleError: nothing fits, or nothing that fits meets the deadline.
    """
    best = known or budget.search(question, restrictions, top=top)
    if best is None:
        return None
    if not objective.meets_deadline(question, best.best):
        raise InfeasibleError("nothing that fits meets the deadline")
    floor, peak = 0.0, best.best.peak_bytes
    while not budget.ended and floor < just_below(peak):
        limit = (floor + peak) / 2 if peak - floor > CLOSE * peak else just_below(peak)
        budget.tell(f"least memory between {format_bytes(floor)} and {format_bytes(peak)}")
        try:
            under = _under(question, objective, replace(restrictions, max_memory=limit), budget)
        except InfeasibleError:
            floor = limit
            continue
        if under is None:
            break
        best, peak = under, min(limit, *(one.peak_bytes for one in under.estimates))
    within_peak = replace(restrictions, max_memory=peak * (1 + TOLERANCE))
    best = budget.search(question, within_peak, top=top) or best
    if not question.has_pools:  # with the user's memory limit, in place of the tighter one
        user = math.inf if restrictions.max_memory is None else restrictions.max_memory
        columns = LayoutColumns.of([one.layout for one in best.estimates])
        limits = [min(limit, user) for limit in memory_limit(question, columns).tolist()]
        estimates = tuple(
            replace(one, rank_limits=(limit,) * one.layout.pp)
            for one, limit in zip(best.estimates, limits, strict=True)
        )
        best = replace(best, estimates=estimates)
    return best, floor


def just_below(size: float) -> float:
    """The largest memory limit that excludes a peak of `size` bytes."""
    return size * (1 - TOLERANCE)


def _under(
    question: Question, objective: Objective, limits: Restrictions, budget: Budget
) -> SearchResult | None:
    """A plan within the limits that meets the deadline: the first found, else the fastest; None if time ran
    out.

    Raises:
        InfeasibleError: there is none.
    """
    efforts: tuple[Effort, ...] = ("any", "bounds")
    for effort in efforts:
        result = budget.search(question, limits, effort=effort)
        if result is not None and objective.meets_deadline(question, result.best):
            return result
        if result is not None and not objective.may_meet_deadline(question, result.certificate.bound):
            raise InfeasibleError("nothing that fits meets the deadline")
        if budget.ended:
            break
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A cluster that the user may choose."""

    question: Question
    """Question on complete nodes of the cluster."""
    sizes: tuple[int, ...]
    """Numbers of the cluster's GPUs to choose from."""
    price: float | None = None
    """Dollars for one GPU-hour."""

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.question.cluster.name

    @property
    def written(self) -> PlanOffer:
        """The offer as a plan file holds it."""
        question = self.question
        return PlanOffer(
            cluster=question.cluster, hardware=question.hardware, gpus=self.sizes, price=self.price
        )


def offers_of(plan: Plan) -> tuple[Offer, ...]:
    """Clusters among which a plan was chosen; empty if there was no choice."""
    written, question = plan.objective.offers if plan.objective is not None else (), plan.question
    return tuple(
        Offer(
            question=replace(question, cluster=one.cluster, hardware=one.hardware),
            sizes=one.gpus,
            price=one.price,
        )
        for one in written
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAnswer:
    """Best plans of one cluster on one number of GPUs."""

    offer: Offer
    optimum: Optimum

    @property
    def days(self) -> float | None:
        """Days of the full training run; None if its number of tokens is unknown."""
        question, objective = self.optimum.question, self.optimum.objective
        unknown, step = question.training.tokens is None, self.optimum.result.best.step_seconds
        return None if unknown else objective.training_seconds(question, step) / DAY

    @property
    def cost(self) -> float | None:
        """Dollars for the full training run; None if its number of tokens or the price is unknown."""
        days, price = self.days, self.offer.price
        if days is None or price is None:
            return None
        question = self.optimum.question
        return self.optimum.objective.gpu_hours(question, self.optimum.result.best.step_seconds) * price


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A cluster and a number of GPUs without an answer, with the reason."""

    cluster: str
    gpus: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Best plans of all clusters and numbers of GPUs, best first, with a proven bound."""

    objective: Objective
    """Objective that plans are ranked by; without a price, since each cluster has its own."""
    offers: tuple[Offer, ...]
    answers: tuple[OfferAnswer, ...]
    left_out: tuple[LeftOut, ...]
    unanswered: int
    """Number of searches that ended before they had an answer; the others of `left_out` are proven to have
    none."""
    seconds: float

    @property
    def best(self) -> OfferAnswer:
        """Best answer of all clusters."""
        return self.answers[0]

    @property
    def measure(self) -> Measure:
        """Measure by which plans are compared."""
        return self.objective.measure

    @property
    def bound(self) -> float:
        """Proven bound: no covered plan on any of the clusters has a better value."""
        if self.unanswered:
            return self.measure.open
        return self.measure.loss(min(self.measure.loss(one.optimum.bound) for one in self.answers))

    @property
    def gap(self) -> float:
        """Relative gain over the best value that is still possible; 0 is proof."""
        return self.measure.gap(self.best.optimum.value, self.bound)

    def places(self, answer: OfferAnswer) -> tuple[int, int]:
        """First and last place that an answer may have, as each optimum lies between its bound and its value;
        both are equal if these intervals do not overlap."""

        def surely_ahead(one: OfferAnswer, other: OfferAnswer) -> bool:
            """Whether a value is at least as good as any plan that the other answer's search can have."""
            value, bound = one.optimum.value, other.optimum.bound
            return other.optimum.gap <= PROVEN or self.measure.loss(value) <= self.measure.loss(bound)

        place = self.answers.index(answer)
        ahead = [surely_ahead(one, answer) for one in self.answers[:place]]
        behind = [surely_ahead(answer, one) for one in self.answers[place + 1 :]]
        return 1 + sum(ahead), len(self.answers) - sum(behind)

    @property
    def frontier(self) -> tuple[OfferAnswer, ...]:
        """Answers that no other beats in both days and cost, the soonest first; empty if either is
        unknown."""
        totals = [(one.days, one.cost, place) for place, one in enumerate(self.answers)]
        complete = sorted((d, c, place) for d, c, place in totals if d is not None and c is not None)
        cheapest = np.minimum.accumulate([math.inf, *(cost for _, cost, _ in complete)])
        return tuple(
            self.answers[place]
            for (_, cost, place), least in zip(complete, cheapest, strict=False)
            if cost < least
        )


def rank_offers(
    offers: Sequence[Offer],
    objective: Objective,
    *,
    precisions: Sequence[Precision] = (),
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> Ranking:
    """Best plans of each cluster on each of its numbers of GPUs, ranked by the objective.

    The remaining time of the budget is shared evenly among the remaining searches.

    Raises:
        InputError: the objective lacks what it needs.
        InfeasibleError: nothing fits anywhere, or nothing meets the deadline.
        RunError: time ran out before there was any answer.
    """
    spending, answers, left_out, unanswered = budget or Budget(), list[OfferAnswer](), list[LeftOut](), 0
    pairs = [(offer, size) for offer in offers for size in offer.sizes]
    for number, (offer, size) in enumerate(pairs):
        spending.tell(f"{offer.name}, {counted(size, 'GPU')} ({number + 1} of {len(pairs)})")
        if objective.name == "gpus" and any(one.offer is offer for one in answers):
            continue  # fewer GPUs suffice
        if not spending.interrupted and spending.seconds_left > 0:
            share = spending.share(len(pairs) - number)
            try:
                optimum = optimise(
                    offer.question,
                    replace(objective, price=offer.price if objective.name == "cost" else None),
                    sizes=(size,),
                    precisions=precisions,
                    top=1,
                    restrictions=restrictions,
                    budget=share,
                )
                answers.append(OfferAnswer(offer=offer, optimum=optimum))
                spending.interrupted = share.interrupted
                continue
            except InfeasibleError as error:
                late = objective.deadline is not None and error.problems  # the only problem states the days
                why = error.problems[0].what if late else error.headline
                left_out.append(LeftOut(cluster=offer.name, gpus=size, why=why))
                continue
            except RunError as error:
                spending.failure = error
            except KeyboardInterrupt:
                if not (spending.keep_on_interrupt and answers):
                    raise
                spending.interrupted = True
        unanswered += 1
        left_out.append(LeftOut(cluster=offer.name, gpus=size, why=spending.why_ended))
    if not answers:
        if unanswered:
            raise spending.nothing_found()
        headline = f"{no_plan_words(offers[0].question, objective.deadline)} on any of these clusters"
        problems = [Problem(f"{one.cluster}, {counted(one.gpus, 'GPU')}", one.why) for one in left_out]
        unfit = "more GPUs or shorter sequences would do"
        hint = unfit if objective.deadline is None else LATE_HINT
        raise InfeasibleError(headline, problems=problems, hint=hint)

    def order(answer: OfferAnswer) -> tuple[float, float, float]:
        optimum = answer.optimum
        loss = objective.measure.loss(optimum.value)
        gpus = optimum.question.cluster.num_gpus
        return loss, answer.cost or gpus, optimum.result.best.step_seconds

    return Ranking(
        objective=objective,
        offers=tuple(offers),
        answers=tuple(sorted(answers, key=order)),
        left_out=tuple(left_out),
        unanswered=unanswered,
        seconds=spending.seconds_spent,
    )
