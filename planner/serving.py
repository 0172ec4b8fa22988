"""Plans to serve recommenders: the rows of each table that every GPU caches, as a knapsack over hits per
byte; latency of answers; and the plan file.

    maximise    Σ_c w_c h_c(f_c)             w_c: share of accesses, h_c: hits by rows cached, concave
    subject to  Σ_c N_c f_c b_c ≤ capacity   f_c rows of b_c bytes of each of the N_c tables of class c

Rows in the order of hits per byte, over all tables, are the optimum of the relaxed program for every capacity, as a
table's later rows never give more than its earlier ones. What fits of the row where the capacity ends is cut off to
whole rows: that loses less than one row of each table of one class, and the relaxed optimum bounds what it loses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.base import Spec
from cost_models.defaults import measured_cluster, resolve_stack
from cost_models.documents import Document
from cost_models.errors import InfeasibleError, InputError
from cost_models.files.catalog import check_kind, embedding_profile_of, validate
from cost_models.files.reading import read_document
from cost_models.memory.device import usable_host_memory
from cost_models.recommender.accesses import Accesses, CachedTables, cached_tables
from cost_models.recommender.question import USUAL_STACK
from cost_models.recommender.serving import Served, ServingQuestion, batch_latencies
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.recommender.training import ELEMENT_BYTES
from cost_models.units import format_bytes
from planner.plan import plan_yaml, require_ended, write_plan


class Filling(NamedTuple):
    """Number of rows of each embedding table in a GPU cache, with bytes and hit rate."""

    rows: Array
    """Number of cached rows of each table, by class of tables, (C,)."""
    bytes: float
    """Bytes of the rows."""
    hits: float
    """Share of all accesses that find their row in the cache."""
    bound: float
    """Upper bound on the hit rate of any cache of this many bytes."""


class FillingOrder(NamedTuple):
    """Order in which embedding rows enter a GPU cache as it grows. Each of S steps adds rows of the tables of
    one class."""

    tables: CachedTables
    step_class: Ints
    step_rows: Array
    """Number of rows that each step adds for each table of its class, (S,)."""
    curve: Accesses
    """Accesses over bytes in place of rows, as if rows were divisible: what these S steps serve bounds the hits of any
    cache of so many bytes."""

    def fill(self, capacity: float) -> Filling:
        """Number of rows of each table in a cache of `capacity` bytes."""
        return self._filling(capacity, float(self.curve.hits(capacity)))

    def smallest(self, share: float) -> Filling:
        """Number of rows of each table in the smallest cache whose hit rate is `share`."""
        return self._filling(float(self.curve.rows_for(share)), share, fills_up=True)

    def _filling(self, capacity: float, bound: float, *, fills_up: bool = False) -> Filling:
        """Number of rows of each table in a cache of `capacity` bytes: all steps of the order that fit
        completely, and a part of the next step. The part is rounded down to stay within the capacity or, with
        `fills_up`, up to reach it."""
        tables, ends = self.tables, self.curve.rows_up_to
        step = int(np.searchsorted(ends, capacity, side="right")) - 1
        rows = np.zeros(len(tables.counts))
        np.add.at(rows, self.step_class[:step], self.step_rows[:step])
        if step < len(self.step_class):
            part = (capacity - ends[step]) / (ends[step + 1] - ends[step]) * self.step_rows[step]
            part = np.ceil(part * (1 - 1e-12)) if fills_up else np.floor(part * (1 + 1e-12))
            rows[self.step_class[step]] += part
        rows = np.minimum(rows if tables.policy == "hottest" else np.floor(rows * (1 + 1e-12)), tables.rows)
        hits = tables.hits(rows)
        return Filling(rows, float(tables.counts @ (rows * tables.row_bytes)), hits, max(bound, hits))


def filling_order(tables: CachedTables) -> FillingOrder:
    """Sort the rows of all tables by hits per byte, the best first."""
    curves, counts = tables.curves, [len(curve.rows) for curve in tables.curves]
    step_class = np.repeat(np.arange(len(curves)), counts)
    rows, shares = np.concatenate([(curve.rows, curve.shares) for curve in curves], axis=1)
    worth = np.concatenate([np.minimum.accumulate(curve.share_of_row) for curve in curves])
    order = np.argsort(-worth * (tables.lookups / tables.row_bytes)[step_class], kind="stable")
    filled = (rows * (tables.counts * tables.row_bytes)[step_class])[order]
    hits = (shares * tables.weights[step_class])[order]
    filled_up_to, hits_up_to = (np.concatenate(([0.0], np.cumsum(step))) for step in (filled, hits))
    curve = Accesses(filled, hits, filled_up_to, np.minimum(hits_up_to, 1.0))
    return FillingOrder(tables, step_class[order], rows[order], curve)


def one_share_hits(tables: CachedTables, capacity: float) -> float:
    """Hit rate of a cache of `capacity` bytes that holds the same share of every table's rows, as with a
    single load factor."""
    return tables.hits(np.floor(min(1.0, capacity / tables.cached_whole_bytes) * tables.rows))


_HEADER = """\
# A Meshwright plan of a cache: which rows of a recommender's tables every GPU holds while serving.
#   meshwright plot cache PLAN    hits and latency by size
"""


class ServingPlan(Spec):
    """Number of rows of each table that every GPU caches, with cache size and hit rate."""

    kind: Literal["serving-plan"] = "serving-plan"
    schema_version: Literal[1] = 1
    question: ServingQuestion
    cached_rows: tuple[int, ...]
    """Number of rows that the cache has room for, of each table of a class: the rows used most or, with `lru`, used
    last."""
    cache_bytes: float
    """Bytes of the cache on each GPU, with keys."""
    hits: float
    """Share of all accesses that find their row in the cache."""
    bound: float
    """Upper bound on the hit rate of any cache of this size."""

    @property
    def rows(self) -> Array:
        """Cached rows of each table, by class of tables, (C,)."""
        return np.array(self.cached_rows, np.float64)


def with_rates(
    question: ServingQuestion, *, stack: str | None = None, profile: str | HardwareProfile | None = None
) -> ServingQuestion:
    """Copy of the question with measured rates from the nearest hardware profile and the nearest profile of
    the stack's lookups.

    The stack is our own on CPUs, TorchRec on clusters unless said. Raises UnknownNameError.
    """
    chosen_spec, hardware = resolve_stack(question.cluster, stack, profile, usual=USUAL_STACK)
    embedding = embedding_profile_of(question.cluster.gpu.name)
    if embedding.kernel_seconds is None:
        embedding = embedding.model_copy(update={"kernel_seconds": hardware.kernel_seconds})
    operations = chosen_spec.recommender and chosen_spec.recommender.operations
    launched = operations.served.get(question.policy, 0.0) if operations else 0.0
    rates = hardware.tables.served if launched and hardware.tables else {}
    cluster, measured = measured_cluster(hardware, question.cluster), rates.get(question.policy, ())
    launch = launched * hardware.kernel_seconds
    update = {"cluster": cluster, "embedding": embedding, "measured": measured, "launch_seconds": launch}
    return question.model_copy(update=update)


def plan_cache(
    question: ServingQuestion, *, cache_bytes: float | None = None, hits: float | None = None
) -> ServingPlan:
    """Plan a cache of a given size (by default all free GPU memory), or the smallest cache with a given hit
    rate.

    Raises:
        InfeasibleError: it is larger than a GPU has room for, or the tables larger than host memory.
    """
    require_host(question)
    order, available = filling_order(question.tables), question.most_bytes
    room = max(0.0, available)
    size = room if cache_bytes is None else cache_bytes
    filling = order.fill(size) if hits is None else order.smallest(hits)
    needs = filling.bytes if hits is not None else cache_bytes or 0.0
    if needs > available:
        fits = order.fill(room).hits
        raise InfeasibleError(
            f"a cache of {format_bytes(needs)} does not fit `{question.cluster.gpu.name}`, which has "
            f"{format_bytes(max(0.0, available))} beside the dense network and the context",
            hint=f"what fits has {fits:.1%} hits; --hits {np.floor(fits * 1000) / 10:g}%, or tables of fewer bytes",
        )
    rows, size, share, bound = filling
    cached = tuple(map(int, rows))
    return ServingPlan(question=question, cached_rows=cached, cache_bytes=size, hits=share, bound=bound)


def scaled(plan: ServingPlan, share: float) -> ServingPlan:
    """Plan for a smaller model, in which tables, cache and host memory are scaled by `share`.

    Raises:
        InputError: a table has a recorded histogram, which tells of its own rows alone.
    """
    question = plan.question
    if recorded := [one.name for one in question.model.classes if one.histogram]:
        words = f"table `{recorded[0]}` has a recorded histogram, which says nothing of a smaller table"
        raise InputError(words, hint="leave out --scale")
    smaller = {
        kind: tuple(one.model_copy(update={"rows": max(1, round(one.rows * share))}) for one in tables)
        for kind, tables in (("tables", question.model.tables), ("wide", question.model.wide))
    }
    host = question.cluster.host_memory
    cluster = question.cluster.model_copy(update={"host_memory": host and host * share})
    changed = {"model": question.model.model_copy(update=smaller), "cluster": cluster}
    return plan_cache(question.model_copy(update=changed), cache_bytes=plan.cache_bytes * share)


def require_host(question: ServingQuestion) -> None:
    """Raise InfeasibleError if all tables must lie in host memory and it is too small."""
    room, needs = usable_host_memory(question.cluster), question.tables.bytes
    if question.drive_rate is None and room and needs > room:
        filled = f"of which they may fill {format_bytes(room)}"
        hint = "--drive-rate 7GB/s serves the rest from drives of that rate; or --host-memory"
        raise InfeasibleError(f"tables of {format_bytes(needs)} do not fit host memory, {filled}", hint=hint)


def rows_on_host(question: ServingQuestion) -> Array:
    """Number of rows of each table in host memory, the hottest first, (C,); all rows without drives, or if
    the size of host memory is unknown."""
    tables = cached_tables(question.model, ELEMENT_BYTES[question.table_dtype])
    room = usable_host_memory(question.cluster)
    if question.drive_rate is None or not room or tables.bytes <= room:
        return tables.rows
    return filling_order(tables).fill(room * tables.cached_whole_bytes / tables.bytes).rows


def latencies(question: ServingQuestion, filling: Filling | ServingPlan) -> Served:
    """Latency of every batch size of the question if the rows in `filling` are cached."""
    return batch_latencies(question, np.asarray(filling.rows), rows_on_host(question))


def save_serving_plan(plan: ServingPlan, path: str | Path) -> None:
    """Write a serving plan to a file, completely or not at all. Raises InputError."""
    write_plan(path, plan_yaml(_HEADER, plan.model_dump(mode="json")))


def load_serving_plan(path: str | Path) -> ServingPlan:
    """Read a serving plan from a file. Raises InputError: missing, no such plan, cut short or inconsistent."""
    return serving_plan_in(read_document(path))


def serving_plan_in(document: Document) -> ServingPlan:
    """Validate a document read from a file as a serving plan. Raises InputError as `load_serving_plan` does."""
    check_kind(document, ServingPlan)
    require_ended(document)
    plan = validate(document, ServingPlan)
    rows, limits = plan.cached_rows, [table.rows for table in plan.question.model.classes]
    if len(rows) != len(limits) or not all(0 <= row <= most for row, most in zip(rows, limits, strict=True)):
        words = f"`cached_rows` of `{document.source}` are not rows of its tables"
        raise InputError(words, hint="plan again")
    return plan
