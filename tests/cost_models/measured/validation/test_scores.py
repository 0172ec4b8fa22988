"""Predictions against runs: scores, choices, memory and published figures."""

from __future__ import annotations

import csv
import runpy
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from effort import THOROUGH, few
from tables import from_printed

import meshwright as mw
from cost_models.axes.offload.channels import update_seconds
from cost_models.files import catalog
from cost_models.measured.calibration.profile_fits import ANY, is_fitted, pair_of
from cost_models.measured.runs.cases import Case, read_case, read_rows, shipped_rows, timed_cases
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Figures, Prediction, predict, published_figures
from cost_models.measured.validation.scores import SourceScore, choice_scores, kendall_tau, score, sweep_of
from cost_models.measured.validation.step_times import StepTimes
from cost_models.pipeline.pricing import estimate


def prediction(
    number: int,
    measured: float | None,
    predicted: float | None,
    *,
    fits: bool | None = True,
    oom: bool = False,
    memory: tuple[float, float] | None = None,
    sweep: str = "gpt",
    source: str = "lab",
) -> Prediction:
    gigabytes, peak = memory or (None, None)
    fields = {"row_id": f"{source}-{number:04}", "source_id": source, "model": sweep, "out_of_memory": oom}
    row = Row(**fields, step_seconds=measured, peak_gb=gigabytes)
    return Prediction(row=row, step_seconds=predicted, fits=fits, peak_bytes=peak)


def only(*predictions: Prediction) -> SourceScore:
    (source,) = score(predictions)
    return source


def test_errors_by_hand() -> None:
    """+10 %, −20 %, +30 %, 0: sizes 0, .1, .2, .3; element ⌊0.9 · 4⌋ = 3 is the 90th percentile."""
    source = only(
        prediction(1, 1.0, 1.1), prediction(2, 1.0, 0.8), prediction(3, 2.0, 2.6), prediction(4, 5.0, 5.0)
    )
    assert source.step.median == pytest.approx(0.15)
    assert source.step.mean == pytest.approx(0.15)
    assert source.step.p90 == pytest.approx(0.3)
    assert source.step.bias == pytest.approx(0.05)
    assert (source.rows, source.predicted, source.skipped) == (4, 4, 0)


def test_what_was_not_predicted_is_skipped_and_what_was_not_measured_has_no_error() -> None:
    source = only(prediction(1, 1.0, None, fits=None), prediction(2, None, 1.0), prediction(3, 1.0, 1.0))
    assert (source.rows, source.predicted, source.skipped) == (3, 1, 1)


def test_memory_errors_are_in_decimal_gigabytes() -> None:
    source = only(
        prediction(1, None, 1.0, memory=(40.0, 44e9)), prediction(2, None, 1.0, memory=(50.0, 40e9))
    )
    assert source.memory.median == pytest.approx(0.15)
    assert source.memory.bias == pytest.approx(-0.05)


def test_out_of_memory_by_hand() -> None:
    """Three ran out, two caught; of two that ran one alarm; what neither ran nor ran out does not count."""
    source = only(
        prediction(1, None, 1.0, fits=False, oom=True),
        prediction(2, None, 1.0, fits=False, oom=True),
        prediction(3, None, 1.0, fits=True, oom=True),
        prediction(4, 1.0, 1.0, fits=False),
        prediction(5, 1.0, 1.0, fits=True),
        prediction(6, None, 1.0, fits=False),
    )
    assert source.verdicts.recall == pytest.approx(2 / 3)
    assert source.verdicts.precision == pytest.approx(2 / 3)
    assert (source.verdicts.false_alarms, source.verdicts.agreed) == (1, 1)


def test_regret_is_how_much_slower_our_choice_ran() -> None:
    """We would pick row 2 (predicted 1.9 s), which ran in 3 s; the fastest ran in 2 s: 50 % regret."""
    source = only(prediction(1, 2.0, 2.0), prediction(2, 3.0, 1.9), prediction(3, 4.0, 5.0))
    assert [sweep.regret for sweep in source.sweeps] == [pytest.approx(0.5)]
    assert source.sweeps[0].tau is None


def test_what_is_said_not_to_fit_is_not_chosen() -> None:
    source = only(prediction(1, 2.0, 2.0), prediction(2, 3.0, 1.9, fits=False), prediction(3, 4.0, 5.0))
    assert source.worst_regret == pytest.approx(0.0)


def test_order_and_anchors_of_five() -> None:
    """Predicted at half the measured time but for row 2: anchors 0, 2 and 4 have the ratios 0.5, 0.6, 0.5.

    So the factor is 0.5, and rows 1 and 3 come out exactly right. One of ten pairs is swapped: τ = 0.8.
    """
    measured = [1.0, 2.0, 3.0, 3.2, 5.0]
    predicted = [0.5, 1.0, 1.8, 1.6, 2.5]
    source = only(*(prediction(n, m, p) for n, (m, p) in enumerate(zip(measured, predicted, strict=True))))
    assert source.anchored.count == 2
    assert source.anchored.p90 == pytest.approx(0.0)
    assert source.mean_tau == pytest.approx(0.8)


def test_ties_have_no_order() -> None:
    assert kendall_tau([1.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == 1.0
    assert kendall_tau([1.0, 1.0], [1.0, 2.0]) is None


def test_sources_are_scored_apart_in_their_order() -> None:
    scores = score([prediction(1, 1.0, 2.0, source="b"), prediction(1, 1.0, 1.0, source="a")])
    assert [(one.source, one.step and one.step.median) for one in scores] == [("b", 1.0), ("a", 0.0)]


@pytest.fixture(scope="module")
def predictions() -> list[Prediction]:
    timed = [row for row in shipped_rows() if row.source_id == "bloom_prequel" and row.step_seconds]
    return [one for one in predict(timed[:60]) if one.step_seconds]


def measured_as(one: Prediction, seconds: float) -> Prediction:
    return replace(one, row=one.row.model_copy(update={"step_seconds": seconds}))


def test_a_model_without_error_has_no_regret_and_covers_all(predictions: list[Prediction]) -> None:
    """Nor is what a whole sweep is off by an error of a choice."""
    for factor in (1, 3):
        (found,) = choice_scores(
            [measured_as(one, factor * (one.step_seconds or 1.0)) for one in predictions]
        )
        assert (found.covered, set(found.point)) == (1.0, {0.0})
        assert factor > 1 or max(found.recommended) < 0.1


def test_ratios_far_off_are_not_covered(predictions: list[Prediction]) -> None:
    sweep = Counter(sweep_of(one.row) for one in predictions).most_common(1)[0][0]
    rows = [one for one in predictions if sweep_of(one.row) == sweep]
    far = [measured_as(one, (one.step_seconds or 1.0) * 10**place) for place, one in enumerate(rows)]
    (found,) = choice_scores(far)
    assert found.covered == 0.0


def test_runs_of_one_layout_are_one_choice(predictions: list[Prediction]) -> None:
    """A slow repetition of the layout predicted fastest is no regret of having chosen it."""
    sweep = Counter(sweep_of(one.row) for one in predictions).most_common(1)[0][0]
    rows = [measured_as(one, one.step_seconds or 1.0) for one in predictions if sweep_of(one.row) == sweep]
    fastest = min(rows, key=lambda one: one.step_seconds or 0.0)
    again = [measured_as(fastest, factor * (fastest.step_seconds or 1.0)) for factor in (1.0, 1.3)]
    (found,) = choice_scores([*again, *rows])
    assert set(found.point) == {0.0}


GIB = 2.0**30


LAST_RANK = "torch allocated_bytes.all.peak on LAST rank"
TINY = {
    "layers": 12, "hidden": 512, "heads": 8, "kv_heads": 8, "ffn_hidden": 2048, "ffn_kind": "gelu", "seq_len": 1024,
    "tied_embeddings": 1, "framework": "Megatron-Core CI", "attention_kernel": "te", "gpu": "A100-SXM-80GB",
    "sequence_parallel": 0, "vp": 1, "num_gpus": 8, "zero_stage": 0, "micro_batch": 4, "global_batch": 32,
    "recompute": "none", "precision": "bf16",
    "memory_kind": LAST_RANK, "notes": "deterministic mode; no-gradient-accumulation-fusion; dropout default 0.1/0.1",
}  # fmt: skip
UNFUSED = f"{TINY['notes']}; attention-backend=unfused"
SEVEN = TINY | {
    "layers": 32, "hidden": 4096, "heads": 32, "ffn_hidden": 16384, "vocab": 131072, "seq_len": 8192,
    "tied_embeddings": 0, "zero_stage": 1, "global_batch": 8,
}  # fmt: skip
FIFTEEN = TINY | {
    "layers": 32, "hidden": 6144, "heads": 48, "head_dim": 128, "ffn_hidden": 24576, "ffn_kind": "squared-relu",
    "vocab": 256000, "seq_len": 4096, "tied_embeddings": 0, "zero_stage": 1, "sequence_parallel": 1,
    "global_batch": 384, "num_gpus": "", "notes": "overlap-grad-reduce; overlap-param-gather",
}  # fmt: skip
MIXTRAL = FIFTEEN | {
    "layers": 56, "ffn_hidden": 16384, "ffn_kind": "swiglu", "vocab": 32000, "moe_experts": 8, "moe_top_k": 2,
    "moe_ffn_hidden": 16384, "micro_batch": 1, "global_batch": 256,
}  # fmt: skip
BLOOM = {
    "layers": 72, "hidden": 14336, "heads": 64, "ffn_hidden": 57344, "ffn_kind": "gelu", "vocab": 250680,
    "seq_len": 2048, "tied_embeddings": 1, "framework": "Megatron-DeepSpeed (BigScience)", "zero_stage": 1,
    "attention_kernel": "megatron-fused", "gpu": "A100-SXM-80GB", "num_gpus": 384, "global_batch": 2048,
    "recompute": "full", "precision": "fp16", "memory_kind": "GPU memory, nvidia-smi-like max over nodes (GB)",
}  # fmt: skip

PEAKS: dict[str, tuple[dict[str, object], dict[str, object], float, float]] = {
    # name: (what the runs have in common, what is its own, GB, error it may have)
    "15B, tensor parallel, A100": (FIFTEEN, {"tp": 8}, 28.3919, 0.02),
    "15B, fused loss, GB200":
        (FIFTEEN, {"tp": 4, "pp": 2, "vp": 2, "gpu": "GB200", "notes": "cross-entropy-loss-fusion"}, 42.63935, 0.01),
    "7B, interleaved":
        (SEVEN, {"tp": 1, "pp": 4, "vp": 8, "dp": 2, "kv_heads": 8, "micro_batch": 1}, 60.48906, 0.01),
    "7B, tensor parallel": (SEVEN, {"tp": 4, "dp": 2, "kv_heads": 8, "micro_batch": 2}, 58.18812, 0.015),
    "Mixtral 8x22B": (MIXTRAL, {"tp": 2, "pp": 8, "ep": 8}, 28.16847, 0.03),
    "tiny, ZeRO-1, H100": (TINY, {"vocab": 50304, "dp": 8, "zero_stage": 1, "gpu": "H100-SXM-80GB"}, 2.69179, 0.02),
    "tiny, stored scores": (TINY, {"vocab": 50304, "dp": 8, "zero_stage": 1, "notes": UNFUSED}, 4.67318, 0.02),
    "tiny, full recompute": (TINY, {"vocab": 50304, "dp": 8, "recompute": "full"}, 2.53617, 0.04),
    "tiny, interleaved": (TINY, {"vocab": 50304, "pp": 4, "vp": 3, "dp": 2, "notes": UNFUSED}, 4.12061, 0.02),
    "tiny, tensor and pipeline":
        (TINY, {"vocab": 50432, "tp": 2, "pp": 2, "dp": 2, "notes": UNFUSED}, 1.90016, 0.02),
    "tiny, Megatron's kernels, fp16":
        (TINY, {"vocab": 50304, "pp": 4, "dp": 2, "attention_kernel": "megatron-fused", "precision": "fp16"},
         2.67519, 0.02),
    "BLOOM, microbatch 1": (BLOOM, {"tp": 8, "pp": 12, "dp": 4, "micro_batch": 1}, 29, 0.05),
    "BLOOM, microbatch 8": (BLOOM, {"tp": 8, "pp": 12, "dp": 4, "micro_batch": 8}, 69, 0.05),
    "BLOOM, two stages": (BLOOM, {"tp": 8, "pp": 2, "dp": 24, "micro_batch": 1, "global_batch": 2016}, 65, 0.05),
    "BLOOM, bf16":
        (BLOOM, {"layers": 70, "tp": 8, "pp": 12, "dp": 4, "micro_batch": 2, "precision": "bf16"}, 40, 0.05),
}  # fmt: skip


def predicted(*cells: dict[str, object]) -> Prediction:
    merged = {key: str(value) for part in cells for key, value in part.items()}
    (one,) = predict([from_printed({"row_id": "run", "source_id": "test"} | merged)])
    assert not one.skipped
    return one


@pytest.mark.parametrize("name", PEAKS)
def test_a_published_peak_is_met(name: str) -> None:
    common, own, gigabytes, error = PEAKS[name]
    assert predicted(common, own).peak_bytes == pytest.approx(gigabytes * 1e9, rel=error)


def test_a_peak_is_counted_as_the_row_counts() -> None:
    words = {"allocated": "allocated", "reserved": "torch max_memory_reserved", "driver": "nvidia-smi"}
    layout = {"tp": 8, "pp": 12, "dp": 4, "micro_batch": 1}
    allocated, reserved, driver = (
        predicted(BLOOM, layout, {"memory_kind": kind}).peak_bytes or 0.0 for kind in words.values()
    )
    assert allocated < reserved < driver
    last = predicted(BLOOM, layout, {"memory_kind": LAST_RANK}).peak_bytes or 0.0
    assert last < allocated  # the first rank is the fullest: it keeps most microbatches


def test_without_a_number_of_gpus_memory_is_predicted_and_time_is_not() -> None:
    one = predicted(FIFTEEN, {"tp": 8})
    assert one.step_seconds is None
    assert not one.parts
    assert any("GPUs: the row names none" in words for words in one.assumptions)


FILE = Path(__file__).parents[4] / "benchmarks" / "memory_peers" / "results.csv"
with FILE.open(encoding="utf-8") as _file:
    ROWS = list(csv.DictReader(_file))
FEW = ("gpt3-175b", "llama3-70b", "mixtral-8x7b", "deepseek-v2-lite")


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if THOROUGH or row["model"] in FEW],
    ids=lambda row: f"{row['model']}-{row['layout']}",
)
def test_states_of_the_first_rank(row: dict[str, str]) -> None:
    training = mw.TrainingSpec(global_batch=int(row["global_batch"]), sequence_length=int(row["sequence"]))
    answer = mw.estimate(
        row["model"], "dgx-h100", training, row["layout"], gpus=int(row["gpus"]), stack="megatron-core"
    )
    memory = answer.estimate.rank_memory[0]
    states = sum(memory[part] for part in ("weights", "gradients", "optimizer")) / GIB
    # Megatron's report leaves out ranks of contexts and takes the mean of dense blocks and mixtures, mbridge ties no
    # heads and has no learned positions
    by_mbridge = "cp" in row["layout"] or row["model"].startswith("deepseek")
    theirs = float(row["mbridge_states" if by_mbridge else "megatron_states"])
    assert states == pytest.approx(theirs, rel=0.06)
    if row["model"] != "deepseek-v3":  # whose first blocks are dense, here the mean of all
        assert states == pytest.approx(float(row["mbridge_states"]), rel=0.08)


def group(name: str) -> Figures:
    (found,) = (one for one in published_figures() if one.name == name)
    return found


def test_one_profile_has_all_rungs_of_a_ladder() -> None:
    """Each rung is on top of the one before; overlap and operators add, and batch 768 has a third of the bubble."""
    ladder = group("megascale-ladder")
    assert {point.profile for point in ladder.points} == {"a100-megascale"}
    assert len({point.layout for point in ladder.points}) == 1
    rungs = [point.predicted for point in ladder.points]
    assert rungs[2] < rungs[1]  # a window counts fewer FLOPs, and saves little of 2,048 tokens
    assert all(two >= one for one, two in pairwise(rungs[2:]))


def test_as_many_figures_are_met_as_were() -> None:
    for name, least in [("megascale-ladder", 8), ("megascale-weak-scaling", 4), ("days", 3)]:
        found = group(name)
        assert sum(abs(point.off) <= found.within for point in found.points) >= least
        assert all(abs(point.off) < 10 for point in found.points)


FITTED = [
    name
    for name in catalog.names("profiles")
    if catalog.load_profile(name).tier == "profile" and catalog.load_profile(name).borrowed_from is None
]


def runs_of(profile: str) -> list[Case]:
    """What the profile was fitted to: the shipped runs of its die and stack that move constants."""
    fitted = catalog.load_profile(profile)
    trusted = [case for case in timed_cases() if is_fitted(case)]
    pairs = {(fitted.gpu, fitted.stack)} if fitted.stack != ANY else {pair_of(case) for case in trusted}
    return [case for case in trusted if pair_of(case) in pairs and pair_of(case)[0] == fitted.gpu]


@pytest.mark.parametrize("profile", FITTED)
def test_a_profile_claims_the_median_error_it_has(profile: str) -> None:
    claimed = catalog.load_profile(profile)
    runs = runs_of(profile)
    measured = np.array([case.row.step_seconds for case in runs], dtype=np.float64)
    errors = StepTimes(runs).seconds(claimed) / measured - 1
    assert len(errors) == claimed.validated_runs
    assert float(np.median(np.abs(errors))) == pytest.approx(claimed.median_error, abs=0.0005)


def test_every_published_run_is_predicted_by_a_fitted_profile() -> None:
    assert {case.question.hardware.tier for case in timed_cases()} == {"profile"}


def test_prices_of_many_runs_at_once_are_those_of_each() -> None:
    some = timed_cases()[::40]
    together = {case.row.row_id: StepTimes([case]).seconds(case.question.hardware)[0] for case in some}
    for case in some:
        assert together[case.row.row_id] == pytest.approx(
            estimate(case.question, case.layout).step_seconds, rel=1e-12
        )


FOLDER = Path(__file__).parents[4] / "benchmarks" / "offload"


def rows() -> dict[str, Row]:
    return {row.row_id: row for row in read_rows(FOLDER / "runs.csv")}


@pytest.mark.parametrize(
    ("row_id", "nanoseconds"),
    [("stronghold_ae-0023", 2.92), ("stronghold_ae-0024", 2.92), ("stronghold_ae-0021", 2.44)],
)
def test_a_log_says_how_fast_its_host_is(row_id: str, nanoseconds: float) -> None:
    """5.01 s of 1.72 B parameters, 7.38 s of 2.53 B, 4.19 s of 1.72 B."""
    case = read_case(rows()[row_id])
    assert update_seconds(case.question) == pytest.approx(nanoseconds * 1e-9, rel=0.01)
    assert any("ns, as its log says" in one for one in case.row.assumptions)


def test_a_log_that_says_nothing_of_its_host() -> None:
    for cell, offload in [("", "cpu"), ("0", "cpu"), ("-1", "cpu"), ("soon", "cpu"), ("5", "none")]:
        cells = {"framework": "DeepSpeed", "gpu": "V100", "num_gpus": "1", "layers": "32", "hidden": "2048"}
        cells |= {"seq_len": "1024", "micro_batch": "4", "global_batch": "4"}
        row = from_printed(cells | {"offload": offload, "cpu_update_s": cell})
        assert read_case(row).question.hardware.host_update_seconds is None


@few(0)
def test_slowdowns_as_published(capsys: pytest.CaptureFixture[str]) -> None:
    script = runpy.run_path(str(FOLDER / "slowdown.py"))
    script["main"]([])
    summary = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("u of the host"))
    median, worst = (float(part.split()[1].rstrip("%")) for part in summary.split(": ")[1].split(", "))
    assert median <= 15
    assert worst <= 35
    assert "of 24" in summary
