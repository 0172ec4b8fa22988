"""Action tables: exactly what torch executes, and how many microbatches they keep alive."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import InputError, UnknownNameError
from cost_models.schedules import Action, ActionTable, build, legal, live_profiles

SHAPES = [
    *(("gpipe", pp, 1, m) for pp in (1, 2, 5) for m in (1, 3, 8)),
    *(("1f1b", pp, 1, m) for pp in (1, 2, 4, 7) for m in (7, 8, 15)),
    *(("interleaved", pp, vpp, m) for pp in (1, 2, 3, 4) for vpp in (2, 3) for m in (1, 2, 3, 4, 6, 8, 12)),
    ("interleaved", 4, 2, 10),
    ("interleaved", 8, 6, 48),
]
LEGAL_SHAPES = [shape for shape in SHAPES if legal(*shape) is None]
TORCH_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}


@st.composite
def tables(draw: st.DrawFn) -> ActionTable:
    """Any small legal table."""
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
    pp = draw(st.integers(1, 5))
    vpp = draw(st.integers(2, 4)) if schedule == "interleaved" else 1
    microbatches = draw(st.integers(1, 14).filter(lambda m: legal(schedule, pp, vpp, m) is None))
    return build(schedule, pp, vpp, microbatches)


@pytest.mark.parametrize("shape", [s for s in LEGAL_SHAPES if s[0] == "interleaved"], ids=str)
def test_interleaved_order_is_the_one_torch_executes(shape: tuple[str, int, int, int]) -> None:
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    schedule, pp, vpp, microbatches = shape
    expected = get_schedule_ops(TORCH_NAMES[schedule], pp, microbatches, vpp)
    table = build(schedule, pp, vpp, microbatches)
    for rank, operations in enumerate(expected):
        computed = [str(operation) for operation in operations if operation is not None]
        assert [f"{a.stage}{a.kind}{a.microbatch}" for a in table.actions(rank)] == computed


@pytest.mark.parametrize("shape", [s for s in LEGAL_SHAPES if s[0] != "interleaved"], ids=str)
def test_one_chunk_order_is_the_one_torch_executes(shape: tuple[str, int, int, int]) -> None:
    """The step itself runs on a recording stage: 1F1B's own listing starts the last rank at F1."""
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torch.distributed.pipelining.stage import PipelineStage

    schedule, pp, vpp, microbatches = shape
    table = build(schedule, pp, vpp, microbatches)
    for rank in range(pp):
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
    for rank in range(table.pp):
        actions = table.actions(rank)
        stages = range(rank, table.num_stages, table.pp)
        units = [Action(kind, k, mb) for kind in "FB" for k in stages for mb in range(table.microbatches)]
        assert Counter(actions) == Counter(units)
        place = {action: position for position, action in enumerate(actions)}
        assert all(place["F", k, mb] < place["B", k, mb] for _, k, mb in units)


@pytest.mark.parametrize(("pp", "microbatches"), [(1, 1), (4, 4), (4, 6), (8, 32)])
def test_1f1b_keeps_one_microbatch_per_stage_still_to_come(pp: int, microbatches: int) -> None:
    profiles = live_profiles(build("1f1b", pp, 1, microbatches))
    assert [profile.tolist() for profile in profiles] == [
        [[min(microbatches, pp - rank)]] for rank in range(pp)
    ]


def test_gpipe_keeps_every_microbatch() -> None:
    assert [profile.tolist() for profile in live_profiles(build("gpipe", 3, 1, 7))] == [[[7]]] * 3


@pytest.mark.parametrize("shape", [s for s in LEGAL_SHAPES if s[0] == "interleaved"], ids=str)
def test_interleaved_keeps_its_warm_up_and_one_more(shape: tuple[str, int, int, int]) -> None:
    schedule, pp, vpp, microbatches = shape
    round_size = microbatches // max(1, microbatches // pp)
    for rank, profile in enumerate(live_profiles(build(schedule, pp, vpp, microbatches))):
        warm_up = 2 * (pp - rank - 1) + (vpp - 1) * round_size
        assert set(profile.sum(axis=1)) == {min(warm_up + 1, microbatches * vpp)}


@given(tables())
def test_live_profiles_are_the_pareto_maximal_moments(table: ActionTable) -> None:
    for rank, profile in enumerate(live_profiles(table)):
        live, moments = np.zeros(table.vpp, dtype=int), []
        for kind, stage, _ in table.actions(rank):
            live[stage // table.pp] += 1 if kind == "F" else -1
            moments.append(tuple(live.tolist()))
        assert not live.any()
        maximal = {
            a
            for a in moments
            if not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for b in moments)
        }
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
        (("1f1b", 1, 1, 0), "start at one"),
    ],
)
def test_what_cannot_run_is_said_in_a_sentence(shape: tuple[str, int, int, int], words: str) -> None:
    sentence = legal(*shape)
    assert sentence is not None
    assert words in sentence
    with pytest.raises(InputError, match=words):
        build(*shape)


def test_unknown_schedule_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean `interleaved`"):
        build("interleave", 2, 2, 4)


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("microbatches", range(1, 15))
def test_legal_agrees_with_torch(pp: int, microbatches: int) -> None:
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    for schedule, vpp in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2)):
        try:
            get_schedule_ops(TORCH_NAMES[schedule], pp, microbatches, vpp)
        except ValueError:
            assert legal(schedule, pp, vpp, microbatches) is not None
        else:
            assert legal(schedule, pp, vpp, microbatches) is None


def test_tables_are_cached_and_read_only() -> None:
    table = build("1f1b", 4, 1, 8)
    assert build("1f1b", 4, 1, 8) is table
    with pytest.raises(ValueError, match="read-only"):
        table.stage[0, 0] = 1
