"""Parts of a watched step by hand, as a profiler recorded them, and as a Chrome trace of predicted above measured."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from effort import few
from processes import Processes
from torch._C._autograd import DeviceType
from training import plan_for

from cost_models.measured.traces.job import job_of, read_traces
from cost_models.pipeline.pricing import predicted_spans
from executor.measure.parts import STEP_PARTS, StepSpans, _kernels, profile_step, step_parts
from executor.measure.report import RankReport
from executor.mesh import Place
from executor.timing import Pass, Wait
from planner.plan import Plan

LAYOUTS = ("dp2 mbs2 zero1", "pp2 mbs1 recompute=full", "pp2 mbs1 schedule=zero-bubble vpp2")
SLACK_MICROSECONDS = 0.01
"""Rounding of seconds to microseconds."""


def spans(stage: int, work: list[Pass[float]], waits: list[Wait[float]], end: float) -> StepSpans:
    """A rank of a pipeline of two; its update takes the last second."""
    return StepSpans(
        rank=stage,
        place=Place(pp=stage, dp=0, cp=0, tp=0),
        work=tuple(work),
        waits=tuple(waits),
        update_start=end - 1,
        end=end,
        forward_backward_thread=5.0,
        update_thread=0.75,
    )


FIRST = spans(
    0,
    [Pass("F", 0, 0, 0.0, 2.0), Pass("B", 0, 0, 8.0, 12.0)],
    [Wait("pp", 0.0, 2.0, 8.0), Wait("pp", 0.0, 12.0, 12.5)],
    13.0,
)
"""Hands on at 2, gets the gradient at 8, waits 0.5 in its update."""
SECOND = spans(
    1,
    [Pass("F", 1, 0, 3.0, 5.0), Pass("B", 1, 0, 5.0, 7.0)],
    [Wait("pp", 0.0, 0.0, 3.0), Wait("tp", 0.25, 3.0, 3.5)],
    8.0,
)


def test_parts_by_hand() -> None:
    parts = step_parts([FIRST, SECOND], {0: 0.8, 1: 0.5}, on_cpu=True)
    assert all(sum(seconds.values()) == pytest.approx(13.0) for seconds in parts.values())
    assert all(tuple(seconds) == STEP_PARTS for seconds in parts.values())
    first, second = parts[0], parts[1]
    assert first["bubble"] == pytest.approx(5.0)  # until 7, when the other stage's backward pass has ended
    assert first["pp_comm"] == pytest.approx(1.5)  # then the gradient's way, and what the update waits
    assert first["compute"] == pytest.approx(0.8 * 5.0)
    assert first["host"] == pytest.approx(0.2 * 5.0)
    assert first["optimizer"] == pytest.approx(0.5)  # of 0.75 s of its thread only 0.5 s can be its own
    assert first["other"] == pytest.approx(12.0 - 6.0 - 5.0)
    assert second["bubble"] == pytest.approx(2.0 + 5.0)  # the first forward pass, and the end
    assert second["pp_comm"] == pytest.approx(1.0)
    assert second["tp_comm"] == pytest.approx(0.5)


def test_on_a_gpu_nothing_is_other() -> None:
    """Its own clock cannot be taken away, so what no operator fills is the host's."""
    parts = step_parts([FIRST, SECOND], {0: 0.8, 1: 0.5}, on_cpu=False)
    assert all(sum(seconds.values()) == pytest.approx(13.0) for seconds in parts.values())
    assert [seconds["other"] for seconds in parts.values()] == [0.0, 0.0]
    assert parts[0]["compute"] == pytest.approx(0.8 * 6.0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_predicted_spans_end_with_the_step(layout: str) -> None:
    """Ranks do one thing at a time, and the last is done when the plan says."""
    plan = plan_for(layout)
    found = predicted_spans(plan.question, plan.layout)
    assert max(span.end for span in found) == pytest.approx(plan.prediction.step_seconds, rel=1e-12)
    for earlier, later in pairwise(found):
        assert earlier.rank < later.rank or earlier.end <= later.start + 1e-12


def traced(plan: Plan, path: Path) -> tuple[RankReport, ...]:
    """All ranks' reports; rank 0 writes the trace."""
    from executor.run_config import RunConfig
    from executor.steps import Watcher
    from executor.transformer.train import train

    config = RunConfig(steps=1, warm_up=1, waiting_steps=1, measure_memory=False, trace=path)
    return train(plan, torch.device("cpu"), config, Watcher()).ranks


@pytest.mark.parametrize("layout", ["pp2 mbs2", "tp2 mbs4"])
@few(1)
def test_trace_of_a_run(layout: str, tmp_path, processes) -> None:
    plan = plan_for(layout)
    path = tmp_path / "new" / "trace.json"
    ranks = processes.run(2, traced, plan, path)[0]
    document = json.loads(path.read_text("utf-8"))
    assert [file.name for file in path.parent.iterdir()] == ["trace.json"]  # nothing temporary is left
    events = document["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in complete} == {0, 1}
    for event in complete:
        assert {"ts", "dur", "pid", "tid", "name"} <= event.keys()
        assert event["dur"] >= 0
    for rank in (0, 1):
        lanes = [[one for one in complete if (one["pid"], one["tid"]) == (rank, lane)] for lane in range(3)]
        for lane in lanes:
            in_order = sorted(lane, key=lambda event: event["ts"])
            for earlier, later in pairwise(in_order):
                assert earlier["ts"] + earlier["dur"] <= later["ts"] + SLACK_MICROSECONDS
        predicted, measured, waits = lanes
        assert passes(predicted) == passes(measured) != []  # what was costed is what ran
        assert waits
    ends = [event["ts"] + event["dur"] for event in complete if event["tid"] == 0]
    assert max(ends) == pytest.approx(plan.prediction.step_seconds * 1e6, rel=1e-9)
    step = document["otherData"]["measured_step_seconds"]
    assert max(event["ts"] + event["dur"] for event in complete if event["tid"] == 1) == pytest.approx(
        step * 1e6
    )
    arrows = {end: [event["id"] for event in events if event["ph"] == end] for end in "sf"}
    assert sorted(arrows["s"]) == sorted(arrows["f"])
    crossings = 2 * plan.layout.microbatches(8) if plan.layout.pp == 2 else 0  # forward and backward
    assert len(arrows["s"]) == 2 * crossings  # predicted and measured
    for one in ranks:
        assert sum(one.parts.values()) == pytest.approx(step)
        assert one.parts["compute"] > 0
        assert one.parts["host"] > 0


def passes(lane: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Kind, stage and microbatch of a lane's passes, in order."""
    return [tuple(event["args"].values()) for event in lane if "args" in event]


def test_trace_of_blocks_in_host_memory(tmp_path, processes) -> None:
    """What the window's list of moves predicts, and what the link and the host's thread did."""
    plan = plan_for("mbs4 offload=states:1/streamed:1")
    path = tmp_path / "trace.json"
    processes.run(1, traced, plan, path)
    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    lanes: dict[str, list[str]] = {}
    for event in events:
        if event["ph"] == "X":
            lanes.setdefault(names[event["tid"]], []).append(event["name"])
    streamed, stays = plan.layout.layers[0] - 1, plan.layout.layers[0] - 2
    # gradients of a streamed block go down for each of two microbatches, others' once
    assert sorted(lanes["host link down, predicted"]) == sorted(
        [f"gradients {streamed}"] * 2 + [f"gradients {stays}"]
    )
    assert sorted(lanes["host link down, measured"]) == sorted([f"block {streamed}"] * 2 + [f"block {stays}"])
    assert len(lanes["host link up, predicted"]) == len(lanes["host link up, measured"])
    assert sorted(lanes["CPU update, predicted"]) == sorted(
        [f"add {streamed}", f"update {streamed}", f"update {stays}"]
    )
    assert sorted(lanes["CPU update, measured"]) == sorted([f"block {streamed}"] * 2 + [f"block {stays}"])
    assert "drive, predicted" not in lanes


PROFILED_LAYOUTS = ("pp2 mbs1 recompute=full", "dp2 mbs2 zero3", "tp2 mbs4")


def profiled(plan: Plan, folder: Path, steps: int) -> list[tuple[StepSpans, float]]:
    """Steps after a warm-up, each written as a trace and as recorded; with the share of operators in what each is
    busy with."""
    from executor.data.batches import Batches
    from executor.engine.engine import Engine
    from executor.run_config import RunConfig

    config = RunConfig(steps=1)
    engine = Engine(plan, torch.device("cpu"), config.engine)
    batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0, data="random")
    warm, *more = (batches.between(one, engine.share.first, engine.share.last) for one in range(1 + steps))
    engine.step(*warm)
    rank, told = torch.distributed.get_rank(), []
    for number, batch in enumerate(more):
        spans, operators = profile_step(engine, batch, folder / f"{number}" / f"trace_rank{rank}.json.gz")
        waited = sum(wait.end - wait.start for wait in spans.waits_in_phase(update=False))
        told.append((spans, operators / (spans.update_start - waited)))
    return told


def differences(plan: Plan, folder: Path, processes: Processes, steps: int = 2) -> list[dict[str, float]]:
    """Part → the largest difference on a rank, as a share of the step; `sum` is that of all parts. Of each profiled
    step."""
    ranks, found = range(plan.layout.num_gpus), []
    for number, told in enumerate(
        zip(*processes.run(len(ranks), profiled, plan, folder, steps), strict=True)
    ):
        shares = {rank: told[rank][1] for rank in ranks}
        expected = step_parts([spans for spans, _ in told], shares, on_cpu=False)
        traces = [folder / f"{number}" / f"trace_rank{rank}.json.gz" for rank in ranks]
        job = job_of(read_traces(traces, plan.layout, on_cpu=True), plan.question, plan.layout)
        assert [len(job.passes[rank]) for rank in ranks] == [len(spans.work) for spans, _ in told]
        step = max(spans.end for spans, _ in told)
        off = {"sum": max(abs(sum(one.parts.values()) - step) / step for one in job.traced)}
        for one in job.traced:
            for part, seconds in expected[one.rank].items():
                off[part] = max(off.get(part, 0.0), abs(one.parts[part] - seconds) / step)
        found.append(off)
    return found


@pytest.mark.parametrize("layout", PROFILED_LAYOUTS)
@few(1)
def test_parts_of_a_trace_are_those_of_the_recording(layout: str, tmp_path, processes) -> None:
    """Within 3 % of the step, on every rank; of two steps in one, as another process may have had the core between two
    marks of the other."""
    worst = [max(one.values()) for one in differences(plan_for(layout), tmp_path, processes)]
    assert min(worst) < 0.03, worst


def test_copies_to_and_from_the_host_are_no_compute() -> None:
    def event(name: str, start: float, end: float) -> Any:
        return SimpleNamespace(
            name=name, device_type=DeviceType.CUDA, time_range=SimpleNamespace(start=start, end=end)
        )

    events = [
        event("ampere_bf16_s16816gemm", 0, 100),
        event("Memcpy HtoD (Pinned -> Device)", 50, 300),
        event("Memcpy DtoD (Device -> Device)", 300, 320),
        event("ncclDevKernel_AllGather", 320, 900),
        event("Memcpy DtoH (Device -> Pinned)", 900, 950),
        event("Memset (Device)", 950, 951),
    ]
    assert _kernels(events) == pytest.approx(121e-6)
