"""Traces of all ranks of a job on GPUs, put together: its passes, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from played_jobs import FAULTS, Fault, plan_of, play

from cost_models.pipeline.pricing import pass_spans, price_ranks
from meshwright.families.transformer.run import measure
from planner.plan import save_plan


@pytest.mark.parametrize("layout", ["pp4 dp2 mbs2 zero1", "tp2 pp4 mbs1", "pp2 vpp2 tp2 dp2 mbs2 zero1"])
def test_every_pass_is_found_in_sends_and_receives(tmp_path, layout: str) -> None:
    """Their lengths, and by how much clocks are apart, within 2 % of the step of what was played."""
    plan = plan_of(layout)
    answer = measure(plan, (), play(tmp_path, plan, jitter=0.0))
    spans, step = pass_spans(price_ranks(plan.question, plan.layout)), plan.prediction.step_seconds
    for rank in answer.report.ranks:
        actions = spans.table.actions(rank.pipeline_rank)
        assert [tuple(one[:3]) for one in rank.passes] == [tuple(action) for action in actions]
        for number, (*_, start, end) in enumerate(rank.passes):
            at = rank.pipeline_rank, number
            assert start == pytest.approx(spans.start[at], abs=0.02 * step)
            assert end - start == pytest.approx(spans.end[at] - spans.start[at], abs=0.01 * step)


def test_an_even_job_names_nothing(tmp_path) -> None:
    plan = plan_of("pp4 dp2 mbs2 zero1")
    answer = measure(plan, (), play(tmp_path, plan))
    notes = " ".join(answer.report.notes)
    assert "comes last" not in notes
    assert "Stage" not in notes
    assert not [one for one in answer.causes if one.share > 0.01]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named(tmp_path, kind: str) -> None:
    plan = plan_of("pp4 dp2 mbs2 zero1")
    answer = measure(plan, (), play(tmp_path, plan, Fault(kind, 0.5)))
    said = " ".join([*answer.report.notes, *(one.words for one in answer.causes)])
    expected = {
        "slow link": "dp comm takes",
        "slow rank": "Rank 1 comes last to",
        "host-bound": "host takes",
        "data-bound": "data takes",
        "unbalanced stages": "Stage 3 computes",
    }
    assert expected[kind] in said


def test_a_timeline_is_drawn_above_the_plan(meshwright, tmp_path) -> None:
    plan = plan_of("pp4 dp2 mbs2 zero1")
    answer = measure(plan, (), play(tmp_path, plan, Fault("unbalanced stages", 0.4)))
    report, file = tmp_path / "measured.json", tmp_path / "plan.yaml"
    answer.save(report)
    save_plan(plan, file)
    for kind, files, said in (
        ("timeline", [file, report], "beside the others pipeline rank 3 computes"),
        ("ranks", [report], "Others wait longest for rank"),
    ):
        drawn = meshwright.done("plot", kind, *map(str, files), "-o", str(tmp_path / f"{kind}.png"), "--json")
        assert said in json.loads(drawn.out)["title"]
    other = tmp_path / "other.yaml"
    save_plan(plan_of("tp2 pp4 mbs1"), other)
    refused = meshwright("plot", "timeline", str(other), str(report))
    assert refused.code == 2
    assert "is of another layout than" in refused.err


def test_collectives_stand_beside_the_profile(meshwright, tmp_path) -> None:
    plan, file = plan_of("tp2 pp2 dp2 mbs1 zero1"), tmp_path / "plan.yaml"
    save_plan(plan, file)
    words = ("measure", str(file), "--trace", *map(str, play(tmp_path, plan)), "--table")
    rows = meshwright.json(*words, "collectives")["collectives"]
    assert {(row["axis"], row["what"]) for row in rows} >= {("tp", "all_reduce"), ("dp", "reduce_scatter")}
    for row in rows:
        if row["predicted"]:
            assert row["excess_seconds"] == pytest.approx(
                row["kernels"] * (row["seconds"] - row["predicted"])
            )
            assert row["rate"] == pytest.approx(row["message_bytes"] / row["seconds"])
    shown = meshwright(*words, "collectives").out
    assert "tp all-reduce" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "record_shapes=True" in meshwright(*words, "products").out
    refused = meshwright(*words, "gemms")
    assert refused.code == 2
    assert "there are products and collectives" in refused.err


@pytest.mark.parametrize("layout", ["dp8 mbs1 zero1", "tp4 dp2 mbs1 zero1", "pp2 dp4 mbs1 zero1"])
def test_waiting_for_late_ranks_is_no_communication(tmp_path, layout: str) -> None:
    """Ranks of a played job differ by up to 30 % from pass to pass: what the others wait is jitter, not the network."""
    plan = plan_of(layout)
    even, uneven = (
        measure(plan, (), play(_made(tmp_path / f"{jitter}"), plan, jitter=jitter)) for jitter in (0.0, 0.3)
    )
    step = plan.prediction.step_seconds
    for calm, late in zip(even.report.ranks, uneven.report.ranks, strict=True):
        for part in ("tp_comm", "dp_comm"):
            assert late.parts[part] == pytest.approx(calm.parts[part], abs=0.003 * step)
    waited = max(one.parts["jitter"] for one in uneven.report.ranks)
    assert waited > 0.01 * step > 10 * max(one.parts["jitter"] for one in even.report.ranks)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
