"""Figures of what changes an answer: techniques (ladder), degrees (heat map), quantities (tornado), checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from cost_models.errors import InfeasibleError
from cost_models.reliability import Forecast, least_steps
from cost_models.reliability import forecast as forecast_of
from cost_models.units import counted, format_bytes, format_days, format_seconds, grouped
from meshwright.plots import style
from meshwright.plots.style import Frame, fit_lines
from meshwright.records import frame_of
from meshwright.render.words import change, percent, sentence_list, time_unit
from planner.answers.frontier import REASON_SEPARATOR

if TYPE_CHECKING:
    import pandas as pd


_RUNG_COLOURS = {"base": style.GREY, "trainer": style.BLUE, "mathematics": style.VERMILION}
_RUNG_WORDS = {"trainer": "what trainers do", "mathematics": "what changes the training"}


def ladder(frame: Frame, subject: str) -> Figure:
    """A bar per rung from the bare trainer down the page; pale: what the plan lacks.

    Args:
        frame: a row per rung with `name`, `kind`, `has`, `mfu`, `adds`, `step_seconds`, `fits`.
        subject: what was priced.
    """
    count = len(frame)
    with style.sheet(9.6, 1.5 + 0.42 * count) as figure:
        axes = figure.subplots()
        base = 0.0
        for at, row in enumerate(frame.to_dict(orient="records")):
            mfu, colour = 100 * float(row["mfu"]), _RUNG_COLOURS[str(row["kind"])]
            axes.barh(at, min(mfu, base) if at else mfu, color=style.FAINT if at else colour, height=0.62)
            if at:
                start, width = min(mfu, base), abs(mfu - base)
                alpha = 1.0 if row["has"] else 0.45
                axes.barh(at, max(width, 0.12), left=start, color=colour, alpha=alpha, height=0.62)
            added = f"  {100 * float(row['adds']):+.1f}" if at else ""
            fits = "" if row["fits"] else ", does not fit"
            words = f"{mfu:.1f} %{added}   {format_seconds(float(row['step_seconds']))}{fits}"
            axes.text(max(mfu, base) + 0.6, at, words, va="center", size=8.5)
            base = mfu
        axes.set_yticks(range(count), [str(name) for name in frame["name"]])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.3 * 100 * float(frame["mfu"].max()))
        style.measure_axis(axes, "x", "MFU (%), and seconds for a batch of the plan's size")
        kinds = [
            (_RUNG_WORDS[kind], _RUNG_COLOURS[kind]) for kind in _RUNG_WORDS if (frame["kind"] == kind).any()
        ]
        style.name_in_corner(axes, kinds, 0.99, 0.97, step=0.07, side="right")
        pale = "; pale: what the plan lacks" if not frame["has"].all() else ""
        style.put_title(figure, ladder_finding(frame), f"{subject}{pale}")
    return figure


def ladder_finding(frame: Frame) -> str:
    """ "From 38.2 % to 58.7 % MFU; tensor-parallel overlap saves most"."""
    first, last = float(frame["mfu"].iloc[0]), float(frame["mfu"].iloc[-1])
    sentence = f"From {percent(first)} to {percent(last)} MFU"
    return f"{sentence}; most by {frame['name'].iloc[1]}" if len(frame) > 1 else sentence


_COLOUR_MAP = "cividis"
"""Evenly rising lightness, and the same to most eyes (Nunez, Anderton & Renslow 2018)."""
_DARKEST, _LIGHTEST = 0.25, 0.95
_INK_DEPTH = 0.55
"""From this depth on ink stands out more than white."""
_NEAR_BEST = 0.05
"""Layouts so close to the best are counted in the title."""
_OTHERS_ALIKE = ", and the like"
_NUMBER = re.compile(r"\d[\d,.]*")
_LINE_INCHES = 0.19
_ROW_INCHES, _COLUMN_INCHES = 0.62, 0.95


def heatmap(frame: Frame, subject: str) -> Figure:
    """A cell for each pair of degrees: its MFU, or why it is a hole: the memory it needs, the rule it breaks.

    Args:
        frame: a row per cell with `tp`, `pp`, `mfu`, `peak_bytes`, `gap`, `reason`, `why`, `chosen`.
        subject: what was priced.
    """
    tps, pps = (sorted(int(one) for one in frame[name].unique()) for name in ("tp", "pp"))
    rules = _broken_rules(frame)
    width = max(6.4, 1.6 + _COLUMN_INCHES * len(pps))
    legend_lines = [
        line for words in _sign_legend(frame, rules) for line in fit_lines(words, 72 * (width - 0.4), size=8)
    ]
    with style.sheet(width, 1.7 + _ROW_INCHES * len(tps) + _LINE_INCHES * len(legend_lines)) as figure:
        axes = figure.subplots()
        min_mfu, max_mfu = float(frame["mfu"].min()), float(frame["mfu"].max())
        for row in frame.to_dict(orient="records"):
            x, y = pps.index(int(row["pp"])), tps.index(int(row["tp"]))
            if row["reason"]:
                words = _hole_words(row, rules)
                hole = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="white", edgecolor=style.PALE)
                hole.set(hatch="////", linewidth=0)
                axes.add_patch(hole)
                box = {"facecolor": "white", "linewidth": 0, "pad": 1.5}
                axes.text(x, y, words, ha="center", va="center", color=style.INK, size=8, bbox=box)
                continue
            share = (float(row["mfu"]) - min_mfu) / (max_mfu - min_mfu) if max_mfu > min_mfu else 1.0
            depth = _DARKEST + (_LIGHTEST - _DARKEST) * share
            axes.add_patch(
                Rectangle(
                    (x - 0.5, y - 0.5), 1, 1, facecolor=mpl.colormaps[_COLOUR_MAP](depth), edgecolor="white"
                )
            )
            ink = style.INK if depth > _INK_DEPTH else "white"
            words = f"{100 * float(row['mfu']):.1f}{'*' if float(row['gap']) > 0 else ''}"
            axes.text(x, y, words, ha="center", va="center", color=ink, size=10, weight="bold")
        for row in frame[frame["chosen"]].to_dict(orient="records"):
            _outline_plan(axes, pps.index(int(row["pp"])), tps.index(int(row["tp"])))
        axes.set_xlim(-0.5, len(pps) - 0.5)
        axes.set_ylim(-0.5, len(tps) - 0.5)
        axes.set_xticks(range(len(pps)), [str(one) for one in pps])
        axes.set_yticks(range(len(tps)), [str(one) for one in tps])
        axes.set_xlabel("pipeline degree (pp)")
        if legend_lines:
            figure.supxlabel("\n".join(legend_lines), linespacing=1.5, size=8, ha="left", x=0.02)
        axes.set_ylabel("tensor degree (tp)")
        axes.grid(False)
        axes.spines[:].set_visible(False)
        style.put_title(figure, heatmap_finding(frame), f"{subject}; MFU (%) of the best layout of each pair")
    return figure


def heatmap_finding(frame: Frame) -> str:
    """ "tp4 pp8 is best, 60.2 % MFU; 5 more come within 5 % of it, 11 do not fit, 8 break a rule"."""
    solved, unsearched = frame[frame["reason"] == ""], frame["reason"] == "time"
    if solved.empty and unsearched.any():
        if unsearched.all():
            return f"None of {len(frame)} pairs of degrees was searched in time"
        return f"Of {(~unsearched).sum()} pairs searched none has a layout: {_hole_counts(frame)}"
    if solved.empty:
        return f"No pair of degrees has a layout: {_hole_counts(frame)}"
    best = solved.loc[solved["mfu"].idxmax()]
    near = int((solved["mfu"] >= (1 - _NEAR_BEST) * best["mfu"]).sum()) - 1
    peers = f"{near} more {'comes' if near == 1 else 'come'} within {percent(_NEAR_BEST)[:-4]} % of it"
    counts = _hole_counts(frame)
    of_those = f"Of {(~unsearched).sum()} pairs searched " if unsearched.any() else ""
    return (
        f"{of_those}tp{int(best['tp'])} pp{int(best['pp'])} is best, {percent(best['mfu'])} MFU; "
        + ", ".join(filter(None, [peers, counts]))
    )


def _hole_counts(frame: Frame) -> str:
    """ "11 do not fit, 8 break a rule"."""
    reason_words = {"memory": ("does not fit", "do not fit"), "rule": ("breaks a rule", "break a rule")}
    reason_words["limit"] = ("is beyond the limits of a search", "are beyond the limits of a search")
    reason_words["time"] = ("was not searched", "were not searched")
    counts = {reason: int((frame["reason"] == reason).sum()) for reason in reason_words}
    return sentence_list([f"{n} {reason_words[reason][n > 1]}" for reason, n in counts.items() if n])


def _broken_rules(frame: Frame) -> dict[str, tuple[str, str]]:
    """Text of a rule or a limit without its numbers → its letter, and the words of the first such cell."""
    rules: dict[str, tuple[str, str]] = {}
    for row in frame[frame["reason"].isin(("rule", "limit"))].to_dict(orient="records"):
        words = str(row["why"]).split(REASON_SEPARATOR)[0]
        letter, first = rules.setdefault(_NUMBER.sub("#", words), (ascii_lowercase[len(rules) % 26], words))
        if first != words and not first.endswith(_OTHERS_ALIKE):
            rules[_NUMBER.sub("#", words)] = (letter, first + _OTHERS_ALIKE)
    return rules


def _hole_words(row: dict[str, object], rules: dict[str, tuple[str, str]]) -> str:
    if row["reason"] == "memory":
        return f"needs\n{format_bytes(float(str(row['peak_bytes'])))}"
    if row["reason"] == "time":
        return "not\nsearched"
    return rules[_NUMBER.sub("#", str(row["why"]).split(REASON_SEPARATOR)[0])][0]


def _sign_legend(frame: Frame, rules: dict[str, tuple[str, str]]) -> list[str]:
    """Explanations of letters and signs in the cells."""
    lines = [f"{letter}: {words.replace('`', '')}" for letter, words in rules.values()]
    if (frame["reason"] == "memory").any():
        lines.append("needs: the fullest device of the layout that comes closest to fitting")
    if (open_ones := int((frame["gap"] > 0).sum())) > 0:
        lines.append(f"*: {counted(open_ones, 'pair')} not proven the best in time")
    if frame["chosen"].any():
        lines.append("outlined: the plan")
    return lines


def _outline_plan(axes: Axes, x: int, y: int) -> None:
    """Around the plan's own cell."""
    side = 0.94
    axes.add_patch(
        Rectangle(
            (x - side / 2, y - side / 2),
            side,
            side,
            fill=False,
            edgecolor=style.VERMILION,
            linewidth=2.4,
            zorder=4,
        )
    )


_MORE_COLOUR, _LESS_COLOUR = style.BLUE, style.ORANGE
_BAR_HEIGHT = 0.34
_MIN_GAIN = 5e-3
"""Gain of another layout from which it is told."""


def tornado(frame: Frame, subject: str) -> Figure:
    """Two bars for each quantity from the plan's step on; a diamond is the best plan then.

    Args:
        frame: a row for each quantity and factor with `quantity`, `factor`, `held_seconds`, `held_fits`,
            `step_seconds`, `plan_seconds`, the quantities in their order.
        subject: what was priced.
    """
    names = list(dict.fromkeys(str(one) for one in frame["quantity"]))
    base = float(frame["plan_seconds"].iloc[0])
    unit, scale = time_unit(base)
    with style.sheet(9.6, 2.1 + 0.72 * len(names)) as figure:
        axes = figure.subplots()
        for row in frame.to_dict(orient="records"):
            is_more = float(row["factor"]) > 1
            at = names.index(str(row["quantity"])) + (-_BAR_HEIGHT / 2 if is_more else _BAR_HEIGHT / 2)
            colour = _MORE_COLOUR if is_more else _LESS_COLOUR
            bar, best = float(row["held_seconds"]) / scale, float(row["step_seconds"]) / scale
            fits = bool(row["held_fits"])
            if fits:
                axes.barh(at, bar - base / scale, left=base / scale, height=_BAR_HEIGHT, color=colour)
            if best == best:
                axes.plot([best], [at], marker="D", markersize=5, color=style.INK, markerfacecolor="white")
            _write_change(axes, at, base / scale, bar if fits else None, best, base, scale)
        axes.axvline(base / scale, color=style.INK, linewidth=1.2)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.margins(x=0.3)
        style.measure_axis(axes, "x", f"step ({unit})")
        low, high = sorted(float(one) for one in frame["factor"].unique())
        diamond = Line2D([], [], marker="D", color="none", markeredgecolor=style.INK, markerfacecolor="white")
        axes.legend(
            [Patch(color=_MORE_COLOUR), Patch(color=_LESS_COLOUR), diamond],
            [f"{percent(high - 1, '+.0%')} of it", f"{percent(low - 1, '+.0%')} of it", "re-planned"],
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=3,
            fontsize=8,
        )
        style.put_title(figure, tornado_finding(frame), f"{subject}; line: its step, {format_seconds(base)}")
    return figure


def tornado_finding(frame: Frame) -> str:
    """ "Compute efficiency moves the step most: 25 % less of it adds 29.1 %; ..."."""
    base = float(frame["plan_seconds"].iloc[0])
    fitting = frame[frame["held_fits"]]
    if fitting.empty:
        return "Nothing that could change leaves room for the plan"
    top = fitting.loc[(fitting["held_seconds"] - base).abs().idxmax()]
    name = str(top["quantity"])
    shift = f"{_factor_words(top)} of it {_effect_words(base, float(top['held_seconds']))}"
    words = f"{name[:1].upper()}{name[1:]} moves the step most: {shift}"
    gain = frame[(frame["step_seconds"] < (1 - _MIN_GAIN) * frame["held_seconds"]) | ~frame["held_fits"]]
    gain = gain[gain["step_seconds"] < (1 - _MIN_GAIN) * base]
    if gain.empty:
        return words
    best = gain.loc[gain["step_seconds"].idxmin()]
    effect = _effect_words(base, float(best["step_seconds"]))
    return f"{words}; {_factor_words(best)} {best['quantity']} {effect} with another layout"


def _factor_words(row: Frame) -> str:
    """ "25 % less"."""
    factor = float(row["factor"])
    return percent(abs(factor - 1), ".0%") + (" more" if factor > 1 else " less")


def _effect_words(base: float, step: float) -> str:
    """ "adds 29.1 %"."""
    shift = step / base - 1
    return f"{'adds' if shift > 0 else 'saves'} {percent(abs(shift))}"


def _write_change(
    axes: Axes, at: float, base: float, bar: float | None, best: float, plan: float, scale: float
) -> None:
    """The change beside the bar's end, or that the plan does not fit then."""
    ends = [one for one in (bar, best) if one is not None and one == one]
    if bar is None:
        words = "does not fit" if best != best else f"does not fit; re-planned {change(plan, best * scale)}"
    else:
        words = change(plan, bar * scale)
        if best == best and abs(best - bar) > 5e-4 * base:
            words += f", re-planned {change(plan, best * scale)}"
    end = max(ends, key=lambda one: abs(one - base), default=base)
    right = end >= base
    side, shift = ("left", 6) if right else ("right", -6)
    style.write_beside(axes, words, (end, at), (shift, 0), ha=side, va="center", size=8)


_DAY = 86400.0


def forecast(frame: Frame, plan: Forecast, subject: str) -> Figure:
    """Days until the end over the minutes between checkpoints, and goodput over GPUs.

    Args:
        frame: as `forecast_frame` makes it.
        plan: the forecast itself.
        subject: what was forecast.
    """
    with style.sheet(10.0, 4.6) as figure:
        end, sizes = figure.subplots(1, 2)
        _draw_ends(end, frame[frame["what"] == "interval"])
        _draw_goodputs(sizes, frame[frame["what"] == "gpus"])
        finding = (
            f"Saving every {grouped(plan.interval)} steps ends the job after {format_days(plan.seconds)}, goodput"
            f" {percent(plan.goodput)}"
        )
        style.put_title(figure, finding, subject)
    return figure


def _draw_ends(axes: Axes, line: Frame) -> None:
    x = line["work_seconds"] / 60
    early, late = line["early_seconds"] / _DAY, line["late_seconds"] / _DAY
    axes.fill_between(x, early, late, color=style.BLUE, alpha=0.15, linewidth=0)
    axes.plot(x, line["seconds"] / _DAY, color=style.BLUE, linewidth=1.6)
    planned = line[line["chosen"]]
    style.mark_plan(axes, planned["work_seconds"] / 60, planned["seconds"] / _DAY)
    axes.set_xscale("log")
    axes.set_xlabel("minutes of training between checkpoints")
    axes.set_ylabel("days until the end; band: 8 in 10")
    _plain(axes)
    style.quiet_axis(axes, grid="both")


def _draw_goodputs(axes: Axes, line: Frame) -> None:
    axes.plot(line["gpus"], 100 * line["goodput"], color=style.GREEN, linewidth=1.6, marker="o", markersize=4)
    planned = line[line["chosen"]]
    style.mark_plan(axes, planned["gpus"], 100 * planned["goodput"])
    axes.set_xscale("log", base=2)
    axes.set_xticks(line["gpus"], [grouped(int(gpus)) for gpus in line["gpus"]], rotation=40, ha="right")
    axes.minorticks_off()
    axes.set_xlabel("GPUs, each with its best interval; star: the plan")
    axes.set_ylabel("goodput (%)")
    axes.set_ylim(0, 102)
    style.quiet_axis(axes, grid="y")


def _plain(axes: Axes) -> None:
    """Numbers, not powers of ten."""
    from matplotlib.ticker import FuncFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


_INTERVALS = 81
_INTERVAL_SPREAD = 30.0
"""Ratio of the longest interval drawn to the best, and of the best to the shortest."""
_SIZE_FACTORS = [2.0**power for power in range(-4, 5)]
_TENTH_DEVIATIONS = 1.2816
"""90th percentile of the normal distribution, in standard deviations."""


def forecast_frame(plan: Forecast) -> pd.DataFrame:
    """A row per interval between checkpoints (`what` interval), and per number of GPUs (`what` gpus) at its best one:
    `gpus`, `every`, `work_seconds`, `seconds`, `early_seconds`, `late_seconds`, `goodput`, `chosen`.

    Steps on other numbers of GPUs are taken to be as many times shorter.
    """
    rows = [
        _forecast_row("interval", point, is_plan=point.interval == plan.interval)
        for point in _with_intervals(plan)
    ]
    rows += [
        _forecast_row("gpus", point, is_plan=point.job.gpus == plan.job.gpus) for point in _with_sizes(plan)
    ]
    return frame_of(rows)


def _with_intervals(plan: Forecast) -> Iterator[Forecast]:
    shortest = max(plan.interval / _INTERVAL_SPREAD, least_steps(replace(plan, interval=1).segment))
    longest = min(plan.interval * _INTERVAL_SPREAD, plan.job.steps)
    steps = np.round(np.geomspace(shortest, max(shortest, longest), _INTERVALS)).astype(int)
    for interval in sorted({*steps.tolist(), plan.interval}):
        yield replace(plan, interval=interval)


def _with_sizes(plan: Forecast) -> Iterator[Forecast]:
    for factor in _SIZE_FACTORS:
        job = plan.job
        gpus = round(job.gpus * factor)
        if gpus < 1:
            continue
        resized_job = replace(
            job,
            gpus=gpus,
            nodes=max(1, round(job.nodes * factor)),
            step_seconds=job.step_seconds * job.gpus / gpus,
        )
        try:
            yield forecast_of(resized_job, plan.operations)
        except InfeasibleError:
            return


def _forecast_row(axis: str, point: Forecast, *, is_plan: bool) -> dict[str, Any]:
    reach = _TENTH_DEVIATIONS * point.deviation
    return {
        "what": axis,
        "gpus": point.job.gpus,
        "every": point.interval,
        "work_seconds": point.segment.work,
        "seconds": point.seconds,
        "early_seconds": max(point.job.seconds, point.seconds - reach),
        "late_seconds": point.seconds + reach,
        "goodput": point.goodput,
        "chosen": is_plan,
    }
