"""From prices and restrictions to the problem that is searched: units, their rows, and what already lies somewhere."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.errors import InputError
from cost_models.recommender.priced import PricedOptions
from planner.recommender.restrictions import ShardingRestrictions
from planner.recommender.search.nothing_fits import no_option_holds, nothing_left
from planner.recommender.search.problem import FULL, Objective, Problem, undominated

MOST_ROWS = 500
"""Ways to hold a group of tables beyond which only those are searched that hold its tables alike."""

Unit = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Ways to hold a unit; resources are loads of K stages, and shares of device memory at M moments and of hosts."""

    picks: tuple[tuple[int, ...], ...]
    shards: Ints
    on_nodes: Ints
    shard: Array
    """(R, K + M + 1)"""
    everywhere: Array
    """(R, K + M + 1)"""
    moments: slice
    """Which resources are device memory; loads come before, host memory last."""
    places: Ints
    """(R,) GPUs, or nodes: as many shards of a table may lie apart."""
    nodes: int

    def kept(self, which: Ints) -> _Rows:
        """Some of the rows."""
        return _Rows(
            picks=tuple(self.picks[one] for one in which.tolist()),
            shards=self.shards[which],
            on_nodes=self.on_nodes[which],
            shard=self.shard[which],
            everywhere=self.everywhere[which],
            moments=self.moments,
            places=self.places[which],
            nodes=self.nodes,
        )

    @property
    def best(self) -> _Rows:
        """Rows that none of the others replaces."""
        return self.kept(undominated(self.shards, self.on_nodes, self.shard, self.everywhere))

    def fitting(self, filled: Array) -> _Rows:
        """Rows that fit beside `filled`, the (M + 1) shares of memories filled already."""
        memories = slice(self.moments.start, None)
        shards = np.repeat(np.minimum(self.shards, 1)[:, None], len(filled), axis=1)
        shards[:, -1] = -(-self.shards // self.nodes)  # of the node that has most of them, spread evenly
        needed = self.everywhere[:, memories] + np.where(shards > 0, shards * self.shard[:, memories], 0.0)
        fits = (filled + needed <= FULL).all(axis=1)
        return self.kept(np.flatnonzero(fits & (self.shards <= self.places)))


def pose(priced: PricedOptions, objective: Objective, restrictions: ShardingRestrictions) -> Problem:
    """The problem of these prices, this objective and these restrictions.

    Raises:
        InputError: restrictions that contradict the prices or one another.
        DoesNotFitError: a table that no option holds.
    """
    priced = limited(priced, restrictions)
    rows = _rows(priced, objective)
    table_class = np.repeat(np.arange(len(priced.counts)), priced.counts)
    allowed = np.array([restrictions.allows(option) for option in priced.options])
    given = _fixed(priced, table_class, restrictions)
    base = _base(priced, rows, given)
    least = base[:, rows.moments.start :].min(axis=0)
    built: list[tuple[list[Unit], _Rows]] = []
    for (one, fixed), units in _alike(table_class, given, restrictions).items():
        mine = np.flatnonzero((priced.table_class == one) & allowed) if fixed < 0 else np.array([fixed])
        if not len(mine):
            raise nothing_left(priced, units[0])
        fitting = rows.kept(mine).fitting(least)
        if not len(fitting.picks):
            raise no_option_holds(priced, mine, units[0][0])
        built.append((units, fitting.best))
    built += [
        ([group], _whole(priced, rows, table_class, allowed, group, least)) for group in restrictions.together
    ]
    return _problem(priced, objective, built, given, base, rows.moments)


def limited(priced: PricedOptions, restrictions: ShardingRestrictions) -> PricedOptions:
    """Prices with the memories that restrictions leave."""
    device, host = restrictions.max_memory, restrictions.host_memory
    return replace(
        priced,
        device_memory=priced.device_memory if device is None else min(device, priced.device_memory),
        host_memory=priced.host_memory if host is None else host,
    )


def _rows(priced: PricedOptions, objective: Objective) -> _Rows:
    """A row for every priced option."""
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
    """Share of a memory; infinite where something needs a memory that is not there."""
    return filled / limit if limit > 0 else np.where(filled > 0, np.inf, 0.0)


def _fixed(
    priced: PricedOptions, table_class: Ints, restrictions: ShardingRestrictions
) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Row of `priced` and places (() where they are free) of every table that restrictions fix."""
    found: dict[int, tuple[int, tuple[int, ...]]] = {}
    for one in restrictions.fixed:
        if not restrictions.allows(one.option):
            raise InputError(f"`{one.option}` is fixed for {priced.name_of(one.first)} and also forbidden")
        for nth, table in enumerate(range(one.first, one.last + 1)):
            if table in found:
                raise InputError(f"{priced.name_of(table)} is fixed twice")
            rows = np.flatnonzero(priced.table_class == table_class[table]).tolist()
            row = next((row for row in rows if priced.options[row] == one.option), None)
            if row is None:
                known = ", ".join(str(priced.options[row]) for row in rows)
                raise InputError(
                    f"{priced.name_of(table)} cannot be held as `{one.option}`", hint=f"it can as {known}"
                )
            shards = int(priced.shards[row])
            at = one.at[nth * shards : (nth + 1) * shards] if one.at else ()
            found[table] = row, _checked(priced, table, row, at)
    if both := [table for group in restrictions.together for table in group if table in found]:
        raise InputError(
            f"{priced.name_of(both[0])} is fixed and also kept together with others: say one of the two"
        )
    return found


def _checked(priced: PricedOptions, table: int, row: int, at: tuple[int, ...]) -> tuple[int, ...]:
    nodes = -(-priced.gpus // priced.gpus_per_node)
    on_nodes = priced.options[row].form == "node-row"
    there = nodes if on_nodes else priced.gpus
    if wrong := [place for place in at if place >= there]:
        what = "node" if on_nodes else "GPU"
        raise InputError(
            f"{priced.name_of(table)} is fixed on {what} {wrong[0]}, and there are 0 to {there - 1}"
        )
    return at


def _base(priced: PricedOptions, rows: _Rows, given: dict[int, tuple[int, tuple[int, ...]]]) -> Array:
    """(G, K + M + 1) loads and shares filled before any unit is placed; host shares are those of the GPU's node."""
    per_node = priced.gpus_per_node
    base = np.zeros((priced.gpus, rows.shard.shape[1]))
    base[:, rows.moments] = _share(priced.fixed_bytes, priced.device_memory)
    for row, at in given.values():
        if not at:
            continue
        base += rows.everywhere[row]
        for place in at:
            node = place if rows.on_nodes[row] else place // per_node
            whole_node = slice(node * per_node, (node + 1) * per_node)
            where = whole_node if rows.on_nodes[row] else slice(place, place + 1)
            base[where, :-1] += rows.shard[row, :-1]
            base[whole_node, -1] += rows.shard[row, -1]
    return base


def _alike(
    table_class: Ints, given: dict[int, tuple[int, tuple[int, ...]]], restrictions: ShardingRestrictions
) -> dict[tuple[int, int], list[Unit]]:
    """Free tables by their class and fixed row (−1: none)."""
    grouped = {table for group in restrictions.together for table in group}
    alike: dict[tuple[int, int], list[Unit]] = defaultdict(list)
    for table, one in enumerate(table_class.tolist()):
        row, at = given.get(table, (-1, ()))
        if table not in grouped and not at:
            alike[one, row].append((table,))
    return alike


def _whole(
    priced: PricedOptions,
    rows: _Rows,
    table_class: Ints,
    allowed: Ints,
    group: Unit,
    least: Array,
) -> _Rows:
    """Ways to hold tables whole on one GPU: an option of each, put together table by table."""
    whole = np.array([option.form == "whole" for option in priced.options]) & allowed.astype(bool)
    so_far: _Rows | None = None
    for table in group:
        own = rows.kept(np.flatnonzero(whole & (priced.table_class == table_class[table]))).best
        if not len(own.picks):
            raise nothing_left(priced, group)
        so_far = own if so_far is None else _joined(priced, so_far, own).fitting(least).best
        if not len(so_far.picks):
            raise InputError(f"{', '.join(map(priced.name_of, group))} do not fit on one GPU together")
    assert so_far is not None
    return so_far


def _joined(priced: PricedOptions, left: _Rows, right: _Rows) -> _Rows:
    pairs = [(a, b) for a in range(len(left.picks)) for b in range(len(right.picks))]
    if len(pairs) > MOST_ROWS:
        alike = [pair for pair in pairs if _option(priced, left, pair[0]) == _option(priced, right, pair[1])]
        pairs = alike or pairs[:MOST_ROWS]
    a, b = np.array(pairs).T
    return _Rows(
        picks=tuple(left.picks[i] + right.picks[j] for i, j in pairs),
        shards=np.ones(len(pairs), dtype=np.int64),
        on_nodes=np.zeros(len(pairs), dtype=np.int64),
        shard=left.shard[a] + right.shard[b],
        everywhere=left.everywhere[a] + right.everywhere[b],
        moments=left.moments,
        places=left.places[a],
        nodes=left.nodes,
    )


def _option(priced: PricedOptions, rows: _Rows, row: int) -> object:
    """The option that all tables of a row take; no option where they differ."""
    options = {priced.options[pick] for pick in rows.picks[row]}
    return options.pop() if len(options) == 1 else None


def _problem(
    priced: PricedOptions,
    objective: Objective,
    built: list[tuple[list[Unit], _Rows]],
    given: dict[int, tuple[int, tuple[int, ...]]],
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
        given={table: one for table, one in given.items() if one[1]},
        beside=priced.beside if step else np.zeros(1),
        fixed=float(priced.fixed.sum()) if step else 0.0,
    )
