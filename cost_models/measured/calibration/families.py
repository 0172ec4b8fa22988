"""Profiles of every GPU and stack that published runs cover, and their cross-validation over sources.

There is one profile for each (die, family of stacks) with enough runs, and one for each die over all its stacks, for
untimed stacks. Cross-validation leaves whole sources out of every fit, because rows of one sweep are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cost_models.arrays import Array
from cost_models.defaults import DIES, die_of, nearest_profile
from cost_models.files import catalog
from cost_models.measured.calibration.step_time_fit import (
    StepTimeFit,
    TimedCases,
    fit_step_times,
    fitted_profile,
    measured_seconds,
)
from cost_models.measured.runs.cases import Case
from cost_models.measured.runs.switches import is_suspect
from cost_models.measured.validation.step_times import StepTimes
from cost_models.specs.hardware import HardwareProfile

Pair = tuple[str, str]
"""What one profile is for: the GPU that stands for a die, and the name of a stack."""
OnRound = Callable[[str, int, float], None]
"""Called in every round of a fit with the profile's name, the round and the median error."""

ANY = "any"
_FEWEST = 6
"""Fewest runs of a stack for a profile of its own."""
_UNEXPLAINED = 0.1
"""Median error above which a fit does not explain its runs and gives no profile."""


def takes_part(case: Case) -> bool:
    """Whether a row moves constants: not where its transcriber flagged it, as a few runs on a strained machine would
    set its host's times alone; nor of recurrences, whose kernels on Blackwell take longer than their bytes for a reason
    that is not known (Nemotron 3 Nano: within 5 % on H100, 15 to 22 % fast there)."""
    return not is_suspect(case.row) and case.question.model.recurrence is None


def fit_families(
    cases: Sequence[Case] | TimedCases,
    needed: Collection[Pair] | None = None,
    *,
    fewest: int = _FEWEST,
    around: Mapping[str, StepTimeFit] | None = None,
    on_round: OnRound | None = None,
) -> dict[str, StepTimeFit]:
    """Name → fit, for every (die, stack) and every die with `fewest` timed `cases` or more, as far as `needed`.

    A fit starts `around` that of the same name to more cases, where there is one. Not every row takes part
    (`takes_part`).
    """
    timed = cases if isinstance(cases, TimedCases) else timed_by_default(cases)
    groups: dict[Pair, list[int]] = {}
    for index, case in enumerate(timed.cases):
        if not takes_part(case):
            continue
        die, stack = pair_of(case)
        groups.setdefault((die, stack), []).append(index)
        groups.setdefault((die, ANY), []).append(index)
    fits = {}
    for (die, stack), rows in sorted(groups.items()):
        if len(rows) >= fewest and (needed is None or (die, stack) in needed):
            start = blank_profile(die, stack)
            name = start.name
            members = timed.of(rows)
            near = around.get(name) if around else None
            fit = fit_step_times(
                start,
                members,
                around=None if near is None else near.around_runs(members.cases),
                on_round=None if on_round is None else partial(on_round, name),
            )
            if fit.median_error <= _UNEXPLAINED:
                fits[name] = fit
    return fits


def timed_by_default(cases: Sequence[Case]) -> TimedCases:
    """Cases prepared for fits that start at the documented defaults."""
    return TimedCases(catalog.load_profile("datasheet-gpu"), cases)


def blank_profile(gpu: str, stack: str) -> HardwareProfile:
    """The documented defaults, under the name and identity of a profile that is to be fitted."""
    die = die_of(gpu)
    short = die.split("-")[0]
    identity = {
        "name": short if stack == ANY else f"{short}-{stack}",
        "gpu": die,
        "also_for": DIES.get(die, ()),
        "stack": stack,
        "tier": "profile",
    }
    return catalog.load_profile("datasheet-gpu").model_copy(update=identity)


def predict_with(profiles: Iterable[HardwareProfile], cases: Sequence[Case]) -> Array:
    """(N,) relative error of each case under the nearest of `profiles`."""
    return errors_of(under_nearest(profiles, cases))


def under_nearest(profiles: Iterable[HardwareProfile], cases: Sequence[Case]) -> tuple[Case, ...]:
    """The cases, each under the nearest of `profiles`."""
    known = tuple(profiles)
    found = []
    for case in cases:
        gpu, stack = case.question.cluster.gpu, case.question.stack
        nearest = nearest_profile(gpu, stack.name, known, family=stack.family)
        found.append(replace(case, question=replace(case.question, hardware=nearest)))
    return tuple(found)


def errors_of(cases: Sequence[Case]) -> Array:
    """(N,) relative error of each case under its own profile."""
    errors: Array = seconds_of(cases) / np.array([measured_seconds(case) for case in cases]) - 1
    return errors


def seconds_of(cases: Sequence[Case]) -> Array:
    """(N,) predicted seconds of each case under its own profile."""
    chosen = [case.question.hardware for case in cases]
    seconds = np.empty(len(cases))
    for one in dict.fromkeys(map(id, chosen)):  # profiles of one name may be fitted to other runs
        rows = [index for index, profile in enumerate(chosen) if id(profile) == one]
        seconds[rows] = StepTimes([cases[index] for index in rows]).seconds(chosen[rows[0]])
    return seconds


def leave_sources_out(
    cases: Sequence[Case], *, fewest: int = _FEWEST, on_source: Callable[[str], None] | None = None
) -> dict[str, Array]:
    """Source → (n,) errors of its cases under profiles fitted to all other sources."""
    return {
        source: errors_of(own)
        for source, own in under_other_sources(cases, fewest=fewest, on_source=on_source)
    }


def under_other_sources(
    cases: Sequence[Case], *, fewest: int = _FEWEST, on_source: Callable[[str], None] | None = None
) -> Iterator[tuple[str, tuple[Case, ...]]]:
    """Every source with its cases, each under the nearest of the profiles fitted to all other sources."""
    timed = timed_by_default(cases)
    of_all = fit_families(timed, fewest=fewest)
    for source, profiles in profiles_without(timed, of_all, fewest=fewest, on_source=on_source):
        yield source, under_nearest(profiles, [case for case in cases if case.row.source == source])


def profiles_without(
    timed: TimedCases,
    of_all: Mapping[str, StepTimeFit],
    *,
    fewest: int = _FEWEST,
    on_source: Callable[[str], None] | None = None,
) -> Iterator[tuple[str, tuple[HardwareProfile, ...]]]:
    """Every source with the profiles that its rows need, fitted to all other sources."""
    cases = timed.cases
    for source in dict.fromkeys(case.row.source for case in cases):
        if on_source is not None:
            on_source(source)
        rest = [row for row, case in enumerate(cases) if case.row.source != source]
        known, wanted = (
            {pair_of(case) for case in cases if (case.row.source == source) == held} for held in (False, True)
        )
        needed = (wanted & known) | {(die, ANY) for die, _ in (known if wanted - known else ())}
        fits = fit_families(timed.of(rest), needed, fewest=fewest, around=of_all)
        yield source, tuple(map(fitted_profile, fits.values()))


def pair_of(case: Case) -> Pair:
    """The die and family of stacks that a case ran on."""
    stack = case.question.stack
    return die_of(case.question.cluster.gpu.name), stack.family or stack.name


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenSource:
    """Median absolute relative errors of one source's step times under three kinds of profiles."""

    source: str
    runs: int
    defaults: float
    """Error under the documented defaults, which were fitted to nothing."""
    left_out: float
    """Error under profiles fitted to every other source."""
    fitted: float
    """Error under the profile that was fitted to this source too."""


def cross_validate(
    cases: Sequence[Case],
    fitted_errors: Mapping[str, float],
    *,
    on_source: Callable[[str], None] | None = None,
) -> tuple[UnseenSource, ...]:
    """The errors of every source of `cases`, left out in turn; `fitted_errors` are those of the full fits, by run.

    The fits start from the documented defaults, not from the catalogue's profiles, which may have seen the same
    runs. A source whose GPU and stack no other source has is predicted with the nearest of the others' profiles.
    """
    unseen = leave_sources_out(cases, fewest=1, on_source=on_source)
    found = []
    for source, errors in unseen.items():
        members = [case for case in cases if case.row.source == source]
        fitted = np.array([fitted_errors[case.row.row_id] for case in members])
        found.append(
            UnseenSource(
                source=source,
                runs=len(members),
                defaults=_median(predict_with((), members)),
                left_out=_median(errors),
                fitted=_median(fitted),
            )
        )
    return tuple(found)


def _median(errors: Array) -> float:
    return float(np.median(np.abs(errors)))
