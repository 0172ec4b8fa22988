"""The expected step of a layout with its 90 % interval, and the timed runs nearest to it.

Search and proof compare steps on paper; what a reader plans by is what such steps took where they were timed. Rows that
are the same question pull hardest; where nothing near was timed the interval is as wide as sources left out of every
fit needed (`process`). No interval reaches above 80 % MFU: nothing that was published did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cost_models.arrays import MAD_TO_DEVIATION, Array, Ints
from cost_models.estimate import Estimate
from cost_models.expected.process import Kernel, fitted
from cost_models.expected.rows import FEATURES, SHAPE, SPLIT, Rows, row_of, timed_rows
from cost_models.files import catalog
from cost_models.pipeline.under_scenarios import seconds_under_scenarios, step_interval
from cost_models.question import Question
from cost_models.uncertainty import half_width

STATED = 0.9
"""Share of cases that an interval is said to hold."""
MOST_MFU = 0.8
"""No interval reaches above: the fastest of 1,256 published runs stayed below."""
_ASKED = 256
"""Known rows that a question is conditioned on: those that covary with it most."""
_SAME = 0.05
"""Binary logarithms by which sizes of one question may differ: vocabularies of one architecture do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearRuns:
    """Runs of one question that were timed, the nearest to what is asked."""

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
    """Median of predicted / measured − 1."""
    differs: tuple[str, ...]
    """In what they differ from what is asked: "model", "gpus", "vpp"; empty for the same question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStep:
    """What a step should take, in seconds."""

    on_paper: float
    """As the model predicts it: what search and proof compare."""
    seconds: float
    """The median, given what nearby runs took."""
    low: float
    """One step in twenty is faster."""
    high: float
    """One in twenty is slower, as are clusters that something is wrong with."""
    nearest: NearRuns | None = None
    """None where the profile is none of those shipped."""
    borrowed: bool = False
    """Whether nothing was timed on a GPU of this die, so that the profile is another's."""

    @property
    def interval(self) -> tuple[float, float]:
        """Its ends."""
        return self.low, self.high

    def drawn(self, normal: Array) -> Array:
        """Steps from standard normal draws: the median at 0, the ends of the interval where 90 % of draws end."""
        side = half_width(STATED)
        slower, faster = math.log(self.high / self.seconds) / side, math.log(self.seconds / self.low) / side
        steps: Array = self.seconds * np.exp(np.where(normal < 0, faster, slower) * normal)
        return steps


def expected_step(question: Question, estimate: Estimate) -> ExpectedStep | None:
    """The expected step of an estimate under its question; None without scenarios, or over several pools."""
    layout, paper = estimate.layout, estimate.step_seconds
    found = seconds_under_scenarios(question, layout)
    if found is None:
        return None
    hardware = question.hardware
    if hardware.name not in catalog.names("profiles") or catalog.load_profile(hardware.name) != hardware:
        ends = step_interval(question, layout, paper, STATED)
        assert ends is not None
        return ExpectedStep(on_paper=paper, seconds=paper, low=max(ends[0], _fastest(estimate)), high=ends[1])
    asked = row_of(question, layout, spread_of(found, paper))
    known, errors = timed_rows()
    kernel, reaches, _ = fitted()
    near = nearest_first(kernel, asked, known)[:_ASKED]
    mean, deviation = kernel.posterior(asked, known.some(near), errors[near])
    stratum = stratum_of(asked, known)
    reach, middle = reaches[stratum], paper * math.exp(mean)
    low = max(_fastest(estimate), middle * math.exp(-reach.faster * deviation))
    return ExpectedStep(
        on_paper=paper,
        seconds=max(middle, low),
        low=low,
        high=max(middle, low) * math.exp(reach.slower * deviation),
        nearest=_near_runs(asked, known, errors, near),
        borrowed=stratum == "borrowed",
    )


def spread_of(under_scenarios: Array, seconds: float) -> float:
    """How far a step moves with the constants left open: a robust deviation of its logarithm."""
    return float(MAD_TO_DEVIATION * np.median(np.abs(np.log(under_scenarios / seconds))))


def nearest_first(kernel: Kernel, asked: Rows, known: Rows) -> Ints:
    """(N,) places of known rows, those most like the asked one first.

    Rows that share as much are ordered by their likeness: where the asked one is surer than publishers agree, none
    shares anything.
    """
    shared = kernel.covariance(asked, known)[0] / kernel.amplitudes(known)
    return np.lexsort((-kernel.likeness(asked, known)[0], -shared))


def stratum_of(asked: Rows, known: Rows) -> str:
    """ "timed" where this GPU, family of stacks and kind of model were, "borrowed" where no GPU of its die was."""
    gpu, family, kind, die = (asked.alike(known, name)[0] for name in ("gpu", "family", "experts", "die"))
    if (gpu & family & kind).any():
        return "timed"
    return "untimed" if die.any() else "borrowed"


def _near_runs(asked: Rows, known: Rows, errors: Array, near: Ints) -> NearRuns:
    first = known.some([near[0]])
    alike = [place for place in near if not _differences(first, known.some([place]))]
    told = [known.told[place] for place in alike]
    seconds = [float(run["seconds"]) for run in told]
    return NearRuns(
        source=told[0]["source"],
        model=told[0]["model"],
        gpu=told[0]["gpu"],
        stack=told[0]["stack"],
        gpus=round(2 ** float(first.column("gpus")[0])),
        layout=told[0]["layout"],
        runs=len(alike),
        least_seconds=min(seconds),
        most_seconds=max(seconds),
        off=float(np.expm1(-np.median(errors[alike]))),
        differs=_differences(asked, first),
    )


def _fastest(estimate: Estimate) -> float:
    """Seconds at the most MFU that an interval reaches."""
    return estimate.step_seconds * min(1.0, estimate.mfu / MOST_MFU)


_WORDS = {
    "parameters": "model",
    "flops_per_token": "model",
    "hidden": "model",
    "layers": "model",
    "gpus": "number of GPUs",
    "microbatches": "batch",
    "sharded": "zero",
    "recomputed": "recompute",
    "bits": "precision",
}


def _differences(one: Rows, other: Rows) -> tuple[str, ...]:
    """In what two rows differ, in words; empty for the same question."""
    words = [] if one.alike(other, "gpu")[0, 0] else ["GPU"]
    words += [] if one.alike(other, "family")[0, 0] else ["stack"]
    far = np.abs(one.features[0] - other.features[0])
    for place, name in enumerate(FEATURES):
        if far[place] > (_SAME if name in SHAPE else 1e-3):
            words.append(_WORDS.get(name, name))
    assert set(SPLIT) <= set(FEATURES)
    return tuple(dict.fromkeys(words))
