"""Whole replicas in several pools, searched exactly: every legal layout, best bound first, until none can be better.

They are searched where `--allow replicas` asks for them, after the layouts whose stages lie in the pools, whose times
they must beat; both together are one answer with one certificate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cost_models.axes.layout import Layout
from cost_models.axes.recompute import named_blocks
from cost_models.axes.replicas.price import in_pools, replica_terms
from cost_models.errors import DoesNotFitError, InfeasibleError, RunError
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate
from cost_models.question import MixedQuestion
from planner.axes.replicas.leaf import place_replicas
from planner.axes.replicas.space import (
    REPLICAS,
    ReplicaSpace,
    count_replicas,
    in_words,
    nothing_holds_replicas,
    replica_layouts,
)
from planner.certificate import Certificate
from planner.placement.chunks import chunk_sizes
from planner.placement.leaf import TOLERANCE, Placement, gap_of
from planner.search.given_layout import names_too_many
from planner.search.result import SearchResult, by_speed
from planner.space.restrictions import Restrictions

Stages = Callable[[Restrictions, float | None], SearchResult]
"""Searches the layouts whose stages lie in the pools, in the seconds given."""
Progress = Callable[[int, int, float, float], None]


def search_replicas(
    question: MixedQuestion,
    limits: Restrictions,
    *,
    top: int,
    to_beat: Sequence[float] = (),
    time_limit: float | None = None,
    on_progress: Progress | None = None,
    keep_on_interrupt: bool = False,
) -> SearchResult:
    """The `top` fastest of them that are faster than the `top`-th of `to_beat`, perhaps none, and the proof; its bound
    is infinite where nothing fits."""
    start = time.monotonic()
    space = _space(question, limits)
    columns = space.columns
    bounds = space.bounds() if len(columns) else np.empty(0)
    best: dict[int, tuple[Placement, float]] = {}
    infeasible = decided = 0
    interrupted, order = False, np.argsort(bounds, kind="stable")

    def kth() -> float:
        times = sorted([*to_beat, *(seconds for _, seconds in best.values())])
        return times[top - 1] if len(times) >= top else math.inf

    try:
        for row in order.tolist():
            out_of_time = time_limit is not None and time.monotonic() - start > time_limit
            if bounds[row] >= kth() * (1 - TOLERANCE) or out_of_time:
                break
            found = place_replicas(space.leaf(row), kth())
            decided += 1
            if found is not None:
                best[row] = found
            infeasible += found is None and math.isinf(kth())
            if on_progress is not None:
                on_progress(decided, len(columns), kth(), float(bounds[row]))
    except KeyboardInterrupt:
        if not (keep_on_interrupt and (best or to_beat)):
            raise
        interrupted = True
    priced = [_priced(space, row, placement) for row, (placement, _) in best.items()]
    ranked = sorted(priced, key=by_speed)[:top]
    left, worst = bounds[order[decided:]], kth()
    never, undecided = int(np.isinf(left).sum()), int((left < worst * (1 - TOLERANCE)).sum())
    certificate = Certificate(
        top=top,
        space=in_words(question, space.policies),
        layouts=len(columns),
        infeasible=infeasible + never,
        pruned=len(left) - never - undecided,
        solved=decided - infeasible,
        undecided=undecided,
        bound=min([worst, *left[:1].tolist(), *(one.step_seconds for one in ranked[:1])]),
        gap=0.0,
        seconds=time.monotonic() - start,
    )
    return SearchResult(estimates=tuple(ranked), certificate=certificate, interrupted=interrupted)


def _space(question: MixedQuestion, limits: Restrictions) -> ReplicaSpace:
    columns = replica_layouts(question, limits)
    return ReplicaSpace(
        question=question,
        columns=columns,
        costs=tuple(own.costs for own in replica_terms(question, columns)) if len(columns) else (),
        policies=limits.recompute(question),
        max_memory=math.inf if limits.max_memory is None else limits.max_memory,
    )


def _priced(space: ReplicaSpace, row: int, placement: Placement) -> Estimate:
    layout = in_pools(space.question, space.columns.layout(row))
    update = {"layers": placement.layers, "recompute": placement.recompute}
    priced = estimate(space.question, Layout(**layout.model_copy(update=update).model_dump()))
    return priced.within(space.max_memory)


def search_beside_stages(
    stages: Stages,
    question: MixedQuestion,
    limits: Restrictions,
    *,
    top: int,
    time_limit: float | None,
    on_progress: Progress | None,
    keep_on_interrupt: bool,
) -> SearchResult:
    """The best layouts of both kinds.

    Raises:
        InfeasibleError: nothing fits, nor would whole replicas.
        RunError: time ran out before anything was placed.
    """
    start = time.monotonic()
    nothing: InfeasibleError | RunError | None = None
    first: SearchResult | None = None
    try:
        first = stages(replace(limits, allowed=limits.allowed - {REPLICAS}), time_limit and time_limit / 2)
    except (InfeasibleError, RunError) as error:
        nothing = error
    if first is not None and first.interrupted:
        return _together(first, None, count_replicas(question, limits), top)
    found = search_replicas(
        question,
        limits,
        top=top,
        to_beat=[one.compared_seconds for one in first.estimates] if first else (),
        time_limit=None if time_limit is None else max(0.0, time_limit - (time.monotonic() - start)),
        on_progress=on_progress,
        keep_on_interrupt=keep_on_interrupt,
    )
    if first is not None:
        return _together(first, found, 0, top)
    assert nothing is not None
    if (
        not found.estimates
        and found.certificate.layouts
        and not isinstance(nothing, DoesNotFitError | RunError)
    ):
        raise nothing_holds_replicas(question, limits)  # though no stages could lie there
    if not found.estimates:
        raise nothing
    unanswered = isinstance(nothing, RunError)
    proof = found.certificate
    update = {"bound": 0.0 if unanswered else proof.bound}
    best = found.estimates[0].compared_seconds
    update["gap"] = gap_of(best, update["bound"])
    return replace(found, certificate=proof.model_copy(update=update))


def _together(first: SearchResult, second: SearchResult | None, unasked: int, top: int) -> SearchResult:
    """One answer of both; of `unasked` layouts nothing is known."""
    results = [one for one in (first, second) if one is not None]
    estimates = sorted((one for result in results for one in result.estimates), key=by_speed)[:top]
    proofs = [one.certificate for one in results]
    bound = 0.0 if unasked else min(one.bound for one in proofs)
    counts = ("layouts", "infeasible", "pruned", "solved", "undecided", "seconds")
    sums = {name: sum(getattr(one, name) for one in proofs) for name in counts}
    best = estimates[0]
    merged = sums | {
        "space": " | ".join(one.space for one in proofs),
        "layouts": sums["layouts"] + unasked,
        "undecided": sums["undecided"] + unasked,
        "bound": bound,
        "gap": gap_of(best.compared_seconds, bound),
        "settled": None if best.replicas else first.certificate.settled,
    }
    return SearchResult(
        estimates=tuple(estimates),
        certificate=first.certificate.model_copy(update=merged),
        interrupted=any(one.interrupted for one in results),
    )


def placed(question: MixedQuestion, layout: Layout) -> Layout:
    """Placement that suits the replicas of all pools, which have the same: stages as equal as the blocks allow. Of
    those the fastest that fits; of equals the first.

    Raises:
        InputError: the recompute of some stage names more blocks than such a stage has.
    """
    sizes = chunk_sizes(question.model.num_layers, layout.num_stages, layout.num_stages).tolist()
    fewest = [named_blocks(mix) for mix in layout.stage_recompute]
    found = [
        layout.model_copy(update={"layers": tuple(own)})
        for own in sizes
        if all(blocks >= named for blocks, named in zip(own, fewest, strict=True))
    ]
    if not found:
        raise names_too_many(layout)
    priced = [estimate(question, one) for one in found]
    return min(priced, key=lambda one: (not one.fits, one.step_seconds)).layout
