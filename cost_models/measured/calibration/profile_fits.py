"""Hardware profiles fitted to timed runs: to published runs of every GPU die and stack, cross-validated over
sources, and to users' tables.

There is one profile for each (die, family of stacks) with enough runs, and one for each die over all its stacks, for
untimed stacks. Cross-validation leaves whole sources out of every fit, because rows of one sweep are alike. Tables of
timed runs refit the catalogue's nearest profile of their GPU and stack.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cost_models.arrays import group_by
from cost_models.defaults import DIES, die_of, nearest_profile
from cost_models.files import catalog
from cost_models.measured.calibration.step_time_fit import (
    Offset,
    OnRound,
    StepTimeFit,
    TimedCases,
    cluster_offset,
    errors_of,
    fit_step_times,
    ignore,
    measured_seconds,
    median_size,
    under,
)
from cost_models.measured.runs.cases import Case
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.measured.validation.scores import step_error
from cost_models.pipeline.pricing import estimate
from cost_models.specs.hardware import HardwareProfile

Pair = tuple[str, str]
"""Key of a profile: the GPU that stands for a die, and the name of a stack."""
ANY = "any"
_MIN_RUNS = 6
"""Minimum number of runs of a stack for a profile of its own."""
_UNEXPLAINED = 0.1
"""Median relative error above which a fit gives no profile, as it does not explain its runs."""


def is_fitted(case: Case) -> bool:
    """Whether a published run is used in fits of constants. Not used are runs that their transcriber flagged
    as suspect, as a few runs on a strained machine would determine its host times alone; and models with
    recurrences, whose kernels on Blackwell take longer than their bytes for an unknown reason (Nemotron 3
    Nano: within 5 % on H100, 15 to 22 % too fast there)."""
    return not case.row.suspect and case.question.model.recurrence is None


def fit_families(
    cases: Iterable[Case],
    needed: Collection[Pair] | None = None,
    *,
    min_runs: int = _MIN_RUNS,
    around: Mapping[str, StepTimeFit] | None = None,
) -> dict[str, StepTimeFit]:
    """Fit a hardware profile for every (GPU die, stack) with at least `min_runs` timed cases, and for every
    die over all stacks; returns the fits by profile name. If `needed` is given, only these pairs are fitted.

    A fit starts `around` that of the same name to more cases, where there is one. Not every row takes part
    (`is_fitted`).
    """
    fitted = list(filter(is_fitted, cases))
    groups = group_by(fitted, pair_of) | group_by(fitted, lambda case: (pair_of(case)[0], ANY))
    fits = {}
    for pair, members in sorted(groups.items(), key=lambda group: group[0]):
        if len(members) >= min_runs and (needed is None or pair in needed):
            start = blank_profile(*pair)
            near = (around or {}).get(start.name)
            fit = fit_step_times(start, members, around=None if near is None else near.around_runs(members))
            if fit.median_error <= _UNEXPLAINED:
                fits[start.name] = fit
    return fits


def blank_profile(gpu: str, stack: str) -> HardwareProfile:
    """Profile of the documented default constants, with name, GPU and stack of a fit for `gpu` and `stack`."""
    die = die_of(gpu)
    short = die.split("-")[0]
    name = short if stack == ANY else f"{short}-{stack}"
    return _with_identity(catalog.load_profile("datasheet-gpu"), name, die, stack)


def _with_identity(profile: HardwareProfile, name: str, die: str, stack: str) -> HardwareProfile:
    """Copy of the profile with the name, GPU and stack that identify a fit to runs of `stack` on `die`."""
    identity = {"name": name, "gpu": die, "also_for": DIES.get(die, ()), "stack": stack, "tier": "profile"}
    return profile.model_copy(update=identity)


def under_nearest(profiles: Iterable[HardwareProfile], cases: Sequence[Case]) -> tuple[Case, ...]:
    """Copies of the cases, each with the profile of `profiles` that is nearest to its GPU and stack."""
    candidates = tuple(profiles)

    def nearest(case: Case) -> HardwareProfile:
        """Profile that is nearest to the GPU and stack of a case."""
        stack = case.question.stack
        return nearest_profile(case.question.cluster.gpu, stack.name, candidates, family=stack.family)

    return tuple(moved for case in cases for moved in under(nearest(case), [case]))


def under_other_sources(
    cases: Sequence[Case], *, min_runs: int = _MIN_RUNS, on_source: Callable[[str], None] = ignore
) -> Iterator[tuple[str, tuple[Case, ...]]]:
    """Yield each source with its cases, predicted by profiles that were fitted to all other sources. Each
    case has the nearest of these profiles."""
    of_all = fit_families(cases, min_runs=min_runs)
    for source, profiles in profiles_without(cases, of_all, min_runs=min_runs, on_source=on_source):
        yield source, under_nearest(profiles, [case for case in cases if case.row.source_id == source])


def profiles_without(
    cases: Sequence[Case],
    of_all: Mapping[str, StepTimeFit],
    *,
    min_runs: int = _MIN_RUNS,
    on_source: Callable[[str], None] = ignore,
) -> Iterator[tuple[str, tuple[HardwareProfile, ...]]]:
    """Yield each source with the profiles for predicting its runs, which are fitted to the runs of all other
    sources."""
    for source, members in group_by(cases, lambda case: case.row.source_id).items():
        on_source(source)
        other_cases = [case for case in cases if case.row.source_id != source]
        other_pairs, source_pairs = ({pair_of(case) for case in some} for some in (other_cases, members))
        needed = source_pairs & other_pairs
        if source_pairs - other_pairs:
            needed |= {(die, ANY) for die, _ in other_pairs}
        fits = fit_families(other_cases, needed, min_runs=min_runs, around=of_all)
        yield source, tuple(fit.profile for fit in fits.values())


def pair_of(case: Case) -> Pair:
    """Pair (GPU die, stack family) that a case ran on, the key of a fitted profile."""
    stack = case.question.stack
    return die_of(case.question.cluster.gpu.name), stack.family or stack.name


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenSource:
    """Median absolute relative errors of one source's step times under the default profile, profiles fitted
    without the source, and the profile fitted to all sources."""

    source_id: str
    runs: int
    defaults: float
    """Error under the documented defaults, which were fitted to nothing."""
    left_out: float
    """Error under profiles fitted to every other source."""
    fitted: float
    """Error under the profile that was fitted to this source too."""


def cross_validate(
    cases: Sequence[Case], fitted_errors: Mapping[str, float], *, on_source: Callable[[str], None] = ignore
) -> tuple[UnseenSource, ...]:
    """Step-time errors of each source of `cases` under profiles fitted without the source, compared with
    those under the defaults and the full fit. `fitted_errors` are the errors of the full fit, by run.

    The fits start from the documented defaults, not from the catalogue's profiles, which may have seen the same
    runs. A source whose GPU and stack no other source has is predicted with the nearest of the others' profiles.
    """
    return tuple(
        UnseenSource(
            source_id=source,
            runs=len(members),
            defaults=median_size(errors_of(under_nearest((), members))),
            left_out=median_size(errors_of(members)),
            fitted=median_size([fitted_errors[case.row.row_id] for case in members]),
        )
        for source, members in under_other_sources(cases, min_runs=1, on_source=on_source)
    )


OnRow = Callable[[int], None]
"""Function that is called with the number of rows read."""
_SLIP = 10.0
"""Ratio of measured to predicted time beyond which a cell must be a mistake: milliseconds, a lost digit."""
_MAX_NAME_LENGTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Rows of run tables that a fit can use, as cases, and the other rows with the reasons why they are left
    out."""

    cases: tuple[Case, ...]
    left_out: tuple[tuple[Row, str], ...]
    forced: bool
    """Whether no row names the wanted stack, so that all rows are read as if they had run on it."""

    def pairs(self) -> dict[Pair, list[Case]]:
        """Cases grouped by the pair (GPU die, stack) that they ran on, the largest group first."""
        return dict(sorted(group_by(self.cases, _pair).items(), key=lambda pair: (-len(pair[1]), pair[0])))


def select_runs(
    rows: Iterable[Row], *, stack: str | None = None, gpu: str | None = None, on_row: OnRow = ignore
) -> Selection:
    """Select the timed rows that the cost model can predict, only of one `stack` and of the die of one `gpu`
    if given.

    Rows that name no stack are read as run on `stack`; rows that name another are left out, except where `stack`
    is a file or no row names it: then all are read as run on it. Rows with one id are numbered; a row that occurs
    twice, cell by cell, counts once. `on_row` is called with the number of rows read.

    Raises:
        InputError: no such stack or GPU.
    """
    stack_name = catalog.load_stack(stack).name if stack else None
    die = die_of(catalog.load_gpu(gpu).name) if gpu else None
    distinct, left_out = _distinct_rows(rows)
    timed = [row for row in distinct if row.step_seconds is not None]
    left_out += [(row, "no step time") for row in distinct if row.step_seconds is None]

    def predictions(*, forced: bool) -> Iterator[Prediction]:
        """Yield the prediction of each timed row, under its own stack or, if it names none, under the given
        `stack`. With `forced`, all rows are predicted under the given stack."""
        for rows_done, row in enumerate(timed, start=1):
            yield from predict((row,), stack=stack if forced or not row.stack else None)
            on_row(rows_done)

    forced = stack is not None and stack not in catalog.names("stacks")
    predicted = list(predictions(forced=forced))
    run_under = {one.case.question.stack.name for one in predicted if one.case is not None}
    if stack_name and not forced and stack_name not in run_under:
        forced, predicted = True, list(predictions(forced=True))
    cases = []
    for prediction in predicted:
        reason = prediction.skipped or _exclusion_reason(prediction, stack_name, die)
        if prediction.case is None or reason:
            left_out.append((prediction.row, reason))
        else:
            cases.append(prediction.case)
    return Selection(cases=tuple(cases), left_out=tuple(left_out), forced=forced)


def _exclusion_reason(prediction: Prediction, stack: str | None, die: str | None) -> str:
    """Reason why a predicted row is left out of a fit; empty if it is used."""
    case = prediction.case
    if prediction.step_seconds is None or case is None:
        return "how many GPUs it had is not stated"
    if not (math.isfinite(prediction.step_seconds) and prediction.step_seconds > 0):
        return "its step has no finite price"
    if not 1 / _SLIP < measured_seconds(case) / prediction.step_seconds < _SLIP:
        return f"its time is more than {_SLIP:g} times off: a slip of units?"
    of_die, of_stack = _pair(case)
    if die is not None and of_die != die:
        return f"ran on {of_die}"
    return f"ran under {of_stack}" if stack is not None and of_stack != stack else ""


def _pair(case: Case) -> Pair:
    """Pair (GPU die, stack) that a case ran on, with the stack itself instead of its family."""
    return die_of(case.question.cluster.gpu.name), case.question.stack.name


def _distinct_rows(rows: Iterable[Row]) -> tuple[list[Row], list[tuple[Row, str]]]:
    """Rows without duplicates and with unique ids, and the duplicates (equal in every cell to another row)
    with the reason why they are left out."""
    seen, used_names, times = set[str](), set[str](), Counter[str]()
    distinct: list[Row] = []
    repeated: list[tuple[Row, str]] = []
    for row in rows:
        cells, name = row.model_dump_json(), row.row_id
        if cells in seen:
            repeated.append((row, "repeats another row, cell by cell"))
            continue
        seen.add(cells)
        while name in used_names:
            times[row.row_id] += 1
            name = f"{row.row_id} ({times[row.row_id] + 1})"
        used_names.add(name)
        distinct.append(row.model_copy(update={"row_id": name}))
    return distinct, repeated


def refit(pair: Pair, cases: Sequence[Case], *, on_round: OnRound = ignore) -> StepTimeFit:
    """Fit the hardware profile of `pair` (GPU die, stack) to timed `cases`, starting from the catalogue's
    nearest profile; the result is named after the pair. `on_round` is called after every step.

    Runs of one source are taken to be of one cluster, which its profile follows closely, but for a few runs, of which
    no more is believed than they agree on; of several sources each of n runs counts 1/√n, and none is followed far from
    the others.
    """
    die, stack = pair
    start = nearest_profile(catalog.load_gpu(die), stack, family=cases[0].question.stack.family)
    of_one_cluster = len({case.row.source_id for case in cases}) == 1
    fit = fit_step_times(start, cases, of_one_cluster=of_one_cluster, on_round=on_round)
    source = f"Fitted to timed runs: {fit.named_sources}; started from {start.name}."
    source += " The median error is that of the fit itself."
    profile = _with_identity(fit.profile, f"fitted-{die}-{stack}"[:_MAX_NAME_LENGTH], die, stack)
    return replace(fit, profile=profile.model_copy(update={"source": source}))


IS_ANCHOR = "an anchor: its measured step time calibrates the rest of its sweep"
"""Reason why the row of an anchor (a run that calibrates others) has no prediction."""
_MIN_CHANGE = 0.005
"""Minimum relative change of a constant that a prediction mentions."""
_ANOTHER_UNIT = 500.0
"""Factor beyond which a time must be in another unit (milliseconds, hours) or mistyped, and calibrates nothing."""


def anchor(
    predictions: Iterable[Prediction], anchors: int, *, on_sweep: Callable[[int, int], None] = ignore
) -> tuple[Prediction, ...]:
    """Calibrate the predicted step times in each sweep by the measured step times of some of its runs,
    `anchors` in number. All predictions are returned in their order.

    A sweep here is the rows of one source, trainer and cluster, as a user has them in old logs: what is unknown about
    them (clocks, fabric, versions) is the same for all, and a few rows tell most of it. Anchors no longer have
    predictions. A sweep without more timed rows than anchors keeps its predictions. `on_sweep` is called with the
    number of sweeps that are done and of all.
    """
    ordered = list(predictions)
    cases = {place: case for place, one in enumerate(ordered) if one.step_seconds and (case := one.case)}
    sweeps = group_by(cases, lambda place: _sweep_of(cases[place]))
    for sweeps_done, places in enumerate(sweeps.values(), start=1):
        timed = [place for place in places if _is_comparable(ordered[place])]
        if 0 < anchors < len(timed):
            timed.sort(key=lambda place: ordered[place].row.row_id)
            anchor_places = [timed[position] for position in spread_positions(len(timed), anchors)]
            anchor_cases = [cases[place] for place in anchor_places]
            offset, _ = cluster_offset(TimedCases(anchor_cases[0].question.hardware, anchor_cases))
            for place in places:
                run, case = ordered[place], cases[place]
                if place in anchor_places:
                    ordered[place] = Prediction(row=run.row, case=case, skipped=IS_ANCHOR, anchor=True)
                else:
                    ordered[place] = _calibrated(run, case, offset, anchors)
        on_sweep(sweeps_done, len(sweeps))
    return tuple(ordered)


def _sweep_of(case: Case) -> tuple[str, ...]:
    """Key of the sweep to which a case belongs: source, trainer, cluster and hardware profile."""
    return case.row.source_id, case.row.trainer, case.row.cluster, case.question.hardware.name


def spread_positions(count: int, number: int) -> Sequence[int]:
    """Indices of `number` out of `count` items, evenly spaced from the first to the last; the middle index if
    `number` is 1.

    Three of seven: 0, 3, 6.
    """
    if number == 1:
        return (count // 2,)
    return tuple(-(-position * (count - 1) // (number - 1)) for position in range(number))


def _is_comparable(prediction: Prediction) -> bool:
    """Whether a run has measured and predicted step times that do not differ so much that a unit must be
    wrong."""
    error = step_error(prediction)
    return error is not None and 1 / _ANOTHER_UNIT < 1 + error < _ANOTHER_UNIT


def _calibrated(prediction: Prediction, case: Case, offset: Offset, anchors: int) -> Prediction:
    """Prediction of a case after its sweep's calibration. The profile's constants are changed by the mean of
    `offset`, and step seconds multiplied by its common factor. Memory figures are unchanged."""
    old, factor = case.question.hardware, math.exp(offset.mean[0])
    new = offset.apply(old)
    priced = estimate(replace(case.question, hardware=new), case.layout)
    factors = {name: getattr(new, name) / getattr(old, name) for name in offset.constants}
    changes = [f"{name} × {by:.2f}" for name, by in factors.items() if abs(by - 1) > _MIN_CHANGE]
    if abs(offset.mean[0]) > _MIN_CHANGE:
        changes.append(f"step time × {factor:.3f}")
    summary = f"{anchors} anchors of its sweep: {', '.join(changes) or 'nothing moved'}"
    return replace(
        prediction,
        step_seconds=factor * priced.step_seconds,
        parts={part: factor * seconds for part, seconds in dict(priced.time).items()},
        assumptions=(*prediction.assumptions, summary),
    )
