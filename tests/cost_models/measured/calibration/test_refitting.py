"""Profiles fitted to tables of runs: planted constants come back, outliers and silence change nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from printed_rows import from_printed

from cost_models.measured.calibration.profile_fits import (
    Selection,
    blank_profile,
    cross_validate,
    refit,
    select_runs,
)
from cost_models.measured.calibration.step_time_fit import CONSTANTS, StepTimeFit, fit_step_times
from cost_models.measured.runs.cases import Case, timed_cases
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.step_times import StepTimes
from cost_models.specs.hardware import HardwareProfile

MODELS = ((16, 1024, 8), (24, 2048, 16), (32, 4096, 32))
PLANTED = {
    "gemm_efficiency": 0.8,
    "memory_efficiency": 0.62,
    "link_efficiency": 0.6,
    "host_layer_seconds": 8e-4,
}
MULTI_NODE = ("network_efficiency", "jitter_per_doubling")


def row(number: int, *, step_seconds: float = 1.0, source: str = "lab", **cells: object) -> Row:
    """A run of a GPT on one node, timed; without overlap, so that what links take is seen."""
    shown = {
        "row_id": f"{source}-{number}", "source_id": source, "framework": "Megatron-Core",
        "notes": "--no-tp-comm-overlap", "gpu": "A100 80GB", "gpus_per_node": 8, "num_gpus": 8, "vocab": 51200,
        "seq_len": 2048, "zero_stage": 1, "recompute": "none", "precision": "bf16", "step_time_best_s": step_seconds,
    } | cells  # fmt: skip
    return from_printed({name: str(value) for name, value in shown.items()})


SPLITS = ((1, 1), (2, 1), (8, 1), (2, 2))


def spread_of_layouts(
    models: Sequence[tuple[int, int, int]] = MODELS,
    splits: Sequence[tuple[int, int]] = SPLITS,
    micros: Sequence[int] = (1, 4),
    **cells: object,
) -> list[Row]:
    """Small and large models, split in every way one node allows."""
    found = []
    for number, ((layers, hidden, heads), (tp, pp), micro) in enumerate(product(models, splits, micros)):
        shape = {"layers": layers, "hidden": hidden, "heads": heads, "tp": tp, "pp": pp}
        found.append(row(number, micro_batch=micro, global_batch=32, **shape, **cells))
    return found


def timed(cases: Sequence[Case], seconds: Sequence[float], *, sources: str = "one") -> list[Case]:
    """The cases with step times of our choice, of one source or of `each` its own."""
    pairs = zip(cases, seconds, strict=True)
    own = {case.row.row_id: case.row.row_id if sources == "each" else case.row.source_id for case in cases}
    return [
        with_cells(case, step_seconds=float(time), source_id=own[case.row.row_id]) for case, time in pairs
    ]


def with_cells(case: Case, **cells: object) -> Case:
    """The case with other cells in its row."""
    return dataclasses.replace(case, row=case.row.model_copy(update=cells))


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    return select_runs(spread_of_layouts()).cases


@pytest.fixture(scope="module")
def start() -> HardwareProfile:
    return blank_profile("a100-sxm-80gb", "megatron-core")


@pytest.fixture(scope="module")
def true_seconds(cases: tuple[Case, ...], start: HardwareProfile) -> np.ndarray:
    return StepTimes(cases).seconds(start.model_copy(update=PLANTED))


@pytest.fixture(scope="module")
def clean(cases, start, true_seconds) -> StepTimeFit:
    """Timed to a per cent by a lab each: runs of one source would count as less than as many."""
    noise = np.random.default_rng(0).normal(scale=0.01, size=len(cases))
    return fit_step_times(start, timed(cases, true_seconds * np.exp(noise), sources="each"))


def distance(value: float, planted: float) -> float:
    """Factor between two values, as a logarithm."""
    return float(abs(np.log(value / planted)))


def test_planted_constants_come_back(clean: StepTimeFit, start: HardwareProfile) -> None:
    for name, planted in PLANTED.items():
        interval = clean.constants[name]
        assert interval.low < planted < interval.high, name
        assert distance(interval.value, planted) < distance(getattr(start, name), planted), name
        if interval.determined > 0.3:
            assert distance(interval.value, planted) < 0.1, name
    assert {name for name, interval in clean.constants.items() if interval.determined > 0.3} >= {
        "gemm_efficiency",
        "host_layer_seconds",
    }
    assert clean.median_error < 0.02


def test_runs_that_hide_no_collective_tell_their_links(start: HardwareProfile) -> None:
    """Megatron-LM's command line leaves tensor parallelism in sight; Megatron Core's recipes run it behind compute."""
    splits = ((1, 1), (2, 1), (4, 1), (8, 1))
    rows = spread_of_layouts((*MODELS, (24, 3072, 24)), splits, (1, 4, 8), framework="Megatron-LM")
    cases = select_runs(rows).cases
    seconds = StepTimes(cases).seconds(start.model_copy(update=PLANTED))
    link = fit_step_times(start, timed(cases, seconds, sources="each")).constants["link_efficiency"]
    assert link.low < PLANTED["link_efficiency"] < link.high
    assert distance(link.value, PLANTED["link_efficiency"]) < 0.1
    assert link.determined > 0.3


def test_a_slow_host_is_found_where_the_usual_one_is_never_waited_for(start: HardwareProfile) -> None:
    """Launches count from where they outlast the device: below that no run has a slope to find a slow host by."""
    cases = select_runs(spread_of_layouts(((32, 4096, 32),), ((1, 1), (2, 1), (2, 2), (4, 1)))).cases
    times = StepTimes(cases)
    nearly = start.model_copy(update={"host_layer_seconds": start.host_layer_seconds * 1.01})
    assert times.seconds(nearly) == pytest.approx(times.seconds(start), rel=1e-9)
    slow = start.model_copy(update={"host_layer_seconds": 4e-3})
    fit = fit_step_times(start, timed(cases, times.seconds(slow), sources="each"))
    assert fit.profile.host_layer_seconds == pytest.approx(4e-3, rel=0.1)


def test_outliers_move_little(cases, start, true_seconds, clean: StepTimeFit) -> None:
    seconds = true_seconds.copy()
    seconds[::8] *= 3
    fit = fit_step_times(start, timed(cases, seconds, sources="each"))
    for name, planted in PLANTED.items():
        assert fit.constants[name].low < planted < fit.constants[name].high, name
    assert fit.profile.gemm_efficiency == pytest.approx(clean.profile.gemm_efficiency, rel=0.05)
    assert sorted(fit.residuals.values())[: len(seconds[::8])] == pytest.approx([-2 / 3] * 3, abs=0.05)


def test_what_the_rows_cannot_tell_stays_at_its_default(clean: StepTimeFit, start: HardwareProfile) -> None:
    for name in MULTI_NODE:
        assert getattr(clean.profile, name) == pytest.approx(getattr(start, name), rel=1e-3)
        assert clean.constants[name].determined == pytest.approx(0, abs=1e-6)
        assert clean.constants[name].movers == ()
    assert clean.constants["gemm_efficiency"].determined > 0.5


def test_profiles_together_are_as_one_by_one(cases, start: HardwareProfile) -> None:
    several = [*cases, *(case for case in timed_cases()[::40] if case.question.hardware.tier == "profile")]
    times, factors = StepTimes(several), np.array([1.0, 0.7, 1.3])
    constants = {name: getattr(start, name) * factors for name in CONSTANTS}
    together = times.under(start, constants, len(factors))
    for index in range(len(factors)):
        one = start.model_copy(update={name: float(values[index]) for name, values in constants.items()})
        assert together[index] == pytest.approx(times.seconds(one), rel=1e-12)


def test_a_fit_may_start_from_that_of_more_runs(cases, start, true_seconds, clean: StepTimeFit) -> None:
    some = timed(cases, true_seconds, sources="each")[::2]
    cold, warm = (fit_step_times(start, some, around=at) for at in (None, clean.around_runs(some)))
    assert warm.profile.gemm_efficiency == pytest.approx(cold.profile.gemm_efficiency, rel=1e-3)
    assert list(warm.residuals.values()) == pytest.approx(list(cold.residuals.values()), abs=1e-3)


def test_fewer_rows_say_less(cases, start, true_seconds, clean: StepTimeFit) -> None:
    few = fit_step_times(start, timed(cases, true_seconds)[10:13]).constants["gemm_efficiency"]
    many = clean.constants["gemm_efficiency"]
    assert 0 < few.determined < many.determined


def test_a_constant_of_zero_stays_zero(cases, start, true_seconds) -> None:
    without = start.model_copy(update={"action_host_seconds": 0.0})
    fit = fit_step_times(without, timed(cases, true_seconds)[::6])
    assert fit.profile.action_host_seconds == 0
    assert "action_host_seconds" not in fit.constants


def test_runs_as_predicted_move_nothing(cases) -> None:
    (pair,) = select_runs(spread_of_layouts()[:1]).pairs()
    some = cases[::4]
    as_predicted = timed(some, StepTimes(some).seconds(refit(pair, some[:1]).start))
    found = refit(pair, as_predicted)
    assert pair == ("a100-sxm-80gb", "megatron-core")
    assert (found.median_before, found.median_error) == pytest.approx((0, 0), abs=1e-3)
    for name in found.constants:
        assert getattr(found.profile, name) == pytest.approx(getattr(found.start, name), rel=2e-3)
    assert (found.profile.gpu, found.profile.stack, found.profile.validated_runs) == (*pair, len(some))
    assert found.profile.source.startswith(f"Fitted to timed runs: {len(some)} of lab; started from ")


def reasons(selection: Selection) -> dict[str, str]:
    return {left.row_id: reason for left, reason in selection.left_out}


GPT = {"layers": 24, "hidden": 2048, "heads": 16, "micro_batch": 4, "global_batch": 64}


def test_rows_are_left_out_with_their_reason() -> None:
    whole = row(1, **GPT)
    selection = select_runs(
        [
            whole,
            whole.model_copy(),
            row(2, **GPT, step_seconds=0.0),
            row(3, **GPT, gpu="Abacus"),
            row(4, **GPT, gpu="H100"),
            row(5, **GPT, framework="NeMo"),
            row(6, **{**GPT, "num_gpus": ""}),
            row(7, **GPT, step_seconds=1e6),
        ],
        stack="megatron-core",
        gpu="a100-pcie-40gb",
    )
    assert [case.row.row_id for case in selection.cases] == ["lab-1"]
    assert reasons(selection) == {
        "lab-1": "repeats another row, cell by cell",
        "lab-2": "no step time",
        "lab-3": "GPU `Abacus` is not in the catalogue",
        "lab-4": "ran on h100-sxm",
        "lab-5": "ran under nemo",
        "lab-6": "how many GPUs it had is not stated",
        "lab-7": "its time is more than 10 times off: a slip of units?",
    }
    assert not selection.forced


@pytest.mark.parametrize(
    ("stacks", "used", "forced"),
    [
        (("nemo", "megatron-core"), 2, True),
        (("", "megatron-core"), 1, False),
        (("deepspeed", "megatron-core"), 1, False),
        (("deepspeed", ""), 2, False),
    ],
)
def test_rows_of_the_stack_that_was_asked_for(stacks, used: int, forced: bool) -> None:
    rows = [row(number, **GPT).model_copy(update={"stack": name}) for number, name in enumerate(stacks)]
    selection = select_runs(rows, stack="deepspeed")
    assert (len(selection.cases), selection.forced) == (used, forced)
    assert list(selection.pairs()) == [("a100-sxm-80gb", "deepspeed")]


def test_a_source_is_predicted_by_the_others(cases, start, true_seconds) -> None:
    slow = start.model_copy(update={"gemm_efficiency": 0.7})
    some = timed(cases[::4], StepTimes(cases[::4]).seconds(slow))
    halves = [with_cells(case, source_id=f"lab-{index % 2}") for index, case in enumerate(some)]
    heard: list[str] = []
    found = cross_validate(halves, {case.row.row_id: 0.5 for case in halves}, on_source=heard.append)
    assert heard == [one.source_id for one in found] == ["lab-0", "lab-1"]
    assert sum(one.runs for one in found) == len(halves)
    for one in found:
        assert one.left_out < one.defaults
        assert one.fitted == 0.5
