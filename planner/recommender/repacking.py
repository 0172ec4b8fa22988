"""A move of local search: what two GPUs hold is dealt out between them anew, the best of many ways at once.

Shards of one row are alike, so a way is how many of each row's lie on the first GPU. Where there are too many ways,
some rows, drawn by chance, may move only a little or not at all.
"""

from __future__ import annotations

import numpy as np

from cost_models.recommender.priced import Ints
from planner.recommender.state import EVEN, OVERFULL, State

WAYS = 512
"""Most ways of two GPUs that are compared."""
Held = dict[int, list[int]]
"""By row the units that have a shard on a GPU."""
PAIRS = 8
"""Most GPUs that one is paired with in a move."""
WORTH = 1e-9
"""Relative gain below which the move is not worth its time."""


def repack(state: State, gpu: int, random: np.random.Generator) -> bool:
    """Deal out what this GPU and another hold, if that helps."""
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
    """Rows that may move, and (W, rows) how many shards of each the first GPU gains, first of all none of any."""
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
