"""Rules of torchtitan: what its mesh, its sharding and its model checks refuse."""

from __future__ import annotations

import numpy as np

from cost_models.axes.layout import Layout
from cost_models.axes.rule import Rule, Words
from cost_models.question import Question
from planner.formats.trainer import Trainer


def _zero(question: Question, layout: Layout) -> Words:
    what = f"torchtitan shards weights, gradients and optimizer states together, not as `zero{layout.zero}`"
    return Words(what, "write zero3 (reshard after forward) or zero2 (do not)")


def _context_shards(question: Question, layout: Layout) -> Words:
    return Words(f"torchtitan shards weights over the ranks of `cp{layout.cp}`", "write zero3 or zero2")


def _shard_holds_context(question: Question, layout: Layout) -> Words:
    what = (
        f"torchtitan shards over whole context groups: `shard{layout.shard}` is no multiple of cp{layout.cp}"
    )
    return Words(what)


def _tied(question: Question, layout: Layout) -> Words:
    what = f"torchtitan cannot tie the embeddings of `{question.model.name}` across a pipeline"
    return Words(f"{what} (`pp{layout.pp}`)", "use pp1")


def _whole_experts(question: Question, layout: Layout) -> Words:
    return Words(
        f"torchtitan keeps experts whole where it shares them: etp1, not etp{layout.expert_tp}",
        "write `etp1`",
    )


def _split_experts(question: Question, layout: Layout) -> Words:
    return Words(f"without `ep` torchtitan splits experts over tp{layout.tp}", "leave out `etp`")


def _experts_in_shard(question: Question, layout: Layout) -> Words:
    ranks = layout.shard_group * layout.tp
    what = f"`ep{layout.ep}` takes ranks from one shard group: shard x tp has {ranks:,}"
    return Words(what, "ep must divide it")


TORCHTITAN = Trainer(
    name="torchtitan",
    stack="torchtitan",
    rules=(
        Rule(
            name="all states are sharded, or none",
            broken=lambda q, x: x.zero == 1,
            sentence=_zero,
        ),
        Rule(
            name="context ranks shard weights",
            broken=lambda q, x: (x.cp > 1) & (x.zero == 0),
            sentence=_context_shards,
        ),
        Rule(
            name="shard groups hold whole context groups",
            broken=lambda q, x: x.shard % x.cp != 0,
            sentence=_shard_holds_context,
        ),
        Rule(
            name="tied embeddings lie on one stage",
            broken=lambda q, x: q.model.tied_embeddings & (x.pp > 1),
            sentence=_tied,
        ),
        Rule(
            name="shared experts are whole",
            broken=lambda q, x: q.model.has_experts & (x.ep > 1) & (x.etp != 1),
            sentence=_whole_experts,
        ),
        Rule(
            name="experts are split as the rest where they are not shared",
            broken=lambda q, x: q.model.has_experts & (x.ep == 1) & (x.etp != x.tp),
            sentence=_split_experts,
        ),
        Rule(
            name="expert groups lie in one shard group",
            broken=lambda q, x: q.model.has_experts & (np.fmod(x.shard * x.tp, x.ep) != 0),
            sentence=_experts_in_shard,
        ),
    ),
    counts_full=False,
    source=(
        "pytorch/torchtitan, August 2026: torchtitan/distributed/parallel_dims.py, fsdp.py, pipeline_parallel.py, "
        "activation_checkpoint.py, torchtitan/models/common/decoder.py"
    ),
)
