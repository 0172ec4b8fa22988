"""What a layout is judged by where constants are uncertain: its step on paper, its mean, or one of the slow cases.

A profile's scenarios are sets of constants as far off as timed clusters differ. `neutral` takes the mean of the step
over them, `averse` the time that nine in ten stay below. Layouts that are compared so are optima on paper of their
kinds; that no other layout has a better mean is not proved.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal, get_args

import numpy as np

from cost_models.estimate import Estimate
from cost_models.pipeline.under_scenarios import seconds_under_scenarios
from cost_models.question import Question

Risk = Literal["none", "neutral", "averse"]
RISKS: tuple[Risk, ...] = get_args(Risk)
_SLOW = NormalDist().inv_cdf(0.9)


def judged_seconds(question: Question, estimate: Estimate, risk: Risk) -> float:
    """The seconds that a layout is judged by; those on paper where its profile has no scenarios."""
    found = None if risk == "none" else seconds_under_scenarios(question, estimate.layout)
    if found is None:
        return estimate.step_seconds
    if risk == "neutral":
        return float(found.mean())
    logs = np.log(found)
    return float(np.exp(logs.mean() + _SLOW * logs.std()))
