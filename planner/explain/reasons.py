"""Explanations of a plan (its binding constraint, its closest rival, the effect of changed hardware), and
reasons why another layout is not the plan.

In a what-if one quantity of the question is changed, the unchanged plan is priced, and a better one is
searched.

Every verb accepts partial layouts: omitted words are free, and searched. A layout is complete, as in tables,
if its degrees account for all GPUs and it gives `mbs` and `zero`: omitted words are then off. A layout that
places blocks, or gives the number recomputed, is complete too. A partial layout stands for the fastest one
that fits with high probability.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, starmap
from typing import TYPE_CHECKING, Literal

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import AXES, Layout, parse_layout
from cost_models.axes.stages import policy_mask
from cost_models.errors import DoesNotFitError, InfeasibleError, InputError, Problem
from cost_models.estimate import Breakdown, Estimate
from cost_models.pipeline.pools import in_pools
from cost_models.pipeline.pricing import estimate as price
from cost_models.question import Question, each_pool, mixed_question
from cost_models.risk import FITTING
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.bounds.cores import best_known_bounds, ideal_seconds, known_infeasible
from planner.explain.advice import NEGLIGIBLE_GAIN, PLACING, Move, apply_move, changed_words
from planner.explain.compare import difference, gain, same_degrees
from planner.objectives import Certificate
from planner.plan import Plan, PlanCache, SearchedLayouts, priced_again, priced_within_restrictions
from planner.rules.legality import check, require_legal
from planner.search.branching import SearchSettings
from planner.search.search import Budget, place_layout, search, search_on
from planner.space.limits import left_out, tried_tensor_degrees
from planner.space.restrictions import Restrictions, satisfies
from planner.space.space import Space, legal_space, shared_spaces

if TYPE_CHECKING:
    import pandas as pd


SEARCH_SECONDS = 10.0
"""Time limit of the search for the best plan of one changed question, seconds; then the best so far is
used."""
TORNADO_FACTORS = (0.75, 1.25)
"""Factors by which a tornado chart changes each quantity, equal for all quantities so that bars can be
compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Effect on a plan of changing one quantity of its question, such as a bandwidth."""

    change: str
    """Words for the change, such as "half inter-node bandwidth"."""
    repriced: Estimate
    """Price of the unchanged plan under the changed question."""
    replanned: Estimate | None
    """Best plan of the changed question; None if no plan gains enough, or none was searched for."""

    @property
    def best(self) -> Estimate:
        """Estimate after the change, of the faster of two plans: the new best and the unchanged one. If the
        unchanged plan does not fit, it is of the new best."""
        replanned = self.replanned
        worth = NEGLIGIBLE_GAIN * self.repriced.step_seconds
        slower = replanned is None or self.repriced.step_seconds - replanned.step_seconds <= worth
        return self.repriced if replanned is None or (self.repriced.fits and slower) else replanned


def sensitivities(
    question: Question, estimate: Estimate, restrictions: Restrictions, cache: PlanCache | None
) -> tuple[Sensitivity, ...]:
    """Effects on a plan of the changes in `CHANGES` (links, memory, kernels) that apply to its question. Each
    has the unchanged plan's price and, with a `cache`, the best plan, from the cache or by a search."""
    effects = []
    for words, change in CHANGES.items():
        if (changed := change.apply(question)) is None:
            continue
        limits = scale_limits(restrictions, question, changed)
        repriced, best = price(changed, estimate.layout).within(limits.max_memory), None
        if cache is not None:
            cutoff = seconds_to_beat(repriced) * (1 - NEGLIGIBLE_GAIN)
            search = partial(_search, change, (question, changed), restrictions, cutoff)
            layouts, confident = cache.layouts(f"if {words}", search), limits.apply_confidence(changed)
            best = next((price(confident, one).within(limits.max_memory) for one in layouts), None)
        effects.append(Sensitivity(change=words, repriced=repriced, replanned=best))
    return tuple(effects)


def _search(change: Change, questions: Pair, limits: Restrictions, cutoff: float) -> SearchedLayouts:
    """Search for the best layout of a changed question; return it and whether the search ended in time."""
    budget, space = Budget(time_limit=SEARCH_SECONDS), searched_space(questions[0], limits)
    best = faster_under(change, questions, limits, cutoff, space, budget)
    return [best.layout] if best else [], budget.seconds_left > 0


def tornado_frame(question: Question, plan: Estimate, limits: Restrictions, budget: Budget) -> pd.DataFrame:
    """Data frame for a tornado chart: how a plan's step changes with a quarter more and a quarter less of
    each quantity. It has a row for each quantity and factor, the largest effects first.

    Columns: `quantity`, `factor`, `held_seconds` of the unchanged plan, `held_fits`, `step_seconds` and
    `layout` of the best plan then (NaN and empty if nothing fits, or time ran out), `plan_seconds`.
    Quantities that the question lacks are left out.
    """
    import pandas as pd

    rows = list[tuple[object, ...]]()
    with budget.spaces.shared():
        space = searched_space(question, limits)
    for change in starmap(Change, product(QUANTITIES, TORNADO_FACTORS)):
        if (changed := change.apply(question)) is None:
            continue
        budget.tell(f"{change.factor:.0%} of {change.quantity}")
        repriced = price(changed, plan.layout).within(scale_limits(limits, question, changed).max_memory)
        faster = faster_under(change, (question, changed), limits, seconds_to_beat(repriced), space, budget)
        best = faster or (repriced if repriced.fits else None)
        seconds, layout = (math.nan, "") if best is None else (best.step_seconds, best.layout.brief)
        largest = np.nanmax(np.abs(np.array([repriced.step_seconds, seconds]) - plan.step_seconds))
        row = (change.quantity, change.factor, repriced.step_seconds, repriced.fits, seconds, layout)
        rows.append((*row, plan.step_seconds, largest))
    columns = ("held_seconds", "held_fits", "step_seconds", "layout", "plan_seconds")
    frame = pd.DataFrame(rows, columns=["quantity", "factor", *columns, "order"])
    order = -frame["order"].groupby(frame["quantity"]).transform("max")
    ranked = frame.assign(order=order).sort_values(["order", "quantity", "factor"], ignore_index=True)
    return ranked.drop(columns="order")


Pair = tuple[Question, Question]
"""Question before and after a change."""


def faster_under(
    change: Change, questions: Pair, limits: Restrictions, cutoff: float, space: Space | None, budget: Budget
) -> Estimate | None:
    """Fastest plan of a changed question that takes less than `cutoff` seconds; None if there is none, or
    none was found in time.

    `limits` are those before the change, and `space` has the layouts of the question before it. Cores that the
    change cannot make fast enough, by their known bounds, are left out; those of tensor degrees that are
    tried only after the change form a space of their own.
    """
    original, changed = questions
    limits_after = scale_limits(limits, original, changed)
    question, spaces = limits_after.apply_confidence(changed), list[Space | None]([space])
    if space is not None:
        degrees = tried_tensor_degrees(question, limits_after)
        may_win = change.least_seconds(space, limits) < cutoff
        spaces = [space.with_question(question).of_cores(may_win & np.isin(space.cores.tp, degrees))]
        if added := frozenset(degrees) - {*tried_tensor_degrees(original, limits)}:
            only = limits_after.only | {"tp": added}
            spaces.append(legal_space(question, replace(limits_after, only=only)))
    fastest = None
    for part in spaces:
        faster = budget.faster_than(cutoff, question, limits_after, seconds=SEARCH_SECONDS, space=part)
        if faster is not None:
            fastest, cutoff = faster, faster.compared_seconds
    return fastest


def seconds_to_beat(repriced: Estimate) -> float:
    """Step time that a new plan of a changed question must beat, seconds: that of the old plan, or infinity
    if the old plan no longer fits."""
    return repriced.compared_seconds if repriced.fits else math.inf


def searched_space(question: Question, restrictions: Restrictions) -> Space | None:
    """Space of all legal layouts that a search within some restrictions covers; None with several pools,
    which have no single space."""
    return None if question.has_pools else legal_space(restrictions.apply_confidence(question), restrictions)


def scale_limits(restrictions: Restrictions, original: Question, changed: Question) -> Restrictions:
    """Copy of the restrictions whose memory limit grows or shrinks with the device memory of the changed
    question."""
    if restrictions.max_memory is None:
        return restrictions
    factor = changed.cluster.gpu.memory / original.cluster.gpu.memory
    return replace(restrictions, max_memory=restrictions.max_memory * factor)


_INSIDE_NODES = ("compute efficiency", "intra-node bandwidth")
"""Names of the quantities on which the ideal lower bounds of all layouts depend (`planner.bounds.cores`).
Those of links do so only for tensor groups that cross nodes."""
QUANTITIES = (*_INSIDE_NODES, "device memory", "inter-node bandwidth", "bandwidth between buildings")
"""Names of the quantities of a pool's hardware that `scale` multiplies."""


def scale(question: Question, quantity: str, factor: float) -> Question | None:
    """Copy of the question with one hardware quantity, named as in `QUANTITIES`, multiplied by a factor; None
    if the question lacks the quantity.

    Compute includes attention, whether given by efficiency or by measured curve. The bandwidth within a node is
    lacking if measured curves replace its formula.
    """
    cluster, hardware, buildings = question.cluster, question.hardware, question.cluster.buildings
    match quantity:
        case "compute efficiency":
            names = ("gemm_efficiency", "attention_forward_efficiency", "attention_backward_efficiency")
            rates = {name: getattr(hardware, name) * factor for name in names}
            curves = tuple(curve.faster(factor) for curve in hardware.attention)
            return question.updated("hardware", attention=curves, **rates)
        case "device memory":
            memory = cluster.gpu.memory * factor
            return question.updated("cluster", gpu=cluster.gpu.model_copy(update={"memory": memory}))
        case "intra-node bandwidth" if cluster.gpus_per_node > 1 and not hardware.collectives:
            return question.updated("cluster", links=cluster.links.faster(intra_node=factor))
        case "inter-node bandwidth" if cluster.nodes > 1 and cluster.links.inter_node is not None:
            return question.updated("cluster", links=cluster.links.faster(inter_node=factor))
        case "bandwidth between buildings" if buildings is not None and cluster.nodes > buildings.nodes:
            farther = buildings.model_copy(update={"link": buildings.link.faster(factor)})
            return question.updated("cluster", buildings=farther)
    return None


_BETWEEN_POOLS = "bandwidth between pools"


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a question that multiplies one quantity, such as a bandwidth, by a factor."""

    quantity: str
    """Key of `QUANTITIES`, or the bandwidth between pools of GPUs."""
    factor: float

    def apply(self, question: Question) -> Question | None:
        """Copy of the question with the quantity multiplied; None if the question lacks the quantity."""
        if self.quantity != _BETWEEN_POOLS:
            return each_pool(question, lambda pool: scale(pool, self.quantity, self.factor))
        if question.mixed is None:
            return None
        link = question.pool_link.faster(self.factor)
        return mixed_question(question.mixed.model_copy(update={"between": link}), question.pools)

    def least_seconds(self, space: Space, restrictions: Restrictions) -> Array:
        """Lower bound on the step after the change, seconds (N,), for each of N cores (layouts that differ
        only in ZeRO stage, sharding and schedule). It is derived from the bounds before the change.

        Bounds of cores are sums of seconds and maxima of such sums, without memory. If nothing gets faster no
        bound falls. A quantity that gets faster by a factor reduces a sum by at most that factor, and sums
        without it not at all; for links this holds for ideal bounds only, as several transfers may be hidden
        by the same compute. Split backward passes are excluded: their bounds subtract what hides transfers.
        """
        allowed = policy_mask(restrictions.recompute(space.question))
        of_memory = self.quantity == "device memory"
        crosses = space.cores.tp > space.question.cluster.gpus_per_node
        touched = (crosses | (self.quantity in _INSIDE_NODES)) & (not of_memory)
        if of_memory or self.factor <= 1:
            bounds = best_known_bounds(space, allowed)
        elif self.quantity == "compute efficiency":
            bounds = best_known_bounds(space, allowed) / self.factor
        else:
            bounds = ideal_seconds(space, allowed) / np.where(touched, self.factor, 1.0)
        if space.splits_backward:
            bounds = np.where(touched, 0.0, bounds)
        if of_memory and self.factor > 1:
            return bounds
        return np.where(known_infeasible(space, allowed, restrictions.max_memory), np.inf, bounds)


CHANGES = {
    "+10 % intra-node bandwidth": Change("intra-node bandwidth", 1.1),
    "half inter-node bandwidth": Change("inter-node bandwidth", 0.5),
    "double inter-node bandwidth": Change("inter-node bandwidth", 2.0),
    "half bandwidth between buildings": Change("bandwidth between buildings", 0.5),
    "double bandwidth between buildings": Change("bandwidth between buildings", 2.0),
    "+25 % device memory": Change("device memory", 1.25),
    "+10 % compute efficiency": Change("compute efficiency", 1.1),
    "double bandwidth between pools": Change(_BETWEEN_POOLS, 2.0),
}
"""Common changes of links, memory and kernels, by the words that describe them."""


_AXIS = re.compile(r"[a-z]+|\S+", re.ASCII)
_COMPLETION_SECONDS = 20.0
"""Time limit of the search for the words that a layout text omits, seconds; then the best so far is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedLayout:
    """Layout that a user typed, with the omitted settings chosen by a search, and its price."""

    estimate: Estimate
    filled: tuple[str, ...] = ()
    """Words that the text omits and a search chose; empty for a complete layout."""
    certificate: Certificate | None = None
    """Proof that no other choice of the omitted words is faster; None if nothing was searched, or nothing
    fits."""


def complete_layout(question: Question, text: str, bounds: Restrictions | None = None) -> CompletedLayout:
    """Find the best layout that agrees with the words of `text` and, on all other axes, with the restrictions
    `bounds`.

    Omitted words are searched among layouts that fit with `FITTING`, or if none does among all that fit. If
    nothing fits at all it is the closest layout.

    Raises:
        InputError: `text` is not a layout, or one that cannot run.
    """
    written, limits, axes = parse_layout(text), bounds or Restrictions(), _axes(text)
    levels = [] if _is_complete(question, written, axes) else [FITTING, question.confidence]
    best: Estimate | None = None
    certificate, filled, layout = None, tuple[str, ...](), written
    for confidence in dict.fromkeys(levels):
        sure = _restricted(written, axes, limits).with_confidence(question, confidence)
        try:
            result = search(question, top=1, restrictions=sure, time_limit=_COMPLETION_SECONDS)
            best, certificate = result.best, result.certificate
            break
        except DoesNotFitError as error:
            best = error.closest
        except InfeasibleError:  # no layout is legal, or covered by the search
            break
    if best is not None:
        layout = best.layout
        words = str(layout.model_copy(update={"layers": ()})).split()
        filled = tuple(word for word in words if not _axes(word) & axes)
    else:
        dp, unused_gpus = divmod(question.cluster.num_gpus, layout.tp * layout.cp * layout.pp)
        if "dp" not in axes and not unused_gpus:  # the remaining GPUs
            layout = parse_layout(f"{text} dp{dp}")
        require_legal(question, layout, limits.trainer, hosts=False)
        layout = place_layout(question, layout)
    priced = price(question, layout).within(limits.max_memory)
    return CompletedLayout(estimate=priced, filled=filled, certificate=certificate)


def _is_complete(question: Question, layout: Layout, axes: set[str]) -> bool:
    """Whether a typed layout is complete, so that omitted words keep their defaults instead of being
    searched."""
    if axes & {*PLACING} or len(layout.recompute) > 1 or layout.recompute[0] not in RECOMPUTE_POLICIES:
        return True
    has_degrees = layout.num_gpus == question.cluster.num_gpus or {"tp", "pp", "dp"} <= axes
    return has_degrees and {"mbs", "zero"} <= axes


def _restricted(layout: Layout, axes: set[str], limits: Restrictions) -> Restrictions:
    """Restrictions with the given `axes` fixed to the layout's values and all other axes restricted as in
    `limits`."""
    columns = LayoutColumns.of([layout])
    names = [name for axis in axes - {"recompute"} for name in AXES[axis].columns(axis)]
    free, values = limits.without(names), {name: int(getattr(columns, name)[0]) for name in names}
    if "recompute" in axes:
        free = replace(free, forbidden_recompute=frozenset(RECOMPUTE_POLICIES) - {layout.recompute[0]})
    return replace(free, only=free.only | {name: frozenset({value}) for name, value in values.items()})


def _axes(text: str) -> set[str]:
    """Names of the axes that a layout's text sets."""
    return {match[0] for word in text.split() if (match := _AXIS.match(word))}


UNLIMITED = Change("device memory", 1e6)
"""Change to so much device memory that every layout fits."""
RIVALS_SECONDS = 20.0
"""Time limit of the search for the plan's rivals, seconds."""
RIVALS = 5
"""Number of layouts to search for as rivals: the plan itself, those that tie, and the next best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingConstraint:
    """Constraint (memory or a part of the step) that keeps a plan's step from being faster."""

    resource: str
    """Name of the constraint: `memory`, or the largest part of the step (`compute`, `bubble`, `tp_comm`,
    ...)."""
    faster: Estimate | None = None
    """Fastest layout near the plan's that lacks memory or the required probability of fitting, if memory
    binds; else None. None if another resource binds, or the plan itself does not fit."""
    change: str = ""
    """Words of layout notation in which `faster` differs from the plan's layout, such as "mbs2"; empty
    without `faster`."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of a plan: price, binding constraint, rivals and sensitivities."""

    plan: Plan
    """Plan to explain, with the record of its search."""
    estimate: Estimate
    """Price of the plan's layout with the installed version."""
    binding: BindingConstraint
    ties: Sequence[Estimate]
    """Layouts of other degrees whose step takes as long as the plan's."""
    rival: Estimate | None
    """Fastest layout of other degrees, within the plan's restrictions, whose step takes longer; None if there
    is none."""
    sensitivities: tuple[Sensitivity, ...]


def explain(plan: Plan, estimate: Estimate) -> Explanation:
    """Explain why a plan has its step time: its rivals, the constraint that binds it, and the effect of faster links,
    more memory and other changes.

    Layouts in the plan's cache are not searched for again. The best plan under each change is searched only
    if the plan was searched for the fastest step, so that planning again answers the same question.
    """
    question, restrictions, cache = plan.question, plan.restrictions.read, PlanCache(plan)
    with shared_spaces().shared():
        ties, rival = ties_and_rival(estimate, search_rivals(plan, cache))
        replan = plan.searched and plan.objective_name == "time"
        effects = sensitivities(question, estimate, restrictions, cache if replan else None)
    confident = restrictions.apply_confidence(question)
    binding = binding_constraint(confident, priced_within_restrictions(plan), restrictions)
    if binding.faster is not None:
        binding = replace(binding, faster=priced_again(plan, binding.faster.layout))
    return Explanation(plan, estimate, binding, ties, rival, effects)


def search_rivals(plan: Plan, cache: PlanCache) -> tuple[Estimate, ...]:
    """Search for the fastest layouts within the plan's restrictions, the plan's layout included."""
    restrictions = plan.restrictions.read
    question = restrictions.apply_confidence(plan.question)

    def search() -> SearchedLayouts:
        """Layouts found by the search, and whether the search decided all layouts."""
        settings = SearchSettings(top=RIVALS, time_limit=RIVALS_SECONDS, closes_with_ilp=False)
        try:
            result = search_on(settings, question, restrictions)
        except InfeasibleError:  # a requested layout may be the only one, and not fit
            return (), True
        return [one.layout for one in result.estimates], not result.certificate.undecided

    layouts = cache.layouts("rivals", search)
    return tuple(price(question, layout).within(restrictions.max_memory) for layout in layouts)


def binding_constraint(question: Question, estimate: Estimate, limits: Restrictions) -> BindingConstraint:
    """Find the constraint that keeps a plan, searched within `limits`, from being faster.

    Memory binds if a neighbour within the restrictions (the plan with less recomputation, another microbatch
    size, one degree moved to data parallelism, a lower ZeRO stage) would be faster but does not fit, or if
    the plan itself does not fit. Otherwise the largest part of the step binds, or compute if no other is
    large.
    """
    if exceeds_memory(estimate, estimate):
        return BindingConstraint(resource="memory")
    roomy = UNLIMITED.apply(question)
    assert roomy is not None
    tempting = [
        neighbour
        for layout in _neighbours(question, estimate.layout)
        if not check(question, layout)
        and satisfies(question, limits, layout)
        and exceeds_memory(estimate, neighbour := price(question, place_layout(roomy, layout)))
        and gain(estimate, neighbour) > NEGLIGIBLE_GAIN
    ]
    if not tempting:
        return BindingConstraint(resource=estimate.bound_by)
    fastest = min(tempting, key=lambda priced: priced.step_seconds)
    change = changed_words(estimate.layout, fastest.layout)
    return BindingConstraint(resource="memory", faster=fastest, change=change)


def ties_and_rival(estimate: Estimate, rivals: Sequence[Estimate]) -> tuple[list[Estimate], Estimate | None]:
    """Select, among rivals with other degrees than the plan's, those whose step ties with the plan's, and the
    fastest of the others (None if all tie)."""
    different = [rival for rival in rivals if not same_degrees(rival.layout, estimate.layout)]
    ties = [rival for rival in different if abs(gain(estimate, rival)) <= NEGLIGIBLE_GAIN]
    distinct = (rival for rival in different if rival not in ties)
    return ties, min(distinct, key=lambda rival: rival.step_seconds, default=None)


def exceeds_memory(estimate: Estimate, rival: Estimate) -> bool:
    """Whether the layout of `rival` needs more memory than the devices of `estimate` may use."""
    if not estimate.layout.pools_field:
        return rival.peak_bytes > estimate.memory_limit
    limits = {pool.pool: pool.memory_limit for pool in estimate.replicas}
    limits = limits or dict(zip(estimate.layout.pools, estimate.rank_limits, strict=True))
    peaks = [(pool.pool, pool.peak_bytes) for pool in rival.replicas]
    ranks = zip(rival.layout.pools, (rank.total for rank in rival.rank_memory), strict=True)
    return any(peak > limits[pool] for pool, peak in peaks or ranks)


def _neighbours(question: Question, layout: Layout) -> list[Layout]:
    """Neighbours of a layout that trade memory for speed, each different by one degree or switch, and the
    layout itself. All are without placement and without settings that only a pipeline or a tensor group can
    have."""
    start = {"recompute": ("none",), "pools": layout.pools, "replicas": ()}
    moves: list[Move] = [{}, {"mbs": 2 * layout.mbs}]
    moves += [{"zero": layout.zero - 1}] if layout.zero else []
    moves += [{"tp": layout.tp // 2, "dp": 2 * layout.dp}] if layout.tp % 2 == 0 else []
    moves += [{"pp": layout.pp // 2, "dp": 2 * layout.dp, "pools": ()}] if layout.pp % 2 == 0 else []
    neighbours = [near for move in moves if (near := apply_move(layout, start | dict(move))) is not None]
    if question.has_pools and layout.replicas:
        return [in_pools(question, near) for near in neighbours]
    return neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """Reason why the layout that a user asks about is not the plan, with the difference of the steps."""

    layout: str
    """Text of the layout as the user wrote it."""
    reason: Literal["illegal", "memory", "slower", "same", "faster"]
    problems: tuple[Problem, ...] = ()
    """Rules that the layout breaks; empty unless it is illegal."""
    completed: CompletedLayout | None = None
    """Layout with the omitted words filled in, and its price; None for an illegal layout."""
    excluded: bool = False
    """Whether the restrictions of the plan's search exclude the layout, however fast it is."""
    left_out: tuple[str, ...] = ()
    """Sentences on default limits of the search that exclude the layout."""
    difference: Breakdown | None = None
    """Difference in step seconds to the plan, positive where this layout is slower, by part, the largest
    first; None for an illegal layout."""

    @property
    def estimate(self) -> Estimate | None:
        """Estimate of the completed layout or, if nothing fits, of the layout that exceeds memory least; None
        for an illegal layout."""
        return None if self.completed is None else self.completed.estimate


def why_not(question: Question, estimate: Estimate, text: str, limits: Restrictions | None = None) -> WhyNot:
    """Find the reason why the layout written in `text` is not the plan of a search with the restrictions
    `limits`.

    Words that the text omits are free.

    Raises:
        InputError: `text` is not a layout.
    """
    parse_layout(text)
    try:
        completed = complete_layout(question, text, limits)
    except InputError as error:
        problems = error.problems or (Problem("", error.headline),)
        return WhyNot(layout=text, reason="illegal", problems=tuple(problems))
    priced = completed.estimate
    gained = gain(estimate, priced)
    reason: Literal["memory", "slower", "same", "faster"] = "faster" if gained > 0 else "slower"
    if exceeds_memory(estimate, priced):
        reason = "memory"
    elif abs(gained) <= NEGLIGIBLE_GAIN:
        reason = "same"
    return WhyNot(
        layout=text,
        reason=reason,
        completed=completed,
        excluded=limits is not None and not satisfies(question, limits, priced.layout),
        left_out=left_out(question, limits or Restrictions(), priced.layout),
        difference=difference(estimate.time, priced.time),
    )
