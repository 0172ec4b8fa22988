"""Fit of a hardware profile's constants to step times, from a Gaussian prior and timed runs.

    log measured = log predicted(θ) + γ + noise

θ (C,) are logarithms of constants, γ an offset of all step times of one cluster that no constant has. There are three
questions, and each answer is the prior of the next:

**Published runs** (`fit_step_times`): the prior of θ are the documented defaults with the deviations of
`prior_widths`, and γ = 0. Minimised (`least_squares`) is

    Σ_r w_r · Huber(log(predicted_r / measured_r) / 5 %)  +  Σ_c ((θ_c − default_c) / width_c)² / 2

Rows of one sweep are not independent, so each of n rows of a source weighs 1/√n. Constants that the rows do not
determine stay at their defaults; the intervals are those of the linearised problem.

**A cluster that nobody timed** (`scenarios_of`): its constants are off by δ = p + s, in logarithms: p is what the runs
leave open (the inverse of the loss's curvature at the fit), s is how much one cluster and release differ from another.
With S the slopes of the errors r of a source's runs, r = −S·s + ε; the variances τ² of s come from all sources together
(expectation maximisation, each source's s being normal), beginning from the widths of the prior as if these were one
source more. The rest of r is `unexplained`, each layout's own. δ has the covariance Σ = Cov(p) + diag(τ²). Scenarios
are ± the columns of a root of Σ under a fixed rotation, so that their mean is zero and their covariance Σ itself, not a
sample of it.

**A few runs of one cluster** (`cluster_offset`): the prior of δ is what the scenarios say, γ is normal.
One to eight runs that are followed closely have their oddities taken for constants, so two things are unsure besides:
whether a row is ordinary or odd (misread, or of a mechanism that is missing), and whether the cluster is like others or
far from them all. Every combination is followed as a Gaussian, row by row, and their mean counts, each weighted by how
likely it makes the rows (a Gaussian sum filter, Alspach and Sorenson 1972): where rows disagree, none is believed in
full. How wide all this is was seen where whole sources were left out of every fit, with one to five of their rows
given. A profile's constants move by δ alone; predictions of other rows of the same sweep (`profile_fits.anchor`) move
by γ too.

**Pair error**: the share of an error that one cluster and one release have in common (clocks, fabric, kernels) cancels
in the ratio of two times of one sweep, so its error is smaller than either's. It grows with the square root of the
number n of axes on which the layouts differ, as if each axis brought an error of its own: over the published sweeps its
median is 5 % on one axis, 7 % on two, 9 % on three. So one figure is enough, the median of |error of the ratio| / √n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist

import numpy as np

from cost_models.arrays import MAD_TO_DEVIATION, Array, group_by
from cost_models.axes.layout import COMPARED, Layout, axes_that_differ, axis_value
from cost_models.documents import printable
from cost_models.measured.calibration.least_squares import Expansion, Interval, expand, intervals, shrink
from cost_models.measured.runs.cases import Case
from cost_models.measured.validation.scores import source_weights, sweep_of
from cost_models.measured.validation.step_times import StepTimes
from cost_models.specs.hardware import HardwareProfile, Scenarios, TimedRuns
from cost_models.units import rounded

_SHARES_OF_ATTENTION = ("attention_forward_efficiency", "attention_backward_efficiency")
_HOST = ("kernel_seconds", "host_layer_seconds", "tensor_parallel_host_seconds", "action_host_seconds")
_CLUSTER = ("link_efficiency", "network_efficiency", "step_seconds", "jitter_per_doubling")
CONSTANTS = ("gemm_efficiency", *_SHARES_OF_ATTENTION, "memory_efficiency", *_HOST, *_CLUSTER)
"""The twelve constants of a profile that may be fitted; all others stay documented defaults."""

_CEILING = 1.1
"""Largest value of a fitted share: a little above the best that was measured, never much. No kernel in a step exceeds
what it reached alone, so attention's shares end at 1."""
_ERROR = 0.05
"""Relative error beyond which a run pulls linearly: a mistranscribed row must not move a constant far."""
_WIDTHS = {"kernel_seconds": 0.5, "jitter_per_doubling": 0.7, "step_seconds": 0.7}
_HOST_WIDTH, _SHARE_WIDTH = 0.7, 0.15
"""Deviation of a constant's logarithm from its default: shares of a peak are known within some 15 %, host times and
jitter differ by factors."""
_SLOWER_HOSTS = (2.0, 4.0, 8.0)
"""Factors on a block's host time at which a fit may begin."""
_WEIGHT_ON_ONE_CLUSTER = 4.0
"""Weight of a run where all runs are of one source: its step times agree within some 2.5 %, half of what different
publishers' do."""


def prior_widths(constants: Sequence[str]) -> Array:
    """Prior standard deviation of each constant's logarithm around its documented default, (C,)."""
    widths = [_WIDTHS.get(name, _HOST_WIDTH if "host" in name else _SHARE_WIDTH) for name in constants]
    return np.array(widths)


def ceiling_of(name: str) -> float:
    """Maximum value that a fit may give the constant `name`, within the limits of the profile's field."""
    limit = next(mark.le for mark in HardwareProfile.model_fields[name].metadata if hasattr(mark, "le"))
    ceiling = 1.0 if name in _SHARES_OF_ATTENTION else _CEILING
    return min(float(limit), ceiling) if name.endswith("efficiency") else float(limit)


OnRound = Callable[[int, float], None]
"""Function that is called with the number of each round of a fit and the median error after it."""
MAX_NAMED_SOURCES = 8
"""Maximum number of sources that a profile's source names."""


def ignore(*_: object) -> None:
    """Do nothing; the default listener to the progress of a fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeFit:
    """Profile fitted to step times, with the runs' errors before and after and intervals of the constants."""

    start: HardwareProfile
    """Profile whose constants were the mean of the prior."""
    profile: HardwareProfile
    """Fitted profile with its median error, scenarios and summary of runs."""
    start_errors: dict[str, float]
    """Relative error, predicted / measured − 1, under `start`, by run."""
    residuals: dict[str, float]
    """Relative error, predicted / measured − 1, under `profile`, by run."""
    sources: dict[str, str]
    """Source of each run, by run."""
    constants: dict[str, Interval]
    around: Expansion | None
    """The errors around the fitted constants, from which a fit to some of the runs can start; None of a few runs."""

    @property
    def median_error(self) -> float:
        """Median absolute relative error of the runs' step times under the fitted profile."""
        return median_size(list(self.residuals.values()))

    @property
    def median_before(self) -> float:
        """Median absolute relative error of the runs' step times under the profile from which the fit
        started."""
        return median_size(list(self.start_errors.values()))

    @property
    def named_sources(self) -> str:
        """Text that counts the runs by source ("3 of mine, 2 of lab"), with the largest sources named."""
        by_size = Counter(self.sources.values()).most_common()
        words = [f"{count} of {printable(source, 40)}" for source, count in by_size[:MAX_NAMED_SOURCES]]
        if further_runs := sum(count for _, count in by_size[MAX_NAMED_SOURCES:]):
            words.append(f"{further_runs} of others")
        return ", ".join(words)

    def around_runs(self, cases: Sequence[Case]) -> Expansion | None:
        """Errors at the fitted constants, with derivatives, of those fitted runs that are in `cases`; None if
        the fit has none."""
        if self.around is None:
            return None
        place_of = {run: place for place, run in enumerate(self.residuals)}
        rows = [place_of[case.row.row_id] for case in cases]
        return replace(self.around, errors=self.around.errors[rows], slopes=self.around.slopes[rows])


def measured_seconds(case: Case) -> float:
    """Measured step seconds of a case's run."""
    seconds = case.row.step_seconds
    assert seconds is not None, f"{case.row.row_id} has no step time"
    return seconds


def median_size(errors: Sequence[float] | Array) -> float:
    """Median absolute value of relative errors."""
    return float(np.median(np.abs(errors)))


def under(profile: HardwareProfile, cases: Sequence[Case]) -> tuple[Case, ...]:
    """Copies of the cases in which the question has the hardware profile `profile`."""
    return tuple(replace(case, question=replace(case.question, hardware=profile)) for case in cases)


def seconds_of(cases: Sequence[Case]) -> Array:
    """Predicted step seconds of each case under the profile in its question, (N,)."""
    profiles, seconds = [case.question.hardware for case in cases], np.empty(len(cases))
    # profiles of one name may be fitted to other runs
    for rows in group_by(range(len(cases)), lambda row: id(profiles[row])).values():
        seconds[rows] = StepTimes([cases[row] for row in rows]).seconds(profiles[rows[0]])
    return seconds


def errors_of(cases: Sequence[Case]) -> Array:
    """Relative error of each case's predicted step time under the profile in its question, (N,)."""
    return np.asarray(seconds_of(cases) / np.array([measured_seconds(case) for case in cases]) - 1)


class TimedCases:
    """Function from the constants of a hardware profile to the errors of the step times of timed cases."""

    def __init__(self, start: HardwareProfile, cases: Sequence[Case]) -> None:
        self.start, self.cases = start, cases
        self.constants = tuple(name for name in CONSTANTS if getattr(start, name) > 0)
        """Names of the fitted constants; a constant of 0 is not fitted, as factors do not change it."""
        self.origin = np.log([getattr(start, name) for name in self.constants])
        """Logarithms of the constants of `start`, (C,)."""
        self._times = StepTimes(cases)
        self._measured = np.array([measured_seconds(case) for case in cases])

    def values_at(self, points: Array) -> dict[str, Array]:
        """Values of each constant, (...), by name, at points (..., C) of logarithms. They are rounded to the
        digits that a profile's file has."""
        values = np.vectorize(rounded)(np.exp(points))
        return dict(zip(self.constants, np.moveaxis(values, -1, 0), strict=True))

    def errors_at(self, points: Array) -> Array:
        """Logarithms (K, N) of predicted over measured step times at points (K, C)."""
        seconds = self._times.under(self.start, self.values_at(points), len(points))
        return np.asarray(np.log(seconds / self._measured))


MAX_FEW_RUNS = 8
"""Largest number of runs of one cluster that are fitted as few; with fifteen runs of a left-out source a close fit
predicted better."""
_CAUTION = 0.8
"""Factor on the prior variance where a profile is kept: it must not be worse than the one it replaces."""


def fit_step_times(
    start: HardwareProfile,
    cases: Sequence[Case],
    *,
    of_one_cluster: bool = False,
    around: Expansion | None = None,
    on_round: OnRound = ignore,
) -> StepTimeFit:
    """Fit the constants of the profile `start` to the measured step times of `cases`. `on_round` is called
    after every step.

    Each of n runs of a source weighs 1/√n, and none is followed far from the others. Runs `of_one_cluster` are followed
    closely, but for a few, of which no more is believed than they agree on. The fit starts where the errors are known
    `around`, by default at the constants of `start`, or at a slower host where that explains more.
    """
    timed, runs = TimedCases(start, cases), [case.row.row_id for case in cases]
    sources, names = [case.row.source_id for case in cases], timed.constants
    is_few = of_one_cluster and len(cases) <= MAX_FEW_RUNS
    if is_few:
        offset, expansion = cluster_offset(timed, share=_CAUTION)
        profile = offset.apply(start)
        point = np.log([getattr(profile, name) for name in names])
        errors, slopes = timed.errors_at(point[None])[0], expansion.slopes
        covariance, influence = prior_covariance(start, names), slopes.T
        variances, prior_variances = offset.variances[1:], offset.prior_variances[1:]
    else:
        prior_variances = prior_widths(names) ** 2
        weights = np.full(len(cases), _WEIGHT_ON_ONE_CLUSTER) if of_one_cluster else source_weights(sources)
        slower = np.outer(np.log(_SLOWER_HOSTS), [name == "host_layer_seconds" for name in names])
        around, covariance = shrink(
            timed.errors_at,
            timed.origin,
            np.diag(prior_variances),
            _ERROR,
            weights=weights,
            ceiling=np.log([ceiling_of(name) for name in names]),
            around=around,
            candidates=timed.origin + slower if around is None else None,
            on_round=lambda round_, errors: on_round(round_, median_size(np.expm1(errors))),
        )
        point, errors, slopes = around.point, around.errors, around.slopes
        values = {name: float(value) for name, value in timed.values_at(point).items()}
        profile, influence = start.model_copy(update=values), covariance @ (slopes * weights[:, None]).T
        variances = np.diag(covariance)
    residuals = dict(zip(runs, np.expm1(errors).tolist(), strict=True))
    scenarios, pair, of_these = start.scenarios, pair_error(cases, residuals), timed_runs(cases, residuals)
    if scenarios is None or not is_few:
        reach = {} if scenarios is None else {"faster": scenarios.faster, "slower": scenarios.slower}
        scenarios = scenarios_of(names, covariance, slopes, errors, sources).model_copy(update=reach)
    claims = {
        "median_error": round(median_size(np.expm1(errors)), 4),
        "validated_runs": len(cases),
        "unseen_error": None,
        # what sources differ by, and what was ever timed, a few runs add to
        "pair_error": (is_few and start.pair_error) or (None if pair is None else round(pair, 4)),
        "scenarios": scenarios,
        "timed": (*start.timed, *of_these) if is_few else of_these,
    }
    return StepTimeFit(
        start=start,
        profile=profile.model_copy(update=claims),
        start_errors=dict(zip(runs, np.expm1(timed.errors_at(timed.origin[None])[0]).tolist(), strict=True)),
        residuals=residuals,
        sources=dict(zip(runs, sources, strict=True)),
        constants=intervals(names, point, variances, prior_variances, influence, runs),
        around=around,
    )


COUNT = 16
"""Number of scenarios of a profile; a power of two above the number of constants."""
_SEED = 14
_ROUNDS = 30
_MAX_WIDTHS = 3.0
"""Prior widths beyond which no source's constants are believed to be off: more looks like a wrong fact of its stack."""
_TAIL_SHARE = 0.9
"""Share of the runs that `unexplained`, taken for the deviation of a normal error, has to hold; tails are heavy."""


def scenarios_of(
    constants: Sequence[str], covariance: Array, slopes: Array, errors: Array, sources: Sequence[str]
) -> Scenarios:
    """Plausible sets of values of the constants (scenarios). They follow from the covariance (C, C) of the
    fit and the variation between sources. The variation follows from the runs' errors (R,) with slopes (R, C)
    and sources (R,). All are of logarithms.

    `variances` (C,) are by how much the constants differ from one source of timed runs to another, `unexplained`
    is the deviation of the errors that this leaves.
    """
    rows = group_by(range(len(sources)), sources.__getitem__)
    widths = prior_widths(constants)
    variances, unexplained = widths**2, float(np.std(errors)) or 1e-3
    for _ in range(_ROUNDS):
        squares, remaining = widths**2, np.empty_like(errors)
        for source_rows in rows.values():
            size = np.maximum(np.abs(errors[source_rows]) / unexplained, 1e-12)
            # rows of a sweep are alike: n count for √n
            weight = np.minimum(1, 2 / size) * len(source_rows) ** -0.5 / unexplained**2
            source_slopes = slopes[source_rows]
            weighted = weight[:, None] * source_slopes
            spread = np.linalg.inv(weighted.T @ source_slopes + np.diag(1 / variances))
            farthest = _MAX_WIDTHS * widths
            mean = np.clip(-spread @ (weighted.T @ errors[source_rows]), -farthest, farthest)
            squares = squares + mean**2 + np.diag(spread)
            remaining[source_rows] = errors[source_rows] + source_slopes @ mean
        variances = squares / (len(rows) + 1)
        unexplained = max(1e-3, MAD_TO_DEVIATION * float(np.median(np.abs(remaining))))
    tails = float(np.quantile(np.abs(remaining), _TAIL_SHARE)) / NormalDist().inv_cdf((1 + _TAIL_SHARE) / 2)
    factors = with_covariance(constants, covariance + np.diag(variances))
    return Scenarios(factors=factors, unexplained=round(max(unexplained, tails), 4))


def with_covariance(constants: Sequence[str], covariance: Array) -> dict[str, str]:
    """Factors on each constant in all scenarios, written as one text per constant, by name of the constant.
    The factors' logarithms have mean zero and the given covariance (C, C).

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


_VARIANCE = 0.6
"""Variance of δ as a share of the scenarios', which have stacks that were misread among them."""
_OFFSET_DEVIATION, _FAR_OFFSET_DEVIATION = 0.03, 0.5
"""Deviation of γ between ordinary clusters, and of a far cluster."""
_FAR_SHARE = 0.01
"""Share of clusters that are far from all others."""
_NOISE, _ODD_NOISE = 0.02, 0.5
"""Deviation of an ordinary row from its neighbours, and of an odd row."""
_ODD_SHARE, _FAR_ODD_SHARE = 0.4, 0.05
"""Share of rows that are odd; on a cluster that is far rows agree, or it could not be recognised."""
_MAX_COMBINATIONS = 128
"""Maximum number of combinations of hypotheses that are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """How far one cluster is inferred to be from its hardware profile: the logarithm of a factor on all step
    times, and of a factor on each constant."""

    constants: tuple[str, ...]
    mean: Array
    """Offset of step times, then of each constant, (1 + C,)."""
    variances: Array
    """Variance of each offset that the runs leave, (1 + C,)."""
    prior_variances: Array
    """Variance of each offset before the runs, (1 + C,)."""

    def apply(self, profile: HardwareProfile) -> HardwareProfile:
        """Copy of a profile with its constants changed by the mean offsets. No constant rises above the
        fit's ceiling, or above its former value if that is higher."""
        values = {}
        for name, change in zip(self.constants, self.mean[1:].tolist(), strict=True):
            value = getattr(profile, name)
            values[name] = min(rounded(value * math.exp(change)), max(value, ceiling_of(name)))
        return profile.model_copy(update=values)


def offset_of(
    errors: Array, slopes: Array, covariance: Array, constants: Sequence[str] = (), *, known_runs: int = 0
) -> Offset:
    """Infer the offset of a cluster from logarithms of predicted / measured step times, (K,). `slopes` (K, C)
    are their derivatives by the logarithms of the `constants`.

    `covariance` (C, C) is that of the scenarios. `known_runs` of the same cluster are in the constants already, which
    leaves less to say for these. Without errors the offset is zero.

    Hypotheses on the cluster (ordinary or far) and on each row so far (ordinary or odd) are Gaussians over the step
    offset γ and the constants' offsets δ: means (H, 1 + C), covariances (H, 1 + C, 1 + C), logarithms of chances (H,),
    and shares of odd rows (H,).
    """
    joint = np.zeros((2, len(covariance) + 1, len(covariance) + 1))
    joint[:, 0, 0] = _OFFSET_DEVIATION**2, _FAR_OFFSET_DEVIATION**2
    joint[:, 1:, 1:] = _VARIANCE * covariance
    remaining = (1.0 + known_runs * np.diagonal(joint, axis1=1, axis2=2) / _NOISE**2) ** -0.5
    covariances = joint * (remaining[:, :, None] * remaining[:, None, :])
    means = np.zeros(covariances.shape[:2])
    chances, odd = np.log([1 - _FAR_SHARE, _FAR_SHARE]), np.array([_ODD_SHARE, _FAR_ODD_SHARE])

    def moments() -> tuple[Array, Array]:
        """Mean and variance of the offsets (γ, δ), each (1 + C,), with all hypotheses weighted by their
        probability."""
        weights = np.exp(chances - chances.max())
        weights /= weights.sum()
        mean = weights @ means
        spread = np.diagonal(covariances, axis1=1, axis2=2) + (means - mean) ** 2
        return mean, np.maximum(weights @ spread, 0.0)

    _, prior_variances = moments()
    for error, slope in zip(errors.tolist(), slopes, strict=True):
        term = np.append(1.0, slope)
        along, off = covariances @ term, -error - means @ term
        branches = []
        for share, deviation in ((1 - odd, _NOISE), (odd, _ODD_NOISE)):
            variance = along @ term + deviation**2
            gain = along / variance[:, None]
            posterior = covariances - gain[:, :, None] * along[:, None, :]
            log_chances = chances + np.log(share) - 0.5 * (off**2 / variance + np.log(variance))
            branches.append((means + gain * off[:, None], posterior, log_chances, odd))
        hypotheses = [np.concatenate(pair) for pair in zip(*branches, strict=True)]
        likeliest = np.argsort(-hypotheses[2], kind="stable")[:_MAX_COMBINATIONS]
        means, covariances, chances, odd = (values[likeliest] for values in hypotheses)
    mean, variances = moments()
    return Offset(constants=tuple(constants), mean=mean, variances=variances, prior_variances=prior_variances)


def prior_covariance(profile: HardwareProfile, constants: Sequence[str]) -> Array:
    """Covariance (C, C) of the logarithms of `constants` over a profile's scenarios. A constant without
    scenarios has its squared prior width as variance."""
    scenario_factors = profile.scenarios.by_constant if profile.scenarios is not None else {}
    covariance = np.diag(prior_widths(constants) ** 2)
    places = [place for place, name in enumerate(constants) if name in scenario_factors]
    if places:
        logs = np.log([scenario_factors[constants[place]] for place in places])
        covariance[np.ix_(places, places)] = np.cov(logs, bias=True)
    return covariance


def cluster_offset(timed: TimedCases, *, share: float = 1.0) -> tuple[Offset, Expansion]:
    """Infer how far one cluster's constants are from those of its hardware profile; all cases ran on the
    cluster. The cases' errors under the profile are returned too. `share` is the factor on the prior
    variance."""
    around = expand(timed.errors_at, timed.origin)
    sources = {case.row.source_id for case in timed.cases}
    known_runs = sum(runs.runs for runs in timed.start.timed if runs.source in sources)
    covariance = share * prior_covariance(timed.start, timed.constants)
    errors, slopes = around.errors, around.slopes
    return offset_of(errors, slopes, covariance, timed.constants, known_runs=known_runs), around


MIN_PAIRS = 10
"""Minimum number of pairs of runs for a pair error."""


def pair_error(cases: Sequence[Case], errors: Mapping[str, float]) -> float | None:
    """Median error of the predicted ratio of two step times in a sweep, per axis on which the layouts differ.
    The error of one ratio is |log error of the ratio| / √n for n axes; None for fewer than `MIN_PAIRS` pairs.

    `errors` are predicted / measured − 1 by run. Every sweep weighs as much as it has runs, not pairs.
    """
    sizes, weights = [], []
    for runs in group_by(cases, lambda case: (case.row.source_id, *sweep_of(case.row))).values():
        for first, second in combinations(runs, 2):
            if axes := axes_that_differ(first.layout, second.layout):
                ratio = (1 + errors[first.row.row_id]) / (1 + errors[second.row.row_id])
                sizes.append(abs(np.log(ratio)) / len(axes) ** 0.5)
                weights.append(1 / (len(runs) - 1))
    if len(sizes) < MIN_PAIRS:
        return None
    return float(np.quantile(sizes, 0.5, weights=weights, method="inverted_cdf"))


def timed_runs(cases: Sequence[Case], errors: Mapping[str, float]) -> tuple[TimedRuns, ...]:
    """Summary of the runs of each (source, GPU, stack), in order of first appearance; `errors` are by run."""

    def identity(case: Case) -> tuple[str, str, str]:
        """Source, GPU and stack of a case."""
        return case.row.source_id, case.question.cluster.gpu.name, case.question.stack.name

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
