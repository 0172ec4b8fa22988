"""Sentences and tables from estimates made by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from cost_models.axes.layout import parse_layout
from cost_models.estimate import Breakdown, Estimate
from cost_models.expected import ExpectedStep, NearRuns
from cost_models.pipeline.pricing import trust_of
from cost_models.question import Question
from cost_models.units import counted, format_days, grouped
from meshwright.records.estimates import estimate_record
from meshwright.records.runs import ComparedQuantity
from meshwright.render.estimates import (
    chance_text,
    estimate_text,
    memory_sentence,
    mfu_words,
    nearest_sentence,
)
from meshwright.render.explanation import binding_sentence
from meshwright.render.goals import sizes_text
from meshwright.render.measured import comparison_table as run_table
from meshwright.render.measured import on_other_devices, step_line
from meshwright.render.ranked import certificate_sentence, plan_columns, question_header
from meshwright.render.tables import Table
from meshwright.render.words import (
    change,
    lines_of,
    money,
    parts_sentence,
    percent,
    sentence_list,
    time_unit,
    wrapped,
)
from meshwright.terminal.output import as_csv, as_json
from planner.explain.reasons import BindingConstraint
from planner.objectives import Certificate, ClosingProgram
from planner.plan import make_plan

GIB = 2.0**30
LONG = "tp8 pp16 vpp3 dp8 mbs2 zero1 sp recompute=selective,none*46,full layers=2*48"


def drawn(table: Table, width: int = 80) -> str:
    return "\n".join(table.lines(width))


def test_causal_mfu_stands_in_the_table_where_it_is_another(make_estimate: Callable[..., Estimate]) -> None:
    near, far = (replace(make_estimate(), causal_mfu=share) for share in (0.53, 0.35))
    assert mfu_words(near) == "MFU 55.0 %"
    assert mfu_words(far) == "MFU 55.0 % (35.0 % causal)"
    assert "causal" not in plan_columns([near])
    columns = plan_columns([far, near])
    assert [*columns][3:5] == ["MFU", "causal"]
    assert (columns["MFU"], columns["causal"]) == (["55.0 %", "55.0 %"], ["35.0 %", "53.0 %"])


def test_a_peak_near_the_limit_is_tight(make_estimate: Callable[..., Estimate]) -> None:
    said = {20: ("fits", 99), 45: ("tight", 93), 55: ("does not fit", 18), 70: ("does not fit", 9)}
    for activations, (verdict, chance) in said.items():
        estimate = make_estimate(activations=activations * GIB)
        words = " ".join(memory_sentence(estimate).split())
        assert estimate.verdict == verdict
        assert f"; fits with probability {chance} %" in words
        assert ("tight: measured peaks have been off by up to 10 %" in words) == (verdict == "tight")


@pytest.mark.parametrize(("scale", "said"), [(0.44, "MFU 125.0 %"), (0.56, "HFU 101.8 %"), (0.6, "")])
def test_more_than_the_hardware_can_do_is_said_aloud(
    make_estimate: Callable[..., Estimate], question: Question, scale: float, said: str
) -> None:
    estimate = make_estimate(scale=scale)
    warned = " ".join(estimate_text(estimate).split()).partition("warning: ")[2]
    assert warned == "; ".join(estimate_record(estimate, question)["warnings"])
    assert warned.startswith(said)
    assert bool(warned) == bool(said)


def test_what_memory_keeps_out_says_how_likely_it_fits_within_the_limit(
    make_estimate: Callable[..., Estimate],
) -> None:
    own, full = make_estimate(), make_estimate(scale=0.9, activations=48 * GIB)
    large = make_estimate(scale=0.9, activations=60 * GIB)
    of_full, of_large = (
        binding_sentence(own, BindingConstraint(resource="memory", faster=one, change="mbs2"))
        for one in (full, large)
    )
    assert f", which fits with probability {chance_text(full.fits_probability)}; a recommended" in of_full
    assert "probability" not in of_large
    assert "needs 83.9 GiB on pipeline rank 0." in of_large


def test_trust_says_what_unseen_sources_showed(question: Question) -> None:
    names = {
        "gpu": question.cluster.gpu.name,
        "stack": question.stack.name,
        "name": "a100",
        "tier": "profile",
    }
    figures = {"median_error": 0.031, "validated_runs": 132, "unseen_error": 0.08}
    own = question.hardware.model_copy(update=names | figures)
    said = "a100 (profile, median error 3 % over 132 runs"
    at_home = trust_of(replace(question, hardware=own))
    assert (at_home.unseen_error, str(at_home)) == (None, f"{said})")
    abroad = trust_of(replace(question, hardware=own.model_copy(update={"stack": "any"})))
    assert str(abroad) == f"{said}; 8 % on held-out sources)"
    borrowed = trust_of(replace(question, hardware=own.model_copy(update={"gpu": "h100-sxm"})))
    assert re.fullmatch(
        r"a100 \(borrowed from h100-sxm; median error \d+ % where [\d,]+ runs were predicted so\)",
        str(borrowed),
    )
    for trust in (abroad, borrowed):
        assert max(map(len, question_header(question, trust).splitlines())) <= 80
    untried = own.model_copy(update={"stack": "any", "unseen_error": None})
    assert str(trust_of(replace(question, hardware=untried))) == f"{said})"


def test_optimal_is_said_only_when_proved(certificate: Certificate) -> None:
    assert certificate_sentence(certificate, 25.2).startswith(
        "Proved optimal under the cost model in 1.40 s; 3,911 layouts"
    )
    open_gap = certificate.model_copy(update={"gap": 0.018})
    sentence = certificate_sentence(open_gap, 25.2)
    assert not {"Proved", "optimal"} & set(sentence.split())
    assert "within 1.8 % of the optimum" in " ".join(sentence.split())


def test_the_proof_says_what_was_minimised(certificate: Certificate) -> None:
    minimised = {"neutral": "expected over 16 scenarios", "averse": "over the slowest 16 scenarios"}
    for risk, words in minimised.items():
        weighed = certificate.model_copy(update={"minimised": risk, "scenarios": 16})
        said = " ".join(certificate_sentence(weighed, 25.2).split())
        assert said.startswith(f"Proved optimal under the cost model, {words} (25.20 s) in ")


def test_the_integer_program_agrees_only_where_it_had_a_choice(certificate: Certificate) -> None:
    def sentence(left: int) -> str:
        settled = ClosingProgram(solver="highs", layouts=left, columns=0, objective=25.2)
        found = certificate_sentence(certificate.model_copy(update={"settled": settled}), 25.2)
        return " ".join(found.split())

    assert sentence(2).endswith("; an integer program over the last 2 layouts confirms it")
    assert "integer program" not in sentence(1)


def test_numbers_as_written() -> None:
    amounts = (0.004, 2.5, 1270.4, 508_000, 1.168e6, 2.1e9)
    assert " ".join(map(money, amounts)) == "$0.004 $2.50 $1,270 $508.0 k $1.168 M $2.1 B"
    assert all(" " not in grouped(10**digits) for digits in range(9))
    assert grouped(623029) == "623,029"


@pytest.mark.parametrize("width", range(8, 40))
def test_a_number_keeps_its_unit_beside_it(width: int) -> None:
    lines = lines_of("saves 7.0 s, of 48.9 % and 1.2 GiB; $1.168 M at 450 GB/s. 12 steps", width)
    units = ("s,", "%", "GiB;", "M", "GB/s.")
    assert not [line for line in lines if line.split()[0] in units]


def test_a_run_on_other_devices_says_that_its_errors_mean_nothing(
    question: Question, make_estimate: Callable[..., Estimate]
) -> None:
    plan = make_plan(question, make_estimate(), None)
    assert "for a100-80gb-sxm but ran on cpu: its times" in on_other_devices(plan, "cpu")
    assert on_other_devices(plan, "NVIDIA A100-SXM4-80GB") == ""


WORDS = {
    "48.9 %": percent(0.4894),
    "-3.6 %": change(100.0, 96.4),
    "same": change(100.0, 100.01),
    "1 layout": counted(1, "layout"),
    "3,911 layouts": counted(3911, "layout"),
    "2 microbatches": counted(2, "microbatch"),
    "1 process": counted(1, "process"),
    "1 day": format_days(86400.0),
    "30 days": format_days(30 * 86400.0),
    "20.7 days": format_days(20.66 * 86400.0),
    "1 GPU": sizes_text((1,)),
    "64 and 1,024 GPUs": sizes_text((64, 1024)),
    "a, b and c": sentence_list(["a", "b", "c"]),
    "": sentence_list([]),
    "compute 900.0": parts_sentence(Breakdown(compute=0.9, host=1e-9), time_unit(0.9)),
}


def test_words() -> None:
    assert [*WORDS.values()] == [*WORDS]


def test_json_has_no_nan_and_csv_every_column() -> None:
    written = as_json({"gap": float("inf"), "values": (1, 2)})
    assert written == '{\n  "gap": null,\n  "values": [\n    1,\n    2\n  ]\n}'
    assert as_csv([{"a": 1}, {"a": 2, "b": 3}]) == "a,b\n1,\n2,3\n"


def test_a_run_is_told_step_by_step_and_compared(
    question: Question, make_estimate: Callable[..., Estimate]
) -> None:
    prediction = make_plan(question, make_estimate("tp8 pp8 dp16 layers=12*8")).prediction
    assert step_line(3, 5.25, 50.4, prediction) == (
        "step    3  loss 5.2500  50.40 s (predicted 25.20 s)  MFU 27.5 % (55.0 %)"
    )
    rows = [("step_seconds", 0.45, 0.5), ("mfu", 0.455, 0.41), ("tokens_per_second", 2200.0, 2000.0)]
    rows += [("peak_bytes", 2 * GIB, 1.9 * GIB), ("rest_bytes", 1.0, 0.0)]
    text = drawn(run_table([ComparedQuantity(*row) for row in rows]))
    cells = [line.split() for line in text.splitlines()[1:]]
    assert cells[0] == ["step", "450.0", "ms", "500.0", "ms", "-10.0", "%"]
    assert cells[1] == ["MFU", "45.5", "%", "41.0", "%", "+4.5", "pt"]
    assert cells[2][0] == "tokens/s"
    assert cells[3][-2:] == ["+5.3", "%"]
    assert cells[4][-1] == "-"


def test_lines_end_at_spaces_and_long_placements_after_commas() -> None:
    placement = "recompute=" + ",".join(f"full*{n},none*{n}" for n in range(10, 30))
    for width in (20, 36, 80):
        lines = lines_of(f"tp8 pp20 {placement} layers=5*20", width)
        assert max(map(len, lines)) <= width
        assert "".join(lines).replace(" ", "") == f"tp8pp20{placement}layers=5*20"
        assert all(line.endswith(",") or not line[-1].isalpha() for line in lines[:-1])
    assert wrapped("a b") == "a b"
    assert wrapped("  x " + "y" * 79, indent="    ").splitlines() == ["  x", "    " + "y" * 79]


def test_runs_that_differ_in_virtual_stages_alone_are_told_as_timed(question: Question) -> None:
    where = {"source": "dgxc", "model": "Llama3.1-70B", "gpu": "h100-sxm", "stack": "nemo", "gpus": 64}
    timed = {"runs": 3, "least_seconds": 14.61, "most_seconds": 14.72, "off": 0.01, "differs": ("vpp",)}
    near = NearRuns(layout="tp4 pp4 vpp5", **where, **timed)  # type: ignore[arg-type]
    expected = ExpectedStep(on_paper=14.8, seconds=14.7, low=14.0, high=16.0, nearest=near)
    layout = parse_layout("tp1 pp1 dp1 mbs1 zero0")
    whose = "(dgxc: Llama3.1-70B, nemo on 64 h100-sxm)"
    told = " ".join(nearest_sentence(question, layout, expected).split())
    assert told == f"Timed 3 times with another vpp: 14.61 s to 14.72 s for tp4 pp4 vpp5 {whose}"
    same = replace(expected, nearest=replace(near, differs=()))
    assert nearest_sentence(question, layout, same).startswith("Timed 3 times: 14.61 s to 14.72 s (dgxc: ")
    other = replace(expected, nearest=replace(near, differs=("vpp", "cp")))
    assert nearest_sentence(question, layout, other).startswith("The nearest measured run, ")
    slower = replace(other, seconds=15.0)
    told = nearest_sentence(question, layout, slower), nearest_sentence(question, layout, other)
    assert ["was faster than" in one for one in told] == [True, False]
