"""Every source of the shipped runs predicted by profiles that never saw it: errors, intervals and choices.

`fit_profiles.py --leave-out` prints this page, and with `--write` writes it to `docs/left-out.md`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import group_by
from cost_models.expected import Reach
from cost_models.measured.calibration.profile_fits import (
    ANY,
    anchor,
    blank_profile,
    spread_positions,
    under_other_sources,
)
from cost_models.measured.calibration.step_time_fit import errors_of, fit_step_times, measured_seconds, under
from cost_models.measured.runs.cases import Case
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.measured.validation.scores import (
    ChoiceScore,
    LeftOutRun,
    choice_scores,
    coverage_by_source,
    reach_of,
    step_error,
)
from cost_models.pipeline.pricing import step_deviation
from meshwright.verbs.validate.accuracy import choice_table

GIVEN = (1, 3, 5)
HARM = 0.01
"""Rise of a median error (a share) above which a source is named as worse."""


Sizes = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Source → sizes of the errors of its other rows, without and with the few."""


def anchored(cases: Sequence[Case], given: int) -> Sizes:
    """`validate --anchors`."""
    plain = [
        Prediction(row=case.row, case=case, step_seconds=measured_seconds(case) * (1 + error))
        for case, error in zip(cases, errors_of(cases).tolist(), strict=True)
    ]
    calibrated_rows = anchor(plain, given)
    enough = {_sweep(one.row) for one in calibrated_rows if one.anchor}
    sizes: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for before, after in zip(plain, calibrated_rows, strict=True):
        errors = step_error(before), step_error(after)
        if _sweep(before.row) in enough and errors[0] is not None and errors[1] is not None:
            sizes[before.row.source_id].append((abs(errors[0]), abs(errors[1])))
    return {
        source: (pairs[:, 0], pairs[:, 1]) for source, pairs in ((s, np.array(p)) for s, p in sizes.items())
    }


def calibrated(cases: Sequence[Case], given: int) -> Sizes:
    """`calibrate --from-runs`."""
    sizes: dict[str, list[np.ndarray]] = defaultdict(list)
    for own in group_by(cases, lambda case: (*_sweep(case.row), case.question.hardware.name)).values():
        if len(own) > given:
            own.sort(key=lambda case: case.row.row_id)
            chosen = spread_positions(len(own), given)
            rest = [case for place, case in enumerate(own) if place not in chosen]
            few = [own[place] for place in chosen]
            fit = fit_step_times(own[0].question.hardware, few, of_one_cluster=True)
            sizes[own[0].row.source_id].append(np.abs([errors_of(rest), errors_of(under(fit.profile, rest))]))
    return {source: tuple(np.concatenate(found, axis=1)) for source, found in sizes.items()}


def _sweep(row: Row) -> tuple[str, ...]:
    return row.source_id, row.trainer, row.cluster


VERBS = {"anchors": anchored, "calibrate": calibrated}


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
            first = next(case for case in self.cases if case.row.source_id == source)
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
        if (choices := choice_table(self.choices)).rows:
            yield from _table([column.header for column in choices.columns], choices.rows)

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
