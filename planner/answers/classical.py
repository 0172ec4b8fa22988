"""The classical layout: what an expert writes down without a search, as the rules of thumb of the field have it.

As little model parallelism as fits where every rank keeps its optimizer states (smallest tp × pp, tensor parallelism
within a node first), microbatches of one sequence, as many chunks as the blocks allow, and as little recomputed as fits
(Narayanan et al. 2021, sections 3 and 5; Korthikanti et al. 2022). What it is run with shards the optimizer, as people
do since; where nothing fits without that, it counts for what fits, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from pydantic import ValidationError

from cost_models.axes.axis import divisors
from cost_models.axes.layout import Layout
from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.rules.legality import check
from planner.search.given_layout import place_layout

_MOST_TRIED = 60
"""Layouts that are priced before giving up."""


def classical_layout(question: Question, limit: float) -> Estimate | None:
    """The classical layout that fills no more than `limit` bytes of a device; None where none of the first few does."""
    sharded = 1 if 1 in question.stack.zero_stages else question.stack.usual_zero_stage
    whole = (0,) if 0 in question.stack.zero_stages else ()
    for zero in (*whole, sharded):
        for policy in RECOMPUTE_POLICIES:
            if policy in question.training.recompute:
                tried = _by_size(question, policy, zero)
                fitting = (one for one in islice(tried, _MOST_TRIED) if _fits(question, one, limit))
                if (found := next(fitting, None)) is not None:
                    run = _changed(found, zero=sharded if found.data_ranks > 1 else 0)
                    return _priced(question, run if run and not check(question, run) else found)
    return None


def _fits(question: Question, layout: Layout, limit: float) -> bool:
    priced = _priced(question, layout)
    return priced is not None and priced.peak_bytes <= limit


def _priced(question: Question, layout: Layout) -> Estimate | None:
    try:
        return price(question, place_layout(question, layout))
    except InputError:  # it cannot be placed
        return None


def _by_size(question: Question, policy: str, zero: int) -> Iterator[Layout]:
    """Legal layouts with one sequence a microbatch, the smallest tp × pp first, of equal ones the largest tp."""
    cluster, model = question.cluster, question.model
    degrees = [
        (tp * pp, -tp, tp, pp)
        for tp in divisors(cluster.gpus_per_node)
        for pp in divisors(cluster.num_gpus // tp)
        if model.num_layers % pp == 0
    ]
    experts = (
        [ep for ep in divisors(model.num_experts) if ep <= cluster.gpus_per_node]
        if model.has_experts
        else [1]
    )
    for size, _, tp, pp in sorted(degrees):
        dp = cluster.num_gpus // size
        start = Layout(tp=tp, pp=pp, dp=dp, sp=tp > 1)
        chunks = divisors(model.num_layers // pp)[::-1] if pp > 1 else [1]
        shapes = [
            layout
            for vpp in chunks
            if (layout := _changed(start, vpp=vpp, ep=experts[-1], zero=zero * (dp > 1), recompute=(policy,)))
            and not check(question, layout)
        ]
        yield from shapes[:1]


def _changed(layout: Layout, **values: Any) -> Layout | None:
    """The layout with other values; None where the notation cannot express it."""
    fields = layout.model_dump(exclude={"schedule"}) | values
    try:
        return Layout.model_validate(fields)
    except (ValidationError, InputError):
        return None
