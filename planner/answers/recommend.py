"""Recommended layout: the simplest layout that is likely to fit in memory and whose step the model cannot
tell apart from the fastest.

A gain with odds below two to one (`cost_models.estimate`) does not justify a layout that is harder to run or
unlike any timed one. Kinds of layouts are tried from the simplest on: ordinary ones use no axis that no timed
run of the profile used. A kind is a set of restrictions, so its fastest layout is found and proved as any
other plan is.

Among layouts of one kind whose steps the model cannot distinguish, the profile's scenarios decide. The
compared layouts are those whose predicted step is within the unexplained deviation of the fastest: one, with
its fastest placement, for each choice of degrees and microbatch. The one with the least mean over the middle
half of the scenarios is chosen; single scenarios can be far off, as no run timed some of their constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from statistics import NormalDist
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from pydantic import ValidationError

from cost_models.axes.layout import COMPARED, Layout, axes_that_differ
from cost_models.errors import InfeasibleError, InputError
from cost_models.estimate import CLEAR, Estimate, chance_of_gain, deviation_on, pair_error_of
from cost_models.expected import ExpectedStep, expected_step
from cost_models.pipeline.pricing import estimate as price
from cost_models.pipeline.pricing import seconds_under_scenarios
from cost_models.question import Question
from cost_models.risk import FITTING, interquartile_mean
from cost_models.specs.choices import CONTEXTS, ORDERS, RECOMPUTE_POLICIES, SCHEDULES, Degree
from planner.formats.trainers import refusals, trainer_named, trainers_of
from planner.objectives import Certificate
from planner.plan import PlanChoice, PlanRecommendation, PlanRestrictions
from planner.rules.legality import check
from planner.search.branching import (
    TIE_TOLERANCE,
    BranchAndBound,
    SearchResult,
    SearchSettings,
    layouts_below,
)
from planner.search.candidates import UniformCandidates
from planner.search.search import Budget, close_proof, place_layout
from planner.space.axes import divisors
from planner.space.restrictions import Restrictions, satisfies

OPTIONAL = ("cp", "etp", "shard")
"""Axes that many trainers lack, or that few people turn on."""
_DEGREES: dict[Degree, str] = {
    "cp": "context parallelism",
    "tp": "tensor parallelism",
    "pp": "a pipeline",
    "ep": "expert parallelism",
}
"""Name in words of each parallel degree that a simple layout omits unless the degree is usual for the stack,
in the order in which kinds of layouts add degrees."""
_USUAL_SCHEDULES = {"gpipe", "1f1b", "interleaved"}
_MAX_TRIED = 60
"""Maximum number of layouts under one recompute policy that are priced to find the classical layout."""


class LayoutKind(NamedTuple):
    """Set of layouts defined by restrictions, such as ordinary axes without recomputation, and its
    description in words."""

    words: str
    """Phrase for the common property of these layouts, such as "use ordinary axes and recompute nothing"."""
    limits: Restrictions


def layout_kinds(question: Question, user: Restrictions) -> Iterator[LayoutKind]:
    """Yield sets of layouts from simple to general, each wider than the last and within the user's restrictions.

    If the stack has a trainer whose rules are known, their layouts obey them, so that its exporter can write
    them.
    """
    user = with_own_trainer(question, user)
    ordinary = _ordinary_restrictions(question, user)
    policies = ordinary.recompute(question)
    if "none" in policies and len(policies) > 1:
        forbidden = ordinary.forbidden_recompute | (set(policies) - {"none"})
        nothing = replace(ordinary, forbidden_recompute=forbidden)
        yield LayoutKind("use ordinary axes and recompute nothing", nothing)
    yield LayoutKind("use ordinary axes", ordinary)
    further: list[Degree] = []
    for degree in _DEGREES:
        wider = _ordinary_restrictions(question, user, [*further, degree])
        if wider != ordinary:
            ordinary = wider
            further.append(degree)
            yield LayoutKind(f"use ordinary axes and {' and '.join(_DEGREES[one] for one in further)}", wider)
    if user.trainer is not None:
        yield LayoutKind(f"{trainer_named(user.trainer).name} can run", user)


def with_own_trainer(question: Question, user: Restrictions) -> Restrictions:
    """Narrow restrictions to layouts that the trainer of the question's stack can run; unchanged if the user
    names a trainer or no rules of a trainer are known."""
    names = () if user.trainer else trainers_of(question.stack)
    return replace(user, trainer=names[0]) if names else user


def recommended_restrictions(question: Question, user: Restrictions) -> Iterator[Restrictions]:
    """Yield the restrictions under which to look for a layout to recommend, the strictest first, all narrower
    than the user's. The stack's trainer can run the layout and it fits with probability `FITTING`; then only
    the latter holds; then only the former."""
    sure, previous = user.with_confidence(question, FITTING), [user]
    for limits in (with_own_trainer(question, sure), sure, with_own_trainer(question, user)):
        if limits not in previous:
            yield limits
        previous.append(limits)


def refusing_trainer(question: Question, user: Restrictions, layout: Layout) -> str:
    """Name of the trainer (the user's, else the stack's) if it cannot run a layout; empty if it can."""
    name = with_own_trainer(question, user).trainer
    return trainer_named(name).name if name and refusals(name, question, layout) else ""


def _ordinary_restrictions(question: Question, user: Restrictions, also: Sequence[str] = ()) -> Restrictions:
    """Narrow the user's restrictions to layouts that are ordinary for the stack; degrees in `also` stay
    permitted.

    Excluded are axes that are not usual for the stack and that no timed run used, and context parallelism
    above the largest timed. Unless the user chooses, the order of axes and the kind of context parallelism
    are the stack's defaults, and schedules are usual or timed ones. Under a profile of all stacks the runs
    are of other trainers, which do not show what this stack's users turn on.
    """
    stack, timed, unused, maxima = question.stack, question.hardware.timed, {*user.unused}, {**user.maxima}
    runs = [one for one in timed if one.stack == stack.name] or timed
    for axis in dict.fromkeys([*OPTIONAL, *_DEGREES]):
        if axis in user.named_axes or axis in also or axis in stack.usual_degrees:
            continue
        relevant = runs if axis in OPTIONAL and question.hardware.stack != "any" else ()
        values = {value for one in relevant for value in one.values_of(axis)}
        if not values:
            unused.add(axis)
        elif axis == "cp":
            maxima[axis] = max(map(int, values))
    timed_schedules = {value for one in runs for value in one.values_of("schedule")} | _USUAL_SCHEDULES
    schedules = {SCHEDULES.index(name) for name in stack.schedules if name in timed_schedules}
    defaults = {
        "order": {ORDERS.index(stack.axis_orders[0])} if len(stack.axis_orders) > 1 else set(),
        "context": {CONTEXTS.index(stack.context_parallel)} if len(stack.context_kinds) > 1 else set(),
        "schedule": schedules if len(schedules) < len({*stack.schedules}) else set(),
    }
    named_axes = user.named_axes
    only = {axis: frozenset(values) for axis, values in defaults.items() if values and axis not in named_axes}
    return replace(user, unused=frozenset(unused), maxima=maxima, only={**only, **user.only})


def classical_layout(question: Question, limits: Restrictions) -> Estimate | None:
    """Find and price the layout that an expert would write down for the stack without a search. None if none
    of the first few candidates satisfies the restrictions and fits with the probability that they require."""
    question, stack = limits.apply_confidence(question), question.stack

    def priced(layout: Layout) -> Estimate | None:
        """Estimate of a layout; None if its blocks cannot be placed."""
        try:
            return price(question, place_layout(question, layout)).within(limits.max_memory)
        except InputError:  # no placement exists
            return None

    sharded = stack.usual_zero_stage or max(stage for stage in stack.zero_stages if stage <= 1)
    unsharded = (0,) if 0 in stack.zero_stages and sharded <= 1 else ()
    for zero in (*unsharded, sharded):
        for policy in (one for one in RECOMPUTE_POLICIES if one in question.training.recompute):
            for layout in islice(_layouts_by_size(question, limits, policy, zero), _MAX_TRIED):
                fitting = priced(layout)
                if fitting is not None and fitting.fits:
                    usual_layout = _replace_values(layout, zero=sharded if layout.data_ranks > 1 else 0)
                    return priced(usual_layout) if is_allowed(usual_layout, question, limits) else fitting
    return None


def is_allowed(layout: Layout | None, question: Question, limits: Restrictions) -> TypeGuard[Layout]:
    """Whether a layout is legal, within the restrictions, and supported by the trainer that the restrictions
    name; False for None."""
    if layout is None:
        return False
    return satisfies(question, limits, layout) and not check(question, layout, limits.trainer)


def _layouts_by_size(question: Question, limits: Restrictions, policy: str, zero: int) -> Iterator[Layout]:
    """Yield legal layouts with one sequence per microbatch, by rising tp × pp, then by falling tp."""
    cluster, model, usual_degrees = question.cluster, question.model, question.stack.usual_degrees
    degrees = [
        (tp * pp, -tp, tp, pp)
        for tp in (divisors(cluster.gpus_per_node) if "tp" in usual_degrees else [1])
        for pp in (divisors(cluster.num_gpus // tp) if "pp" in usual_degrees else [1])
        if model.num_layers % pp == 0
    ]
    ep = 1
    if model.has_experts and "ep" in usual_degrees:
        ep = max(degree for degree in divisors(model.num_experts) if degree <= cluster.gpus_per_node)
    for size, _, tp, pp in sorted(degrees):
        dp = cluster.num_gpus // size
        start = Layout(tp=tp, pp=pp, dp=dp, sp=tp > 1)
        fields = {"ep": ep, "zero": zero * (dp > 1), "recompute": (policy,)}
        chunks = divisors(model.num_layers // pp)[::-1] if pp > 1 else [1]
        shapes = (_replace_values(start, vpp=vpp, **fields) for vpp in chunks)
        yield from islice((shape for shape in shapes if is_allowed(shape, question, limits)), 1)


def _replace_values(layout: Layout, **values: Any) -> Layout | None:
    """Copy of a layout with some axis values replaced; None if the result is not a valid layout."""
    try:
        return Layout.model_validate(layout.model_dump(exclude={"schedule"}) | values)
    except (ValidationError, InputError):
        return None


LEAST_MEAN_GAIN = 1e-3
"""Minimum relative gain in the mean step over scenarios for which another layout is preferred to the fastest
predicted layout."""


class Alternative(NamedTuple):
    """Layout to compare with the recommended one."""

    estimate: Estimate
    axes: tuple[str, ...]
    """Names of the axes on which the two layouts differ."""
    chance: float
    """Probability that the layout is truly faster than the recommended one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Recommended layout of a question, compared with the fastest layout and with the layout that an expert
    would write down without a search."""

    question: Question
    """Question whose layouts were compared, under its risk."""
    estimate: Estimate
    """Price of the recommended layout, under the user's memory limit."""
    why: str
    """Common property of the simple layouts among which the recommended layout is the fastest; empty if it is
    the fastest of all layouts."""
    within: Restrictions
    """Restrictions within which the layout is proved the fastest, or was preferred to the fastest
    (`choice`)."""
    certificate: Certificate
    """Proof of the fastest layout within the restrictions `within`."""
    fastest: Alternative
    """Layout with the fastest predicted step, the answer of the original search."""
    classical: Alternative | None
    """Layout that an expert would write down without a search; None if no such layout fits."""
    within_error: int | None = None
    """Upper bound on the number of layouts whose step the model cannot tell apart from the fastest
    (`pair_error_of`). None if they were not counted."""
    expected: ExpectedStep | None = None
    """Expected step with a 90 % interval; None if the profile has no scenarios (plausible sets of
    constants)."""
    choice: PlanChoice | None = None
    """Record of why the layout was preferred to the fastest within the restrictions `within`; None if it is
    that fastest layout."""

    @property
    def is_fastest(self) -> bool:
        """Whether the recommended layout is also the fastest within the user's restrictions."""
        return not self.why

    @property
    def fills_devices(self) -> bool:
        """Whether the fastest layout was rejected because it fits in memory with too low a probability."""
        confidence = self.within.confidence
        return confidence is not None and self.fastest.estimate.fits_probability < confidence

    @property
    def is_risky(self) -> bool:
        """Whether the recommended layout fits in memory with a probability below `FITTING`, as no layout
        reaches it."""
        return self.within.confidence is None and self.estimate.fits_probability < FITTING

    @property
    def gain(self) -> float:
        """Step time that the fastest layout saves against the recommended one by prediction, as a share of
        the recommended step."""
        return 1 - self.fastest.estimate.compared_seconds / self.estimate.compared_seconds

    def for_file(self, user_restrictions: Restrictions, top: int) -> PlanRecommendation:
        """Convert the recommendation to the form stored in a plan file."""
        fastest = self.fastest.estimate
        classical = None if self.classical is None else self.classical.estimate
        return PlanRecommendation(
            why=self.why,
            asked=PlanRestrictions.of(user_restrictions),
            top=top,
            fastest=fastest.layout,
            fastest_seconds=fastest.step_seconds,
            fastest_weighed=fastest.weighed_seconds,
            fastest_bytes=fastest.peak_bytes,
            chance=self.fastest.chance,
            risk=self.question.risk,
            classical=None if classical is None else classical.layout,
            classical_seconds=None if classical is None else classical.step_seconds,
            choice=self.choice,
        )


def recommend(
    question: Question, result: SearchResult, restrictions: Restrictions, budget: Budget
) -> Recommendation | None:
    """Choose the layout to recommend after a finished search; None if the search did not prove its optimum.

    It fits with probability `FITTING`, if any layout does. If the question has a risk, steps are compared by
    its mean over scenarios.
    """
    if result.certificate.gap > 0 or budget.ended or question.has_pools:
        return None
    budget.tell("simpler layouts")
    sure = restrictions.with_confidence(question, FITTING)
    simplest = simplest_competitive(question, result, sure, budget)
    if simplest is None and sure != restrictions:  # none fits with that probability
        sure = restrictions
        simplest = simplest_competitive(question, result, sure, budget)
    if simplest is None or budget.ended:
        return None
    fastest, (kind, step), share = result.best, simplest, max_slowdown(question)
    is_fastest, compared = kind is result, kind
    everywhere = replace(step.limits, confidence=restrictions.confidence, max_memory=restrictions.max_memory)
    if is_fastest and share is not None and everywhere != restrictions:
        # the best of the kind came from the search of the question, so the kind is searched now
        slowest = kind.best.compared_seconds * (1 + share)
        compared = budget.try_search(question, step.limits, cutoff=slowest, closes_with_ilp=False) or kind
    layout, choice = kind.best.layout, None
    if (choice_made := choose_by_scenarios(question, step.limits, compared, budget)) is not None:
        is_fastest, kind, (layout, choice) = False, close_proof(compared), choice_made
    best = price(question, layout).within(restrictions.max_memory)
    classical = classical_layout(question, with_own_trainer(question, sure))
    return Recommendation(
        question=question,
        estimate=best,
        why="" if is_fastest else step.words,
        within=restrictions if is_fastest else step.limits,
        certificate=kind.certificate,
        choice=choice,
        fastest=_compare_with(question, best, fastest),
        classical=None if classical is None else _compare_with(question, best, classical),
        within_error=count_near(question, restrictions, result, budget),
        expected=expected_step(question, best),
    )


def simplest_competitive(
    question: Question, result: SearchResult, sure: Restrictions, budget: Budget
) -> tuple[SearchResult, LayoutKind] | None:
    """Find the simplest kind of layouts whose best layout is about as fast as the fastest within `sure`;
    return the search of that layout, and the kind. "About" means that the model cannot tell their steps
    apart. If there is no such kind, return the fastest layout. None if nothing fits, or time ends.

    If the trainer cannot run the fastest, the fastest that it can run takes its place, so that the answer is one
    that the trainer can run wherever any fits. Layouts that are too slow, or slower than the best of an earlier
    kind (which contains no others), are not searched for.
    """
    best = result.best
    reference, fallback = fastest_feasible(question, sure, result, budget), None
    if reference is None:
        if (fallback := budget.try_search(question, sure)) is None:
            return None
        reference = fallback.best
    kinds = [*layout_kinds(question, sure)]
    everything, can_run_all = LayoutKind(f"fit with {100 * FITTING:.0f} %", sure), True
    if _is_refused(question, kinds[-1].limits, reference):
        # a search among near steps is quicker, and mostly finds some
        near, limits = _slowest_competitive(question, reference), kinds[-1].limits
        runnable = budget.try_search(question, limits, cutoff=near, closes_with_ilp=False)
        if runnable is None or not runnable.estimates:
            runnable = budget.try_search(question, limits, closes_with_ilp=False)
        if runnable is not None and runnable.estimates:
            fallback, everything, reference, can_run_all = runnable, kinds.pop(), runnable.best, False
    cutoff = _slowest_competitive(question, reference)
    for number, step in enumerate(kinds):
        if reference is best and is_allowed(best.layout, question, step.limits):
            return result, step
        kind = budget.try_search(question, step.limits, cutoff=cutoff, closes_with_ilp=False)
        if kind is None or not kind.estimates:
            continue
        if chance_faster(question, kind.best, reference) < CLEAR:
            return close_proof(kind), step
        cutoff = min(cutoff, _no_slower_than(kind.best))
        if number == 1 and len(kinds) > 3 and can_run_all:  # most searches that get this far try every kind
            widest = budget.try_search(question, kinds[-1].limits, cutoff=cutoff, closes_with_ilp=False)
            if widest and widest.estimates and is_allowed(widest.best.layout, question, step.limits):
                break  # kinds between contain no other
    if reference is best:
        return result, everything
    fallback = fallback or budget.try_search(question, sure, cutoff=_no_slower_than(reference))
    return None if fallback is None else (close_proof(fallback), everything)


def fastest_feasible(
    question: Question, limits: Restrictions, result: SearchResult, budget: Budget
) -> Estimate | None:
    """Find the fastest of a search's layouts that fits in memory under other restrictions, with more
    recomputation if it needs that; None if none fits."""
    if _fits(question, limits, result.best.layout):
        return result.best
    fastest: Estimate | None = None
    for candidate in result.estimates:
        cutoff = math.inf if fastest is None else fastest.compared_seconds
        if candidate.compared_seconds < cutoff:
            pinned = limits.fix_layout(question, candidate.layout)
            fastest = budget.faster_than(cutoff, question, pinned) or fastest
    return fastest


def _no_slower_than(estimate: Estimate) -> float:
    """Largest step time, seconds, at which a layout counts as no slower than the estimate."""
    return estimate.compared_seconds * (1 + TIE_TOLERANCE)


def _fits(question: Question, limits: Restrictions, layout: Layout) -> bool:
    """Whether a layout fits in memory under the memory limit and required probability of some
    restrictions."""
    return price(limits.apply_confidence(question), layout).within(limits.max_memory).fits


def _is_refused(question: Question, limits: Restrictions, estimate: Estimate) -> bool:
    """Whether the trainer named by the restrictions cannot run the estimate's layout; False without a
    trainer."""
    return limits.trainer is not None and bool(refusals(limits.trainer, question, estimate.layout))


def chance_faster(question: Question, reference: Estimate, rival: Estimate) -> float:
    """Probability that the estimate `rival` is truly faster than the estimate `reference`, given their predicted
    steps."""
    gain = math.log(reference.compared_seconds / rival.compared_seconds)
    return chance_of_gain(gain, reference.layout, rival.layout, pair_error_of(question))


def _slowest_competitive(question: Question, reference: Estimate) -> float:
    """Step time, seconds, above which a layout is clearly slower than the reference, however many of its axes
    differ."""
    clear = NormalDist().inv_cdf(CLEAR) * deviation_on(len(COMPARED), pair_error_of(question))
    return reference.compared_seconds * math.exp(clear) * (1 + TIE_TOLERANCE)


def _compare_with(question: Question, best: Estimate, rival: Estimate) -> Alternative:
    """Compare a rival layout with the best: axes that differ, and probability that the rival is truly faster."""
    chance = chance_faster(question, best, rival)
    return Alternative(rival, axes_that_differ(best.layout, rival.layout), chance)


def max_slowdown(question: Question) -> float | None:
    """Largest relative slowdown against the fastest layout that a layout with a shorter mean step over
    scenarios may have. None if the profile has no scenarios, or the question gives its own risk."""
    scenarios = question.hardware.scenarios
    if scenarios is None or question.risk != "none" or question.has_pools:
        return None
    return scenarios.unexplained


def choose_by_scenarios(
    question: Question, limits: Restrictions, result: SearchResult, budget: Budget
) -> tuple[Layout, PlanChoice] | None:
    """Choose, among the fastest layouts of a finished search, the layout with the least mean step over
    scenarios (plausible sets of constants). It is returned with a record of the comparison; None if the
    search's best layout wins."""
    share, first = max_slowdown(question), result.best
    if share is None:
        return None
    limit, searches = first.compared_seconds * (1 + share), result.searches or _new_searches(question, limits)
    layouts = layouts_below(searches, limit, first.layout, lambda: budget.seconds_left > 0)
    seconds = [middle_seconds(question, one) for one in layouts]
    ranked = np.argsort([seconds[0] * (1 - LEAST_MEAN_GAIN), *seconds[1:]], kind="stable").tolist()
    best = next(at for at in ranked if not at or _fits(question, limits, layouts[at]))
    if not best:
        return None
    return layouts[best], PlanChoice(
        first=first.layout,
        first_seconds=first.step_seconds,
        share=share,
        layouts=len(layouts),
        middle_seconds=seconds[best],
        first_middle_seconds=seconds[0],
    )


def middle_seconds(question: Question, layout: Layout) -> float:
    """Interquartile mean of a layout's step time over the profile's scenarios, seconds."""
    seconds = seconds_under_scenarios(question, layout)
    assert seconds is not None
    return interquartile_mean(seconds)


def count_near(question: Question, limits: Restrictions, result: SearchResult, budget: Budget) -> int | None:
    """Count the layouts whose step is within the model's error of the fastest, from the final state of the
    search; None if they are too many, or time has run out."""
    cutoff, total, names = result.best.compared_seconds * (1 + pair_error_of(question)), 0, set[str]()
    searches = result.searches or _new_searches(question, limits)
    for search in searches:
        near = search.count_below(cutoff, lambda: budget.seconds_left > 0)
        if near is None:
            return None
        total += near
        if len(searches) > 1:  # several recompute policies share layouts
            names |= search.names(search.rows.first_bound < cutoff)
    return len(names) or total


def _new_searches(question: Question, limits: Restrictions) -> tuple[BranchAndBound, ...]:
    """Create searches over a question's layouts without running them, to count layouts where no search state
    exists."""
    searches = []
    for part in limits.by_recompute(question) or (limits,):
        with suppress(InfeasibleError):  # none is legal
            searches.append(BranchAndBound(UniformCandidates(question, part), SearchSettings()))
    return tuple(searches)
