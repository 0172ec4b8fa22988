"""Where the virtual stages of a pipeline lie: the rank of each stage, and the stages of each rank.

Stages go round the ranks, chunk after chunk; in a V they go down and come back up, so stages pp − 1 and pp are
neighbours on one rank, and rank 0 has the first stage and the last.

Shape legend: S virtual stages, R pipeline ranks, V chunks of one rank.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def ranks_of_stages(pp: int, vpp: int, *, v_shaped: bool) -> Ints:
    """(S,): the pipeline rank that holds each virtual stage."""
    chunk_S, place_S = np.divmod(np.arange(pp * vpp), pp)
    return np.where(chunk_S % 2 == 1, pp - 1 - place_S, place_S) if v_shaped else place_S


def stages_of_ranks(pp: int, vpp: int, *, v_shaped: bool) -> Ints:
    """(R, V): the virtual stages of each pipeline rank, in model order."""
    return np.argsort(ranks_of_stages(pp, vpp, v_shaped=v_shaped), kind="stable").reshape(pp, vpp)
