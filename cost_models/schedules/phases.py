"""Schedules written down phase by phase, and the table their ranks' rows make.

Shape legend: A actions of a rank; a row has the four columns kind, chunk, microbatch, overlapped with its neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.arrays import Ints
from cost_models.schedules.actions import IDLE, INPUT, ActionTable, stages_of_ranks

Entry = tuple[int, int, int]
"""Kind, chunk, and the microbatch of the phase's first round."""
KIND, CHUNK, MICROBATCH, OVERLAPPED = range(4)


def repeat(rounds: int, *entries: Entry) -> Ints:
    """(rounds · entries, 4): the entries again and again, each time with the next microbatch; nothing overlapped."""
    once_E4 = np.array([(*entry, 0) for entry in entries])
    rows = np.tile(once_E4, (rounds, 1))
    rows[:, MICROBATCH] += np.arange(rounds).repeat(len(entries))
    return rows


def overlap(rows_A4: Ints, places: Sequence[int], period: int) -> Ints:
    """The rows with those at these places of every `period` marked as overlapped."""
    rows_A4[np.isin(np.arange(len(rows_A4)) % period, places), OVERLAPPED] = 1
    return rows_A4


def table_of_phases(
    schedule: str, *, pp: int, microbatches: int, ranks: Sequence[Sequence[Ints]]
) -> ActionTable:
    """The table of a schedule whose stages make a V, from the phases of every rank.

    Entries of microbatches that do not exist fall out; shorter rows are filled with idle entries.
    """
    rows = [np.concatenate(phases) for phases in ranks]
    rows = [row_A4[row_A4[:, MICROBATCH] < microbatches] for row_A4 in rows]
    stages = stages_of_ranks(pp, 2, v_shaped=True)
    length = max(len(row) for row in rows)
    columns = np.zeros((4, pp, length), dtype=np.int64)
    columns[KIND] = IDLE
    for rank, row_A4 in enumerate(rows):
        columns[:, rank, : len(row_A4)] = row_A4.T
        columns[CHUNK, rank, : len(row_A4)] = stages[rank, row_A4[:, CHUNK]]
    columns.flags.writeable = False
    overlapped = columns[OVERLAPPED].astype(np.bool_)
    overlapped.flags.writeable = False
    return ActionTable(
        schedule=schedule,
        pp=pp,
        vpp=2,
        microbatches=microbatches,
        kind=columns[KIND],
        stage=columns[CHUNK],
        microbatch=columns[MICROBATCH],
        v_shaped=True,
        splits_backward=bool((columns[KIND] == INPUT).any()),
        overlapped=overlapped if overlapped.any() else None,
    )
