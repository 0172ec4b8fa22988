"""Why a plan is what it is: what binds it, what it wins over another by, and why a layout lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cost_models.breakdown import Breakdown
from cost_models.errors import InfeasibleError, Problem
from cost_models.estimate import Estimate
from cost_models.estimating import estimate as price
from cost_models.question import Question
from cost_models.specs.axis_orders import first_same
from cost_models.specs.columns import LayoutColumns
from cost_models.specs.layout import Layout, parse_layout
from cost_models.specs.recompute import RECOMPUTE_POLICIES, policies_in
from planner.balanced import even_layers
from planner.compare import difference
from planner.legality import check
from planner.placing import place
from planner.restrictions import AXES, Restrictions, allowed_rows, settled
from planner.search import search
from planner.whatif import Sensitivity, same_degrees, with_memory

UNLIMITED = 1e6
"""Times the memory of a device: a question in which nothing fails to fit."""
MOST_ORDERS = 24
"""In which a pipeline passes through four pools, the most there are."""
NEXT_TO_NOTHING = 1e-4
"""Relative gain of step time that is not worth a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What keeps the step from being faster."""

    resource: str
    """`memory`, or the part of the step that is largest (`compute`, `bubble`, `tp_comm`, ...)."""
    faster: Estimate | None = None
    """Where memory binds: the fastest neighbour, which does not fit."""
    change: str = ""
    """In what the neighbour differs: "mbs2"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivalry:
    """Two plans against one another."""

    rival: Estimate
    difference: Breakdown
    """rival − plan, seconds by part, largest first: positive is what the plan saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """Why a layout is not the plan."""

    layout: str
    reason: Literal["illegal", "memory", "slower", "same", "faster"]
    problems: tuple[Problem, ...] = ()
    """Broken rules of an illegal layout."""
    excluded: bool = False
    """Whether the restrictions of the search kept it out, however fast it is."""
    estimate: Estimate | None = None
    """Its best placement; where it does not fit, the one that recomputes most."""
    difference: Breakdown | None = None
    """layout − plan, seconds by part, largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that there is to say about a plan."""

    estimate: Estimate
    binding: Binding
    ties: tuple[Estimate, ...]
    """Other layouts that are as fast."""
    rivalry: Rivalry | None
    """Against the fastest layout that is not as fast, or that the plan's restrictions kept out."""
    sensitivities: tuple[Sensitivity, ...]


def binding(question: Question, estimate: Estimate) -> Binding:
    """What binds a plan.

    Memory does when some neighbour (itself with less recomputed, another microbatch size, one degree moved to data
    parallelism, a lower ZeRO stage) would be faster and does not fit; otherwise the largest part of the step that is
    worth naming.
    """
    roomy = with_memory(question, UNLIMITED)
    tempting = []
    for layout in _neighbours(estimate.layout):
        if check(question, layout):
            continue
        priced = price(question, place(roomy, layout))
        if overflows(estimate, priced) and _gain(estimate, priced) > NEXT_TO_NOTHING:
            tempting.append(priced)
    if not tempting:
        return Binding(resource=estimate.bound_by)
    fastest = min(tempting, key=lambda priced: priced.step_seconds)
    return Binding(resource="memory", faster=fastest, change=_changed_words(estimate.layout, fastest.layout))


def ties(estimate: Estimate, rivals: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """The others that take as long."""
    return tuple(
        rival for rival in _others(estimate, rivals) if abs(_gain(estimate, rival)) <= NEXT_TO_NOTHING
    )


def rivalry(estimate: Estimate, rivals: Sequence[Estimate]) -> Rivalry | None:
    """The plan against the best of the others that differs in time; None where there is no other."""
    others = [rival for rival in _others(estimate, rivals) if abs(_gain(estimate, rival)) > NEXT_TO_NOTHING]
    if not others:
        return None
    rival = min(others, key=lambda other: other.step_seconds)
    return Rivalry(rival=rival, difference=difference(estimate.time, rival.time))


def _others(estimate: Estimate, rivals: Sequence[Estimate]) -> list[Estimate]:
    return [rival for rival in rivals if not same_degrees(rival.layout, estimate.layout)]


def why_not(
    question: Question, estimate: Estimate, text: str, restrictions: Restrictions | None = None
) -> WhyNot:
    """Why the layout written in `text` is not the plan, which was searched within `restrictions`.

    It is priced at its best: recompute is as `text` says, and chosen stage by stage where it does not.

    Raises:
        InputError: `text` is not a layout.
    """
    layout = parse_layout(text)
    problems = check(question, layout, restrictions.trainer if restrictions else None)
    if problems:
        return WhyNot(layout=text, reason="illegal", problems=tuple(problems))
    priced = _best_placed(
        question,
        layout,
        max(estimate.rank_limits, default=estimate.memory_limit),
        recompute_given="recompute=" in text,
    )
    change = difference(estimate.time, priced.time)
    return WhyNot(
        layout=text,
        reason=_reason(estimate, priced),
        excluded=restrictions is not None and not within(question, restrictions, priced.layout),
        estimate=priced,
        difference=change,
    )


def within(question: Question, restrictions: Restrictions, layout: Layout) -> bool:
    """Whether a layout keeps to what was fixed and forbidden, and to the rules of the trainer."""
    allowed = allowed_rows(question, restrictions, LayoutColumns.of([layout]))
    return bool(allowed[0]) and not restrictions.forbidden_recompute.intersection(
        policy for mix in layout.recompute for policy in policies_in(mix)
    )


def overflows(estimate: Estimate, other: Estimate) -> bool:
    """Whether the other needs more memory than devices may fill under the restrictions of the first."""
    if not estimate.rank_limits:
        return other.peak_bytes > estimate.memory_limit
    limits = dict(zip(estimate.layout.pools, estimate.rank_limits, strict=True))
    peaks = zip(other.layout.pools, other.rank_memory, strict=True)
    return any(peak.total > limits[pool] for pool, peak in peaks)


def _reason(estimate: Estimate, priced: Estimate) -> Literal["memory", "slower", "same", "faster"]:
    if overflows(estimate, priced):
        return "memory"
    gain = _gain(estimate, priced)
    if abs(gain) <= NEXT_TO_NOTHING:
        return "same"
    return "faster" if gain > 0 else "slower"


def _best_placed(question: Question, layout: Layout, max_memory: float, *, recompute_given: bool) -> Estimate:
    """The layout at its best: what its text leaves open (blocks, recompute) is searched.

    Where nothing fits: evenly placed with all the recompute there is, nearly the least memory it can do with.
    """
    if layout.layers or recompute_given:
        return price(question, place(question, layout))
    columns = settled(question, LayoutColumns.of([layout]))
    only = {axis: frozenset({int(getattr(columns, axis)[0])}) for axis in AXES}
    top = MOST_ORDERS if layout.pools else 1  # a layout in another order of the pools is a rival of its own
    try:
        found = search(
            question, top=top, restrictions=Restrictions(only=only, max_memory=max_memory)
        ).estimates
        return next(one for one in found if layout.pools in ((), one.layout.pools))
    except (InfeasibleError, StopIteration):
        strongest = max(question.training.recompute, key=RECOMPUTE_POLICIES.index)
        layers = even_layers(question.model.num_layers, layout.num_stages)
        return price(question, layout.model_copy(update={"recompute": (strongest,), "layers": layers}))


def _gain(estimate: Estimate, other: Estimate) -> float:
    """Relative: how much faster the other is."""
    return 1 - other.step_seconds / estimate.step_seconds


def _neighbours(layout: Layout) -> list[Layout]:
    """Itself with its placement open, and one degree or switch away towards speed at the price of memory."""
    open_layout = layout.model_copy(update={"layers": (), "recompute": ("none",)})
    moves: list[dict[str, int]] = [{}, {"mbs": 2 * layout.mbs}]
    if layout.tp % 2 == 0:
        moves.append({"tp": layout.tp // 2, "dp": 2 * layout.dp})
    if layout.pp % 2 == 0:
        moves.append({"pp": layout.pp // 2, "dp": 2 * layout.dp})
    if layout.zero > 0:
        moves.append({"zero": layout.zero - 1})
    return [_moved(open_layout, move) for move in moves]


def _moved(layout: Layout, move: dict[str, int]) -> Layout:
    """The layout with some axes changed; what only a pipeline or a tensor group can have goes with it."""
    moved = layout.model_copy(update=move)
    alone: dict[str, object] = {"order": first_same(moved.order, moved.cp, moved.dp, moved.pp)}
    if moved.pp != layout.pp:
        alone["pools"] = ()
    if moved.pp == 1:
        alone |= {"vpp": 1, "schedule": "1f1b"}
    if moved.tp == 1:
        alone["sp"] = False
    return moved.model_copy(update=alone)


def _changed_words(before: Layout, after: Layout) -> str:
    """The words of `after` that `before` does not have, placement aside."""
    known = set(str(before).split())
    placing = ("layers=", "pools=")
    words = [word for word in str(after).split() if word not in known and not word.startswith(placing)]
    if "recompute=" in str(before) and "recompute=" not in str(after):
        words.append("recompute=none")
    return " ".join(words)
