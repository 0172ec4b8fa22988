"""Traces that torch.profiler writes of our own executor on a CPU, read back: the parts are those of the recording."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from effort import few
from processes import Processes
from training import plan_for

from cost_models.measured.traces.job import job_of, read_traces
from executor.measure.parts import StepSpans, profile_step, step_parts
from planner.plan import Plan

LAYOUTS = ("mbs2", "pp2 mbs2", "dp2 mbs2 zero1", "tp2 mbs4", "pp2 mbs1 recompute=full", "dp2 mbs2 zero3")


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


@pytest.mark.parametrize("layout", LAYOUTS)
@few(1)
def test_parts_of_a_trace_are_those_of_the_recording(layout: str, tmp_path, processes) -> None:
    """Within 3 % of the step, on every rank; of two steps in one, as another process may have had the core between two
    marks of the other."""
    worst = [max(one.values()) for one in differences(plan_for(layout), tmp_path, processes)]
    assert min(worst) < 0.03, worst
