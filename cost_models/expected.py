"""Expected step seconds of a layout with a 90 % interval, from the prediction and its errors on similar timed
runs.

Search and proof compare predicted steps ("on paper"); the expected step corrects the prediction by the errors
of similar timed runs. Runs of the same question count most; if nothing similar was timed, the interval is as
wide as sources left out of every fit needed (`Kernel`). No interval reaches above 80 % MFU, which no
published run exceeded.

`data/errors/steps.csv` holds one row for each shipped timed run, priced with the shipped profile for its GPU
and stack (`benchmarks/fit_errors.py` writes it): features of model, job and layout, and the error of its
prediction. Distances are over features, most of them binary logarithms.

The model is a Gaussian process over the logarithm of measured / predicted step seconds. With a the amplitude
of a row (the uncertainty of its constants, and so of its step), two rows covary by

    k(x, y) = a(x) · a(y) · s(x, y) · e^{−d} · (h(x) · h(y) · e^{−Td} + g(x) · g(y) · [same source])
              + S² [same source] + N² [x = y]                                h² = max(0, 1 − r²/a²),  g² = 1 − h²

where d is the distance over features (`FEATURES`), s a factor below 1 for different GPUs, stacks and kinds of
models, S the deviation between publishers' clusters, and N that of single runs. Different publishers of one
question share all but the deviation r; the shared part decays T times faster with distance than the part that
one publisher's runs share. A question has no source: the effect of its cluster stays uncertain. Constants:
`data/errors/steps.yaml`, those of the greatest likelihood of sources that were left out of every fit
(Rasmussen and Williams 2006, equation 5.10, by source).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cost_models.arrays import MAD_TO_DEVIATION, Array, Bools, Ints
from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import die_of
from cost_models.estimate import Estimate, half_width
from cost_models.files import catalog, read_data
from cost_models.operators.flops import model_flops
from cost_models.operators.parameters import total_parameters
from cost_models.pipeline.pricing import estimate as price
from cost_models.pipeline.pricing import seconds_under_scenarios, step_interval
from cost_models.question import MeasuredStep, Question

SHAPE = ("parameters", "flops_per_token", "hidden", "layers", "sequence", "gpus", "microbatches")
SPLIT = ("tp", "pp", "vpp", "cp", "ep", "mbs")
SWITCHES = ("sharded", "recomputed", "bits")
FEATURES = (*SHAPE, *SPLIT, *SWITCHES)
NAMES = ("gpu", "die", "stack", "family", "experts")
_BITS = {"fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "fp4": 4}
_RECOMPUTED = {"none": 0.0, "full": 1.0}
_PARTIAL_RECOMPUTE = 0.5


def features_of(question: Question, layout: Layout) -> dict[str, float]:
    """Numeric features by which runs are compared, by name: sizes and parallel degrees as binary logarithms,
    sharding and recomputation as shares."""
    model, training = question.model, question.training
    policies = [mix.partition(":")[0] for mix in layout.stage_recompute]
    counts = {
        "parameters": total_parameters(model),
        "flops_per_token": model_flops(model, training, layout.tp) / training.tokens_per_step,
        "hidden": model.hidden_size,
        "layers": model.num_layers,
        "sequence": training.sequence_length,
        "gpus": layout.num_gpus,
        "microbatches": layout.microbatches(training.global_batch),
        **{axis: getattr(layout, axis) for axis in SPLIT},
        "bits": _BITS[training.precision],
    }
    logarithms = {name: float(np.log2(value)) for name, value in counts.items()}
    recomputed = float(np.mean([_RECOMPUTED.get(one, _PARTIAL_RECOMPUTE) for one in policies]))
    return logarithms | {"sharded": float(layout.zero >= 2), "recomputed": recomputed}


def labels_of(question: Question) -> dict[str, str]:
    """Categorical features by which runs are compared, by name: GPU, die, stack, family of stacks, and
    whether the model has experts."""
    gpu, stack = question.cluster.gpu.name, question.stack
    experts = "yes" if question.model.has_experts else "no"
    return dict(zip(NAMES, (gpu, die_of(gpu), stack.name, stack.family or stack.name, experts), strict=True))


_NUMBERS, _TEXTS = (*FEATURES, "spread"), (*NAMES, "source")
_COLUMNS = np.dtype([*((name, float) for name in _NUMBERS), *((name, object) for name in (*_TEXTS, "run"))])
"""Columns of `Rows`: the features of a run or question; `spread`, the uncertainty of its predicted step time
(standard deviation of its logarithm over the constants that timed runs leave plausible); texts; and `run`, all
columns of the row as written in the data file, for runs also source, model, layout and measured seconds."""
Rows = npt.NDArray[np.void]
"""Table of N timed runs or questions, (N,), an array with the columns `_COLUMNS`."""


def rows_of(table: Iterable[Mapping[str, Any]]) -> Rows:
    """Table (structured array) with a row for each run or question, built from dictionaries of its features,
    names and spread."""
    return np.array([(*(row[name] for name in (*_NUMBERS, *_TEXTS)), row) for row in table], _COLUMNS)


def row_of(
    question: Question, layout: Layout, spread: float, source: str = "", seconds: float | None = None
) -> Rows:
    """Table with a single row for one question and layout, with the measured `seconds` if it is a run."""
    words = {"model": question.model.name, "layout": layout.model_copy(update={"layers": ()}).brief}
    run = {**labels_of(question), **words, "source": source, "seconds": seconds, "spread": spread}
    return rows_of([features_of(question, layout) | run])


def agree(first: Rows, second: Rows, column: str) -> Bools:
    """Whether rows of two tables have the same text in a column, for each pair of rows, (N, M)."""
    return np.asarray(first[column][:, None] == second[column][None])


@cache
def timed_rows() -> tuple[Rows, Array]:
    """Features of all timed runs shipped with the package, and their errors ln(measured / predicted), (N,);
    cached."""
    text = (files("cost_models") / "data" / "errors" / "steps.csv").read_text(encoding="utf-8")
    table = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    return rows_of(table), np.array([float(row["log_ratio"]) for row in table])


LARGEST = 0.3
"""Absolute value at which errors ln(measured / predicted) are clipped, since a run further off may be
mistranscribed."""
_USUAL_SPREAD = 0.08
"""Typical `Rows.spread` of a step, the unit in which `Kernel.amplitude` is given."""
SAME_QUESTION_DISTANCE = 0.2
"""Feature distance below which two runs count as the same question, for instance with another vocabulary, or
a stage chunk more or less."""
_LEAST_SPREAD, _MOST_SPREAD = 0.03, 0.4
"""Bounds to which `Rows.spread` is clipped."""
USERS_SOURCE = "your run"
"""Source of a step that the user measured."""
USERS_CORRELATION = 0.7
"""Least correlation of the errors of two of the user's layouts that differ in `SWITCHES` alone. With it a run corrects
left-out runs of its source, job and size that recompute or shard otherwise: 4.7 % off (median of nine sources), for
8.1 % (`benchmarks/measured_step.py`)."""
_HALF_SHAPE = ("gpus", "microbatches")
"""Features of `SHAPE` with half weight in the squared distance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Constants of the Gaussian process that models errors of predicted step times (formula in the module
    docstring)."""

    amplitude: float
    """Amplitude a of a row with the typical spread `_USUAL_SPREAD`, as a multiple of that spread."""
    power: float
    """Exponent p by which the amplitude depends on the spread: a ∝ spread^p."""
    experts: float
    """Logarithm of the factor on the amplitude of mixture-of-experts models."""
    narrow: float
    """Logarithm of the factor on the amplitude of training in fp8 or fp4."""
    sharded: float
    """Logarithm of the factor on the amplitude under ZeRO 2 or 3."""
    shape: float
    """Length scale of distances over the features in `SHAPE` (sizes of model and job)."""
    split: float
    """Length scale of distances over the features in `SPLIT` (parallel degrees and microbatch size)."""
    switches: float
    """Length scale of distances over the features in `SWITCHES` (sharding, recomputation, precision)."""
    same: float
    """Deviation r between the errors of different publishers of one question. No two shipped sources timed
    the same question, so this is the noise that publishers show elsewhere."""
    sharpness: float
    """Factor T on distances in the part of an error that different publishers share."""
    publisher: float
    """Standard deviation S of the error that a publisher's cluster adds to all its runs."""
    noise: float
    """Standard deviation N of the error of a single run."""
    other_gpu: float
    """Factor on the covariance of two runs on different GPUs of the same die."""
    other_die: float
    other_stack: float
    """Factor on the covariance of two runs under different stacks of one family."""
    other_family: float
    other_kind: float
    """Factor on the covariance of a run of a dense model and a run of a mixture of experts."""

    def amplitudes(self, rows: Rows) -> Array:
        """Prior standard deviation of each row's prediction error, (N,). It leaves out the terms for the
        run's publisher (S) and for the single run (N)."""
        spread = np.clip(rows["spread"], _LEAST_SPREAD, _MOST_SPREAD) / _USUAL_SPREAD
        of_model = self.experts * (rows["experts"] == "yes") + self.narrow * (rows["bits"] < 4)
        logarithm = of_model + self.sharded * rows["sharded"]
        return np.asarray(self.amplitude * _USUAL_SPREAD * spread**self.power * np.exp(logarithm))

    def similarity(self, first: Rows, second: Rows) -> Array:
        """Similarity s · e^{−d} of each pair of rows of two tables, (N, M). It is 1 for the same question,
        and lower the greater the distance and for another GPU, stack or kind of model."""

        def factor(name: str, factor_between: float) -> Array:
            """Factor on the similarity of each pair of rows, (N, M): 1 if both have the same text in column
            `name`, else `factor_between`."""
            return np.where(agree(first, second, name), 1.0, factor_between)

        of_gpus = factor("gpu", self.other_gpu) * factor("die", self.other_die)
        of_stacks = factor("stack", self.other_stack) * factor("family", self.other_family)
        shares = of_gpus * of_stacks * factor("experts", self.other_kind)
        return np.asarray(shares * np.exp(-self.distance(first, second)))

    def covariance(self, first: Rows, second: Rows) -> Array:
        """Prior covariance of the prediction errors of each pair of rows of two tables, (N, M), without the
        noise of single runs."""
        source = agree(first, second, "source") & (first["source"] != "")[:, None]
        x, y = self.amplitudes(first)[:, None], self.amplitudes(second)[None]
        g2_x, g2_y = (np.minimum(1.0, self.same**2 / amplitudes**2) for amplitudes in (x, y))
        of_question, of_source = np.sqrt(1 - g2_x) * np.sqrt(1 - g2_y), np.sqrt(g2_x) * np.sqrt(g2_y)
        decay = np.exp(-self.sharpness * self.distance(first, second))
        deviations = of_question * decay + of_source * source
        by_kernel = x * y * self.similarity(first, second) * deviations + self.publisher**2 * source
        is_users = source & (first["source"] == USERS_SOURCE)[:, None]
        if not is_users.any():
            return np.asarray(by_kernel)
        across_switches = USERS_CORRELATION * x * y * np.exp(-self.distance(first, second, switches=False))
        return np.asarray(np.where(is_users, np.maximum(by_kernel, across_switches), by_kernel))

    def distance(self, first: Rows, second: Rows, *, switches: bool = True) -> Array:
        """Distance in features of each pair of rows of two tables, (N, M), in length scales; without the features
        in `SWITCHES` if not `switches`."""
        lengths = [self.shape] * len(SHAPE) + [self.split] * len(SPLIT) + [self.switches] * len(SWITCHES)
        scales = np.where(np.isin(FEATURES, _HALF_SHAPE), 0.5**0.5, 1.0) / np.array(lengths)
        scales *= switches | ~np.isin(FEATURES, SWITCHES)
        x, y = (np.stack([rows[name] for name in FEATURES], axis=1) * scales for rows in (first, second))
        total: Array = (x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * x @ y.T
        return np.sqrt(np.maximum(total, 0.0))

    def prior(self, rows: Rows) -> Array:
        """Prior variance of each row's prediction error, (N,), if its publisher has no other timed runs."""
        return self.amplitudes(rows) ** 2 + self.publisher**2 + self.noise**2

    def posterior(self, row: Rows, timed: Rows, errors: Array) -> tuple[float, float]:
        """Mean and standard deviation of one row's error ln(measured / predicted), given the `errors` (N,) of
        the timed rows.

        Rows of nearly the same question (GPU, family of stacks and kind of model, at almost no distance) count
        once more, as a measurement with the deviation r between publishers: the process attributes part of
        their error to the publishers' clusters, of which nothing else is known. Runs of the row's own source
        need no such correction, and their errors are not clipped.
        """
        is_own = agree(row, timed, "source")[0] & (row["source"] != "")
        clipped = np.where(is_own, errors, np.clip(errors, -LARGEST, LARGEST))
        cross = self.covariance(row, timed)[0]
        inside = self.covariance(timed, timed)
        inside[np.diag_indices(len(timed))] += self.noise**2
        solved = np.linalg.solve(inside, np.stack([cross, clipped], axis=1))
        mean, explained = float(cross @ solved[:, 1]), cross @ solved[:, 0]
        variance = max(float(self.prior(row)[0] - explained), self.noise**2)
        agreements = [agree(row, timed, name)[0] for name in ("gpu", "family", "experts")]
        near = self.distance(row, timed)[0] < SAME_QUESTION_DISTANCE
        repeats = np.all([*agreements, near, ~is_own], axis=0)
        if repeats.any():
            same_error, weight = float(np.mean(errors[repeats])), variance / (variance + self.same**2)
            mean, variance = mean + weight * (same_error - mean), variance * (1 - weight)
        return mean, variance**0.5


class Reach(NamedTuple):
    """Distances of the two ends of a 90 % interval of step times from the median, in posterior standard
    deviations. They come from errors on left-out sources."""

    faster: float
    slower: float


@cache
def shipped_constants() -> tuple[Kernel, dict[str, Reach], dict[str, Any]]:
    """Constants of the error model from the package's data: the kernel, the ends of the 90 % interval by
    stratum, and all values of the file; cached."""
    constants = read_data("errors/steps")
    kernel = Kernel(**{field.name: constants[field.name] for field in fields(Kernel)})
    return kernel, {name: Reach(**ends) for name, ends in constants["reach"].items()}, constants


INTERVAL_PROBABILITY = 0.9
"""Probability that the true step time lies within an interval."""
MOST_MFU = 0.8
"""Highest MFU that the lower end of an interval may imply: none of 1,256 published runs exceeded it."""
_CONDITIONED_ROWS = 256
"""Number of timed rows on which the prediction for a question is conditioned: those with the largest
covariance."""
_LIKELY_STEPS = 40
_SIZE_TOLERANCE = 0.05
"""Maximum difference of sizes, in binary logarithms, within one question: vocabularies of one architecture
differ by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearRuns:
    """Timed runs of the question that is nearest to a given question."""

    source: str
    model: str
    gpu: str
    stack: str
    gpus: int
    layout: str
    runs: int
    least_seconds: float
    most_seconds: float
    off: float
    """Median of predicted / measured step seconds − 1 over these runs."""
    differs: tuple[str, ...]
    """Names of the features in which these runs differ from the question ("model", "gpus", "vpp"); empty: in
    none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStep:
    """Expected seconds of a step, with a 90 % interval."""

    on_paper: float
    """Predicted step seconds without correction, by which searches and proofs compare layouts."""
    seconds: float
    """Median step seconds, given the errors of similar timed runs."""
    low: float
    """Lower end of the interval, seconds: one step in twenty is faster."""
    high: float
    """Upper end of the interval, seconds: one step in twenty is slower, for example on a faulty cluster."""
    nearest: NearRuns | None = None
    """Timed runs most similar to the question; None if the profile is not one shipped with the package."""
    borrowed: bool = False
    """Whether the profile's constants come from another GPU, as no GPU of this die was timed."""

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end of the 90 % interval, seconds."""
        return self.low, self.high

    @property
    def likely_steps(self) -> Array:
        """Equally probable step seconds, (40,), in increasing order."""
        shares = (np.arange(_LIKELY_STEPS) + 0.5) / _LIKELY_STEPS
        return self.sample_steps(np.array([NormalDist().inv_cdf(share) for share in shares]))

    def sample_steps(self, normal: Array) -> Array:
        """Convert standard normal draws (...) to step seconds (...). A draw of 0 gives the median, and draws
        of ±1.645, which bound 90 %, give the interval's ends."""
        side = half_width(INTERVAL_PROBABILITY)
        slower, faster = math.log(self.high / self.seconds) / side, math.log(self.seconds / self.low) / side
        return np.asarray(self.seconds * np.exp(np.where(normal < 0, faster, slower) * normal))


def expected_step(question: Question, estimate: Estimate) -> ExpectedStep | None:
    """Expected step seconds with a 90 % interval for an estimate; None if the profile has no scenarios, or
    the cluster has several pools.

    A step that the user measured is one more timed run, of the same source as the question. It corrects
    layouts as far as they are like the measured one: of two runs of one publisher the errors are correlated
    by 0.8 within a distance of 0.5 and by 0.2 beyond 1, so there is no common factor.
    """
    layout, paper = estimate.layout, estimate.step_seconds
    scenario_seconds = seconds_under_scenarios(question, layout)
    if scenario_seconds is None:
        return None
    hardware, fastest = question.hardware, paper * min(1.0, estimate.mfu / MOST_MFU)
    is_shipped = (
        hardware.name in catalog.names("profiles") and catalog.load_profile(hardware.name) == hardware
    )
    timed, errors = timed_rows() if is_shipped else (rows_of([]), np.zeros(0))
    source = ""
    if question.measured is not None:
        source, (run, error) = USERS_SOURCE, _measured_row(question.measured)
        timed, errors = np.concatenate([run, timed]), np.concatenate([[error], errors])
    if not len(timed):
        ends = step_interval(question, layout, paper, INTERVAL_PROBABILITY)
        assert ends is not None
        return ExpectedStep(on_paper=paper, seconds=paper, low=max(ends[0], fastest), high=ends[1])
    row = row_of(question, layout, spread_of(scenario_seconds, paper), source)
    kernel, reaches, _ = shipped_constants()
    near = nearest_first(kernel, row, timed)[:_CONDITIONED_ROWS]
    mean, deviation = kernel.posterior(row, timed[near], errors[near])
    stratum = stratum_of(row, timed)
    reach, middle = reaches[stratum], paper * math.exp(mean)
    low = max(fastest, middle * math.exp(-reach.faster * deviation))
    return ExpectedStep(
        on_paper=paper,
        seconds=max(middle, low),
        low=low,
        high=max(middle, low) * math.exp(reach.slower * deviation),
        nearest=_near_runs(row, timed, errors, near),
        borrowed=stratum == "borrowed",
    )


def _measured_row(run: MeasuredStep) -> tuple[Rows, float]:
    """Row of a step that the user measured, (1,), and its error ln(measured / predicted)."""
    question, layout = run.question, parse_layout(run.layout)
    paper = price(question, layout).step_seconds
    under_scenarios = seconds_under_scenarios(question, layout)
    spread = _USUAL_SPREAD if under_scenarios is None else spread_of(under_scenarios, paper)
    return row_of(question, layout, spread, USERS_SOURCE, run.seconds), math.log(run.seconds / paper)


def spread_of(under_scenarios: Array, seconds: float) -> float:
    """Robust standard deviation of the logarithm of step seconds over scenarios, (K,), around the predicted
    `seconds`."""
    return float(MAD_TO_DEVIATION * np.median(np.abs(np.log(under_scenarios / seconds))))


def nearest_first(kernel: Kernel, row: Rows, timed: Rows) -> Ints:
    """Indices (N,) that sort the timed rows from most to least similar to `row`.

    Rows with equal covariance are ordered by similarity: if the row's amplitude is below the deviation between
    publishers, all covariances are zero.
    """
    shared = kernel.covariance(row, timed)[0] / kernel.amplitudes(timed)
    return np.lexsort((-kernel.similarity(row, timed)[0], -shared))


def stratum_of(row: Rows, timed: Rows) -> str:
    """Word for how closely timed runs match a row: "timed", "untimed" or "borrowed". It is "timed" if this
    GPU, family of stacks and kind of model were timed together; "untimed" if another GPU of its die was
    timed; else "borrowed"."""
    gpu, family, kind, die = (agree(row, timed, name)[0] for name in ("gpu", "family", "experts", "die"))
    if (gpu & family & kind).any():
        return "timed"
    return "untimed" if die.any() else "borrowed"


def _near_runs(row: Rows, timed: Rows, errors: Array, near: Ints) -> NearRuns:
    """Summary of the timed runs of the question most similar to a row; `near` are row numbers of timed runs,
    nearest first."""
    first = timed[near[0]]
    same_question = [place for place in near if not _differences(first, timed[place])]
    seconds = [float(run["seconds"]) for run in timed["run"][same_question]]
    return NearRuns(
        gpus=round(2 ** float(first["gpus"])),
        runs=len(same_question),
        least_seconds=min(seconds),
        most_seconds=max(seconds),
        off=float(np.expm1(-np.median(errors[same_question]))),
        differs=_differences(row[0], first),
        **{name: first["run"][name] for name in ("source", "model", "gpu", "stack", "layout")},
    )


_WORDS = dict.fromkeys(("parameters", "flops_per_token", "hidden", "layers"), "model")
_WORDS |= {"gpus": "number of GPUs", "microbatches": "batch"}
_WORDS |= {"sharded": "zero", "recomputed": "recompute", "bits": "precision"}


def _differences(first: np.void, second: np.void) -> tuple[str, ...]:
    """Names, in words for the user, of the features in which two rows differ; empty if they are of the same
    question."""
    words = [word for name, word in (("gpu", "GPU"), ("family", "stack")) if first[name] != second[name]]
    tolerances = dict.fromkeys(FEATURES, 1e-3) | dict.fromkeys(SHAPE, _SIZE_TOLERANCE)
    differing = (name for name, size in tolerances.items() if abs(first[name] - second[name]) > size)
    return tuple(dict.fromkeys([*words, *(_WORDS.get(name, name) for name in differing)]))
