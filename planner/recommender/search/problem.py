"""The problem of the search of shardings: ways to hold units of tables, their loads and memory, tables with fixed
places.

    U units (a table, or tables that must share a GPU), in C classes of alike ones
    R rows: the ways to hold a unit of a class                              G GPUs in N nodes, K stages
    M moments of a step at which a GPU's memory may be fullest
    minimise  Σ_k max(max_g load_gk, floor_k) + fixed       within device memory of each GPU at each moment,
                                                        host memory of each node

TorchRec's objective is the same with one stage: a GPU's load is the sum over stages, and no floor applies. Where
nothing fits, an error names the table that no GPU holds, its least shard and remedies, or the memory of all tables
together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.errors import DoesNotFitError, InputError
from cost_models.errors import Problem as UserProblem
from cost_models.recommender.priced import PricedOptions
from cost_models.specs.recommender.sharding import Option
from cost_models.units import counted, format_bytes
from planner.recommender.restrictions import ShardingRestrictions

Objective = Literal["step", "torchrec"]
"""`step`: stages one after another, each as long as its busiest GPU; `torchrec`: most that a GPU does in all."""
OBJECTIVES: tuple[Objective, ...] = ("step", "torchrec")

FULL = 1 + 1e-8
"""Share of a memory that may be filled: rounding apart, all of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Optimization problem of a sharding search, with units to place, their option rows, and loads of tables
    placed already."""

    priced: PricedOptions
    members: tuple[tuple[tuple[int, ...], ...], ...]
    """By class: its units, each the tables that it stands for."""
    unit_class: Ints
    """(U,) class of each unit."""
    row_class: Ints
    """(R,) class of each row; rows of a class follow one another."""
    picks: tuple[tuple[int, ...], ...]
    """(R,) row of `priced` that each table of the unit takes."""
    shards: Ints
    """(R,) shards with a place of their own."""
    on_nodes: Bools
    """(R,) whether these places are nodes."""
    shard_load: Array
    """(R, K) load of a shard on each GPU that holds it."""
    everywhere_load: Array
    """(R, K)"""
    shard_full: Array
    """(R, M) share of the device memory limit that a shard fills."""
    everywhere_full: Array
    """(R, M)"""
    shard_host: Array
    """(R,) share of a node's host memory limit."""
    everywhere_host: Array
    """(R,)"""
    base_load: Array
    """(G, K) loads of tables whose places are given."""
    base_full: Array
    """(G, M) share of device memory filled before any unit."""
    base_host: Array
    """(N,)"""
    preplaced: dict[int, tuple[int, tuple[int, ...]]]
    """Row of `priced` and places of the tables whose places are given."""
    stage_floors: Array
    """(K,) each stage lasts at least as long."""
    fixed: float
    """Seconds that no table changes."""

    @property
    def gpus(self) -> int:
        """Number of GPUs, G."""
        return self.priced.gpus

    @property
    def gpus_per_node(self) -> int:
        """Number of GPUs in a node; the last node may have fewer."""
        return self.priced.gpus_per_node

    @property
    def nodes(self) -> int:
        """Number of nodes, N."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def node_of_gpu(self) -> Ints:
        """Index of each GPU's node, (G,)."""
        return np.arange(self.gpus) // self.gpus_per_node

    @property
    def counts(self) -> Ints:
        """Number of units in each class, (C,)."""
        return np.array([len(units) for units in self.members], dtype=np.int64)

    @property
    def units(self) -> list[tuple[int, ...]]:
        """Table numbers of each unit, (U,)."""
        return [unit for units in self.members for unit in units]

    @property
    def span(self) -> Ints:
        """Least number of GPUs that a shard of each option row loads, (R,); rows over nodes count the last
        node, which may be smaller."""
        return np.where(self.on_nodes, self.gpus - (self.nodes - 1) * self.gpus_per_node, 1)

    @property
    def nodes_matter(self) -> bool:
        """Whether the cost of a placement depends on which GPUs share a node."""
        hosted = bool(self.shard_host.any())
        return self.nodes > 1 and (bool(self.on_nodes.any()) or hosted)

    def rows_of(self, class_index: int) -> Ints:
        """Indices of the option rows of one class of units."""
        return np.flatnonzero(self.row_class == class_index)

    @property
    def mean_load(self) -> Array:
        """Least seconds that a unit in each option row adds to the mean load of a GPU, (R, K)."""
        return self.everywhere_load + self.shard_load * (self.shards * self.span / self.gpus)[:, None]

    @property
    def least_stages(self) -> Array:
        """Lower bound on the length of each stage, (K,), with all units in the option rows that load the stage
        least."""
        lengths_so_far, mean = self.base_load.mean(axis=0), self.mean_load
        for class_index, count in enumerate(self.counts.tolist()):
            lengths_so_far = lengths_so_far + count * mean[self.rows_of(class_index)].min(axis=0)
        lengths: Array = np.maximum(lengths_so_far, self.stage_floors)
        return lengths

    def with_rows(self, rows: Ints) -> Problem:
        """Copy of the problem with a subset of option rows; each class must keep at least one."""
        arrays = (
            "row_class",
            "shards",
            "on_nodes",
            "shard_load",
            "everywhere_load",
            "shard_full",
            "everywhere_full",
        )
        selected = {name: getattr(self, name)[rows] for name in (*arrays, "shard_host", "everywhere_host")}
        return replace(self, picks=tuple(self.picks[row] for row in rows.tolist()), **selected)

    def value(self, load_GK: Array) -> float:
        """Objective in seconds for given loads (G, K)."""
        return float(np.maximum(load_GK.max(axis=0), self.stage_floors).sum() + self.fixed)


@dataclass(frozen=True, slots=True)
class Placement:
    """Option row of every unit, and the GPUs or nodes of the unit's shards."""

    row: Ints
    """(U,)"""
    places: tuple[tuple[int, ...], ...]
    """(U,) GPUs, or nodes where the row lies on nodes."""


@dataclass(frozen=True, slots=True)
class Use:
    """Load of each GPU, and filled share of GPU and host memory, under a placement of tables."""

    load: Array
    """(G, K)"""
    full: Array
    """(G, M) share of the device memory limit."""
    host: Array
    """(N,) share of the host memory limit."""

    @property
    def fits(self) -> bool:
        """Whether no memory is overfull."""
        return bool(self.full.max() <= FULL and self.host.max(initial=0.0) <= FULL)


def use_of(problem: Problem, placement: Placement) -> Use:
    """Loads and filled memory of a placement, summed over all units."""
    row = placement.row
    load = problem.base_load + problem.everywhere_load[row].sum(axis=0)
    full = problem.base_full + problem.everywhere_full[row].sum(axis=0)
    host = problem.base_host + problem.everywhere_host[row].sum()
    for row_of_unit, places in zip(row.tolist(), placement.places, strict=True):
        for place in places:
            gpus = gpus_of(problem, row_of_unit, place)
            load[gpus] += problem.shard_load[row_of_unit]
            full[gpus] += problem.shard_full[row_of_unit]
            host[place if problem.on_nodes[row_of_unit] else place // problem.gpus_per_node] += (
                problem.shard_host[row_of_unit]
            )
    return Use(load, full, host)


def gpus_of(problem: Problem, row: int, place: int) -> slice:
    """Slice of GPUs that a shard loads at `place`, which is a node or a GPU depending on the option row."""
    if not problem.on_nodes[row]:
        return slice(place, place + 1)
    return slice(place * problem.gpus_per_node, (place + 1) * problem.gpus_per_node)


def undominated(shards: Ints, on_nodes: Ints, shard: Array, everywhere: Array) -> Ints:
    """Indices of option rows that no other row dominates. Another row dominates with as many shards (or none)
    and no more of any resource.

    Of equal rows the first stays. `shard` and `everywhere` are (R, resources).
    """
    less_everywhere = (everywhere[:, None] <= everywhere).all(axis=2)  # [a, b]: a needs no more than b
    less_a_shard = (shard[:, None] <= shard).all(axis=2)
    same_shape = (shards[:, None] == shards) & (on_nodes[:, None] == on_nodes)
    replaces = less_everywhere & ((same_shape & less_a_shard) | (shards == 0)[:, None])
    first = np.arange(len(shards))[:, None] < np.arange(len(shards))
    return np.flatnonzero(~(replaces & (~replaces.T | first)).any(axis=0))


def no_option_left_error(priced: PricedOptions, tables: Sequence[int]) -> InputError:
    """The error for restrictions that leave a table without any sharding option."""
    return InputError(f"restrictions leave no way to hold {priced.name_of(tables[0])}")


def does_not_fit_error(priced: PricedOptions, rows: Ints, table: int) -> DoesNotFitError:
    """The error for a table that fits in none of the priced options `rows`."""
    free = _free(priced)
    device = _worst_moment(priced, rows)
    host = _fullest_host(priced, rows)
    over = np.maximum(device - free, 0) + np.maximum(host - priced.host_memory, 0)
    best = int(np.argmin(over))
    option = priced.options[int(rows[best])]
    how = "however it is held" if len(rows) > 1 else f"held as `{option}`"
    room = f"of a GPU's {format_bytes(free)}" if free > 0 else "of a GPU that the dense network fills alone"
    places = [f"{format_bytes(float(device[best]))} {room}"]
    if host[best] > 0:
        places.append(f"{format_bytes(float(host[best]))} of a host's {format_bytes(priced.host_memory)}")
    return DoesNotFitError(
        f"{priced.name_of(table)}, {format_bytes(_table_bytes(priced, rows))}, does not fit, {how}",
        problems=[UserProblem("least", f"`{option}` needs {' and '.join(places)}")],
        hint="; or ".join(_remedies(priced, rows, device, host, free)),
    )


def _fullest_host(priced: PricedOptions, rows: Ints) -> Array:
    """(rows,) bytes of host memory that a table takes on the fullest node in each option, with shards spread
    evenly."""
    nodes = -(-priced.gpus // priced.gpus_per_node)
    shards = -(-priced.shards[rows] // nodes)
    return priced.everywhere_host_bytes[rows] + shards * priced.shard_host_bytes[rows]


def no_room_error(problem: Problem) -> DoesNotFitError:
    """The error for tables that fit one by one but not together."""
    priced = problem.priced
    needed = (
        problem.everywhere_full * problem.gpus + problem.shard_full * (problem.shards * problem.span)[:, None]
    )
    needed_share = problem.base_full.sum(axis=0)
    for class_index, count in enumerate(problem.counts.tolist()):
        needed_share = needed_share + count * needed[problem.rows_of(class_index)].min(axis=0)
    moment = int(needed_share.argmax())
    fixed = float(priced.fixed_bytes[moment])
    free = priced.device_memory - fixed
    least_bytes = float(needed_share[moment]) * priced.device_memory - fixed * priced.gpus
    gpus = math.ceil(least_bytes / free) if free > 0 else 0
    host_hint = "" if all(option.tier == "device" for option in priced.options) else " or lie in host memory"
    if gpus > priced.gpus:
        hint = f"they need {counted(gpus, 'GPU')} of this size or more"
        hint += "; or let tables lie in host memory" if host_hint else ""
    else:
        hint = f"use more GPUs; or let large tables be split{host_hint}"
    return DoesNotFitError(
        f"the tables do not fit {counted(priced.gpus, 'GPU')} together",
        problems=[UserProblem("needs", _needed(problem, least_bytes, free * priced.gpus, moment))],
        hint=hint,
    )


def _needed(problem: Problem, least_bytes: float, gpu_bytes: float, moment: int) -> str:
    """Text with the least memory that the tables need and the memory of all GPUs; if the GPUs have enough, host
    memory is counted too."""
    gpu_memory = format_bytes(gpu_bytes)
    if least_bytes > gpu_bytes or not problem.priced.host_memory:
        return f"{format_bytes(least_bytes)} or more; GPUs have {gpu_memory}"
    spans = problem.shards * problem.span
    device = problem.everywhere_full * problem.gpus + problem.shard_full * spans[:, None]
    host = problem.everywhere_host * problem.nodes + problem.shard_host * problem.shards
    total = device[:, moment] * problem.priced.device_memory + host * problem.priced.host_memory
    least_total = sum(
        count * float(total[problem.rows_of(one)].min()) for one, count in enumerate(problem.counts.tolist())
    )
    hosts = format_bytes(problem.nodes * problem.priced.host_memory)
    return f"{format_bytes(least_total)} or more; GPUs have {gpu_memory}, and hosts {hosts}"


def _free(priced: PricedOptions) -> float:
    """Bytes of GPU memory left for tables at the fullest moment."""
    return float(priced.device_memory - priced.fixed_bytes.max())


def _worst_moment(priced: PricedOptions, rows: Ints) -> Array:
    """Bytes of a GPU's free memory that a table needs in each option, at the tightest moment, (rows,)."""
    shard = np.where(priced.shards[rows][:, None] > 0, priced.shard_bytes[rows], 0.0)
    needed = priced.everywhere_bytes[rows] + shard + priced.fixed_bytes - priced.fixed_bytes.max()
    worst: Array = needed.max(axis=1)
    return worst


def _table_bytes(priced: PricedOptions, rows: Ints) -> float:
    """Bytes of a table, held whole if the options include that, else in the first of the options `rows`."""
    class_rows = np.flatnonzero(priced.table_class == priced.table_class[rows[0]])
    whole_rows = [at for at in class_rows.tolist() if priced.options[at] == Option("whole")]
    chosen_row = (whole_rows or rows.tolist())[:1]
    return float(_worst_moment(priced, np.array(chosen_row))[0] + priced.shard_host_bytes[chosen_row[0]])


def _remedies(priced: PricedOptions, rows: Ints, device: Array, host: Array, free: float) -> list[str]:
    """Texts of remedies with which a table would fit, such as host memory, a larger GPU, more GPUs or column
    slices."""
    forms = [priced.options[row] for row in rows.tolist()]
    words: list[str] = []
    hosted = [at for at, option in enumerate(forms) if option.tier == "host" and device[at] <= free]
    if hosted:
        least_bytes = min(float(host[at]) for at in hosted)
        words.append(f"{format_bytes(least_bytes)} of each node's host memory would do")
    on_device = [at for at, option in enumerate(forms) if option.tier == "device"]
    if on_device:
        least_bytes = min(float(device[at]) for at in on_device)
        words.append(f"{format_bytes(least_bytes + float(priced.fixed_bytes.max()))} a GPU would do")
    rows_split = [at for at in on_device if forms[at].form == "row"]
    if rows_split and free > 0:
        gpus = math.ceil(priced.gpus * float(device[rows_split[0]]) / free)
        words.append(f"`row` over {counted(gpus, 'GPU')}")
    whole_rows = [at for at in on_device if forms[at].form == "whole"]
    columns = [at for at in on_device if forms[at].form == "column"]
    if whole_rows and not columns and free > 0:
        words.append(f"`column{math.ceil(float(device[whole_rows[0]]) / free)}` where its width divides")
    return words


MOST_ROWS = 500
"""Ways to hold a group of tables beyond which only those are searched that hold its tables alike."""

Unit = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Candidate options for units, with the resources of each (loads of K stages, shares of GPU memory at M
    moments, host memory)."""

    picks: tuple[tuple[int, ...], ...]
    shards: Ints
    on_nodes: Ints
    shard: Array
    """(R, K + M + 1)"""
    everywhere: Array
    """(R, K + M + 1)"""
    moments: slice
    """Columns of device memory; loads come before, host memory last."""
    places: Ints
    """(R,) GPUs, or nodes: as many shards of a table may lie apart."""
    nodes: int

    def select(self, rows: Ints) -> _Rows:
        """Copy with only the given option rows."""
        return _Rows(
            picks=tuple(self.picks[row] for row in rows.tolist()),
            shards=self.shards[rows],
            on_nodes=self.on_nodes[rows],
            shard=self.shard[rows],
            everywhere=self.everywhere[rows],
            moments=self.moments,
            places=self.places[rows],
            nodes=self.nodes,
        )

    @property
    def best(self) -> _Rows:
        """Option rows that no other row dominates."""
        return self.select(undominated(self.shards, self.on_nodes, self.shard, self.everywhere))

    def fitting(self, filled: Array) -> _Rows:
        """Option rows that still fit in memory, given the (M + 1) memory shares `filled` already."""
        memories = slice(self.moments.start, None)
        shards = np.repeat(np.minimum(self.shards, 1)[:, None], len(filled), axis=1)
        shards[:, -1] = -(-self.shards // self.nodes)  # of the node that has most of them, spread evenly
        needed = self.everywhere[:, memories] + np.where(shards > 0, shards * self.shard[:, memories], 0.0)
        fits = (filled + needed <= FULL).all(axis=1)
        return self.select(np.flatnonzero(fits & (self.shards <= self.places)))


def pose(priced: PricedOptions, objective: Objective, restrictions: ShardingRestrictions) -> Problem:
    """Build the optimization problem of a sharding search from prices, objective and restrictions.

    Raises:
        InputError: restrictions that contradict the prices or one another.
        DoesNotFitError: a table that no option holds.
    """
    priced = limited(priced, restrictions)
    rows = _rows(priced, objective)
    table_class = np.repeat(np.arange(len(priced.counts)), priced.counts)
    allowed = np.array([restrictions.allows(option) for option in priced.options])
    preplaced = _fixed(priced, table_class, restrictions)
    base = _base(priced, rows, preplaced)
    least_filled = base[:, rows.moments.start :].min(axis=0)
    built: list[tuple[list[Unit], _Rows]] = []
    for (class_index, fixed), units in _table_classes(table_class, preplaced, restrictions).items():
        class_rows = (
            np.flatnonzero((priced.table_class == class_index) & allowed) if fixed < 0 else np.array([fixed])
        )
        if not len(class_rows):
            raise no_option_left_error(priced, units[0])
        fitting = rows.select(class_rows).fitting(least_filled)
        if not len(fitting.picks):
            raise does_not_fit_error(priced, class_rows, units[0][0])
        built.append((units, fitting.best))
    built += [
        ([group], _whole_table_options(priced, rows, table_class, allowed, group, least_filled))
        for group in restrictions.together
    ]
    return _problem(priced, objective, built, preplaced, base, rows.moments)


def limited(priced: PricedOptions, restrictions: ShardingRestrictions) -> PricedOptions:
    """Copy of the prices with the memory limits of the restrictions."""
    device, host = restrictions.max_memory, restrictions.host_memory
    return replace(
        priced,
        device_memory=priced.device_memory if device is None else min(device, priced.device_memory),
        host_memory=priced.host_memory if host is None else host,
    )


def _rows(priced: PricedOptions, objective: Objective) -> _Rows:
    """Candidate row for every priced option, with resources as the objective counts them."""
    on_nodes = np.array([option.form == "node-row" for option in priced.options])
    nodes = -(-priced.gpus // priced.gpus_per_node)

    def resources(seconds: Array, device: Array, host: Array) -> Array:
        loads = seconds if objective == "step" else seconds.sum(axis=1, keepdims=True)
        shares = [_share(device, priced.device_memory), _share(host, priced.host_memory)[:, None]]
        return np.concatenate([loads, *shares], axis=1)

    stages = priced.shard_seconds.shape[1] if objective == "step" else 1
    return _Rows(
        picks=tuple((row,) for row in range(len(priced.options))),
        shards=priced.shards,
        on_nodes=on_nodes.astype(np.int64),
        shard=resources(priced.shard_seconds, priced.shard_bytes, priced.shard_host_bytes),
        everywhere=resources(
            priced.everywhere_seconds, priced.everywhere_bytes, priced.everywhere_host_bytes
        ),
        moments=slice(stages, stages + priced.shard_bytes.shape[1]),
        places=np.where(on_nodes, nodes, priced.gpus),
        nodes=nodes,
    )


def _share(filled: Array, limit: float) -> Array:
    """Filled share of a memory; infinite if bytes are needed and the memory does not exist."""
    return filled / limit if limit > 0 else np.where(filled > 0, np.inf, 0.0)


def _fixed(
    priced: PricedOptions, table_class: Ints, restrictions: ShardingRestrictions
) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Table → (row of its sharding option among the priced ones, places of its shards) for tables that
    restrictions fix; () where only the option is fixed."""
    fixed: dict[int, tuple[int, tuple[int, ...]]] = {}
    for word in restrictions.fixed:
        if not restrictions.allows(word.option):
            raise InputError(f"`{word.option}` is fixed for {priced.name_of(word.first)} and also forbidden")
        for nth, table in enumerate(range(word.first, word.last + 1)):
            if table in fixed:
                raise InputError(f"{priced.name_of(table)} is fixed twice")
            rows = np.flatnonzero(priced.table_class == table_class[table]).tolist()
            row = next((row for row in rows if priced.options[row] == word.option), None)
            if row is None:
                options = ", ".join(str(priced.options[row]) for row in rows)
                raise InputError(
                    f"{priced.name_of(table)} cannot be held as `{word.option}`", hint=f"it can as {options}"
                )
            shards = int(priced.shards[row])
            at = word.at[nth * shards : (nth + 1) * shards] if word.at else ()
            fixed[table] = row, _checked_places(priced, table, row, at)
    if conflicting := [table for group in restrictions.together for table in group if table in fixed]:
        raise InputError(
            f"{priced.name_of(conflicting[0])} is fixed and also kept together with others: say one of the two"
        )
    return fixed


def _checked_places(priced: PricedOptions, table: int, row: int, at: tuple[int, ...]) -> tuple[int, ...]:
    nodes = -(-priced.gpus // priced.gpus_per_node)
    on_nodes = priced.options[row].form == "node-row"
    num_places = nodes if on_nodes else priced.gpus
    if invalid := [place for place in at if place >= num_places]:
        places_word = "node" if on_nodes else "GPU"
        raise InputError(
            f"{priced.name_of(table)} is fixed on {places_word} {invalid[0]}, and there are 0 to {num_places - 1}"
        )
    return at


def _base(priced: PricedOptions, rows: _Rows, preplaced: dict[int, tuple[int, tuple[int, ...]]]) -> Array:
    """Loads and filled memory shares before any unit is placed, (G, K + M + 1); the last column is the host
    memory of the GPU's node."""
    per_node = priced.gpus_per_node
    base = np.zeros((priced.gpus, rows.shard.shape[1]))
    base[:, rows.moments] = _share(priced.fixed_bytes, priced.device_memory)
    for row, at in preplaced.values():
        if not at:
            continue
        base += rows.everywhere[row]
        for place in at:
            node = place if rows.on_nodes[row] else place // per_node
            whole_node = slice(node * per_node, (node + 1) * per_node)
            gpus = whole_node if rows.on_nodes[row] else slice(place, place + 1)
            base[gpus, :-1] += rows.shard[row, :-1]
            base[whole_node, -1] += rows.shard[row, -1]
    return base


def _table_classes(
    table_class: Ints, preplaced: dict[int, tuple[int, tuple[int, ...]]], restrictions: ShardingRestrictions
) -> dict[tuple[int, int], list[Unit]]:
    """Tables without given places, grouped by class and fixed option row (−1 if not fixed)."""
    grouped = {table for group in restrictions.together for table in group}
    tables: dict[tuple[int, int], list[Unit]] = defaultdict(list)
    for table, class_index in enumerate(table_class.tolist()):
        row, at = preplaced.get(table, (-1, ()))
        if table not in grouped and not at:
            tables[class_index, row].append((table,))
    return tables


def _whole_table_options(
    priced: PricedOptions,
    rows: _Rows,
    table_class: Ints,
    allowed: Ints,
    group: Unit,
    least_filled: Array,
) -> _Rows:
    """Option rows for tables that must lie whole on one GPU, which combine one option of each table."""
    is_whole = np.array([option.form == "whole" for option in priced.options]) & allowed.astype(bool)
    joined: _Rows | None = None
    for table in group:
        table_rows = rows.select(np.flatnonzero(is_whole & (priced.table_class == table_class[table]))).best
        if not len(table_rows.picks):
            raise no_option_left_error(priced, group)
        joined = (
            table_rows if joined is None else _joined(priced, joined, table_rows).fitting(least_filled).best
        )
        if not len(joined.picks):
            raise InputError(f"{', '.join(map(priced.name_of, group))} do not fit on one GPU together")
    assert joined is not None
    return joined


def _joined(priced: PricedOptions, first: _Rows, second: _Rows) -> _Rows:
    pairs = [(a, b) for a in range(len(first.picks)) for b in range(len(second.picks))]
    if len(pairs) > MOST_ROWS:
        equal_options = [
            pair for pair in pairs if _option(priced, first, pair[0]) == _option(priced, second, pair[1])
        ]
        pairs = equal_options or pairs[:MOST_ROWS]
    a, b = np.array(pairs).T
    return _Rows(
        picks=tuple(first.picks[i] + second.picks[j] for i, j in pairs),
        shards=np.ones(len(pairs), dtype=np.int64),
        on_nodes=np.zeros(len(pairs), dtype=np.int64),
        shard=first.shard[a] + second.shard[b],
        everywhere=first.everywhere[a] + second.everywhere[b],
        moments=first.moments,
        places=first.places[a],
        nodes=first.nodes,
    )


def _option(priced: PricedOptions, rows: _Rows, row: int) -> object:
    """The sharding option that all tables of a unit take in this row; None if they differ."""
    options = {priced.options[pick] for pick in rows.picks[row]}
    return options.pop() if len(options) == 1 else None


def _problem(
    priced: PricedOptions,
    objective: Objective,
    built: list[tuple[list[Unit], _Rows]],
    preplaced: dict[int, tuple[int, tuple[int, ...]]],
    base: Array,
    moments: slice,
) -> Problem:
    step = objective == "step"
    lengths = [len(rows.picks) for _, rows in built]
    shard = np.concatenate([rows.shard for _, rows in built] or [np.zeros((0, base.shape[1]))])
    everywhere = np.concatenate([rows.everywhere for _, rows in built] or [np.zeros((0, base.shape[1]))])
    none: Ints = np.zeros(0, dtype=np.int64)
    loads = slice(moments.start)
    return Problem(
        priced=priced,
        members=tuple(tuple(units) for units, _ in built),
        unit_class=np.repeat(np.arange(len(built)), [len(units) for units, _ in built]),
        row_class=np.repeat(np.arange(len(built)), lengths),
        picks=tuple(pick for _, rows in built for pick in rows.picks),
        shards=np.concatenate([none, *(rows.shards for _, rows in built)]),
        on_nodes=np.concatenate([none, *(rows.on_nodes for _, rows in built)]).astype(bool),
        shard_load=shard[:, loads],
        everywhere_load=everywhere[:, loads],
        shard_full=shard[:, moments],
        everywhere_full=everywhere[:, moments],
        shard_host=shard[:, -1],
        everywhere_host=everywhere[:, -1],
        base_load=base[:, loads],
        base_full=base[:, moments],
        base_host=base[:: priced.gpus_per_node, -1],
        preplaced={table: one for table, one in preplaced.items() if one[1]},
        stage_floors=priced.stage_floors if step else np.zeros(1),
        fixed=float(priced.fixed.sum()) if step else 0.0,
    )
