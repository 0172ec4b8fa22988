"""Figures of recommenders: stages of a step, memory by tier, places of embedding tables, scaling, cache for
serving."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from cost_models.recommender.serving import batch_latencies
from cost_models.units import counted, format_bytes, grouped
from meshwright.plots import style
from meshwright.plots.parts import draw_memory_bars, legend_below, stack_bars
from meshwright.plots.scaling import BATCH_WORDS, draw_speed, lines_by_kind, scaling_finding
from meshwright.plots.style import Frame, unproven
from meshwright.records.shardings import moment_words
from meshwright.render.words import in_unit, part_label, percent, size_unit, time_unit
from planner.serving import ServingPlan, filling_order, one_share_hits, rows_on_host

_STAGE_COLOURS = {
    "index exchange": style.SKY,
    "lookup": style.BLUE,
    "forward exchange": style.ORANGE,
    "dense network": style.GREY,
    "backward exchange": style.VERMILION,
    "update": style.PURPLE,
}
_BAR = 0.78
_MOST_GPUS = 32
"""Largest number of GPUs with a bar each; of more, those that others wait for, and an even choice of the rest."""
_MIN_NAMED_SHARE = 0.03
"""Shortest stage whose length is written above the bars, as a share of the step."""


@style.drawing()
def stages(frame: Frame, subject: str) -> Figure:
    """Timeline of a recommender's step, with a row per GPU: dark while the GPU works, pale while it waits for other
    GPUs to end the stage.

    Args:
        frame: as `meshwright.records.shardings.stages_frame` has it.
        subject: which plan.
    """
    gpus = sorted(set(frame["gpu"]))
    lengths = frame.groupby("stage", sort=False)["stage_seconds"].first()
    step, last = float(lengths.sum()), frame[frame["waits"]]
    finding = _stages_finding(frame, lengths, last)
    drawn_gpus = gpus
    if len(gpus) > _MOST_GPUS:
        waited_for = set(last["gpu"])
        drawn_gpus = sorted(waited_for.union(style.evenly(gpus, _MOST_GPUS - len(waited_for))))
        subject += f"; {len(gpus) - len(drawn_gpus)} more GPUs not drawn"
    unit, scale = time_unit(step)
    figure, axes = style.new_chart(10.0, 2.0 + 0.26 * max(len(drawn_gpus), 4), finding, subject)
    for stage in frame[frame["gpu"].isin(drawn_gpus)].itertuples():
        place: style.Look = {"left": stage.start_seconds / scale, "height": _BAR}
        row, length = drawn_gpus.index(stage.gpu), stage.stage_seconds / scale
        colour, busy = _STAGE_COLOURS[stage.stage], stage.busy_seconds / scale
        axes.barh(row, length, color=style.FAINT, linewidth=0, label="waits", **place)
        axes.barh(row, busy, color=colour, linewidth=0, label=stage.stage, **place)
        if stage.waits:
            place |= {"facecolor": "none", "edgecolor": style.INK, "label": "ends the stage"}
            axes.barh(row, length, linewidth=1.4, zorder=4, **place)
    axes.set(ylim=(len(drawn_gpus) - 0.4, -0.6), xlim=(0, step / scale))
    axes.set_yticks(range(len(drawn_gpus)), [f"GPU {gpu}" for gpu in drawn_gpus])
    style.name_axes(axes, f"time of one step ({unit})", grid="x")
    across: style.Look = {"transform": axes.get_xaxis_transform(), "color": style.SOFT}
    for start, end in pairwise([0.0, *(lengths.cumsum() / scale)]):
        axes.axvline(end, color="white", linewidth=1.0, zorder=3)
        if end - start >= _MIN_NAMED_SHARE * step / scale:
            axes.text((start + end) / 2, 1.005, f"{end - start:.2f}", ha="center", size=8, **across)
    legend_below(figure, axes)
    return figure


def _stages_finding(frame: Frame, lengths: Frame, last: Frame) -> str:
    """Title on stages: the longest stage of the step, and the GPU that others wait for most."""
    unit = time_unit(float(lengths.sum()))
    words = f"The {lengths.idxmax()} takes {percent(float(lengths.max() / lengths.sum()))} of the step"
    if last.empty:
        return f"{words}; no GPU waits for another's tables"
    mean = last["stage"].map(frame.groupby("stage")["busy_seconds"].mean())
    worst = (last["stage_seconds"] - mean).idxmax()
    gpu, stage, length = last.loc[worst, ["gpu", "stage", "stage_seconds"]]
    times = [f"{in_unit(float(seconds), unit)} {unit[0]}" for seconds in (length, mean[worst])]
    return f"{words}; GPUs wait most for GPU {gpu} in the {stage}: {times[0]}, {times[1]} on average"


_PART_COLOURS = {
    "weights": style.BLUE,
    "optimizer": style.GREEN,
    "hash tables": style.SKY,
    "ids": style.BROWN,
    "vectors": style.ORANGE,
    "update": style.VERMILION,
    "dense states": style.OLIVE,
    "activations": style.YELLOW,
    "workspace": style.PALE,
    "communicators": style.GREY,
}
_TIER_WORDS = {"device": "GPU", "host": "host"}


@style.drawing()
def tiers(frame: Frame, subject: str) -> Figure:
    """Stacked bars of memory by part, a bar for each GPU, and in a second panel for each host.

    Args:
        frame: as `meshwright.records.shardings.tiers_frame` has it.
        subject: which plan.
    """
    groups = frame.groupby("tier", sort=False)
    panels = {_TIER_WORDS[tier]: bars.reset_index(drop=True) for tier, bars in groups}
    figure = style.new_figure(9.6, 4.8, _tiers_finding(panels), subject)
    widths = [max(len(bars), 2) ** 0.5 for bars in panels.values()]
    charts = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0]
    for axes, (place, bars) in zip(charts, panels.items(), strict=True):
        draw_memory_bars(axes, bars, list(bars["limit_bytes"]), _PART_COLOURS, f"memory of each {place}")
        axes.set_xlabel(place)
    legend_below(figure, *charts)
    return figure


def _tiers_finding(panels: dict[str, Frame]) -> str:
    """Title on memory: the fullest GPU, and the fullest host if tables lie in host memory."""
    sentences = []
    for place, bars in panels.items():
        parts = bars[[part for part in _PART_COLOURS if part in bars]]
        at, limit = int(parts.sum(axis=1).argmax()), float(bars["limit_bytes"].iloc[0])
        full = f"{percent(float(parts.iloc[at].sum()) / limit)} full" if limit == limit else "the fullest"
        share = f"{part_label(parts.iloc[at].idxmax())} {format_bytes(float(parts.iloc[at].max()))}"
        when = moment_words(str(bars["moment"].iloc[at]))
        sentences.append(f"{place} {bars['place'].iloc[at]} is {full}{when}, most of it {share}")
    return "; ".join(sentences)


_FORMS = {
    "whole": (style.BLUE, "whole"),
    "column": (style.SKY, "slice of columns"),
    "row": (style.ORANGE, "slice of rows"),
    "node-row": (style.VERMILION, "rows over a node"),
    "copy": (style.PALE, "copy"),
}
"""Form of a shard (such as a slice of columns) → colour and words."""
_MOST_TABLES = 40
"""Largest number of tables with a row each, largest first; further tables are only counted."""
_MAX_GPU_TICKS = 32
_HOST_HATCH = "/////"


@style.drawing()
def places(frame: Frame, subject: str) -> Figure:
    """Map of shards: embedding tables (rows, largest first) by GPUs (columns), coloured by form of the shard;
    hatched: in host memory.

    Args:
        frame: as `meshwright.records.shardings.shards_frame` has it.
        subject: which plan.
    """
    sized = frame.drop_duplicates("table").sort_values(["bytes", "table"], ascending=[False, True])
    tables, gpus = sized.head(_MOST_TABLES), int(frame["gpu"].max()) + 1
    omitted = len(sized) - len(tables)
    subject += f"; {counted(omitted, 'smaller table')} not drawn" if omitted else ""
    figure, axes = style.new_chart(9.0, 1.9 + 0.19 * max(len(tables), 6), _places_finding(sized), subject)
    rows = {table: row for row, table in enumerate(tables["table"])}
    edge = "white" if gpus <= 4 * _MAX_GPU_TICKS else "none"
    for (form, tier), shards in frame[frame["table"].isin(rows)].groupby(["form", "tier"]):
        colour, words = _FORMS[form]
        look: style.Look = {"height": 0.86, "color": colour, "edgecolor": edge, "linewidth": 0.8}
        if tier == "host":
            words, look["hatch"] = f"{words} in host memory", _HOST_HATCH
        axes.barh(shards["table"].map(rows), 1.0, left=shards["gpu"] - 0.5, label=words, **look)
    hot = tables["table"][tables["hot"] > 0].map(rows) - 0.33
    if len(hot):
        look = {"height": 0.22, "color": style.GREEN, "linewidth": 0, "label": "hot rows copied"}
        axes.barh(hot, gpus, left=-0.5, zorder=3, **look)
    sizes = zip(tables["name"], tables["bytes"], strict=True)
    names = [f"{name}  {format_bytes(size)}" for name, size in sizes]
    axes.set_yticks(range(len(tables)), names, size=8)
    axes.set(ylim=(len(tables) - 0.4, -0.6), xlim=(-0.5, gpus - 0.5))
    axes.set_xticks(range(0, gpus, -(-gpus // _MAX_GPU_TICKS)))
    axes.set_xlabel("GPU")
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)
    legend_below(figure, axes)
    return figure


def _places_finding(sized: Frame) -> str:
    """Title on placement: the two ways of sharding with most bytes, and the other tables."""
    groups = sized.groupby("held_as", sort=False)["bytes"].agg(["sum", "size"])
    groups = groups.sort_values("sum", ascending=False)
    words = [
        f"{counted(int(count), 'table')} as `{name}` {'has' if count == 1 else 'have'}"
        f" {percent(size / sized['bytes'].sum())}"
        for name, size, count in groups.head(2).itertuples()
    ]
    other_tables = int(groups["size"].iloc[2:].sum())
    tail = f"; {counted(other_tables, 'other table')} the rest" if other_tables else ""
    return f"Of {format_bytes(float(sized['bytes'].sum()))}, {', '.join(words)}{tail}"


@style.drawing()
def sharding_scaling(frame: Frame, subject: str) -> Figure:
    """Line plot of the best shardings' throughput against the number of GPUs, and stacked bars of stages of a step.

    Args:
        frame: as `planner.recommender.search.sharding_scaling_frame` has it.
        subject: what was priced.
    """
    lines = lines_by_kind(frame)
    longest = float(frame["step_seconds"].max())
    unit, scale = time_unit(longest)
    finding = _sharding_scaling_finding(lines)
    figure = style.new_figure(11.2, 5.2, finding, f"{subject}{unproven(frame)}")
    speed, *charts = figure.subplots(1, 1 + len(lines), width_ratios=(3, *(2 for _ in lines)))
    draw_speed(speed, frame, lines, "samples")
    for axes, (kind, line) in zip(charts, lines.items(), strict=True):
        stack_bars(axes, line[list(_STAGE_COLOURS)] / scale, _STAGE_COLOURS, 0.72, numbers=False)
        for at, step in enumerate(line["step_seconds"]):
            words = in_unit(float(step), (unit, scale))
            axes.text(at, step / scale, words, ha="center", va="bottom", size=7.5, color=style.SOFT)
        axes.set_xticks(range(len(line)), [grouped(int(gpus)) for gpus in line["gpus"]])
        axes.set_ylim(0, 1.08 * longest / scale)
        style.name_axes(axes, "GPUs", f"step, {BATCH_WORDS[kind]} ({unit})", grid="y")
    legend_below(figure, *charts)
    return figure


def _sharding_scaling_finding(lines: dict[str, Frame]) -> str:
    """Title on scaling: throughput at the last point over the first, and the longest stage there."""
    line = next((line for line in lines.values() if len(line) > 1), next(iter(lines.values())))
    last = line.iloc[-1]
    share = percent(float(last[last["longest"]]) / float(last["step_seconds"]))
    place = f"on {grouped(int(last['gpus']))} " if len(line) > 1 else ""
    return f"{scaling_finding(lines, 'samples')}; {place}the {last['longest']} takes {share} of the step"


_CACHE_SIZES = 60
_MIN_CACHE_SHARE = 1e-5
"""Smallest cache drawn, as a share of the bytes of all tables."""
_BATCH_COLOURS = (style.SKY, style.BLUE, style.GREEN, style.VERMILION)


def cache_frame(plan: ServingPlan) -> pd.DataFrame:
    """Frame with a row for each size of the cache of embedding rows, and batch: `cache_bytes`, `hits`,
    `one_share_hits`, `batch`, `latency_seconds`, `chosen`, `fits`."""
    question, tables = plan.question, plan.question.tables
    order, host, total = filling_order(tables), rows_on_host(question), tables.cached_whole_bytes
    sizes = np.geomspace(max(_MIN_CACHE_SHARE * total, float(tables.row_bytes.max())), total, _CACHE_SIZES)
    rows = []
    for size in sorted({*sizes.tolist(), plan.cache_bytes}):
        is_plan = size == plan.cache_bytes
        cached_rows = plan.rows if is_plan else order.fill(size).rows
        row = {"cache_bytes": size, "hits": tables.hits(cached_rows)}
        row |= {"one_share_hits": one_share_hits(tables, size)}
        latencies = batch_latencies(question, cached_rows, host)
        for batch, seconds in zip(latencies.batch, latencies.seconds, strict=True):
            point = {"batch": int(batch), "latency_seconds": float(seconds), "chosen": is_plan}
            rows.append(row | point | {"fits": size <= question.most_bytes})
    return pd.DataFrame(rows)


@style.drawing()
def cache(frame: Frame, plan: ServingPlan, subject: str) -> Figure:
    """Two line plots over the size of the cache of embedding rows (x): hit rate, beside that of a cache with the same
    share of every table; latency, a line for each batch size.

    Args:
        frame: as `cache_frame` has it.
        plan: what was planned.
        subject: what was priced.
    """
    unit, scale = size_unit(float(frame["cache_bytes"].max()))
    time, seconds = time_unit(float(frame["latency_seconds"].max()))
    frame = frame.assign(x=frame["cache_bytes"] / scale, y=frame["latency_seconds"] / seconds)
    figure = style.new_figure(10.8, 4.4, _cache_finding(frame, plan), subject)
    hits, latency = figure.subplots(1, 2)
    points = frame[frame["batch"] == frame["batch"].min()]
    for name, column, colour in (
        ("rows by hits per byte", "hits", style.BLUE),
        ("one share of all tables", "one_share_hits", style.GREY),
    ):
        hits.plot(points["x"], 100 * points[column], color=colour, linewidth=1.8, label=name)
    style.mark_plan(hits, [plan.cache_bytes / scale], [100 * plan.hits])
    hits.set_ylim(0, 104)
    batches = sorted(frame["batch"].unique(), reverse=True)
    for batch, colour in zip(style.evenly(batches, len(_BATCH_COLOURS)), _BATCH_COLOURS, strict=False):
        line = frame[frame["batch"] == batch]
        label = f"batch {grouped(int(batch))}"
        latency.plot(line["x"], line["y"], color=colour, linewidth=1.8, label=label)
        style.mark_plan(latency, line["x"][line["chosen"]], line["y"][line["chosen"]])
    style.log_axis(latency, "y", frame["y"])
    measures = "accesses served from the cache (%)", f"latency of a batch ({time})"
    for axes, measure in zip((hits, latency), measures, strict=True):
        style.log_axis(axes, "x", frame["x"])
        style.name_axes(axes, f"cache on each GPU ({unit})", measure, grid="y")
        style.name_lines(axes)
    return figure


def _cache_finding(frame: Frame, plan: ServingPlan) -> str:
    """Title on the cache: hit rate of the planned cache, and the cache that the next round hit rate needs."""
    words = f"A cache of {format_bytes(plan.cache_bytes)} serves {percent(plan.hits)} of accesses"
    share = next((share for share in (0.5, 0.8, 0.9, 0.95, 0.99) if share > plan.hits), None)
    if share is None:
        even = one_share_hits(plan.question.tables, plan.cache_bytes)
        return f"{words}; with one share of all tables {percent(even)}"
    needs = filling_order(plan.question.tables).smallest(share).bytes
    even = frame[frame["one_share_hits"] >= share]["cache_bytes"].min()
    tail = "" if np.isnan(even) else f", with one share of all tables {format_bytes(float(even))}"
    return f"{words}; {percent(share)} need {format_bytes(needs)}{tail}"
