"""Local search for a sharding: move units off the busiest GPU, or redistribute them with another GPU; when that no
longer helps, remove and reinsert some random units.

Every move takes units from a GPU that ends a stage last, as no other move shortens a stage. Random choices come from a
seed, so that the same question gives the same answer. Loads are in units of an objective of about the right size.

One move redistributes the shards of two GPUs, by comparing many distributions at once. Shards of one option row are
equal, so a distribution is the number of each row's shards on the first GPU. If there are too many distributions, some
randomly drawn rows may move only a little or not at all.

The greedy start places units by size, largest first, each where it adds least (longest processing time first).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cost_models.arrays import Array, Ints
from planner.recommender.problem import Placement, Places, Problem

OVERFULL = 10.0
"""Penalty for a memory filled twice over, as a multiple of the objective: more than any placement that fits
can save."""
EVEN = 1e-3
"""Weight of an even load in the choice between equal objectives: far less than what the objective
distinguishes."""


class State:
    """Current assignment in local search: option row and places of every unit (table, or tables that share a
    GPU), with the resources in use. Units not placed have row −1."""

    def __init__(self, problem: Problem, even: float = EVEN) -> None:
        self.problem, self.even = problem, even
        self.loads, self.memories = problem.loads, problem.memories
        self.class_of_unit = np.repeat(np.arange(len(problem.members)), problem.counts)
        self.node_of_gpu, self.gpus = problem.node_of_gpu, problem.priced.gpus
        self.row: Ints = np.full(len(self.class_of_unit), -1, dtype=np.int64)
        self.places: list[Places] = [()] * len(self.row)
        self.rows = [problem.rows_of(class_index) for class_index in range(len(problem.members))]
        self.use = problem.base.copy()
        """(G, K + M + 1) resources taken of each GPU and its host."""

    def load(self, placement: Placement) -> None:
        """Replace the assignment by a full placement, and recompute the resources in use."""
        self.row, self.places = placement.row.copy(), list(placement.places)
        self.use = self.problem.use(placement)

    def keep_to(self, rows: Ints) -> None:
        """Restrict units to the given option rows in further steps; a class with none of these rows is not
        restricted."""
        allowed = [class_rows[np.isin(class_rows, rows)] for class_rows in self.rows]
        self.rows = [some if len(some) else every for some, every in zip(allowed, self.rows, strict=True)]

    @property
    def placement(self) -> Placement:
        """Copy of the current assignment as a placement."""
        return Placement(self.row.copy(), tuple(self.places))

    @property
    def score(self) -> float:
        """Objective of the current assignment plus penalties for overfull memory and uneven load."""
        return float(self._scores(self.use[None])[0])

    def excess_share(self, use: Array) -> Array:
        """Largest share by which resources in use (`use`) exceed the memory of each GPU and its host at any
        moment, (...); 0 where they exceed none."""
        return np.asarray(np.maximum(use[..., self.memories].max(axis=-1) - 1, 0))

    def _scores(self, use: Array) -> Array:
        """Scores of n candidate assignments, (n,), from their resources (n, G, K + M + 1)."""
        stages = self.problem.stage_seconds(use).sum(axis=-1)
        even = np.square(use[..., :-1]).mean(axis=-2).sum(axis=-1)
        return np.asarray(stages + OVERFULL * self.excess_share(use).sum(axis=-1) + self.even * even)

    def add(self, unit: int, row: int, places: Places, sign: int = 1) -> None:
        """Place a unit in an option row at the given places, or with `sign` −1 remove it."""
        self.use += sign * self.problem.rows.everywhere[row]
        self.problem.add_shards(self.use, row, places, sign)
        self.row[unit], self.places[unit] = (row, places) if sign > 0 else (-1, ())

    def remove(self, unit: int) -> tuple[int, Places]:
        """Remove a unit from its places, and return its former option row and places."""
        was = int(self.row[unit]), self.places[unit]
        self.add(unit, *was, sign=-1)
        return was

    def insertion(self, unit: int, only_rows: Ints | None = None) -> tuple[float, tuple[int, Places]]:
        """Best option row and places for a unit (a table, or tables that share a GPU) not placed yet, with
        the resulting score. Each shard in turn is put where the cost grows least."""
        options = self.problem.rows
        rows = self.rows[self.class_of_unit[unit]] if only_rows is None else only_rows
        use = self.use + options.everywhere[rows][:, None]
        shards, on_nodes = options.shards[rows], options.on_nodes[rows]
        places: Ints = np.full((len(rows), int(shards.max(initial=0))), -1, dtype=np.int64)
        for nth in range(places.shape[1]):
            for nodes in (False, True):
                active = np.flatnonzero((shards > nth) & (on_nodes == nodes))
                if len(active):
                    self._put(options.shard[rows[active]], active, use, places, nth, on_nodes=nodes)
        scores = self._scores(use)
        best = int(np.argmin(scores))
        return float(scores[best]), (int(rows[best]), tuple(places[best, : shards[best]].tolist()))

    def _put(self, shard: Array, active: Ints, use: Array, places: Ints, nth: int, *, on_nodes: bool) -> None:
        """Put the `nth` shard of each candidate option (rows `active` of `use` and `places`) on the GPU, or
        with `on_nodes` the node, where it adds least cost. Updates `use` and `places`."""
        use_before, node = use[active], self.node_of_gpu
        longest = self.problem.stage_seconds(use_before)
        if on_nodes:
            first_gpus = np.arange(0, self.gpus, self.problem.priced.gpus_per_node)
            use_before = np.maximum.reduceat(use_before, first_gpus, axis=1)
        use_after = use_before + shard[:, None]
        stages = np.maximum(use_after[..., self.loads], longest[:, None]).sum(axis=-1)
        even = np.matmul(use_before[..., :-1], shard[:, :-1, None])[..., 0] * (2 * self.even / self.gpus)
        cost = stages + OVERFULL * self.excess_share(use_after) + even
        cost[np.arange(len(active))[:, None], places[active, :nth]] = np.inf  # slices of a table lie apart
        best = np.argmin(cost, axis=1)
        places[active, nth] = best
        if on_nodes:
            use[active] += (node == best[:, None])[..., None] * shard[:, None]
            return
        use[active, best, :-1] += shard[:, :-1]
        if shard[:, -1].any():
            use[active, :, -1] += (node == node[best][:, None]) * shard[:, -1:]


def place_units(problem: Problem, row_of_unit: Ints | None = None) -> Placement:
    """Choose the places of every unit's shards, given each unit's option row, (U,): units with the largest
    shards first, each shard where the cost grows least.

    Without given rows the placement is greedy: each unit takes the row and places that cost least, and those with the
    largest least mean resources come first.
    """
    state, rows = State(problem), problem.rows
    if row_of_unit is None:
        mean = problem.mean[:, :-1].sum(axis=1)
        sizes = np.array([mean[own].min() for own in state.rows])[state.class_of_unit]
    else:
        shard = rows.shard[:, :-1]
        sizes = np.where(rows.shards > 0, shard.max(axis=1) + 1e-3 * shard.sum(axis=1), np.inf)[row_of_unit]
    for unit in np.argsort(-sizes, kind="stable").tolist():
        only_rows = None if row_of_unit is None else row_of_unit[unit : unit + 1]
        state.add(unit, *state.insertion(unit, only_rows)[1])
    return state.placement


ROUNDS = 300
"""Largest number of rounds of local search."""
BETTER = 1e-9
"""Minimum relative gain of a move."""
PROGRESS = 0.01
"""Share of the distance to the target that a round must gain to count as better."""
TRIED = 12
"""Maximum number of units that a step tries to move from the busiest GPU."""
KICKED = 6
"""Maximum number of units removed at once."""


def improve(state: State, *, patience: int, seed: int, target: float, stop: Callable[[], bool]) -> Placement:
    """Improve a placement by local search for at most `ROUNDS` rounds, and return the best found.

    Ends early at `target` (in the problem's unit), or after as many rounds as `patience` without a better one.
    """
    random = np.random.default_rng(seed)
    idle = 0
    best, best_score = state.placement, state.score
    for nth in range(ROUNDS):
        step = float(state.problem.stage_seconds(state.use).sum())
        at_target = step <= target and not state.excess_share(state.use).any()
        if at_target or idle > patience or stop():
            break
        if nth:
            _kick(state, random)
        while not stop() and any(_relieve_gpu(state, gpu, random) for gpu in _busiest_gpus(state)):
            pass
        if (score := state.score) < best_score * (1 - BETTER):
            idle = 0 if best_score - score > PROGRESS * (best_score - target) else idle + 1
            best, best_score = state.placement, score
            continue
        idle += 1
        if score > best_score * (1 + BETTER):
            state.load(best)
    return best


def _busiest_gpus(state: State) -> list[int]:
    """GPUs that determine the length of a stage, longest stage first; an overfull GPU comes before these."""
    longest = state.use[:, state.loads].argmax(axis=0)
    by_length = np.argsort(-state.problem.stage_seconds(state.use), kind="stable").tolist()
    ends = [int(longest[k]) for k in by_length if state.use[longest[k], k] > state.problem.stage_floors[k]]
    filled = state.use[:, state.memories].max(axis=1)
    full = [int(filled.argmax())] if filled.max() > 1 else []
    return list(dict.fromkeys(full + ends))


def _relieve_gpu(state: State, gpu: int, random: np.random.Generator) -> bool:
    """Try to lower the score by moving units off a GPU or by repacking it; returns whether that succeeded."""
    units = _units_on_gpu(state, gpu)
    for unit in random.permutation(units)[:TRIED].tolist():
        score_before = state.score
        former_place = state.remove(unit)
        score, best = state.insertion(unit)
        gains = score < score_before * (1 - BETTER)
        state.add(unit, *(best if gains else former_place))
        if gains:
            return True
    return bool(units) and repack(state, gpu, random)


def _units_on_gpu(state: State, gpu: int) -> list[int]:
    """Units with a shard on a GPU or the GPU's node, and units without places, which load all GPUs."""
    node, on_nodes = state.node_of_gpu[gpu], state.problem.rows.on_nodes
    units = enumerate(zip(state.row.tolist(), state.places, strict=True))
    return [unit for unit, (row, at) in units if not at or (node if on_nodes[row] else gpu) in at]


def _kick(state: State, random: np.random.Generator) -> None:
    """Remove some random units, including one from a GPU that determines a stage's length, and reinsert them,
    the largest first."""
    number = min(int(random.integers(2, KICKED + 1)), len(state.row))
    busy = _busiest_gpus(state)
    units_on_busy = _units_on_gpu(state, int(random.choice(busy))) if busy else []
    units = set(random.choice(len(state.row), size=number, replace=False).tolist())
    if units_on_busy:
        units.add(int(random.choice(units_on_busy)))
    sizes = state.problem.rows.shard[state.row, :-1].sum(axis=1)
    for unit in units:
        state.remove(unit)
    for unit in sorted(units, key=lambda member: (-sizes[member], member)):
        state.add(unit, *state.insertion(unit)[1])


WAYS = 512
"""Maximum number of moves compared between two GPUs."""
PAIRS = 8
"""Maximum number of partner GPUs tried with a GPU."""


def repack(state: State, gpu: int, random: np.random.Generator) -> bool:
    """Redistribute the shards of a GPU and one partner GPU if that lowers the score; returns whether it did."""
    problem = state.problem
    partners = [other for other in range(state.gpus) if other != gpu]
    if problem.rows.shard[:, -1].any():
        partners = [other for other in partners if state.node_of_gpu[other] == state.node_of_gpu[gpu]]
    units_of_gpu: list[dict[int, list[int]]] = [{} for _ in range(state.gpus)]
    for unit, (row, places) in enumerate(zip(state.row.tolist(), state.places, strict=True)):
        for place in () if problem.rows.on_nodes[row] else places:
            units_of_gpu[place].setdefault(row, []).append(unit)

    def movable(from_gpu: int, to_gpu: int) -> dict[int, list[int]]:
        """Units with a shard on `from_gpu` but none on `to_gpu`, by option row. No two slices of a table may
        lie on one GPU."""
        units, there = units_of_gpu[from_gpu].items(), units_of_gpu[to_gpu]
        return {row: [unit for unit in at if unit not in there.get(row, ())] for row, at in units}

    for partner in random.permutation(partners)[:PAIRS].tolist():
        own_units, partner_units = movable(gpu, partner), movable(partner, gpu)
        all_units = own_units | partner_units
        numbers = {row: (len(own_units.get(row, ())), len(partner_units.get(row, ()))) for row in all_units}
        counts = [(row, *both) for row, both in numbers.items() if any(both)]
        if not counts:
            continue
        rows, own_counts, partner_counts = np.array(counts, dtype=np.int64).T
        free, gains = _ways(own_counts, partner_counts, random)
        change = gains.astype(float) @ problem.rows.shard[rows[free]]
        change[:, -1] = 0.0  # both use the same host
        own_use, partner_use = state.use[gpu] + change, state.use[partner] - change
        elsewhere = np.delete(state.use[:, state.loads], [gpu, partner], axis=0).max(axis=0, initial=0.0)
        longest = np.maximum(elsewhere, problem.stage_floors)
        stages = np.maximum(np.maximum(own_use, partner_use)[:, state.loads], longest).sum(axis=1)
        even = (np.square(own_use) + np.square(partner_use))[:, :-1].sum(axis=1) * (EVEN / state.gpus)
        scores = stages + OVERFULL * (state.excess_share(own_use) + state.excess_share(partner_use)) + even
        best = int(np.argmin(scores))
        if scores[best] >= scores[0] - BETTER * stages[0]:
            continue
        for row, number in zip(rows[free].tolist(), gains[best].tolist(), strict=True):
            source, target, units = (partner, gpu, partner_units) if number > 0 else (gpu, partner, own_units)
            for unit in units.get(row, [])[: abs(number)]:
                _, places = state.remove(unit)
                state.add(unit, row, tuple(target if place == source else place for place in places))
        return True
    return False


def _ways(own_counts: Ints, partner_counts: Ints, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Choose the option rows whose shards may move between two GPUs, and create W moves of them to compare. A
    move is the number of shards of each row that the first GPU gains, (W, rows). The first of the W moves
    changes nothing."""
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
