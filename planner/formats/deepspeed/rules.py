"""Rules of DeepSpeed: what its engines refuse, and which ways to split a model it has.

Sources: deepspeedai/DeepSpeed 0.19.8: deepspeed/runtime/engine.py, runtime/pipe/engine.py, runtime/pipe/module.py,
runtime/pipe/schedule.py, runtime/zero/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload.residency import offloads
from cost_models.axes.rule import Row, rules
from cost_models.axes.words import EVERY
from cost_models.specs.choices import SCHEDULES
from planner.formats.trainer import Trainer


def _offloads(x: LayoutColumns) -> Bools:
    """(N,) whether DeepSpeed can run the offload of each layout; a single replica, which shards nothing, may
    use any stage."""
    single, all_weights = x.replicas == 1, x.offload_streamed >= EVERY
    states = (x.offload_streamed == 0) & ((x.zero >= 1) | single)
    allowed: Bools = np.where(all_weights, ((x.zero == 3) | single) & (x.offload_states == 0), states)
    allowed &= all_weights | (x.offload_states >= EVERY) | (x.zero == 3) | single
    return allowed


_RULES: Mapping[str, Row] = {
    "pipelines run 1F1B": (
        lambda q, x: (x.pp > 1) & ((x.vpp > 1) | (x.schedule != SCHEDULES.index("1f1b"))),
        "DeepSpeed's pipelines run 1f1b with one chunk a rank, not `schedule={layout.schedule}`",
        "leave out `vpp` and `schedule`",
    ),
    "pipelines shard optimizer states at most": (
        lambda q, x: (x.pp > 1) & (x.zero > 1),
        "DeepSpeed's pipelines go with zero0 and zero1, not with `zero{layout.zero}`",
        "write zero1, or use pp1",
    ),
    "tensor ranks have whole sequences": (
        lambda q, x: x.sp == 1,
        "DeepSpeed's tensor parallelism keeps sequences whole",
        "leave out `sp`; `cp` splits them",
    ),
    "ZeRO shards over all ranks with the same weights": (
        lambda q, x: (x.zero > 0) & (x.shard != x.replicas),
        "DeepSpeed shards over all {layout.data_ranks} ranks with the same weights, not over {layout.shard_group}",
        "leave out `shard`",
    ),
    "experts under ZeRO-3 have whole sequences": (
        lambda q, x: q.model.has_experts & (x.zero == 3) & (x.cp > 1),
        "DeepSpeed's experts go under zero3 only without context parallelism, not with `cp{layout.cp}`",
        "use cp1, or zero2",
    ),
    "hosts keep weights of all blocks and states of a share of them under ZeRO-3 alone": (
        lambda q, x: (x.offload_activations > 0) | (offloads(x) & ~_offloads(x)),
        "DeepSpeed keeps on hosts all states (from zero1 on), a share of them (zero3) or all weights too (zero3)",
        "write `offload=states` or `offload=streamed`",
    ),
}
DEEPSPEED = Trainer(
    name="DeepSpeed",
    stack="deepspeed",
    other_stacks=("deepspeed-fused-loss", "deepspeed-v0.5", "xtuner", "megatron-deepspeed", "bigscience"),
    rules=rules(_RULES),
    policies=("none", "full"),
    counts_full=False,
)
"""Shard groups were MiCS's (`mics_shard_size`) until 0.19; they are no more in 0.19.8."""
