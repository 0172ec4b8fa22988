"""Local search: the busiest GPU's units are placed anew or swapped; where that ends, some are taken out and put back.

Every move takes from a GPU that ends a stage, as no other move shortens one. Its choices come from a seed, so that the
same question gives the same answer.

One move deals out anew what two GPUs hold, the best of many ways at once. Shards of one row are alike, so a way is how
many of each row's lie on the first GPU. Where there are too many ways, some rows, drawn by chance, may move only a
little or not at all.

The greedy start places units by size, largest first, each where it adds least (longest processing time first).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Ints
from planner.recommender.search.problem import Placement, Problem, gpus_of, use_of

OVERFULL = 10.0
"""Price of a memory filled twice over, in objectives: more than any placement that fits can save."""
EVEN = 1e-3
"""Weight of evenness where the objective ties: far less than what the objective distinguishes."""


class Insertion(NamedTuple):
    """Option row and places for a unit (a table, or tables that share a GPU), with the resulting score."""

    score: float
    row: int
    places: tuple[int, ...]


class State:
    """Current assignment of units (tables or groups) to option rows and places in local search; `row` is −1 for
    units not placed."""

    def __init__(self, problem: Problem, scale: float) -> None:
        self.problem = problem
        self.scale = scale
        """Seconds of an objective of about the right size."""
        self.shard = np.concatenate([problem.shard_load / scale, problem.shard_full], axis=1)
        self.everywhere = np.concatenate([problem.everywhere_load / scale, problem.everywhere_full], axis=1)
        self.loads = slice(problem.base_load.shape[1])
        """Columns of loads."""
        self.moments = slice(problem.base_load.shape[1], None)
        """Columns of shares of memory."""
        self.stage_floors = problem.stage_floors / scale
        self.node_of_gpu = problem.node_of_gpu
        self.first_gpus: Ints = np.arange(0, problem.gpus, problem.gpus_per_node)
        self.hosts = bool(
            problem.shard_host.any() or problem.everywhere_host.any() or problem.base_host.any()
        )
        """Whether anything lies in host memory."""
        self.row: Ints = np.full(len(problem.unit_class), -1, dtype=np.int64)
        self.places: list[tuple[int, ...]] = [()] * len(self.row)
        self.rows = [problem.rows_of(one) for one in range(len(problem.members))]
        self.use = np.concatenate([problem.base_load / scale, problem.base_full], axis=1)
        self.host = problem.base_host.copy()

    def load(self, placement: Placement) -> None:
        """Replace the assignment by a full placement, and recompute all sums."""
        self.row, self.places = placement.row.copy(), list(placement.places)
        use = use_of(self.problem, placement)
        self.use = np.concatenate([use.load / self.scale, use.full], axis=1)
        self.host = use.host

    def keep_to(self, rows: Ints) -> None:
        """Restrict units to these option rows from now on; a class without any of the rows keeps all."""
        kept_rows = [own[np.isin(own, rows)] for own in self.rows]
        self.rows = [few if len(few) else own for few, own in zip(kept_rows, self.rows, strict=True)]

    @property
    def placement(self) -> Placement:
        """Copy of the current assignment as a placement."""
        return Placement(self.row.copy(), tuple(self.places))

    @property
    def score(self) -> float:
        """Objective of the current assignment, plus penalties for overfull memory and uneven load."""
        return float(self._scores(self.use[None], self.host[None])[0])

    @property
    def stage_seconds(self) -> Array:
        """(K,) length of each stage, in units of `scale`."""
        lengths: Array = np.maximum(self.use[:, self.loads].max(axis=0), self.stage_floors)
        return lengths

    @property
    def full(self) -> Array:
        """(G,) share of each GPU's memory that is filled, at the fullest moment of the step."""
        filled: Array = self.use[:, self.moments].max(axis=1)
        return filled

    def over(self, use: Array) -> Array:
        """Share by which GPUs exceed their memory at the fullest moment, (..., K + M) → (...)."""
        excess: Array = np.maximum(use[..., self.moments].max(axis=-1) - 1, 0)
        return excess

    def _scores(self, use: Array, host: Array) -> Array:
        """(n,) scores of n candidate assignments, given GPU loads (n, G, K + M) and host memory (n, N)."""
        stages = np.maximum(use[..., self.loads].max(axis=-2), self.stage_floors).sum(axis=-1)
        over = self.over(use).sum(axis=-1) + np.maximum(host - 1, 0).sum(axis=-1)
        scores: Array = stages + OVERFULL * over + EVEN * np.square(use).mean(axis=-2).sum(axis=-1)
        return scores

    def add(self, unit: int, row: int, places: tuple[int, ...], sign: int = 1) -> None:
        """Place a unit in an option row at the given places, or with `sign` −1 remove it."""
        self.use += sign * self.everywhere[row]
        self.host += sign * self.problem.everywhere_host[row]
        for place in places:
            self.use[gpus_of(self.problem, row, place)] += sign * self.shard[row]
            if self.hosts:
                node = place if self.problem.on_nodes[row] else place // self.problem.gpus_per_node
                self.host[node] += sign * self.problem.shard_host[row]
        self.row[unit], self.places[unit] = (row, places) if sign > 0 else (-1, ())

    def remove(self, unit: int) -> tuple[int, tuple[int, ...]]:
        """Remove a unit from its places; returns the option row and places it had."""
        was = int(self.row[unit]), self.places[unit]
        self.add(unit, *was, sign=-1)
        return was

    def insertion(self, unit: int, only_rows: Ints | None = None) -> Insertion:
        """Best option row and places for a unit not placed yet, with each shard in turn put where the cost
        grows least."""
        problem = self.problem
        rows = self.rows[problem.unit_class[unit]] if only_rows is None else only_rows
        use = self.use + self.everywhere[rows][:, None]
        host = self.host + problem.everywhere_host[rows][:, None]
        shards = problem.shards[rows]
        most_shards = int(shards.max(initial=0))
        places: Ints = np.full((len(rows), most_shards), -1, dtype=np.int64)
        on_nodes = problem.on_nodes[rows]
        for nth in range(most_shards):
            for nodes in (False, True):
                active = np.flatnonzero((shards > nth) & (on_nodes == nodes))
                if len(active):
                    self._put(rows[active], active, use, host, places, nth, on_nodes=nodes)
        scores = self._scores(use, host)
        best = int(np.argmin(scores))
        return Insertion(float(scores[best]), int(rows[best]), tuple(places[best, : shards[best]].tolist()))

    def _put(
        self, rows: Ints, active: Ints, use: Array, host: Array, places: Ints, nth: int, *, on_nodes: bool
    ) -> None:
        """Put the nth shard of several candidate option rows where the cost grows least; `use`, `host` and
        `places` change."""
        problem = self.problem
        shard, shard_host = self.shard[rows], problem.shard_host[rows]
        node = self.node_of_gpu
        use_before = use[active]
        if on_nodes:
            use_before = np.maximum.reduceat(use_before, self.first_gpus, axis=1)
            node = np.arange(problem.nodes)
        longest = np.maximum(use[active, :, self.loads].max(axis=1), self.stage_floors)
        use_after = use_before + shard[:, None]
        stages = np.maximum(use_after[..., self.loads], longest[:, None]).sum(axis=-1)
        even = np.matmul(use_before, shard[..., None])[..., 0] * (2 * EVEN / problem.gpus)
        over = self.over(use_after)
        if self.hosts:
            over += np.maximum(host[active][:, node] + shard_host[:, None] - 1, 0)
        cost = stages + OVERFULL * over + even
        indices = np.arange(len(active))
        cost[indices[:, None], places[active, :nth]] = np.inf  # slices of a table lie apart
        best_places = np.argmin(cost, axis=1)
        places[active, nth] = best_places
        host[active, node[best_places]] += shard_host
        if not on_nodes:
            use[active, best_places] += shard
            return
        for at, place, loads in zip(active.tolist(), best_places.tolist(), shard, strict=True):
            use[at, place * problem.gpus_per_node : (place + 1) * problem.gpus_per_node] += loads


def greedy(problem: Problem, scale: float) -> Placement:
    """Greedy placement, in which each unit, largest first, takes the option row and places that cost least."""
    state = State(problem, scale)
    for unit in np.argsort(-_sizes(state)[problem.unit_class], kind="stable").tolist():
        best = state.insertion(unit)
        state.add(unit, best.row, best.places)
    return state.placement


def place_units(problem: Problem, scale: float, row_counts: Ints) -> Placement:
    """Place units with a given number per option row, `row_counts` (R,), largest shards first, each shard where
    the cost grows least."""
    state = State(problem, scale)
    row_of_unit = np.concatenate(
        [np.repeat(state.rows[one], row_counts[state.rows[one]]) for one in range(len(problem.members))]
        or [np.zeros(0, dtype=np.int64)]
    )
    for unit in np.argsort(-_row_sizes(state)[row_of_unit], kind="stable").tolist():
        best = state.insertion(unit, only_rows=row_of_unit[unit : unit + 1])
        state.add(unit, best.row, best.places)
    return state.placement


def _row_sizes(state: State) -> Array:
    """(R,) load of one shard of each option row, as a sort key; infinite for rows without shards, which load
    all GPUs alike."""
    sizes = state.shard.max(axis=1) + 1e-3 * state.shard.sum(axis=1)
    return np.where(state.problem.shards > 0, sizes, np.inf)


def _sizes(state: State) -> Array:
    """(C,) least total load of a unit of each class, summed over GPUs."""
    problem = state.problem
    total = state.everywhere.sum(axis=1) * problem.gpus
    total = total + (state.shard.sum(axis=1) * problem.shards * problem.span)
    return np.array([total[rows].min() for rows in state.rows])


BETTER = 1e-9
"""Relative gain below which a move is none."""
PROGRESS = 0.01
"""Share of the distance to the target that a round must gain to count as better."""
TRIED = 12
"""Units of the busiest GPU that are tried in one step; for swaps, 40 times as many of other GPUs."""
KICKED = 6
"""Largest number of units taken out at once."""


def improve(
    state: State,
    *,
    rounds: int,
    patience: int,
    seed: int,
    target: float,
    stop: Callable[[], bool],
) -> Placement:
    """Improve a placement by local search for at most `rounds` rounds, and return the best found.

    Ends early at `target` (in `scale`), or after as many rounds as `patience` without a better one.
    """
    random = np.random.default_rng(seed)
    idle = 0
    best, best_score = state.placement, state.score
    for nth in range(rounds):
        at_target = float(state.stage_seconds.sum()) <= target and state.full.max() <= 1
        if at_target or idle > patience or stop():
            break
        if nth:
            _kick(state, random)
        _descend(state, random, stop)
        if (score := state.score) < best_score * (1 - BETTER):
            idle = 0 if best_score - score > PROGRESS * (best_score - target) else idle + 1
            best, best_score = state.placement, score
            continue
        idle += 1
        if score > best_score * (1 + BETTER):
            state.load(best)
    return best


def _descend(state: State, random: np.random.Generator, stop: Callable[[], bool]) -> None:
    """Relieve the GPUs that determine stage lengths by local moves until no move helps."""
    while not stop():
        if not any(_relieve_gpu(state, gpu, random) for gpu in _busiest(state)):
            return


def _busiest(state: State) -> list[int]:
    """GPUs that determine the length of a stage, longest stage first; an overfull GPU comes before all of
    these."""
    longest = state.use[:, state.loads].argmax(axis=0)
    by_length = np.argsort(-state.stage_seconds, kind="stable")
    ends = [int(longest[k]) for k in by_length.tolist() if state.use[longest[k], k] > state.stage_floors[k]]
    filled = state.full
    full = [int(filled.argmax())] if filled.max() > 1 else []
    return list(dict.fromkeys(full + ends))


def _relieve_gpu(state: State, gpu: int, random: np.random.Generator) -> bool:
    """Move, swap or repack the units of a GPU until one change lowers the score; returns whether one did."""
    units = _units_on_gpu(state, gpu)
    if not len(units):
        return False
    for unit in random.permutation(units)[:TRIED].tolist():
        score_before = state.score
        row, places = state.remove(unit)
        insertion = state.insertion(unit)
        if insertion.score < score_before * (1 - BETTER):
            state.add(unit, insertion.row, insertion.places)
            return True
        state.add(unit, row, places)
    return _swap(state, gpu, random) or repack(state, gpu, random)


def _units_on_gpu(state: State, gpu: int) -> list[int]:
    """Units with a shard on a GPU or the GPU's node, and units without places, which load all GPUs."""
    node, on_nodes = gpu // state.problem.gpus_per_node, state.problem.on_nodes
    units = []
    for unit, (row, places) in enumerate(zip(state.row.tolist(), state.places, strict=True)):
        if not places or (node if on_nodes[row] else gpu) in places:
            units.append(unit)
    return units


def _swap(state: State, gpu: int, random: np.random.Generator) -> bool:
    """Swap a shard of this GPU with a shard of another GPU if that lowers the score, trying the best pairs;
    returns whether it did."""
    problem = state.problem
    single = [
        unit
        for unit, row in enumerate(state.row.tolist())
        if problem.shards[row] and not problem.on_nodes[row]
    ]
    pairs = [(unit, place) for unit in single for place in set(state.places[unit])]
    own_units = [unit for unit, place in pairs if place == gpu]
    candidates = [pair for pair in pairs if pair[1] != gpu]
    if not own_units or not candidates:
        return False
    if len(candidates) > 40 * TRIED:
        candidates = [candidates[at] for at in random.permutation(len(candidates))[: 40 * TRIED].tolist()]
    if len(own_units) > TRIED:
        own_units = [own_units[at] for at in random.permutation(len(own_units))[:TRIED].tolist()]
    candidate_gpus = np.array([place for _, place in candidates])
    out, into = state.shard[state.row[own_units]], state.shard[state.row[[unit for unit, _ in candidates]]]
    delta = into - out[:, None]  # (mine, others, K + M)
    use_here, use_away = state.use[gpu] + delta, state.use[candidate_gpus] - delta
    longest = np.maximum(_longest_elsewhere(state, gpu)[candidate_gpus], state.stage_floors)
    stages = np.maximum(np.maximum(use_here, use_away)[..., state.loads], longest).sum(axis=-1)
    over = state.over(use_here) + state.over(use_away)
    itself = np.array(own_units)[:, None] == [unit for unit, _ in candidates]
    order = np.argsort((stages + OVERFULL * over + OVERFULL * itself).ravel(), kind="stable")[:3]
    score_before = state.score
    for flat in order.tolist():
        i, j = divmod(flat, len(candidates))
        if own_units[i] != candidates[j][0] and _swapped(
            state, own_units[i], gpu, candidates[j], score_before
        ):
            return True
    return False


def _swapped(state: State, own_unit: int, gpu: int, candidate: tuple[int, int], score_before: float) -> bool:
    """Swap two shards and keep the swap only if the score falls; returns whether it was kept."""
    other_unit, place = candidate
    if place in state.places[own_unit] or gpu in state.places[other_unit]:
        return False
    mine_was, other_was = state.remove(own_unit), state.remove(other_unit)
    state.add(own_unit, mine_was[0], _with_place_changed(mine_was[1], gpu, place))
    state.add(other_unit, other_was[0], _with_place_changed(other_was[1], place, gpu))
    if state.score < score_before * (1 - BETTER):
        return True
    for unit, was in ((own_unit, mine_was), (other_unit, other_was)):
        state.remove(unit)
        state.add(unit, *was)
    return False


def _with_place_changed(places: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    at = places.index(old)
    return (*places[:at], new, *places[at + 1 :])


def _longest_elsewhere(state: State, gpu: int) -> Array:
    """(G, K) longest load of each stage, for each GPU g over all GPUs except `gpu` and g."""
    loads = state.use[:, state.loads].copy()
    loads[gpu] = -np.inf
    order = np.argsort(-loads, axis=0, kind="stable")
    columns = np.arange(loads.shape[1])
    first = loads[order[0], columns]
    second = loads[order[1], columns] if len(loads) > 1 else np.full_like(first, -np.inf)
    gpus = np.arange(len(loads))[:, None]
    longest: Array = np.where(gpus == order[0], second, first)
    return longest


def _kick(state: State, random: np.random.Generator) -> None:
    """Remove some random units, including one from a GPU that determines a stage's length, and reinsert them,
    largest first."""
    number = min(int(random.integers(2, KICKED + 1)), len(state.row))
    busy = _busiest(state)
    units_on_busy = _units_on_gpu(state, int(random.choice(busy))) if busy else []
    units = set(random.choice(len(state.row), size=number, replace=False).tolist())
    if units_on_busy:
        units.add(int(random.choice(units_on_busy)))
    sizes = {unit: float(state.shard[state.row[unit]].sum()) for unit in units}
    for unit in units:
        state.remove(unit)
    for unit in sorted(units, key=lambda member: (-sizes[member], member)):
        insertion = state.insertion(unit)
        state.add(unit, insertion.row, insertion.places)


WAYS = 512
"""Largest number of ways of two GPUs that are compared."""
UnitsByRow = dict[int, list[int]]
"""Row → units with a shard on a GPU."""
PAIRS = 8
"""Largest number of partners of a GPU in a move."""
WORTH = 1e-9
"""Relative gain below which the move is not worth its time."""


def repack(state: State, gpu: int, random: np.random.Generator) -> bool:
    """Redistribute the shards on this GPU and one partner GPU if that lowers the score; returns whether it
    did."""
    problem = state.problem
    partners = [other for other in range(problem.gpus) if other != gpu]
    if state.hosts:
        partners = [one for one in partners if state.node_of_gpu[one] == state.node_of_gpu[gpu]]
    units_by_gpu: list[UnitsByRow] = [{} for _ in range(problem.gpus)]
    for unit, (row, places) in enumerate(zip(state.row.tolist(), state.places, strict=True)):
        if not problem.on_nodes[row]:
            for place in places:
                units_by_gpu[place].setdefault(row, []).append(unit)
    return any(
        _repack_pair(state, gpu, other, units_by_gpu, random)
        for other in random.permutation(partners)[:PAIRS].tolist()
    )


def _repack_pair(
    state: State, gpu: int, partner: int, units_by_gpu: list[UnitsByRow], random: np.random.Generator
) -> bool:
    own_units = {
        row: _without_shard_on(units, units_by_gpu[partner].get(row))
        for row, units in units_by_gpu[gpu].items()
    }
    partner_units = {
        row: _without_shard_on(units, units_by_gpu[gpu].get(row))
        for row, units in units_by_gpu[partner].items()
    }
    rows = np.array(
        [row for row in own_units | partner_units if own_units.get(row) or partner_units.get(row)],
        dtype=np.int64,
    )
    if not len(rows):
        return False
    own_counts = np.array([len(own_units.get(row, ())) for row in rows.tolist()], dtype=np.int64)
    partner_counts = np.array([len(partner_units.get(row, ())) for row in rows.tolist()], dtype=np.int64)
    free, gains = _ways(own_counts, partner_counts, random)
    change = gains.astype(float) @ state.shard[rows[free]]
    own_use, partner_use = state.use[gpu] + change, state.use[partner] - change
    elsewhere = np.delete(state.use[:, state.loads], [gpu, partner], axis=0).max(axis=0, initial=0.0)
    longest = np.maximum(elsewhere, state.stage_floors)
    stages = np.maximum(np.maximum(own_use, partner_use)[:, state.loads], longest).sum(axis=1)
    even = (np.square(own_use) + np.square(partner_use)).sum(axis=1) * (EVEN / state.problem.gpus)
    scores = stages + OVERFULL * (state.over(own_use) + state.over(partner_use)) + even
    best = int(np.argmin(scores))
    if scores[best] >= scores[0] - WORTH * stages[0]:
        return False
    for row, number in zip(rows[free].tolist(), gains[best].tolist(), strict=True):
        source, target, units = (partner, gpu, partner_units) if number > 0 else (gpu, partner, own_units)
        for unit in units.get(row, [])[: abs(number)]:
            _, places = state.remove(unit)
            state.add(unit, row, tuple(target if place == source else place for place in places))
    return True


def _without_shard_on(units: list[int], excluded: list[int] | None) -> list[int]:
    """Units outside `excluded`, the units with a shard on the other GPU; slices of a table must lie on
    different GPUs."""
    return [unit for unit in units if unit not in excluded] if excluded else units


def _ways(own_counts: Ints, partner_counts: Ints, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Option rows whose shards may move between two GPUs, and all moves considered as (W, rows) shards that the
    first GPU gains. The first of the W moves changes nothing."""
    room, spans = WAYS, {}
    for index in random.permutation(len(own_counts)).tolist():
        reach = max((room - 1) // 2, 1)
        down, up = min(int(own_counts[index]), reach), min(int(partner_counts[index]), reach)
        if 1 + down + up <= room:
            spans[index] = down, 1 + down + up
            room //= 1 + down + up
    down, sizes = np.array(list(spans.values()), dtype=np.int64).T
    ways = np.stack(np.unravel_index(np.arange(sizes.prod()), sizes), axis=-1) - down
    no_move = int(np.ravel_multi_index(down, sizes))
    ways[[0, no_move]] = ways[[no_move, 0]]
    return np.array(list(spans), dtype=np.int64), ways
