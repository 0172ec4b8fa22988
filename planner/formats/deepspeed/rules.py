"""Rules of DeepSpeed: what its engines refuse, and which ways to split a model it has."""

from __future__ import annotations

from cost_models.axes.layout import Layout
from cost_models.axes.rule import Rule, Words
from cost_models.question import Question
from cost_models.specs.choices import SCHEDULES
from planner.formats.trainer import Trainer


def _schedule(question: Question, layout: Layout) -> Words:
    what = f"DeepSpeed's pipelines run 1f1b with one chunk a rank, not `schedule={layout.schedule}`"
    return Words(what, "leave out `vpp` and `schedule`")


def _pipeline_and_zero(question: Question, layout: Layout) -> Words:
    what = f"DeepSpeed's pipelines go with zero0 and zero1, not with `zero{layout.zero}`"
    return Words(what, "write zero1, or use pp1")


def _sequence(question: Question, layout: Layout) -> Words:
    return Words("DeepSpeed's tensor parallelism keeps sequences whole", "leave out `sp`; `cp` splits them")


def _shard(question: Question, layout: Layout) -> Words:
    what = f"DeepSpeed shards over all {layout.data_ranks} ranks with the same weights, not over {layout.shard_group}"
    return Words(what, "leave out `shard`")


def _experts(question: Question, layout: Layout) -> Words:
    what = f"DeepSpeed's experts go under zero3 only without context parallelism, not with `cp{layout.cp}`"
    return Words(what, "use cp1, or zero2")


DEEPSPEED = Trainer(
    name="DeepSpeed",
    stack="deepspeed",
    other_stacks=("xtuner", "megatron-deepspeed", "bigscience"),
    rules=(
        Rule(
            name="pipelines run 1F1B",
            broken=lambda q, x: (x.pp > 1) & ((x.vpp > 1) | (x.schedule != SCHEDULES.index("1f1b"))),
            sentence=_schedule,
        ),
        Rule(
            name="pipelines shard optimizer states at most",
            broken=lambda q, x: (x.pp > 1) & (x.zero > 1),
            sentence=_pipeline_and_zero,
        ),
        Rule(
            name="tensor ranks have whole sequences",
            broken=lambda q, x: x.sp == 1,
            sentence=_sequence,
        ),
        Rule(
            name="ZeRO shards over all ranks with the same weights",
            broken=lambda q, x: (x.zero > 0) & (x.shard != x.replicas),
            sentence=_shard,
        ),
        Rule(
            name="experts under ZeRO-3 have whole sequences",
            broken=lambda q, x: q.model.has_experts & (x.zero == 3) & (x.cp > 1),
            sentence=_experts,
        ),
    ),
    counts_full=False,
    source=(
        "deepspeedai/DeepSpeed 0.19.8: deepspeed/runtime/engine.py, runtime/pipe/engine.py, runtime/pipe/module.py, "
        "runtime/pipe/schedule.py, runtime/zero/config.py"
    ),
)
"""Shard groups were MiCS's (`mics_shard_size`) until 0.19; they are no more in 0.19.8."""
