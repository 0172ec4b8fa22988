"""Risk: what a step is weighed by where a profile leaves several sets of constants possible.

`neutral` weighs the mean over all scenarios, `averse` the mean of the slowest quarter of them (the conditional value at
risk of Rockafellar and Uryasev 2000). Both are means over some of K scenarios, and never less than the mean over any
other set of as many: so they rise with every scenario's seconds, and bounds of each scenario, weighed, bound what is
weighed.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Risk = Literal["none", "neutral", "averse"]
RISKS: tuple[Risk, ...] = get_args(Risk)
SLOWEST = 4
"""One in so many scenarios is slow."""


def weighed_of(scenarios: int, risk: Risk) -> int:
    """Number of scenarios in the weighed mean, out of `scenarios`."""
    return 0 if risk == "none" else scenarios if risk == "neutral" else -(-scenarios // SLOWEST)


def slowest(seconds_K: Array, risk: Risk) -> npt.NDArray[np.bool_]:
    """(K, ...) mask of the scenarios in the weighed mean, from their seconds (K, ...); of equal ones the first."""
    order = np.argsort(-seconds_K, axis=0, kind="stable")
    chosen = np.zeros(seconds_K.shape, dtype=np.bool_)
    np.put_along_axis(chosen, order[: weighed_of(len(seconds_K), risk)], True, axis=0)
    return chosen


def weigh(seconds_K: Array, risk: Risk) -> Array:
    """(K, ...) seconds in each scenario → (...): their mean, or that of the slowest."""
    if risk == "averse":
        seconds_K = np.sort(seconds_K, axis=0)[-weighed_of(len(seconds_K), risk) :]
    mean: Array = np.asarray(seconds_K.mean(axis=0))
    return mean
