"""The accuracy of predictions as a page: tables by source, the worst sweeps and rows, and what had to be assumed.

`accuracy.md.j2` has the page's words; here are the cells of its tables.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from cost_models.documents import printable
from cost_models.measured.runs.cases import source_notes
from cost_models.measured.validation.predictions import Figures, Prediction
from cost_models.measured.validation.scores import SourceScore, step_error
from cost_models.units import format_seconds
from meshwright.pages.html import templates
from meshwright.render.tables import Table, table
from meshwright.render.words import part_label, percent
from meshwright.verbs.validate import validated as text
from meshwright.verbs.validate.validated import Validated

PREDICTED_PLOT = "images/accuracy-predicted.png"
AXES_PLOT = "images/accuracy-by-axis.png"
T = TypeVar("T")
Cells = list[list[str]]
_LOCAL = "in the table that was given"
_MAX_EACH = 3
_MAX_ROWS = 20
"""Most lines in the tables of the largest errors."""
_ENOUGH = 5
"""Rows from which a group's median is worth printing."""
_HEAVY = 0.1


def accuracy_page(validated: Validated) -> str:
    """Page as Markdown, with its plots beside it."""
    predictions, sources, notes = validated.predictions, validated.sources, source_notes()
    measured = {name: note.measured for name, note in notes.items()}
    compared = [
        [one.source, str(one.rows), str(one.step.count if one.step else 0), measured.get(one.source, _LOCAL)]
        for one in sources
    ]
    anchored = [
        [source.source, str(error.count), percent(error.median), percent(error.p90)]
        for source in sources
        if (error := source.anchored) is not None
    ]
    unknown = [[one.source, notes[one.source].unknown] for one in sources if one.source in notes]
    skipped = [[reason, str(rows)] for reason, rows in text.reasons(predictions)[:_MAX_ROWS]]
    environment = templates("meshwright.verbs.validate", escaped=False)
    environment.filters |= {"cell": _cell, "dashes": lambda _: " --- "}
    page = environment.get_template("accuracy.md.j2").render(
        anchors=validated.anchors,
        summary=" ".join(text.summary(predictions, anchors=validated.anchors).split()),
        compared=table(("source", "rows", "timed", "measured by"), compared),
        predicted_plot=PREDICTED_PLOT,
        axes_plot=AXES_PLOT,
        timed=text.step_table(sources),
        choices=text.choice_table(validated.choices),
        memory=text.memory_table(sources),
        chances=text.chance_table(predictions),
        chances_heading=text.chances_heading(predictions),
        figures=[_figures(group) for group in validated.figures],
        anchored=_listing(("source", "rows", "median", "p90"), anchored),
        of_each=_MAX_EACH,
        sweeps=_listing(("source", "sweep", "rows", "regret", "tau"), _sweeps(sources)),
        heavy=f"{100 * _HEAVY:.0f}",
        by_part=_listing(_PART_HEADERS, [*_by_part(predictions)]),
        worst=_listing(("run", "model", "layout", "measured", "predicted", "error"), _worst(predictions)),
        unknown=_listing(("source", "unknown"), unknown),
        assumed=_listing(("assumption", "rows", "median error of those timed"), _assumed(predictions)),
        skipped=_listing(("reason", "rows"), skipped),
    )
    return page.rstrip() + "\n"


_PART_HEADERS = ("part", "runs", "median share", "median error", "median size")


def _listing(headers: Sequence[str], rows: Cells) -> Table | None:
    """A table; None without rows."""
    return table(headers, rows) if rows else None


_UNITS = {"mfu": "points of MFU", "days": "%"}
_FORMATS = {"mfu": "{:.1f} %", "days": "{:.2f} days"}
_OFF = {"mfu": "{:+.1f} points", "days": "{:+.1f} %"}


def _figures(group: Figures) -> dict[str, Any]:
    """A table of figures, with what each rung of a ladder adds, and how many are met."""
    cell, off = _FORMATS[group.quantity], _OFF[group.quantity]
    headers = ["", "published", "predicted", "off"]
    rows = [
        [one.name, cell.format(one.published), cell.format(one.predicted), off.format(one.off)]
        for one in group.points
    ]
    near = f"{group.within:g} {_UNITS[group.quantity]}"
    profiles = sorted({point.profile for point in group.points})
    tolerated = f"{group.within_tolerance} of {len(group.points)}"
    notes = [f"Within {near}: {tolerated}; profiles: {', '.join(profiles)}."]
    if group.ladder:
        headers += ["adds, published", "adds, predicted"]
        pairs = pairwise(group.points)
        adds = [(two.published - one.published, two.predicted - one.predicted) for one, two in pairs]
        for row, added in zip(rows, [("", ""), *((f"{a:+.1f}", f"{b:+.1f}") for a, b in adds)], strict=True):
            row += added
        right = sum(abs(found - known) <= group.within for known, found in adds)
        notes.append(f"What a rung adds, by itself: {right} of {len(adds)} within {near}.")
    return {"title": group.title, "source": group.source, "points": table(headers, rows), "met": notes}


def _sweeps(sources: Sequence[SourceScore]) -> Cells:
    """Sweeps with the largest regret."""
    regrets = [(source.source, sweep) for source in sources for sweep in source.sweeps if sweep.regret > 0]
    cells = []
    for name, sweep in _examples(sorted(regrets, key=lambda pair: -pair[1].regret), lambda pair: pair[0]):
        model, sequence, gpus, batch, gpu, precision = sweep.key
        shared = f"{model}, sequence {sequence}, {gpus} x {gpu}, batch {batch}, {precision}"
        tau = "-" if sweep.tau is None else f"{sweep.tau:.2f}"
        cells.append([name, shared, str(sweep.rows), percent(sweep.regret), tau])
    return cells


def _by_part(predictions: Sequence[Prediction]) -> Iterator[list[str]]:
    """Median error of the runs in which a part has its largest shares."""
    shares: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for prediction in predictions:
        error, total = step_error(prediction), sum(prediction.parts.values())
        if error is not None and total > 0:
            for part, seconds in prediction.parts.items():
                shares[part].append((seconds / total, error))
    for part, pairs in shares.items():
        heavy = [(share, error) for share, error in pairs if share >= _HEAVY]
        if len(heavy) >= _ENOUGH:
            share, error = (statistics.median(values) for values in zip(*heavy, strict=True))
            off = percent(statistics.median(abs(error) for _, error in heavy))
            yield [part_label(part), str(len(heavy)), percent(share), text.signed_percent(error), off]


def _worst(predictions: Sequence[Prediction]) -> Cells:
    """Runs furthest off."""
    timed = [(error, row) for row in predictions if (error := step_error(row)) is not None]
    cells = []
    ordered = sorted(timed, key=lambda pair: -abs(pair[0]))
    for error, row in _examples(ordered, lambda pair: pair[1].row.source_id):
        assert row.case is not None
        first = row.row.row_id, row.row.model, f"`{row.case.layout.brief}`"
        times = row.row.step_seconds or 0.0, row.step_seconds or 0.0
        cells.append([*first, *map(format_seconds, times), text.signed_percent(error)])
    return cells


def _assumed(predictions: Sequence[Prediction]) -> Cells:
    """Cells of each assumption, with the median error of runs that needed it."""
    counts: Counter[str] = Counter()
    errors: dict[str, list[float]] = defaultdict(list)
    for prediction in predictions:
        for assumed in prediction.assumptions:
            counts[assumed] += 1
            if (error := step_error(prediction)) is not None:
                errors[assumed].append(abs(error))
    return [
        [assumed, str(rows), percent(statistics.median(errors[assumed])) if errors[assumed] else "-"]
        for assumed, rows in counts.most_common(_MAX_ROWS)
    ]


def _examples(items: Sequence[T], source_of: Callable[[T], str]) -> Iterator[T]:
    """The first of each source, `_MAX_ROWS` in all."""
    seen: Counter[str] = Counter()
    for item in items:
        seen[source_of(item)] += 1
        number_listed = sum(min(number, _MAX_EACH) for number in seen.values())
        if seen[source_of(item)] <= _MAX_EACH and number_listed <= _MAX_ROWS:
            yield item


def _cell(text: str) -> str:
    """One line that no table and no page reads as anything else."""
    return printable(text).replace("|", "/").replace("[", "(").replace("]", ")").replace("<", "(")
