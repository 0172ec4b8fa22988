"""Action tables: exactly what torch executes, and how many microbatches they keep alive."""

from __future__ import annotations

from collections import Counter
from itertools import product
from unittest import mock

import numpy as np
import pytest
from effort import number, spread
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import InputError
from cost_models.schedules.actions import IDLE, Action, ActionTable, peak_moments
from cost_models.schedules.registry import build, engine_refusal, schedule_named
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
TORCH_NAMES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zero-bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
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


@pytest.mark.parametrize(
    ("shape", "words"),
    [
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
    ],
)
def test_what_cannot_run_is_said_in_a_sentence(shape: tuple[str, int, int, int], words: str) -> None:
    sentence = engine_refusal(*shape)
    assert sentence is not None
    assert words in sentence
    with pytest.raises(InputError, match=words):
        build(*shape)


def test_legal_agrees_with_torch() -> None:
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    for schedule, pp, microbatches in product(SCHEDULES, (2, 3, 4), range(1, 15)[:: number(2, 1)]):
        vpp = {"gpipe": 1, "1f1b": 1}.get(schedule, 2)
        try:
            get_schedule_ops(TORCH_NAMES[schedule], pp, microbatches, vpp)
            runs = True
        except ValueError:
            runs = False
        assert (engine_refusal(schedule, pp, vpp, microbatches) is None) == runs, (schedule, pp, microbatches)
