"""Runs one rank of a recommender's plan in this process, without the others: its tables and shards, its samples.

Ids that other ranks would ask for are drawn as they would draw them, vectors and gradients that they would send are
noise (`executor.emulate.stand_ins`). So lookups, updates, the dense network and memory are real; time spent on
exchanges is the model's.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import torch

from cost_models.errors import InputError, RunError
from cost_models.recommender.options import STAGES
from cost_models.recommender.prices import RecommenderEstimate, estimate, links_of, reduction_seconds
from executor.data.clicks import MadeUpClicks
from executor.embeddings.exchanges import Places
from executor.emulate.stand_ins import (
    AbsentPeers,
    AnyEmulation,
    OtherRanks,
    as_run_here,
    fake_process_group,
    require_rank,
)
from executor.recommender.engine import RecommenderEngine
from executor.recommender.train import held_on_host, peak_memory
from executor.recommender.training import RecommenderTraining
from executor.requirements import as_planned, device_for, name_of, require_memory
from executor.run_config import RunConfig
from executor.timing import StepClock, compute_seconds
from planner.recommender.plan import RecommenderPlan, ShardingPrediction

NOT_TENSORS = ("workspace", "communicators")
"""Predicted parts of device memory that are in no tensor."""
COMPUTED = (STAGES.lookup, STAGES.dense, STAGES.update)
"""Stages of a recommender's step in which a rank computes; only the sum of dense gradients waits for others."""
_TABLES, _STATES = ("weights", "hash tables"), ("optimizer",)
HOST = "host memory"


class ShardEmulation(AnyEmulation):
    """Report of one emulated rank of a recommender's plan, measured beside predicted.

    Parts of memory are tables, optimizer states of their rows, rest, and host memory.
    """

    sharding: str
    ranks: int
    fullest_moment: str = ""
    """Moment of a step at which the model predicts this rank to be fullest."""
    step_seconds: float | None
    """Step seconds with this rank's compute as measured and all else as predicted; None on another kind of device."""
    predicted: ShardingPrediction

    @property
    def peak_bytes(self) -> int:
        """Sum of the measured memory of all parts on the device, in bytes."""
        return sum(size for part, size in self.memory.items() if part != HOST)


def emulate(plan: RecommenderPlan, rank: int, *, steps: int = 3) -> ShardEmulation:
    """Run one rank of a recommender's plan alone in this process; call it where no process group exists.

    Trains one step of warm-up, `steps` whose stages are timed and one whose storages are followed, on made-up samples:
    on a GPU where the plan is for GPUs and there is one, else on one CPU thread.

    Raises:
        InputError: the plan cannot be trained, or has no such rank.
        HostError: the device has less memory than the plan predicts for the rank.
        RunError: the rank ran out of memory, or cannot be built as the plan says.
    """
    RecommenderTraining().require_trainable(plan, RunConfig(), lambda note: None)
    require_rank(rank, plan.num_ranks)
    device = device_for(plan.gpu)
    as_run = _as_run(plan, device)
    needs = _parts(as_run, rank)
    on_host = needs.pop(HOST)
    hint = "plan for more GPUs, or emulate it where there is more"
    if device.type == "cpu":
        require_memory(f"rank {rank}", sum(needs.values()) + on_host, device, hint)
    else:
        require_memory(f"rank {rank}", sum(needs.values()), device, hint)
        require_memory(f"rank {rank}, beside its GPU,", on_host, torch.device("cpu"), hint)
    try:
        with fake_process_group(rank, plan.num_ranks):
            memory, seconds = _followed(plan, device, steps)
    except InputError:
        raise
    except (AssertionError, RuntimeError, ValueError) as error:
        raise RunError(f"rank {rank} cannot be emulated: {error}") from error
    priced = estimate(plan.question, plan.sharding)
    is_planned_device = as_planned(device, plan.gpu)
    return ShardEmulation(
        model=plan.model.name,
        sharding=plan.layout,
        rank=rank,
        ranks=plan.num_ranks,
        device=name_of(device),
        torch=str(torch.__version__),
        memory=memory,
        predicted_memory=_parts(priced, rank),
        memory_as_run=_parts(as_run, rank),
        fullest_moment=as_run.fullest_moment[rank],
        seconds=seconds,
        predicted_seconds=_compute(plan, priced, rank),
        on_planned_device=is_planned_device,
        step_seconds=_step_seconds(plan, priced, rank, seconds) if is_planned_device else None,
        predicted=plan.prediction,
    )


def _followed(
    plan: RecommenderPlan, device: torch.device, steps: int
) -> tuple[dict[str, int], dict[str, tuple[float, ...]]]:
    """Bytes of each part at the peak of a step, and seconds of each stage that computes in each measured step."""
    places = Places(plan.num_ranks, plan.cluster.gpus_per_node)
    engine = RecommenderEngine(plan.model, plan.sharding, plan.training, places, device, peers=AbsentPeers)
    engine.set_rate(RunConfig().learning_rate)
    clicks = MadeUpClicks(plan.model, plan.training.global_batch, seed=0)
    other_ranks, rank = OtherRanks(engine.embeddings, clicks), engine.embeddings.peers.rank
    seconds: dict[str, list[float]] = {stage: [] for stage in COMPUTED}
    for step in range(1 + steps):
        other_ranks.draw(step)
        lookup, dense, *update = _laps(engine, clicks, step, rank)
        if step:
            for stage, lap in zip(COMPUTED, (lookup, dense, sum(update)), strict=True):
                seconds[stage].append(lap)
    other_ranks.draw(1 + steps)
    peak = peak_memory(engine, clicks.slice(1 + steps, rank, plan.num_ranks).to(device))
    memory = {"tables": peak["tables"], "optimizer": peak["optimizer"]}
    memory["rest"] = sum(peak.values()) - sum(memory.values())
    return memory | {HOST: held_on_host(engine)}, {stage: tuple(each) for stage, each in seconds.items()}


def _laps(engine: RecommenderEngine, clicks: MadeUpClicks, step: int, rank: int) -> list[float]:
    """Measured seconds of one step: lookup, dense network, update of rows, update of the dense network."""
    own_clicks = clicks.slice(step, rank, engine.places.ranks).to(engine.device)
    clock = StepClock(engine.device)
    *stages, _ = engine.stages(own_clicks)
    clock.time(*stages, engine.gather_sums, engine.update_rows, engine.update_dense)
    laps = clock.steps[0]
    return [compute_seconds(laps[at], engine.device) for at in (1, 3, 6, 7)]


def _as_run(plan: RecommenderPlan, device: torch.device) -> RecommenderEstimate:
    """Estimate of the cost model for this executor on this kind of device."""
    question = plan.question
    return estimate(replace(question, **as_run_here(question.cluster, question.stack, device)), plan.sharding)


def _parts(priced: RecommenderEstimate, rank: int) -> dict[str, float]:
    """Predicted bytes of a rank by the parts in which memory is measured."""
    size = {name: float(each[rank]) for name, each in priced.device_parts.items() if name not in NOT_TENSORS}
    tables, states = (sum(size[name] for name in names) for names in (_TABLES, _STATES))
    return {
        "tables": tables,
        "optimizer": states,
        "rest": sum(size.values()) - tables - states,
        HOST: float(priced.rank_host_bytes[rank]),
    }


def _compute(plan: RecommenderPlan, priced: RecommenderEstimate, rank: int) -> dict[str, float]:
    """Predicted seconds that a rank computes in each stage of a recommender's step."""
    seconds = {stage: float(priced.loads[rank, at] + priced.fixed[at]) for at, stage in enumerate(STAGES)}
    if not plan.question.facts.hides_reduction:
        seconds[STAGES.update] -= reduction_seconds(plan.question, links_of(plan.question))
    return {stage: seconds[stage] for stage in COMPUTED}


def _step_seconds(
    plan: RecommenderPlan, priced: RecommenderEstimate, rank: int, seconds: dict[str, tuple[float, ...]]
) -> float:
    """Predicted seconds of a recommender's step, with this rank's compute as measured."""
    loads, predicted = priced.loads.copy(), _compute(plan, priced, rank)
    for stage in COMPUTED:
        loads[rank, STAGES.index(stage)] += statistics.median(seconds[stage]) - predicted[stage]
    return float((np.maximum(loads.max(axis=0), priced.hidden) + priced.fixed).sum())
