"""Which layouts of a small question a search covers, found one at a time: an enumerator of its own.

Nothing here comes from the search's space. The lists of degrees and switches are written out, longer than any rule
allows; what rules, restrictions and `SEARCH_LIMITS` leave of their product is covered.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np

from cost_models.axes.columns import COLUMNS, USUAL_CONTEXT, LayoutColumns
from cost_models.axes.layout import USUAL_RING, Layout, Offload
from cost_models.axes.recompute import allowed_recompute
from cost_models.axes.words import EVERY, UNSAID
from cost_models.pipeline.pools import in_pools
from cost_models.question import Question
from cost_models.schedules.registry import schedule_named
from cost_models.specs.choices import CONTEXTS, ORDERS, OVERLAPS, RECOMPUTE_POLICIES, SCHEDULES
from planner.formats.trainers import trainer_named
from planner.rules.legality import check, legal_rows
from planner.space.limits import SEARCH_LIMITS
from planner.space.restrictions import Restrictions, allowed_rows

NAMES = (
    *(
        "tp",
        "pp",
        "cp",
        "dp",
        "vpp",
        "schedule",
        "ep",
        "etp",
        "mbs",
        "zero",
        "shard",
        "sp",
        "order",
        "context",
    ),
    *(f"offload_{part}" for part in Offload._fields),
    *("ring", *(f"overlap_{axis}" for axis in OVERLAPS)),
)
PLAIN = ("1f1b", "gpipe")
NOWHERE = (*Offload(), USUAL_RING)


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def policies_of(question: Question, limits: Restrictions) -> tuple[str, ...]:
    """Recompute policies that the job, the restrictions and the trainer leave."""
    left = limits.recompute(question)
    return left if limits.trainer is None else tuple(set(left) & set(trainer_named(limits.trainer).policies))


def covered(question: Question, limits: Restrictions) -> LayoutColumns:
    """Every covered layout of a question on one kind of GPU."""
    columns = legal(question, limits, written(question, limits, question.training.global_batch))
    for limit in SEARCH_LIMITS:
        columns = columns.rows(np.flatnonzero(~limit.beyond(question, limits, columns)))
    return columns


def legal(question: Question, limits: Restrictions, columns: LayoutColumns) -> LayoutColumns:
    """Those of some layouts that break no rule, nor their trainer's, and that restrictions allow, recompute too."""
    runs = np.array(
        [bool(set(policies_of(question, limits)) & set(allowed_recompute(name))) for name in SCHEDULES]
    )
    fine = runs[columns.schedule] & allowed_rows(question, limits, columns)
    columns = columns.rows(np.flatnonzero(fine))
    return columns.rows(np.flatnonzero(legal_rows(question, columns)))


def covered_in_pools(question: Question, limits: Restrictions) -> tuple[list[Layout], list[Layout]]:
    """Every covered layout on several pools in every order of these, and every one of whole replicas in each."""
    batch, names = question.training.global_batch, question.names
    rows = written(question, limits, batch, schedules=PLAIN)
    columns = legal(question, limits, rows)
    for limit in SEARCH_LIMITS:
        columns = columns.rows(np.flatnonzero(~limit.beyond(question, limits, columns)))
    stages, replicas = [], []
    for layout in map(columns.layout, range(len(columns))):
        size = layout.tp * layout.data_ranks
        counts = {pool.cluster.name: pool.cluster.num_gpus // size for pool in question.pools}
        if sum(counts.values()) == layout.pp:
            for order in permutations(names):
                pools = tuple(name for name in order for _ in range(counts[name]))
                placed = layout.model_copy(update={"pools": pools})
                stages += [placed] if not check(question, placed) else []
    if "replicas" in limits.allowed and limits.trainer is None:
        for row in range(len(rows)):
            size = int(rows.tp[row] * rows.cp[row] * rows.pp[row])
            if all(pool.cluster.num_gpus % size == 0 for pool in question.pools):
                replicas.append(row)
        some = rows.rows(np.array(replicas, dtype=np.int64))
        some = some.rows(
            np.flatnonzero(allowed_rows(question, limits, some) & (some.pp <= question.model.num_layers))
        )
        for limit in SEARCH_LIMITS:
            some = some.rows(np.flatnonzero(~limit.beyond(question, limits, some)))
        each = [in_pools(question, some.layout(row)) for row in range(len(some))]
        return stages, [one for one in each if not check(question, one)]
    return stages, []


def written(
    question: Question,
    limits: Restrictions,
    batch: int,
    *,
    schedules: tuple[str, ...] = SCHEDULES,
) -> LayoutColumns:
    """All layouts that the notation can tell apart, legal or not, whose degrees fill the GPUs."""
    rows: list[tuple[int, ...]] = []
    for mesh in meshes(question):
        for combination in product(*_axes(question, limits, mesh, batch, schedules)):
            shape, shares, mbs, state, sp, order, way, (*away, ring), behind = combination
            rows.append((*mesh, *shape, *shares, mbs, *state, sp, order, way, *away, ring, *behind))
    table = np.array(rows, dtype=np.int64).reshape(-1, len(NAMES))
    columns = {name: np.ascontiguousarray(table[:, at]) for at, name in enumerate(NAMES)}
    assert set(columns) == set(COLUMNS)
    return LayoutColumns(**columns)


def how_many(question: Question, limits: Restrictions) -> int:
    """Number of layouts that `written` writes."""
    batch = question.training.global_batch
    each = (_axes(question, limits, mesh, batch, SCHEDULES) for mesh in meshes(question))
    return sum(math.prod(map(len, axes)) for axes in each)


def meshes(question: Question) -> list[tuple[int, ...]]:
    """Degrees tp, pp, cp and dp that fill the GPUs."""
    gpus = question.cluster.num_gpus
    return [mesh for mesh in product(divisors(gpus), repeat=4) if math.prod(mesh) == gpus]


def _axes(
    question: Question,
    limits: Restrictions,
    mesh: tuple[int, ...],
    batch: int,
    schedules: tuple[str, ...],
) -> list[list[Any]]:
    """What each axis inside a mesh may be."""
    tp, pp, cp, dp = mesh
    model, ranks = question.model, dp * cp
    chunks = range(1, (model.num_layers + 3) // pp + 1)
    shapes = [
        (vpp, SCHEDULES.index(name))
        for name in schedules
        for vpp in chunks
        if schedule_named(name).runs_chunks(vpp)
    ]
    experts = [(1, tp)]
    if model.has_experts:
        experts = list(product(range(1, model.num_experts + 1), divisors(tp * ranks)))
    states = [(0, ranks), *product((1, 2, 3), divisors(ranks))]
    sizes = divisors(batch)
    ways = [USUAL_CONTEXT, *range(len(CONTEXTS))] if cp > 1 else [USUAL_CONTEXT]
    moved = (
        _offloads(question, pp, {USUAL_RING, *limits.only.get("ring", ())})
        if limits.opens("offload")
        else [NOWHERE]
    )
    overlaps = [(UNSAID,) * len(OVERLAPS)]
    if limits.opens("overlap") and math.prod(mesh) > 1:
        overlaps += product(*([0, 1] if degree > 1 else [0] for degree in (tp, pp, ranks)))
    switch = [0, 1] if tp > 1 else [0]
    return [shapes, experts, sizes, states, switch, _seatings(cp, dp, pp), ways, moved, overlaps]


def _seatings(cp: int, dp: int, pp: int) -> list[int]:
    """One order, the first, for every sequence of the axes of more than one rank."""
    degrees, first = {"cp": cp, "dp": dp, "pp": pp}, dict[tuple[str, ...], int]()
    for index, order in enumerate(ORDERS):
        first.setdefault(tuple(axis for axis in order.split("-") if degrees.get(axis, 1) > 1), index)
    return sorted(first.values())


def _offloads(question: Question, pp: int, rings: set[int]) -> list[tuple[int, ...]]:
    """Every count of every residency, one without a count at most, with each ring where weights are streamed."""
    counts = [*range(question.model.num_layers // pp + 1), EVERY]
    of_blocks = [some for some in product(counts, repeat=3) if some.count(EVERY) <= 1]
    away = [(*some, *rest) for some in of_blocks for rest in product((0, EVERY), repeat=2)]
    streamed = Offload._fields.index("streamed")
    return [(*some, ring) for some in away for ring in (sorted(rings) if some[streamed] else [USUAL_RING])]


def names_of(columns: LayoutColumns) -> list[str]:
    """Layouts as they are written, each one checked to be what its row says."""
    found = []
    for row in range(len(columns)):
        layout = columns.layout(row)
        again = LayoutColumns.of([layout])
        assert all(getattr(again, name)[0] == getattr(columns, name)[row] for name in COLUMNS), layout
        found.append(str(layout))
    return found


def with_policies(question: Question, policies: tuple[str, ...]) -> Question:
    """The question whose job allows some policies alone."""
    left = tuple(policy for policy in RECOMPUTE_POLICIES if policy in policies)
    return replace(question, training=question.training.model_copy(update={"recompute": left}))
