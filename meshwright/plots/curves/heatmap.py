"""The heat map: MFU of the best layout for each tensor and pipeline degree, and why the holes are holes."""

from __future__ import annotations

import re
from string import ascii_lowercase

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cost_models.units import counted, format_bytes
from meshwright.plots.parts import style
from meshwright.plots.parts.style import Frame
from meshwright.plots.parts.text import fitted
from meshwright.render.words import percent, sentence_list
from planner.answers.frontier import REASON_SEPARATOR

_COLOURS = "cividis"
"""Evenly rising lightness, and the same to most eyes (Nunez, Anderton & Renslow 2018)."""
_DARKEST, _LIGHTEST = 0.25, 0.95
_INKED = 0.55
"""From this depth on ink stands out more than white."""
_NEAR = 0.05
"""Layouts so close to the best are counted in the title."""
_ALIKE = ", and the like"
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
    rules = _rules(frame)
    wide = max(6.4, 1.6 + _COLUMN_INCHES * len(pps))
    told = [line for words in _legend(frame, rules) for line in fitted(words, 72 * (wide - 0.4), size=8)]
    with style.sheet(wide, 1.7 + _ROW_INCHES * len(tps) + _LINE_INCHES * len(told)) as figure:
        axes = figure.subplots()
        least, most = float(frame["mfu"].min()), float(frame["mfu"].max())
        for row in frame.to_dict(orient="records"):
            x, y = pps.index(int(row["pp"])), tps.index(int(row["tp"]))
            if row["reason"]:
                words = _hole(row, rules)
                hole = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="white", edgecolor=style.PALE)
                hole.set(hatch="////", linewidth=0)
                axes.add_patch(hole)
                box = {"facecolor": "white", "linewidth": 0, "pad": 1.5}
                axes.text(x, y, words, ha="center", va="center", color=style.INK, size=8, bbox=box)
                continue
            share = (float(row["mfu"]) - least) / (most - least) if most > least else 1.0
            depth = _DARKEST + (_LIGHTEST - _DARKEST) * share
            axes.add_patch(
                Rectangle(
                    (x - 0.5, y - 0.5), 1, 1, facecolor=mpl.colormaps[_COLOURS](depth), edgecolor="white"
                )
            )
            ink = style.INK if depth > _INKED else "white"
            words = f"{100 * float(row['mfu']):.1f}{'*' if float(row['gap']) > 0 else ''}"
            axes.text(x, y, words, ha="center", va="center", color=ink, size=10, weight="bold")
        for row in frame[frame["chosen"]].to_dict(orient="records"):
            _outline(axes, pps.index(int(row["pp"])), tps.index(int(row["tp"])))
        axes.set_xlim(-0.5, len(pps) - 0.5)
        axes.set_ylim(-0.5, len(tps) - 0.5)
        axes.set_xticks(range(len(pps)), [str(one) for one in pps])
        axes.set_yticks(range(len(tps)), [str(one) for one in tps])
        axes.set_xlabel("pipeline degree (pp)")
        if told:
            figure.supxlabel("\n".join(told), linespacing=1.5, size=8, ha="left", x=0.02)
        axes.set_ylabel("tensor degree (tp)")
        axes.grid(False)
        axes.spines[:].set_visible(False)
        style.put_title(figure, finding(frame), f"{subject}; MFU (%) of the best layout of each pair")
    return figure


def finding(frame: Frame) -> str:
    """ "tp4 pp8 is best, 60.2 % MFU; 5 more come within 5 % of it, 11 do not fit, 8 break a rule"."""
    found, late = frame[frame["reason"] == ""], frame["reason"] == "time"
    if found.empty and late.any():
        if late.all():
            return f"None of {len(frame)} pairs of degrees was searched in time"
        return f"Of {(~late).sum()} pairs searched none has a layout: {_counts(frame)}"
    if found.empty:
        return f"No pair of degrees has a layout: {_counts(frame)}"
    best = found.loc[found["mfu"].idxmax()]
    near = int((found["mfu"] >= (1 - _NEAR) * best["mfu"]).sum()) - 1
    more = f"{near} more {'comes' if near == 1 else 'come'} within {percent(_NEAR)[:-4]} % of it"
    counts = _counts(frame)
    of_those = f"Of {(~late).sum()} pairs searched " if late.any() else ""
    return (
        f"{of_those}tp{int(best['tp'])} pp{int(best['pp'])} is best, {percent(best['mfu'])} MFU; "
        + ", ".join(filter(None, [more, counts]))
    )


def _counts(frame: Frame) -> str:
    """ "11 do not fit, 8 break a rule"."""
    said = {"memory": ("does not fit", "do not fit"), "rule": ("breaks a rule", "break a rule")}
    said["limit"] = ("is beyond the limits of a search", "are beyond the limits of a search")
    said["time"] = ("was not searched", "were not searched")
    many = {reason: int((frame["reason"] == reason).sum()) for reason in said}
    return sentence_list([f"{n} {said[reason][n > 1]}" for reason, n in many.items() if n])


def _rules(frame: Frame) -> dict[str, tuple[str, str]]:
    """What a rule or a limit says, without its numbers → its letter, and the words of the first such cell."""
    rules: dict[str, tuple[str, str]] = {}
    for row in frame[frame["reason"].isin(("rule", "limit"))].to_dict(orient="records"):
        words = str(row["why"]).split(REASON_SEPARATOR)[0]
        letter, first = rules.setdefault(_NUMBER.sub("#", words), (ascii_lowercase[len(rules) % 26], words))
        if first != words and not first.endswith(_ALIKE):
            rules[_NUMBER.sub("#", words)] = (letter, first + _ALIKE)
    return rules


def _hole(row: dict[str, object], rules: dict[str, tuple[str, str]]) -> str:
    if row["reason"] == "memory":
        return f"needs\n{format_bytes(float(str(row['peak_bytes'])))}"
    if row["reason"] == "time":
        return "not\nsearched"
    return rules[_NUMBER.sub("#", str(row["why"]).split(REASON_SEPARATOR)[0])][0]


def _legend(frame: Frame, rules: dict[str, tuple[str, str]]) -> list[str]:
    """What letters and signs in the cells mean."""
    told = [f"{letter}: {words.replace('`', '')}" for letter, words in rules.values()]
    if (frame["reason"] == "memory").any():
        told.append("needs: the fullest device of the layout that comes closest to fitting")
    if (open_ones := int((frame["gap"] > 0).sum())) > 0:
        told.append(f"*: {counted(open_ones, 'pair')} not proven the best in time")
    if frame["chosen"].any():
        told.append("outlined: the plan")
    return told


def _outline(axes: Axes, x: int, y: int) -> None:
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
