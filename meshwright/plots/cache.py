"""The cache: what share of accesses it serves, and how long a batch takes, by its size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.errors import InputError
from cost_models.recommender.serving import served
from cost_models.units import format_bytes, grouped
from meshwright.plots.drawn import Drawing
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.style import Frame
from meshwright.render.words import percent, size_unit, time_unit
from planner.serving import ServingPlan, filling_order, load_serving_plan, one_share, rows_on_host

_POINTS = 60
_SMALLEST = 1e-5
"""Of all tables' bytes, the smallest cache that is drawn."""
_MOST_LINES = 4
_LINES = (style.SKY, style.BLUE, style.GREEN, style.VERMILION)


def draw_cache_of(files: Sequence[Path]) -> Drawing:
    """The same of a plan file. Raises InputError where it is none, or one of several."""
    if len(files) != 1:
        raise InputError(f"`cache` draws one plan, not {len(files)}")
    return draw_cache(load_serving_plan(files[0]))


def draw_cache(plan: ServingPlan) -> Drawing:
    """Hits and latency by the size of the cache, up to one that holds everything."""
    frame = cache_frame(plan)
    question = plan.question
    subject = (
        f"{question.model.name} on {question.cluster.num_gpus} x {question.cluster.gpu.name}, tables of "
        f"{format_bytes(question.tables.bytes)}, rows used {'most' if question.policy == 'hottest' else 'last'}; "
        "star: the plan"
    )
    return Drawing(frame=frame, figure=cache(frame, plan, subject))


def cache_frame(plan: ServingPlan) -> pd.DataFrame:
    """A row for each size and batch: `cache_bytes`, `hits`, `one_share_hits`, `batch`, `latency_seconds`, `chosen`,
    `fits`."""
    question = plan.question
    tables = question.tables
    order, below = filling_order(tables), rows_on_host(question)
    whole = tables.cached_whole_bytes
    sizes = np.geomspace(max(_SMALLEST * whole, float(tables.row_bytes.max())), whole, _POINTS)
    rows = []
    for size in sorted({*sizes.tolist(), plan.cache_bytes}):
        chosen = size == plan.cache_bytes
        held = plan.rows if chosen else order.fill(size).rows
        apart = one_share(tables, size).hits
        found = served(question, held, below)
        rows += [
            {
                "cache_bytes": size,
                "hits": tables.hits(held),
                "one_share_hits": apart,
                "batch": int(batch),
                "latency_seconds": float(seconds),
                "chosen": chosen,
                "fits": size <= question.most_bytes,
            }
            for batch, seconds in zip(found.batch, found.seconds, strict=True)
        ]
    return pd.DataFrame(rows)


def cache(frame: Frame, plan: ServingPlan, subject: str) -> Figure:
    """Two panels over the size of the cache: hits, with one share of all tables beside; latency, a line for each batch.

    Args:
        frame: as `cache_frame` has it.
        plan: what was planned.
        subject: what was priced.
    """
    unit = size_unit(float(frame["cache_bytes"].max()))
    with style.sheet(10.8, 4.4) as figure:
        hits, latency = figure.subplots(1, 2)
        _draw_hits(hits, frame, plan, unit[1])
        _draw_latency(latency, frame, unit[1])
        for axes in (hits, latency):
            axes.set_xscale("log")
            ticks.logarithmic(axes.xaxis, *axes.get_xlim())
            axes.set_xlabel(f"cache on each GPU ({unit[0]})")
            style.quiet_axis(axes, grid="y")
        style.put_title(figure, _finding(frame, plan), subject)
    return figure


def _draw_hits(axes: Axes, frame: Frame, plan: ServingPlan, scale: float) -> None:
    one = frame[frame["batch"] == frame["batch"].min()]
    x = one["cache_bytes"] / scale
    axes.plot(x, 100 * one["hits"], color=style.BLUE, linewidth=2.0, zorder=3)
    axes.plot(x, 100 * one["one_share_hits"], color=style.GREY, linewidth=1.4, zorder=2)
    axes.scatter([plan.cache_bytes / scale], [100 * plan.hits], s=150, marker="*", color=style.INK, zorder=4)
    axes.set_ylim(0, 104)
    axes.set_ylabel("accesses served from the cache (%)")
    names = [("rows by hits per byte", style.BLUE), ("one share of all tables", style.SOFT)]
    style.name_in_corner(axes, names, 0.98, 0.2, side="right")


def _draw_latency(axes: Axes, frame: Frame, scale: float) -> None:
    batches = sorted(frame["batch"].unique(), reverse=True)
    if len(batches) > _MOST_LINES:
        batches = [batches[int(place)] for place in np.linspace(0, len(batches) - 1, _MOST_LINES)]
    unit = time_unit(float(frame["latency_seconds"].max()))
    for place, batch in enumerate(batches):
        line = frame[frame["batch"] == batch]
        own = line[line["chosen"]]
        y = line["latency_seconds"] / unit[1]
        axes.plot(line["cache_bytes"] / scale, y, color=_LINES[place], linewidth=1.8)
        star = own["latency_seconds"] / unit[1]
        axes.scatter(own["cache_bytes"] / scale, star, s=110, marker="*", color=style.INK, zorder=4)
    names = [(f"batch {grouped(int(batch))}", _LINES[place]) for place, batch in enumerate(batches)]
    style.name_in_corner(axes, names, 0.98, 0.98, side="right")  # at the right, where lines leave room
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.3)  # room for the names
    ticks.logarithmic(axes.yaxis, *axes.get_ylim())
    axes.set_ylabel(f"latency of a batch ({unit[0]})")


def _finding(frame: Frame, plan: ServingPlan) -> str:
    """What the planned cache serves, and what the next round share needs, of rows by hits and of one share."""
    said = f"A cache of {format_bytes(plan.cache_bytes)} serves {percent(plan.hits)} of accesses"
    share = next((round_one for round_one in (0.5, 0.8, 0.9, 0.95, 0.99) if round_one > plan.hits), None)
    if share is None:
        apart = one_share(plan.question.tables, plan.cache_bytes).hits
        return f"{said}; with one share of all tables {percent(apart)}"
    needs = filling_order(plan.question.tables).smallest(share).bytes
    apart = frame[frame["one_share_hits"] >= share]["cache_bytes"].min()
    beside = "" if np.isnan(apart) else f", with one share of all tables {format_bytes(float(apart))}"
    return f"{said}; {percent(share)} need {format_bytes(needs)}{beside}"
