"""Which table lies where: a row for each table, a column for each GPU, coloured by how the table is split."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cost_models.units import counted, format_bytes
from meshwright.plots.parts import style
from meshwright.plots.parts.style import Frame
from meshwright.render.words import percent

FORM_COLOURS = {
    "whole": style.BLUE,
    "column": style.SKY,
    "row": style.ORANGE,
    "node-row": style.VERMILION,
    "copy": style.PALE,
}
_FORM_WORDS = {
    "whole": "whole",
    "column": "slice of columns",
    "row": "slice of rows",
    "node-row": "rows over a node",
    "copy": "copy",
}
MOST_TABLES = 40
"""Tables that have a row each, the largest; of more only how many there are is told."""
_MOST_TICKS = 32
_HOST, _HOT = "/////", "...."
_HOT_HEIGHT = 0.22
"""Of a row: the strip at its top that says that hot rows are copied."""


def places(frame: Frame, subject: str) -> Figure:
    """The largest tables on top.

    Args:
        frame: as `meshwright.records.shardings.shards_frame` has it.
        subject: which plan.
    """
    sized = frame.drop_duplicates("table").sort_values(["bytes", "table"], ascending=[False, True])
    shown, gpus = sized.head(MOST_TABLES), int(frame["gpu"].max()) + 1
    row_of = {table: row for row, table in enumerate(shown["table"])}
    with style.sheet(9.0, 1.9 + 0.19 * max(len(shown), 6)) as figure:
        axes = figure.add_subplot()
        for _, one in frame[frame["table"].isin(row_of)].iterrows():
            _cell(axes, row_of[one["table"]], one, gpus)
        for table in shown[shown["hot"] > 0]["table"]:
            axes.barh(
                row_of[table] - 0.33,
                gpus,
                left=-0.5,
                height=_HOT_HEIGHT,
                color=style.GREEN,
                linewidth=0,
                zorder=3,
            )
        axes.set_yticks(
            range(len(shown)), [f"{name}  {format_bytes(size)}" for name, size in _named(shown)], size=8
        )
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(-0.5, gpus - 0.5)
        step = -(-gpus // _MOST_TICKS)
        axes.set_xticks(range(0, gpus, step))
        axes.set_xlabel("GPU")
        axes.grid(False)
        for spine in ("left", "bottom"):
            axes.spines[spine].set_visible(False)
        figure.legend(
            handles=_legend(shown), loc="outside lower center", ncols=7, handlelength=1.0, columnspacing=1.4
        )
        left = len(sized) - len(shown)
        more = f"; {counted(left, 'smaller table')} not drawn" if left else ""
        style.put_title(figure, _finding(sized), subject + more)
    return figure


def _named(shown: Frame) -> list[tuple[str, float]]:
    return list(zip(shown["name"], shown["bytes"], strict=True))


def _cell(axes: Axes, row: int, one: Frame, gpus: int) -> None:
    """What a GPU holds of a table; hatched where its rows are in host memory."""
    edge = "white" if gpus <= 4 * _MOST_TICKS else "none"
    axes.barh(
        row,
        1.0,
        left=one["gpu"] - 0.5,
        height=0.86,
        color=FORM_COLOURS[one["form"]],
        edgecolor=edge,
        linewidth=0.8,
        hatch=_HOST if one["tier"] == "host" else None,
    )


def _legend(shown: Frame) -> list[Patch]:
    forms = [form for form in FORM_COLOURS if (shown["form"] == form).any()]
    handles = [Patch(facecolor=FORM_COLOURS[form], label=_FORM_WORDS[form]) for form in forms]
    if (shown["tier"] == "host").any():
        handles.append(Patch(facecolor=style.GREY, edgecolor="white", hatch=_HOST, label="in host memory"))
    if (shown["hot"] > 0).any():
        handles.append(Patch(facecolor=style.GREEN, label="hot rows copied"))
    return handles


def _finding(sized: Frame) -> str:
    """The way to hold tables that has most bytes, and what of the rest is copied."""
    total = float(sized["bytes"].sum())
    groups = sized.groupby("held_as", sort=False).agg(bytes=("bytes", "sum"), tables=("table", "size"))
    most = groups.sort_values("bytes", ascending=False)
    said = [
        f"{counted(int(one['tables']), 'table')} as `{name}` {'has' if one['tables'] == 1 else 'have'}"
        f" {percent(one['bytes'] / total)}"
        for name, one in most.head(2).iterrows()
    ]
    rest = len(sized) - int(most.head(2)["tables"].sum())
    tail = "" if not rest else f"; {counted(rest, 'other table')} the rest"
    return f"Of {format_bytes(total)}, {', '.join(said)}{tail}"
