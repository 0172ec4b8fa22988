"""Laws of every registered schedule: what is known of it without its table is what its table shows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from cost_models.schedules.actions import ActionTable, peak_moments
from cost_models.schedules.registry import PLAIN, REGISTRY, PipelineSchedule, build, engine_refusal

SCHEDULES = pytest.mark.parametrize("own", REGISTRY.values(), ids=REGISTRY)


def small_tables(own: PipelineSchedule, *, several_ranks: bool = False) -> Iterator[ActionTable]:
    """Every legal table of up to five ranks, four chunks and fourteen microbatches."""
    for pp in range(2 if several_ranks else 1, 6):
        for vpp in range(1, 5):
            for microbatches in range(1, 15):
                if engine_refusal(own.name, pp, vpp, microbatches) is None:
                    yield build(own.name, pp, vpp, microbatches)


def live_moments(table: ActionTable, rank: int) -> set[tuple[int, ...]]:
    """Live microbatches of each chunk after every action of a rank, counted one by one."""
    live, moments = [0] * table.vpp, set()
    for kind, stage, _ in table.actions(rank):
        live[stage // table.pp] += {"F": 1, "I": 0, "B": -1, "W": -1}[kind]
        moments.add(tuple(live))
    return moments


@SCHEDULES
def test_live_counts_without_a_table_are_a_moment_of_the_table(own: PipelineSchedule) -> None:
    tables = 0
    for table in small_tables(own):
        rank_R1, chunk_C = np.arange(table.pp)[:, None], np.arange(table.vpp)
        shape = (table.pp, table.vpp, table.microbatches)
        live_RC = own.live_of_chunk(*shape, rank_R1, chunk_C)
        assert own.live_of_rank(*shape, rank_R1[:, 0]).tolist() == live_RC.sum(axis=1).tolist()
        for rank, live_C in enumerate(live_RC.tolist()):
            assert tuple(live_C) in live_moments(table, rank), (shape, rank)
            if table.vpp == 1:  # then it is the peak
                assert [live_C] == peak_moments(table)[0][rank].tolist()
        tables += 1
    assert tables > 20


@SCHEDULES
def test_live_counts_of_many_shapes_at_once_are_those_of_each(own: PipelineSchedule) -> None:
    shapes = np.array([(t.pp, t.vpp, t.microbatches) for t in small_tables(own)])
    pp, vpp, microbatches = shapes.T
    first, last, together = (
        own.live_of_chunk(pp, vpp, microbatches, 0, 0),
        own.live_of_chunk(pp, vpp, microbatches, pp - 1, vpp - 1),
        own.live_of_rank(pp, vpp, microbatches, pp - 1),
    )
    for row, shape in enumerate(shapes.tolist()):
        assert first[row] == own.live_of_chunk(*shape, 0, 0)
        assert last[row] == own.live_of_chunk(*shape, shape[0] - 1, shape[1] - 1)
        assert together[row] == own.live_of_rank(*shape, shape[0] - 1)


@SCHEDULES
def test_it_is_registered_under_its_name_and_its_engine_exists(own: PipelineSchedule) -> None:
    from torch.distributed import pipelining
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

    assert REGISTRY[own.name] is own
    runs_one_stage = own.chunks == (1, 1)
    kind = PipelineScheduleSingle if runs_one_stage else PipelineScheduleMulti
    assert issubclass(getattr(pipelining, own.engine), kind)


@SCHEDULES
def test_it_runs_the_chunks_it_says(own: PipelineSchedule) -> None:
    for vpp in range(1, 6):
        assert own.runs_chunks(vpp) == any(
            engine_refusal(own.name, 3, vpp, m) is None for m in (3, 6, 12, 24)
        )


@SCHEDULES
def test_its_traits_are_those_of_its_tables(own: PipelineSchedule) -> None:
    for table in small_tables(own, several_ranks=True):
        kinds = {action.kind for rank in range(table.pp) for action in table.actions(rank)}
        assert (
            kinds
            == {"never": {"F", "B"}, "sometimes": {"F", "B", "I", "W"}, "always": {"F", "I", "W"}}[own.splits]
        )
        assert table.schedule is own
        assert (table.rank_of_stage[-1] == 0) == own.v_shaped


@SCHEDULES
def test_the_head_turns_at_once_or_keeps_its_logits(own: PipelineSchedule) -> None:
    between = []
    for table in small_tables(own, several_ranks=True):
        last = table.num_stages - 1
        for one, after in pairwise(table.actions(int(table.rank_of_stage[-1]))):
            if one.kind == "F" and one.stage == last:
                turns = after.kind in "BI" and after[1:] == one[1:]
                between.append(not turns)
    assert any(between) == own.keeps_all_logits


@SCHEDULES
def test_the_bounds_of_one_chunk_a_rank_hold_for_its_steady_state(own: PipelineSchedule) -> None:
    assert own.steady is None or own.name in PLAIN
    for table in small_tables(own):
        for rank in range(table.pp):
            rows = [(action.kind, action.microbatch) for action in table.actions(rank)]
            forwards = table.microbatches
            if own.steady == "queue":
                assert rows == [("F", m) for m in range(forwards)] + [("B", m) for m in range(forwards)]
            if own.steady == "pairs":
                for m in range(forwards - (table.pp - rank)):
                    assert rows[rows.index(("B", m)) + 1] == ("F", m + table.pp - rank)
