"""Independent enumerator of the layouts that a search covers; it shares no code with the search's space.

The lists of degrees and switches are written out, longer than any rule allows; those of their combinations
that rules, restrictions and `beyond_limits` permit are covered. `--solver ilp` proves its answer over these
layouts.
"""

from __future__ import annotations

import math
from itertools import chain, permutations, product

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import USUAL_CONTEXT, LayoutColumns
from cost_models.axes.layout import USUAL_RING, Layout, Offload
from cost_models.axes.rule import unbroken
from cost_models.axes.stages import policies_by_schedule
from cost_models.axes.words import EVERY, UNSAID
from cost_models.pipeline.pools import in_pools
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN, schedule_named
from cost_models.specs.choices import CONTEXTS, ORDERS, OVERLAPS, SCHEDULES
from planner.formats.trainers import trainer_named
from planner.rules.legality import check, legal_rows
from planner.search.candidates import join_rows
from planner.space.limits import beyond_limits
from planner.space.restrictions import Restrictions, allowed_rows

_DEGREES = ("tp", "pp", "cp", "dp")
_UNSHAPED = (1, SCHEDULES.index("1f1b"), 1)
"""Placeholder for vpp, schedule and microbatch size in rows that represent the other axes only."""
MOST_IN_FULL = 200_000
"""Maximum number of combinations that are all written out. Above it, shapes and microbatch sizes are only
written for combinations that the other rules allow."""
MOST_COMBINATIONS = 2_000_000
"""Maximum number of combinations, without shapes and microbatch sizes, that are written out."""

Rows = list[tuple[int, ...]]
Values = dict[tuple[str, ...], Rows]
"""Possible values of columns that are chosen together, by the names of the columns."""


def policies_of(question: Question, limits: Restrictions) -> tuple[str, ...]:
    """Recompute policies that the training spec, the restrictions and the trainer all permit."""
    policies = limits.recompute(question)
    return (
        policies
        if limits.trainer is None
        else tuple(set(policies) & set(trainer_named(limits.trainer).policies))
    )


def enumerate_names(question: Question, limits: Restrictions) -> set[str] | None:
    """Names of all layouts that a search covers, in layout notation, without replicas; None if there are too
    many combinations."""
    if count_combinations(question, limits, shaped=False) > MOST_COMBINATIONS:
        return None
    if question.has_pools:
        return {str(layout) for layout in covered_in_pools(question, limits)[0]}
    columns = covered_layouts(question, limits)
    return {str(columns.layout(row)) for row in range(len(columns))}


def covered_layouts(question: Question, limits: Restrictions) -> LayoutColumns:
    """List every layout that a search covers on one kind of GPU, or in stages that fill several pools."""
    rows = listed_layouts(question, limits)
    runs: Bools = np.asarray(policies_by_schedule(policies_of(question, limits)).any(axis=1))
    rows = rows.rows(np.flatnonzero(runs[rows.schedule] & allowed_rows(question, limits, rows)))
    return _within_limits(question, limits, rows.rows(np.flatnonzero(legal_rows(question, rows))))


def covered_in_pools(question: Question, limits: Restrictions) -> tuple[list[Layout], list[Layout]]:
    """List the layouts that a search covers on several pools of GPUs: pipelines through all pools, in every
    order of the pools, and replicas that each lie in one pool."""
    columns, stages = covered_layouts(question, limits), list[Layout]()
    for layout in map(columns.layout, range(len(columns))):
        size = layout.tp * layout.data_ranks
        counts = {pool.cluster.name: pool.cluster.num_gpus // size for pool in question.pools}
        for order in permutations(question.pool_names) if sum(counts.values()) == layout.pp else ():
            pools = tuple(name for name in order for _ in range(counts[name]))
            stages.append(layout.model_copy(update={"pools": pools}))
    stages = [layout for layout in stages if not check(question, layout)]
    if "replicas" not in limits.allowed or limits.trainer is not None:
        return stages, []
    rows = listed_layouts(question, limits)
    gpus = rows.tp * rows.cp * rows.pp
    fills = np.all([pool.cluster.num_gpus % gpus == 0 for pool in question.pools], axis=0)
    fills &= allowed_rows(question, limits, rows) & (rows.pp <= question.model.num_layers)
    columns = _within_limits(question, limits, rows.rows(np.flatnonzero(fills)))
    replicas = [in_pools(question, columns.layout(row)) for row in range(len(columns))]
    return stages, [layout for layout in replicas if not check(question, layout)]


def _within_limits(question: Question, limits: Restrictions, columns: LayoutColumns) -> LayoutColumns:
    """Select the layouts that respect the limits of a search (`beyond_limits`)."""
    return columns.rows(np.flatnonzero(unbroken(beyond_limits(limits), question, columns)))


def listed_layouts(question: Question, limits: Restrictions) -> LayoutColumns:
    """List all distinct layouts, legal or not, whose degrees use every GPU. If there are too many, layouts
    that break a rule with every pipeline shape and microbatch size are left out."""
    in_full = count_combinations(question, limits) <= MOST_IN_FULL
    tables = [LayoutColumns.of([Layout()]).rows(slice(0))]
    for mesh in meshes(question, limits):
        inside, shapes = _values(question, limits, mesh)
        degrees: Values = {_DEGREES: [mesh]}
        if not in_full:
            columns = _combinations(degrees | inside | {tuple(chain(*shapes)): [_UNSHAPED]})
            legal = legal_rows(question, columns, shaped=False, hosts=False)
            columns = _within_limits(question, limits, columns.rows(np.flatnonzero(legal)))
            names = tuple(chain(*inside))
            table = np.stack([getattr(columns, name) for name in names], axis=1)
            inside = {names: [tuple(row) for row in table.tolist()]}
        tables.append(_combinations(degrees | inside | shapes))
    return join_rows(tables)


def _combinations(values: Values) -> LayoutColumns:
    """Layout columns with every combination of the given column values."""
    names = tuple(chain(*values))
    rows = [tuple(chain(*combination)) for combination in product(*values.values())]
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    return LayoutColumns(**dict(zip(names, np.ascontiguousarray(table.T), strict=True)))


def count_combinations(question: Question, limits: Restrictions, *, shaped: bool = True) -> int:
    """Count the combinations of the values of all axes. Without `shaped` the axes vpp, schedule and
    microbatch size do not count."""
    by_mesh = (_values(question, limits, mesh) for mesh in meshes(question, limits))
    axes = (inside | shapes if shaped else inside for inside, shapes in by_mesh)
    return sum(math.prod(map(len, values.values())) for values in axes)


def meshes(question: Question, limits: Restrictions) -> Rows:
    """Degrees (tp, pp, cp, dp) that the restrictions permit and whose product is the number of GPUs."""
    gpus, triples = question.cluster.num_gpus, product(_divisors(question.cluster.num_gpus), repeat=3)
    filling = [(*some, gpus // math.prod(some)) for some in triples if gpus % math.prod(some) == 0]
    return _permitted_values(limits, _DEGREES, filling)


def _divisors(number: int) -> list[int]:
    """Divisors of a number in rising order."""
    return [d for d in range(1, number + 1) if number % d == 0]


def _values(question: Question, limits: Restrictions, mesh: tuple[int, ...]) -> tuple[Values, Values]:
    """Values of the other axes to combine with a mesh (degrees tp, pp, cp and dp), in two groups: axes that
    rules check together, and the axes vpp, schedule and microbatch size. In several pools of GPUs schedules
    are plain."""
    tp, pp, cp, dp = mesh
    model, ranks = question.model, dp * cp
    experts: Rows = [(1, tp)]
    if model.has_experts:
        experts = list(product(range(1, model.num_experts + 1), _divisors(tp * ranks)))
    ways: Rows = [(way,) for way in (USUAL_CONTEXT, *(range(len(CONTEXTS)) if cp > 1 else ()))]
    offloads: Rows = [(*Offload(), USUAL_RING)]
    if limits.opens("offload"):
        offloads = _offloads(question, pp, {USUAL_RING, *limits.only.get("ring", ())})
    overlaps: Rows = [(UNSAID,) * len(OVERLAPS)]
    if limits.opens("overlap") and math.prod(mesh) > 1:
        overlaps += product(*([0, 1] if degree > 1 else [0] for degree in (tp, pp, ranks)))
    chunked = product(PLAIN if question.has_pools else SCHEDULES, range(1, (model.num_layers + 3) // pp + 1))
    runs = [(name, vpp) for name, vpp in chunked if schedule_named(name).runs_chunks(vpp)]
    shapes: Rows = [(vpp, SCHEDULES.index(name)) for name, vpp in runs]
    inside: Values = {
        ("ep", "etp"): experts,
        ("zero", "shard"): [(0, ranks), *product((1, 2, 3), _divisors(ranks))],
        ("sp",): [(0,), (1,)] if tp > 1 else [(0,)],
        ("order",): _seatings(cp, dp, pp),
        ("context",): ways,
        (*(f"offload_{part}" for part in Offload._fields), "ring"): offloads,
        tuple(f"overlap_{axis}" for axis in OVERLAPS): overlaps,
    }
    sizes: Rows = [(size,) for size in _divisors(question.training.global_batch)]
    shaped: Values = {("vpp", "schedule"): shapes, ("mbs",): sizes}
    for group in (inside, shaped):
        group.update({names: _permitted_values(limits, names, values) for names, values in group.items()})
    return inside, shaped


def _permitted_values(limits: Restrictions, names: tuple[str, ...], values: Rows) -> Rows:
    """Select the values of some columns that the restrictions permit; values of `order` and `context`, which
    have synonyms, all stay."""
    if names in (("order",), ("context",)):
        return values
    table = np.array(values, dtype=np.int64).reshape(-1, len(names))
    permitted = np.all([limits.permits(name, table[:, at]) for at, name in enumerate(names)], axis=0)
    return [values[row] for row in np.flatnonzero(permitted).tolist()]


def _seatings(cp: int, dp: int, pp: int) -> Rows:
    """Indices of one rank order for each different sequence of the axes cp, dp and pp. Axes of a single rank
    do not count."""
    degrees, first = {"cp": cp, "dp": dp, "pp": pp}, dict[tuple[str, ...], int]()
    for index, order in enumerate(ORDERS):
        first.setdefault(tuple(axis for axis in order.split("-") if degrees.get(axis, 1) > 1), index)
    return [(order,) for order in sorted(first.values())]


def _offloads(question: Question, pp: int, rings: set[int]) -> Rows:
    """List every combination of the numbers of blocks offloaded in each way (residency), and of the ring
    sizes where weights are streamed. At most one residency is without a count."""
    counts = [*range(question.model.num_layers // pp + 1), EVERY]
    of_blocks = [some for some in product(counts, repeat=3) if some.count(EVERY) <= 1]
    away = [(*some, *rest) for some in of_blocks for rest in product((0, EVERY), repeat=2)]
    streamed = Offload._fields.index("streamed")
    return [(*some, ring) for some in away for ring in (sorted(rings) if some[streamed] else [USUAL_RING])]
