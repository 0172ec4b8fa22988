"""Rules of torchtitan: what its mesh, its sharding and its model checks refuse.

Sources: pytorch/torchtitan, August 2026: torchtitan/distributed/parallel_dims.py, fsdp.py, pipeline_parallel.py,
activation_checkpoint.py, torchtitan/models/common/decoder.py.
"""

from __future__ import annotations

import numpy as np

from cost_models.axes.layout import Layout
from cost_models.axes.rule import Row, Words, rules
from cost_models.question import Question
from planner.formats.fsdp2 import streams_all_blocks
from planner.formats.trainer import Trainer


def _experts_in_shard(question: Question, layout: Layout) -> Words:
    ranks = layout.shard_group * layout.tp
    message = f"`ep{layout.ep}` takes ranks from one shard group: shard x tp has {ranks:,}"
    return Words(message, "ep must divide it")


_RULES: dict[str, Row] = {
    "all states are sharded, or none": (
        lambda q, x: x.zero == 1,
        "torchtitan shards weights, gradients and optimizer states together, not as `zero{layout.zero}`",
        "write zero3 (reshard after forward) or zero2 (do not)",
    ),
    "context ranks shard weights": (
        lambda q, x: (x.cp > 1) & (x.zero == 0),
        "torchtitan shards weights over the ranks of `cp{layout.cp}`",
        "write zero3 or zero2",
    ),
    "shard groups hold whole context groups": (
        lambda q, x: x.shard % x.cp != 0,
        "torchtitan shards over whole context groups: `shard{layout.shard}` is no multiple of cp{layout.cp}",
    ),
    "tied embeddings lie on one stage": (
        lambda q, x: q.model.tied_embeddings & (x.pp > 1),
        "torchtitan cannot tie the embeddings of `{model.name}` across a pipeline (`pp{layout.pp}`)",
        "use pp1",
    ),
    "shared experts are whole": (
        lambda q, x: q.model.has_experts & (x.ep > 1) & (x.etp != 1),
        "torchtitan keeps experts whole where it shares them: etp1, not etp{layout.expert_tp}",
        "write `etp1`",
    ),
    "experts are split as the rest where they are not shared": (
        lambda q, x: q.model.has_experts & (x.ep == 1) & (x.etp != x.tp),
        "without `ep` torchtitan splits experts over tp{layout.tp}",
        "leave out `etp`",
    ),
    "expert groups lie in one shard group": (
        lambda q, x: q.model.has_experts & (np.fmod(x.shard * x.tp, x.ep) != 0),
        _experts_in_shard,
    ),
}

TORCHTITAN = Trainer(
    name="torchtitan",
    stack="torchtitan",
    rules=(*rules(_RULES), streams_all_blocks("torchtitan")),
    counts_full=False,
)
