"""`plot heatmap` and `plot tornado`: every cell and bar says what the search says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pandas as pd
import pytest
from matplotlib.patches import Rectangle

import meshwright as mw
from meshwright.plots.drawing import Drawing, PictureRequest, PlotOptions
from meshwright.plots.pictures import pictures_of
from meshwright.plots.style import TIME_COLOURS
from planner.answers.frontier import heatmap_frame
from planner.search.search import Budget, search
from planner.space.restrictions import Restrictions, parse_restrictions


@cache
def planned() -> mw.Plan:
    job = mw.TrainingSpec(global_batch=64, sequence_length=2048)
    found = mw.plan("llama3-8b", "dgx-a100-80gb", job, gpus=16, pick="fastest")
    assert isinstance(found, mw.Planned)
    return found.plan


@cache
def drawn(picture: str, **options: str) -> Drawing:
    request = PictureRequest(plans=[planned()], options=PlotOptions(**options), budget=Budget())  # type: ignore[arg-type]
    return pictures_of(mw.Plan)[picture](request)


def test_cells_are_the_best_of_their_pair() -> None:
    frame = drawn("heatmap").frame
    assert set(frame["tp"]) == {1, 2, 4, 8, 16}
    assert set(frame["pp"]) == {1, 2, 4, 8, 16}
    best = frame.loc[frame["mfu"].idxmax()]
    assert best["step_seconds"] == pytest.approx(planned().prediction.step_seconds)
    assert bool(best["chosen"])
    assert frame["chosen"].sum() == 1
    cell = frame[(frame["tp"] == 2) & (frame["pp"] == 2)].iloc[0]
    alone = search(planned().question, top=1, restrictions=parse_restrictions(["tp=2", "pp=2"], ())).best
    assert (cell["layout"], cell["mfu"]) == (alone.layout.brief, alone.mfu)


def test_holes_say_why() -> None:
    frame = drawn("heatmap").frame.set_index(["tp", "pp"])
    assert set(frame.loc[16]["reason"]) == {"rule"}
    assert "`tp16` splits 8 key/value heads" in frame.loc[(16, 1), "why"]
    assert "do not divide 16 GPUs" in frame.loc[(8, 8), "why"]
    assert frame.loc[(1, 1), "reason"] in ("", "memory")
    holes = frame[frame["reason"] != ""]
    assert holes["mfu"].isna().all()
    assert (holes["why"] != "").all()
    tight = planned().question
    small = tight.cluster.gpu.model_copy(update={"memory": 24 * 2.0**30})
    asked = replace(tight, cluster=tight.cluster.model_copy(update={"gpu": small}))
    cells = heatmap_frame(asked, planned().layout, Restrictions(), Budget()).set_index(["tp", "pp"])
    lacking = cells[cells["reason"] == "memory"]
    assert len(lacking)
    assert (lacking["peak_bytes"] > 0.8 * small.memory).all()
    assert cells["chosen"].sum() == 1


def test_pairs_near_the_plan_are_searched_first(monkeypatch) -> None:
    order: list[tuple[int, int]] = []

    def cell(_question: object, tp: int, pp: int, *_: object) -> dict[str, object]:
        order.append((tp, pp))
        return {"mfu": 0.5, "reason": ""}

    monkeypatch.setattr("planner.answers.frontier._cell", cell)
    frame = heatmap_frame(planned().question, planned().layout, Restrictions(), Budget())
    own = frame[frame["chosen"]].iloc[0]
    assert order[0] == (own["tp"], own["pp"])
    assert list(zip(frame["tp"], frame["pp"], strict=True)) == sorted(order)


def test_a_drawn_map_has_a_cell_for_each_row(tmp_path) -> None:
    picture = drawn("heatmap")
    (axes,) = picture.figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4", "8", "16"]
    cells = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_fill()]
    assert len(cells) == len(picture.frame)
    hatched = [patch for patch in cells if patch.get_hatch()]
    assert len(hatched) == (picture.frame["reason"] != "").sum()
    for suffix in ("png", "svg", "pdf"):
        picture.save(tmp_path / f"map.{suffix}")
        assert (tmp_path / f"map.{suffix}").stat().st_size > 1000


def test_stacked_bars_are_the_gpu_time_of_a_step() -> None:
    picture = drawn("scaling", kind="stacked", gpus="8,16,32")
    frame = picture.frame
    assert frame["gpus"].tolist() == [8, 16, 32]
    assert set(frame["kind"]) == {"strong"}
    parts = [part for part in TIME_COLOURS if part in frame]
    assert frame[parts].sum(axis=1).tolist() == pytest.approx(frame["step_seconds"].tolist())
    (axes,) = picture.figure.axes
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    tops = pd.Series([bar.get_y() + bar.get_height() for bar in bars]).groupby(
        [round(bar.get_x()) for bar in bars]
    )
    spent = frame["step_seconds"] * frame["gpus"]
    assert tops.max().tolist() == pytest.approx(spent.tolist(), rel=0.02)
    assert "8 to 32 GPUs: a step costs" in picture.title
