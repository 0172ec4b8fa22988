"""Why a plan is what it is: its binding constraint, and what it saves or pays against its closest rival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.axes.layout import Layout
from cost_models.axes.order import first_same
from cost_models.axes.replicas.price import in_pools
from cost_models.errors import InfeasibleError
from cost_models.estimate import Breakdown, Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import MixedQuestion, Question
from planner.explaining.changes import changed_words
from planner.explaining.compare import difference
from planner.explaining.whatif import NEXT_TO_NOTHING, Sensitivity, same_degrees, sensitivities, with_memory
from planner.kept import Found, Kept
from planner.objectives import ObjectiveName
from planner.plan import Plan
from planner.plan_files import priced_again, priced_as_held
from planner.rules.legality import check
from planner.search.given_layout import place_layout
from planner.search.search import Terms, search_on
from planner.space.restrictions import Restrictions, keeps_to
from planner.space.shared import shared_spaces

UNLIMITED = 1e6
"""Factor on device memory in a question where nothing fails to fit."""
RIVALS_SECONDS = 20.0
"""Time limit of the search for the plan's rivals."""
RIVALS = 5
"""Plans searched for, as many as `plan` searches: the plan itself, those as fast, and the next best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a plan came to be, which decides why another layout may be faster."""

    searched: bool = True
    """False for a layout that was given, not searched for."""
    objective: ObjectiveName = "time"
    """What the plan was searched for."""
    proved: bool = True
    """Whether the search ended with a proof, not by a limit."""

    @property
    def is_fastest(self) -> bool:
        """Whether the plan was searched for the fastest step, so that planning again answers the same question."""
        return self.searched and self.objective == "time"

    @classmethod
    def of(cls, plan: Plan) -> Origin:
        """The origin as the plan's file says."""
        certificate, objective = plan.certificate, plan.objective
        return cls(
            searched=certificate is not None,
            objective="time" if objective is None else objective.name,
            proved=certificate is not None and certificate.gap <= 0,
        )


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
class Rivalry:
    """A plan compared with its closest rival."""

    rival: Estimate
    difference: Breakdown
    """rival − plan, seconds by part, largest first; positive parts are what the plan saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that `explain` says about a plan."""

    estimate: Estimate
    origin: Origin
    binding: BindingConstraint
    ties: tuple[Estimate, ...]
    """Other layouts whose step takes as long."""
    rivalry: Rivalry | None
    """Comparison with the fastest layout within the plan's restrictions that does not tie."""
    sensitivities: tuple[Sensitivity, ...]


def explain(plan: Plan, estimate: Estimate) -> Explanation:
    """Explain a plan that was priced again: find its rivals, and price what would change it.

    What is kept of them (`planner.kept`) is not searched again.
    """
    question, restrictions, origin = plan.question, plan.restrictions.read, Origin.of(plan)
    kept = Kept(plan)
    with shared_spaces().shared():
        rivals = rivals_of(plan, kept)
        changed = sensitivities(question, estimate, restrictions, kept, replan=origin.is_fastest)
    binding = binding_constraint(restrictions.held(question), priced_as_held(plan), restrictions)
    if binding.faster is not None:
        binding = replace(binding, faster=priced_again(plan, binding.faster.layout))
    return Explanation(
        estimate=estimate,
        origin=origin,
        binding=binding,
        ties=ties(estimate, rivals),
        rivalry=rivalry(estimate, rivals),
        sensitivities=changed,
    )


def rivals_of(plan: Plan, kept: Kept) -> tuple[Estimate, ...]:
    """The fastest layouts within the plan's restrictions, the plan itself among them where it is one."""
    restrictions = plan.restrictions.read
    question = restrictions.held(plan.question)

    def found() -> Found:
        terms = Terms(top=RIVALS, time_limit=RIVALS_SECONDS, settles=False)
        try:
            result = search_on(terms, question, restrictions)
        except InfeasibleError:  # a layout that was asked for may be all there is, and not fit
            return (), True
        return [one.layout for one in result.estimates], not result.certificate.undecided

    layouts = kept.layouts("rivals", found)
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
    roomy = with_memory(question, UNLIMITED)
    tempting = []
    for layout in _neighbours(question, estimate.layout):
        if check(question, layout) or not keeps_to(question, restrictions, layout):
            continue
        priced = price(question, place_layout(roomy, layout))
        if overflows(estimate, priced) and gain(estimate, priced) > NEXT_TO_NOTHING:
            tempting.append(priced)
    if not tempting:
        return BindingConstraint(resource=estimate.bound_by)
    fastest = min(tempting, key=lambda priced: priced.step_seconds)
    return BindingConstraint(
        resource="memory", faster=fastest, change=changed_words(estimate.layout, fastest.layout)
    )


def ties(estimate: Estimate, rivals: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """The rivals whose step takes as long as the plan's."""
    return tuple(
        rival for rival in _others(estimate, rivals) if abs(gain(estimate, rival)) <= NEXT_TO_NOTHING
    )


def rivalry(estimate: Estimate, rivals: Sequence[Estimate]) -> Rivalry | None:
    """The plan against the fastest rival that does not tie; None where there is none."""
    others = [rival for rival in _others(estimate, rivals) if abs(gain(estimate, rival)) > NEXT_TO_NOTHING]
    if not others:
        return None
    rival = min(others, key=lambda other: other.step_seconds)
    return Rivalry(rival=rival, difference=difference(estimate.time, rival.time))


def _others(estimate: Estimate, rivals: Sequence[Estimate]) -> list[Estimate]:
    return [rival for rival in rivals if not same_degrees(rival.layout, estimate.layout)]


def overflows(estimate: Estimate, other: Estimate) -> bool:
    """Whether `other` needs more memory than devices may fill within the limits of `estimate`."""
    if not estimate.rank_limits:
        return other.peak_bytes > estimate.memory_limit
    limits = _limits_of_pools(estimate)
    if other.replicas:
        return any(pool.peak_bytes > limits[pool.pool] for pool in other.replicas)
    peaks = zip(other.layout.pools, other.rank_memory, strict=True)
    return any(peak.total > limits[pool] for pool, peak in peaks)


def _limits_of_pools(estimate: Estimate) -> dict[str, float]:
    """Pool → bytes that a device may fill there."""
    if estimate.replicas:
        return {pool.pool: pool.memory_limit for pool in estimate.replicas}
    return dict(zip(estimate.layout.pools, estimate.rank_limits, strict=True))


def gain(estimate: Estimate, other: Estimate) -> float:
    """Relative gain in step time of `other` over `estimate`; negative where it is slower."""
    return 1 - other.step_seconds / estimate.step_seconds


def _neighbours(question: Question, layout: Layout) -> list[Layout]:
    """The layout with its placement open, and those one degree or switch away that trade memory for speed."""
    open_layout = layout.model_copy(update={"layers": (), "recompute": ("none",)})
    moves: list[dict[str, int]] = [{}, {"mbs": 2 * layout.mbs}]
    if layout.tp % 2 == 0:
        moves.append({"tp": layout.tp // 2, "dp": 2 * layout.dp})
    if layout.pp % 2 == 0:
        moves.append({"pp": layout.pp // 2, "dp": 2 * layout.dp})
    if layout.zero > 0:
        moves.append({"zero": layout.zero - 1})
    moved = [_moved(open_layout, move) for move in moves]
    if isinstance(question, MixedQuestion) and layout.replicas:
        return [in_pools(question, one) for one in moved]
    return moved


def _moved(layout: Layout, move: dict[str, int]) -> Layout:
    """The layout with some axes changed, and reset what only a pipeline or a tensor group can have."""
    moved = layout.model_copy(update=move)
    alone: dict[str, object] = {"order": first_same(moved.order, moved.cp, moved.dp, moved.pp)}
    if moved.pp != layout.pp:
        alone["pools"] = ()
    if moved.pp == 1:
        alone |= {"vpp": 1, "schedule": "1f1b"}
    if moved.tp == 1:
        alone["sp"] = False
    return moved.model_copy(update=alone)
