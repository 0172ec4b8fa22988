"""What schedules share whose stages go down the ranks and up again, two chunks a rank."""

from __future__ import annotations

import numpy as np

from cost_models.schedules.stages import Ints


def two_chunks_objection(vpp: int, schedule: str) -> str | None:
    """What forbids a V here, as a sentence, or None."""
    if vpp != 2:
        return f"{schedule} runs two chunks per pipeline rank, not vpp{vpp}"
    return None


def live_in_v(pp: Ints, vpp: Ints, m: Ints, rank: Ints, chunk: Ints) -> Ints:
    """`PipelineSchedule.live` before the first backward pass: forwards of the first chunk until the first microbatch
    has gone down to the turn and come up again, and one of the second chunk for each rank that it met on the way up."""
    live: Ints = np.minimum(m, np.where(chunk == 0, 2 * pp - 1 - rank, 1 + rank))
    return live
