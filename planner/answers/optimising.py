"""The best plan for any objective, over one number of GPUs or several, from proven time-optimal searches.

On one number of GPUs the step time is minimised, except for MFU (one search for each padding of the vocabulary, of
which the best counts) and peak memory (`planner.answers.least_memory`). Of several numbers of GPUs each is searched;
for the fewest GPUs in rising order until one meets the deadline, when each before it is proven not to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cost_models.defaults import questions_by_precision
from cost_models.errors import DoesNotFitError, InfeasibleError, Problem, RunError
from cost_models.operators.flops import model_flops
from cost_models.question import Question
from cost_models.specs.cluster import Precision
from cost_models.units import counted, format_count, format_days
from planner.answers.least_memory import least_memory
from planner.answers.optimum import PROVEN, BestPlans, Optimum, merged, ranked_plans
from planner.certificate import Certificate
from planner.objectives import Objective
from planner.search.budget import Budget
from planner.search.pools import count_layouts
from planner.search.result import SearchResult, by_speed
from planner.space.gpu_counts import resized
from planner.space.limits import tried_tensor_degrees
from planner.space.restrictions import Restrictions


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

    `sizes` are numbers of GPUs and `precisions` precisions of GEMMs to choose from, both in place of the question's
    own. When the budget's time runs out, or on Ctrl-C where it keeps interrupts, the best so far is returned with its
    proven gap. All ranked plans have the best one's precision.

    Raises:
        InputError: the objective lacks what it needs, or the GPU has no matrix rate in a precision.
        InfeasibleError: nothing fits, or nothing meets the deadline.
        RunError: time ran out before anything was placed.
    """
    objective.require_complete(question)
    questions = questions_by_precision(question, precisions) if precisions else (question,)
    choices = _Choices(objective, restrictions or Restrictions(), top, budget or Budget())
    counts = tuple(sorted(sizes)) or (question.cluster.num_gpus,)
    for number, gpus in enumerate(counts, start=1):
        if len(counts) > 1:
            choices.budget.tell(f"{counted(gpus, 'GPU')} ({number} of {len(counts)})")
        for one in questions:
            choices.search(resized(one, gpus) if sizes else one)
        if objective.name == "gpus" and choices.answers:
            break
    return choices.best(question, tuple(sizes), tuple(precisions))


@dataclass(slots=True)
class _Choices:
    """Answers found so far, for every number of GPUs and every precision searched."""

    objective: Objective
    limits: Restrictions
    top: int
    budget: Budget
    answers: list[BestPlans] = field(default_factory=list)
    failures: list[tuple[int, InfeasibleError]] = field(default_factory=list)
    """Numbers of GPUs on which nothing fits or nothing is fast enough, with the error."""
    unfinished: list[Question] = field(default_factory=list)
    """Questions for which time ran out."""
    late: list[float] = field(default_factory=list)
    """Seconds of training under plans of these that were found and miss the deadline."""
    covered: list[Question] = field(default_factory=list)
    """Questions whose layouts are counted, answered or unfinished, in the order of searching."""
    lost: list[Certificate] = field(default_factory=list)
    """Certificates of searches that found nothing fast enough."""
    unfit: int = 0
    """Number of layouts of the searches in which nothing fits."""

    def search(self, question: Question) -> None:
        """Search one question and keep its answer or its failure."""
        gpus = question.cluster.num_gpus
        try:
            answer = self._answer(question)
        except InfeasibleError as error:
            self.failures.append((gpus, error))
            self.unfit += count_layouts(question, self.limits)
            return
        if answer is None:
            self.covered.append(question)
            self.unfinished.append(question)
        elif answer.estimates:
            self.covered.append(question)
            self.answers.append(answer)
        else:
            days = format_days(self.objective.training_seconds(question, answer.certificate.bound))
            self.failures.append((gpus, InfeasibleError(f"at least {days}")))
            self.lost.append(answer.certificate)

    def _answer(self, question: Question) -> BestPlans | None:
        """The best plans that meet the deadline (none where none does); None where time ran out before that was
        decided.

        Raises:
            InfeasibleError: nothing fits.
        """
        objective, budget = self.objective, self.budget
        if objective.name == "memory":
            least = least_memory(question, objective, self.limits, top=self.top, budget=budget)
            if least is None:
                return None
            in_time = tuple(e for e in least.result.estimates if objective.meets_deadline(question, e))
            return BestPlans(question, in_time, least.result.certificate, least.bound)
        groups = paddings(question, self.limits) if objective.name == "mfu" else [self.limits]
        results, failures = [], []
        for group in groups:
            try:
                results.append(budget.search(question, group, top=self.top))
            except InfeasibleError as error:
                failures.append(error)
        if len(failures) == len(groups):
            raise failures[0]
        found = [result for result in results if result is not None]
        answer = ranked_plans(question, objective, found, self.top, everywhere=len(found) == len(results))
        if answer is None:
            self.late += [objective.training_seconds(question, one.best.step_seconds) for one in found]
        return answer

    def best(self, question: Question, sizes: tuple[int, ...], precisions: tuple[Precision, ...]) -> Optimum:
        """The best answer over all questions, with the layouts of all of them counted.

        Raises:
            InfeasibleError: there is none.
            RunError: searches ended before there was one.
        """
        if not self.answers:
            if self.late and not self.budget.interrupted:
                raise _too_late(self.objective, min(self.late))
            if self.unfinished:
                raise self.budget.nothing_found()
            raise _nothing(question, self.objective, self.failures)
        objective, measure = self.objective, self.objective.measure
        by_loss = sorted(self.answers, key=lambda one: (measure.loss(one.value(objective)), one.gpus))
        chosen = by_loss[0]
        value, bound = (
            chosen.value(objective),
            measure.loss(min(measure.loss(one.bound) for one in self.answers)),
        )
        if objective.name == "gpus":
            bound = float(min([*(one.cluster.num_gpus for one in self.unfinished), chosen.gpus]))
        elif self.unfinished:
            bound = measure.open
        same = [one for one in self.answers if _precision(one.question) == _precision(chosen.question)]
        ranked = sorted(
            ((one.question, estimate) for one in same for estimate in one.estimates),
            key=lambda pair: (
                measure.loss(objective.value(*pair)),
                pair[0].cluster.num_gpus,
                *by_speed(pair[1]),
            ),
        )
        others = {_precision(one.question): one for one in by_loss[::-1] if one not in same}
        return Optimum(
            question=chosen.question,
            result=SearchResult(
                estimates=tuple(estimate for _, estimate in ranked[: self.top]),
                certificate=self._certificate(chosen, measure.gap(value, bound)),
                searches=chosen.searches,
            ),
            objective=objective,
            sizes=sizes,
            precisions=precisions,
            value=value,
            bound=bound,
            left_out=tuple(
                sorted(
                    [(gpus, error.headline) for gpus, error in self.failures]
                    + [
                        (
                            one.cluster.num_gpus,
                            f"{self.budget.why_ended}{f' for {_precision(one)}' * bool(precisions)}",
                        )
                        for one in self.unfinished
                    ]
                )
            ),
            others=tuple((one.question, one.estimates[0]) for one in others.values()),
        )

    def _certificate(self, chosen: BestPlans, gap: float) -> Certificate:
        """The chosen answer's certificate, with the layouts of all searches counted and the gap over all of them."""
        rest = [one.certificate for one in self.answers if one is not chosen] + self.lost
        if self.objective.name == "memory" and gap > PROVEN:
            nothing = {"gap": 1.0, "bound": 0.0, "settled": None}
            chosen = replace(chosen, certificate=chosen.certificate.model_copy(update=nothing))
        if not rest and not self.unfit and not self.unfinished:
            return chosen.certificate
        both = merged([chosen.certificate, *rest])
        unsearched = sum(count_layouts(one, self.limits) for one in self.unfinished)
        gpus = dict.fromkeys(str(one.cluster.num_gpus) for one in self.covered)
        types = dict.fromkeys(_precision(one) for one in self.covered)
        where = f"{' / '.join(types)} on {', '.join(gpus)} GPUs: {both.space}"
        changed: dict[str, object] = {
            "seconds": self.budget.seconds_spent,
            "space": where,
            "layouts": both.layouts + self.unfit + unsearched,
            "undecided": both.undecided + unsearched,
            "infeasible": both.infeasible + self.unfit,
        }
        if self.objective.name not in ("memory", "gpus"):
            changed |= {"gap": gap, "bound": chosen.estimates[0].compared_seconds * (1 - gap)}
        return both.model_copy(update=changed)


def _precision(question: Question) -> Precision:
    return question.training.precision


def paddings(question: Question, limits: Restrictions) -> list[Restrictions]:
    """The restrictions split by the tensor-parallel degrees with equal model FLOPs (padded vocabulary), most FLOPs
    first."""
    groups: dict[float, set[int]] = {}
    for tp in tried_tensor_degrees(question, limits):
        groups.setdefault(model_flops(question.model, question.training, tp), set()).add(tp)
    if len(groups) < 2:
        return [limits]
    return [
        replace(limits, only={**limits.only, "tp": frozenset(groups[flops])})
        for flops in sorted(groups, reverse=True)
    ]


def _too_late(objective: Objective, seconds: float) -> RunError:
    """The error that the plans found miss the deadline, and faster ones are not ruled out."""
    assert objective.deadline is not None
    return RunError(
        f"no plan found meets the deadline of {format_days(objective.deadline)}: the fastest takes"
        f" {format_days(seconds)}, and faster ones are not ruled out",
        hint="allow more with --time-limit, or a later --deadline",
    )


def _nothing(
    question: Question, objective: Objective, failures: Sequence[tuple[int, InfeasibleError]]
) -> InfeasibleError:
    """The error that no number of GPUs has a plan."""
    if len(failures) == 1 and objective.deadline is None:
        return failures[0][1]
    if objective.deadline is None:
        headline, hint = f"no plan of {question.model.name} fits", failures[-1][1].hint
    else:
        tokens = format_count(question.training.tokens or 0.0)
        days = format_days(objective.deadline)
        headline = f"no plan of {question.model.name} trains on {tokens} tokens within {days}"
        hint = "more GPUs, fewer tokens or a later deadline would do"
    problems = [
        Problem(
            counted(gpus, "GPU"),
            ": ".join([error.headline, *(problem.what for problem in error.problems[:1])]),
        )
        for gpus, error in failures
    ]
    last = failures[-1][1]
    if objective.deadline is None and isinstance(last, DoesNotFitError):
        return DoesNotFitError(headline, problems=problems, hint=hint, state_bytes=last.state_bytes)
    return InfeasibleError(headline, problems=problems, hint=hint)
