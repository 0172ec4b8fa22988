"""How every plot looks: palette, type, a title that states the finding, and saving by suffix."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.errors import InputError
from cost_models.files.whole import whole_file
from meshwright.plots.parts.text import fitted
from meshwright.render.words import sentence_list

Frame = Any
"""A pandas DataFrame or Series. Their stubs cannot follow indexing by name, so the columns are named in docstrings."""

# Okabe & Ito (2008), distinguishable under the common colour-vision deficiencies.
BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PURPLE, YELLOW, INK = "#D55E00", "#CC79A7", "#F0E442", "#222222"
BROWN, OLIVE, NAVY = "#7A4B12", "#8A8B00", "#2F3E75"  # for parts more than the palette has
GREY, PALE, FAINT = "#8A8A8A", "#C9C9C9", "#E8E8E8"
SOFT = "#5F5F5F"
"""Grey that is still read with ease."""

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
"""Colours on which text is white."""

FORMATS = ("png", "svg", "pdf")
_DOTS_PER_INCH = 160
_TITLE_POINTS, _SUBTITLE_POINTS, _TEXT_POINTS = 12.0, 9.0, 9.0
POINTS_PER_INCH = 72.0
_MARGIN_POINTS = 9.0
"""Left and right of the title."""
_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": _TEXT_POINTS,
    "text.parse_math": False,  # names and paths of users are no formulas, whatever dollars are in them
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


@contextmanager
def drawing() -> Iterator[None]:
    """The style, for as long as a figure is being made or written; signs the font lacks become boxes, silently."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():  # type: ignore[arg-type]  # names of settings are strings
        warnings.filterwarnings("ignore", r"(?s)Glyph .* missing from font")
        yield


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """An empty figure that lays itself out; no pyplot, so nothing is global and nothing leaks."""
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


@contextmanager
def sheet(width_inches: float, height_inches: float) -> Iterator[Figure]:
    """An empty figure, in the style while it is being made."""
    with drawing():
        yield new_figure(width_inches, height_inches)


def put_title(figure: Figure, finding: str, subject: str) -> None:
    """The finding in bold, the subject below it in grey, both from the left edge."""
    width_points = figure.get_figwidth() * POINTS_PER_INCH
    room = width_points - 2 * _MARGIN_POINTS
    lines = fitted(finding, room, size=_TITLE_POINTS, weight="bold")
    below = fitted(subject, room, size=_SUBTITLE_POINTS)
    height_points = figure.get_figheight() * POINTS_PER_INCH
    title_points = 1.3 * _TITLE_POINTS * len(lines)
    subtitle_points = 1.5 * _SUBTITLE_POINTS * len(below)
    left, top = _MARGIN_POINTS / width_points, 1 - 0.7 * _TEXT_POINTS / height_points
    figure.suptitle("\n".join(lines), x=left, y=top, ha="left", va="top", size=_TITLE_POINTS, weight="bold")
    figure.text(
        left,
        top - title_points / height_points,
        "\n".join(below),
        ha="left",
        va="top",
        size=_SUBTITLE_POINTS,
        color=SOFT,
    )
    used = (title_points + subtitle_points + 1.4 * _TEXT_POINTS) / height_points
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, 0, 1, 1 - used))  # type: ignore[call-arg]  # constrained layout's own option


def text_colour(background: str) -> str:
    """White on dark colours, ink on light ones."""
    return "white" if background in DARK else INK


def quiet_axis(axes: Axes, *, grid: str) -> None:
    """Keep the grid lines of one axis only ("x", "y" or "both")."""
    axes.grid(False)
    axes.grid(True, axis=grid)  # type: ignore[arg-type]


def beside(
    axes: Axes, words: str, place: tuple[float, float], points: tuple[float, float], **look: Any
) -> None:
    """Words so many points right of and above a place of the chart."""
    axes.annotate(words, place, xytext=points, textcoords="offset points", **look)


def name_in_corner(
    axes: Axes,
    names: Sequence[tuple[str, str]],
    x: float,
    top: float,
    *,
    step: float = 0.06,
    side: str = "left",
) -> None:
    """Names in the colours of what they name, one below the other, in shares of the chart."""
    for row, (name, colour) in enumerate(names):
        words = axes.text(x, top - step * row, name, transform=axes.transAxes, color=colour)
        words.set(ha=side, va="top", weight="bold")


def check_suffix(path: Path) -> str:
    """The format a file's suffix asks for. Raises InputError: one that cannot be drawn."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        wanted = sentence_list([f"`.{name}`" for name in FORMATS])
        raise InputError(f"`{path}` has no suffix of a picture", hint=f"{wanted} can be drawn")
    return suffix


def save(figure: Figure, path: Path) -> None:
    """Write PNG, SVG or PDF, by suffix, whole or not at all.

    Raises:
        InputError: another suffix.
        OSError: the file cannot be written.
    """
    suffix = check_suffix(path)
    with whole_file(path) as stream:
        write(figure, stream, suffix, _DOTS_PER_INCH)


def write(figure: Figure, stream: IO[bytes], suffix: str, dots_per_inch: float) -> None:
    """Write PNG, SVG or PDF, in the style the figure was made in."""
    with drawing():
        figure.savefig(stream, format=suffix, dpi=dots_per_inch, facecolor="white")
