"""The learning rate of a step: linear warm-up, then a cosine down to a tenth (Brown et al. 2020, appendix B).

It follows from the step's number alone, so a run that is continued needs nothing but that.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, inf, pi

from cost_models.errors import InputError, Problem

_FLOOR = 0.1
"""The share of the peak at which the cosine ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A schedule; steps are counted from 0."""

    peak: float = 3e-4
    warm_up: int = 0
    """Steps that rise to the peak, which the last of them reaches."""
    decay: int | None = None
    """Step from which on the rate stays at its floor; None: it stays at its peak."""

    def at(self, step: int) -> float:
        """The rate of one step."""
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        if self.decay is None:
            return self.peak
        fallen = min(1.0, (step - self.warm_up) / (self.decay - self.warm_up))
        return self.peak * (_FLOOR + (1.0 - _FLOOR) * (1.0 + cos(pi * fallen)) / 2.0)


CONSTANT_RATE = Rate()
"""The default."""


def require_descent(rate: Rate, clip: float | None) -> None:
    """Raise InputError, with all problems, where a model cannot be trained with these numbers."""
    problems = []
    if not 0.0 < rate.peak < inf:
        problems.append(Problem("", f"a learning rate of {rate.peak} is not above zero"))
    if rate.warm_up < 0:
        problems.append(Problem("", f"a warm-up of {rate.warm_up} steps is shorter than none"))
    if rate.decay is not None and rate.decay <= max(0, rate.warm_up):
        problems.append(Problem("", f"a decay by step {rate.decay} ends before its start at {rate.warm_up}"))
    if clip is not None and not 0.0 < clip < inf:
        problems.append(Problem("", f"a largest gradient norm of {clip} is not above zero"))
    if problems:
        raise InputError("the optimizer cannot step like that", problems=problems)
