"""How a stage's backward pass divides into the half towards its input and the half towards its weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def backward_halves(
    backward_S: Floats, weight_S: Floats, stage_backward_S: Floats, stage_weight_S: Floats
) -> tuple[Floats, Floats]:
    """(..., S) seconds of the input half and of the weight half, as a timeline wants them.

    `backward_S` is the whole pass, `weight_S` the work in it towards the weights; without blocks a stage takes
    `stage_backward_S`, and in two actions `stage_weight_S` longer. The first stage's input, token numbers, wants no
    gradient: its input half does nothing and its weight half runs the whole pass.
    """
    input_S, second_S = backward_S - weight_S, stage_weight_S + weight_S
    input_S[..., 0] = stage_backward_S[0]
    second_S[..., 0] = stage_weight_S[0] + backward_S[..., 0] - stage_backward_S[0]
    return input_S, second_S
