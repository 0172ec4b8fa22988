"""Many layouts at once: one numpy column per field of `Layout`, so that costs are written once for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cost_models.axes.layout import CONTEXTS, SCHEDULES, Layout
from cost_models.axes.order import ORDERS

Ints = npt.NDArray[np.int64]

USUAL_CONTEXT = -1
"""In the column `context`: as the software stack does it."""


Numbers = TypeVar("Numbers", bound=np.generic)


def taken(column: npt.NDArray[Numbers], index: Ints | slice) -> npt.NDArray[Numbers]:
    """Some rows of a column; what is one number for all of them stays that."""
    if isinstance(index, slice) or column.strides != (0,):
        return column[index]
    return np.broadcast_to(column[:1], index.shape) if len(column) else column[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutColumns:
    """N layouts before placement; recompute is not a column because it is chosen stage by stage."""

    tp: Ints
    pp: Ints
    vpp: Ints
    cp: Ints
    dp: Ints
    ep: Ints
    etp: Ints
    mbs: Ints
    zero: Ints
    shard: Ints
    sp: Ints
    """0 or 1."""
    schedule: Ints
    """Index into `SCHEDULES`."""
    order: Ints
    """Index into `ORDERS`."""
    context: Ints
    """Index into `CONTEXTS`, or `USUAL_CONTEXT`."""

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def of(cls, layouts: Sequence[Layout]) -> LayoutColumns:
        """Columns of some layouts, in order."""

        def column(values: Sequence[int]) -> Ints:
            return np.array(values, dtype=np.int64)

        return cls(
            tp=column([x.tp for x in layouts]),
            pp=column([x.pp for x in layouts]),
            vpp=column([x.vpp for x in layouts]),
            cp=column([x.cp for x in layouts]),
            dp=column([x.dp for x in layouts]),
            ep=column([x.ep for x in layouts]),
            etp=column([x.expert_tp for x in layouts]),
            mbs=column([x.mbs for x in layouts]),
            zero=column([x.zero for x in layouts]),
            shard=column([x.shard_group for x in layouts]),
            sp=column([int(x.sp) for x in layouts]),
            schedule=column([SCHEDULES.index(x.schedule) for x in layouts]),
            order=column([ORDERS.index(x.order) for x in layouts]),
            context=column([CONTEXTS.index(x.context) if x.context else USUAL_CONTEXT for x in layouts]),
        )

    def layout(self, row: int) -> Layout:
        """Row → `Layout` (not placed)."""
        context = int(self.context[row])
        return Layout(
            tp=int(self.tp[row]),
            pp=int(self.pp[row]),
            vpp=int(self.vpp[row]),
            cp=int(self.cp[row]),
            dp=int(self.dp[row]),
            ep=int(self.ep[row]),
            etp=int(self.etp[row]),
            mbs=int(self.mbs[row]),
            zero=int(self.zero[row]),
            shard=int(self.shard[row]),
            sp=bool(self.sp[row]),
            schedule=SCHEDULES[int(self.schedule[row])],
            order=ORDERS[int(self.order[row])],
            context=None if context == USUAL_CONTEXT else CONTEXTS[context],
        )

    def rows(self, index: Ints | slice) -> LayoutColumns:
        """The same columns for some of the layouts."""
        return LayoutColumns(
            **{field.name: taken(getattr(self, field.name), index) for field in fields(self)}
        )

    def microbatches(self, global_batch: int) -> Ints:
        """(N,) microbatches per pipeline and step, m = B / (b·d)."""
        return global_batch // (self.mbs * self.dp)

    def tokens(self, sequence_length: int) -> npt.NDArray[np.float64]:
        """(N,) tokens of one microbatch on one rank, b·s/c."""
        return self.mbs * sequence_length / self.cp

    @property
    def replicas(self) -> Ints:
        """(N,) ranks with the same parameters (experts aside) and different tokens: dp × cp."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> Ints:
        """(N,) ranks with the same experts: what expert parallelism leaves of tp × dp × cp."""
        return self.tp * self.replicas // (self.ep * self.etp)

    @property
    def expert_shard(self) -> Ints:
        """(N,) ranks that ZeRO shards experts over; hybrid sharding keeps as many copies of them as of the rest."""
        same = self.expert_replicas
        copies: Ints = np.gcd(same, self.replicas // self.shard)
        return same // copies

    @property
    def ranks(self) -> Ints:
        """(N,) GPUs the layout occupies."""
        return self.tp * self.cp * self.pp * self.dp
