"""What `overlap=` takes off the waiting of ranks on this machine, beside what the plan says of it.

    python benchmarks/overlap/run.py OUT [--steps 30]

Two processes train each layout twice, with nothing overlapped and with what it names: step by step in turns, so that
other programs disturb both alike. On a CPU what runs behind compute still needs a core, so steps need not get shorter:
what falls is the time in which training threads stand still for communication. Their own CPU time stays. Ranks also
stand still for one another, which on a busy machine is most of it and has nothing to do with overlap: from the common
clock of both ranks it is told apart, for the update until both are there, for a stage until its neighbour is done.

OUT/steps.csv has every step, OUT/table.md medians and, as the least disturbed, lower deciles.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.estimate import Estimate
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.files.whole import write_whole
from cost_models.pipeline.pricing import estimate
from cost_models.specs.training import TrainingSpec
from meshwright.terminal.formats import as_csv
from planner.plan import Plan, make_plan

PAIRS = (("dp2 mbs2 zero0", "dp"), ("dp2 mbs2 zero1", "dp"), ("pp2 mbs1 zero0", "pp"))
MODEL = "gpt2-tiny"
PROCESSES = 2
WARM_UP = 2
_MILLISECONDS = 1e3

Row = dict[str, str]


def main() -> None:
    """Train every pair and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch.multiprocessing as processes

    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for layout, axis in PAIRS:
        with tempfile.TemporaryDirectory() as folder:
            processes.spawn(_rank, (layout, axis, options.steps, folder), nprocs=PROCESSES)
            told = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(PROCESSES)]
        rows += [row for one in told for row in one]
        print(_line(layout, axis, rows), flush=True)
        write_whole(options.out / "steps.csv", as_csv(rows))
    write_whole(options.out / "table.md", _table(rows))


def priced(layout: str) -> tuple[Plan, Estimate]:
    """The plan of a layout on this machine."""
    parsed = parse_layout(layout)
    training = TrainingSpec(global_batch=8, sequence_length=256, precision="fp32")
    question = complete_question(
        resolve_model(MODEL).spec, resolve_cluster("local", parsed.num_gpus), training
    )
    found = estimate(question, parsed)
    return make_plan(question, found), found


def _rank(rank: int, layout: str, axis: str, steps: int, folder: str) -> None:
    """Train both engines in turns on one rank, and write what each step took."""
    import torch
    import torch.distributed as dist

    from executor.data.batches import Batches
    from executor.engine.engine import Engine
    from executor.measure.parts import gather_typical, record_steps, step_parts
    from executor.run_config import EngineOptions

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/meeting", timedelta(minutes=10), world_size=PROCESSES, rank=rank
    )
    plans = {overlap: priced(f"{layout} overlap={overlap}")[0] for overlap in ("none", axis)}
    device = torch.device("cpu")
    engines = {overlap: Engine(plan, device, EngineOptions()) for overlap, plan in plans.items()}
    rows: list[Row] = []
    for step in range(WARM_UP + steps):
        for overlap, engine in engines.items():
            plan = engine.plan
            batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0)
            steps_here = record_steps(engine, [batches.slice(step, engine.place.dp, plan.layout.dp)])
            both = gather_typical(steps_here)
            (spans,) = steps_here
            all_there = max(one.update_start for one in both)
            waited = [one for one in spans.waits if one.axis == axis]
            for_others = sum(
                max(0.0, min(one.end, all_there) - one.start)
                for one in spans.waits_in_phase(update=True)
                if one.axis == "dp"
            )
            if axis == "pp":
                for_others = step_parts(both, dict.fromkeys(range(PROCESSES), 1.0), on_cpu=True)[rank][
                    "bubble"
                ]
                for_others -= max(one.end for one in both) - spans.end
            row: dict[str, object] = {
                "layout": layout,
                "overlap": overlap,
                "rank": rank,
                "step": step - WARM_UP,
                "communication_seconds": sum(one.end - one.start for one in waited) - for_others,
                "for_others_seconds": for_others,
                "thread_seconds": spans.forward_backward_thread
                + spans.update_thread
                - sum(one.thread for one in waited),
                "step_seconds": spans.end,
            }
            rows += [{name: str(value) for name, value in row.items()}] * (step >= WARM_UP)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def _figures(rows: Sequence[Row], layout: str, overlap: str, name: str) -> tuple[float, float]:
    """Median and lower decile over the steps of the mean of the ranks, in ms."""
    some = [row for row in rows if (row["layout"], row["overlap"]) == (layout, overlap)]
    steps = {row["step"] for row in some}
    means = [
        statistics.mean(float(row[name]) for row in some if row["step"] == step) * _MILLISECONDS
        for step in steps
    ]
    return statistics.median(means), statistics.quantiles(means, n=10)[0]


def _cells(layout: str, axis: str, overlap: str, rows: Sequence[Row]) -> list[str]:
    _, found = priced(f"{layout} overlap={overlap}")
    predicted = (found.time[f"{axis}_comm"], found.hidden_comm.get(f"{axis}_comm", 0.0))
    measured = [
        _figures(rows, layout, overlap, name)
        for name in ("communication_seconds", "for_others_seconds", "thread_seconds")
    ]
    return [
        f"`{layout}`",
        f"`{overlap}`",
        *(f"{value * _MILLISECONDS:.1f} ms" for value in predicted),
        *(f"{median:.1f} ({least:.1f}) ms" for median, least in measured),
    ]


def _line(layout: str, axis: str, rows: Sequence[Row]) -> str:
    return "\n".join("  ".join(_cells(layout, axis, overlap, rows)) for overlap in ("none", axis))


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| layout | overlap | predicted in sight | hidden | stood still for it | for other ranks | thread CPU |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for layout, axis in PAIRS:
        lines += [f"| {' | '.join(_cells(layout, axis, overlap, rows))} |" for overlap in ("none", axis)]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
