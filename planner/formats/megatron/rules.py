"""Rules of Megatron-LM (Megatron Core): what its argument checks and its schedules refuse.

Sources: NVIDIA/Megatron-LM, August 2026: megatron/training/arguments.py, megatron/core/parallel_state.py,
transformer/transformer_config.py, transformer/moe/moe_layer.py, pipeline_parallel/schedules.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.rule import Row, Words, rules
from cost_models.question import Question
from cost_models.specs.choices import SCHEDULES
from planner.formats.trainer import Trainer


def _interleaved(question: Question, layout: Layout) -> Words:
    microbatches = layout.microbatches(question.training.global_batch)
    message = f"Megatron interleaves microbatches in groups of pp{layout.pp}; there are {microbatches}"
    return Words(message, "choose dp and mbs so that pp divides them, or leave out `vpp`")


def _experts_and_order(question: Question, layout: Layout) -> Words:
    message = f"Megatron cannot seat `cp{layout.cp}` in `order={layout.order}`"
    if question.model.has_experts:
        copies = int(LayoutColumns.of([layout]).expert_replicas[0])
        message = f"in `order={layout.order}` Megatron wants dp{layout.dp} copies of an expert, not {copies}"
        return Words(message, "choose ep and etp so that ep x etp = tp x cp, or leave out `order`")
    return Words(message, "use cp1, or leave out `order`")


def _instances(question: Question, layout: Layout) -> Words:
    copies = int(LayoutColumns.of([layout]).expert_replicas[0])
    instances = layout.data_ranks // layout.shard_group
    message = f"`shard{layout.shard}` makes {instances} instances of the distributed optimizer"
    return Words(f"{message}, which do not divide the {copies} ranks that hold the same experts")


_RULES: dict[str, Row] = {
    "1F1B, or interleaved": (
        lambda q, x: ~np.isin(x.schedule, [SCHEDULES.index(name) for name in ("1f1b", "interleaved")]),
        "Megatron runs 1f1b, and interleaved where vpp is above 1, not `schedule={layout.schedule}`",
        "leave out `schedule`",
    ),
    "the distributed optimizer shards optimizer states": (
        lambda q, x: x.zero > 1,
        "Megatron's distributed optimizer shards optimizer states (zero1), not `zero{layout.zero}`",
        "write zero1",
    ),
    "interleaving takes microbatches in groups of pp": (
        lambda q, x: (x.vpp > 1) & (x.microbatches(q.training.global_batch) % x.pp != 0),
        _interleaved,
    ),
    "experts and tensor parallelism want sequence parallelism": (
        lambda q, x: q.model.has_experts & (x.tp > 1) & (x.sp == 0),
        "Megatron trains experts with tp{layout.tp} only with sequence parallelism",
        "write `sp`",
    ),
    "data outside the pipeline are as many as copies of experts": (
        # a pipeline of several stages that is not the outermost axis of the order
        lambda q, x: (x.pp > 1) & (x.order != 0) & (x.expert_replicas != x.dp),
        _experts_and_order,
    ),
    "optimizer instances divide the copies of experts": (
        lambda q, x: q.model.has_experts & (x.expert_replicas % np.maximum(1, x.replicas // x.shard) != 0),
        _instances,
    ),
}

_STACKS = (
    *("megatron-lm", "megatron-2023", "megatron-2022", "megatron-2021", "nemo", "megascale"),
    *("megatron-deepspeed", "bigscience", "stronghold"),
)
MEGATRON = Trainer(
    name="Megatron", stack="megatron-core", other_stacks=_STACKS, rules=rules(_RULES), counts_full=True
)
"""It recomputes a number of blocks by `--recompute-method block --recompute-num-layers N`."""

NEMO = replace(MEGATRON, name="NeMo", stack="nemo", other_stacks=("megatron-core", "megatron-lm"))
"""Megatron Bridge, which runs Megatron Core."""
