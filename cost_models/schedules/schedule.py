"""Definition of a pipeline schedule: its action table, its rules, and facts known without the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Ints
from cost_models.schedules.actions import ActionTable

_Count = npt.ArrayLike

Objection = Callable[[int, int, int], str | None]
"""(pp, vpp, microbatches), all at least one → what forbids the schedule there, as a sentence, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """One schedule; a file of this folder holds it as `SCHEDULE`."""

    name: str
    """Name in the notation of layouts."""
    engine: str
    """The class of `torch.distributed.pipelining` that runs it."""
    table: Callable[[int, int, int], ActionTable]
    """(pp, vpp, microbatches) → what every rank does, in order."""
    objection: Objection | None = None
    """Rule that forbids the schedule, besides its chunks."""
    engine_objection: Objection | None = None
    """Further rule of PyTorch's class that other engines do not have."""
    chunks: tuple[int, int | None]
    """Fewest and most chunks of a rank; None: as many as there are blocks for."""
    live: Callable[[Ints, Ints, Ints, Ints, Ints], Ints]
    """(pp, vpp, microbatches, rank, chunk) → live microbatches of the chunk, elementwise; see `live_of_chunk`."""
    live_together: Callable[[Ints, Ints, Ints, Ints], Ints] | None = None
    """(pp, vpp, microbatches, rank) → the sum of `live` over the rank's chunks, where there is a shorter way to it."""
    v_shaped: bool = False
    """Whether stages go down the ranks and up again, two chunks a rank; else they go round them."""
    splits: Literal["never", "sometimes", "always"] = "never"
    """Backward passes that run as two actions, towards the input and towards the weights."""
    keeps_all_logits: bool = False
    """Whether something else runs between the forward and the backward pass of the head."""
    steady: Literal["queue", "pairs"] | None = None
    """Of one chunk a rank and whole backward passes, which paths run through the table (`planner`'s bounds).

    `queue`: all forwards, then all backwards. `pairs`: backward j runs just before forward j + pp − r on rank r. None:
    bounds assume nothing but that a rank does one thing at a time.
    """

    @property
    def is_plain(self) -> bool:
        """One chunk a rank, and whole backward passes."""
        return self.chunks == (1, 1) and self.splits == "never"

    @property
    def goes_round(self) -> bool:
        """Several chunks a rank whose stages go round the ranks, and whole backward passes."""
        return self.chunks[1] != 1 and not self.v_shaped and self.splits == "never"

    def runs_chunks(self, vpp: int) -> bool:
        """Whether the schedule runs `vpp` chunks a rank."""
        fewest, most = self.chunks
        return fewest <= vpp and (most is None or vpp <= most)

    def refused(self, pp: int, vpp: int, microbatches: int) -> str | None:
        """Sentence that says why no engine can run the schedule; None if one can."""
        if min(pp, vpp, microbatches) < 1:
            return f"pp, vpp and microbatches start at one: pp{pp} vpp{vpp}, {microbatches} microbatches"
        if not self.runs_chunks(vpp):
            fewest, most = self.chunks
            number = ("one chunk", "two chunks")[fewest - 1]
            if most is None:
                return f"{self.name} needs at least {number} per pipeline rank: vpp{fewest} or more"
            return f"{self.name} runs {number} per pipeline rank, not vpp{vpp}"
        return self.objection and self.objection(pp, vpp, microbatches)

    def live_of_chunk(
        self, pp: _Count, vpp: _Count, microbatches: _Count, rank: _Count, chunk: _Count
    ) -> Ints:
        """Microbatches of a chunk that are live at one moment of its rank's steps, the same for all its chunks.

        What a rank must hold at its peak it must hold at that moment, which with one chunk a rank is the peak, so that
        bounds need no table. Any shapes that broadcast.
        """
        every = tuple(map(np.asarray, (pp, vpp, microbatches, rank, chunk)))
        shape = np.broadcast_shapes(*(column.shape for column in every))
        return np.broadcast_to(self.live(*every), shape)

    def live_of_rank(self, pp: _Count, vpp: _Count, microbatches: _Count, rank: _Count) -> Ints:
        """Live microbatches of a rank, summed over its chunks."""
        every = tuple(map(np.asarray, (pp, vpp, microbatches, rank)))
        if self.live_together is not None:
            return np.broadcast_to(
                self.live_together(*every), np.broadcast_shapes(*(each.shape for each in every))
            )
        pp_N1, vpp_N1, microbatches_N1, rank_N1 = (column[..., None] for column in every)
        chunk = np.arange(int(np.max(vpp, initial=1)))
        each = self.live_of_chunk(pp_N1, vpp_N1, microbatches_N1, rank_N1, chunk)
        together: Ints = np.where(chunk < vpp_N1, each, 0).sum(axis=-1)
        return together
