"""Profiles moved by runs: planted factors come back, noise and silence hold them where they were."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asking import straight

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.measured.calibration.refinement import (
    STEP,
    MeasuredQuantity,
    ObservedRun,
    Refinement,
    before_runs,
    priced,
    quantities,
    refine,
    scale_seconds,
)
from cost_models.specs.hardware import FittedFactors, HardwareProfile, OperatorCurve
from cost_models.specs.training import TrainingSpec

TRAINING = TrainingSpec(global_batch=8, sequence_length=256, precision="fp32")
QUIET = 0.005


def measured_apart() -> HardwareProfile:
    """A CPU as `calibrate` writes it."""
    curves = (
        OperatorCurve(operator="gelu", forward=straight(2e-9), backward=straight(3e-9)),
        OperatorCurve(operator="add", forward=straight(1e-9)),
    )
    said = {
        "name": "measured-cpu",
        "tier": "measured",
        "gpu": "cpu",
        "stack": "meshwright",
        "operators": curves,
    }
    said |= {"gemm_efficiency": 0.9, "gemm_operand_bandwidth": 2e10, "measured_peak": 1e11}
    said |= {"measured_bandwidth": 2e10, "host_layer_seconds": 5e-4}
    return catalog.load_profile("datasheet-cpu").model_copy(update=said)


def observed(
    layout: str, truth: HardwareProfile, *, noise: float = QUIET, slower: float = 1.0
) -> ObservedRun:
    """A run of the layout on a machine that is as `truth` says, or slower by a factor in every step."""
    parsed = parse_layout(layout)
    cluster = resolve_cluster("local", parsed.num_gpus).model_copy(update={"host_cores": 4})
    question = complete_question(resolve_model("gpt2-tiny").spec, cluster, TRAINING, profile=measured_apart())
    run = ObservedRun(name=layout, question=question, layout=parsed, seen={})
    found = quantities(priced(run, truth))
    names = [name for name in (STEP, "thread", "tp_comm", "dp_comm") if found[name] > 0]
    seen = {name: MeasuredQuantity(seconds=slower * found[name], noise=noise) for name in names}
    return ObservedRun(name=layout, question=question, layout=parsed, seen=seen)


def planted(**factors: float) -> HardwareProfile:
    return scale_seconds(measured_apart(), FittedFactors(**factors))


def error(refinement: Refinement, truth: HardwareProfile, layout: str, quantity: str) -> float:
    """Of the refined profile, for a layout that may never have run."""
    run = observed(layout, truth)
    return quantities(priced(run, refinement.profile))[quantity] / run.seen[quantity].seconds - 1


def test_one_run_makes_the_prediction_of_another_layout_better() -> None:
    truth = planted(compute=1.25, host=2.0, tensor_parallel_host=2.0)
    refinement = refine(measured_apart(), [observed("dp2 mbs2", truth)])
    start = observed("pp2 mbs1", truth)
    before = quantities(priced(start, measured_apart()))["thread"] / start.seen["thread"].seconds - 1
    assert before < -0.15
    assert abs(error(refinement, truth, "pp2 mbs1", "thread")) < 0.05
    assert abs(error(refinement, truth, "dp2 mbs2", STEP)) < 0.02


def test_what_a_run_cannot_tell_stays_where_it_was() -> None:
    refinement = refine(measured_apart(), [observed("mbs4", planted(compute=1.2))])
    assert refinement.factors["collectives"].determined == pytest.approx(0.0, abs=1e-6)
    assert refinement.factors["collectives"].value == pytest.approx(1.0)
    assert refinement.factors["compute"].determined > 0.5
    assert refinement.factors["compute"].low < 1.2 < refinement.factors["compute"].high


def test_several_runs_tell_factors_apart() -> None:
    truth = planted(compute=1.15, host=1.8, tensor_parallel_host=2.5, collectives=1.5)
    some = [observed(layout, truth) for layout in ("mbs4", "mbs1", "tp2 mbs4", "dp2 mbs2")]
    refinement = refine(measured_apart(), some)
    assert refinement.factors["compute"].value == pytest.approx(1.15, rel=0.05)
    assert refinement.factors["tensor_parallel_host"].value == pytest.approx(2.5, rel=0.2)
    assert abs(error(refinement, truth, "tp2 pp2 mbs2", "thread")) < 0.03


def test_a_noisy_run_moves_less() -> None:
    truth = planted(compute=1.3)
    quiet, noisy = (
        refine(measured_apart(), [observed("mbs4", truth, noise=noise)]).factors["compute"]
        for noise in (QUIET, 0.4)
    )
    assert 1.0 < noisy.value < quiet.value
    assert noisy.determined < quiet.determined


def test_a_disturbed_step_is_followed_part_of_the_way() -> None:
    """Others on the machine are seldom the same in the next run."""
    run = observed("mbs4", measured_apart())
    twice = {STEP: MeasuredQuantity(seconds=2 * run.seen[STEP].seconds, noise=QUIET, disturbance=0.35)}
    run = replace(run, seen={**run.seen, **twice})
    assert 0.3 < refine(measured_apart(), [run]).profile.contention < 0.9


def test_time_that_others_took_is_contention_and_not_compute() -> None:
    """The thread's own time says that operators are as fast as they were."""
    run = observed("mbs4", measured_apart())
    crowded = {STEP: MeasuredQuantity(seconds=1.5 * run.seen[STEP].seconds, noise=QUIET)}
    run = replace(run, seen={**run.seen, **crowded})
    refinement = refine(measured_apart(), [run])
    assert refinement.profile.contention == pytest.approx(0.5, abs=0.05)
    assert refinement.factors["compute"].value == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.7])
def test_moving_back_gives_what_was_measured_apart(factor: float) -> None:
    start = measured_apart()
    by = FittedFactors(compute=factor, host=2 * factor, optimizer=factor)
    back = before_runs(scale_seconds(start, by).model_copy(update={"moved": by, "contention": 0.3}))
    run = observed("tp2 mbs2", start)
    assert quantities(priced(run, back)) == pytest.approx(quantities(priced(run, start)), rel=1e-3)
    assert (back.moved, back.contention) == (None, 0.0)


def test_a_second_calibration_starts_where_the_first_did() -> None:
    truth = planted(compute=1.2)
    once = refine(measured_apart(), [observed("mbs4", truth)])
    again = refine(once.profile, [observed("mbs4", truth)])
    assert again.profile.source == once.profile.source
    assert again.factors["compute"].value == pytest.approx(once.factors["compute"].value, rel=1e-3)


@pytest.mark.parametrize("factor", [0.1, 0.5, 0.95])
def test_no_share_of_a_peak_exceeds_it_however_fast_a_run_was(factor: float) -> None:
    fast = scale_seconds(measured_apart(), FittedFactors(compute=factor, optimizer=factor))
    shares = {name: value for name, value in fast if name.endswith("efficiency") and value is not None}
    assert max(shares.values()) <= 1.0
    rate = fast.measured_peak * fast.gemm_efficiency
    assert rate == pytest.approx(0.9e11 / factor, rel=1e-4)
    assert priced(observed("mbs4", measured_apart()), fast).mfu < 1.0


def test_a_refined_profile_says_what_moved_it_and_claims_no_less_than_the_noise() -> None:
    refinement = refine(measured_apart(), [observed("mbs4", planted(compute=1.2), noise=0.08)])
    profile = refinement.profile
    assert profile.moved.compute == pytest.approx(refinement.factors["compute"].value, rel=1e-3)
    assert profile.source.endswith("; moved by runs of gpt2-tiny under tp1 pp1 dp1 mbs4 zero0")
    assert (profile.validated_runs, profile.median_error) == (1, 0.08)


def test_more_processes_than_cores_take_turns() -> None:
    """Rates are of a process's own time, which does not pass while it waits for a core."""
    run = observed("dp4 mbs2", measured_apart())
    crowded = run.question.cluster.model_copy(update={"host_cores": 2})
    asked = complete_question(run.question.model, crowded, TRAINING, profile=measured_apart())
    halved = replace(run, question=asked, seen={})
    alone, shared = (quantities(priced(one, measured_apart())) for one in (run, halved))
    assert shared[STEP] == pytest.approx(2 * alone[STEP], rel=1e-6)
    assert shared["thread"] == pytest.approx(alone["thread"])
