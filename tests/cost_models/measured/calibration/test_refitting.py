"""Refits of a profile, and how far a fitted time may be off."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from asking import ask, change
from tables import from_printed

from cost_models.axes.layout import axes_that_differ, parse_layout
from cost_models.estimate import half_width, words_beyond_runs
from cost_models.expected import Reach
from cost_models.files import catalog
from cost_models.measured.calibration.profile_fits import (
    Selection,
    blank_profile,
    cross_validate,
    refit,
    select_runs,
)
from cost_models.measured.calibration.step_time_fit import (
    CONSTANTS,
    MAX_FEW_RUNS,
    StepTimeFit,
    fit_step_times,
    offset_of,
    pair_error,
    prior_covariance,
    prior_widths,
    timed_runs,
)
from cost_models.measured.runs.cases import Case, read_case, shipped_rows, timed_cases
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.scores import LeftOutRun, coverage_by_source, reach_of
from cost_models.measured.validation.step_times import StepTimes
from cost_models.pipeline.pricing import estimate, step_deviation, step_interval
from cost_models.question import Question
from cost_models.specs.hardware import HardwareProfile, TimedRuns

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


def test_rows_of_the_stack_that_was_asked_for() -> None:
    for stacks, used, forced in [
        (("nemo", "megatron-core"), 2, True),
        (("", "megatron-core"), 1, False),
        (("deepspeed", "megatron-core"), 1, False),
        (("deepspeed", ""), 2, False),
    ]:
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


NAMES = ("gemm_efficiency", "memory_efficiency")


@pytest.fixture(scope="module")
def few_start() -> HardwareProfile:
    return catalog.load_profile("a100-megatron-2021")


@pytest.fixture(scope="module")
def few_cases() -> tuple[Case, ...]:
    """Layouts of published runs, as if of a source that no profile has seen."""
    return tuple(
        with_cells(case, source_id="mine")
        for case in timed_cases()
        if case.row.source_id == "megatron_sc21" and case.question.stack.name == "megatron-2021"
    )[:12]


def as_timed(few_cases: Sequence[Case], profile: HardwareProfile, noise: Sequence[float]) -> list[Case]:
    """The cases as a cluster of such constants would have timed them."""
    return timed(few_cases, StepTimes(few_cases).seconds(profile) * np.exp(noise))


def error_on(few_cases: Sequence[Case], profile: HardwareProfile) -> float:
    measured = np.array([case.row.step_seconds for case in few_cases])
    return float(np.median(np.abs(StepTimes(few_cases).seconds(profile) / measured - 1)))


def test_three_runs_that_agree_are_learned_from(
    few_start: HardwareProfile, few_cases: Sequence[Case]
) -> None:
    """Of a cluster whose products are 15 % slower, what is said of its other layouts is less wrong by a third."""
    slow = few_start.model_copy(update={"gemm_efficiency": 0.85 * few_start.gemm_efficiency})
    seen = as_timed(few_cases, slow, np.random.default_rng(0).normal(scale=0.01, size=len(few_cases)))
    fit = fit_step_times(few_start, seen[:3], of_one_cluster=True)
    assert error_on(seen[3:], fit.profile) < 0.67 * error_on(seen[3:], few_start)
    gemm = fit.constants["gemm_efficiency"]
    assert gemm.low < gemm.value < gemm.high
    assert 0 < gemm.determined < 1
    assert len(fit.residuals) == 3
    assert fit.profile.scenarios == few_start.scenarios
    assert [runs.source for runs in fit.profile.timed] == [*(runs.source for runs in few_start.timed), "mine"]


@pytest.mark.parametrize("given", [1, 3, 5])
def test_an_odd_run_spoils_nothing(few_start: HardwareProfile, few_cases: Sequence[Case], given: int) -> None:
    """One run that took half as long again, first among runs that took what was predicted."""
    seen = as_timed(few_cases, few_start, [0.4, *np.zeros(len(few_cases) - 1)])
    assert error_on(seen[given:], fit_step_times(few_start, seen[:given], of_one_cluster=True).profile) < 0.02


def test_calibrating_takes_the_careful_way_with_few_runs_of_one_source(few_cases: Sequence[Case]) -> None:
    pair = ("a100-sxm-80gb", "megatron-2021")
    few = refit(pair, few_cases[:3])
    alone = fit_step_times(few.start, few_cases[:3], of_one_cluster=True).profile
    assert few.profile.gemm_efficiency == alone.gemm_efficiency
    assert len(few_cases) > MAX_FEW_RUNS
    assert refit(pair, few_cases).profile.gemm_efficiency != few.profile.gemm_efficiency


def test_constants_are_unsure_as_the_scenarios_say(few_start: HardwareProfile) -> None:
    logs = np.log([few_start.scenarios.by_constant[name] for name in NAMES])
    assert prior_covariance(few_start, NAMES) == pytest.approx(np.cov(logs, bias=True))
    bare = few_start.model_copy(update={"scenarios": None})
    assert prior_covariance(bare, NAMES) == pytest.approx(np.diag(prior_widths(NAMES) ** 2))


def test_rows_that_disagree_are_not_believed_in_full() -> None:
    """Of a cluster without constants: the word of one row far off, of two that differ, of three alike."""
    bare, nothing = np.zeros((0, 0)), np.zeros((3, 0))

    def step(*errors: float) -> float:
        return float(offset_of(np.array(errors), nothing[: len(errors)], bare).mean[0])

    assert step() == 0
    assert abs(step(0.5)) < 0.1
    assert abs(step(0.5, -0.3)) < 0.1
    assert step(0.5, 0.5, 0.5) == pytest.approx(-0.5, abs=0.01)
    assert step(0.03, 0.03, 0.03) == pytest.approx(-0.03, abs=0.01)


def test_many_rows_are_followed_as_few_are() -> None:
    """Forty rows, a third of them odd, have more combinations than are followed, and say the same."""
    draw = np.random.default_rng(1)
    errors = (
        -0.05 + 0.01 * draw.standard_normal(40) + (np.arange(40) % 3 == 0) * draw.normal(scale=0.5, size=40)
    )
    found = offset_of(errors, np.zeros((40, 0)), np.zeros((0, 0)))
    assert found.mean[0] == pytest.approx(0.05, abs=0.01)


def runs(source: str, logs: np.ndarray) -> list[LeftOutRun]:
    """Runs that took exp(`logs`) times as long as predicted, each with a deviation of a tenth."""
    return [LeftOutRun(source=source, error=float(np.expm1(-log)), deviation=0.1) for log in logs]


def skewed(sources: int, *, seed: int = 0) -> list[LeftOutRun]:
    """Sources of fifty runs with a deviation of 5 % towards faster steps and of 30 % towards slower ones."""
    draw = np.random.default_rng(seed).standard_normal((sources, 50))
    return [run for n, own in enumerate(draw) for run in runs(f"s{n}", np.where(own > 0, 0.3, 0.05) * own)]


def test_intervals_reach_as_far_as_either_side_needs() -> None:
    reach = reach_of(skewed(20))
    assert reach.slower == pytest.approx(3.0, rel=0.1)
    assert reach.faster == pytest.approx(0.5, rel=0.1)
    held = [-reach.faster <= run.needed <= reach.slower for run in skewed(20)]
    assert np.mean(held) == pytest.approx(0.9, abs=0.005)


def test_a_long_table_weighs_as_the_root_of_its_runs() -> None:
    """Of a hundred runs without error and a source of one run each way, the two take a sixth of the weight."""
    exact = runs("long", np.zeros(100))
    assert reach_of([*exact, *runs("a", np.array([1.0])), *runs("b", np.array([-1.0]))]).slower > 5
    assert reach_of([*exact, *runs("long", np.array([1.0, -1.0]))]) == Reach(faster=0.0, slower=0.0)


def test_a_source_is_judged_by_the_reach_of_all_others() -> None:
    """A source far from the others is not held, however far its own runs would have the interval reach."""
    assert not any(coverage_by_source([*skewed(20), *runs("odd", np.full(400, 3.0))])["odd"])
    drawn = coverage_by_source(skewed(20))
    assert np.mean([np.mean(own) for own in drawn.values()]) == pytest.approx(0.9, abs=0.01)


def test_without_a_deviation_nothing_is_claimed() -> None:
    known = skewed(4)
    unknown = LeftOutRun(source="silent", error=3.0, deviation=None)
    assert reach_of([*known, unknown]) == reach_of(known)
    assert "silent" not in coverage_by_source([*known, unknown])


@pytest.fixture(scope="module")
def question() -> Question:
    return ask("llama2-7b", "dgx-a100-80gb", 8, global_batch=64, sequence_length=4096)


def timed_on(
    question: Question, *, gpu: str = "a100-sxm-80gb", stack: str = "megatron-core", **axes: str
) -> Question:
    known = timed_by("lab", stack, 64, gpu, **axes)
    return change(question, hardware={"timed": (known,), "pair_error": 0.06})


def test_what_nobody_timed_is_less_sure(question: Question) -> None:
    layout = parse_layout("tp2 dp4 mbs1 zero1")

    def deviation(asked: Question) -> float:
        found = step_deviation(asked, layout, estimate(question, layout).step_seconds)
        assert found is not None
        return found

    known = deviation(timed_on(question, tp="1 2", zero="1"))
    an_axis = 0.06 / half_width(0.5)
    for other in (
        timed_on(question, zero="1"),
        timed_on(question, tp="1 2", zero="1", gpu="a100-pcie-80gb"),
        timed_on(question, tp="1 2", zero="1", stack="nemo"),
    ):
        assert deviation(other) == pytest.approx(np.hypot(known, an_axis))


def test_an_interval_reaches_further_towards_slower_steps(question: Question) -> None:
    told = question.hardware.scenarios
    sided = told.model_copy(update={"faster": 0.5, "slower": 2.0})
    asked = replace(question, hardware=question.hardware.model_copy(update={"scenarios": sided}))
    layout = parse_layout("dp8 mbs1 zero1")
    found = step_interval(asked, layout, 1.0, 0.9)
    deviation = step_deviation(asked, layout, 1.0)
    assert deviation is not None
    assert np.log(found) == pytest.approx(half_width(0.9) * deviation * np.array([-0.5, 2.0]))
    assert LeftOutRun(source="a", error=1 / found[1] - 1, deviation=deviation).needed == pytest.approx(2.0)


@pytest.fixture(scope="module")
def sure_cases() -> tuple[Case, ...]:
    rows = [row for row in shipped_rows() if row.source_id == "bloom_prequel" and row.step_seconds]
    return tuple(read_case(row) for row in rows[:60])


def test_layouts_differ_in_what_is_chosen() -> None:
    one, other = parse_layout("tp8 pp4 dp2"), parse_layout("tp4 pp4 dp4 recompute=full:2")
    assert axes_that_differ(one, other) == ("tp", "recompute")
    assert axes_that_differ(parse_layout("pp2 recompute=full:2"), parse_layout("pp2 recompute=full")) == ()


def test_what_all_runs_share_is_no_error_of_a_pair(sure_cases: tuple[Case, ...]) -> None:
    errors = {case.row.row_id: 0.01 * (place % 7) for place, case in enumerate(sure_cases)}
    slower = {row: 1.3 * (1 + error) - 1 for row, error in errors.items()}
    assert pair_error(sure_cases, dict.fromkeys(errors, 0.3)) == pytest.approx(0, abs=1e-9)
    assert pair_error(sure_cases, errors) == pytest.approx(pair_error(sure_cases, slower))


def test_too_few_pairs_say_nothing(sure_cases: tuple[Case, ...]) -> None:
    assert pair_error(sure_cases[:2], {case.row.row_id: 0.1 for case in sure_cases}) is None


def test_the_runs_of_a_profile_name_what_they_used(sure_cases: tuple[Case, ...]) -> None:
    (runs,) = timed_runs(sure_cases, {case.row.row_id: 0.1 for case in sure_cases})
    assert (runs.source, runs.stack, runs.runs, runs.median_error) == ("bloom_prequel", "bigscience", 60, 0.1)
    assert "8" in runs.values_of("pp")
    assert runs.values_of("cp") == ()


def timed_question(*timed: TimedRuns) -> Question:
    asked = ask("gpt3-175b", "dgx-a100-80gb", 1024, global_batch=1536, sequence_length=2048)
    return change(asked, hardware={"timed": timed})


def timed_by(
    source: str, stack: str = "megatron-2021", most_gpus: int = 4096, gpu: str = "a100-sxm-80gb", **axes: str
) -> TimedRuns:
    told = {"runs": 9, "median_error": 0.05, "fewest_gpus": 8, "most_gpus": most_gpus}
    return TimedRuns(source=source, gpu=gpu, stack=stack, axes=axes, **told)


def test_a_profile_without_runs_says_nothing() -> None:
    assert words_beyond_runs(timed_question(), parse_layout("tp8 pp8 dp16")) == ()


def test_what_no_run_of_the_profile_had_is_named() -> None:
    asked = timed_question(timed_by("far", tp="1 2"), timed_by("near", tp="1 8", pp="1 16", most_gpus=64))
    assert words_beyond_runs(asked, parse_layout("tp8 pp8 cp2 dp8 recompute=full")) == (
        "cp2",
        "recompute=full",
    )
