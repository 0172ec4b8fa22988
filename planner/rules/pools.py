"""What a layout must keep to on a cluster of several pools, beside the rules of `planner.rules.legality`."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.offload.residency import offloads
from cost_models.axes.order import OUTERMOST_REPLICAS, ranks_inside
from cost_models.axes.rule import Words
from cost_models.pipeline.pools import fewest_microbatches, ranks_in, replicas_in, with_microbatches
from cost_models.question import MixedQuestion, Question
from cost_models.schedules.registry import PLAIN, is_scheduled
from cost_models.units import counted

ONCE_A_STEP = 1
"""The highest ZeRO stage whose collectives run once a step, in every software stack. Whole replicas take different
numbers of microbatches, so nothing that happens every microbatch may need two of them."""


def fills_pools(question: MixedQuestion, columns: LayoutColumns) -> Bools:
    """(N,): layouts whose ranks each lie in one pool and fill all of them, one stage a rank."""
    gpus_K1 = np.array([pool.cluster.num_gpus for pool in question.pools])[:, None]
    whole: Bools = (gpus_K1 % (columns.tp * columns.replicas) == 0).all(axis=0)
    outermost = _pipeline_is_outermost(columns)
    fills: Bools = whole & outermost & is_scheduled(columns, PLAIN) & (columns.vpp == 1)
    return fills


def _pipeline_is_outermost(columns: LayoutColumns) -> Bools:
    """(N,): layouts that seat all GPUs of a pipeline rank side by side."""
    x = columns
    side_by_side: Bools = ranks_inside("pp", x.order, x.tp, x.cp, x.dp, x.pp) == x.tp * x.replicas
    return side_by_side


def pool_objections(question: Question, layout: Layout) -> list[Words]:
    """What is wrong with where a layout puts its ranks."""
    if not isinstance(question, MixedQuestion):
        word = layout.says_pools
        what = f"`{word}=` chooses among pools; cluster `{question.cluster.name}` is one"
        return [Words(what, "leave it out")] if word else []
    if layout.replicas:
        return replica_objections(question, layout)
    size = layout.tp * layout.data_ranks
    found = [
        Words(
            f"a pipeline rank of {size:,} GPUs (tp x cp x dp) does not divide pool `{pool.cluster.name}` of"
            f" {pool.cluster.num_gpus:,}",
            "every rank lies in one pool, and all GPUs are used",
        )
        for pool in question.pools
        if pool.cluster.num_gpus % size
    ]
    if layout.vpp > 1 or layout.schedule not in PLAIN:
        written = f"vpp{layout.vpp}" if layout.vpp > 1 else f"schedule={layout.schedule}"
        found.append(
            Words(
                f"`{written}` needs equal stages, and pools of different GPUs have none", "use 1f1b or gpipe"
            )
        )
    if not _pipeline_is_outermost(LayoutColumns.of([layout]))[0]:
        what = f"`order={layout.order}` spreads each pipeline rank, and each lies in one pool"
        found.append(Words(what, "use an order that ends with pp"))
    if layout.pools and not found:
        found += _order_objections(question, layout)
    return found


def _order_objections(question: MixedQuestion, layout: Layout) -> list[Words]:
    """`pools=` must name every pool once, for as many ranks as it holds."""
    counts = ranks_in(question, LayoutColumns.of([layout]))[:, 0].tolist()
    right = dict(zip(question.names, counts, strict=True))
    runs = [(name, len(list(run))) for name, run in groupby(layout.pools)]
    if sorted(runs) == sorted(right.items()):
        return []
    written = ",".join(f"{name}*{count}" for name, count in runs)
    fitting = ",".join(f"{name}*{count}" for name, count in right.items())
    return [
        Words(f"`pools={written}` is not how the pools divide", f"pools={fitting}, in any order of the pools")
    ]


def holds_replicas(question: MixedQuestion, columns: LayoutColumns) -> Bools:
    """(N,): layouts whose replicas each lie in one pool, fill all of them, and meet once a step only."""
    x = columns
    gpus_K1 = np.array([pool.cluster.num_gpus for pool in question.pools])[:, None]
    size = x.tp * x.cp * x.pp
    whole: Bools = (gpus_K1 % size == 0).all(axis=0)
    plain: Bools = is_scheduled(x, PLAIN) & (x.vpp == 1) & (x.zero <= ONCE_A_STEP) & ~offloads(x)
    inside: Bools = np.fmod(x.tp * x.cp, x.ep * x.etp) == 0
    return whole & plain & inside & _replicas_are_outermost(x)


def _replicas_are_outermost(columns: LayoutColumns) -> Bools:
    """(N,): layouts that seat all GPUs of a replica side by side."""
    x = columns
    side_by_side: Bools = ranks_inside("dp", x.order, x.tp, x.cp, x.dp, x.pp) == x.tp * x.cp * x.pp
    return side_by_side


def with_mean_batch(question: Question, layout: Layout) -> Question:
    """The question in which every replica takes the mean number of microbatches, rounded up as some take more than the
    mean, for rules that know one number."""
    if not layout.replicas:
        return question
    return with_microbatches(question, layout, -(-question.training.global_batch // (layout.mbs * layout.dp)))


def replica_objections(question: MixedQuestion, layout: Layout) -> list[Words]:
    """What is wrong with where a layout puts its replicas, and with what these do together."""
    found = [*_size_objections(question, layout), *_meeting_objections(layout)]
    columns = LayoutColumns.of([layout])
    if not _replicas_are_outermost(columns)[0]:
        what = f"`order={layout.order}` spreads each replica, and each lies in one pool"
        found.append(Words(what, f"write `order={OUTERMOST_REPLICAS}`"))
    return found + _batch_objections(question, layout)


def _size_objections(question: MixedQuestion, layout: Layout) -> list[Words]:
    size = layout.tp * layout.cp * layout.pp
    odd = [pool.cluster for pool in question.pools if pool.cluster.num_gpus % size]
    found = [
        Words(
            f"a replica of {counted(size, 'GPU')} (tp x cp x pp) does not divide pool `{pool.name}` of"
            f" {pool.num_gpus:,}",
            "every replica lies in one pool, and all GPUs are used",
        )
        for pool in odd
    ]
    right = dict(zip(question.names, replicas_in(question, layout), strict=True))
    if odd or Counter(layout.replicas) == right:
        return found
    written, fitting = (
        ",".join(f"{name}*{count}" for name, count in counts.items())
        for counts in (Counter(layout.replicas), right)
    )
    what = f"`replicas={written}` is not how replicas of {counted(size, 'GPU')} divide the pools"
    return [*found, Words(what, f"dp{sum(right.values())} replicas={fitting}")]


def _meeting_objections(layout: Layout) -> list[Words]:
    """Objections to layouts in which replicas communicate every microbatch, or need equally many microbatches."""
    found = []
    different = "replicas in different pools take different numbers of microbatches"
    if layout.vpp > 1 or layout.schedule not in PLAIN:
        written = f"vpp{layout.vpp}" if layout.vpp > 1 else f"schedule={layout.schedule}"
        found.append(Words(f"{different}, and `{written}` runs in whole rounds of them", "use 1f1b or gpipe"))
    if layout.zero > ONCE_A_STEP:
        what = f"{different}, and `zero{layout.zero}` may communicate after each"
        found.append(Words(what, f"use zero{ONCE_A_STEP}"))
    if any(layout.offload):
        found.append(Words(f"`offload` is not priced where {different}", "leave out `offload`"))
    if layout.tp * layout.cp % (layout.ep * layout.expert_tp):
        what = f"ep{layout.ep} x etp{layout.expert_tp} trades tokens between replicas, and {different}"
        found.append(Words(what, f"keep ep x etp within the {layout.tp * layout.cp} ranks of tp x cp"))
    return found


def _batch_objections(question: MixedQuestion, layout: Layout) -> list[Words]:
    """All microbatches are of one size, and every replica has some."""
    if layout.schedule not in PLAIN or layout.vpp > 1:
        return []
    batch = question.training.global_batch
    together, rest = divmod(batch, layout.mbs)
    if rest:
        return [Words(f"global batch {batch} is not a multiple of mbs{layout.mbs}", "use another mbs")]
    least = fewest_microbatches(layout)
    if together >= least * layout.dp:
        return []
    what = (
        f"{counted(together, 'microbatch')} of {layout.mbs} are too few for {counted(layout.dp, 'replica')}"
    )
    return [Words(f"{what}, each with {least} or more", "use a smaller mbs, or larger replicas")]
