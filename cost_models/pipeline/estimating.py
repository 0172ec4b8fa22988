"""Price one layout: run its schedule's timeline, and say which part of the step and of the memory is what.

The step follows the docstring of `stage_costs`. Its parts are those of the busiest rank; what is left is split into the
transfers between stages that nothing hides (`pp_comm`: the timeline with and without its delay) and waiting (`bubble`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.axes.layout import Layout
from cost_models.axes.offload.price import tiers
from cost_models.estimate import Breakdown, Estimate, Trust, fullest_pool, fullness
from cost_models.files import read_data
from cost_models.operators.flops import causal_flops, model_flops, recomputed_flops, utilisation
from cost_models.pipeline.placed import PricedRanks, price_ranks_of_each
from cost_models.pipeline.time_pieces import HIDDEN_AS, HIDDEN_PARTS, TIME_PARTS
from cost_models.pipeline.under_scenarios import weighed_seconds
from cost_models.question import Question, by_uncertainty

_WORTH_NAMING = 0.05
"""Share of the step from which a part other than compute is said to bind it."""


def estimate(question: Question, layout: Layout) -> Estimate:
    """Step time, MFU (of the peaks of all pools together) and memory of one layout under one question.

    Raises:
        InputError: the layout cannot be placed or scheduled, or its ranks are not those of the pools.
    """
    return estimate_each(question, [layout])[0]


def estimate_each(question: Question, layouts: Sequence[Layout]) -> list[Estimate]:
    """Estimates of several layouts, priced together; equal layouts are priced once.

    Raises:
        InputError: of one of them, as above.
    """
    distinct = list(dict.fromkeys(layouts))
    ranks = price_ranks_of_each(question, distinct)
    found = {layout: _estimated(question, own) for layout, own in zip(distinct, ranks, strict=True)}
    return [found[layout] for layout in layouts]


def _estimated(question: Question, ranks: PricedRanks) -> Estimate:
    # parts of the busiest rank; rounding must not make waiting negative
    seconds, without_transfers, busy_R = ranks.pipeline.step_of(ranks.placed.blocks)
    by_part = {part: float(ranks.seconds[part][int(np.argmax(busy_R))]) for part in TIME_PARTS}
    by_part["pp_comm"] += seconds - without_transfers
    by_part["bubble"] = max(0.0, seconds - sum(by_part.values()))
    parts = Breakdown.from_dict(by_part)
    # communication that runs behind compute, of the rank that has most of it
    hidden = {HIDDEN_AS.get(part, part.replace("hidden", "comm")): part for part in HIDDEN_PARTS}
    model, training, ran = question.model, question.training, ranks.placed.layout
    useful = model_flops(model, training, ran.tp)
    spent = useful + recomputed_flops(model, training, ran, question.stack.drops)
    gpus, peak = ran.num_gpus, question.cluster.gpu.peak[training.precision]
    several = len(question.by_pool) > 1
    if several:
        gpus = 1
        peak = sum(p.cluster.num_gpus * p.cluster.gpu.peak[training.precision] for p in question.by_pool)
    peaks, limits = ranks.memory(), ranks.limits
    if ranks.replicas:
        pool = fullest_pool(ranks.replicas)
        peaks, limits = pool.rank_memory, (pool.memory_limit,) * ran.pp
    fullest = max(range(ran.pp), key=lambda rank: fullness(peaks[rank].total, limits[rank]))
    return Estimate(
        layout=ran,
        microbatches=max(
            (max(own.microbatches) for own in ranks.replicas), default=ranks.pipeline.microbatches
        ),
        step_seconds=seconds,
        time=parts,
        hidden_comm=Breakdown.from_dict(
            {name: float(ranks.seconds[part].max()) for name, part in hidden.items()}
        ),
        rank_memory=peaks,
        memory_limit=limits[fullest],
        mfu=utilisation(useful, seconds, gpus, peak),
        hfu=utilisation(spent, seconds, gpus, peak),
        causal_mfu=utilisation(causal_flops(model, training, ran.tp), seconds, gpus, peak),
        tokens_per_second=training.tokens_per_step / seconds,
        answers_per_second=training.answers and training.answers * training.tokens_per_step / seconds,
        bound_by=bound_by(parts),
        trust=trust_of(max(question.by_pool, key=lambda pool: by_uncertainty(pool.hardware))),
        rank_limits=limits if several else (),
        replicas=ranks.replicas,
        confidence=question.confidence,
        weighed_seconds=weighed_seconds(question, ran),
        **tiers(question, ran),
    )


def trust_of(question: Question) -> Trust:
    """Trust in a prediction, from the error that the hardware profile has shown."""
    hardware = question.hardware
    stack = question.stack
    pairs = ((hardware.gpu, {question.cluster.gpu.name}), (hardware.stack, {stack.name, stack.family}))
    differs = [name for name, here in pairs if name not in here | {"any"}]
    its_own = all(name in here for name, here in pairs)
    its_die = question.cluster.gpu.name in (hardware.gpu, *hardware.also_for)
    if hardware.borrowed_from or (hardware.tier == "profile" and not its_die):
        told = read_data("errors/steps")
        return Trust(
            tier=hardware.tier,
            profile=hardware.name,
            error=told["borrowed_error"],
            runs=told["borrowed_runs"],
            borrowed=hardware.borrowed_from or hardware.gpu,
            by_tests=hardware.borrowed_from is not None,
            memory_error=question.memory_error,
        )
    return Trust(
        tier=hardware.tier,
        profile=hardware.name,
        error=hardware.median_error,
        runs=hardware.validated_runs,
        elsewhere=" and ".join(differs),
        unseen_error=None if its_own else hardware.unseen_error,
        memory_error=question.memory_error,
    )


def bound_by(parts: Breakdown) -> str:
    """The largest part that is not compute, where it is worth naming."""
    others = [(seconds, name) for name, seconds in parts if name != "compute"]
    seconds, name = max(others)
    return name if seconds >= _WORTH_NAMING * parts.total else "compute"
