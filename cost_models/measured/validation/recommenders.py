"""Predictions of published runs of recommenders, beside what was measured.

MLPerf's clock runs through evaluations: 89.1 M samples after every twentieth of an epoch of 4195 M, forward only. Each
sample trained brings 0.425 evaluated ones, at the forward part of a step: lookup, forward exchange, dense network.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from cost_models.measured.runs.recommenders import RecommenderRun
from cost_models.measured.validation.scores import relative_error
from cost_models.recommender.estimating import RecommenderEstimate, estimate
from cost_models.recommender.priced import STAGES
from cost_models.recommender.prices.dense import dense_seconds

EVALUATED = 89_137_319 / (4_195_197_692 / 20)
"""Samples evaluated for each that MLPerf trains on (HugeCTR 25.03, samples/dlrm/train.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderPrediction:
    """Published recommender run with the predicted estimate and step seconds."""

    run: RecommenderRun
    estimate: RecommenderEstimate
    seconds: float
    """Predicted seconds of a step, with MLPerf's evaluations."""

    @property
    def error(self) -> float | None:
        """Relative error of the predicted step time with evaluations; None where it was not measured."""
        return relative_error(self.seconds, self.run.seconds)

    @property
    def training_error(self) -> float | None:
        """Relative error of the predicted step time without evaluations; None where it was not measured."""
        return relative_error(self.estimate.step_seconds, self.run.training_seconds)

    @property
    def memory_error(self) -> float | None:
        """Relative error of the predicted memory of the first GPU; None where it was not measured."""
        return relative_error(float(self.estimate.device_bytes[0]), self.run.memory_bytes)

    @property
    def exchange_share(self) -> float:
        """Share of the predicted step spent on exchanging table vectors and gradients between GPUs."""
        parts = self.estimate.stages
        return (parts[STAGES.forward_exchange] + parts[STAGES.backward_exchange]) / parts.total


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderScore:
    """Errors of step time and memory over the recommender runs of one framework on one GPU."""

    framework: str
    gpu: str
    runs: int
    median_error: float
    worst_error: float
    median_memory_error: float | None
    out_of_memory: tuple[int, int]
    """Number of runs out of memory, and number of these that were predicted to be."""


def predict(run: RecommenderRun) -> RecommenderPrediction:
    """Predict the step time and memory of one recommender run, with evaluations where they were part of the run."""
    priced = estimate(run.question, run.sharding)
    seconds = priced.step_seconds
    if run.training_seconds is not None:
        forward = priced.stages[STAGES.lookup] + priced.stages[STAGES.forward_exchange]
        seconds += EVALUATED * (forward + dense_seconds(run.question).forward)
    return RecommenderPrediction(run=run, estimate=priced, seconds=seconds)


def scores(predictions: Iterable[RecommenderPrediction]) -> tuple[RecommenderScore, ...]:
    """Errors of recommender predictions, grouped by framework and GPU."""
    groups: dict[tuple[str, str], list[RecommenderPrediction]] = {}
    for prediction in predictions:
        groups.setdefault((prediction.run.framework, prediction.run.gpu), []).append(prediction)
    framework_scores = []
    for (framework, gpu), group in groups.items():
        times = [abs(one.error) for one in group if one.error is not None]
        memory = [abs(one.memory_error) for one in group if one.memory_error is not None]
        full = [one for one in group if one.run.out_of_memory]
        framework_scores.append(
            RecommenderScore(
                framework=framework,
                gpu=gpu,
                runs=len(times),
                median_error=statistics.median(times) if times else 0.0,
                worst_error=max(times, default=0.0),
                median_memory_error=statistics.median(memory) if memory else None,
                out_of_memory=(len(full), sum(not one.estimate.fits for one in full)),
            )
        )
    return tuple(framework_scores)
