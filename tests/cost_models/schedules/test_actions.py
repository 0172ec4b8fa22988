"""Schedules: their actions, their registry, their one record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, product
from unittest import mock

import numpy as np
import pytest
from effort import number, spread
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import InputError
from cost_models.schedules.actions import IDLE, Action, ActionTable, peak_moments
from cost_models.schedules.registry import (
    PLAIN,
    REGISTRY,
    PipelineSchedule,
    build,
    engine_refusal,
    schedule_named,
)
from cost_models.specs.choices import SCHEDULES

SHAPES = [
    *(("gpipe", pp, 1, m) for pp in (1, 2, 5) for m in (1, 3, 8)),
    *(("1f1b", pp, 1, m) for pp in (1, 2, 4, 7) for m in (7, 8, 15)),
    *(("interleaved", pp, vpp, m) for pp in (1, 2, 3, 4) for vpp in (2, 3) for m in (1, 2, 3, 4, 6, 8, 12)),
    ("interleaved", 4, 2, 10),
    ("interleaved", 8, 6, 48),
    *(("zero-bubble", pp, vpp, m) for pp in (1, 2, 4, 5) for vpp in (1, 2, 3) for m in (1, 3, 4, 8, 10)),
    *(("zbv", pp, 2, m) for pp in (1, 2, 3, 4, 6) for m in (1, 2, 5, 8, 12, 17)),
    *(("dualpipev", pp, 2, m) for pp in (1, 2, 3, 4, 6) for m in (2, 4, 8, 12, 17)),
]
LEGAL_SHAPES = [shape for shape in SHAPES if engine_refusal(*shape) is None]
TORCH_NAMES = {name: schedule.engine.removeprefix("Schedule") for name, schedule in REGISTRY.items()}
MULTI = [shape for shape in LEGAL_SHAPES if shape[0] not in ("gpipe", "1f1b")]


@st.composite
def tables(draw: st.DrawFn) -> ActionTable:
    """Any small legal table."""
    schedule = draw(st.sampled_from(SCHEDULES))
    pp = draw(st.integers(1, 5))
    chunks = {"interleaved": st.integers(2, 4), "zero-bubble": st.integers(1, 4)}
    vpp = 2 if schedule in ("zbv", "dualpipev") else draw(chunks.get(schedule, st.just(1)))
    microbatches = draw(st.integers(1, 14).filter(lambda m: engine_refusal(schedule, pp, vpp, m) is None))
    return build(schedule, pp, vpp, microbatches)


def torch_rows(schedule: str, pp: int, vpp: int, microbatches: int) -> list[list[tuple[str, bool]]]:
    """Per rank the actions of torch's own table, and whether torch overlaps each with its neighbour.

    `get_schedule_ops` of torch does the same but insists on two chunks a rank, which no schedule here does.
    """
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torch.distributed.pipelining.stage import PipelineStage

    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.configure_mock(group_rank=0, group_size=pp, num_stages=pp * vpp, submod=None)
    order = get_schedule_class(TORCH_NAMES[schedule])([stage] * vpp, microbatches).pipeline_order
    return [
        [
            (str(part), action.sub_actions is not None)
            for action in order[rank]
            if action is not None
            for part in action.sub_actions or (action,)
        ]
        for rank in range(pp)
    ]


@pytest.mark.parametrize("schedule", sorted({shape[0] for shape in MULTI}))
def test_the_order_is_the_one_torch_executes(schedule: str) -> None:
    for shape in spread([shape for shape in MULTI if shape[0] == schedule], number(12, 1000)):
        table = build(*shape)
        for rank, expected in enumerate(torch_rows(*shape)):
            actions = table.actions(rank)
            written = [f"{a.stage}{a.kind}{a.microbatch}" for a in actions]
            pairs = table.overlapped[rank, : len(actions)].tolist()
            assert list(zip(written, pairs, strict=True)) == expected, (shape, rank)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_one_chunk_order_is_the_one_torch_executes(schedule: str) -> None:
    """The step itself runs on a recording stage: 1F1B's own listing starts the last rank at F1."""
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torch.distributed.pipelining.stage import PipelineStage

    shapes = [(pp, microbatches) for name, pp, _, microbatches in LEGAL_SHAPES if name == schedule]
    for (pp, microbatches), rank in ((shape, rank) for shape in shapes for rank in range(shape[0])):
        table = build(schedule, pp, 1, microbatches)
        stage = mock.create_autospec(PipelineStage, instance=True)
        stage.configure_mock(group_rank=rank, group_size=pp, num_stages=pp, stage_index=rank, submod=None)
        stage.configure_mock(has_backward=True, is_first=rank == 0, is_last=rank == pp - 1, device="cpu")
        for receive_or_send in ("fwd_recv", "fwd_send", "bwd_recv", "bwd_send"):
            getattr(stage, f"get_{receive_or_send}_ops").return_value = []
        step = get_schedule_class(TORCH_NAMES[schedule])(stage, microbatches)
        step._initialize_stage = lambda *_: None
        step._step_microbatches([()] * microbatches, [{}] * microbatches)
        kinds = {"forward_one_chunk": "F", "backward_one_chunk": "B"}
        calls = [(name, arguments) for name, arguments, _ in stage.method_calls if name in kinds]
        assert table.actions(rank) == tuple(Action(kinds[name], rank, mb) for name, (mb, *_) in calls)


@given(tables())
def test_every_unit_runs_once_forward_then_backward(table: ActionTable) -> None:
    held = table.schedule.stages_of_rank(table.pp, table.vpp).tolist()
    for rank in range(table.pp):
        actions = table.actions(rank)
        units = [(stage, microbatch) for stage in held[rank] for microbatch in range(table.microbatches)]
        place = {action: position for position, action in enumerate(actions)}
        assert len(place) == len(actions)
        wholes = {(stage, microbatch) for kind, stage, microbatch in actions if kind == "B"}
        kinds = {unit: "FB" if unit in wholes else "FIW" for unit in units}
        assert Counter(actions) == Counter(Action(kind, *unit) for unit in units for kind in kinds[unit])
        for unit in units:
            places = [place[Action(kind, *unit)] for kind in kinds[unit]]
            assert places == sorted(places)
        assert wholes == set(units) or table.schedule.splits != "never"


@given(tables())
def test_ranks_idle_only_once_they_are_done(table: ActionTable) -> None:
    idle = table.kind == IDLE
    assert not (idle[:, :-1] & ~idle[:, 1:]).any()
    assert not idle.all(axis=0).any()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_lie_where_torch_puts_them(schedule: str) -> None:
    from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

    vpp = 1 if schedule in ("gpipe", "1f1b") else 2
    style = "v" if schedule in ("zbv", "dualpipev") else "loop"
    for pp in (1, 2, 3, 8):
        expected = generate_stage_to_rank_mapping(pp, pp * vpp, style=style)
        ranks = schedule_named(schedule).rank_of_stage(pp, vpp)
        assert dict(enumerate(ranks.tolist())) == expected
        for rank, stages in enumerate(schedule_named(schedule).stages_of_rank(pp, vpp).tolist()):
            assert stages == [stage for stage in range(pp * vpp) if ranks[stage] == rank]


@given(tables())
def test_live_profiles_are_the_pareto_maximal_moments(table: ActionTable) -> None:
    """Live from the forward pass to the end of the backward pass, pending between its halves."""
    for rank, (live_KV, pending_KV) in enumerate(zip(*peak_moments(table), strict=True)):
        live, pending = np.zeros(table.vpp, dtype=int), np.zeros(table.vpp, dtype=int)
        moments = []
        for kind, stage, _ in table.actions(rank):
            live[stage // table.pp] += {"F": 1, "I": 0, "B": -1, "W": -1}[kind]
            pending[stage // table.pp] += {"F": 0, "I": 1, "B": 0, "W": -1}[kind]
            moments.append((*live.tolist(), *pending.tolist()))
        assert not live.any()
        assert not pending.any()
        maximal = {
            a
            for a in moments
            if not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for b in moments)
        }
        profile = np.concatenate([live_KV, pending_KV], axis=1)
        assert {tuple(vector) for vector in profile.tolist()} == maximal
        assert len(profile) == len(maximal)


def test_what_cannot_run_is_said_in_a_sentence() -> None:
    for shape, words in [
        (("gpipe", 4, 2, 8), "one chunk"),
        (("1f1b", 4, 2, 8), "one chunk"),
        (("1f1b", 4, 1, 3), "3 < pp4"),
        (("interleaved", 4, 1, 8), "at least two chunks"),
        (("interleaved", 4, 2, 9), "2 equal rounds"),
        (("zero-bubble", 4, 1, 9), "2 equal rounds of zero-bubble"),
        (("zbv", 4, 3, 8), "two chunks"),
        (("dualpipev", 4, 1, 8), "two chunks"),
        (("dualpipev", 4, 2, 7), "7 < 8"),
        (("1f1b", 1, 1, 0), "start at one"),
    ]:
        sentence = engine_refusal(*shape)
        assert sentence is not None
        assert words in sentence
        with pytest.raises(InputError, match=words):
            build(*shape)


def test_legal_agrees_with_torch() -> None:
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    for schedule, pp, microbatches in product(SCHEDULES, (2, 3, 4), range(1, 15)[:: number(2, 1)]):
        vpp = 1 if REGISTRY[schedule].chunks == (1, 1) else 2
        try:
            get_schedule_ops(TORCH_NAMES[schedule], pp, microbatches, vpp)
            runs = True
        except ValueError:
            runs = False
        assert (engine_refusal(schedule, pp, vpp, microbatches) is None) == runs, (schedule, pp, microbatches)


EVERY_SCHEDULE = pytest.mark.parametrize("own", REGISTRY.values(), ids=REGISTRY)


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


@EVERY_SCHEDULE
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


@EVERY_SCHEDULE
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


@EVERY_SCHEDULE
def test_it_is_registered_under_its_name_and_its_engine_exists(own: PipelineSchedule) -> None:
    from torch.distributed import pipelining
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

    assert REGISTRY[own.name] is own
    runs_one_stage = own.chunks == (1, 1)
    kind = PipelineScheduleSingle if runs_one_stage else PipelineScheduleMulti
    assert issubclass(getattr(pipelining, own.engine), kind)


@EVERY_SCHEDULE
def test_it_runs_the_chunks_it_says(own: PipelineSchedule) -> None:
    for vpp in range(1, 6):
        assert own.runs_chunks(vpp) == any(
            engine_refusal(own.name, 3, vpp, m) is None for m in (3, 6, 12, 24)
        )


@EVERY_SCHEDULE
def test_its_traits_are_those_of_its_tables(own: PipelineSchedule) -> None:
    for table in small_tables(own, several_ranks=True):
        kinds = {action.kind for rank in range(table.pp) for action in table.actions(rank)}
        assert (
            kinds
            == {"never": {"F", "B"}, "sometimes": {"F", "B", "I", "W"}, "always": {"F", "I", "W"}}[own.splits]
        )
        assert table.schedule is own
        assert (table.rank_of_stage[-1] == 0) == own.v_shaped


@EVERY_SCHEDULE
def test_the_head_turns_at_once_or_keeps_its_logits(own: PipelineSchedule) -> None:
    between = []
    for table in small_tables(own, several_ranks=True):
        last = table.num_stages - 1
        for one, after in pairwise(table.actions(int(table.rank_of_stage[-1]))):
            if one.kind == "F" and one.stage == last:
                turns = after.kind in "BI" and after[1:] == one[1:]
                between.append(not turns)
    assert any(between) == own.keeps_all_logits


@EVERY_SCHEDULE
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
