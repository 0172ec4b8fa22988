"""Figures of what changes an answer: techniques (ladder), degrees (heat map), quantities (tornado), checkpoints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from string import ascii_lowercase
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cost_models.arrays import Array
from cost_models.errors import InfeasibleError
from cost_models.reliability import Forecast, ends_of, least_steps
from cost_models.reliability import forecast as forecast_of
from cost_models.units import counted, format_bytes, format_days, format_seconds, grouped
from meshwright.plots import style
from meshwright.plots.parts import labelled_artists, legend_below
from meshwright.plots.style import Frame, fit_lines
from meshwright.records import frame_of
from meshwright.render.words import change, percent, sentence_list, time_unit
from planner.answers.frontier import REASON_SEPARATOR

if TYPE_CHECKING:
    import pandas as pd


_RUNGS = {
    "base": (style.GREY, "a bare trainer"),
    "trainer": (style.BLUE, "what trainers do"),
    "mathematics": (style.VERMILION, "what changes the training"),
}
"""Colour and words for each kind of technique in the ladder."""
_BAR_HEIGHT = 0.34


@style.drawing()
def ladder(frame: Frame, subject: str) -> Figure:
    """Bar chart of MFU as techniques are added one by one to a bare trainer; pale: those that the plan lacks.

    Args:
        frame: a row per rung with `name`, `kind`, `has`, `mfu`, `adds`, `step_seconds`, `fits`.
        subject: what was priced.
    """
    subject += "; pale: what the plan lacks" if not frame["has"].all() else ""
    figure, axes = style.new_chart(9.6, 1.8 + 0.42 * len(frame), _ladder_finding(frame), subject)
    base = 0.0
    for at, row in enumerate(frame.to_dict(orient="records")):
        mfu, (colour, kind) = 100 * float(row["mfu"]), _RUNGS[str(row["kind"])]
        look: style.Look = {"color": colour, "alpha": 1.0 if row["has"] or not at else 0.45, "label": kind}
        axes.barh(at, min(mfu, base), color=style.FAINT, height=0.62)
        axes.barh(at, max(abs(mfu - base), 0.12), left=min(mfu, base), height=0.62, **look)
        added = f"  {100 * float(row['adds']):+.1f}" if at else ""
        fits = "" if row["fits"] else ", does not fit"
        words = f"{mfu:.1f} %{added}   {format_seconds(float(row['step_seconds']))}{fits}"
        axes.text(max(mfu, base) + 0.6, at, words, va="center", size=8.5)
        base = mfu
    axes.set_yticks(range(len(frame)), [str(name) for name in frame["name"]])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * 100 * float(frame["mfu"].max()))
    style.name_axes(axes, "MFU (%), and seconds for a batch of the plan's size", grid="x")
    legend_below(figure, axes)
    return figure


def _ladder_finding(frame: Frame) -> str:
    """Title of the ladder: "All techniques raise MFU from 38.2 % to 58.7 %; tensor-parallel overlap gains most"."""
    first, last = float(frame["mfu"].iloc[0]), float(frame["mfu"].iloc[-1])
    sentence = f"All techniques raise MFU from {percent(first)} to {percent(last)}"
    return f"{sentence}; {frame['name'].iloc[1]} gains most" if len(frame) > 1 else sentence


_COLOUR_MAP = "cividis"
"""Colour map of evenly rising lightness, alike for most eyes (Nunez, Anderton & Renslow 2018)."""
_INK_DEPTH = 0.55
"""Share of the colour map above which dark text is more legible than white."""
_NEAR_BEST = 0.05
"""Relative distance from the best MFU within which the title counts layouts."""
_NUMBER = re.compile(r"\d[\d,.]*")
_LINE_INCHES = 0.19
_ROW_INCHES, _COLUMN_INCHES = 0.62, 0.95


@style.drawing()
def heatmap(frame: Frame, subject: str) -> Figure:
    """Heat map of the best layout's MFU: pipeline degree (x) by tensor degree (y); hatched cells say why no layout
    exists.

    Args:
        frame: a row per cell with `tp`, `pp`, `mfu`, `peak_bytes`, `gap`, `reason`, `why`, `chosen`.
        subject: what was priced.
    """
    tps, pps = (sorted(int(degree) for degree in frame[name].unique()) for name in ("tp", "pp"))
    frame, lines = _with_signs(frame)
    width = max(6.4, 1.6 + _COLUMN_INCHES * len(pps))
    legend = [line for words in lines for line in fit_lines(words, 72 * (width - 0.4), size=8)]
    height = 1.7 + _ROW_INCHES * len(tps) + _LINE_INCHES * len(legend)
    subject += "; MFU (%) of the best layout of each pair"
    figure, axes = style.new_chart(width, height, heatmap_finding(frame), subject)
    table = 100 * frame.pivot(index="tp", columns="pp", values="mfu")
    axes.patch.set(hatch="////", edgecolor=style.PALE)  # is seen where no layout exists
    colours: style.Look = {"cmap": _COLOUR_MAP, "edgecolors": "white"}
    axes.pcolormesh(range(len(pps)), range(len(tps)), np.ma.masked_invalid(table), **colours)
    light = _INK_DEPTH * table.max().max() + (1 - _INK_DEPTH) * table.min().min()
    for row in frame.to_dict(orient="records"):
        x, y = pps.index(int(row["pp"])), tps.index(int(row["tp"]))
        if row["reason"]:
            axes.text(x, y, row["sign"], size=8, bbox=style.white_box(1.0, 1.5), **style.MIDDLE)
        else:
            ink = style.INK if table.iloc[y, x] > light else "white"
            words = f"{table.iloc[y, x]:.1f}{'*' if float(row['gap']) > 0 else ''}"
            axes.text(x, y, words, color=ink, size=10, weight="bold", **style.MIDDLE)
        if row["chosen"]:
            outline: style.Look = {"edgecolor": style.VERMILION, "linewidth": 2.4, "zorder": 4}
            axes.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, **outline))
    axes.set_xticks(range(len(pps)), map(str, pps))
    axes.set_yticks(range(len(tps)), map(str, tps))
    axes.set(xlabel="pipeline degree (pp)", ylabel="tensor degree (tp)")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    if legend:
        figure.supxlabel("\n".join(legend), linespacing=1.5, size=8, ha="left", x=0.02)
    return figure


def heatmap_finding(frame: Frame) -> str:
    """Title of the heat map: "tp4 pp8 is best, 60.2 % MFU; 5 more come within 5 % of it, 11 do not fit, 8 break a
    rule"."""
    solved, searched = frame[frame["reason"] == ""], frame[frame["reason"] != "time"]
    of_those = f"Of {len(searched)} pairs searched " if len(searched) < len(frame) else ""
    if searched.empty:
        return f"None of {len(frame)} pairs of degrees was searched in time"
    if solved.empty:
        none = f"{of_those}none" if of_those else "No pair of degrees"
        return f"{none} has a layout: {_hole_counts(frame)}"
    best = solved.loc[solved["mfu"].idxmax()]
    near = int((solved["mfu"] >= (1 - _NEAR_BEST) * best["mfu"]).sum()) - 1
    peers = f"{near} more {'comes' if near == 1 else 'come'} within {percent(_NEAR_BEST, '.0%')} of it"
    words = f"{of_those}tp{int(best['tp'])} pp{int(best['pp'])} is best, {percent(best['mfu'])} MFU; {peers}"
    return ", ".join(filter(None, [words, _hole_counts(frame)]))


_REASONS = {
    "memory": ("does not fit", "do not fit"),
    "rule": ("breaks a rule", "break a rule"),
    "limit": ("is beyond the limits of a search", "are beyond the limits of a search"),
    "time": ("was not searched", "were not searched"),
}
"""Reason why a pair of degrees has no layout → words for one pair, and for several."""


def _hole_counts(frame: Frame) -> str:
    """Words on pairs of degrees without a layout, by reason: "11 do not fit and 8 break a rule"."""
    counts = {reason: int((frame["reason"] == reason).sum()) for reason in _REASONS}
    return sentence_list([f"{n} {_REASONS[reason][n > 1]}" for reason, n in counts.items() if n])


def _with_signs(frame: Frame) -> tuple[Frame, list[str]]:
    """Frame with the text of each cell that has no layout (column `sign`), and legend lines that explain these texts.

    Rules and limits that differ in their numbers alone have one letter.
    """
    reasons = frame["why"].str.split(REASON_SEPARATOR).str[0]
    has_letter = frame["reason"].isin(("rule", "limit"))
    rules = reasons[has_letter].str.replace(_NUMBER, "#", regex=True)
    letters = {rule: ascii_lowercase[place % 26] for place, rule in enumerate(rules.unique())}
    needs = "needs\n" + frame["peak_bytes"].map(format_bytes)
    signs = rules.map(letters).reindex(frame.index).where(has_letter, needs)
    lines = []
    for rule, letter in letters.items():
        first, *others = reasons[has_letter][rules == rule].str.replace("`", "").unique()
        lines.append(f"{letter}: {first}{', and the like' if others else ''}")
    if (frame["reason"] == "memory").any():
        lines.append("needs: the fullest device of the layout that comes closest to fitting")
    if (open_ones := int((frame["gap"] > 0).sum())) > 0:
        lines.append(f"*: {counted(open_ones, 'pair')} not proven the best in time")
    lines += ["outlined: the plan"] if frame["chosen"].any() else []
    return frame.assign(sign=signs.mask(frame["reason"] == "time", "not\nsearched")), lines


_MIN_GAIN = 5e-3
"""Smallest relative gain by another layout that the title mentions."""


@style.drawing()
def tornado(frame: Frame, subject: str) -> Figure:
    """Tornado chart: change of the step time by less and more of each quantity; a diamond marks the step if planned
    anew.

    Args:
        frame: a row for each quantity and factor with `quantity`, `factor`, `held_seconds`, `held_fits`,
            `step_seconds`, `plan_seconds`, the quantities in their order.
        subject: what was priced.
    """
    names = list(dict.fromkeys(map(str, frame["quantity"])))
    base = float(frame["plan_seconds"].iloc[0])
    unit, scale = time_unit(base)
    subject = f"{subject}; line: its step, {format_seconds(base)}"
    figure, axes = style.new_chart(9.6, 2.1 + 0.72 * len(names), tornado_finding(frame), subject)
    diamond: style.Look = {"marker": "D", "markersize": 5, "color": style.INK, "linestyle": ""}
    diamond["markerfacecolor"] = "white"
    for row in frame.to_dict(orient="records"):
        shift, colour = (-0.5, style.BLUE) if row["factor"] > 1 else (0.5, style.ORANGE)
        at = names.index(str(row["quantity"])) + shift * _BAR_HEIGHT
        held_seconds, best_seconds, fits = row["held_seconds"], row["step_seconds"], row["held_fits"]
        words, ends = "does not fit", [base]
        if fits:
            words = change(base, held_seconds)
            ends.append(held_seconds)
            look: style.Look = {
                "color": colour,
                "label": f"{percent(float(row['factor']) - 1, '+.0%')} of it",
            }
            axes.barh(at, (held_seconds - base) / scale, left=base / scale, height=_BAR_HEIGHT, **look)
        if not math.isnan(best_seconds):
            ends.append(best_seconds)
            axes.plot([best_seconds / scale], [at], **diamond, label="re-planned")
            if not (fits and abs(best_seconds - held_seconds) <= 5e-4 * base):
                words += f"{', ' if fits else '; '}re-planned {change(base, best_seconds)}"
        end = max(ends, key=lambda seconds: abs(seconds - base))
        side, shift = ("left", 6) if end >= base else ("right", -6)
        style.write_beside(axes, words, (end / scale, at), (shift, 0), ha=side, va="center", size=8)
    axes.axvline(base / scale, color=style.INK, linewidth=1.2)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.3)
    style.name_axes(axes, f"step ({unit})", grid="x")
    handles = labelled_artists(axes)
    place: style.Look = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "ncols": 3, "fontsize": 8}
    axes.legend(handles.values(), handles, **place)
    return figure


def tornado_finding(frame: Frame) -> str:
    """Title of the tornado chart: "Compute efficiency moves the step most: 25 % less of it adds 29.1 %; ..."."""
    base = float(frame["plan_seconds"].iloc[0])

    def effect(row: Frame, name: str, column: str) -> str:
        """Words on the change of the step time in a row: "25 % less of it adds 29.1 %"."""
        factor, shift = float(row["factor"]), float(row[column]) / base - 1
        amount = f"{percent(abs(factor - 1), '.0%')} {'more' if factor > 1 else 'less'} {name}"
        return f"{amount} {'adds' if shift > 0 else 'saves'} {percent(abs(shift))}"

    fitting = frame[frame["held_fits"]]
    if fitting.empty:
        return "Nothing that could change leaves room for the plan"
    top = fitting.loc[(fitting["held_seconds"] - base).abs().idxmax()]
    name = str(top["quantity"])
    finding = f"{name[:1].upper()}{name[1:]} moves the step most: {effect(top, 'of it', 'held_seconds')}"
    reach = frame["held_seconds"].where(frame["held_fits"], math.inf).clip(upper=base)
    gain = frame[frame["step_seconds"] < (1 - _MIN_GAIN) * reach]
    if gain.empty:
        return finding
    best = gain.loc[gain["step_seconds"].idxmin()]
    return f"{finding}; {effect(best, best['quantity'], 'step_seconds')} with another layout"


_DAY = 86400.0
_INTERVALS, _DRAWN_ENDS = 81, 9
"""Intervals between checkpoints that are forecast, and those of them whose ends are drawn."""
_INTERVAL_SPREAD = 30.0
"""Ratio of the longest checkpoint interval drawn to the best, and of the best to the shortest."""
_FORECAST_COLUMNS = ["what", "gpus", "every", "work_seconds", "seconds"]
_FORECAST_COLUMNS += ["early_seconds", "late_seconds", "goodput", "chosen"]
_SIZE_FACTORS = [2.0**power for power in range(-4, 5)]


@style.drawing()
def forecast(frame: Frame, plan: Forecast, subject: str) -> Figure:
    """Two line plots: days until the job ends against minutes between checkpoints, and goodput against GPUs.

    Args:
        frame: as `forecast_frame` makes it.
        plan: the forecast itself.
        subject: what was forecast.
    """
    ends, sizes = frame[frame["what"] == "interval"], frame[frame["what"] == "gpus"]
    (planned,) = ends[ends["chosen"]].to_dict(orient="records")
    early, late = (format_days(planned[f"{end}_seconds"]) for end in ("early", "late"))
    finding = f"Saving every {grouped(plan.interval)} steps ends the job after {format_days(plan.seconds)}"
    finding += "" if early == late else f", in 9 of 10 cases after {early} to {late}"
    finding += f"; goodput {percent(plan.goodput)}"
    figure = style.new_figure(10.0, 4.6, finding, f"{subject}; star: the plan")
    left, right = figure.subplots(1, 2)
    minutes = ends["work_seconds"] / 60
    bands = ends["early_seconds"] / _DAY, ends["late_seconds"] / _DAY
    left.fill_between(minutes, *bands, color=style.BLUE, alpha=0.15, linewidth=0)
    left.plot(minutes, ends["seconds"] / _DAY, color=style.BLUE, linewidth=1.6)
    style.mark_plan(left, planned["work_seconds"] / 60, planned["seconds"] / _DAY)
    style.log_axis(left, "x", minutes)
    style.name_axes(left, "minutes of training between checkpoints", "days until the end; band: 90 % of ends")
    look: style.Look = {"color": style.GREEN, "linewidth": 1.6, "marker": "o", "markersize": 4}
    right.plot(sizes["gpus"], 100 * sizes["goodput"], **look)
    style.mark_plan(right, plan.job.gpus, 100 * sizes["goodput"][sizes["chosen"]])
    style.gpu_ticks(right, sizes["gpus"], distance=0.11)
    right.set_ylim(0, 102)
    style.name_axes(right, "GPUs, each with its best interval", "goodput (%)", grid="y")
    return figure


def forecast_frame(plan: Forecast, steps: Array | None = None) -> pd.DataFrame:
    """Frame of forecasts, with a row per checkpoint interval (`what` is interval) and a row per number of GPUs
    (`what` is gpus, at the best interval). Columns: `gpus`, `every`, `work_seconds`, `seconds`, `early_seconds`,
    `late_seconds`, `goodput`, `chosen`.

    Early and late are the 5th and the 95th percentile over failures and over `steps`, step seconds of equal
    probability; between a few intervals their ratio to the expected end is interpolated. Steps on other numbers of GPUs
    are taken to be as many times shorter.
    """
    shortest = max(plan.interval / _INTERVAL_SPREAD, least_steps(replace(plan, interval=1).segment))
    longest = min(plan.interval * _INTERVAL_SPREAD, plan.job.steps)
    counts = np.geomspace(shortest, max(shortest, longest), _INTERVALS).round().astype(int)
    intervals = [replace(plan, interval=interval) for interval in sorted({*counts.tolist(), plan.interval})]
    at = {plan.interval, *counts[:: (_INTERVALS - 1) // (_DRAWN_ENDS - 1)].tolist()}
    interval_ends = [(point.interval, *ends_of(point, steps)) for point in intervals if point.interval in at]
    drawn_intervals, early, middle, late = np.array(interval_ends).T
    points = [("interval", point, point.interval) for point in intervals]
    points += [("gpus", point, plan.interval) for point in _other_sizes(plan)]
    rows = []
    for what, point, interval in points:
        ratios = [np.interp(np.log(interval), np.log(drawn_intervals), end / middle) for end in (early, late)]
        seconds = [point.seconds, *(ratio * point.seconds for ratio in ratios)]
        is_plan = (interval, point.job.gpus) == (plan.interval, plan.job.gpus)
        work = point.segment.work
        rows.append((what, point.job.gpus, point.interval, work, *seconds, point.goodput, is_plan))
    return frame_of(rows, columns=_FORECAST_COLUMNS)


def _other_sizes(plan: Forecast) -> Iterator[Forecast]:
    """Forecasts of the job on 1/16 to 16 times its GPUs, up to the first number on which it never ends."""
    job = plan.job
    with suppress(InfeasibleError):
        for factor in _SIZE_FACTORS:
            gpus, nodes = round(job.gpus * factor), max(1, round(job.nodes * factor))
            if gpus >= 1:
                step = job.step_seconds * job.gpus / gpus
                yield forecast_of(replace(job, gpus=gpus, nodes=nodes, step_seconds=step), plan.operations)
