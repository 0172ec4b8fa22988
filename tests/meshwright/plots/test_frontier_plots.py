"""Frontiers as pictures: numbers as written, labels that keep clear, no line where points are missing."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from meshwright.plots.frontiers import frontier, pareto
from planner.objectives import MEASURES

GIB = 2.0**30


def drawn(*, complete: bool = True) -> Figure:
    """More GPUs, faster steps, more money."""
    frame = pd.DataFrame({"gpus": [512, 128, 64], "layout": "tp8 pp8 dp1 mbs1 zero1 sp", "gap": 0.0})
    frame = frame.assign(time=[8.0, 31.0, 60.0], cost=[2.4e6, 2.1e6, 2.05e6])
    measures = (MEASURES["time"], MEASURES["cost"])
    return pareto(frame, ("time", "cost"), measures, "subject", complete=complete)


def labels(axes: Axes) -> list[Annotation]:
    return [text for text in axes.texts if isinstance(text, Annotation)]


def test_steps_are_drawn_where_no_point_is_missing() -> None:
    assert len(drawn().axes[0].lines) == 1
    missing = drawn(complete=False)
    assert not missing.axes[0].lines
    assert "others lie between them" in missing.texts[1].get_text()


def cloud(limit: float = 74.0) -> pd.DataFrame:
    """A line of proven points with one that is only known, a chosen one close to the limit, and layouts below."""
    rng = np.random.default_rng(0)
    sizes = np.array([6.0, 12.0, 20.0, 31.0, 45.0, 64.0, 72.0])
    names = [f"tp8 pp{2**place} vpp2 dp8 mbs1 zero1 sp recompute=full*{place},none*99" for place in range(7)]
    line = pd.DataFrame({"layout": names, "peak_bytes": sizes * GIB, "pareto": True})
    line["tokens_per_second"] = 70e3 + 12e3 * np.sqrt(sizes)
    grey = pd.DataFrame(
        {"layout": "tp1 pp1 dp1 mbs1", "peak_bytes": rng.uniform(6, 300, 400) * GIB, "pareto": False}
    )
    grey["tokens_per_second"] = rng.uniform(5e3, 70e3, 400)
    frame = pd.concat([grey, line], ignore_index=True)
    frame["mfu"] = frame["tokens_per_second"] / 4e5
    frame["fits"] = frame["peak_bytes"] <= limit * GIB
    frame["chosen"] = frame["peak_bytes"] == 72 * GIB
    frame["proven"] = frame["pareto"] & (frame["peak_bytes"] != 45 * GIB)
    return frame


def test_labels_of_the_frontier_touch_nothing() -> None:
    figure = frontier(cloud(), 74 * GIB, "subject")
    (axes,) = figure.axes
    figure.draw_without_rendering()
    named = labels(axes)
    boxes = [Text.get_window_extent(label) for label in named]
    assert len(boxes) >= 4
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    for line in axes.lines:
        path = line.get_transform().transform_path(line.get_path())
        assert not any(path.intersects_bbox(box, filled=False) for box in boxes)
    words = {word for layout in cloud()["layout"] for word in layout.split()}
    told = {word for label in named for word in label.get_text().replace(",", "").split()}
    assert {word for word in told - words if word[:2] in ("tp", "pp", "dp") or "=" in word} == set()
    assert any(label.get_text().startswith("chosen, ") for label in named)
