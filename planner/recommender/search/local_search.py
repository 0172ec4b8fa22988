"""Local search: the busiest GPU's units are placed anew or swapped; where that ends, some are taken out and put back.

Every move takes from a GPU that ends a stage, as no other move shortens one. Its choices come from a seed, so that the
same question gives the same answer.

One move deals out anew what two GPUs hold, the best of many ways at once. Shards of one row are alike, so a way is how
many of each row's lie on the first GPU. Where there are too many ways, some rows, drawn by chance, may move only a
little or not at all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cost_models.arrays import Array, Ints
from planner.recommender.search.problem import Placement
from planner.recommender.search.state import EVEN, OVERFULL, State

BETTER = 1e-9
"""Relative gain below which a move is none."""
PROGRESS = 0.01
"""Share of what is left to the target that a round must gain to count as better."""
TRIED = 12
"""Most units of the busiest GPU that are placed anew in one step; of other GPUs, 40 times as many are swapped."""
KICKED = 6
"""Most units taken out at once."""


def improve(
    state: State,
    *,
    rounds: int,
    patience: int,
    seed: int,
    target: float,
    stop: Callable[[], bool],
) -> Placement:
    """The best placement found in at most `rounds` rounds from the one in `state`.

    Ends early at `target` (in `scale`), or after as many rounds as `patience` without a better one.
    """
    random = np.random.default_rng(seed)
    idle = 0
    best, best_score = state.placement, state.score
    for nth in range(rounds):
        met = float(state.stage_seconds.sum()) <= target and state.full.max() <= 1
        if met or idle > patience or stop():
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
    """Moves from GPUs that end stages until none helps."""
    while not stop():
        if not any(_shorten(state, gpu, random) for gpu in _busiest(state)):
            return


def _busiest(state: State) -> list[int]:
    """GPUs that determine a stage's length, of the longest stage first, after one that is overfull."""
    longest = state.use[:, state.loads].argmax(axis=0)
    by_length = np.argsort(-state.stage_seconds, kind="stable")
    ends = [int(longest[k]) for k in by_length.tolist() if state.use[longest[k], k] > state.beside[k]]
    filled = state.full
    full = [int(filled.argmax())] if filled.max() > 1 else []
    return list(dict.fromkeys(full + ends))


def _shorten(state: State, gpu: int, random: np.random.Generator) -> bool:
    """One move of a unit that loads a GPU, if any helps."""
    held = _held(state, gpu)
    if not len(held):
        return False
    for unit in random.permutation(held)[:TRIED].tolist():
        before = state.score
        row, places = state.remove(unit)
        found = state.insertion(unit)
        if found.score < before * (1 - BETTER):
            state.add(unit, found.row, found.places)
            return True
        state.add(unit, row, places)
    return _swap(state, gpu, held, random) or repack(state, gpu, random)


def _held(state: State, gpu: int) -> list[int]:
    """Units that have a place on a GPU, or load all."""
    node, on_nodes = gpu // state.problem.gpus_per_node, state.problem.on_nodes
    found = []
    for unit, (row, places) in enumerate(zip(state.row.tolist(), state.places, strict=True)):
        if not places or (node if on_nodes[row] else gpu) in places:
            found.append(unit)
    return found


def _swap(state: State, gpu: int, held: list[int], random: np.random.Generator) -> bool:
    """Swap a shard of this GPU with one of another, the best of those tried, if it helps."""
    problem = state.problem
    single = [
        unit
        for unit, row in enumerate(state.row.tolist())
        if problem.shards[row] and not problem.on_nodes[row]
    ]
    pairs = [(unit, place) for unit in single for place in set(state.places[unit])]
    mine = [unit for unit, place in pairs if place == gpu]
    others = [pair for pair in pairs if pair[1] != gpu]
    if not mine or not others:
        return False
    if len(others) > 40 * TRIED:
        others = [others[at] for at in random.permutation(len(others))[: 40 * TRIED].tolist()]
    if len(mine) > TRIED:
        mine = [mine[at] for at in random.permutation(len(mine))[:TRIED].tolist()]
    there = np.array([place for _, place in others])
    out, into = state.shard[state.row[mine]], state.shard[state.row[[unit for unit, _ in others]]]
    delta = into - out[:, None]  # (mine, others, K + M)
    here, away = state.use[gpu] + delta, state.use[there] - delta
    longest = np.maximum(_longest_elsewhere(state, gpu)[there], state.beside)
    stages = np.maximum(np.maximum(here, away)[..., state.loads], longest).sum(axis=-1)
    over = state.over(here) + state.over(away)
    itself = np.array(mine)[:, None] == [unit for unit, _ in others]
    order = np.argsort((stages + OVERFULL * over + OVERFULL * itself).ravel(), kind="stable")[:3]
    before = state.score
    for flat in order.tolist():
        i, j = divmod(flat, len(others))
        if mine[i] != others[j][0] and _swapped(state, mine[i], gpu, others[j], before):
            return True
    return False


def _swapped(state: State, mine: int, gpu: int, other_at: tuple[int, int], before: float) -> bool:
    """Swap two shards; undone unless it helps."""
    other, place = other_at
    if place in state.places[mine] or gpu in state.places[other]:
        return False
    mine_was, other_was = state.remove(mine), state.remove(other)
    state.add(mine, mine_was[0], _moved(mine_was[1], gpu, place))
    state.add(other, other_was[0], _moved(other_was[1], place, gpu))
    if state.score < before * (1 - BETTER):
        return True
    for unit, was in ((mine, mine_was), (other, other_was)):
        state.remove(unit)
        state.add(unit, *was)
    return False


def _moved(places: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    at = places.index(old)
    return (*places[:at], new, *places[at + 1 :])


def _longest_elsewhere(state: State, gpu: int) -> Array:
    """(G, K) longest load of each stage among GPUs other than `gpu` and the one of the row."""
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
    """Take some units out, one of them from a GPU that ends a stage, and put them back, largest first."""
    number = min(int(random.integers(2, KICKED + 1)), len(state.row))
    busy = _busiest(state)
    held = _held(state, int(random.choice(busy))) if busy else []
    units = set(random.choice(len(state.row), size=number, replace=False).tolist())
    if held:
        units.add(int(random.choice(held)))
    sizes = {unit: float(state.shard[state.row[unit]].sum()) for unit in units}
    for unit in units:
        state.remove(unit)
    for unit in sorted(units, key=lambda one: (-sizes[one], one)):
        found = state.insertion(unit)
        state.add(unit, found.row, found.places)


WAYS = 512
"""Most ways of two GPUs that are compared."""
Held = dict[int, list[int]]
"""By row the units that have a shard on a GPU."""
PAIRS = 8
"""Most GPUs that one is paired with in a move."""
WORTH = 1e-9
"""Relative gain below which the move is not worth its time."""


def repack(state: State, gpu: int, random: np.random.Generator) -> bool:
    """Redistribute the shards of this GPU and another, where that improves the score."""
    problem = state.problem
    others = [other for other in range(problem.gpus) if other != gpu]
    if state.hosts:
        others = [one for one in others if state.node_of_gpu[one] == state.node_of_gpu[gpu]]
    held: list[Held] = [{} for _ in range(problem.gpus)]
    for unit, (row, places) in enumerate(zip(state.row.tolist(), state.places, strict=True)):
        if not problem.on_nodes[row]:
            for place in places:
                held[place].setdefault(row, []).append(unit)
    return any(
        _dealt(state, gpu, other, held, random) for other in random.permutation(others)[:PAIRS].tolist()
    )


def _dealt(state: State, gpu: int, other: int, held: list[Held], random: np.random.Generator) -> bool:
    ours = {row: _apart(units, held[other].get(row)) for row, units in held[gpu].items()}
    theirs = {row: _apart(units, held[gpu].get(row)) for row, units in held[other].items()}
    rows = np.array([row for row in ours | theirs if ours.get(row) or theirs.get(row)], dtype=np.int64)
    if not len(rows):
        return False
    here = np.array([len(ours.get(row, ())) for row in rows.tolist()], dtype=np.int64)
    away = np.array([len(theirs.get(row, ())) for row in rows.tolist()], dtype=np.int64)
    free, moved = _ways(here, away, random)
    change = moved.astype(float) @ state.shard[rows[free]]
    on_first, on_other = state.use[gpu] + change, state.use[other] - change
    rest = np.delete(state.use[:, state.loads], [gpu, other], axis=0).max(axis=0, initial=0.0)
    longest = np.maximum(rest, state.beside)
    stages = np.maximum(np.maximum(on_first, on_other)[:, state.loads], longest).sum(axis=1)
    even = (np.square(on_first) + np.square(on_other)).sum(axis=1) * (EVEN / state.problem.gpus)
    scores = stages + OVERFULL * (state.over(on_first) + state.over(on_other)) + even
    best = int(np.argmin(scores))
    if scores[best] >= scores[0] - WORTH * stages[0]:
        return False
    for row, number in zip(rows[free].tolist(), moved[best].tolist(), strict=True):
        source, target, units = (other, gpu, theirs) if number > 0 else (gpu, other, ours)
        for unit in units.get(row, [])[: abs(number)]:
            _, places = state.remove(unit)
            state.add(unit, row, tuple(target if place == source else place for place in places))
    return True


def _apart(units: list[int], there: list[int] | None) -> list[int]:
    """Units that have no shard there: slices of a table lie apart."""
    return [unit for unit in units if unit not in there] if there else units


def _ways(here: Ints, away: Ints, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Rows that may move, and (W, rows) numbers of shards of each that the first GPU gains; the first way moves
    nothing."""
    room, spans = WAYS, {}
    for one in random.permutation(len(here)).tolist():
        reach = max((room - 1) // 2, 1)
        down, up = min(int(here[one]), reach), min(int(away[one]), reach)
        if 1 + down + up <= room:
            spans[one] = down, 1 + down + up
            room //= 1 + down + up
    down, sizes = np.array(list(spans.values()), dtype=np.int64).T
    ways = np.stack(np.unravel_index(np.arange(sizes.prod()), sizes), axis=-1) - down
    still = int(np.ravel_multi_index(down, sizes))
    ways[[0, still]] = ways[[still, 0]]
    return np.array(list(spans), dtype=np.int64), ways
