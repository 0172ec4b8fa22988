"""Fitting the few constants of a profile to published step times: robust, and pulled towards physical defaults.

Minimises, over the logarithms θ of the constants,

    Σ_r w_r · Huber(log(predicted_r / measured_r) / 5 %)  +  Σ_c ((θ_c − default_c) / pull)² / 2

as `least_squares` does it. Rows of one sweep are not independent, so each of n rows of a source weighs 1/√n. Constants
that the rows do not determine stay at their defaults; the intervals are those of the linearised problem.

**Scenarios** are sets of constants that the runs leave possible on an untimed cluster. There the constants of a profile
are off by δ = p + s, in logarithms: p is what the runs leave open (the inverse of the loss's curvature at the fit), s
is how much one cluster and release differ from another. With S the slopes of the errors r of a source's runs, r = −S·s
+ ε; the variances τ² of s come from all sources together (expectation maximisation, each source's s being normal),
beginning from the pulls of the fit as if these were one source more. The rest of r is `unexplained`, each layout's own.
δ has the covariance Σ = Cov(p) + diag(τ²). The scenarios are ± the columns of a root of Σ under a fixed rotation, so
that their mean is zero and their covariance Σ itself, not a sample of it.

**Pair error**: the share of an error that one cluster and one release have in common (clocks, fabric, kernels) cancels
in the ratio of two times of one sweep, so its error is smaller than either's. It grows with the square root of the
number n of axes on which the layouts differ, as if each axis brought an error of its own: over the published sweeps its
median is 5 % on one axis, 7 % on two, 9 % on three. So one figure is enough, the median of |error of the ratio| / √n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from statistics import NormalDist

import numpy as np

from cost_models.arrays import MAD_TO_DEVIATION, Array, group_by
from cost_models.axes.layout import COMPARED, Layout, axes_that_differ, axis_value
from cost_models.measured.calibration.least_squares import Expansion, Interval, expand, intervals, shrink
from cost_models.measured.runs.cases import Case
from cost_models.measured.validation.scores import Reach, source_weights, sweep_of, weighted_quantile
from cost_models.measured.validation.scores import measured_seconds as timed_seconds
from cost_models.measured.validation.step_times import StepTimes
from cost_models.specs.hardware import HardwareProfile, Scenarios, TimedRuns

COUNT = 16
"""Scenarios of a profile; a power of two above the number of constants."""
_SEED = 14
_ROUNDS = 30
_MAX_PULLS = 3.0
"""Pulls beyond which no source's constants are believed to be off: more looks like a wrong fact of its stack."""
_TAIL_SHARE = 0.9
"""Share of the runs that `unexplained`, taken for the deviation of a normal error, has to hold; tails are heavy."""


def scenarios_of(
    constants: Sequence[str], covariance: Array, slopes: Array, errors: Array, sources: Sequence[str]
) -> Scenarios:
    """Plausible sets of the fitted constants (scenarios), from the fit's covariance (C, C) and the variation
    between sources. That follows from the runs' errors (R,) with slopes (R, C). All are of logarithms;
    `sources` (R,) are the runs' sources.

    `variances` (C,) are by how much the constants differ from one source of timed runs to another, `unexplained`
    is the deviation of the errors that this leaves.
    """
    rows = group_by(range(len(sources)), sources.__getitem__)
    pulls = pulls_of(constants)
    variances, unexplained = pulls**2, float(np.std(errors)) or 1e-3
    for _ in range(_ROUNDS):
        squares, remaining = pulls**2, np.empty_like(errors)
        for source_rows in rows.values():
            size = np.maximum(np.abs(errors[source_rows]) / unexplained, 1e-12)
            # rows of a sweep are alike: n count for √n
            weight = np.minimum(1, 2 / size) * len(source_rows) ** -0.5 / unexplained**2
            source_slopes = slopes[source_rows]
            weighted = weight[:, None] * source_slopes
            spread = np.linalg.inv(weighted.T @ source_slopes + np.diag(1 / variances))
            farthest = _MAX_PULLS * pulls
            mean = np.clip(-spread @ (weighted.T @ errors[source_rows]), -farthest, farthest)
            squares = squares + mean**2 + np.diag(spread)
            remaining[source_rows] = errors[source_rows] + source_slopes @ mean
        variances = squares / (len(rows) + 1)
        unexplained = max(1e-3, MAD_TO_DEVIATION * float(np.median(np.abs(remaining))))
    tails = float(np.quantile(np.abs(remaining), _TAIL_SHARE)) / NormalDist().inv_cdf((1 + _TAIL_SHARE) / 2)
    factors = with_covariance(constants, covariance + np.diag(variances))
    return Scenarios(factors=factors, unexplained=round(max(unexplained, tails), 4))


def with_covariance(constants: Sequence[str], covariance: Array) -> dict[str, str]:
    """Constant → factors in all scenarios, as text, whose logarithms have mean zero and the given covariance
    (C, C).

    The design is of rows of a Hadamard matrix of ±1, orthogonal to one another and of mean zero.
    """
    assert len(constants) < COUNT
    design = np.ones((1, 1))
    while len(design) < COUNT:
        design = np.block([[design, design], [design, -design]])
    rotation = np.linalg.qr(np.random.default_rng(_SEED).normal(size=(len(constants),) * 2))[0]
    factors = np.exp(np.linalg.cholesky(covariance) @ rotation @ design[1 : len(constants) + 1])
    words = [" ".join(f"{factor:.4g}" for factor in row) for row in factors.tolist()]
    return dict(zip(constants, words, strict=True))


FEWEST_PAIRS = 10
"""Fewest pairs of runs from which a pair error is claimed."""


def pair_error(cases: Sequence[Case], errors: Mapping[str, float]) -> float | None:
    """Median error of the predicted ratio of two step times in a sweep, divided by √n for n differing axes;
    None for few pairs. It is |log error of the ratio| / √n.

    `errors` are predicted / measured − 1 by run. Every sweep weighs as much as it has runs, not pairs.
    """
    sizes, weights = [], []
    for runs in group_by(cases, lambda case: (case.row.source, *sweep_of(case.row))).values():
        for first, second in combinations(runs, 2):
            if axes := axes_that_differ(first.layout, second.layout):
                ratio = (1 + errors[first.row.row_id]) / (1 + errors[second.row.row_id])
                sizes.append(abs(np.log(ratio)) / len(axes) ** 0.5)
                weights.append(1 / (len(runs) - 1))
    if len(sizes) < FEWEST_PAIRS:
        return None
    return weighted_quantile(np.array(sizes), np.array(weights), 0.5)


def timed_runs(cases: Sequence[Case], errors: Mapping[str, float]) -> tuple[TimedRuns, ...]:
    """Summary of the runs of each (source, GPU, stack), in order of first appearance; `errors` are by run."""

    def identity(case: Case) -> tuple[str, str, str]:
        return case.row.source, case.question.cluster.gpu.name, case.question.stack.name

    groups = group_by(cases, identity)
    plainest, runs = Layout(), []
    for (source, gpu, stack), members in groups.items():
        gpus = [one.layout.num_gpus for one in members]
        median = round(float(np.median([abs(errors[one.row.row_id]) for one in members])), 4)
        values = {name: {axis_value(name, one.layout) for one in members} for name in COMPARED}
        varied = {name: used for name, used in values.items() if used != {axis_value(name, plainest)}}
        axes = {name: " ".join(sorted(sorted(used), key=len)) for name, used in varied.items()}
        fields: dict[str, object] = {"source": source, "gpu": gpu, "stack": stack, "runs": len(members)}
        fields |= {"fewest_gpus": min(gpus), "most_gpus": max(gpus), "median_error": median, "axes": axes}
        runs.append(TimedRuns.model_validate(fields))
    return tuple(runs)


_PRODUCTS = ("gemm_efficiency", "attention_forward_efficiency", "attention_backward_efficiency")
_HOST = ("kernel_seconds", "host_layer_seconds", "tensor_parallel_host_seconds", "action_host_seconds")
_CLUSTER = ("link_efficiency", "network_efficiency", "step_seconds", "jitter_per_doubling")
CONSTANTS = (*_PRODUCTS, "memory_efficiency", *_HOST, *_CLUSTER)
"""The twelve constants of a profile that may be fitted; all others stay documented defaults."""

_CEILING = 1.1
"""Largest value of a fitted share: a little above the best that was measured, never much."""
_OF_A_BENCHMARK = ("attention_forward_efficiency", "attention_backward_efficiency")
"""Shares of what a kernel reached alone, which none in a step exceeds."""
_HUBER = 0.05
"""Relative error beyond which a run pulls linearly: a mistranscribed row must not move a constant far."""
_PULL = {"kernel_seconds": 0.5, "jitter_per_doubling": 0.7, "step_seconds": 0.7}
_HOST_PULL, _SHARE_PULL = 0.7, 0.15
"""Log-distance from the default that costs as much as one run being 5 % off: shares of a peak are known within some
15 %, host times and jitter differ by factors."""
_SLOWER_HOSTS = (2.0, 4.0, 8.0)  # times the host's time of a block, from which a fit may begin
WEIGHT_ON_ONE_CLUSTER = 4.0
"""Weight of a run where all runs are of one source: its step times agree within some 2.5 %, half of what different
publishers' do."""


OnRound = Callable[[int, float], None]
"""Hears the number of each round of a fit and the median error after it."""


def ignore(*_: object) -> None:
    """Listener to the progress of a fit that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeFit:
    """Profile fitted to step times, with residuals of the runs and intervals of the constants."""

    profile: HardwareProfile
    residuals: dict[str, float]
    """Run → predicted / measured − 1."""
    sources: dict[str, str]
    """Run → source."""
    constants: dict[str, Interval]
    around: Expansion
    """The errors around the fitted constants, from which a fit to some of the runs can start."""
    pair_error: float | None
    """Median error of the ratio of two step times of one sweep, on one axis in which the layouts differ."""
    scenarios: Scenarios
    """Constants that the runs leave possible elsewhere."""
    timed: tuple[TimedRuns, ...]
    """The runs by source, GPU and stack."""

    @property
    def median_error(self) -> float:
        """Median absolute relative error of step time over the fitted runs."""
        return float(np.median(np.abs(list(self.residuals.values()))))

    def around_runs(self, cases: Sequence[Case]) -> Expansion:
        """Step-time errors of `cases`, a subset of the fitted runs, with derivatives at the fitted constants."""
        place_of = {run: place for place, run in enumerate(self.residuals)}
        rows = [place_of[case.row.row_id] for case in cases]
        return replace(self.around, errors=self.around.errors[rows], slopes=self.around.slopes[rows])


class TimedCases:
    """Cases with measured step times, prepared for one fit after another of `constants` of profile `start`."""

    def __init__(
        self, start: HardwareProfile, cases: Sequence[Case], constants: Sequence[str] = CONSTANTS
    ) -> None:
        self.start = start
        self.constants = tuple(name for name in constants if getattr(start, name) > 0)
        """A constant that is 0 stays 0: factors do not move it."""
        self._times = StepTimes(cases)
        self._measured = np.array([measured_seconds(case) for case in cases])

    @cached_property
    def origin(self) -> Array:
        """(C,) logarithms of the constants of the profile `start`."""
        return np.log([getattr(self.start, name) for name in self.constants])

    @cached_property
    def at_start(self) -> Expansion:
        """Step-time errors of all cases at the constants of the profile `start`, with derivatives."""
        return expand(self.errors_at, self.origin)

    @property
    def logarithms(self) -> tuple[Array, Array]:
        """(N,) log of predicted / measured step time under `start`, with derivatives (N, C) by the constants'
        logarithms."""
        return _HUBER * self.at_start.errors, _HUBER * self.at_start.slopes

    def values_at(self, points: Array) -> dict[str, Array]:
        """Constants by name at (..., C) points, which are logarithms, rounded to the digits that a profile's
        file has."""
        rounded = np.vectorize(lambda value: float(f"{value:.4g}"))(np.exp(points))
        return dict(zip(self.constants, np.moveaxis(rounded, -1, 0), strict=True))

    def errors_at(self, points: Array) -> Array:
        """(K, N) log errors of predicted step times at (K, C) points, in units of `_HUBER`."""
        seconds = self._times.under(self.start, self.values_at(points), len(points))
        return np.asarray(np.log(seconds / self._measured) / _HUBER)


def fit_step_times(
    start: HardwareProfile,
    cases: Sequence[Case],
    *,
    weight_of_a_run: float | None = None,
    around: Expansion | None = None,
    on_round: OnRound = ignore,
) -> StepTimeFit:
    """Fit the constants of profile `start` to the measured step times of `cases`. `on_round` is called after
    every step.

    Each run weighs `weight_of_a_run`, by default 1/√n where its source has n. The fit starts where the errors are known
    `around`, by default at the constants of `start`.
    """
    timed, sources = TimedCases(start, cases), [case.row.source for case in cases]
    pulls = pulls_of(timed.constants)
    weight = source_weights(sources) if weight_of_a_run is None else np.full(len(sources), weight_of_a_run)
    # a fit begins at the constants of `start`, or at a slower host where that explains more
    slower = np.outer(np.log(_SLOWER_HOSTS), [name == "host_layer_seconds" for name in timed.constants])

    def report_round(round_: int, errors: Array) -> None:
        on_round(round_, float(np.median(np.abs(np.expm1(_HUBER * errors)))))

    around, covariance = shrink(
        timed.errors_at,
        timed.origin,
        pulls,
        weight,
        ceiling=np.log([ceiling_of(name) for name in timed.constants]),
        around=around or timed.at_start,
        candidates=timed.origin + slower if around is None else None,
        on_round=report_round,
    )
    names = [case.row.row_id for case in cases]
    residuals = dict(zip(names, np.expm1(_HUBER * around.errors).tolist(), strict=True))
    deviations, influence = np.sqrt(np.diag(covariance)), covariance @ (around.slopes * weight[:, None]).T
    slopes, errors = _HUBER * around.slopes, _HUBER * around.errors
    values = timed.values_at(around.point).items()
    return StepTimeFit(
        profile=start.model_copy(update={name: float(value) for name, value in values}),
        residuals=residuals,
        sources=dict(zip(names, sources, strict=True)),
        constants=intervals(timed.constants, around.point, deviations, pulls, influence, names),
        around=around,
        pair_error=pair_error(cases, residuals),
        scenarios=scenarios_of(timed.constants, covariance, slopes, errors, sources),
        timed=timed_runs(cases, residuals),
    )


def fitted_profile(
    fit: StepTimeFit, *, unseen_error: float | None = None, reach: Reach | None = None
) -> HardwareProfile:
    """Profile of a fit with its accuracy claims filled in (runs, median error, error on unseen sources,
    interval reach)."""
    runs = ", ".join(f"{count} of {source}" for source, count in Counter(fit.sources.values()).items())
    return fit.profile.model_copy(
        update={
            "median_error": round(fit.median_error, 4),
            "validated_runs": len(fit.residuals),
            "unseen_error": None if unseen_error is None else round(unseen_error, 4),
            "pair_error": None if fit.pair_error is None else round(fit.pair_error, 4),
            "scenarios": fit.scenarios if reach is None else fit.scenarios.model_copy(update=reach._asdict()),
            "timed": fit.timed,
            "source": f"Fitted to published runs: {runs}. The median error is that of the fit itself.",
        }
    )


def measured_seconds(case: Case) -> float:
    """Published step seconds of a case's run."""
    seconds = timed_seconds(case.row)
    assert seconds is not None, f"{case.row.row_id} has no step time"
    return seconds


def pulls_of(constants: Sequence[str]) -> Array:
    """(C,) prior width of each constant's logarithm, the distance that costs a fit as much as one run being 5
    % off."""
    return np.array([_PULL.get(name, _HOST_PULL if "host" in name else _SHARE_PULL) for name in constants])


def scale_constants(profile: HardwareProfile, factors: Mapping[str, float]) -> HardwareProfile:
    """Copy of the profile with constants multiplied by `factors`, each at most at the fit's ceiling or its
    former value."""
    values = {}
    for name, factor in factors.items():
        value = getattr(profile, name)
        values[name] = min(float(f"{value * factor:.4g}"), max(value, ceiling_of(name)))
    return profile.model_copy(update=values)


def ceiling_of(name: str) -> float:
    """Largest value that a fit may give the constant `name`, within the limits of the profile's file."""
    limit = next(mark.le for mark in HardwareProfile.model_fields[name].metadata if hasattr(mark, "le"))
    ceiling = 1.0 if name in _OF_A_BENCHMARK else _CEILING
    return min(float(limit), ceiling) if name.endswith("efficiency") else float(limit)
