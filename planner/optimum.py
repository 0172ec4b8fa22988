"""The best plan for any objective, over one number of GPUs or several, from proven time-optimal searches.

What is minimised on one number of GPUs is the step time, except for MFU (one search for each padding of the vocabulary,
the best of them) and for peak memory (`planner.least_memory`). Over several numbers every one is searched; for the
fewest GPUs they are searched in rising order until one meets the deadline, and each before it is proven not to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.errors import InfeasibleError, Problem
from cost_models.estimate import Estimate
from cost_models.question import Question
from cost_models.units import format_count
from cost_models.workload.flops import model_flops
from planner.budget import Budget
from planner.least_memory import least_memory
from planner.objectives import Objective, training_seconds
from planner.plan import Certificate, Plan, PlanObjective
from planner.search import SearchResult
from planner.search_space import Restrictions
from planner.sizes import resized

DAY = 86400.0
PROVEN = 2e-9
"""A gap no larger is rounding: the least peak is known to a billionth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best plans for an objective, best first, and how far that is proven."""

    question: Question
    """On the best plan's number of GPUs."""
    result: SearchResult
    """Its certificate counts the layouts of all searches; its `bound` and `gap` are of the step time."""
    objective: Objective
    sizes: tuple[int, ...]
    """Numbers of GPUs to choose from; empty: the question's own."""
    value: float
    """Of the best plan, in the unit of the objective's measure."""
    bound: float
    """No covered plan is better."""
    left_out: tuple[tuple[int, str], ...] = ()
    """Numbers of GPUs without an answer, and why."""

    @property
    def gap(self) -> float:
        """Share of the value that could still be gained; 0 is proof."""
        return self.objective.measure.gap(self.value, self.bound)

    def value_of(self, estimate: Estimate) -> float:
        """Of one of the ranked plans, on its own number of GPUs."""
        return self.objective.value(resized(self.question, estimate.layout.num_gpus), estimate)

    @property
    def plain(self) -> bool:
        """The fastest step on the question's own GPUs was asked for."""
        return self.objective == Objective() and not self.sizes

    def written(self, gpus_per_node: int) -> PlanObjective | None:
        """As a plan file holds it, for nodes of so many GPUs; None for the fastest step on the question's own GPUs."""
        asked = self.objective
        if self.plain:
            return None
        return PlanObjective(
            name=asked.name,
            price=asked.price,
            deadline=None if asked.deadline is None else f"{asked.deadline!r} s",  # type: ignore[arg-type]
            gpus=self.sizes,
            gpus_per_node=gpus_per_node,
            value=self.value,
            bound=self.bound if self.gap < 1 else None,
        )


def asked_question(plan: Plan) -> Question:
    """What a plan answers: its question, on whole nodes where the number of GPUs was part of the answer."""
    question, objective = plan.question, plan.objective
    if objective is None or not objective.gpus:
        return question
    nodes = plan.cluster.model_copy(update={"gpus_per_node": objective.gpus_per_node, "nodes": 1})
    return replace(question, cluster=nodes)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The best plans on one number of GPUs."""

    question: Question
    estimates: tuple[Estimate, ...]
    certificate: Certificate
    bound: float
    """In the unit of the measure."""


def optimise(
    question: Question,
    objective: Objective,
    *,
    sizes: Sequence[int] = (),
    top: int = 5,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> Optimum:
    """The `top` best plans of a question for an objective.

    `sizes` are numbers of GPUs to choose from, in place of the question's own. When the budget's time runs out, or on
    Ctrl-C where it keeps interrupts, the best so far comes back with its proven gap.

    Raises:
        InputError: the objective lacks what it needs.
        InfeasibleError: nothing fits, or nothing meets the deadline.
        RunError: time ran out before anything was placed.
    """
    objective.require_complete(question)
    limits, spending = restrictions or Restrictions(), budget or Budget()
    answers: list[_Answer] = []
    failures: list[tuple[int, InfeasibleError]] = []
    open_sizes: list[int] = []
    counts = tuple(sorted(sizes)) or (question.cluster.num_gpus,)
    for number, gpus in enumerate(counts, start=1):
        there = resized(question, gpus) if sizes else question
        if spending.say is not None and len(counts) > 1:
            spending.say(f"{gpus} GPUs ({number} of {len(counts)})")
        try:
            answer = _on_one_size(there, objective, limits, top, spending)
        except InfeasibleError as error:
            failures.append((gpus, error))
            continue
        if answer is None:
            open_sizes.append(gpus)
            continue
        answers.append(answer)
        if objective.name == "gpus":
            break
    if not answers:
        if open_sizes:
            raise spending.nothing_found()
        raise _nothing(question, objective, failures)
    left_out = [(gpus, error.headline) for gpus, error in failures]
    left_out += [(gpus, "time ran out") for gpus in open_sizes]
    return _merged(objective, tuple(sizes), answers, open_sizes, sorted(left_out), top, spending)


def _on_one_size(
    question: Question, objective: Objective, limits: Restrictions, top: int, budget: Budget
) -> _Answer | None:
    """The best plans that meet the deadline; None where time ran out before that was decided.

    Raises:
        InfeasibleError: there is none.
    """
    if objective.name == "memory":
        least = least_memory(question, objective, limits, top=top, budget=budget)
        if least is None:
            return None
        return _Answer(question, least.result.estimates, least.result.certificate, least.bound)
    groups = paddings(question, limits) if objective.name == "mfu" else [limits]
    results, failures = [], []
    for group in groups:
        try:
            results.append(budget.search(question, group, top=top))
        except InfeasibleError as error:
            failures.append(error)
    if len(failures) == len(groups):
        raise failures[0]
    found = [result for result in results if result is not None]
    everywhere = len(found) == len(results)
    in_time = [e for result in found for e in result.estimates if objective.meets_deadline(question, e)]
    if not in_time:
        soonest = min((result.certificate.bound for result in found), default=0.0)
        if not everywhere or objective.may_meet_deadline(question, soonest):
            return None
        raise too_late(question, soonest)
    measure = objective.measure
    ranked = sorted(in_time, key=lambda e: (measure.loss(objective.value(question, e)), *_order(e)))
    loss = min(measure.loss(objective.value(question, _at_bound(result))) for result in found)
    certificate = _added([result.certificate for result in found])
    if len(found) > 1:
        best = ranked[0]
        gap = measure.gap(objective.value(question, best), measure.loss(loss)) if everywhere else 1.0
        certificate = certificate.model_copy(update={"gap": gap, "bound": best.step_seconds * (1 - gap)})
    return _Answer(
        question, tuple(ranked[:top]), certificate, measure.loss(loss) if everywhere else measure.open
    )


def _order(estimate: Estimate) -> tuple[float, float, str]:
    """How the search ranks what is as good."""
    return estimate.step_seconds, estimate.peak_bytes, str(estimate.layout)


def _at_bound(result: SearchResult) -> Estimate:
    """The best plan as if its step took no longer than was proven."""
    best, bound = result.best, result.certificate.bound
    faster = best.step_seconds / bound
    return replace(best, step_seconds=bound, mfu=best.mfu * faster, hfu=best.hfu * faster)


def too_late(question: Question, step_seconds: float) -> InfeasibleError:
    """Nothing meets the deadline; `step_seconds` is proven to be no more than the fastest takes."""
    days = training_seconds(question, step_seconds) / DAY
    return InfeasibleError(f"at least {days:.1f} days")


def _added(certificates: Sequence[Certificate]) -> Certificate:
    """Several searches as one: the counts of all, the bound and the gap of the first."""
    counts = ("layouts", "infeasible", "pruned", "solved", "undecided", "seconds")
    sums = {name: sum(getattr(one, name) for one in certificates) for name in counts}
    return certificates[0].model_copy(update=sums)


def _merged(
    objective: Objective,
    sizes: tuple[int, ...],
    answers: Sequence[_Answer],
    open_sizes: Sequence[int],
    left_out: Sequence[tuple[int, str]],
    top: int,
    budget: Budget,
) -> Optimum:
    """The best over all numbers of GPUs, with the layouts of all of them counted."""
    measure = objective.measure
    ranked = sorted(
        ((answer.question, estimate) for answer in answers for estimate in answer.estimates),
        key=lambda pair: (measure.loss(objective.value(*pair)), pair[0].cluster.num_gpus, *_order(pair[1])),
    )[:top]
    question, best = ranked[0]
    value = objective.value(question, best)
    bound = measure.loss(min(measure.loss(answer.bound) for answer in answers))
    if objective.name == "gpus":
        bound = float(min([*open_sizes, question.cluster.num_gpus]))
    elif open_sizes:
        bound = measure.open
    chosen = next(answer for answer in answers if answer.question is question)
    added = _added([chosen.certificate, *(a.certificate for a in answers if a is not chosen)])
    gap = measure.gap(value, bound)
    searched = ", ".join(str(answer.question.cluster.num_gpus) for answer in answers)
    where = f"each of {searched} GPUs: " if len(answers) > 1 else ""
    changed: dict[str, object] = {"seconds": budget.spent, "space": where + added.space}
    if objective.name not in ("memory", "gpus") and len(answers) > 1:
        changed |= {"gap": gap, "bound": best.step_seconds * (1 - gap)}
    return Optimum(
        question=question,
        result=SearchResult(
            estimates=tuple(estimate for _, estimate in ranked),
            certificate=added.model_copy(update=changed),
        ),
        objective=objective,
        sizes=sizes,
        value=value,
        bound=bound,
        left_out=tuple(left_out),
    )


def paddings(question: Question, limits: Restrictions) -> list[Restrictions]:
    """The restrictions split by the tensor-parallel degrees that count the same model FLOPs, most of them first."""
    per_node = question.cluster.gpus_per_node
    degrees = limits.only.get("tp", frozenset(range(1, per_node + 1)))
    groups: dict[float, set[int]] = {}
    for tp in sorted(degrees):
        if per_node % tp == 0:
            groups.setdefault(model_flops(question.model, question.training, tp), set()).add(tp)
    if len(groups) < 2:
        return [limits]
    return [
        replace(limits, only={**limits.only, "tp": frozenset(groups[flops])})
        for flops in sorted(groups, reverse=True)
    ]


def _nothing(
    question: Question, objective: Objective, failures: Sequence[tuple[int, InfeasibleError]]
) -> InfeasibleError:
    """The answer is no on every number of GPUs."""
    if len(failures) == 1 and objective.deadline is None:
        return failures[0][1]
    tokens = format_count(question.training.tokens or 0.0)
    within = (
        f" trains on {tokens} tokens within {objective.deadline / DAY:g} days"
        if objective.deadline
        else " fits"
    )
    return InfeasibleError(
        f"no plan of {question.model.name}{within}",
        problems=[Problem(f"{gpus:,} GPUs", error.headline) for gpus, error in failures],
        hint="more GPUs, fewer tokens or a later deadline would do"
        if objective.deadline
        else failures[-1][1].hint,
    )
