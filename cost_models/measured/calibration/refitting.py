"""Refitting a profile to tables of timed runs: of their GPU and stack, from the catalogue's nearest profile."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.defaults import DIES, die_of, nearest_profile
from cost_models.documents import printable
from cost_models.files import catalog
from cost_models.measured.calibration.families import Pair
from cost_models.measured.calibration.few_runs import FEW, fit_few_runs
from cost_models.measured.calibration.step_time_fit import (
    WEIGHT_ON_ONE_CLUSTER,
    StepTimeFit,
    fit_step_times,
    fitted_profile,
    measured_seconds,
)
from cost_models.measured.runs.cases import Case
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.intervals import reach_in
from cost_models.measured.validation.predicting import Prediction, predict
from cost_models.measured.validation.scores import measured_seconds as timed_seconds
from cost_models.measured.validation.step_times import StepTimes
from cost_models.specs.hardware import HardwareProfile

_SLIP = 10.0
"""Factor between measured and predicted time beyond which a cell is taken for a slip: milliseconds, a lost digit."""
_LONGEST_NAME = 100
_NAMED_SOURCES = 8
"""Most sources named one by one in a profile's source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Rows that a fit can use, as cases, and the other rows with the reason why not."""

    cases: tuple[Case, ...]
    left_out: tuple[tuple[Row, str], ...]
    forced: bool
    """True where no row names the wanted stack: all rows are then read as if they had run on it."""

    def pairs(self) -> dict[Pair, tuple[Case, ...]]:
        """Cases by the (die, stack) that they ran on, the largest group first."""
        groups: dict[Pair, list[Case]] = {}
        for case in self.cases:
            groups.setdefault(_pair(case), []).append(case)
        ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
        return {pair: tuple(members) for pair, members in ordered}


def select_runs(
    rows: Iterable[Row],
    *,
    stack: str | None = None,
    gpu: str | None = None,
    on_row: Callable[[int], None] | None = None,
) -> Selection:
    """Rows that were timed and can be predicted, of one `stack` and the die of one `gpu` where given.

    Rows that name no framework are read as run on `stack`; rows that name another are left out, except where `stack`
    is a file or no row names it: then all are read as run on it. Rows with one id are numbered; a row that occurs
    twice, cell by cell, counts once. `on_row` hears how many rows were read.

    Raises:
        InputError: no such stack or GPU.
    """
    named = catalog.load_stack(stack).name if stack else None
    die = die_of(catalog.load_gpu(gpu).name) if gpu else None
    distinct, left_out = _distinct(rows)
    timed = [row for row in distinct if timed_seconds(row) is not None]
    left_out += [(row, "no step time") for row in distinct if timed_seconds(row) is None]
    forced = stack is not None and stack not in catalog.names("stacks")
    read = list(_predicted(timed, stack, forced, on_row))
    if named and not forced and not any(_ran_under(one, named) for one in read):
        forced = True
        read = list(_predicted(timed, stack, forced, on_row))
    cases = []
    for one in read:
        reason = one.skipped if one.case is None else _why_not(one, one.case, named, die)
        if one.case is None or reason:
            left_out.append((one.row, reason))
        else:
            cases.append(one.case)
    return Selection(cases=tuple(cases), left_out=tuple(left_out), forced=forced)


def _predicted(
    rows: Sequence[Row], stack: str | None, forced: bool, on_row: Callable[[int], None] | None
) -> Iterator[Prediction]:
    """One prediction a row, under `stack` where the row names no framework or where it is `forced`."""
    for done, row in enumerate(rows, start=1):
        yield from predict((row,), stack=stack if forced or not row.text("framework") else None)
        if on_row is not None:
            on_row(done)


def _ran_under(prediction: Prediction, stack: str) -> bool:
    return prediction.case is not None and prediction.case.question.stack.name == stack


def _why_not(prediction: Prediction, case: Case, stack: str | None, die: str | None) -> str:
    """Why a predicted row takes no part in a fit; empty where it does."""
    if prediction.step_seconds is None:
        return "neither `num_gpus` nor `dp` is given"
    if not (math.isfinite(prediction.step_seconds) and prediction.step_seconds > 0):
        return "its step has no finite price"
    ratio = measured_seconds(case) / prediction.step_seconds
    if not 1 / _SLIP < ratio < _SLIP:
        return f"its time is more than {_SLIP:g} times off: a slip of units?"
    of_die, of_stack = _pair(case)
    if die is not None and of_die != die:
        return f"ran on {of_die}"
    return f"ran under {of_stack}" if stack is not None and of_stack != stack else ""


def _pair(case: Case) -> Pair:
    """The die and the stack, not the family of stacks, that a case ran on."""
    return die_of(case.question.cluster.gpu.name), case.question.stack.name


def _distinct(rows: Iterable[Row]) -> tuple[list[Row], list[tuple[Row, str]]]:
    """Rows, with unique ids, and rows left out since they repeat another in every cell."""
    seen: set[frozenset[tuple[str, str]]] = set()
    taken: set[str] = set()
    times: Counter[str] = Counter()
    distinct: list[Row] = []
    repeated: list[tuple[Row, str]] = []
    for row in rows:
        cells = frozenset(row.cells.items())
        if cells in seen:
            repeated.append((row, "repeats another row, cell by cell"))
            continue
        seen.add(cells)
        name = row.row_id
        while name in taken:
            times[row.row_id] += 1
            name = f"{row.row_id} ({times[row.row_id] + 1})"
        taken.add(name)
        distinct.append(row if name == row.row_id else Row({**row.cells, "row_id": name}))
    return distinct, repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """A profile before and after it was fitted to runs."""

    pair: Pair
    start: HardwareProfile
    """The profile that the fit starts from: the catalogue's nearest, or its documented defaults."""
    before: dict[str, float]
    """Run → predicted / measured − 1 under `start`."""
    fit: StepTimeFit
    profile: HardwareProfile
    """The fitted profile, named for its GPU and stack, with its claimed error."""

    @property
    def median_before(self) -> float:
        """Median absolute relative error of step time under `start`."""
        return float(np.median(np.abs(list(self.before.values()))))


def refit(
    pair: Pair, cases: Sequence[Case], *, on_round: Callable[[int, float], None] | None = None
) -> Refit:
    """Fit the profile of `pair` to its `cases`, from the catalogue's nearest; `on_round` is called after every step.

    Runs of one source are taken to be of one cluster, which its profile follows closely, but for a few runs, of which
    no more is believed than they agree on (`few_runs`); of several sources each of n runs counts 1/√n, and none is
    followed far from the others.
    """
    die, stack = pair
    start = nearest_profile(catalog.load_gpu(die), stack, family=cases[0].question.stack.family)
    predicted = StepTimes(cases).seconds(start)
    errors = predicted / np.array([measured_seconds(case) for case in cases]) - 1
    identity = {
        "name": f"fitted-{die}-{stack}"[:_LONGEST_NAME],
        "tier": "profile",
        "gpu": die,
        "also_for": DIES.get(die, ()),
        "stack": stack,
    }
    sources = {case.row.source for case in cases}
    named = start.model_copy(update=identity)
    if len(sources) == 1 and len(cases) <= FEW:
        fit = fit_few_runs(named, cases, on_round=on_round)
    else:
        weight = WEIGHT_ON_ONE_CLUSTER if len(sources) == 1 else None
        fit = fit_step_times(named, cases, weight_of_a_run=weight, on_round=on_round)
    return Refit(
        pair=pair,
        start=start,
        before=dict(zip(fit.residuals, errors.tolist(), strict=True)),
        fit=fit,
        profile=fitted_profile(fit, reach=reach_in(start)).model_copy(
            update={"source": _provenance(fit, start)}
        ),
    )


def named_sources(fit: StepTimeFit) -> str:
    """ "3 of mine, 2 of lab": how many runs of which source were fitted, the largest sources by name."""
    by_size = sorted(fit.by_source().items(), key=lambda item: -len(item[1]))
    words = [f"{len(errors)} of {printable(source, 40)}" for source, errors in by_size[:_NAMED_SOURCES]]
    if rest := sum(len(errors) for _, errors in by_size[_NAMED_SOURCES:]):
        words.append(f"{rest} of others")
    return ", ".join(words)


def _provenance(fit: StepTimeFit, start: HardwareProfile) -> str:
    """The `source` of a fitted profile: the runs it was fitted to, and the profile the fit started from."""
    return (
        f"Fitted to timed runs: {named_sources(fit)}; started from {start.name}. The median error is that of the"
        " fit itself."
    )
