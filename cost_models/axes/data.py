"""Data parallelism: replicas, microbatches, and what ZeRO shards over which ranks."""

from __future__ import annotations

from cost_models.axes.axis import Axis
from cost_models.axes.words import Number

ZERO_STAGES = 4
"""ZeRO 0 to 3."""

DP = Axis(word=Number(), always_written=True, common=True)
MBS = Axis(word=Number(), always_written=True, common=True)
ZERO = Axis(
    word=Number(least=0, most=ZERO_STAGES - 1, outside=f"ZeRO has stages 0 to {ZERO_STAGES - 1}"),
    always_written=True,
    common=True,
)
SHARD = Axis(
    word=Number(),
    settled=lambda layout: None if layout.shard == layout.replicas else layout.shard,
    comes_to=lambda layout: layout.shard_group,
    follows=lambda columns: columns.replicas,
)
