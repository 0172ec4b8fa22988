"""Every plot: something is drawn, the title states a finding, the axes name their units, all formats are written."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure
from plot_data import GIB, accuracy_points, frontier_points, scaling_points, timeline_points

from cost_models.estimate import Estimate
from cost_models.pipeline.seconds import MEMORY_PARTS, TIME_PARTS
from meshwright.plots import style
from meshwright.plots.frontiers import frontier
from meshwright.plots.layouts import memory_by_rank, time_breakdown
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
