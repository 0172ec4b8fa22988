"""`plot accuracy` and pictures of published runs: statistics of whole errors, a run part by part, what is no table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from cost_models.measured.runs.cases import source_notes, source_title
from meshwright.plots.measured import accuracy, errors_by_axis, predicted_against_measured
from meshwright.records.frames import accuracy_frame, passes_frame, ranks_frame

COLUMNS = "label,quantity,predicted,measured\n"
ONE = COLUMNS + "a,step_seconds,1,1.1\n"


def frame(*rows: tuple[str, str, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS.strip().split(","))


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def damaged(change: Callable[[dict[str, Any]], object]) -> str:
    """A run report of two processes, changed."""
    whole = json.loads(Path("tests/golden/inputs/run-report.json").read_text("utf-8"))
    change(whole)
    return json.dumps(whole)


def test_errors_are_whole_and_shares_differ_in_points() -> None:
    rows = [("a", "step_seconds", 1.062, 1.0), ("b", "step_seconds", 2.926, 1.0), ("b", "x", 1, 0)]
    rows += [("a", "other_seconds", 0, 0.5), ("b", "other_seconds", 0, 0.5), ("a", "mfu", 0.483, 0.249)]
    figure = accuracy(frame(*rows), "subject")
    assert {"+99.4 %", "-100.0 %", "+23.4 pt"} <= set(texts(figure))
    assert figure.get_suptitle() == "Step time: median error 99.4 %; 1 of 2 runs within 10 %"
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == ["step", "other", "MFU"]
    assert "points" in figure.axes[1].get_xlabel()


def test_runs_of_one_layout_keep_apart_and_one_that_diverged_is_drawn(tmp_path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text("\ufeff" + damaged(lambda one: one.update(losses=[None] * 5)), encoding="utf-8")
    read = accuracy_frame(paths)
    assert read["label"].nunique() == 2
    assert np.isfinite(read["predicted"]).all()


@pytest.mark.parametrize(
    "text",
    [b"\xef\xbb\xbf" + ONE.encode(), ONE.encode("utf-16"), ONE.replace(",", ";").encode()],
    ids=["bom", "utf-16", "semicolons"],
)
def test_tables_are_read_as_spreadsheets_write_them(tmp_path, text: bytes) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text)
    (row,) = accuracy_frame([path]).to_dict(orient="records")
    assert row == {"label": "a", "quantity": "step_seconds", "predicted": 1.0, "measured": 1.1}


def test_steps_and_chunks_of_a_report() -> None:
    rank = SimpleNamespace(rank=0, pipeline_rank=1, passes=[("F", 3, 0, 0.0, 1.0)])
    report: Any = SimpleNamespace(ranks=[rank], layout=SimpleNamespace(pp=2), step_numbers=[3, 4])
    report.work_seconds, report.peers_of = {"forward": np.ones((2, 1))}, lambda _: ()
    assert passes_frame(report)[["rank", "chunk"]].to_numpy().tolist() == [[1, 1]]
    assert ranks_frame(report)["step"].tolist() == [3, 4]


UNREADABLE = {
    "table.csv:4  measured: `inf` is no number": COLUMNS + "a,step_seconds,1,1\na,hfu,1,1\na,mfu,-1,inf\n",
    "table.csv:3  measured: nothing is no number": COLUMNS + "a,step_seconds,NaN,1\nb,step_seconds,1,\n",
    "table.csv:2  predicted: 0 s is no time of a step": COLUMNS + "a,step_seconds,0,1\n",
    "no column `quantity`, `measured`": "label,predicted\na,1\n",
    "is not a text file": "\0\1",
    "and 30 more": COLUMNS + "a,step_seconds,x,1\n" * 40,
    "no rank has reported": damaged(lambda one: one.update(ranks=[])),
    "ranks[0].parts: the parts of a step": damaged(
        lambda one: one["ranks"][0].update(parts={"compute": 0.0})
    ),
    "ranks[1].memory: required field `memory` is missing": damaged(lambda one: one["ranks"][1].pop("memory")),
    "rank 0 has a stage that the prediction": damaged(lambda one: one["ranks"][0].update(pipeline_rank=7)),
    "required field `predicted` is missing": damaged(lambda one: one.pop("predicted")),
    "unknown field `k4`": damaged(lambda one: one.update({f"k{n}": n for n in range(99)})),
    "holds the number NaN": damaged(lambda one: one.update(step_seconds=float("nan"))),
}
"""Words of an error → a table, or a report, that has it."""


@pytest.mark.parametrize("said", UNREADABLE)
def test_what_cannot_be_drawn(meshwright, tmp_path, said: str) -> None:
    text = UNREADABLE[said]
    path = tmp_path / ("report.json" if text[:1] in ("{", "[") else "table.csv")
    path.write_bytes(text.encode("latin-1"))
    answer = meshwright("plot", "accuracy", str(path), "-o", str(tmp_path / "x.png"))
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def runs() -> pd.DataFrame:
    """Sixty runs within two per cent; of them four with pp16 nine per cent too slow, and one far off."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"source": ["dgxc"] * 40 + [r"$\bad{x}$"] * 20, "pp": [1] * 56 + [16] * 4})
    frame = frame.assign(bound_by="tp_comm", tp=8, mbs=1, gpus=[8] * 30 + [64] * 30, measured_seconds=1.0)
    frame["predicted_seconds"] = rng.uniform(0.98, 1.02, 60)
    frame.loc[frame["pp"] == 16, "predicted_seconds"] = [1.09, 1.09, 1.09, 3.9]
    return frame


def test_sources_have_names_people_know() -> None:
    figure = predicted_against_measured(runs(), "subject")
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text().partition(":")[0] for text in legend.get_texts()] == [
        "NVIDIA DGX Cloud recipes, 40 runs",
        r"$\bad{x}$, 20 runs",
    ]
    assert all(
        source_title(name) == note.title and len(note.title) < 32 for name, note in source_notes().items()
    )


def test_a_whisker_that_leaves_the_chart_says_where_it_ends() -> None:
    frame = runs()
    frame.loc[frame["gpus"] == 8, "predicted_seconds"] = np.where(np.arange(30) < 15, 1.0, 1.9)
    figure = errors_by_axis(frame, "subject")
    assert max(axes.get_xlim()[1] for axes in figure.axes) <= 60
    assert "to +90 %" in texts(figure)
