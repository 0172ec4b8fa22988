"""Every source of the shipped runs predicted by profiles that never saw it: errors, intervals and choices.

`fit_profiles.py --leave-out` prints this page, and with `--write` writes it to `docs/left-out.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from few_rows import anchored, calibrated

from cost_models.measured.calibration.profile_fits import ANY, blank_profile, under_other_sources
from cost_models.measured.calibration.step_time_fit import errors_of, measured_seconds
from cost_models.measured.runs.cases import Case
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.measured.validation.scores import (
    ChoiceScore,
    LeftOutRun,
    Reach,
    choice_scores,
    coverage_by_source,
    reach_of,
)
from cost_models.pipeline.pricing import step_deviation
from meshwright.verbs.validate.validated import CHOICE_HEADERS, choice_cells

GIVEN = (1, 3, 5)
VERBS = {"anchors": anchored, "calibrate": calibrated}
HARM = 0.01
"""Rise of a median error (a share) above which a source is named as worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """What predictions were of sources left out of every fit."""

    cases: tuple[Case, ...]
    """Every timed run under constants fitted to all other sources."""
    runs: tuple[LeftOutRun, ...]
    choices: tuple[ChoiceScore, ...]

    @property
    def reach(self) -> Reach:
        """How far intervals have to reach."""
        return reach_of(self.runs)

    def medians(self) -> dict[str, float]:
        """Profile of a die over all stacks → what its sources' medians are, in the middle."""
        found: dict[str, list[float]] = {}
        for source, errors in self._errors().items():
            first = next(case for case in self.cases if case.row.source == source)
            name = blank_profile(first.question.cluster.gpu.name, ANY).name
            found.setdefault(name, []).append(float(np.median(np.abs(errors))))
        return {name: float(np.median(medians)) for name, medians in found.items()}

    def page(self) -> str:
        """All of it as Markdown."""
        return "\n".join(self._lines()) + "\n"

    def _errors(self) -> dict[str, list[float]]:
        errors: dict[str, list[float]] = {}
        for run in self.runs:
            errors.setdefault(run.source, []).append(run.error)
        return errors

    def _lines(self) -> Iterator[str]:
        errors, held = self._errors(), coverage_by_source(self.runs)
        medians = [float(np.median(np.abs(found))) for found in errors.values()]
        every = [one for found in held.values() for one in found]
        yield "# Sources left out"
        yield ""
        yield "Written by `python benchmarks/fit_profiles.py --leave-out --write`: every source of timed runs"
        yield "predicted by constants that were fitted to all the others. Errors are predicted / measured - 1. `held`:"
        yield "of the runs, how many measured steps lay in the interval that is meant to hold nine in ten; how far"
        yield "intervals reach was taken from all sources but the one that is judged"
        yield "([decision 43](decisions/0043-uncertainty.md))."
        yield ""
        yield f"Median of the {len(medians)} medians {_percent(float(np.median(medians)))}, the worst"
        yield f"{_percent(max(medians))}. Held: {_percent(float(np.mean(every)))} of {len(every):,} runs,"
        yield f"{_percent(float(np.mean([np.mean(own) for own in held.values()])))} as a mean of sources. Intervals"
        yield f"reach {self.reach.slower:g} times as far towards slower steps as a normal error would, and"
        yield f"{self.reach.faster:g} times towards faster ones."
        yield ""
        cells = []
        for source, found in errors.items():
            sizes = np.abs(found)
            cells.append(
                [
                    source,
                    str(len(found)),
                    _percent(float(np.median(sizes))),
                    _percent(float(np.quantile(sizes, 0.9))),
                    f"{100 * float(np.mean(found)):+.1f} %",
                    _percent(float(np.mean(held[source]))) if source in held else "-",
                ]
            )
        yield from _table(("source", "runs", "median", "p90", "bias", "held"), cells)
        yield ""
        yield "## With a few rows of one's own"
        yield ""
        yield "Of each sweep of one source, framework and GPU with more than so many timed rows, evenly spaced ones are"
        yield "given to `validate --anchors` or to `calibrate --from-runs`, and the others predicted: errors without"
        yield "and with them over all rows, and sources whose median gets worse by more than a point"
        yield "([how](concepts/accuracy-and-limits.md))."
        yield ""
        yield from self._few_rows()
        yield ""
        yield "## Choices"
        yield ""
        yield "Regret within sweeps, as on [the page of accuracy](accuracy.md), by the same constants."
        yield ""
        yield from _table(CHOICE_HEADERS, [choice_cells(one) for one in self.choices])

    def _few_rows(self) -> Iterator[str]:
        """A row for each verb and number of given rows."""
        cells = []
        for verb, few in VERBS.items():
            for given in GIVEN:
                found = few(self.cases, given)
                before, after = (np.concatenate([own[side] for own in found.values()]) for side in (0, 1))
                worse = [
                    source
                    for source, sizes in found.items()
                    if np.median(sizes[1]) > np.median(sizes[0]) + HARM
                ]
                median, p90 = (
                    f"{_percent(float(np.quantile(before, share)))} to {_percent(float(np.quantile(after, share)))}"
                    for share in (0.5, 0.9)
                )
                cells.append([verb, str(given), median, p90, ", ".join(worse) or "-"])
        yield from _table(("verb", "rows", "median", "p90", "worse"), cells)


def tried(cases: Sequence[Case]) -> Unseen:
    """Leave out every source in turn (some minutes)."""
    under: list[Case] = []
    runs: list[LeftOutRun] = []
    predictions: list[Prediction] = []
    for source, own in under_other_sources(cases):
        errors = errors_of(own).tolist()
        print(f"without {source}: median {np.median(np.abs(errors)):.1%} over {len(own)} runs", flush=True)
        under += own
        for case, error, plain in zip(own, errors, predict([case.row for case in own]), strict=True):
            seconds = measured_seconds(case) * (1 + error)
            deviation = step_deviation(case.question, case.layout, seconds)
            runs.append(LeftOutRun(source=source, error=error, deviation=deviation))
            predictions.append(replace(plain, step_seconds=seconds))
    return Unseen(cases=tuple(under), runs=tuple(runs), choices=choice_scores(predictions))


def _table(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headers)} |"
    yield f"|{' --- |' * len(headers)}"
    yield from (f"| {' | '.join(row)} |" for row in cells)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
