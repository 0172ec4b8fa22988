"""All legal layouts of a model on a cluster, as columns, within what the user fixed or forbade."""

from __future__ import annotations

from itertools import product

import numpy as np

from cost_models.question import Question
from cost_models.specs.axis_orders import same_seats
from cost_models.specs.columns import USUAL_CONTEXT, Ints, LayoutColumns
from cost_models.specs.layout import CONTEXTS, SCHEDULES
from planner.chunks import goes_in_chunks
from planner.legality import legal_rows
from planner.reading_restrictions import ZERO_STAGES
from planner.reading_restrictions import parse_restrictions as parse_restrictions
from planner.restrictions import AXES as AXES
from planner.restrictions import GIVEN_AXES, allowed_rows
from planner.restrictions import Restrictions as Restrictions


def enumerate_layouts(question: Question, restrictions: Restrictions) -> LayoutColumns:
    """Every layout that breaks no rule of `planner.legality` and keeps to the restrictions.

    The candidates are the divisors of GPUs and batch; the rules do the rest.
    """
    model, cluster = question.model, question.cluster
    blocks = [
        _candidates(question, restrictions, tp, pp, cp)
        for cp in restrictions.among("cp", 1, _divisors(cluster.num_gpus))
        for tp in _divisors(cluster.gpus_per_node)
        if cluster.num_gpus % (tp * cp) == 0
        for pp in _divisors(cluster.num_gpus // (tp * cp))
        if pp <= model.num_layers
    ]
    columns = _columns(np.concatenate(blocks) if blocks else np.empty((0, len(AXES)), dtype=np.int64))
    columns = columns.rows(np.flatnonzero(allowed_rows(question, restrictions, columns)))
    return columns.rows(np.flatnonzero(legal_rows(question, columns)))


def _candidates(question: Question, restrictions: Restrictions, tp: int, pp: int, cp: int) -> Ints:
    """(N, axes): the layouts of one tp × pp × cp; every legal one is among them."""
    model, training = question.model, question.training
    dp = question.cluster.num_gpus // (tp * pp * cp)
    if training.global_batch % dp:
        return np.empty((0, len(AXES)), dtype=np.int64)
    one_chunk = [(1, SCHEDULES.index("1f1b"))] + ([(1, SCHEDULES.index("gpipe"))] if pp > 1 else [])
    chunks = [
        vpp for vpp in range(2, model.num_layers // pp + 1) if goes_in_chunks(model.num_layers, pp * vpp)
    ]
    interleaved = [(vpp, SCHEDULES.index("interleaved")) for vpp in chunks if pp > 1]
    shapes = np.array(one_chunk + interleaved, dtype=np.int64)
    mbs = np.array(_divisors(training.global_batch // dp), dtype=np.int64)
    switches = np.array(
        list(product(range(ZERO_STAGES if dp * cp > 1 else 1), range(2 if tp > 1 else 1))), dtype=np.int64
    )
    given = np.array(
        list(
            product(
                restrictions.among("ep", 1, _divisors(max(1, model.num_experts))),
                restrictions.among("etp", tp, _divisors(tp * cp * dp)),
                restrictions.among("shard", dp * cp, _divisors(dp * cp)),
                _orders(restrictions, cp, dp, pp),
                _contexts(question, restrictions, cp),
            )
        ),
        dtype=np.int64,
    ).reshape(-1, len(GIVEN_AXES) - 1)
    sizes = (len(shapes), len(mbs), len(switches), len(given))
    shape_i, mbs_i, switch_i, given_i = (index.ravel() for index in np.indices(sizes, dtype=np.int64))
    same = np.ones_like(shape_i)
    vpp, schedule = shapes[shape_i].T
    zero, sp = switches[switch_i].T
    searched = [tp * same, pp * same, vpp, dp * same, mbs[mbs_i], zero, sp, schedule]
    return np.stack([*searched, cp * same, *given[given_i].T], axis=1)


def _orders(restrictions: Restrictions, cp: int, dp: int, pp: int) -> list[int]:
    """Those the user fixed, each seating of the ranks once; else the default."""
    seats = same_seats(cp, dp, pp)
    return sorted({seats[order] for order in restrictions.only.get("order", {0})})


def _contexts(question: Question, restrictions: Restrictions, cp: int) -> list[int]:
    """Those the user fixed, the stack's usual way without its name; else that."""
    if cp == 1 or "context" not in restrictions.only:
        return [USUAL_CONTEXT]
    usual = CONTEXTS.index(question.stack.context_parallel)
    return sorted({USUAL_CONTEXT if way == usual else way for way in restrictions.only["context"]})


def _columns(table: Ints) -> LayoutColumns:
    return LayoutColumns(**{axis: np.ascontiguousarray(table[:, i]) for i, axis in enumerate(AXES)})


def _divisors(number: int) -> list[int]:
    """In rising order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
