"""The recommended layout: the simplest that surely fits and that the model cannot tell from the fastest that does.

A gain that is less likely than two to one (`cost_models.uncertainty`) does not pay for a layout that is harder to run
or unlike any timed one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import NormalDist

from cost_models.axes.layout import COMPARED, Layout, axes_that_differ
from cost_models.errors import InfeasibleError
from cost_models.estimate import Estimate
from cost_models.expected.steps import ExpectedStep, expected_step
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import MixedQuestion, Question
from cost_models.risk import FITTING, Risk
from cost_models.uncertainty import CLEAR, chance_of_gain, deviation_on, pair_error_of
from planner.answers.choosing import WithinError, choose, share_compared, within_error
from planner.answers.ordinary import Step, classical_layout, is_allowed, steps
from planner.certificate import Certificate
from planner.formats.trainers import refusals
from planner.plan import PlanChoice, PlanRecommendation, PlanRestrictions
from planner.search.branching import BEYOND
from planner.search.budget import Budget
from planner.search.result import SearchResult
from planner.search.search import settled
from planner.space.restrictions import Restrictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Another layout beside the recommended one."""

    estimate: Estimate
    axes: tuple[str, ...]
    """Axes on which the two differ."""
    chance: float
    """Chance that it is faster than the recommended one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommended layout, with the fastest on paper and the classical one beside it."""

    estimate: Estimate
    """Its memory limit is that of the question, however much room it leaves."""
    why: str
    """What layouts of its kind have in common; empty where it is the fastest of all."""
    within: Restrictions
    """Restrictions within which it is proved the fastest, or another is, in place of which it was chosen."""
    certificate: Certificate
    """The proof of that."""
    fastest: Beside
    """The fastest on paper: what was asked for."""
    classical: Beside | None
    """What an expert would write down; None where nothing so simple fits."""
    pair_error: float
    """Median error of the ratio of two times, on one axis in which layouts differ."""
    risk: Risk = "none"
    """What layouts were compared by."""
    within_error: WithinError | None = None
    """How many layouts the model cannot tell from the fastest; None where they were not counted."""
    expected: ExpectedStep | None = None
    """What its step should take, with a 90 % interval; None where the profile has no scenarios."""
    choice: PlanChoice | None = None
    """Why it is not the fastest of its kind on paper; None where it is."""

    @property
    def is_fastest(self) -> bool:
        """Whether nothing simpler comes close enough."""
        return not self.why

    @property
    def fills_devices(self) -> bool:
        """Whether it is memory that the fastest on paper lacks: it fits with less than a recommended layout must."""
        held = self.within.confidence
        return held is not None and self.fastest.estimate.fits_probability < held

    @property
    def is_risky(self) -> bool:
        """Whether it fits with less than a recommended layout should, as no layout does."""
        return self.within.confidence is None and self.estimate.fits_probability < FITTING

    @property
    def gain(self) -> float:
        """Share of the recommended step that the fastest saves on paper."""
        return 1 - self.fastest.estimate.compared_seconds / self.estimate.compared_seconds

    def written(self, asked: Restrictions, top: int) -> PlanRecommendation:
        """The recommendation as a plan file holds it."""
        fastest, classical = self.fastest.estimate, self.classical
        return PlanRecommendation(
            why=self.why,
            asked=PlanRestrictions.of(asked),
            top=top,
            fastest=fastest.layout,
            fastest_seconds=fastest.step_seconds,
            fastest_weighed=fastest.weighed_seconds,
            fastest_bytes=fastest.peak_bytes,
            chance=self.fastest.chance,
            risk=self.risk,
            classical=None if classical is None else classical.estimate.layout,
            classical_seconds=None if classical is None else classical.estimate.step_seconds,
            choice=self.choice,
        )


def recommend(
    question: Question, found: SearchResult, asked: Restrictions, budget: Budget
) -> Recommendation | None:
    """The layout to run, beside the fastest on paper of a finished search; None where that is not proved.

    It fits with `FITTING`, if any does. Where the question weighs scenarios, fastest means least of what it weighs.
    """
    if found.certificate.gap > 0 or budget.ended or isinstance(question, MixedQuestion):
        return None
    fastest = found.best
    judge = _Judge(question)
    budget.tell("simpler layouts")
    sure = asked.surely(question, FITTING)
    kind, step = _simplest(question, found, sure, judge, budget)
    if kind is None and sure != asked:  # none fits with that
        sure = asked
        kind, step = _simplest(question, found, sure, judge, budget)
    if kind is None or budget.ended:
        return None
    kind, layout, choice = _chosen(question, kind, step, asked, budget, others=kind is found)
    best = price(question, layout).within(asked.max_memory)
    classical = classical_layout(question, sure)
    is_fastest = kind is found and choice is None
    return Recommendation(
        estimate=best,
        why="" if is_fastest else step.words,
        within=asked if is_fastest else step.limits,
        certificate=kind.certificate,
        choice=choice,
        fastest=judge.beside(best, fastest),
        classical=None if classical is None else judge.beside(best, classical),
        pair_error=judge.pair_error,
        risk=question.risk,
        within_error=within_error(question, asked, found, budget),
        expected=expected_step(question, best),
    )


def _chosen(
    question: Question, kind: SearchResult, step: Step, asked: Restrictions, budget: Budget, *, others: bool
) -> tuple[SearchResult, Layout, PlanChoice | None]:
    """The layout chosen among the fastest of one kind, with the search of that kind. Its best may be that of a search
    of all that was asked, with `others`."""
    own, share = kind, share_compared(question)
    whole = replace(step.limits, confidence=asked.confidence, max_memory=asked.max_memory)
    if others and share is not None and whole != asked:
        most = kind.best.compared_seconds * (1 + share)
        own = _searched(question, step.limits, budget, most, settles=False) or kind
    chosen = choose(
        question,
        step.limits,
        own,
        lambda one: _fits(question, step.limits, one),
        lambda: budget.seconds_left > 0,
    )
    return (kind, kind.best.layout, None) if chosen is None else (settled(own, budget.solver), *chosen)


def _simplest(
    question: Question, found: SearchResult, sure: Restrictions, judge: _Judge, budget: Budget
) -> tuple[SearchResult | None, Step]:
    """The best of the first step that cannot be told from what the fastest come to within `sure`; where there is none
    the fastest there. None where nothing fits, or time ends. Where the trainer cannot run those fastest, a simpler step
    need only come as close to what it can run.

    A layout too slow to be taken, or slower than the best of a step before, which holds no others, is not searched for.
    """
    reference = _fitted(question, sure, found, budget)
    whole = _searched(question, sure, budget) if reference is None else None
    reference = reference or (None if whole is None else whole.best)
    everything = Step("keep to the question", sure)
    if reference is None:
        return None, everything
    below, slower = judge.slowest(reference), list[tuple[SearchResult, Step]]()
    for step, widest in _with_the_widest(steps(question, sure)):
        if reference is found.best and is_allowed(found.best.layout, question, step.limits):
            return found, step
        result = _searched(question, step.limits, budget, below, settles=False)
        if result is None or not result.estimates:
            continue
        if judge.chance(result.best, reference) < CLEAR:
            beside = slower if _is_refused(question, step.limits, reference) else []
            near = (one for one in beside if judge.chance(one[0].best, result.best) < CLEAR)
            result, step = next(near, (result, step))
            return settled(result, budget.solver), step
        slower.append((result, step))
        below = min(below, _no_slower_than(result.best))
        if widest is not None:
            most = _searched(question, widest.limits, budget, below, settles=False)
            if most and most.estimates and is_allowed(most.best.layout, question, step.limits):
                break  # the steps between have no other
    if reference is found.best:
        return found, everything
    whole = whole or _searched(question, sure, budget, _no_slower_than(reference))
    if whole is not None and not whole.estimates:  # the reference recomputes as the trainer cannot
        whole = _searched(question, sure, budget)
    return whole, Step(f"fit with {100 * FITTING:.0f} %", sure)


def _with_the_widest(steps: Iterator[Step]) -> Iterator[tuple[Step, Step | None]]:
    """Every step; the second of four or more with the last, as most that get so far go all the way."""
    every = list(steps)
    for at, step in enumerate(every):
        yield step, every[-1] if at == 1 and len(every) > 3 else None


def _no_slower_than(estimate: Estimate) -> float:
    """Seconds below which the layout and those that tie with it are found again."""
    return estimate.compared_seconds * (1 + BEYOND)


def _fitted(question: Question, limits: Restrictions, found: SearchResult, budget: Budget) -> Estimate | None:
    """The fastest of the ranked layouts as they are within some restrictions, with more recomputed where they must;
    None where none of them fits."""
    if _fits(question, limits, found.best.layout):
        return found.best
    fitted: Estimate | None = None
    for one in found.estimates:
        below = math.inf if fitted is None else fitted.compared_seconds
        if one.compared_seconds < below:
            with suppress(InfeasibleError):
                alone = limits.alone(question, one.layout)
                fitted = budget.faster_than(below, question, alone) or fitted
    return fitted


def _fits(question: Question, limits: Restrictions, layout: Layout) -> bool:
    """Whether a layout fits as some restrictions ask."""
    return price(limits.held(question), layout).within(limits.max_memory).fits


def _is_refused(question: Question, limits: Restrictions, estimate: Estimate) -> bool:
    """Whether a layout is one that the trainer of some restrictions cannot run."""
    return limits.trainer is not None and bool(refusals(limits.trainer, question, estimate.layout))


def _searched(
    question: Question,
    limits: Restrictions,
    budget: Budget,
    below: float = math.inf,
    *,
    settles: bool = True,
) -> SearchResult | None:
    """The fastest within some restrictions, proved; without an estimate where none takes less than `below` seconds, and
    None where nothing fits."""
    try:
        return budget.search(question, limits, top=1, below=below, settles=settles)
    except InfeasibleError:
        return None


@dataclass(frozen=True, slots=True)
class _Judge:
    """Compares layouts of one question by what they are judged by."""

    question: Question

    @property
    def pair_error(self) -> float:
        """Median error of the ratio of two times, on one axis in which layouts differ."""
        return pair_error_of(self.question)

    def chance(self, one: Estimate, other: Estimate) -> float:
        """Chance that `other` is the faster of the two."""
        gain = math.log(one.compared_seconds / other.compared_seconds)
        return chance_of_gain(gain, one.layout, other.layout, self.pair_error)

    def slowest(self, other: Estimate) -> float:
        """Seconds from which on no layout is so slow that `other` is not clearly faster, on however many axes the two
        differ."""
        clear = NormalDist().inv_cdf(CLEAR) * deviation_on(len(COMPARED), self.pair_error)
        return other.compared_seconds * math.exp(clear) * (1 + BEYOND)

    def beside(self, chosen: Estimate, other: Estimate) -> Beside:
        """Another layout beside the chosen one."""
        return Beside(
            estimate=other,
            axes=axes_that_differ(chosen.layout, other.layout),
            chance=self.chance(chosen, other),
        )
