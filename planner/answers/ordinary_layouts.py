"""Ordinary layouts: those that use no axis that no timed run of the profile used, in steps from the simplest on.

A step is a set of restrictions, so the fastest layout of each is found and proved as any other plan is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeGuard

from pydantic import ValidationError

from cost_models.axes.layout import Layout
from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, ORDERS, RECOMPUTE_POLICIES, SCHEDULES, Degree
from cost_models.uncertainty import timed_under
from planner.formats.trainers import trainer_named, trainers_of
from planner.rules.legality import check
from planner.search.given_layout import place_layout
from planner.space.axes import divisors
from planner.space.restrictions import Restrictions, satisfies

OPTIONAL = ("cp", "etp", "shard")
"""Axes that a layout can do without, and that many trainers do not have or few people turn on."""
_DEGREES: dict[Degree, str] = {
    "cp": "context parallelism",
    "tp": "tensor parallelism",
    "pp": "a pipeline",
    "ep": "expert parallelism",
}
"""Degrees that ordinary layouts of some stack do without, in the order in which they are tried."""
_USUAL_SCHEDULES = {"gpipe", "1f1b", "interleaved"}
_MAX_TRIED = 60
"""Layouts of one policy that are priced before giving up."""


@dataclass(frozen=True, slots=True)
class Step:
    """A kind of layouts, one of several from the simplest to all of them."""

    words: str
    """What its layouts have in common."""
    limits: Restrictions


def steps(question: Question, user: Restrictions) -> Iterator[Step]:
    """Restrictions from the narrowest on, each wider than the one before and none wider than those of the `user`.

    Where the stack has a trainer whose rules are known, their layouts obey them, so that its exporter can write them.
    """
    if user.trainer is None and (names := trainers_of(question.stack)):
        user = replace(user, trainer=names[0])
    ordinary = _ordinary(question, user)
    policies = ordinary.recompute(question)
    if "none" in policies and len(policies) > 1:
        forbidden = ordinary.forbidden_recompute | (set(policies) - {"none"})
        nothing = replace(ordinary, forbidden_recompute=forbidden)
        yield Step("use ordinary axes and recompute nothing", nothing)
    yield Step("use ordinary axes", ordinary)
    further: list[Degree] = []
    for degree in _DEGREES:
        wider = _ordinary(question, user, [*further, degree])
        if wider != ordinary:
            ordinary = wider
            further.append(degree)
            yield Step(f"use ordinary axes and {' and '.join(_DEGREES[one] for one in further)}", wider)
    if user.trainer is not None:
        yield Step(f"{trainer_named(user.trainer).name} can run", user)


def _ordinary(question: Question, user: Restrictions, also: Sequence[str] = ()) -> Restrictions:
    """The user's restrictions, without axes that the stack's users do without and no timed run used; of context
    parallelism no more than the largest used. Where there is a choice that is not the user's, the stack's usual order
    of the axes and way of context parallelism, and schedules that are usual or were timed.

    Under a profile of all stacks the runs are other trainers', which say nothing of what this one's users turn on.
    """
    runs, stack, unused, at_most = timed_under(question), question.stack, {*user.unused}, {**user.at_most}
    for axis in dict.fromkeys([*OPTIONAL, *_DEGREES]):
        if axis in user.named_axes or axis in also or axis in stack.usual_degrees:
            continue
        relevant = runs if axis in OPTIONAL and question.hardware.stack != "any" else ()
        values = {value for one in relevant for value in one.used(axis)}
        if not values:
            unused.add(axis)
        elif axis == "cp":
            at_most[axis] = max(map(int, values))
    usual = dict[str, frozenset[int]]()
    if len(stack.axis_orders) > 1:
        usual["order"] = frozenset([ORDERS.index(stack.axis_orders[0])])
    if len(stack.context_kinds) > 1:
        usual["context"] = frozenset([CONTEXTS.index(stack.context_parallel)])
    known = {value for one in runs for value in one.used("schedule")} | _USUAL_SCHEDULES
    schedules = frozenset(SCHEDULES.index(name) for name in stack.schedules if name in known)
    if schedules and len(schedules) < len({*stack.schedules}):
        usual["schedule"] = schedules
    only = {axis: values for axis, values in usual.items() if axis not in user.named_axes}
    return replace(user, unused=frozenset(unused), at_most=at_most, only={**only, **user.only})


def classical_layout(question: Question, limits: Restrictions) -> Estimate | None:
    """The classical layout of the stack within some restrictions, which fits as they ask; None where none of the first
    few does."""
    question, stack = limits.apply_confidence(question), question.stack

    def priced(layout: Layout) -> Estimate | None:
        try:
            return price(question, place_layout(question, layout)).within(limits.max_memory)
        except InputError:  # it cannot be placed
            return None

    sharded = stack.usual_zero_stage or max(stage for stage in stack.zero_stages if stage <= 1)
    unsharded = (0,) if 0 in stack.zero_stages and sharded <= 1 else ()
    for zero in (*unsharded, sharded):
        for policy in (one for one in RECOMPUTE_POLICIES if one in question.training.recompute):
            for layout in islice(_by_size(question, limits, policy, zero), _MAX_TRIED):
                fitting = priced(layout)
                if fitting is not None and fitting.fits:
                    usual = _changed(layout, zero=sharded if layout.data_ranks > 1 else 0)
                    return priced(usual) if is_allowed(usual, question, limits) else fitting
    return None


def is_allowed(layout: Layout | None, question: Question, limits: Restrictions) -> TypeGuard[Layout]:
    """Whether a layout is legal, keeps to the restrictions, and is one that their trainer can run."""
    return (
        layout is not None
        and satisfies(question, limits, layout)
        and not check(question, layout, limits.trainer)
    )


def _by_size(question: Question, limits: Restrictions, policy: str, zero: int) -> Iterator[Layout]:
    """Legal layouts with one sequence a microbatch, by rising tp × pp; of equal ones the largest tp first."""
    cluster, model, usual = question.cluster, question.model, question.stack.usual_degrees
    degrees = [
        (tp * pp, -tp, tp, pp)
        for tp in (divisors(cluster.gpus_per_node) if "tp" in usual else [1])
        for pp in (divisors(cluster.num_gpus // tp) if "pp" in usual else [1])
        if model.num_layers % pp == 0
    ]
    ep = 1
    if model.has_experts and "ep" in usual:
        ep = max(degree for degree in divisors(model.num_experts) if degree <= cluster.gpus_per_node)
    for size, _, tp, pp in sorted(degrees):
        dp = cluster.num_gpus // size
        start = Layout(tp=tp, pp=pp, dp=dp, sp=tp > 1)
        fields = {"ep": ep, "zero": zero * (dp > 1), "recompute": (policy,)}
        chunks = divisors(model.num_layers // pp)[::-1] if pp > 1 else [1]
        shapes = (_changed(start, vpp=vpp, **fields) for vpp in chunks)
        yield from islice((shape for shape in shapes if is_allowed(shape, question, limits)), 1)


def _changed(layout: Layout, **values: Any) -> Layout | None:
    """The layout with other values; None where the notation cannot express it."""
    try:
        return Layout.model_validate(layout.model_dump(exclude={"schedule"}) | values)
    except (ValidationError, InputError):
        return None
