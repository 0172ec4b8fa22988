"""`run`: measured beside predicted, without devices, and on the wrong machine."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from command_line import BIG
from run_reports import MIB, rank_report, run_report_of

from cost_models.files.whole import write_whole
from executor.measure.report import AllocatorPeak, RankReport, RunReport, save_report
from executor.run_config import Rate, RunConfig
from meshwright.records.runs import comparison, time_parts
from meshwright.render.measured import run_text
from planner.plan import load_plan


@pytest.fixture
def run_report(plan_file) -> RunReport:
    """Of two ranks, of which the second computes longer."""
    memory = {"weights": MIB, "gradients": MIB, "optimizer": 2 * MIB, "rest": 4 * MIB}
    idle = dict.fromkeys(("tp_comm", "cp_comm", "ep_comm", "other"), 0.0)
    ranks = [
        rank_report(
            rank,
            idle
            | {"compute": 0.5 + rank, "host": 0.1, "dp_comm": 0.15, "pp_comm": 0.05}
            | {"bubble": 1.2 - rank, "optimizer": 0.1},
            wall_seconds=(1.0, 1.1),
            memory=memory | {"rest": 4 * MIB + rank},
            predicted_memory={part: float(size) for part, size in memory.items()},
        )
        for rank in range(2)
    ]
    return run_report_of(load_plan(plan_file), ranks)


@pytest.mark.parametrize("written", [True, False])
def test_a_trace_is_spoken_of_where_this_run_wrote_it(
    meshwright, plan_file, run_report, written, tmp_path, monkeypatch
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("of an earlier run")

    def run_plan(path: Path, config: RunConfig, **how: object) -> RunReport:
        if written:
            write_whole(trace, "{}")
        return run_report

    monkeypatch.setattr("executor.launch.launch.run_plan", run_plan)
    answer = meshwright.done("run", str(plan_file), "--out", str(tmp_path), "--trace", str(trace))
    assert (f"Wrote {trace}" in answer.err) == written


def test_run_sets_measured_beside_predicted(meshwright, plan_file, run_report, tmp_path, monkeypatch) -> None:
    asked: list[RunConfig] = []

    def run_plan(path: Path, config: RunConfig, *, on_step, on_note, **how: object) -> RunReport:
        asked.append(config)
        on_note("resumed from saved/step-00000020 after step 20")
        on_step({"step": 0, "loss": 5.0, "seconds": 1.1, "measured": False})
        on_step({"step": 1, "loss": 4.5, "seconds": 1.0, "measured": True})
        return run_report

    monkeypatch.setattr("executor.launch.launch.run_plan", run_plan)
    words = ("run", str(plan_file), "--steps", "2", "--out", str(tmp_path))
    answer = meshwright.done(*words)
    assert asked[-1].checkpoint is None
    assert asked[-1].data == "text"
    other, note, *told = answer.err.splitlines()
    assert other.startswith("note: the plan is for stack megatron-core, but it runs on stack meshwright")
    assert note.startswith("resumed from")
    assert told[0].startswith("step    0  loss 5.0000  1.10 s")
    assert told[0].endswith("warm-up")
    assert not told[1].endswith("warm-up")
    assert told[2].startswith(f"Wrote {tmp_path / 'run-report.json'}")
    assert re.search(r"^peak +8\.0 MiB +8\.0 MiB +-0\.0 %", answer.out, re.MULTILINE)
    quantities = [line["quantity"] for line in meshwright.json(*words)["comparison"]]
    assert quantities[:3] == ["step_seconds", "compute_seconds", "host_seconds"]
    assert quantities[-5:] == [
        "peak_bytes",
        *(f"{part}_bytes" for part in ("weights", "gradients", "optimizer", "rest")),
    ]
    saved = ("--checkpoint", str(tmp_path / "saved"), "--every", "20", "--keep", "2", "--resume")
    meshwright.done(*words, *saved, "--data", "tokens", "--restarts", "5", "--timeout", "60")
    saving = {"checkpoint": tmp_path / "saved", "every": 20, "keep": 2, "resume": True}
    assert {name: getattr(asked[-1], name) for name in saving} == saving
    assert (asked[-1].data, asked[-1].restarts, asked[-1].timeout) == ("tokens", 5, 60.0)
    rising = ("--learning-rate", "0.01", "--rate-warm-up", "10", "--rate-decay", "90", "--clip", "1")
    meshwright.done(*words, *rising)
    assert (asked[-1].rate, asked[-1].clip) == (Rate(peak=0.01, warm_up=10, decay=90), 1.0)


def test_a_dry_run_needs_no_devices(meshwright, tmp_path) -> None:
    path = tmp_path / "large.yaml"
    meshwright.done(
        "estimate", *BIG, "--layout", "tp8 pp16 dp8 mbs1 zero1 sp recompute=full", "-o", str(path)
    )
    answer = meshwright.done("run", str(path), "--dry-run", "--json")
    document = json.loads(answer.out)
    assert math.prod(document["mesh"].values()) == 1024
    assert len(document["ranks"]) == document["mesh"]["pp"]
    assert sum(sum(rank["blocks"]) for rank in document["ranks"]) == load_plan(path).model.num_layers
    text = meshwright("run", str(path), "--dry-run").out
    assert max(map(len, text.splitlines())) <= 80


def test_the_parts_of_a_step_are_those_of_its_busiest_rank(run_report) -> None:
    """Its shares of a watched step; both sides add up to a step. A run that watched none has none."""
    parts = {line.quantity: line for line in time_parts(run_report)}
    of_step = run_report.step_seconds / sum(run_report.ranks[1].parts.values())
    assert parts["compute_seconds"].measured == pytest.approx(1.5 * of_step)  # rank 1's
    assert parts["bubble_seconds"].measured == pytest.approx(0.2 * of_step)
    assert sum(line.measured for line in parts.values()) == pytest.approx(run_report.step_seconds)
    assert sum(line.predicted for line in parts.values()) == pytest.approx(run_report.predicted.step_seconds)
    unwatched = tuple(rank.model_copy(update={"parts": {}}) for rank in run_report.ranks)
    assert time_parts(run_report.model_copy(update={"ranks": unwatched})) == ()


def test_one_step_says_neither_noise_nor_how_steps_vary(run_report) -> None:
    """Nor what a thread usually needs; a peak that nobody measured is left out."""
    ranks = tuple(
        rank.model_copy(update={"wall_seconds": (1.0,), "thread_seconds": (0.9,), "memory": {}})
        for rank in run_report.ranks
    )
    lines = comparison(run_report.model_copy(update={"ranks": ranks}))
    assert lines[0].quantity == "step_seconds"
    assert all(line.noise is None for line in lines)
    assert not {"thread_cpu_seconds", "peak_bytes"} & {line.quantity for line in lines}
    told = [next(iter(run_text(run_report.model_copy(update=how), 1))) for how in ({"ranks": ranks}, {})]
    assert ["vary" in str(one) for one in told] == [False, True]


def test_what_the_allocator_of_a_gpu_saw_stands_beside_both_totals(run_report) -> None:
    """Handed out beside the parts that can be followed, taken from the device beside those and the reserve."""
    assert not {"allocated_bytes", "reserved_bytes"} & {line.quantity for line in comparison(run_report)}
    saw = {"allocator_peak": AllocatorPeak(allocated=9 * 2**20, reserved=10 * 2**20)}
    ranks = tuple(rank.model_copy(update=saw) for rank in run_report.ranks)
    lines = {line.quantity: line for line in comparison(run_report.model_copy(update={"ranks": ranks}))}
    assert lines["allocated_bytes"].measured == 9 * 2**20
    assert lines["allocated_bytes"].predicted == 8 * 2**20
    assert lines["reserved_bytes"].measured == 10 * 2**20
    assert lines["reserved_bytes"].predicted == sum(run_report.predicted.rank_memory[0].values())


def test_plot_ranks_names_the_slow_one(meshwright, plan_file, tmp_path) -> None:
    def rank_of(rank: int, share: float) -> RankReport:
        even = rank_report(rank, {"compute": 0.5, "optimizer": 0.1}, steps=12)
        seconds = tuple(0.5 if step < 4 else 0.5 * share for step in range(12))
        phase = even.forward_backward.model_copy(update={"thread_seconds": seconds})
        return even.model_copy(update={"forward_backward": phase})

    report, picture = str(tmp_path / "run-report.json"), ("-o", str(tmp_path / "ranks.svg"))
    save_report(run_report_of(load_plan(plan_file), [rank_of(0, 1.0), rank_of(1, 1.3)]), Path(report))
    drawn = meshwright.json("plot", "ranks", report, *picture)
    assert drawn["title"].startswith("Rank 1 is slow: 25 % more time at work than its peer since step ")
    assert drawn["title"].endswith(", most of it in forward and backward")
    assert len(drawn["points"]) == 24
    assert "`ranks` draws one run report, not 2" in meshwright("plot", "ranks", report, report, *picture).err
