"""Accuracy of predictions as tables: one line a source."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from cost_models.documents import printable
from cost_models.measured.validation.predictions import Prediction
from cost_models.measured.validation.scores import (
    ChanceRange,
    ChoiceScore,
    SourceScore,
    brier_scores,
    chance_ranges,
)
from cost_models.units import counted
from meshwright.render.tables import Table, table
from meshwright.render.words import percent, wrapped

STEP_HEADERS = ("source", "timed", "median", "p90", "bias", "tau", "regret", "worst")
MEMORY_HEADERS = ("source", "peaks", "median", "p90", "bias", "caught", "alarms", "precision")
CHOICE_HEADERS = ("source", "sweeps", "fastest", "worst", "recommended", "its worst", "pairs", "in 90 %")
CHANCE_HEADERS = ("probability", "runs", "predicted", "fitted")
_NOTHING = "-"
_MAX_REASONS = 8


def validation_text(
    predictions: Sequence[Prediction],
    sources: Sequence[SourceScore],
    choices: Sequence[ChoiceScore],
    *,
    anchors: int,
) -> Iterator[str | Table]:
    """The tables, what their columns mean, and what was skipped."""
    timed = [source for source in sources if source.step]
    if timed:
        yield from _section(
            "Step time. Errors are predicted / measured - 1; bias: their mean; tau: rank correlation within sweeps;"
            " regret, worst: how much slower the layout with the best prediction ran than the fastest of its sweep,"
            " on average and at worst.",
            step_table(timed),
        )
    if choices:
        yield from _section(
            "Choices within sweeps. Regret of the layout predicted fastest and of the one recommended, on average and"
            " at worst; in 90 %: of all pairs of layouts, the share whose measured ratio of times lay in the"
            " model's 90 % interval.",
            table(CHOICE_HEADERS, [choice_cells(one) for one in choices], words=("source",)),
        )
    if held := [source for source in sources if speaks_of_memory(source)]:
        yield from _section(
            "Memory. Caught: runs out of memory that were predicted so; alarms: runs that fitted but were predicted"
            " not to; precision: share of predictions of running out that were right.",
            table(MEMORY_HEADERS, [memory_cells(source) for source in held], words=("source",)),
        )
    if any(one.row.flag("oom") for one in predictions):
        yield from _section(
            chances_heading(predictions),
            table(CHANCE_HEADERS, [chance_cells(one) for one in chance_ranges(predictions)]),
        )
    yield summary(predictions, anchors=anchors)
    for reason, rows in reasons(predictions)[:_MAX_REASONS]:
        yield wrapped(f"  {rows} skipped: {reason}", indent="    ")


def _section(heading: str, body: Table) -> Iterator[str | Table]:
    """What the columns of a table mean, and the table."""
    yield wrapped(heading, indent="")
    yield ""
    yield body
    yield ""


def step_table(sources: Sequence[SourceScore]) -> Table:
    """A line of step-time errors for each source with timed runs."""
    return table(STEP_HEADERS, [step_cells(one) for one in sources if one.step], words=("source",))


def step_cells(source: SourceScore) -> list[str]:
    """One line of the table of step times."""
    step = source.step
    assert step is not None
    tau = source.mean_tau
    return [
        printable(source.source, 40),
        str(step.count),
        _percent(step.median),
        _percent(step.p90),
        signed_percent(step.bias),
        _NOTHING if tau is None else f"{tau:.2f}",
        _percent(source.mean_regret),
        _percent(source.worst_regret),
    ]


def memory_cells(source: SourceScore) -> list[str]:
    """One line of the table of memory."""
    memory, verdicts = source.memory, source.verdicts
    out, ran = verdicts.caught + verdicts.missed, verdicts.false_alarms + verdicts.agreed
    return [
        printable(source.source, 40),
        str(memory.count) if memory else _NOTHING,
        _percent(memory.median if memory else None),
        _percent(memory.p90 if memory else None),
        signed_percent(memory.bias if memory else None),
        f"{verdicts.caught}/{out}" if out else _NOTHING,
        f"{verdicts.false_alarms}/{ran}" if ran else _NOTHING,
        _percent(verdicts.precision),
    ]


def choice_cells(choice: ChoiceScore) -> list[str]:
    """One line of the table of choices."""
    point, recommended = choice.point, choice.recommended
    return [
        printable(choice.source, 40),
        str(len(point)) if point else _NOTHING,
        _percent(statistics.mean(point) if point else None),
        _percent(max(point, default=None)),
        _percent(statistics.mean(recommended) if recommended else None),
        _percent(max(recommended, default=None)),
        str(choice.pairs) if choice.pairs else _NOTHING,
        _percent(choice.covered),
    ]


def chances_heading(predictions: Sequence[Prediction]) -> str:
    """What the columns of the table of chances mean, and how far chances are from what happened."""
    words = "Runs by their predicted probability of fitting: its mean, and the share that fitted."
    if (told := brier_scores(predictions)) is None:
        return words
    return f"{words} Brier score {told[0]:.3f}; with the same probability for every run {told[1]:.3f}."


def chance_cells(found: ChanceRange) -> list[str]:
    """One line of the table of chances."""
    chance = f"{100 * found.least:.0f} to {100 * found.most:.0f} %"
    return [chance, str(found.runs), _percent(found.fits_probability), _percent(found.ran_share)]


def speaks_of_memory(source: SourceScore) -> bool:
    """A peak was measured, a run ran out of memory, or one that ran was said not to fit."""
    verdicts = source.verdicts
    return bool(source.memory or verdicts.caught + verdicts.missed + verdicts.false_alarms)


def summary(predictions: Sequence[Prediction], *, anchors: int) -> str:
    """How many rows were predicted."""
    skipped = sum(bool(one.skipped) and not one.anchor for one in predictions)
    given = sum(one.anchor for one in predictions)
    words = [f"{counted(len(predictions) - skipped - given, 'row')} predicted", f"{skipped} skipped"]
    if anchors:
        words.append(f"{given} given as anchors, {anchors} a sweep of one framework and GPU")
    return wrapped(", ".join(words))


def reasons(predictions: Sequence[Prediction]) -> list[tuple[str, int]]:
    """Why rows were skipped, the most frequent reason first."""
    return Counter(one.skipped for one in predictions if one.skipped and not one.anchor).most_common()


def _percent(share: float | None) -> str:
    return _NOTHING if share is None else percent(share)


def signed_percent(share: float | None) -> str:
    """0.031 → "+3.1 %"; a dash for None."""
    return _NOTHING if share is None else percent(share, "+.1%")
