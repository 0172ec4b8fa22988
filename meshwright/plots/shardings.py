"""Figures of recommenders: stages of a step, memory by tier, places of tables, scaling, the cache of a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cost_models.errors import InputError
from cost_models.recommender.serving import served
from cost_models.units import counted, format_bytes, format_count, grouped
from meshwright.plots import style
from meshwright.plots.drawing import Drawing
from meshwright.plots.parts import part_legend, stack_bars, visible_parts
from meshwright.plots.scaling import draw_speed
from meshwright.plots.style import Frame, unproven
from meshwright.records.shardings import while_
from meshwright.render.words import in_unit, part_label, percent, size_unit, time_unit
from planner.serving import ServingPlan, filling_order, load_serving_plan, one_share_hits, rows_on_host

STAGE_COLOURS = {
    "index exchange": style.SKY,
    "lookup": style.BLUE,
    "forward exchange": style.ORANGE,
    "dense network": style.GREY,
    "backward exchange": style.VERMILION,
    "update": style.PURPLE,
}
_BAR = 0.78
MOST_GPUS = 32
"""GPUs that have a bar each; of more those that stages wait for, and others in even steps."""
_SEEN = 0.002
"""Shortest stage that is in the legend, as a share of the step."""
_MIN_NAMED_SHARE = 0.03
"""Shortest stage that has its length above the bars, as a share of the step."""


def stages(frame: Frame, subject: str) -> Figure:
    """A bar for each GPU along the step: dark where it is busy, pale where it waits for the stage to end.

    Args:
        frame: as `meshwright.records.shardings.stages_frame` has it.
        subject: which plan.
    """
    step = _step_seconds(frame)
    unit = time_unit(step)
    gpus = shown_gpus(frame)
    with style.sheet(10.0, 2.0 + 0.26 * max(len(gpus), 4)) as figure:
        axes = figure.add_subplot()
        for row, gpu in enumerate(gpus):
            for _, stage in frame[frame["gpu"] == gpu].iterrows():
                _draw_stage(axes, row, stage, unit[1])
        axes.set_ylim(len(gpus) - 0.4, -0.6)
        axes.set_xlim(0, step / unit[1])
        axes.set_yticks(range(len(gpus)), [f"GPU {gpu}" for gpu in gpus])
        style.measure_axis(axes, "x", f"time of one step ({unit[0]})")
        _mark_stage_ends(axes, frame, unit[1])
        names = [
            name
            for name in STAGE_COLOURS
            if frame[frame["stage"] == name]["stage_seconds"].max() > _SEEN * step
        ]
        waiting = Patch(facecolor=style.FAINT, label="waits")
        ends = Patch(facecolor="white", edgecolor=style.INK, linewidth=1.4, label="ends the stage")
        part_legend(figure, names, STAGE_COLOURS, *([waiting, ends] if frame["waits"].any() else [waiting]))
        omitted = len(set(frame["gpu"])) - len(gpus)
        style.put_title(
            figure, _stages_finding(frame), subject + (f"; {omitted} more GPUs not drawn" if omitted else "")
        )
    return figure


def shown_gpus(frame: Frame) -> list[int]:
    """GPUs that are drawn."""
    gpus = sorted(set(frame["gpu"]))
    if len(gpus) <= MOST_GPUS:
        return gpus
    last = set(frame[frame["waits"]]["gpu"])
    even = np.linspace(0, len(gpus) - 1, MOST_GPUS - len(last)).round().astype(int)
    return sorted(last | {gpus[at] for at in even.tolist()})


def _draw_stage(axes: Axes, row: int, stage: Frame, scale: float) -> None:
    """A stage of one GPU."""
    start, length, busy = (
        float(stage[name]) / scale for name in ("start_seconds", "stage_seconds", "busy_seconds")
    )
    axes.barh(row, length, left=start, height=_BAR, color=style.FAINT, linewidth=0)
    axes.barh(row, busy, left=start, height=_BAR, color=STAGE_COLOURS[stage["stage"]], linewidth=0)
    if stage["waits"]:
        outline = axes.barh(row, length, left=start, height=_BAR, facecolor="none", edgecolor=style.INK)
        outline[0].set(linewidth=1.4, zorder=4)


def _mark_stage_ends(axes: Axes, frame: Frame, scale: float) -> None:
    """A line where each stage ends, and above those with room how long it lasts."""
    step = _step_seconds(frame) / scale
    for _, stage in frame[frame["gpu"] == frame["gpu"].min()].iterrows():
        start, length = float(stage["start_seconds"]) / scale, float(stage["stage_seconds"]) / scale
        axes.axvline(start + length, color="white", linewidth=1.0, zorder=3)
        if length >= _MIN_NAMED_SHARE * step:
            axes.text(
                start + length / 2,
                1.005,
                f"{length:.2f}",
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="bottom",
                size=8,
                color=style.SOFT,
            )


def _step_seconds(frame: Frame) -> float:
    first_gpu = frame[frame["gpu"] == frame["gpu"].min()]
    return float(first_gpu["stage_seconds"].sum())


def _stages_finding(frame: Frame) -> str:
    """The longest stage of the step, and the GPU that costs it most waiting."""
    step = _step_seconds(frame)
    unit = time_unit(step)
    of_stage = frame.groupby("stage", sort=False).agg(
        length=("stage_seconds", "first"), mean=("busy_seconds", "mean")
    )
    longest = of_stage["length"].idxmax()
    words = f"The {longest} takes {percent(float(of_stage['length'].max()) / step)} of the step"
    slowest = frame[frame["waits"]]
    if slowest.empty:
        return f"{words}; no GPU waits for another's tables"
    waited = slowest["stage_seconds"] - of_stage["mean"][slowest["stage"]].to_numpy()
    worst = slowest.loc[waited.idxmax()]
    length, mean = float(worst["stage_seconds"]), float(of_stage["mean"][worst["stage"]])
    return (
        f"{words}; GPUs wait most for GPU {worst['gpu']} in the {worst['stage']}:"
        f" {in_unit(length, unit)} {unit[0]}, {in_unit(mean, unit)} {unit[0]} on average"
    )


PART_COLOURS = {
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
_MAX_NUMBERED_BARS = 16
"""Bars of a panel that carry numbers."""
_MAX_BAR_TICKS = 24
_FAR_LIMIT = 3.0
"""A limit this many times as high as the highest bar is told and not drawn."""


def tiers(frame: Frame, subject: str) -> Figure:
    """A panel for each tier, a bar for each GPU or host.

    Args:
        frame: as `meshwright.records.shardings.tiers_frame` has it.
        subject: which plan.
    """
    panels = [(tier, bars.reset_index(drop=True)) for tier, bars in frame.groupby("tier", sort=False)]
    with style.sheet(9.6, 4.8) as figure:
        widths = [max(len(bars), 2) ** 0.5 for _, bars in panels]
        charts = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0]
        for axes, (tier, bars) in zip(charts, panels, strict=True):
            _draw_tier(axes, str(tier), bars)
        visible_names = {part for _, bars in panels for part in visible_parts(bars, PART_COLOURS)}
        part_legend(figure, [part for part in PART_COLOURS if part in visible_names], PART_COLOURS)
        style.put_title(figure, _tiers_finding(panels), subject)
    return figure


def _draw_tier(axes: Axes, tier: str, bars: Frame) -> None:
    parts = [part for part in PART_COLOURS if part in bars and bars[part].max() > 0]
    totals, limit = bars[parts].sum(axis=1), float(bars["limit_bytes"].iloc[0])
    near = limit <= _FAR_LIMIT * totals.max()
    unit, scale = size_unit(max(totals.max(), limit if near else 0.0))
    numbers = len(bars) <= _MAX_NUMBERED_BARS
    stack_bars(axes, bars[parts] / scale, PART_COLOURS, _BAR, numbers=numbers)
    top = 1.16 * max(totals.max(), limit if near else 0.0) / scale
    axes.set_ylim(0, top)
    axes.set_xlim(-0.6, max(len(bars) - 0.4, 1.0))
    step = -(-len(bars) // _MAX_BAR_TICKS)
    axes.set_xticks(range(0, len(bars), step), [str(place) for place in bars["place"][::step]])
    if numbers:
        for place, total in enumerate(totals):
            axes.text(place, total / scale + 0.01 * top, f"{total / scale:.1f}", ha="center", weight="bold")
    if near:
        axes.axhline(limit / scale, color=style.INK, linewidth=1.4, linestyle=(0, (5, 3)))
    words = f"limit {format_bytes(limit)}" if limit == limit else "limit unknown"
    axes.text(
        0.99,
        limit / scale / top + 0.01 if near else 0.97,
        words if near or limit != limit else f"{words}, far above ↑",
        transform=axes.transAxes,
        ha="right",
        va="bottom" if near else "top",
        weight="bold",
    )
    axes.set_xlabel(_TIER_WORDS[tier])
    style.measure_axis(axes, "y", f"memory of each {_TIER_WORDS[tier]} ({unit})")


def _tiers_finding(panels: list[tuple[object, Frame]]) -> str:
    """The fullest GPU, and the fullest host where tables lie there."""
    text = []
    for tier, bars in panels:
        parts = [part for part in PART_COLOURS if part in bars]
        totals = bars[parts].sum(axis=1)
        at, limit = int(totals.argmax()), float(bars["limit_bytes"].iloc[0])
        largest = max(parts, key=lambda part: float(bars[part].iloc[at]))
        full = f"{percent(float(totals.iloc[at]) / limit)} full" if limit == limit else "the fullest"
        size = format_bytes(float(bars[largest].iloc[at]))
        share = f"{part_label(largest)} {size}"
        when = while_(str(bars["moment"].iloc[at]))
        text.append(f"{_TIER_WORDS[str(tier)]} {bars['place'].iloc[at]} is {full}{when}, most of it {share}")
    return "; ".join(text)


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
_MAX_GPU_TICKS = 32
_HOST_HATCH, _HOT_HATCH = "/////", "...."
_HOT_HEIGHT = 0.22
"""Height of the strip that marks copied hot rows, as a share of a row."""


def places(frame: Frame, subject: str) -> Figure:
    """The largest tables on top.

    Args:
        frame: as `meshwright.records.shardings.shards_frame` has it.
        subject: which plan.
    """
    sized = frame.drop_duplicates("table").sort_values(["bytes", "table"], ascending=[False, True])
    tables, gpus = sized.head(MOST_TABLES), int(frame["gpu"].max()) + 1
    row_of = {table: row for row, table in enumerate(tables["table"])}
    with style.sheet(9.0, 1.9 + 0.19 * max(len(tables), 6)) as figure:
        axes = figure.add_subplot()
        for _, shard in frame[frame["table"].isin(row_of)].iterrows():
            _draw_shard(axes, row_of[shard["table"]], shard, gpus)
        for table in tables[tables["hot"] > 0]["table"]:
            row = row_of[table] - 0.33
            axes.barh(row, gpus, left=-0.5, height=_HOT_HEIGHT, color=style.GREEN, linewidth=0, zorder=3)
        sizes = zip(tables["name"], tables["bytes"], strict=True)
        axes.set_yticks(range(len(tables)), [f"{name}  {format_bytes(size)}" for name, size in sizes], size=8)
        axes.set_ylim(len(tables) - 0.4, -0.6)
        axes.set_xlim(-0.5, gpus - 0.5)
        step = -(-gpus // _MAX_GPU_TICKS)
        axes.set_xticks(range(0, gpus, step))
        axes.set_xlabel("GPU")
        axes.grid(False)
        for spine in ("left", "bottom"):
            axes.spines[spine].set_visible(False)
        part_legend(figure, [], {}, *_form_legend(tables))
        omitted = len(sized) - len(tables)
        tail = f"; {counted(omitted, 'smaller table')} not drawn" if omitted else ""
        style.put_title(figure, _places_finding(sized), subject + tail)
    return figure


def _draw_shard(axes: Axes, row: int, shard: Frame, gpus: int) -> None:
    """Draw the shard of a table on one GPU; hatched where its rows are in host memory."""
    edge = "white" if gpus <= 4 * _MAX_GPU_TICKS else "none"
    axes.barh(
        row,
        1.0,
        left=shard["gpu"] - 0.5,
        height=0.86,
        color=FORM_COLOURS[shard["form"]],
        edgecolor=edge,
        linewidth=0.8,
        hatch=_HOST_HATCH if shard["tier"] == "host" else None,
    )


def _form_legend(tables: Frame) -> list[Patch]:
    forms = [form for form in FORM_COLOURS if (tables["form"] == form).any()]
    handles = [Patch(facecolor=FORM_COLOURS[form], label=_FORM_WORDS[form]) for form in forms]
    if (tables["tier"] == "host").any():
        handles.append(
            Patch(facecolor=style.GREY, edgecolor="white", hatch=_HOST_HATCH, label="in host memory")
        )
    if (tables["hot"] > 0).any():
        handles.append(Patch(facecolor=style.GREEN, label="hot rows copied"))
    return handles


def _places_finding(sized: Frame) -> str:
    """The way to hold tables that has most bytes, and what of the rest is copied."""
    total = float(sized["bytes"].sum())
    groups = sized.groupby("held_as", sort=False).agg(bytes=("bytes", "sum"), tables=("table", "size"))
    groups_by_bytes = groups.sort_values("bytes", ascending=False)
    words = [
        f"{counted(int(group['tables']), 'table')} as `{name}` {'has' if group['tables'] == 1 else 'have'}"
        f" {percent(group['bytes'] / total)}"
        for name, group in groups_by_bytes.head(2).iterrows()
    ]
    others = len(sized) - int(groups_by_bytes.head(2)["tables"].sum())
    tail = "" if not others else f"; {counted(others, 'other table')} the rest"
    return f"Of {format_bytes(total)}, {', '.join(words)}{tail}"


_KIND_WORDS = {"strong": "same batch", "weak": "batch growing with them"}
_STEP_BAR = 0.72


def sharding_scaling(frame: Frame, subject: str) -> Figure:
    """Throughput of the best sharding at each number of GPUs; beside it the stages of its step.

    Args:
        frame: as `planner.recommender.search.sharding_scaling_frame` has it.
        subject: what was priced.
    """
    kinds = [(str(kind), points.sort_values("gpus")) for kind, points in frame.groupby("kind", sort=True)]
    longest = float(frame["step_seconds"].max())
    with style.sheet(11.2, 5.2) as figure:
        speed, *steps = figure.subplots(1, 1 + len(kinds), width_ratios=(3, *(2 for _ in kinds)))
        draw_speed(speed, frame, kinds, "samples")
        for axes, (kind, line) in zip(steps, kinds, strict=True):
            _draw_steps(axes, kind, line, longest)
        visible_stages = [name for name in STAGE_COLOURS if frame[name].max() > _SEEN * longest]
        part_legend(figure, visible_stages, STAGE_COLOURS)
        style.put_title(figure, _sharding_scaling_finding(kinds), f"{subject}{unproven(frame)}")
    return figure


def _draw_steps(axes: Axes, kind: str, line: Frame, longest: float) -> None:
    """A bar for each number of GPUs: the stages of its step, one on top of the other."""
    unit, scale = time_unit(longest)
    places = range(len(line))
    bottom = 0.0 * line["step_seconds"]
    for name, colour in STAGE_COLOURS.items():
        seconds = line[name] / scale
        axes.bar(places, seconds, bottom=bottom, width=_STEP_BAR, color=colour, linewidth=0)
        bottom = bottom + seconds
    for at, step in zip(places, line["step_seconds"], strict=True):
        words = in_unit(float(step), (unit, scale))
        axes.text(at, step / scale, words, ha="center", va="bottom", size=7.5, color=style.SOFT)
    axes.set_xticks(places, [grouped(int(gpus)) for gpus in line["gpus"]])
    axes.set_ylim(0, 1.08 * longest / scale)
    axes.set_xlabel("GPUs")
    style.measure_axis(axes, "y", f"step, {_KIND_WORDS[kind]} ({unit})")


def _sharding_scaling_finding(kinds: list[tuple[str, Frame]]) -> str:
    """Speed at the last point over that at the first, and which stage takes most there."""
    kind, line = next(((kind, line) for kind, line in kinds if len(line) > 1), kinds[0])
    first, last = line.iloc[0], line.iloc[-1]
    share = percent(float(last[last["longest"]]) / float(last["step_seconds"]))
    binds = f"the {last['longest']} takes {share} of the step"
    if len(line) < 2:
        speed = format_count(first["samples_per_second"])
        return f"{counted(int(first['gpus']), 'GPU')}, the only number with an answer: {speed} samples/s; {binds}"
    gain, gpu_ratio = last["samples_per_second"] / first["samples_per_second"], last["gpus"] / first["gpus"]
    return (
        f"{grouped(int(first['gpus']))} to {grouped(int(last['gpus']))} GPUs, {_KIND_WORDS[kind]}: "
        f"{gain:.1f} x the speed, {percent(gain / gpu_ratio)} of ideal; on {grouped(int(last['gpus']))} {binds}"
    )


_CACHE_SIZES = 60
_MIN_CACHE_SHARE = 1e-5
"""Smallest cache that is drawn, as a share of the bytes of all tables."""
_MAX_LINES = 4
_BATCH_COLOURS = (style.SKY, style.BLUE, style.GREEN, style.VERMILION)


def draw_cache_of(files: Sequence[Path]) -> Drawing:
    """Hits and latency against the size of the cache, for one plan file. Raises InputError for other files."""
    if len(files) != 1:
        raise InputError(f"`cache` draws one plan, not {len(files)}")
    return draw_cache(load_serving_plan(files[0]))


def draw_cache(plan: ServingPlan) -> Drawing:
    """Hits and latency against the size of the cache, up to one that holds all tables."""
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
    order, host = filling_order(tables), rows_on_host(question)
    total = tables.cached_whole_bytes
    sizes = np.geomspace(max(_MIN_CACHE_SHARE * total, float(tables.row_bytes.max())), total, _CACHE_SIZES)
    rows = []
    for size in sorted({*sizes.tolist(), plan.cache_bytes}):
        is_plan = size == plan.cache_bytes
        cached_rows = plan.rows if is_plan else order.fill(size).rows
        even_hits = one_share_hits(tables, size)
        latencies = served(question, cached_rows, host)
        rows += [
            {
                "cache_bytes": size,
                "hits": tables.hits(cached_rows),
                "one_share_hits": even_hits,
                "batch": int(batch),
                "latency_seconds": float(seconds),
                "chosen": is_plan,
                "fits": size <= question.most_bytes,
            }
            for batch, seconds in zip(latencies.batch, latencies.seconds, strict=True)
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
            style.log_ticks(axes.xaxis, *axes.get_xlim())
            axes.set_xlabel(f"cache on each GPU ({unit[0]})")
            style.quiet_axis(axes, grid="y")
        style.put_title(figure, _cache_finding(frame, plan), subject)
    return figure


def _draw_hits(axes: Axes, frame: Frame, plan: ServingPlan, scale: float) -> None:
    points = frame[frame["batch"] == frame["batch"].min()]
    x = points["cache_bytes"] / scale
    axes.plot(x, 100 * points["hits"], color=style.BLUE, linewidth=2.0, zorder=3)
    axes.plot(x, 100 * points["one_share_hits"], color=style.GREY, linewidth=1.4, zorder=2)
    style.mark_plan(axes, [plan.cache_bytes / scale], [100 * plan.hits])
    axes.set_ylim(0, 104)
    axes.set_ylabel("accesses served from the cache (%)")
    names = [("rows by hits per byte", style.BLUE), ("one share of all tables", style.SOFT)]
    style.name_in_corner(axes, names, 0.98, 0.2, side="right")


def _draw_latency(axes: Axes, frame: Frame, scale: float) -> None:
    batches = sorted(frame["batch"].unique(), reverse=True)
    if len(batches) > _MAX_LINES:
        batches = [batches[int(place)] for place in np.linspace(0, len(batches) - 1, _MAX_LINES)]
    unit = time_unit(float(frame["latency_seconds"].max()))
    for place, batch in enumerate(batches):
        line = frame[frame["batch"] == batch]
        plan = line[line["chosen"]]
        y = line["latency_seconds"] / unit[1]
        axes.plot(line["cache_bytes"] / scale, y, color=_BATCH_COLOURS[place], linewidth=1.8)
        star = plan["latency_seconds"] / unit[1]
        axes.scatter(plan["cache_bytes"] / scale, star, s=110, marker="*", color=style.INK, zorder=4)
    names = [(f"batch {grouped(int(batch))}", _BATCH_COLOURS[place]) for place, batch in enumerate(batches)]
    style.name_in_corner(axes, names, 0.98, 0.98, side="right")  # at the right, where lines leave room
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.3)  # room for the names
    style.log_ticks(axes.yaxis, *axes.get_ylim())
    axes.set_ylabel(f"latency of a batch ({unit[0]})")


def _cache_finding(frame: Frame, plan: ServingPlan) -> str:
    """Title: hits of the planned cache, and the cache that the next round hit rate needs."""
    words = f"A cache of {format_bytes(plan.cache_bytes)} serves {percent(plan.hits)} of accesses"
    share = next((round_one for round_one in (0.5, 0.8, 0.9, 0.95, 0.99) if round_one > plan.hits), None)
    if share is None:
        even = one_share_hits(plan.question.tables, plan.cache_bytes)
        return f"{words}; with one share of all tables {percent(even)}"
    needs = filling_order(plan.question.tables).smallest(share).bytes
    even = frame[frame["one_share_hits"] >= share]["cache_bytes"].min()
    tail = "" if np.isnan(even) else f", with one share of all tables {format_bytes(float(even))}"
    return f"{words}; {percent(share)} need {format_bytes(needs)}{tail}"
