"""Style of pictures: palette, fonts, titles and labels that fit, axes and ticks, saving by suffix."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from matplotlib.ticker import LogLocator, ScalarFormatter

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.files.whole import whole_file
from cost_models.units import counted, grouped
from meshwright.render.words import lines_of, sentence_list

T = TypeVar("T")
Frame = Any
"""A pandas DataFrame or Series. Their stubs cannot follow indexing by name, so the columns are named in docstrings."""

Look = dict[str, Any]
"""Matplotlib properties of drawn things, by name."""

# Okabe & Ito (2008), distinguishable under the common colour-vision deficiencies.
BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PURPLE, YELLOW, INK = "#D55E00", "#CC79A7", "#F0E442", "#222222"
BROWN, OLIVE, NAVY = "#7A4B12", "#8A8B00", "#2F3E75"  # for parts more than the palette has
GREY, PALE, FAINT = "#8A8A8A", "#C9C9C9", "#E8E8E8"
SOFT = "#5F5F5F"
"""Grey of text of less weight."""

SERIES_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BROWN)
"""Colours of a chart's lines, in order."""
TIME_COLOURS = {
    "compute": BLUE,
    "recompute": SKY,
    "tp_comm": VERMILION,
    "cp_comm": BROWN,
    "ep_comm": OLIVE,
    "pp_comm": ORANGE,
    "dp_comm": PURPLE,
    "optimizer": GREEN,
    "offload": NAVY,
    "host": GREY,
    "jitter": YELLOW,
    "bubble": FAINT,
}
MEMORY_COLOURS = {
    "weights": BLUE,
    "gradients": SKY,
    "optimizer": GREEN,
    "activations": ORANGE,
    "working": VERMILION,
    "buffers": PURPLE,
    "fragmentation": GREY,
    "reserved": FAINT,
}
DARK = frozenset({BLUE, GREEN, VERMILION, BROWN, NAVY, GREY, INK})
"""Background colours on which text is white."""
DASHES: Any = (0, (5, 3))
"""Line style of memory limits."""
DOTS: Any = (0, (2, 2))
"""Line style of references."""
MIDDLE: Look = {"ha": "center", "va": "center"}
"""Alignment of text that is centred on its place."""

FORMATS = ("png", "svg", "pdf")
_DOTS_PER_INCH = 160
_TITLE_POINTS, _TEXT_POINTS = 12.0, 9.0
POINTS_PER_INCH = 72.0
_MARGIN_POINTS = 9.0
"""Points left and right of the title."""
_STYLE: Look = {
    "font.family": "sans-serif",
    "font.size": _TEXT_POINTS,
    "text.parse_math": False,  # names and paths of users are no formulas, whatever dollars are in them
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "axes.edgecolor": GREY,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0),
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Context or decorator in which figures are made and written in this style; characters missing from the font
    become boxes without a warning.

    Also a decorator of functions that make a figure.
    """
    with mpl.rc_context(_STYLE), warnings.catch_warnings():  # type: ignore[arg-type]  # names of settings are strings
        warnings.filterwarnings("ignore", r"(?s)Glyph .* missing from font")
        yield


def new_figure(width_inches: float, height_inches: float, finding: str = "", subject: str = "") -> Figure:
    """Make an empty figure with a title, laid out automatically; without pyplot, so no global state."""
    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    if finding:
        put_title(figure, finding, subject)
    return figure


def new_chart(width_inches: float, height_inches: float, finding: str, subject: str) -> tuple[Figure, Axes]:
    """Make a figure with one empty chart and a title; return both figure and axes."""
    figure = new_figure(width_inches, height_inches, finding, subject)
    return figure, figure.add_subplot()


def put_title(figure: Figure, finding: str, subject: str) -> None:
    """Write the finding in bold as a title, and the subject below it in grey, wrapped to the figure's width."""
    width, height = (POINTS_PER_INCH * inches for inches in figure.get_size_inches())
    room = width - 2 * _MARGIN_POINTS
    title = fit_lines(finding, room, size=_TITLE_POINTS, weight="bold")
    subtitle = fit_lines(subject, room, size=_TEXT_POINTS)
    left, top = _MARGIN_POINTS / width, 1 - 0.7 * _TEXT_POINTS / height
    below = 1.3 * _TITLE_POINTS * len(title)
    place: Look = {"x": left, "ha": "left", "va": "top"}
    figure.suptitle("\n".join(title), y=top, size=_TITLE_POINTS, weight="bold", **place)
    figure.text(y=top - below / height, s="\n".join(subtitle), size=_TEXT_POINTS, color=SOFT, **place)
    header = (below + 1.5 * _TEXT_POINTS * len(subtitle) + 1.4 * _TEXT_POINTS) / height
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, 0, 1, 1 - header))  # type: ignore[call-arg]  # constrained layout's own option


def text_colour(background: str) -> str:
    """Text colour that is legible on a background: white on dark colours, else ink."""
    return "white" if background in DARK else INK


def white_box(alpha: float = 0.75, pad: float = 1.0) -> Look:
    """Properties of a white box behind text that crosses lines."""
    return {"facecolor": "white", "alpha": alpha, "linewidth": 0, "pad": pad}


def mark_plan(axes: Axes, x: Frame, y: Frame, colour: str = INK) -> None:
    """Draw the star that marks the plan, at these points."""
    axes.scatter(x, y, s=150, marker="*", color=colour, zorder=5)


def quiet_axis(axes: Axes, *, grid: str) -> None:
    """Keep grid lines of one axis only ("x" or "y"), or of "both"."""
    axes.grid(False)
    axes.grid(True, axis=grid)  # type: ignore[arg-type]


def write_beside(
    axes: Axes, words: str, place: tuple[float, float], points: tuple[float, float], **look: Any
) -> None:
    """Write words at an offset in points (right, up) from a data point."""
    axes.annotate(words, place, xytext=points, textcoords="offset points", **look)


def write_in_chart(axes: Axes, x: float, y: float, words: str, **look: Any) -> None:
    """Write words at a place given in shares of the chart: top-aligned in its upper half, else bottom-aligned."""
    axes.text(x, y, words, transform=axes.transAxes, **{"va": "top" if y > 0.5 else "bottom"} | look)


def name_lines(axes: Axes, loc: str = "best") -> None:
    """Write the labels of a chart's lines in the colours of the lines, where they cover least."""
    look: Look = {"loc": loc, "labelcolor": "linecolor", "prop": {"weight": "bold"}}
    axes.legend(**look, handlelength=0, handletextpad=0, markerscale=0)


def draw_curve(
    axes: Axes, x: Frame, y: Frame, colour: str, mark: str, is_open: Frame, label: str = "", size: float = 4
) -> None:
    """Draw a line with a mark at each point; marks are hollow where `is_open`: optimality is not proven, or the layout
    does not fit."""
    axes.plot(x, y, color=colour, marker=mark, linewidth=0.45 * size, markersize=size, label=label or None)
    axes.plot(x[is_open], y[is_open], mark, color=colour, markersize=size, markerfacecolor="white")


def check_suffix(path: Path) -> str:
    """Picture format of a file's suffix. Raises InputError for a suffix that is not png, svg or pdf."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        suffixes = sentence_list([f"`.{name}`" for name in FORMATS])
        raise InputError(f"`{path}` has no suffix of a picture", hint=f"{suffixes} can be drawn")
    return suffix


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the path's suffix; an incomplete file is never left.

    Raises:
        InputError: another suffix.
        OSError: the file cannot be written.
    """
    suffix = check_suffix(path)
    with whole_file(path) as stream:
        write(figure, stream, suffix, _DOTS_PER_INCH)


@drawing()
def write(figure: Figure, stream: IO[bytes], suffix: str, dots_per_inch: float) -> None:
    """Write a figure to a stream as PNG, SVG or PDF, in the style of pictures."""
    figure.savefig(stream, format=suffix, dpi=dots_per_inch, facecolor="white")


_DEGREE_OR_MICROBATCH = re.compile(r"(tp|pp|vpp|cp|dp|ep|etp|mbs)\d+$")
_MAX_RECOMPUTE_CHARACTERS = 20
_MAX_CHARACTERS = 400
"""Largest number of characters of a text in a picture."""


def fit_lines(text: str, width_points: float, *, size: float, weight: str = "normal") -> list[str]:
    """Break text into lines no wider than `width_points`, estimated by the mean width of its letters."""
    printed = printable(text, _MAX_CHARACTERS) or " "
    font = FontProperties(family="sans-serif", size=size, weight=weight)
    text_points, _, _ = TextToPath().get_text_width_height_descent(printed, font, ismath=False)
    return lines_of(printed, max(8, int(0.96 * width_points * len(printed) / text_points)), cut=True)


def brief_layout(layout: str, columns: int = 26) -> str:
    """Degrees and microbatch size of a layout, broken into lines of `columns` characters."""
    words = [word for word in printable(layout).split() if _DEGREE_OR_MICROBATCH.match(word)]
    return "\n".join(lines_of(" ".join(words), columns))


def recompute_of(layout: str) -> str:
    """Recompute policy of a layout: "recompute=full", "recompute in part" if too long to write, empty if none."""
    words = [word for word in layout.split() if word.startswith("recompute=")]
    return "".join(word if len(word) <= _MAX_RECOMPUTE_CHARACTERS else "recompute in part" for word in words)


def short_layout(layout: str, columns: int = 26) -> str:
    """Layout as a label, without the placement of blocks, broken into lines of `columns` characters."""
    words = [word for word in printable(layout).split() if not word.startswith("layers=")]
    return "\n".join(lines_of(" ".join(words), columns))


def unproven(frame: Frame) -> str:
    """Words on points without proof: "; hollow: 3 points not proven the best"; empty if all are proven."""
    open_ones = int((frame["gap"] > 0).sum())
    return f"; hollow: {counted(open_ones, 'point')} not proven the best" if open_ones else ""


_LOG_RATIO = 8.0
"""Ratio of largest to smallest value above which an axis is logarithmic."""
_TICKS_IN_A_DECADE = (20.0, (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)), (300.0, (1.0, 2.0, 5.0))
"""Ratio of an axis's ends, and ticks in a decade below it."""
_SCALES = (("trillion ", 1e12), ("billion ", 1e9), ("million ", 1e6), ("thousand ", 1e3))
_TICK_DISTANCE = 0.055
"""Smallest distance of two ticks at numbers of GPUs, as a share of the axis."""
NUMBERS = "{x:,.10g}"
"""Format of numbers at ticks: 64, 1,024, 0.5."""


def name_axes(axes: Axes, x: str = "", y: str = "", *, grid: str = "both") -> None:
    """Label both axes, set grid lines, and separate thousands at linear ticks."""
    axes.set(xlabel=x, ylabel=y)
    quiet_axis(axes, grid=grid)
    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(axis.get_major_formatter(), ScalarFormatter):
            axis.set_major_formatter(NUMBERS)


def log_axis(axes: Axes, along: str, values: Frame) -> None:
    """Make an axis ("x" or "y") of these values logarithmic, with round ticks: the fewer the more decades."""
    ratio = float(values.max() / values.min())
    getattr(axes, f"set_{along}scale")("log")
    axis = getattr(axes, f"{along}axis")
    subs = next((subs for most, subs in _TICKS_IN_A_DECADE if ratio < most), (1.0,))
    axis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axis.set_major_formatter(NUMBERS)
    axes.minorticks_off()


def scale_axis(axes: Axes, along: str, values: Frame) -> None:
    """Make an axis of these values logarithmic if the largest exceeds eight times the smallest."""
    if 0 < _LOG_RATIO * values.min() < values.max():
        log_axis(axes, along, values)


def gpu_ticks(
    axes: Axes, counts: Sequence[int], *, along: str = "x", distance: float = _TICK_DISTANCE
) -> list[int]:
    """Make an axis of numbers of GPUs logarithmic; return its ticks: the largest number, and others at least
    `distance` apart, a share of the axis."""
    smaller, ticks = sorted(set(counts))[:-1], [max(counts)]
    for count in reversed(smaller):
        if ticks[-1] / count >= (max(counts) / min(counts)) ** distance:
            ticks.append(count)
    getattr(axes, f"set_{along}scale")("log", base=2)
    getattr(axes, f"set_{along}ticks")(ticks, map(grouped, ticks))
    axes.minorticks_off()
    return ticks


def evenly(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of the items, evenly spaced, among them the first and last."""
    places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[place] for place in places.tolist()]


def count_unit(largest: float) -> tuple[str, float]:
    """Unit word and factor that keep numbers up to `largest` short: ("million ", 1e6)."""
    return next((unit for unit in _SCALES if largest >= 2 * unit[1]), ("", 1.0))
