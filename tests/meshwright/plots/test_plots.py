"""Every plot: something is drawn, the title states a finding, the axes name their units, all formats are written."""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from plot_data import GIB, accuracy_points, frontier_points, scaling_points, timeline_points

from cost_models.estimate import Estimate
from cost_models.pipeline.seconds import MEMORY_PARTS, TIME_PARTS
from meshwright.plots import style
from meshwright.plots.frontiers import frontier
from meshwright.plots.layouts import memory_by_rank, pool_spans, time_breakdown
from meshwright.plots.measured import accuracy
from meshwright.plots.scaling import scaling
from meshwright.plots.style import fit_lines
from meshwright.plots.timelines import timeline
from meshwright.records.frames import memory_frame, time_frame


def draw_all(estimates: list[Estimate], subject: str = "subject") -> dict[str, Figure]:
    return {
        "frontier": frontier(frontier_points(), 74 * GIB, subject),
        "scaling": scaling(scaling_points(), subject),
        "time": time_breakdown(time_frame(estimates), subject),
        "memory": memory_by_rank(memory_frame(estimates[0]), [74 * GIB] * 8, subject),
        "timeline": timeline(timeline_points("interleaved", 4, 2, 16), 4, subject),
        "accuracy": accuracy(accuracy_points(), subject),
    }


@pytest.fixture
def figures(make_estimate) -> dict[str, Figure]:
    return draw_all([make_estimate(), make_estimate(scale=1.2)])


TITLES = {
    "frontier": "50.0 % MFU needs 70.0 GiB; 30.0 GiB are enough for 40.0 %",
    "scaling": "8 to 32 GPUs, same batch: 3.5 x the speed, 87.1 % of ideal",
    "time": "tp8 pp8 vpp2 dp16 mbs1 zero1 sp recompute=selective takes 25.20 s, 15.6 % less than the next, "
    "and loses most to tp comm: 12.3 %",
    "memory": "Rank 0 is the fullest and leaves 28.9 GiB free; its largest part is activations, 21.2 GiB",
    "timeline": "Pipeline ranks are idle 8.6 % of the time between first forward and last backward",
    "accuracy": "Step time: median error 5.0 %; 2 of 2 runs within 10 %",
}


def test_titles_state_the_finding(figures) -> None:
    assert {name: " ".join(figure.get_suptitle().split()) for name, figure in figures.items()} == TITLES
    for figure in figures.values():
        assert all(axes.get_xlabel() and axes.has_data() for axes in figure.axes)


@pytest.mark.parametrize("suffix", style.FORMATS)
def test_every_format_is_written(figures, tmp_path, suffix: str) -> None:
    for name, figure in figures.items():
        path = tmp_path / f"{name}.{suffix}"
        style.save(figure, path)
        assert path.stat().st_size > 1000


def test_what_users_name_is_no_formula(make_estimate, tmp_path) -> None:
    """Dollars and backslashes of names stay what they are; what a font lacks is no warning."""
    for name, figure in draw_all([make_estimate()], r"$\bad{x}$ of \N{GRINNING FACE}").items():
        style.save(figure, tmp_path / f"{name}.svg")
        assert r"$\bad{x}$" in (tmp_path / f"{name}.svg").read_text("utf-8")
    labels = accuracy_points().assign(label=[r"$\bad{x}$", r"$\bad{x}$", "$", "$"])
    for suffix in style.FORMATS:
        style.save(accuracy(labels, "subject"), tmp_path / f"labels.{suffix}")


def test_no_line_of_a_title_ends_inside_a_number_or_beyond_the_edge() -> None:
    words = (
        "tp4 pp8 vpp12 cp2 dp16 mbs3 zero1 sp takes 18.05 s and loses most to tp comm: 4.4 %, 12 of 34 GiB"
    )
    for width in range(60, 600, 7):
        lines = fit_lines(words, width, size=12, weight="bold")
        assert " ".join(lines).split() == words.split()
        assert not any(line.startswith(("%", "s ", "GiB")) for line in lines)


def test_every_part_has_a_colour_of_its_own() -> None:
    assert set(style.TIME_COLOURS) == {*TIME_PARTS, "bubble"}
    assert set(style.MEMORY_COLOURS) >= set(MEMORY_PARTS)
    for colours in (style.TIME_COLOURS, style.MEMORY_COLOURS):
        assert len(set(colours.values())) == len(colours)


@pytest.mark.parametrize(("pp", "microbatches", "details"), [(1, 4, 0), (8, 96, 2), (8, 12, 1), (32, 64, 2)])
def test_long_timelines_are_shown_whole_and_in_part(pp: int, microbatches: int, details: int) -> None:
    figure = timeline(timeline_points("1f1b", pp, 1, microbatches), pp, "subject")
    names = ["the whole step", "start", "steady state"][: 1 + details]
    titles = [axes.get_title(loc=side) for axes in figure.axes for side in ("left", "right")]
    assert [title.partition(":")[0] for title in titles if title] == names
    outlined = [text.get_text() for text in figure.axes[0].texts if not text.get_text().isdigit()]
    assert outlined == names[1:]


def test_moves_lie_in_lanes_below_their_rank() -> None:
    """Of an offloaded step of a pipeline: ranks as ever, and each lane of each rank by its name."""
    passes = timeline_points("1f1b", 2, 1, 4).assign(lane="", block=-1)
    end = float(passes["end_seconds"].max())
    names = ["host link down", "host link up", "CPU update"]
    moves = [
        (rank, what, -1, -1, 0.0, 2 * end, lane, 7)
        for rank in (0, 1)
        for lane, what in zip(names, ("gradients", "weights", "update"), strict=True)
    ]
    whole = pd.concat([passes, pd.DataFrame(moves, columns=passes.columns)], ignore_index=True)
    figure = timeline(whole, 2, "subject")
    chart = figure.axes[0]
    assert [label.get_text() for label in chart.get_yticklabels(minor=True)] == 2 * names
    assert [label.get_text() for label in chart.get_yticklabels()] == ["0", "1"]
    places = [*chart.get_yticks(), *chart.get_yticks(minor=True)]
    assert len(set(places)) == 8
    assert chart.get_xlim()[1] == pytest.approx(2 * end)
    assert "busy for" in figure.get_suptitle()


def test_ranks_of_pools_are_marked(make_estimate) -> None:
    pools = pool_spans(["fast", "fast", "slow", "slow"])
    assert pools == [("fast", 0, 1), ("slow", 2, 3)]
    assert pool_spans(["fast"] * 4) == pool_spans([]) == []
    chart = timeline(timeline_points("1f1b", 4, 1, 4), 4, "subject", pools=pools).axes[0]
    marks = [text for text in chart.texts if not text.get_text().isdigit()]
    assert [(text.get_text(), text.get_position()[1]) for text in marks] == [("fast", 0.5), ("slow", 2.5)]
    frame = memory_frame(make_estimate("tp8 pp4 dp32 mbs1"))
    limits = [70 * GIB, 70 * GIB, 40 * GIB, 40 * GIB]
    (chart,) = memory_by_rank(frame, limits, "subject", pools=pools).axes
    assert {"fast", "slow", "limit 70.0 GiB and 40.0 GiB"} <= {text.get_text() for text in chart.texts}
    assert list(chart.lines[0].get_ydata()) == [70, 70, 70, 70, 40, 40, 40, 40]  # type: ignore[arg-type]


def test_hidden_communication_is_hatched_under_its_bar(make_estimate) -> None:
    figure = time_breakdown(time_frame([make_estimate()]).assign(optimizer=1e-4), "subject")
    hatched = [bar for bar in figure.axes[0].patches if isinstance(bar, Rectangle) and bar.get_hatch()]
    assert [round(bar.get_width(), 6) for bar in hatched] == [2.0, 1.1]
    assert [to_hex(bar.get_edgecolor()).upper() for bar in hatched] == [
        style.TIME_COLOURS["tp_comm"],
        style.TIME_COLOURS["dp_comm"],
    ]
    (legend,) = figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert "overlapped with compute" in named
    assert "optimizer" not in named  # too short to be seen


def test_a_limit_far_above_leaves_the_chart_to_the_bars(make_estimate) -> None:
    frame = memory_frame(make_estimate("tp1 pp1 dp1 mbs1")) / 2**20
    (axes,) = memory_by_rank(frame, [10 * GIB], "subject").axes
    assert axes.get_ylim()[1] < 100
    assert axes.get_ylabel() == "peak memory of one device (KiB)"
    said = {text.get_text() for text in axes.texts}
    assert "limit 10.0 GiB, far above ↑" in said
