"""Cores of layouts: every mesh of the GPUs with what else the search tries in it, before any rule is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product

import numpy as np

from cost_models.arrays import Ints
from cost_models.axes.axis import Mesh, divisors
from cost_models.axes.columns import COLUMNS, LayoutColumns
from cost_models.axes.layout import AXES
from cost_models.axes.words import Switch
from cost_models.communication.levels import levels_of
from cost_models.question import Question
from cost_models.specs.choices import SCHEDULES
from cost_models.specs.cluster import ClusterSpec
from planner.space.restrictions import Restrictions

ONE_CHUNK = SCHEDULES.index("1f1b")
"""The shape that stands for all others where shapes do not matter."""
_INSIDE = sorted(
    (name for name, axis in AXES.items() if axis.values),
    key=lambda name: not isinstance(AXES[name].word, Switch),
)
"""Axes beside those of the mesh; switches vary slowest."""
_COLUMNS = (*Mesh._fields, *chain.from_iterable(AXES[name].word.columns(name) for name in _INSIDE))


class _Options:
    """What the restrictions leave of the values that the search tries; what was met once is known."""

    def __init__(self, question: Question, restrictions: Restrictions) -> None:
        self._question, self._restrictions = question, restrictions
        self._known: dict[tuple[str, tuple[int, ...]], list[int]] = {}

    def permitted(self, axis: str, values: Sequence[int]) -> list[int]:
        """Those of some values of a column that are."""
        key = (axis, tuple(values))
        if key not in self._known:
            numbers = np.array(values, dtype=np.int64)
            self._known[key] = numbers[self._restrictions.permits(axis, numbers)].tolist()
        return self._known[key]

    def inside(self, name: str, mesh: Mesh) -> list[tuple[int, ...]]:
        """The numbers that the columns of an axis may hold in a mesh.

        An axis of several columns, one whose values may mean the same and one that may say nothing are left to the
        restrictions on whole layouts.
        """
        axis = AXES[name]
        assert axis.values is not None
        if axis.closed and not self._restrictions.opens(name):
            return [tuple(word.simplest for _, word in axis.word.columns(name).values())]
        values = axis.values(self._question, mesh)
        if name not in COLUMNS or axis.alike is not None or axis.within:
            return [value if isinstance(value, tuple) else (value,) for value in values]
        numbers = {value for value in values if not isinstance(value, tuple)}
        asked = self._restrictions.only.get(name, frozenset())
        return [(value,) for value in self.permitted(name, sorted(numbers | asked))]


NEARLY_AS_FAST = 0.5
"""Share of the bandwidth inside a node from which a search spreads tensor groups over nodes without being asked: below
it their messages take over twice as long, which no published run thought worth it."""


def tensor_degrees(cluster: ClusterSpec) -> list[int]:
    """Degrees that a search tries: those that divide a node, and over fast enough links those that divide all GPUs."""
    inside, between = (
        [at.bandwidth for at in levels_of(cluster) if at.network == far] for far in (False, True)
    )
    near = not between or min(between) < NEARLY_AS_FAST * min(inside)
    return divisors(cluster.gpus_per_node if near else cluster.num_gpus)


def candidate_cores(question: Question, restrictions: Restrictions) -> LayoutColumns:
    """Cores of mbs1 from the divisors of GPUs, batch and experts; every legal one is among them."""
    options = _Options(question, restrictions)
    blocks = [np.empty((0, len(_COLUMNS)), dtype=np.int64)]
    for mesh in _meshes(question, restrictions, options):
        rows = product([mesh], *(options.inside(name, mesh) for name in _INSIDE))
        numbers = list(chain.from_iterable(chain.from_iterable(rows)))
        blocks.append(np.array(numbers, dtype=np.int64).reshape(-1, len(_COLUMNS)))
    table = np.ascontiguousarray(np.concatenate(blocks).T)
    known = dict(zip(_COLUMNS, table, strict=True))

    def everywhere(value: int) -> Ints:
        return np.broadcast_to(np.int64(value), table.shape[1:])

    simplest = {name: everywhere(column.word.simplest) for name, column in COLUMNS.items()}
    cores = LayoutColumns(**simplest | {"schedule": everywhere(ONE_CHUNK)} | known)
    following = {
        name: column.axis.follows(cores)
        for name, column in COLUMNS.items()
        if name not in known and column.axis.follows is not None
    }
    return replace(cores, **following)


def _meshes(question: Question, restrictions: Restrictions, options: _Options) -> Iterator[Mesh]:
    """Degrees that are permitted, and that the batch, the sequence and the blocks have room for."""
    cluster = question.cluster
    for tp in options.permitted("tp", sorted({*tensor_degrees(cluster), *restrictions.only.get("tp", ())})):
        if cluster.num_gpus % tp:
            continue
        for cp in options.permitted("cp", divisors(cluster.num_gpus // tp)):
            if question.training.sequence_length % cp or (cp > 1 and not question.stack.context_kinds):
                continue
            for pp in options.permitted("pp", divisors(cluster.num_gpus // (tp * cp))):
                dp = cluster.num_gpus // (tp * cp * pp)
                room = pp <= question.model.num_layers and question.training.global_batch % dp == 0
                if room and options.permitted("dp", [dp]):
                    yield Mesh(tp, pp, cp, dp)


def microbatch_sizes(
    question: Question, restrictions: Restrictions, cores: LayoutColumns
) -> tuple[Ints, Ints]:
    """The core and the size, for every microbatch size that each core's share of the batch divides into."""
    of_degree = {}
    for dp in np.unique(cores.dp).tolist():
        sizes = np.array(divisors(question.training.global_batch // dp), dtype=np.int64)
        of_degree[dp] = sizes[restrictions.permits("mbs", sizes)]
    own = [of_degree[dp] for dp in cores.dp.tolist()]
    core = np.repeat(np.arange(len(cores)), [len(sizes) for sizes in own])
    return core, np.concatenate([np.empty(0, dtype=np.int64), *own])
