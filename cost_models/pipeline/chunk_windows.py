"""What the gradients that are reduced once a step hide behind.

A block's gradients are complete after the backward pass of its last microbatch. With one chunk a rank they are reduced
behind the backward pass of another block. Where microbatches pass through several chunks in rounds (interleaved 1F1B),
a chunk is complete a whole round before the next one: a stack that reduces chunk by chunk then shows what outlasts a
round of passes, and all of the last chunk's (Jiang et al. 2024, section 3.2).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.rule import Bools
from cost_models.communication.data import exposed
from cost_models.question import Question
from cost_models.schedules.interleaved import round_sizes
from cost_models.schedules.traits import v_shaped

Array = npt.NDArray[np.float64]


def reduced_in_sight(
    question: Question, columns: LayoutColumns, reduce: Array, window: Array, *, overlapped: Bools
) -> Array:
    """(N,) seconds that a rank waits for `reduce`, the gradients of a block, the mean over its chunks.

    `window` is the backward pass of a block; `overlapped` says which layouts hide any of it.
    """
    profile = question.hardware
    shown = exposed(reduce, window, profile, overlapped=overlapped)
    turns = overlapped & (columns.vpp > 1) & ~v_shaped(columns)
    if not (question.stack.reduces_chunks_in_turn and turns.any()):
        return shown
    a_round = round_sizes(columns.pp, columns.microbatches(question.training.global_batch))
    others = exposed(reduce, a_round * window, profile, overlapped=overlapped)
    return np.where(turns, (reduce + (columns.vpp - 1) * others) / columns.vpp, shown)
