"""Best plan for any objective, over numbers of GPUs, precisions and offered clusters, by searches that prove
the fastest step.

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
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.defaults import questions_by_precision
from cost_models.errors import DoesNotFitError, InfeasibleError, Problem, RunError
from cost_models.estimate import Estimate
from cost_models.operators.flops import model_flops
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.cluster import Precision
from cost_models.units import counted, format_bytes, format_count, format_days
from planner.objectives import DAY, Certificate, Effort, Objective
from planner.placement.leaf import TOLERANCE
from planner.plan import Plan, PlanObjective, PlanOffer
from planner.search.branching import BranchAndBound, SearchResult, by_speed
from planner.search.pools import count_layouts
from planner.search.search import Budget
from planner.space.limits import tried_tensor_degrees
from planner.space.restrictions import Restrictions
from planner.space.sizes import resized

PROVEN = 2e-9
"""Largest relative gap that counts as a proof, because of rounding."""
LATE_HINT = "more GPUs, fewer tokens or a later deadline would do"
POINTS = 12
"""Default maximum number of plans on a frontier against memory."""
CLOSE = 5e-3
"""Relative gap of the least peak memory below which the search lowers the memory limit plan by plan rather
than halving its range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """Best plans of a question for an objective, best first, with a proven bound on the objective's value."""

    question: Question
    """Question with the best plan's number of GPUs and precision."""
    result: SearchResult
    """Plans and certificate of the search; the certificate counts the layouts of all searches and bounds the
    step time."""
    objective: Objective
    sizes: tuple[int, ...]
    """Numbers of GPUs among which the search chose; empty: only the question's own."""
    value: float
    """Value of the best plan under the objective, in the unit of the objective's measure."""
    bound: float
    """Proven bound on the objective's value: no covered plan has a better one."""
    precisions: tuple[Precision, ...] = ()
    """Precisions of matrix products among which the search chose; empty: only the question's own."""
    left_out: tuple[tuple[int, str], ...] = ()
    """Numbers of GPUs on which no plan was found, each with the reason."""
    other_precisions: tuple[tuple[Question, Estimate], ...] = ()
    """Question and best plan in every other precision than the best plan's."""

    @property
    def gap(self) -> float:
        """Largest relative improvement of the objective's value that the proven bound leaves possible; 0
        proves optimality."""
        return self.objective.measure.gap(self.value, self.bound)

    def value_of(self, estimate: Estimate) -> float:
        """Objective's value of a plan on the plan's own number of GPUs."""
        return self.objective.value(resized(self.question, estimate.layout.num_gpus), estimate)

    def recommending(self, layout: Estimate, certificate: Certificate) -> Optimum:
        """Copy in which a recommended layout with its own certificate replaces the best plans."""
        result = SearchResult(estimates=(layout,), certificate=certificate)
        bound = value_at_bound(self.question, self.objective, result)
        return replace(self, result=result, value=self.value_of(layout), bound=bound)

    @property
    def plain(self) -> bool:
        """Whether the objective is the fastest step and there was no choice among numbers of GPUs."""
        return self.objective == Objective() and not self.sizes

    def for_file(self, gpus_per_node: int) -> PlanObjective | None:
        """Convert the objective to the form stored in a plan file, for nodes of `gpus_per_node` GPUs. None
        for the fastest step on the question's own GPUs and precision."""
        if self.plain and not self.precisions:
            return None
        terms, deadline = asdict(self.objective), self.objective.deadline
        terms["deadline"] = None if deadline is None else f"{deadline!r} s"
        terms |= {"gpus": self.sizes, "precisions": self.precisions, "gpus_per_node": gpus_per_node}
        bound = self.bound if self.gap < 1 else None
        return PlanObjective(**terms, value=self.value, bound=bound)


def answered_question(plan: Plan) -> Question:
    """Question that a plan file answers; if the plan chose among numbers of GPUs, the question's cluster is
    one complete node."""
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
    """Search for the `top` best plans of a question for an objective.

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
        attempts += [_search_one(asked, objective, limits, top, spending) for asked in sized]
        if objective.name == "gpus" and any(one.estimates for one in attempts):
            break

    def loss(plan: tuple[_Attempt, Estimate]) -> float:
        """Loss of a plan under the objective, lower is better."""
        attempt, estimate = plan
        return objective.loss(attempt.question, estimate)

    # the fastest plan of an attempt may not be the best of it while the least peak is unproven
    plans = [[(one, estimate) for estimate in one.estimates] for one in attempts if one.estimates]
    leaders = sorted((min(of_attempt, key=loss) for of_attempt in plans), key=loss)
    if not leaders:
        raise _no_plan_error(question, objective, attempts, spending)
    (winner, best), measure = leaders[0], objective.measure
    value, unfinished = objective.value(winner.question, best), [one for one in attempts if one.is_unfinished]
    bound = measure.open if unfinished else measure.best(one.bound for one, _ in leaders)
    if objective.name == "gpus":
        bound = float(min([*(one.gpus for one in unfinished), winner.gpus]))
    ranked = sorted(chain.from_iterable(plans), key=loss)
    same_precision = [plan for plan in ranked if plan[0].precision == winner.precision][:top]
    estimates = tuple(priced for _, priced in same_precision)
    if limits.confidence is not None:  # memory limits are the question's own, not those of the confidence
        priced_alone = [estimate(one.question, priced.layout) for one, priced in same_precision]
        estimates = tuple(priced.within(limits.max_memory) for priced in priced_alone)
    ending = spending.why_ended + " for {}" * bool(precisions)
    empty = [one for one in attempts if not one.estimates]
    reasons = [one.error.headline if one.error else ending.format(one.precision) for one in empty]
    by_precision = {one.precision: one for one, _ in leaders[::-1] if one.precision != winner.precision}
    certificate = _certificate(objective, winner, attempts, limits, measure.gap(value, bound), spending)
    searches = tuple(winner.searches)
    return Optimum(
        question=winner.question,
        result=SearchResult(estimates=estimates, certificate=certificate, searches=searches),
        objective=objective,
        sizes=tuple(sizes),
        precisions=tuple(precisions),
        value=value,
        bound=bound,
        left_out=tuple(sorted((one.gpus, why) for one, why in zip(empty, reasons, strict=True))),
        other_precisions=tuple((one.question, one.estimates[0]) for one in by_precision.values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """Result of the search on one number of GPUs in one precision: plans, an error, or neither if time ran
    out."""

    question: Question
    estimates: Sequence[Estimate] = ()
    """Best plans that meet the deadline, best first."""
    certificate: Certificate | None = None
    """Proof that the plans are the best, or that no plan meets the deadline; None if nothing fits, or time
    ran out."""
    searches: Sequence[BranchAndBound] = ()
    """Final state of each search, from which later queries count layouts."""
    bound: float = 0.0
    """Proven bound on the objective's value of every covered plan."""
    error: InfeasibleError | None = None
    """Reason why there is no plan: nothing fits, or nothing is fast enough; None if there are plans, or time
    ran out."""
    late_seconds: tuple[float, ...] = ()
    """Seconds of training under plans that miss the deadline, if faster plans are not ruled out; else
    empty."""

    @property
    def is_unfinished(self) -> bool:
        return self.certificate is None and self.error is None

    @property
    def gpus(self) -> int:
        return self.question.cluster.num_gpus

    @property
    def precision(self) -> Precision:
        return self.question.training.precision


def _search_one(
    question: Question, objective: Objective, limits: Restrictions, top: int, budget: Budget
) -> _Attempt:
    """Find the best plans of one question that still meet the deadline, by one or several searches."""
    searched, errors, least_peak = list[SearchResult | None](), list[InfeasibleError](), 0.0
    for group in split_by_padding(question, limits) if objective.name == "mfu" else [limits]:
        try:
            if objective.name == "memory":
                smallest = MemoryDescent(question, group, budget).least_memory(objective, top=top)
                result, least_peak = smallest or (None, 0.0)
            else:
                result = budget.search(question, group, top=top)
            searched.append(result)
        except InfeasibleError as error:
            errors.append(error)
    if not searched:
        return _Attempt(question=question, error=errors[0])
    results = [result for result in searched if result is not None]
    everywhere, measure = len(results) == len(searched), objective.measure
    plans = [plan for result in results for plan in result.estimates]
    in_time = [plan for plan in plans if objective.meets_deadline(question, plan.step_seconds)]
    if not in_time:
        soonest = min((result.certificate.bound for result in results), default=0.0)
        if not everywhere or objective.meets_deadline(question, soonest):
            late = tuple(objective.training_seconds(question, one.best.step_seconds) for one in results)
            return _Attempt(question=question, late_seconds=late)
        too_slow = InfeasibleError(f"at least {format_days(objective.training_seconds(question, soonest))}")
        certificate = _add_counts([result.certificate for result in results])
        return _Attempt(question=question, certificate=certificate, error=too_slow)
    if objective.name == "memory":
        certificate = results[0].certificate
        return _Attempt(question=question, estimates=in_time, certificate=certificate, bound=least_peak)
    ranked = sorted(in_time, key=lambda plan: (objective.loss(question, plan), *by_speed(plan)))
    best, bounds = ranked[0], [value_at_bound(question, objective, result) for result in results]
    bound = measure.best(bounds) if everywhere else measure.open
    by_best = sorted(results, key=lambda result: best not in result.estimates)
    certificate = _add_counts([result.certificate for result in by_best])
    if len(results) > 1:
        gap = measure.gap(objective.value(question, best), bound)
        certificate = certificate.model_copy(update={"gap": gap, "bound": best.compared_seconds * (1 - gap)})
    return _Attempt(
        question=question,
        estimates=ranked[:top],
        certificate=certificate,
        searches=[search for result in results for search in result.searches],
        bound=bound,
    )


def value_at_bound(question: Question, objective: Objective, result: SearchResult) -> float:
    """Bound on the objective's value over all layouts of one search. It is the value that the best plan would
    have if its step took only the proven lower bound."""
    best, bound = result.best, result.certificate.bound
    if bound <= 0:
        return objective.measure.open
    mfu = best.mfu * best.compared_seconds / bound
    return objective.value(question, replace(best, step_seconds=bound, weighed_seconds=None, mfu=mfu))


_COUNTS = ("layouts", "infeasible", "pruned", "solved", "undecided", "seconds")


def _add_counts(certificates: Sequence[Certificate]) -> Certificate:
    """Copy of the first certificate, with the counts of layouts of all certificates added up."""
    sums = {name: sum(getattr(one, name) for one in certificates) for name in _COUNTS}
    return certificates[0].model_copy(update=sums)


def _certificate(
    objective: Objective,
    attempt: _Attempt,
    attempts: Sequence[_Attempt],
    limits: Restrictions,
    gap: float,
    budget: Budget,
) -> Certificate:
    """Certificate of the chosen answer: counts of layouts added up over all attempts, and the objective's gap
    over all attempts."""
    certificate = attempt.certificate
    assert certificate is not None
    if objective.name == "memory" and gap > PROVEN:
        certificate = certificate.model_copy(update={"gap": 1.0, "bound": 0.0, "settled": None})
    certificates = [certificate]
    for trial in attempts:
        if trial.certificate is None:
            layouts = count_layouts(trial.question, limits)
            counts = {"layouts": layouts, "undecided" if trial.is_unfinished else "infeasible": layouts}
            if layouts or trial.is_unfinished:
                certificates.append(certificate.model_copy(update=dict.fromkeys(_COUNTS, 0) | counts))
        elif trial is not attempt:
            certificates.append(trial.certificate)
    if len(certificates) == 1:
        return certificate
    merged, covered = _add_counts(certificates), [trial for trial in attempts if trial.error is None]
    gpus = dict.fromkeys(str(trial.gpus) for trial in covered)
    types = dict.fromkeys(trial.precision for trial in covered)
    space = f"{' / '.join(types)} on {', '.join(gpus)} GPUs: {merged.space}"
    changed: dict[str, object] = {"seconds": budget.seconds_spent, "space": space}
    if objective.name not in ("memory", "gpus"):
        changed |= {"gap": gap, "bound": attempt.estimates[0].compared_seconds * (1 - gap)}
    return merged.model_copy(update=changed)


def _no_plan_error(
    question: Question, objective: Objective, attempts: Sequence[_Attempt], budget: Budget
) -> InfeasibleError | RunError:
    """Create the error that no plan fits, that no plan meets the deadline, or that time ran out before a plan
    was found."""
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
    last, headline = errors[-1][1], no_plan_words(question, deadline)
    if len(errors) == 1 and deadline is None:
        return last
    words = [": ".join([error.headline, *(one.what for one in error.problems[:1])]) for _, error in errors]
    problems = [Problem(counted(gpus, "GPU"), what) for (gpus, _), what in zip(errors, words, strict=True)]
    hint = last.hint if deadline is None else LATE_HINT
    if deadline is None and isinstance(last, DoesNotFitError):
        return DoesNotFitError(headline, problems=problems, hint=hint, state_bytes=last.state_bytes)
    return InfeasibleError(headline, problems=problems, hint=hint)


def no_plan_words(question: Question, deadline: float | None) -> str:
    """Headline of the error that no plan fits or, with a `deadline` in seconds, that no plan meets the
    deadline."""
    if deadline is None:
        return f"no plan of {question.model.name} fits"
    tokens = format_count(question.training.tokens or 0.0)
    return f"no plan of {question.model.name} trains on {tokens} tokens within {format_days(deadline)}"


def split_by_padding(question: Question, limits: Restrictions) -> list[Restrictions]:
    """Split restrictions into parts whose tensor-parallel degrees have equal model FLOPs, the part with most
    FLOPs first. FLOPs differ because the padding of the vocabulary depends on tp."""
    groups: dict[float, set[int]] = {}
    for tp in tried_tensor_degrees(question, limits):
        groups.setdefault(model_flops(question.model, question.training, tp), set()).add(tp)
    if len(groups) < 2:
        return [limits]
    ranked = [frozenset(groups[flops]) for flops in sorted(groups, reverse=True)]
    return [replace(limits, only={**limits.only, "tp": degrees}) for degrees in ranked]


def limit_below(size: float) -> float:
    """Largest memory limit in bytes that excludes a peak of `size` bytes, within rounding."""
    return size * (1 - TOLERANCE)


@dataclass(frozen=True, slots=True)
class MemoryDescent:
    """Search for the plan with least peak memory, by searches under ever lower memory limits."""

    question: Question
    limits: Restrictions
    budget: Budget

    def least_memory(
        self, objective: Objective, *, top: int = 1, fastest: SearchResult | None = None
    ) -> tuple[SearchResult, float] | None:
        """Fastest plans at the least peak memory with which the deadline can be met, and a proven lower bound
        on peak memory in bytes; None if no plan was found in time. The bound is within a billionth of the
        least peak if that is proven.

        `fastest` is the result of the search for the fastest.

        Raises:
            InfeasibleError: nothing fits, or nothing that fits meets the deadline.
        """
        best = fastest or self.budget.search(self.question, self.limits, top=top)
        if best is None:
            return None
        if not objective.meets_deadline(self.question, best.best.step_seconds):
            raise InfeasibleError("nothing that fits meets the deadline")
        floor, peak = 0.0, best.best.peak_bytes
        while not self.budget.ended and floor < limit_below(peak):
            limit = (floor + peak) / 2 if peak - floor > CLOSE * peak else limit_below(peak)
            self.budget.tell(f"least memory between {format_bytes(floor)} and {format_bytes(peak)}")
            try:
                under = self._plan_under(limit, objective)
            except InfeasibleError:
                floor = limit
                continue
            if under is None:
                break
            best, peak = under, min(limit, *(one.peak_bytes for one in under.estimates))
        within_peak = replace(self.limits, max_memory=peak * (1 + TOLERANCE))
        best = self.budget.search(self.question, within_peak, top=top) or best
        if not self.question.has_pools:  # with the user's memory limit, in place of the tighter one
            layouts, user_limit = [one.layout for one in best.estimates], self.limits.max_memory
            plans = [estimate(self.question, layout).within(user_limit) for layout in layouts]
            best = replace(best, estimates=tuple(plans))
        return best, floor

    def _plan_under(self, limit: float, objective: Objective) -> SearchResult | None:
        """Find a plan that fits in `limit` bytes of each device and meets the deadline. A first search takes
        any plan that fits; if its plan is too slow, a second search looks for the fastest. None if time ran
        out.

        Raises:
            InfeasibleError: there is none.
        """
        efforts: tuple[Effort, ...] = ("any", "bounds")
        for effort in efforts:
            result = self.budget.search(self.question, replace(self.limits, max_memory=limit), effort=effort)
            if result is not None and objective.meets_deadline(self.question, result.best.step_seconds):
                return result
            if result is not None and not objective.meets_deadline(self.question, result.certificate.bound):
                raise InfeasibleError("nothing that fits meets the deadline")
        return None


@dataclass(frozen=True, slots=True)
class Offer:
    """Cluster that the user offers for a plan, with numbers of GPUs to choose from and a price."""

    question: Question
    """Question on complete nodes of the offered cluster."""
    sizes: tuple[int, ...]
    """Numbers of the cluster's GPUs among which to choose."""
    price: float | None = None
    """Dollars per GPU-hour; None if no price is given."""

    @property
    def name(self) -> str:
        """Name of the offered cluster."""
        return self.question.cluster.name

    @property
    def for_file(self) -> PlanOffer:
        """Convert the offer to the form stored in a plan file."""
        cluster, hardware = self.question.cluster, self.question.hardware
        return PlanOffer(cluster=cluster, hardware=hardware, gpus=self.sizes, price=self.price)


def offers_of(plan: Plan) -> tuple[Offer, ...]:
    """Offers of clusters among which the plan of a plan file was chosen; empty if there was no choice."""
    written, question = plan.objective.offers if plan.objective is not None else (), plan.question
    questions = [replace(question, cluster=one.cluster, hardware=one.hardware) for one in written]
    return tuple(Offer(each, one.gpus, one.price) for each, one in zip(questions, written, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAnswer:
    """Best plans on one offered cluster with one number of GPUs."""

    offer: Offer
    optimum: Optimum

    @property
    def days(self) -> float | None:
        """Days of training on all tokens with the best plan; None if the number of tokens is unknown."""
        question, step = self.optimum.question, self.optimum.result.best.step_seconds
        if question.training.tokens is None:
            return None
        return self.optimum.objective.training_seconds(question, step) / DAY

    @property
    def cost(self) -> float | None:
        """Dollars for training on all tokens with the best plan; None if the number of tokens or the price is
        unknown."""
        question, price = self.optimum.question, self.offer.price
        if question.training.tokens is None or price is None:
            return None
        return self.optimum.objective.gpu_hours(question, self.optimum.result.best.step_seconds) * price


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Best plans on every offered cluster and number of GPUs, best first, with a proven bound."""

    objective: Objective
    """Objective by which plans are ranked, without a price, since each cluster has its own."""
    offers: tuple[Offer, ...]
    answers: tuple[OfferAnswer, ...]
    left_out: tuple[tuple[str, int, str], ...]
    """Offered clusters and numbers of their GPUs on which no plan was found, each with the reason."""
    unanswered: int
    """Number of searches that ran out of time before an answer; the other entries of `left_out` are proven to
    have no plan."""
    seconds: float

    @property
    def best(self) -> OfferAnswer:
        """Answer (cluster and number of GPUs) with the best plan of all offers."""
        return self.answers[0]

    @property
    def bound(self) -> float:
        """Proven bound on the objective's value of every covered plan on every offered cluster."""
        bounds = [one.optimum.bound for one in self.answers]
        measure = self.objective.measure
        return measure.open if self.unanswered else measure.best(bounds)

    @property
    def gap(self) -> float:
        """Largest relative improvement of the best value that the proven bound leaves possible; 0 proves that
        the best is optimal."""
        return self.objective.measure.gap(self.best.optimum.value, self.bound)

    def places(self, answer: OfferAnswer) -> tuple[int, int]:
        """Highest and lowest rank that an answer may truly have, given the proven bounds. Each optimum lies
        between its bound and its value; both ranks are equal if these intervals do not overlap."""

        def surely_ahead(first: OfferAnswer, second: OfferAnswer) -> bool:
            """Whether `first`, which ranks before `second`, is proved to do so: no plan that `second` may
            still have is better."""
            return second.optimum.gap <= PROVEN or loss(first.optimum.value) <= loss(second.optimum.bound)

        place, loss = self.answers.index(answer), self.objective.measure.loss
        ahead = sum(surely_ahead(other, answer) for other in self.answers[:place])
        behind = sum(surely_ahead(answer, other) for other in self.answers[place + 1 :])
        return 1 + ahead, len(self.answers) - behind

    @property
    def frontier(self) -> tuple[OfferAnswer, ...]:
        """Pareto frontier of days and cost: answers that no other answer beats in both, the soonest first.
        Empty if either is unknown."""
        days = np.array([one.days for one in self.answers], float)  # NaN where unknown
        costs = np.array([one.cost for one in self.answers], float)
        return tuple(self.answers[place] for place in pareto_rows(days, costs, math.inf))


def pareto_rows(size: Array, seconds: Array, limit: float) -> Ints:
    """Indices of the rows on the Pareto frontier of least size and fewest seconds, by rising size, up to the
    size `limit`."""
    order = np.lexsort((seconds, size))
    order = order[(size[order] <= limit) & np.isfinite(seconds[order])]
    best_before = np.minimum.accumulate(np.concatenate([[np.inf], seconds[order][:-1]]))
    return order[seconds[order] < best_before]


def rank_offers(
    offers: Sequence[Offer],
    objective: Objective,
    *,
    precisions: Sequence[Precision] = (),
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> Ranking:
    """Search for the best plans on each offered cluster for each of its numbers of GPUs, and rank them by the
    objective.

    The remaining time of the budget is shared evenly among the remaining searches.

    Raises:
        InputError: the objective lacks what it needs.
        InfeasibleError: nothing fits anywhere, or nothing meets the deadline.
        RunError: time ran out before there was any answer.
    """
    spending, answers, left_out = budget or Budget(), list[OfferAnswer](), list[tuple[str, int, str]]()
    pairs, unanswered = [(offer, size) for offer in offers for size in offer.sizes], 0
    search = partial(optimise, precisions=precisions, top=1, restrictions=restrictions)
    for number, (offer, size) in enumerate(pairs):
        spending.tell(f"{offer.name}, {counted(size, 'GPU')} ({number + 1} of {len(pairs)})")
        if objective.name == "gpus" and any(one.offer is offer for one in answers):
            continue  # fewer GPUs suffice
        reason = ""
        if not spending.interrupted and spending.seconds_left > 0:
            share = spending.share(len(pairs) - number)
            priced = replace(objective, price=offer.price if objective.name == "cost" else None)
            try:
                optimum = search(offer.question, priced, sizes=(size,), budget=share)
                answers.append(OfferAnswer(offer=offer, optimum=optimum))
                spending.interrupted = share.interrupted
                continue
            except InfeasibleError as error:
                late = objective.deadline is not None and error.problems  # the only problem states the days
                reason = error.problems[0].what if late else error.headline
            except RunError as error:
                spending.failure = error
            except KeyboardInterrupt:
                if not (spending.keep_on_interrupt and answers):
                    raise
                spending.interrupted = True
        unanswered += not reason
        left_out.append((offer.name, size, reason or spending.why_ended))
    if not answers:
        if unanswered:
            raise spending.nothing_found()
        headline = f"{no_plan_words(offers[0].question, objective.deadline)} on any of these clusters"
        problems = [Problem(f"{name}, {counted(gpus, 'GPU')}", reason) for name, gpus, reason in left_out]
        hint = "more GPUs or shorter sequences would do" if objective.deadline is None else LATE_HINT
        raise InfeasibleError(headline, problems=problems, hint=hint)

    def order(answer: OfferAnswer) -> tuple[float, float, float]:
        """Sort key of an answer: loss, then cost or number of GPUs, then step seconds."""
        optimum, loss = answer.optimum, objective.measure.loss(answer.optimum.value)
        return loss, answer.cost or optimum.question.cluster.num_gpus, optimum.result.best.step_seconds

    return Ranking(
        objective=objective,
        offers=tuple(offers),
        answers=tuple(sorted(answers, key=order)),
        left_out=tuple(left_out),
        unanswered=unanswered,
        seconds=spending.seconds_spent,
    )
