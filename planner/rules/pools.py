"""Rules of layouts on a cluster of several pools (groups of equal GPUs), in addition to the rules of
`planner.rules.legality`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Literal

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns, is_scheduled
from cost_models.axes.layout import OUTERMOST_REPLICAS, Layout
from cost_models.axes.offload.residency import offloads
from cost_models.axes.rule import Words
from cost_models.pipeline.pools import fewest_microbatches, pool_capacities, with_microbatches
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN
from cost_models.units import counted

HIGHEST_ZERO = 1
"""Highest ZeRO stage whose collectives run once per step, not per microbatch, in every software stack.
Replicas in different pools take different numbers of microbatches, so no collective per microbatch may span
two of them."""


def fills_pools(question: Question, x: LayoutColumns, axis: Literal["pp", "dp"] = "pp") -> Bools:
    """Whether every pipeline rank (or replica, for `axis="dp"`) of each layout lies in one pool of equal GPUs
    and all GPUs are used, (N,). Each pipeline rank must have one stage. True for all layouts on a cluster of
    one kind of GPU."""
    if not question.has_pools:
        return np.ones(len(x), dtype=np.bool_)
    size = x.tp * x.cp * (x.dp if axis == "pp" else x.pp)
    gpus_K1 = np.array([pool.cluster.num_gpus for pool in question.pools])[:, None]
    fills: Bools = (gpus_K1 % size == 0).all(axis=0) & (x.stride(axis) == size) & (x.vpp == 1)
    return fills & is_scheduled(x, PLAIN)


def holds_replicas(question: Question, x: LayoutColumns) -> Bools:
    """Whether every data-parallel replica of each layout lies in one pool of equal GPUs, all GPUs are used,
    and replicas synchronise only once a step, (N,)."""
    meets_once: Bools = (x.zero <= HIGHEST_ZERO) & (np.fmod(x.tp * x.cp, x.ep * x.etp) == 0)
    return fills_pools(question, x, "dp") & meets_once & ~offloads(x)


def pool_objections(question: Question, layout: Layout) -> list[Words]:
    """Sentences on broken rules about the pools of GPUs in which a layout's pipeline ranks or replicas lie."""
    if not question.has_pools:
        word = layout.pools_field
        text = f"`{word}=` chooses among pools; cluster `{question.cluster.name}` is one"
        return [Words(text, "leave it out")] if word else []
    part, axes, size = "pipeline rank", "tp x cp x dp", layout.tp * layout.data_ranks
    if layout.replicas:
        part, axes, size = "replica", "tp x cp x pp", layout.tp * layout.cp * layout.pp
    hint = f"every {part.split()[-1]} lies in one pool, and all GPUs are used"
    text = f"a {part} of {counted(size, 'GPU')} ({axes}) does not divide pool"
    pools = [pool.cluster for pool in question.pools]
    odd = [Words(f"{text} `{one.name}` of {one.num_gpus:,}", hint) for one in pools if one.num_gpus % size]
    right = dict(zip(question.pool_names, pool_capacities(question, size), strict=True))
    further = _replica_objections if layout.replicas else _stage_objections
    return [*odd, *further(question, layout, {} if odd else right)]


def _stage_objections(question: Question, layout: Layout, right: Mapping[str, int]) -> Iterator[Words]:
    """Yield sentences on broken rules about the pools in which pipeline ranks lie. `right` has the correct
    number of ranks of each pool; it is empty if ranks do not divide the pools."""
    if words := _written_schedule(layout):
        yield Words(f"{words} needs equal stages, and pools of different GPUs have none", "use 1f1b or gpipe")
    outermost = layout.stride("pp") * layout.pp == layout.num_gpus
    if not outermost:
        text = f"`order={layout.order}` spreads each pipeline rank, and each lies in one pool"
        yield Words(text, "use an order that ends with pp")
    runs = [(name, len(list(run))) for name, run in groupby(layout.pools)]
    if runs and right and outermost and not words and sorted(runs) != sorted(right.items()):
        text = f"`pools={_counts(runs)}` is not how the pools divide"
        yield Words(text, f"pools={_counts(right.items())}, in any order of the pools")


def _replica_objections(question: Question, layout: Layout, right: Mapping[str, int]) -> Iterator[Words]:
    """Yield sentences on broken rules about the pools in which replicas lie. `right` has the correct number
    of replicas of each pool; it is empty if replicas do not divide the pools."""
    counts, size = Counter(layout.replicas), layout.num_gpus // layout.dp
    if right and counts != right:
        text = f"`replicas={_counts(counts.items())}` is not how replicas of {counted(size, 'GPU')} divide the pools"
        yield Words(text, f"dp{sum(right.values())} replicas={_counts(right.items())}")
    different = "replicas in different pools take different numbers of microbatches"
    if words := _written_schedule(layout):
        yield Words(f"{different}, and {words} runs in whole rounds of them", "use 1f1b or gpipe")
    if layout.zero > HIGHEST_ZERO:
        text = f"{different}, and `zero{layout.zero}` may communicate after each"
        yield Words(text, f"use zero{HIGHEST_ZERO}")
    if any(layout.offload):
        yield Words(f"`offload` is not priced where {different}", "leave out `offload`")
    if layout.tp * layout.cp % (layout.ep * layout.expert_tp):
        text = f"ep{layout.ep} x etp{layout.expert_tp} trades tokens between replicas, and {different}"
        yield Words(text, f"keep ep x etp within the {layout.tp * layout.cp} ranks of tp x cp")
    if layout.stride("dp") != size:
        text = f"`order={layout.order}` spreads each replica, and each lies in one pool"
        yield Words(text, f"write `order={OUTERMOST_REPLICAS}`")
    batch, min_microbatches = question.training.global_batch, fewest_microbatches(layout)
    microbatch_count, remainder = divmod(batch, layout.mbs)
    if remainder and not words:
        yield Words(f"global batch {batch} is not a multiple of mbs{layout.mbs}", "use another mbs")
    elif microbatch_count < min_microbatches * layout.dp and not words:
        microbatches = f"{counted(microbatch_count, 'microbatch')} of {layout.mbs}"
        text = f"{microbatches} are too few for {counted(layout.dp, 'replica')}, each with {min_microbatches} or more"
        yield Words(text, "use a smaller mbs, or larger replicas")


def _written_schedule(layout: Layout) -> str:
    """Words by which a layout names a pipeline schedule other than 1F1B or GPipe, such as `vpp2` or
    `schedule=zbv`; empty for these two."""
    if layout.vpp == 1 and layout.schedule in PLAIN:
        return ""
    return f"`vpp{layout.vpp}`" if layout.vpp > 1 else f"`schedule={layout.schedule}`"


def _counts(counts: Iterable[tuple[str, int]]) -> str:
    """Text of names with their numbers, such as `a*4,b*2`."""
    return ",".join(f"{name}*{count}" for name, count in counts)


def with_mean_batch(question: Question, layout: Layout) -> Question:
    """Copy of the question in which every replica takes equally many microbatches, the mean number rounded
    up. Rules need one number."""
    if not layout.replicas:
        return question
    return with_microbatches(question, layout, -(-question.training.global_batch // (layout.mbs * layout.dp)))
