"""The accuracy of predictions as a page: tables by source, the worst sweeps and rows, and what had to be assumed."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from cost_models.documents import printable
from cost_models.measured.runs.shipped import source_notes
from cost_models.measured.validation.chances import chance_ranges
from cost_models.measured.validation.choices import ChoiceScore
from cost_models.measured.validation.figures import Figures
from cost_models.measured.validation.predicting import Prediction
from cost_models.measured.validation.scores import SourceScore, measured_seconds, step_error
from cost_models.units import format_seconds
from meshwright.render.words import part_label, percent
from meshwright.verbs.validate.text import (
    CHANCE_HEADERS,
    CHOICE_HEADERS,
    MEMORY_HEADERS,
    STEP_HEADERS,
    chance_cells,
    chances_heading,
    choice_cells,
    figures_section,
    memory_cells,
    reasons,
    signed_percent,
    speaks_of_memory,
    step_cells,
    summary,
)

PREDICTED_PLOT = "images/accuracy-predicted.png"
AXES_PLOT = "images/accuracy-by-axis.png"
T = TypeVar("T")
_OWN = "in the table that was given"
_OF_EACH = 3
_MAX_ROWS = 20
"""Lines of the tables of what is worst."""
_ENOUGH = 5
"""Rows from which a group's median is worth printing."""


def accuracy_page(
    predictions: Sequence[Prediction],
    sources: Sequence[SourceScore],
    choices: Sequence[ChoiceScore],
    *,
    anchors: int,
    figures: Sequence[Figures] = (),
) -> str:
    """The page as Markdown; its plots are beside it."""
    return "\n".join(_lines(predictions, sources, choices, anchors, figures)).rstrip() + "\n"


def _lines(
    predictions: Sequence[Prediction],
    sources: Sequence[SourceScore],
    choices: Sequence[ChoiceScore],
    anchors: int,
    figures: Sequence[Figures],
) -> Iterator[str]:
    yield "# Accuracy"
    yield ""
    yield "Written by `meshwright validate -o FOLDER`: what the model predicts for training runs that others timed,"
    yield "beside what they measured. None of the runs was measured by this project. Errors are predicted /"
    yield "measured - 1; [how to read the figures](guides/validating.md)."
    if anchors:
        yield f"{anchors} rows of each sweep of one framework and GPU calibrated its others, and are left out."
    yield from _compared(predictions, sources, anchors)
    if any(source.step for source in sources):
        yield from ("", f"![Predicted against measured step times]({PREDICTED_PLOT})", "", "## Step time", "")
        yield "`bias`: mean of the signed errors; `tau`: rank correlation within sweeps; `regret`, `worst`: how much"
        yield "slower the layout with the best prediction ran than the fastest of its sweep, on average and at worst."
        yield ""
        yield from _table(STEP_HEADERS, [step_cells(source) for source in sources if source.step])
    if choices:
        yield from ("", "## Choices", "")
        yield "Regret within sweeps: how much slower the chosen layout ran than the fastest, on average and at worst,"
        yield "of the layout predicted `fastest` and of the one `recommended` in its place"
        yield "([decision 36](decisions/0036-recommended-beside-fastest.md)). `in 90 %`: of all `pairs` of layouts, the"
        yield "share whose measured ratio of times lay in the model's 90 % interval."
        yield ""
        yield from _table(CHOICE_HEADERS, [choice_cells(choice) for choice in choices])
    if held := [source for source in sources if speaks_of_memory(source)]:
        yield from ("", "## Memory", "")
        yield "`caught`: runs out of memory that were predicted so; `alarms`: runs that fitted and were predicted not"
        yield "to."
        yield ""
        yield from _table(MEMORY_HEADERS, [memory_cells(source) for source in held])
    if any(one.row.flag("oom") for one in predictions):
        yield from (
            "",
            chances_heading(predictions),
            "",
        )
        yield from _table(CHANCE_HEADERS, [chance_cells(one) for one in chance_ranges(predictions)])
    yield from figures_section(figures)
    yield from _anchored(sources)
    yield from _sweeps(sources)
    if any(step_error(one) is not None for one in predictions):
        yield from ("", "## Where the errors are", "", f"![Errors by axis]({AXES_PLOT})")
        yield from _by_part(predictions)
        yield from _worst(predictions)
        yield from _open_questions(sources)
    yield from _unknowns(predictions)
    yield from _skipped(predictions)


def _compared(
    predictions: Sequence[Prediction], sources: Sequence[SourceScore], anchors: int
) -> Iterator[str]:
    """Whose runs they are, how to do it again, and the error no prediction can go below."""
    yield from ("", "## What was compared", "")
    yield f"{' '.join(summary(predictions, anchors=anchors).split())}."
    yield ""
    notes = source_notes()
    cells = [
        [
            source.source,
            str(source.rows),
            str(source.step.count if source.step else 0),
            notes[source.source].measured if source.source in notes else _OWN,
        ]
        for source in sources
    ]
    yield from _table(("source", "rows", "timed", "measured by"), cells)
    yield ""
    yield "The constants of the shipped profiles were fitted to the shipped runs, so the errors of those are of runs"
    yield "that were seen ([accuracy and limits](concepts/accuracy-and-limits.md))."
    yield "The noise floor: publishers of one nominal configuration differ by 3 to 10 %, releases of one trainer by"
    yield "up to 25 %. To write this page for a table of your own, or again for the shipped ones:"
    yield ""
    yield "```console"
    yield "$ meshwright validate --runs mine.csv -o my-accuracy"
    yield "$ meshwright validate -o docs"
    yield "```"


def _open_questions(sources: Sequence[SourceScore]) -> Iterator[str]:
    """What the residuals of each source may hang on."""
    notes = source_notes()
    cells = [[source.source, notes[source.source].unknown] for source in sources if source.source in notes]
    if cells:
        yield from ("", "What nobody printed, and residuals may hang on:", "")
        yield from _table(("source", "unknown"), cells)


def _anchored(sources: Sequence[SourceScore]) -> Iterator[str]:
    scored = [(source, source.anchored) for source in sources if source.anchored is not None]
    if not scored:
        return
    yield from ("", "## With three rows in hand", "")
    yield "Sweeps of five timed rows and more, once one factor was taken from three of them (left out)."
    yield ""
    cells = [
        [source.source, str(error.count), percent(error.median), percent(error.p90)]
        for source, error in scored
    ]
    yield from _table(("source", "rows", "median", "p90"), cells)


def _sweeps(sources: Sequence[SourceScore]) -> Iterator[str]:
    """Sweeps with the largest regret."""
    found = [(source.source, sweep) for source in sources for sweep in source.sweeps if sweep.regret > 0]
    if not found:
        return
    yield from ("", "## Sweeps in which another layout was the fastest", "")
    yield f"The worst, at most {_OF_EACH} of a source."
    yield ""
    cells = [
        [
            name,
            _sweep(sweep.key),
            str(sweep.rows),
            percent(sweep.regret),
            "-" if sweep.tau is None else f"{sweep.tau:.2f}",
        ]
        for name, sweep in _a_few_of_each(sorted(found, key=lambda one: -one[1].regret), lambda one: one[0])
    ]
    yield from _table(("source", "sweep", "rows", "regret", "tau"), cells)


def _sweep(key: Sequence[str]) -> str:
    """The cells that rows of a sweep share, in words."""
    model, sequence, gpus, batch, gpu, precision = key
    return f"{model}, sequence {sequence}, {gpus} x {gpu}, batch {batch}, {precision}"


def _by_part(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Median error of the runs in which a part has its largest shares."""
    shares: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in predictions:
        error, total = step_error(one), sum(one.parts.values())
        if error is not None and total > 0:
            for part, seconds in one.parts.items():
                shares[part].append((seconds / total, error))
    cells = []
    for part, pairs in shares.items():
        heavy = [(share, error) for share, error in pairs if share >= _HEAVY]
        if len(heavy) >= _ENOUGH:
            errors = [error for _, error in heavy]
            cells.append(
                [
                    part_label(part),
                    str(len(heavy)),
                    percent(statistics.median(share for share, _ in heavy)),
                    signed_percent(statistics.median(errors)),
                    percent(statistics.median(abs(error) for error in errors)),
                ]
            )
    if cells:
        yield from ("", f"Runs in which a part takes {100 * _HEAVY:.0f} % of the predicted step or more:", "")
        yield from _table(("part", "runs", "median share", "median error", "median size"), cells)


_HEAVY = 0.1


def _worst(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Runs furthest off."""
    timed = [(error, one) for one in predictions if (error := step_error(one)) is not None]
    yield from ("", "## Runs furthest off", "", f"At most {_OF_EACH} of a source.", "")
    cells = []
    ordered = sorted(timed, key=lambda pair: -abs(pair[0]))
    for error, one in _a_few_of_each(ordered, lambda pair: pair[1].row.source):
        assert one.case is not None
        assert one.step_seconds is not None
        cells.append(
            [
                one.row.row_id,
                one.row.text("model_name"),
                f"`{one.case.layout.brief}`",
                format_seconds(measured_seconds(one.row) or 0.0),
                format_seconds(one.step_seconds),
                signed_percent(error),
            ]
        )
    yield from _table(("run", "model", "layout", "measured", "predicted", "error"), cells)


def _unknowns(predictions: Sequence[Prediction]) -> Iterator[str]:
    """What rows leave open, and how far off the runs are that leave it open."""
    told: Counter[str] = Counter()
    errors: dict[str, list[float]] = defaultdict(list)
    for one in predictions:
        for assumed in one.assumptions:
            told[assumed] += 1
            if (error := step_error(one)) is not None:
                errors[assumed].append(abs(error))
    if not told:
        return
    yield from ("", "## What had to be assumed", "")
    cells = [
        [assumed, str(rows), percent(statistics.median(errors[assumed])) if errors[assumed] else "-"]
        for assumed, rows in told.most_common(_MAX_ROWS)
    ]
    yield from _table(("assumption", "rows", "median error of those timed"), cells)


def _skipped(predictions: Sequence[Prediction]) -> Iterator[str]:
    found = reasons(predictions)
    if not found:
        return
    yield from ("", "## Rows that were not predicted", "")
    yield from _table(("reason", "rows"), [[reason, str(rows)] for reason, rows in found[:_MAX_ROWS]])


def _a_few_of_each(items: Sequence[T], source_of: Callable[[T], str]) -> Iterator[T]:
    """The first of each source, `_MAX_ROWS` in all."""
    seen: Counter[str] = Counter()
    for item in items:
        seen[source_of(item)] += 1
        if seen[source_of(item)] <= _OF_EACH and seen.total() - _over(seen) <= _MAX_ROWS:
            yield item


def _over(seen: Counter[str]) -> int:
    """Items of sources that have had their share."""
    return sum(max(0, number - _OF_EACH) for number in seen.values())


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headers)} |"
    yield f"|{'|'.join(' --- ' for _ in headers)}|"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def _cell(text: str) -> str:
    """One line that no table and no page reads as anything else."""
    return printable(text).replace("|", "/").replace("[", "(").replace("]", ")").replace("<", "(")
