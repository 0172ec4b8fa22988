"""Fit the few constants of a profile to published step times: robust, few, and pulled towards physical defaults.

Minimises the mean Huber loss of log(predicted / measured) plus a weak pull of each constant towards its start, by
pattern search in the logarithms of the constants (Hooke & Jeeves 1961): no derivatives, deterministic, and at a dozen
constants fast enough. What it cannot know from the runs it leaves at the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.asking import ask
from cost_models.estimating import estimate
from cost_models.published import PublishedRun
from cost_models.specs.hardware import HardwareProfile

_HUBER = 0.05
"""Relative error beyond which a run pulls linearly: a mistranscribed row must not move a constant far."""
_PULL = 0.1
"""Log-distance from the default that costs as much as one run being 5 % off."""
_FIRST_STEP, _LAST_STEP = 0.16, 0.005
"""Relative step of the pattern search, first and last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted profile and what it leaves unexplained."""

    profile: HardwareProfile
    residuals: dict[str, float]
    """Run → predicted / measured − 1."""

    @property
    def median_error(self) -> float:
        """Median absolute relative error of step time."""
        return float(np.median(np.abs(list(self.residuals.values()))))


def fit_profile(start: HardwareProfile, runs: Sequence[PublishedRun], constants: Sequence[str]) -> Fit:
    """Move `constants` of `start` so that `runs` come out right.

    The runs are asked with the profile instead of the catalogue's; their layouts must be placed or divide evenly.
    """
    origin = np.log([getattr(start, name) for name in constants])

    def profile_at(point: npt.NDArray[np.float64]) -> HardwareProfile:
        values = {name: float(f"{value:.4g}") for name, value in zip(constants, np.exp(point), strict=True)}
        return start.model_copy(update=values)

    def loss(point: npt.NDArray[np.float64]) -> float:
        errors = np.log1p(list(_residuals(profile_at(point), runs).values()))
        size = np.abs(errors) / _HUBER
        huber = np.where(size < 1, size**2 / 2, size - 0.5).mean()
        pull = 0.5 * (((point - origin) / _PULL) ** 2).sum() / len(runs)
        return float(huber + pull)

    point, best, step = origin.copy(), loss(origin), _FIRST_STEP
    while step >= _LAST_STEP:
        moved = False
        for index in range(len(constants)):
            for sign in (1, -1):
                trial = point.copy()
                trial[index] += sign * step
                if _allowed(profile_at(trial)) and (value := loss(trial)) < best:
                    point, best, moved = trial, value, True
                    break
        step = step if moved else step / 2
    fitted = profile_at(point)
    return Fit(profile=fitted, residuals=_residuals(fitted, runs))


def _residuals(profile: HardwareProfile, runs: Sequence[PublishedRun]) -> dict[str, float]:
    """Run → predicted / measured − 1 under a profile."""
    residuals = {}
    for run in runs:
        asked = run.question
        question = ask(asked.model, asked.cluster, asked.training, stack=asked.stack.name, profile=profile)
        residuals[run.run] = estimate(question, run.layout).step_seconds / run.step_seconds - 1
    return residuals


def _allowed(profile: HardwareProfile) -> bool:
    """Shares of a peak stay below it."""
    shares = (name for name in HardwareProfile.model_fields if name.endswith("_efficiency"))
    return all(0 < getattr(profile, name) <= 1 for name in shares)
