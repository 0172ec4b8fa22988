"""Reports of runs that nobody ran: ranks by the seconds of their parts, beside what the plan predicts."""

from __future__ import annotations

from typing import Any

from executor.measure.report import Environment, PhaseReport, RankReport, RunReport, make_report
from planner.plan import Plan

MIB = 2**20


def rank_report(rank: int, parts: dict[str, float], *, steps: int = 2, **changed: Any) -> RankReport:
    """A rank with these seconds of parts in each of its steps, and a mebibyte of weights."""
    work, update = parts.get("compute", 0.0) + parts.get("host", 0.0), parts.get("optimizer", 0.0)
    waits = {axis: parts.get(f"{axis}_comm", 0.0) for axis in ("tp", "dp", "pp")}
    phases = {
        name: PhaseReport(wall_seconds=(one,) * steps, thread_seconds=(one,) * steps, waiting_seconds=waits)
        for name, one in (("forward_backward", work), ("update", update))
    }
    clocks = dict.fromkeys(("thread_seconds", "process_seconds"), (work + update,) * steps)
    seconds = {"wall_seconds": (sum(parts.values()),) * steps} | clocks
    memory = {"memory": {"weights": MIB}, "predicted_memory": {"weights": float(MIB)}}
    return RankReport(rank=rank, pipeline_rank=0, parts=parts, **(phases | seconds | memory | changed))


def run_report_of(plan: Plan, ranks: list[RankReport], *, torch: str = "2.13.0", **how: Any) -> RunReport:
    """The report of these ranks, after a step without a warm-up on a CPU of two cores."""
    machine = Environment(
        torch=torch, python="3", device="cpu", backend="gloo", world_size=len(ranks), cores=2
    )
    steps = len(ranks[0].wall_seconds)
    course = {"losses": (5.0,) * steps, "gradient_norms": (1.0,) * steps, "warm_up_steps": 0, "first_step": 1}
    return make_report(plan, ranks, {**course, "seed": 0, "environment": machine}, **how)
