"""Windows of 1F1B: how far its round trips through neighbouring ranks limit the ranks after them.

Rank r runs backward j just before forward j + p − r. So a forward that goes down from `first` to `last`, turns into the
backward there that follows it, and comes up, is followed at `first` by the forward `last − first + 1` later: a round of
the window for so many microbatches; those that make no full round pass `first` as pairs. With T_r forward plus backward
of one microbatch, c a transfer and S_r the sum of T over ranks before r, the first microbatch on its way down from rank
e and the last one on its way up to e besides,

    M_e ≥ F_e − S_e − e c + 2 S_p − S_first + rounds (S_last+1 − S_first) + rest T_first + transfers c

where F_e is the forward part of S_e: ranks e and later are a pipeline of their own that begins F_e + e c later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.axes.columns import Ints


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows that begin on one rank, by their last rank: (windows,) each."""

    rounds: Ints
    rest: Ints
    transfers: Ints


@lru_cache(maxsize=256)
def windows_from(first: int, pp: int, microbatches: int) -> Windows | None:
    """The windows of ranks `first` … `last` for last = first … pp − 1; None where there are too few microbatches."""
    after_warm_up = microbatches - 1 - (pp - first)
    if after_warm_up < 0:
        return None
    length = np.arange(1, pp - first + 1)
    rounds, rest = np.divmod(after_warm_up, length)
    return Windows(rounds, rest, 2 * (pp - 1) + 2 * (pp - 1 - first) + rounds * 2 * (length - 1))
