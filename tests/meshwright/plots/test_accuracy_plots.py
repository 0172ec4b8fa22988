"""`plot accuracy`: statistics of whole errors, one run part by part, and every table and report that is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from meshwright.plots.measured import accuracy
from meshwright.records.frames import accuracy_frame

COLUMNS = "label,quantity,predicted,measured\n"
ONE = COLUMNS + "a,step_seconds,1,1.1\n"


def frame(*rows: tuple[str, str, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS.strip().split(","))


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def bars(figure: Figure, chart: int) -> list[float]:
    return [round(float(bar.get_width()), 3) for bar in figure.axes[chart].patches]  # type: ignore[attr-defined]


def report() -> dict[str, Any]:
    """A run report of two processes and two steps, as JSON."""
    phase = {"wall_seconds": [1.0, 1.0], "thread_seconds": [0.9, 0.9], "waiting_seconds": {}}
    rank = {
        "pipeline_rank": 0,
        "wall_seconds": [1.0, 1.0],
        "thread_seconds": [0.9, 0.9],
        "process_seconds": [1.0, 1.0],
        "forward_backward": phase,
        "update": phase,
        "parts": {"compute": 0.5, "host": 0.3, "other": 0.2},
        "memory": {"weights": 100, "rest": 50},
        "predicted_memory": {"weights": 100.0, "rest": 60.0},
    }
    prediction = {
        "step_seconds": 0.9,
        "mfu": 0.5,
        "hfu": 0.5,
        "tokens_per_second": 900.0,
        "peak_bytes": 160.0,
        "memory_limit": 1000.0,
        "time": {"compute": 0.8, "host": 0.1},
        "rank_memory": [{"weights": 100.0, "activations": 60.0}],
        "trust": "a profile",
    }
    return {
        "model": "gpt2-tiny",
        "layout": "tp1 pp1 dp2 mbs1 zero0 layers=4",
        "environment": {
            "torch": "2",
            "python": "3",
            "device": "cpu",
            "backend": "gloo",
            "world_size": 2,
            "cores": 2,
        },
        "seed": 0,
        "warm_up_steps": 0,
        "losses": [5.5, 5.5],
        "gradient_norms": [1.0, 1.0],
        "step_seconds": 1.0,
        "quickest_step_seconds": 1.0,
        "step_spread": 0.0,
        "thread_seconds": 0.9,
        "tokens_per_second": 810.0,
        "mfu": 0.45,
        "hfu": 0.45,
        "peak_bytes": 150,
        "ranks": [{"rank": number, **rank} for number in range(2)],
        "predicted": prediction,
    }


def test_a_median_is_of_the_errors_as_they_are() -> None:
    figure = accuracy(
        frame(
            ("a", "step_seconds", 1.062, 1.0),
            ("b", "step_seconds", 2.926, 1.0),
            ("a", "compute_seconds", 1, 1),
            ("b", "compute_seconds", 1, 1),
        ),
        "subject",
    )
    assert "+99.4 %" in texts(figure)
    assert figure.get_suptitle() == "Step time: median error 99.4 %; 1 of 2 runs within 10 %"


def test_a_prediction_of_nothing_is_an_error_too() -> None:
    figure = accuracy(
        frame(
            ("a", "step_seconds", 1, 1),
            ("b", "step_seconds", 1, 1),
            ("a", "other_seconds", 0, 0.5),
            ("b", "x", 1, 0),
        ),
        "subject",
    )
    assert "-100.0 %" in texts(figure)
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == ["step", "other"]


def test_shares_differ_in_points() -> None:
    rows = [(label, "step_seconds", 1.0, 1.0) for label in "ab"] + [
        (label, "mfu", 0.483, 0.249) for label in "ab"
    ]
    figure = accuracy(frame(*rows), "subject")
    assert "+23.4 pt" in texts(figure)
    assert "points" in figure.axes[1].get_xlabel()


def test_one_run_has_a_pair_of_bars_for_every_part(tmp_path: Path) -> None:
    path = tmp_path / "run-report.json"
    path.write_text(json.dumps(report()))
    figure = accuracy(accuracy_frame([path]), "run-report.json")
    assert bars(figure, 0) == [0.9, 1, 0.8, 0.5, 0.1, 0.3, 0, 0.2, 0.9, 0.9]
    assert bars(figure, 1) == [160, 150, 100, 100, 60, 50]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "step",
        "compute",
        "host",
        "other",
        "thread cpu",
    ]
    assert {"-10.0 %", "+60.0 %", "-66.7 %"} <= set(texts(figure))
    assert " ".join(figure.get_suptitle().split()) == (
        "Step predicted 900.0 ms, measured 1.00 s: -10.0 %; furthest off is compute, 800.0 ms against 500.0 ms"
    )
    (subject,) = figure.texts[1:]
    assert "MFU 50.0 % predicted, 45.0 % measured (+5.0 pt)" in subject.get_text().replace("\n", " ")


def test_runs_of_one_layout_keep_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text(json.dumps(report()))
    assert accuracy_frame(paths)["label"].nunique() == 2


@pytest.mark.parametrize(
    "text",
    [b"\xef\xbb\xbf" + ONE.encode(), ONE.encode("utf-16"), ONE.replace(",", ";").encode()],
    ids=["bom", "utf-16", "semicolons"],
)
def test_tables_are_read_as_spreadsheets_write_them(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text)
    (row,) = accuracy_frame([path]).to_dict(orient="records")
    assert row == {"label": "a", "quantity": "step_seconds", "predicted": 1.0, "measured": 1.1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            COLUMNS + "a,step_seconds,1,1\na,hfu,1,1\na,mfu,-1,inf\n",
            "table.csv:4  measured: `inf` is no number",
        ),
        (
            COLUMNS + "a,step_seconds,NaN,1\nb,step_seconds,1,\n",
            "table.csv:3  measured: nothing is no number",
        ),
        (COLUMNS + "a,step_seconds,0,1\n", "table.csv:2  predicted: 0 s is no time of a step"),
        (COLUMNS + "a,step_seconds,1e300,1\n", "table.csv:2  predicted: `1e300` is no number"),
        (COLUMNS + "a,step_seconds\n", "table.csv:2  predicted: nothing is no number"),
        (COLUMNS + "a,mfu,1,1\n", "no row has the quantity `step_seconds`"),
        ("label,predicted\na,1\n", "no column `quantity`, `measured`"),
        ("", "no column `label`"),
        ("\0\1", "is not a text file"),
        (COLUMNS + "a,step_seconds,x,1\n" * 40, "and 30 more"),
    ],
)
def test_tables_that_cannot_be_drawn(
    meshwright: Callable[..., Any], tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    answer = meshwright("plot", "accuracy", str(path), "-o", str(tmp_path / "x.png"))
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def damaged(change: Callable[[dict[str, Any]], object]) -> str:
    whole = report()
    change(whole)
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (damaged(lambda one: one.update(ranks=[])), "no rank has reported"),
        (
            damaged(lambda one: one["ranks"][0].update(parts={"compute": 0.0})),
            "ranks[0].parts: the parts of a step",
        ),
        (
            damaged(lambda one: one["ranks"][1].pop("memory")),
            "ranks[1].memory: required field `memory` is missing",
        ),
        (
            damaged(lambda one: one["ranks"][0].update(pipeline_rank=7)),
            "rank 0 has a stage that the prediction",
        ),
        (damaged(lambda one: one.pop("predicted")), "required field `predicted` is missing"),
        (damaged(lambda one: one.update({f"k{n}": n for n in range(99)})), "unknown field `k4`"),
        (damaged(lambda one: one.update(step_seconds=float("nan"))), "holds the number NaN"),
        ("[1]", "is no run report"),
        ("", "not valid JSON"),
        ("\xff", "not UTF-8"),
    ],
)
def test_reports_that_cannot_be_drawn(
    meshwright: Callable[..., Any], tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(text.encode("latin-1"))
    answer = meshwright("plot", "accuracy", str(path), "-o", str(tmp_path / "x.png"))
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_a_run_that_diverged_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("\ufeff" + damaged(lambda one: one.update(losses=[None, None])), encoding="utf-8")
    assert np.isfinite(accuracy_frame([path])["predicted"]).all()
