"""Stage boundaries: the delay of one microbatch's activations (or gradients) on their way to the next stage.

The tensor is b·s·h; with sequence parallelism each tensor-parallel rank holds and sends its share, with Megatron's
scatter/gather optimisation likewise, followed by an all-gather over the tensor-parallel group (Narayanan et al. 2021).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.communication.collectives import all_gather_seconds, point_to_point_seconds
from cost_models.communication.topology import MeshGroups
from cost_models.question import Question

Array = npt.NDArray[np.float64]


def boundary_seconds(question: Question, columns: LayoutColumns, groups: MeshGroups) -> Array:
    """(N,) seconds; zero where pp is 1."""
    tokens = columns.tokens(question.training.sequence_length)
    message = tokens * question.model.hidden_size * question.training.element_bytes
    sp = columns.sp == 1
    split = sp | question.stack.scatter_gather_pipeline_sends
    sent = point_to_point_seconds(
        np.where(split, message / columns.tp, message), groups.pp, question.hardware
    )
    gathered = all_gather_seconds(message, groups.tp, question.hardware)
    delay = sent + np.where(split & ~sp, gathered, 0.0)
    return np.where(columns.pp > 1, delay, 0.0)
