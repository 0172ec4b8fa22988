"""Why a plan is what it is: its binding constraint, what it saves or pays against its closest rival, and why another
layout is not the plan.

A layout may be written in part, in every verb: what it does not say is free, and searched. It is complete, as tables
write it, where its degrees account for all GPUs and it says `mbs` and `zero`: what it does not name is then off. One
that places blocks, or says how many are recomputed, is complete, too. Of any other the fastest that surely fits is
meant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import AXES, Layout, first_same, parse_layout
from cost_models.errors import DoesNotFitError, InfeasibleError, InputError, Problem
from cost_models.estimate import Breakdown, Estimate
from cost_models.pipeline.pools import in_pools
from cost_models.pipeline.pricing import estimate as price
from cost_models.question import Question
from cost_models.risk import FITTING
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.explain.advice import Move, apply_move, changed_words
from planner.explain.compare import difference, gain, same_degrees
from planner.explain.what_if import NEGLIGIBLE_GAIN, Change, Sensitivity, sensitivities
from planner.objectives import Certificate
from planner.plan import Plan, PlanCache, Searched, priced_again, priced_within_restrictions
from planner.rules.legality import check, require_legal
from planner.search.given_layout import place_layout
from planner.search.search import SearchSettings, search, search_on
from planner.space.limits import left_out
from planner.space.restrictions import Restrictions, satisfies
from planner.space.space import shared_spaces

_AXIS = re.compile(r"[a-z]+|\S+", re.ASCII)
_PLACING = {"layers", "pools", "replicas"}
"""Axes that say where blocks lie."""
_SEARCH_SECONDS = 20.0
"""Time limit of the search for what is not said; its answer is then the best found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedLayout:
    """The layout that some words mean, priced."""

    estimate: Estimate
    filled: tuple[str, ...] = ()
    """Words that were not said and searched; none of a complete layout."""
    certificate: Certificate | None = None
    """The proof that no other words are faster; None where none were searched, or nothing fits."""


def complete_layout(question: Question, text: str, within: Restrictions | None = None) -> CompletedLayout:
    """The layout that `text` means, within restrictions (but what the text says itself goes before them).

    What is not said is searched among layouts that fit with `FITTING`, or where none does among all that fit. Where
    nothing fits at all it is the layout that comes closest.

    Raises:
        InputError: `text` is not a layout, or one that cannot run.
    """
    written, limits, axes = parse_layout(text), within or Restrictions(), _axes(text)
    layout: Layout | None = None
    certificate: Certificate | None = None
    if not _is_complete(question, written, axes):
        restricted = _restricted(written, axes, limits)
        for confidence in dict.fromkeys((FITTING, question.confidence)):
            sure = restricted.with_confidence(question, confidence)
            try:
                result = search(question, top=1, restrictions=sure, time_limit=_SEARCH_SECONDS)
            except DoesNotFitError as error:
                layout = error.closest.layout if isinstance(error.closest, Estimate) else None
            except InfeasibleError:  # none is legal, or of those that the search covers
                break
            else:
                layout, certificate = result.best.layout, result.certificate
                break
    filled: tuple[str, ...] = ()
    if layout is not None:
        words = str(layout.model_copy(update={"layers": ()})).split()
        filled = tuple(word for word in words if not _axes(word) & axes)
    else:
        layout = written
        dp, unused_gpus = divmod(question.cluster.num_gpus, layout.tp * layout.cp * layout.pp)
        if "dp" not in axes and not unused_gpus:  # all GPUs that the other degrees leave
            layout = parse_layout(f"{text} dp{dp}")
        require_legal(question, layout, limits.trainer, hosts=False)
        layout = place_layout(question, layout)
    priced = price(question, layout).within(limits.max_memory)
    return CompletedLayout(estimate=priced, filled=filled, certificate=certificate)


def _is_complete(question: Question, layout: Layout, axes: set[str]) -> bool:
    if _PLACING & axes or len(layout.recompute) > 1 or layout.recompute[0] not in RECOMPUTE_POLICIES:
        return True
    has_degrees = layout.num_gpus == question.cluster.num_gpus or {"tp", "pp", "dp"} <= axes
    return has_degrees and {"mbs", "zero"} <= axes


def _restricted(layout: Layout, axes: set[str], limits: Restrictions) -> Restrictions:
    """The restrictions to what the text says, and to those of `limits` that speak of other axes."""
    columns = LayoutColumns.of([layout])
    names = [name for axis in axes - {"recompute"} for name in AXES[axis].columns(axis)]
    free, values = limits.without(names), {name: int(getattr(columns, name)[0]) for name in names}
    if "recompute" in axes:
        free = replace(free, forbidden_recompute=frozenset(RECOMPUTE_POLICIES) - {layout.recompute[0]})
    return replace(free, only=free.only | {name: frozenset({value}) for name, value in values.items()})


def _axes(text: str) -> set[str]:
    """Axes that the words of a layout name."""
    return {match[0] for word in text.split() if (match := _AXIS.match(word))}


UNLIMITED = Change("device memory", 1e6)
"""The change to a question where nothing fails to fit."""
RIVALS_SECONDS = 20.0
"""Time limit of the search for the plan's rivals."""
RIVALS = 5
"""Number of plans searched for, as many as `plan` ranks: the plan itself, ties, and the next best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingConstraint:
    """The constraint that keeps the step from being faster."""

    resource: str
    """`memory`, or the largest part of the step (`compute`, `bubble`, `tp_comm`, ...)."""
    faster: Estimate | None = None
    """Where memory binds: the fastest neighbour, which does not fit, or not as surely as the plan must. None where the
    plan itself does not."""
    change: str = ""
    """How that neighbour differs, in words of the notation: "mbs2"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that `explain` says about a plan."""

    plan: Plan
    """How it came to be decides why another layout may be faster."""
    estimate: Estimate
    """Price of its layout today."""
    binding: BindingConstraint
    ties: tuple[Estimate, ...]
    """Other layouts whose step takes as long."""
    rival: Estimate | None
    """The fastest layout within the plan's restrictions that does not tie."""
    sensitivities: tuple[Sensitivity, ...]


def explain(plan: Plan, estimate: Estimate) -> Explanation:
    """Explain a plan that was priced again: find its rivals, and price what would change it.

    Layouts in the plan's cache are not searched for again. Plans are searched anew under each
    change only where the plan was searched for the fastest step, so that planning again answers the same question.
    """
    question, restrictions, cache = plan.question, plan.restrictions.read, PlanCache(plan)
    with shared_spaces().shared():
        rivals = search_rivals(plan, cache)
        replan = plan.searched and plan.objective_name == "time"
        changed = sensitivities(question, estimate, restrictions, cache, replan=replan)
    confident = restrictions.apply_confidence(question)
    binding = binding_constraint(confident, priced_within_restrictions(plan), restrictions)
    if binding.faster is not None:
        binding = replace(binding, faster=priced_again(plan, binding.faster.layout))
    return Explanation(
        plan=plan,
        estimate=estimate,
        binding=binding,
        ties=ties(estimate, rivals),
        rival=closest_rival(estimate, rivals),
        sensitivities=changed,
    )


def search_rivals(plan: Plan, cache: PlanCache) -> tuple[Estimate, ...]:
    """The fastest layouts within the plan's restrictions, the plan itself among them where it is one."""
    restrictions = plan.restrictions.read
    question = restrictions.apply_confidence(plan.question)

    def search() -> Searched:
        settings = SearchSettings(top=RIVALS, time_limit=RIVALS_SECONDS, closes_with_ilp=False)
        try:
            result = search_on(settings, question, restrictions)
        except InfeasibleError:  # a layout that was asked for may be all there is, and not fit
            return (), True
        return [one.layout for one in result.estimates], not result.certificate.undecided

    layouts = cache.layouts("rivals", search)
    return tuple(price(question, layout).within(restrictions.max_memory) for layout in layouts)


def binding_constraint(
    question: Question, estimate: Estimate, restrictions: Restrictions
) -> BindingConstraint:
    """The binding constraint of a plan that was searched within `restrictions`.

    Memory binds where some neighbour within the restrictions (the plan with less recomputed, another microbatch size,
    one degree moved to data parallelism, a lower ZeRO stage) would be faster but does not fit, or where the plan itself
    does not fit. Otherwise the largest part of the step that is worth naming binds.
    """
    if overflows(estimate, estimate):
        return BindingConstraint(resource="memory")
    roomy = UNLIMITED.of(question)
    assert roomy is not None
    tempting = [
        one
        for layout in _neighbours(question, estimate.layout)
        if not check(question, layout)
        and satisfies(question, restrictions, layout)
        and overflows(estimate, one := price(question, place_layout(roomy, layout)))
        and gain(estimate, one) > NEGLIGIBLE_GAIN
    ]
    if not tempting:
        return BindingConstraint(resource=estimate.bound_by)
    fastest = min(tempting, key=lambda priced: priced.step_seconds)
    change = changed_words(estimate.layout, fastest.layout)
    return BindingConstraint(resource="memory", faster=fastest, change=change)


def ties(estimate: Estimate, rivals: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """The rivals of other degrees whose step takes as long as the plan's."""
    others = (rival for rival in rivals if not same_degrees(rival.layout, estimate.layout))
    return tuple(rival for rival in others if abs(gain(estimate, rival)) <= NEGLIGIBLE_GAIN)


def closest_rival(estimate: Estimate, rivals: Sequence[Estimate]) -> Estimate | None:
    """The fastest rival of other degrees that does not tie; None where there is none."""
    tied = ties(estimate, rivals)
    apart = (one for one in rivals if not (one in tied or same_degrees(one.layout, estimate.layout)))
    return min(apart, key=lambda rival: rival.step_seconds, default=None)


def overflows(estimate: Estimate, other: Estimate) -> bool:
    """Whether `other` needs more memory than devices may fill within the limits of `estimate`."""
    if not estimate.layout.says_pools:
        return other.peak_bytes > estimate.memory_limit
    limits = {pool.pool: pool.memory_limit for pool in estimate.replicas}
    limits = limits or dict(zip(estimate.layout.pools, estimate.rank_limits, strict=True))
    peaks = [(pool.pool, pool.peak_bytes) for pool in other.replicas]
    ranks = zip(other.layout.pools, (rank.total for rank in other.rank_memory), strict=True)
    return any(peak > limits[pool] for pool, peak in peaks or ranks)


def _neighbours(question: Question, layout: Layout) -> list[Layout]:
    """The layout with its placement open, and those one degree or switch away that trade memory for speed, without
    what only a pipeline or a tensor group can have."""
    start = {"recompute": ("none",), "pools": layout.pools, "replicas": ()}
    moves: list[Move] = [{}, {"mbs": 2 * layout.mbs}]
    moves += [{"zero": layout.zero - 1}] if layout.zero else []
    moves += [{"tp": layout.tp // 2, "dp": 2 * layout.dp}] if layout.tp % 2 == 0 else []
    moves += [{"pp": layout.pp // 2, "dp": 2 * layout.dp, "pools": ()}] if layout.pp % 2 == 0 else []
    neighbours = [one for move in moves if (one := apply_move(layout, start | dict(move))) is not None]
    orders = [first_same(one.order, one.cp, one.dp, one.pp) for one in neighbours]
    neighbours = [
        one.model_copy(update={"order": order}) for one, order in zip(neighbours, orders, strict=True)
    ]
    if question.has_pools and layout.replicas:
        return [in_pools(question, one) for one in neighbours]
    return neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """The reason why a layout is not the plan, with its price beside the plan's."""

    layout: str
    """The layout as the user wrote it."""
    reason: Literal["illegal", "memory", "slower", "same", "faster"]
    problems: tuple[Problem, ...] = ()
    """Rules that an illegal layout breaks."""
    completed: CompletedLayout | None = None
    """The layout with its open axes filled in, priced; None for an illegal one."""
    excluded: bool = False
    """Whether the restrictions of the search exclude the layout, however fast it is."""
    left_out: tuple[str, ...] = ()
    """The limits of the search that it lies beyond, each as a sentence."""
    difference: Breakdown | None = None
    """layout − plan, seconds by part, largest first."""

    @property
    def estimate(self) -> Estimate | None:
        """Its price; where nothing fits, that of what comes closest."""
        return None if self.completed is None else self.completed.estimate


def why_not(
    question: Question, estimate: Estimate, text: str, restrictions: Restrictions | None = None
) -> WhyNot:
    """Why the layout written in `text` is not the plan; `restrictions` are what the plan was asked to keep to.

    What the text leaves out is free.

    Raises:
        InputError: `text` is not a layout.
    """
    parse_layout(text)
    try:
        completed = complete_layout(question, text, restrictions)
    except InputError as error:
        problems = error.problems or (Problem("", error.headline),)
        return WhyNot(layout=text, reason="illegal", problems=tuple(problems))
    priced = completed.estimate
    gained = gain(estimate, priced)
    reason: Literal["memory", "slower", "same", "faster"] = "faster" if gained > 0 else "slower"
    if overflows(estimate, priced):
        reason = "memory"
    elif abs(gained) <= NEGLIGIBLE_GAIN:
        reason = "same"
    return WhyNot(
        layout=text,
        reason=reason,
        completed=completed,
        excluded=restrictions is not None and not satisfies(question, restrictions, priced.layout),
        left_out=left_out(question, restrictions or Restrictions(), priced.layout),
        difference=difference(estimate.time, priced.time),
    )
