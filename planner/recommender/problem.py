"""Optimization problem of a sharding search: units of tables, the options of each, loads and memory, tables with fixed
places.

    U units (a table, or tables that must share a GPU), in C classes of alike ones
    R rows: the ways to hold a unit of a class                              G GPUs in N nodes, K stages
    M moments of a step at which a GPU's memory may be fullest
    minimise  Σ_k max(max_g load_gk, floor_k) + fixed       within device memory of each GPU at each moment,
                                                        host memory of each node

Resources are one array of K + M + 1 columns: loads of the stages, shares of a GPU's memory at the moments, and last
the share of the host memory of the GPU's node.

TorchRec's objective is the same with one stage: a GPU's load is the sum over stages, and no floor applies. Where
nothing fits, an error names the table that no GPU holds, its least shard and remedies, or the memory of all tables
together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any, Literal, NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.errors import DoesNotFitError, InputError
from cost_models.errors import Problem as UserProblem
from cost_models.recommender.options import PricedOptions
from cost_models.specs.recommender.sharding import Option
from cost_models.units import counted, format_bytes
from planner.recommender.restrictions import ShardingRestrictions

Objective = Literal["step", "torchrec"]
"""`step`: stages one after another, each as long as its busiest GPU; `torchrec`: most that a GPU does in all."""
OBJECTIVES: tuple[Objective, ...] = ("step", "torchrec")

FULL = 1 + 1e-8
"""Share of a memory that may be filled: rounding apart, all of it."""
MOST_ROWS = 500
"""Maximum number of option combinations searched for a group of tables; with more, all tables of a group take
the same option."""

Unit = tuple[int, ...]
"""Numbers of the tables that lie together and are placed as one unit; mostly a single table."""
Places = tuple[int, ...]
"""GPU of each shard of a unit, or node of each shard if the option lies on nodes."""


class Rows(NamedTuple):
    """Option rows: R options for units of tables, each with the resources (K + M + 1) that it takes."""

    picks: tuple[tuple[int, ...], ...]
    """Index into the priced options of the option of each table in the unit, (R,)."""
    unit_class: Ints
    """Class of the units that each row is for, (R,); before units are known, of the tables. Rows of a class follow one
    another."""
    shards: Ints
    """Number of shards with a place of their own, (R,)."""
    on_nodes: Bools
    """Whether the places of the shards are nodes instead of GPUs, (R,)."""
    shard: Array
    """Resources of a shard on each GPU that holds it, and in its node's host memory, (R, K + M + 1)."""
    everywhere: Array
    """Resources of a unit on every GPU, and in every host's memory, (R, K + M + 1)."""

    def select(self, rows: Ints) -> Rows:
        """Copy of the table with only the option rows at the given indices."""
        columns: Sequence[Any] = self[1:]
        return Rows(tuple(self.picks[row] for row in rows.tolist()), *(column[rows] for column in columns))

    @property
    def undominated(self) -> Rows:
        """Select the option rows that no other row dominates. A row dominates another with as many shards if
        it takes no more of any resource, and any other row if it has no shards; of equal rows the first
        stays."""
        # [a, b]: a needs no more than b
        less_everywhere = (self.everywhere[:, None] <= self.everywhere).all(axis=2)
        less_a_shard = (self.shard[:, None] <= self.shard).all(axis=2)
        same_shape = (self.shards[:, None] == self.shards) & (self.on_nodes[:, None] == self.on_nodes)
        replaces = less_everywhere & ((same_shape & less_a_shard) | (self.shards == 0)[:, None])
        earlier = np.arange(len(self.shards))[:, None] < np.arange(len(self.shards))
        return self.select(np.flatnonzero(~(replaces & (~replaces.T | earlier)).any(axis=0)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Optimization problem of a sharding search: units to place, their option rows, and loads of tables
    already placed."""

    priced: PricedOptions
    members: tuple[tuple[Unit, ...], ...]
    """By class: its units, each the tables that it stands for."""
    rows: Rows
    base: Array
    """Resources that tables with given places and the dense network take of each GPU and its host, (G, K + M
    + 1)."""
    preplaced: dict[int, tuple[int, Places]]
    """Row of `priced` and places of the tables whose places are given."""
    stage_floors: Array
    """Minimum length of each stage, (K,)."""
    fixed: float
    """Seconds of the step that do not depend on the tables."""

    @property
    def loads(self) -> slice:
        """Slice of the resource columns with the loads of stages."""
        return slice(len(self.stage_floors))

    @property
    def memories(self) -> slice:
        """Slice of the resource columns with shares of GPU memory at the moments of a step, and of host
        memory."""
        return slice(len(self.stage_floors), None)

    @property
    def node_of_gpu(self) -> Ints:
        """Index of each GPU's node, (G,)."""
        return np.arange(self.priced.gpus) // self.priced.gpus_per_node

    @property
    def counts(self) -> Ints:
        """Number of units in each class, (C,)."""
        return np.array([len(units) for units in self.members], dtype=np.int64)

    @property
    def units(self) -> list[Unit]:
        """Table numbers of each unit, (U,)."""
        return [unit for units in self.members for unit in units]

    @property
    def places(self) -> Ints:
        """Number of possible places of a shard of each option row, (R,): GPUs, or nodes for rows over nodes."""
        return np.where(self.rows.on_nodes, self.priced.nodes, self.priced.gpus)

    @property
    def span(self) -> Ints:
        """Minimum number of GPUs that one shard of each option row loads, (R,). It is 1 or, for rows over
        nodes, the number of GPUs of the last node, which may be smaller."""
        last_node = self.priced.gpus - (self.priced.nodes - 1) * self.priced.gpus_per_node
        return np.where(self.rows.on_nodes, last_node, 1)

    @property
    def mean(self) -> Array:
        """Lower bound of the resources that a unit in each option row takes on average over the GPUs (or
        hosts), (R, K + M + 1)."""
        rows = self.rows
        mean = rows.everywhere + rows.shard * (rows.shards * self.span / self.priced.gpus)[:, None]
        mean[:, -1] = rows.everywhere[:, -1] + rows.shard[:, -1] * rows.shards / self.priced.nodes
        return mean

    def rows_of(self, class_index: int) -> Ints:
        """Indices of the option rows of one class of units."""
        return np.flatnonzero(self.rows.unit_class == class_index)

    def least_total(self, amounts: Array) -> Array:
        """Sum over all units of the minimum of `amounts` over each unit's option rows, (...). The shape of
        `amounts` is (R, ...)."""
        counts = enumerate(self.counts.tolist())
        minima = (count * amounts[self.rows_of(class_index)].min(axis=0) for class_index, count in counts)
        return sum(minima, np.zeros(amounts.shape[1:]))

    @property
    def least_stages(self) -> Array:
        """Lower bound on the length of each stage, (K,), with all units in the option rows that load the stage
        least."""
        mean = self.base[:, self.loads].mean(axis=0) + self.least_total(self.mean[:, self.loads])
        return np.asarray(np.maximum(mean, self.stage_floors))

    def with_rows(self, rows: Ints) -> Problem:
        """Copy of the problem with a subset of option rows; each class must keep at least one."""
        return replace(self, rows=self.rows.select(rows))

    def in_units_of(self, seconds: float) -> Problem:
        """Copy of the problem with loads divided by `seconds`."""
        unit = np.ones(self.base.shape[1])
        unit[self.loads] = seconds
        rows = self.rows._replace(shard=self.rows.shard / unit, everywhere=self.rows.everywhere / unit)
        floors, fixed = self.stage_floors / seconds, self.fixed / seconds
        return replace(self, rows=rows, base=self.base / unit, stage_floors=floors, fixed=fixed)

    def add_shards(self, use: Array, row: int, places: Sequence[int], times: int = 1) -> None:
        """Add `times` shards of an option row at `places` to the resources in use, (G, K + M + 1)."""
        shard, per_node = times * self.rows.shard[row], self.priced.gpus_per_node
        span = per_node if self.rows.on_nodes[row] else 1
        for place in places:
            first, node = place * span, place * span // per_node * per_node
            use[first : first + span, :-1] += shard[:-1]
            use[node : node + per_node, -1] += shard[-1]

    def use(self, placement: Placement) -> Array:
        """Resources that a placement of all units takes of each GPU and its host, (G, K + M + 1)."""
        use: Array = self.base + self.rows.everywhere[placement.row].sum(axis=0)
        for row, places in zip(placement.row.tolist(), placement.places, strict=True):
            self.add_shards(use, row, places)
        return use

    def fits(self, use: Array) -> bool:
        """Whether no memory is overfull with the resources `use`, (G, K + M + 1)."""
        return bool(use[:, self.memories].max() <= FULL)

    def stage_seconds(self, use: Array) -> Array:
        """Length of each stage if the resources `use` are taken, in the problem's unit of time, (..., K)."""
        return np.asarray(np.maximum(use[..., self.loads].max(axis=-2), self.stage_floors))

    def value(self, use: Array) -> float:
        """Objective, in the problem's unit of time, if the resources `use` are taken, (G, K + M + 1)."""
        return float(self.stage_seconds(use).sum() + self.fixed)


class Placement(NamedTuple):
    """Option row of every unit, and the GPUs or nodes where its shards lie."""

    row: Ints
    """Option row of each unit, (U,)."""
    places: tuple[Places, ...]
    """(U,) GPUs or nodes of each unit's shards."""


def no_option_left_error(priced: PricedOptions, table: int) -> InputError:
    """Create the error that restrictions leave a table without any sharding option."""
    return InputError(f"restrictions leave no way to hold {priced.name_of(table)}")


def does_not_fit_error(priced: PricedOptions, rows: Ints, table: int) -> DoesNotFitError:
    """Create the error that a table fits in none of the priced options `rows`. It names the memory that the
    table needs at least and what would help: host memory, a larger GPU, more GPUs or column slices."""
    fixed = float(priced.fixed_bytes.max())
    free = float(priced.device_memory - fixed)
    shard = np.where(priced.shards[:, None] > 0, priced.shard_bytes, 0.0)
    of_gpu = (priced.everywhere_bytes + shard + priced.fixed_bytes - fixed).max(axis=1)
    of_host = priced.everywhere_host_bytes + -(-priced.shards // priced.nodes) * priced.shard_host_bytes
    device, host = of_gpu[rows], of_host[rows]
    best = int(np.argmin(np.maximum(device - free, 0) + np.maximum(host - priced.host_memory, 0)))
    options = [priced.options[row] for row in rows.tolist()]
    how = "however it is held" if len(rows) > 1 else f"held as `{options[best]}`"
    room = f"of a GPU's {format_bytes(free)}" if free > 0 else "of a GPU that the dense network fills alone"
    places = [f"{format_bytes(float(device[best]))} {room}"]
    if host[best] > 0:
        places.append(f"{format_bytes(float(host[best]))} of a host's {format_bytes(priced.host_memory)}")

    hints = []
    sizes = [(one, size) for one, size in zip(options, device.tolist(), strict=True) if one.tier == "device"]
    on_device = {option.form: size for option, size in reversed(sizes)}
    hosted = [at for at, option in enumerate(options) if option.tier == "host" and device[at] <= free]
    if hosted:
        hints.append(f"{format_bytes(float(host[hosted].min()))} of each node's host memory would do")
    if sizes:
        hints.append(f"{format_bytes(min(size for _, size in sizes) + fixed)} a GPU would do")
    if "row" in on_device and free > 0:
        hints.append(f"`row` over {counted(math.ceil(priced.gpus * on_device['row'] / free), 'GPU')}")
    if "whole" in on_device and "column" not in on_device and free > 0:
        hints.append(f"`column{math.ceil(on_device['whole'] / free)}` where its width divides")

    shown_row = priced.row_of.get((int(priced.table_class[rows[0]]), Option("whole")), int(rows[0]))
    table_bytes = float(of_gpu[shown_row] + priced.shard_host_bytes[shown_row])
    headline = f"{priced.name_of(table)}, {format_bytes(table_bytes)}, does not fit, {how}"
    needs_problem = [UserProblem("least", f"`{options[best]}` needs {' and '.join(places)}")]
    return DoesNotFitError(headline, problems=needs_problem, hint="; or ".join(hints))


def no_room_error(problem: Problem) -> DoesNotFitError:
    """Create the error that the tables fit one by one but not together. It names the memory that they need at
    least, of all GPUs or, if these have enough, of GPUs and hosts, and how many GPUs would do."""
    priced, gpus, nodes = problem.priced, problem.priced.gpus, problem.priced.nodes
    shares = problem.mean[:, problem.memories] * np.append(np.full(len(priced.fixed_bytes), gpus), nodes)
    filled = problem.base[:, problem.memories][:, :-1].sum(axis=0)
    device_shares = filled + problem.least_total(shares[:, :-1])
    moment = int(device_shares.argmax())
    fixed = float(priced.fixed_bytes[moment])
    free = priced.device_memory - fixed
    least_bytes = float(device_shares[moment]) * priced.device_memory - fixed * gpus
    needs, have = least_bytes, f"GPUs have {format_bytes(free * gpus)}"
    if least_bytes <= free * gpus and priced.host_memory:
        total = shares[:, moment] * priced.device_memory + shares[:, -1] * priced.host_memory
        needs = float(problem.least_total(total))
        have += f", and hosts {format_bytes(nodes * priced.host_memory)}"
    enough = math.ceil(least_bytes / free) if free > 0 else 0
    hosts = any(option.tier == "host" for option in priced.options)
    if enough > gpus:
        hint = f"they need {counted(enough, 'GPU')} of this size or more"
        hint += "; or let tables lie in host memory" if hosts else ""
    else:
        hint = f"use more GPUs; or let large tables be split{' or lie in host memory' if hosts else ''}"
    needs_problem = [UserProblem("needs", f"{format_bytes(needs)} or more; {have}")]
    message = f"the tables do not fit {counted(gpus, 'GPU')} together"
    return DoesNotFitError(message, problems=needs_problem, hint=hint)


def build_problem(priced: PricedOptions, objective: Objective, restrictions: ShardingRestrictions) -> Problem:
    """Build the optimization problem of a sharding search from prices, objective and restrictions.

    Raises:
        InputError: restrictions that contradict the prices or one another.
        DoesNotFitError: a table that no option holds.
    """
    priced = with_memory_limit(priced, restrictions)
    all_options, fixed = every_option(priced, objective), _fixed_rows(priced, restrictions)
    rows = all_options.rows
    preplaced = {table: row_and_places for table, row_and_places in fixed.items() if row_and_places[1]}
    problem = replace(all_options, preplaced=preplaced)
    for row, places in preplaced.values():
        problem.base[:] += rows.everywhere[row]
        problem.add_shards(problem.base, row, places)

    allowed = np.array([restrictions.allows(option) for option in priced.options])
    grouped = set(chain(*restrictions.together))
    groups: dict[tuple[int, int], list[Unit]] = defaultdict(list)
    for table, class_index in enumerate(priced.class_of_table.tolist()):
        if table not in grouped and table not in problem.preplaced:
            groups[class_index, fixed[table][0] if table in fixed else -1].append((table,))
    built: list[tuple[list[Unit], Rows]] = []
    for (class_index, fixed_row), units in groups.items():
        class_rows = priced.rows_of_class(class_index)
        class_rows = class_rows[allowed[class_rows]] if fixed_row < 0 else np.array([fixed_row])
        if not len(class_rows):
            raise no_option_left_error(priced, units[0][0])
        fitting = _fitting_rows(problem, rows.select(class_rows))
        if not len(fitting.picks):
            raise does_not_fit_error(priced, class_rows, units[0][0])
        built.append((units, fitting.undominated))
    whole_rows = allowed & np.array([option.form == "whole" for option in priced.options])
    built += [([group], _group_rows(problem, group, whole_rows)) for group in restrictions.together]
    members, of_class = tuple(tuple(units) for units, _ in built), enumerate(part for _, part in built)
    parts = [part._replace(unit_class=np.full(len(part.picks), index)) for index, part in of_class]
    picks, *columns = zip(rows.select(np.zeros(0, dtype=np.int64)), *parts, strict=True)
    return replace(problem, members=members, rows=Rows(tuple(chain(*picks)), *map(np.concatenate, columns)))


def with_memory_limit(priced: PricedOptions, restrictions: ShardingRestrictions) -> PricedOptions:
    """Copy of the prices with the memory limit of the restrictions."""
    return replace(priced, device_memory=min(restrictions.max_memory, priced.device_memory))


def every_option(priced: PricedOptions, objective: Objective) -> Problem:
    """Create a problem in which each table is a unit by itself and each priced option a row, in the same
    order."""
    by_stage = objective == "step"

    def resources(seconds: Array, device: Array, host: Array) -> Array:
        """Shares of each resource that sharding options take, (R, K + M + 1), from seconds and bytes."""
        loads = seconds if by_stage else seconds.sum(axis=1, keepdims=True)
        shares = [_share(device, priced.device_memory), _share(host, priced.host_memory)[:, None]]
        return np.concatenate([loads, *shares], axis=1)

    shard = resources(priced.shard_seconds, priced.shard_bytes, priced.shard_host_bytes)
    everywhere = resources(priced.everywhere_seconds, priced.everywhere_bytes, priced.everywhere_host_bytes)
    base = np.zeros((priced.gpus, shard.shape[1]))
    base[:, -len(priced.fixed_bytes) - 1 : -1] = _share(priced.fixed_bytes, priced.device_memory)
    tables = np.split(np.arange(priced.counts.sum()), np.cumsum(priced.counts)[:-1])
    picks = tuple((row,) for row in range(len(priced.options)))
    on_nodes = np.array([option.form == "node-row" for option in priced.options])
    return Problem(
        priced=priced,
        members=tuple(tuple((table,) for table in own.tolist()) for own in tables),
        rows=Rows(picks, priced.table_class, priced.shards, on_nodes, shard, everywhere),
        base=base,
        preplaced={},
        stage_floors=priced.stage_floors if by_stage else np.zeros(1),
        fixed=float(priced.fixed.sum()) if by_stage else 0.0,
    )


def _share(filled: Array, limit: float) -> Array:
    """Used share of a memory; infinite if bytes are needed and the memory does not exist."""
    return filled / limit if limit > 0 else np.where(filled > 0, np.inf, 0.0)


def _fitting_rows(problem: Problem, rows: Rows) -> Rows:
    """Select the option rows that fit in memory next to the tables already placed, and that have no more
    shards than places."""
    filled = problem.base[:, problem.memories].min(axis=0)
    on_node = -(-rows.shards // problem.priced.nodes)  # of the node that has most of them, spread evenly
    shards = np.stack([*[np.minimum(rows.shards, 1)] * (len(filled) - 1), on_node], axis=1)
    on_shards = np.where(shards > 0, shards * rows.shard[:, problem.memories], 0.0)
    fits = (filled + rows.everywhere[:, problem.memories] + on_shards <= FULL).all(axis=1)
    return rows.select(np.flatnonzero(fits & (rows.shards <= replace(problem, rows=rows).places)))


def _fixed_rows(priced: PricedOptions, restrictions: ShardingRestrictions) -> dict[int, tuple[int, Places]]:
    """Option row and places of the shards of each table that restrictions fix, by table number. Places are ()
    if only the option is fixed."""
    fixed: dict[int, tuple[int, Places]] = {}
    class_of_table, row_of = priced.class_of_table.tolist(), priced.row_of
    for word in restrictions.fixed:
        if not restrictions.allows(word.option):
            raise InputError(f"`{word.option}` is fixed for {priced.name_of(word.first)} and also forbidden")
        place, places = ("node", priced.nodes) if word.option.form == "node-row" else ("GPU", priced.gpus)
        for table, at in word.places.items():
            name, pair = priced.name_of(table), (class_of_table[table], word.option)
            if table in fixed:
                raise InputError(f"{name} is fixed twice")
            if pair not in row_of:
                options = ", ".join(str(priced.options[row]) for row in priced.rows_of_class(pair[0]))
                raise InputError(f"{name} cannot be held as `{word.option}`", hint=f"it can as {options}")
            fixed[table] = row_of[pair], at
            if invalid := [index for index in at if index >= places]:
                raise InputError(f"{name} is fixed on {place} {invalid[0]}, and there are 0 to {places - 1}")
    if conflicting := [table for group in restrictions.together for table in group if table in fixed]:
        name = priced.name_of(conflicting[0])
        raise InputError(f"{name} is fixed and also kept together with others: say one of the two")
    return fixed


def _group_rows(problem: Problem, group: Unit, whole_rows: Bools) -> Rows:
    """Option rows for tables that must lie unsplit on one GPU; each row combines one option of each table."""
    priced, class_of_table = problem.priced, problem.priced.class_of_table
    of_table = [priced.rows_of_class(class_of_table[table]) for table in group]
    parts = [problem.rows.select(rows[whole_rows[rows]]).undominated for rows in of_table]
    if not all(part.picks for part in parts):
        raise no_option_left_error(priced, group[0])
    joined, *other_parts = parts
    for part in other_parts:
        pairs = list(product(range(len(joined.picks)), range(len(part.picks))))
        if len(pairs) > MOST_ROWS:
            options = [{priced.options[pick] for pick in picks} for picks in joined.picks]
            equal_pairs = [(a, b) for a, b in pairs if options[a] == {priced.options[part.picks[b][0]]}]
            pairs = equal_pairs or pairs[:MOST_ROWS]
        a, b = np.array(pairs).T
        picks = tuple(joined.picks[i] + part.picks[j] for i, j in pairs)
        shard, everywhere = joined.shard[a] + part.shard[b], joined.everywhere[a] + part.everywhere[b]
        pair_rows = joined.select(a)._replace(picks=picks, shard=shard, everywhere=everywhere)
        joined = _fitting_rows(problem, pair_rows).undominated
        if not len(joined.picks):
            raise InputError(f"{', '.join(map(priced.name_of, group))} do not fit on one GPU together")
    return joined
