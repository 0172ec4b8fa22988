"""How a stage's backward pass divides into the half towards its input and the half towards its weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.schedules.traits import SPLIT_BACKWARD

Floats = npt.NDArray[np.float64]


def backward_halves(
    schedule: str,
    backward_S: Floats,
    weight_S: Floats,
    *,
    stage_backward: float,
    stage_weight: float,
) -> tuple[Floats, Floats]:
    """(..., S) seconds of the input half and of the weight half, as a timeline wants them.

    `backward_S` is the whole pass, `weight_S` the work in it towards the weights. The first stage's input, token
    numbers, wants no gradient: its input half does nothing and its weight half runs the whole pass. Where a schedule
    does not split, the second is zero.
    """
    if schedule not in SPLIT_BACKWARD:
        return backward_S, np.zeros(backward_S.shape[-1:])
    input_S, second_S = backward_S - weight_S, stage_weight + weight_S
    input_S[..., 0] = stage_backward
    second_S[..., 0] = stage_weight + backward_S[..., 0] - stage_backward
    return input_S, second_S
