"""All options at random: the search covers what an enumerator finds one by one, and its best is the best of all prices.

Tasks, optimizers, offload with its counts, replicas, pools, lengths, windows, trainers, precisions, confidence, limits
of memory, fixed and forbidden values, and objectives are drawn together, on clusters and models so small that every
placement of every layout can be priced.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from brute import Everything, Placed, everything, settings_of
from effort import number
from pydantic import ValidationError
from several_pools import mixed_question, pool
from small import every_axis
from synthetic import exhaustive_best

from cost_models.axes.columns import COLUMNS, LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.words import EVERY
from cost_models.defaults import complete_question
from cost_models.errors import InfeasibleError, InputError
from cost_models.operators.flops import model_flops, utilisation
from cost_models.pipeline.pools import costs_of_ranks
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import ClusterSpec, DriveSpec, GpuSpec, Links, LinkSpec
from cost_models.specs.training import LengthsSpec, TrainingSpec, TuningSpec
from cost_models.specs.transformer import TransformerSpec
from planner.answers.optimum import optimise
from planner.formats.trainers import TRAINERS
from planner.objectives import Objective
from planner.placement.leaf import TOLERANCE, Leaf, Placement
from planner.placement.patterns import chunk_patterns
from planner.rules.legality import check
from planner.search.enumeration import covered, covered_in_pools, how_many, policies_of
from planner.search.pools import ReplicaSpace, count_layouts, pool_candidates, replica_layouts
from planner.search.search import Budget, search
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import enumerate_layouts, legal_space

QUESTIONS = int(os.environ.get("QUESTIONS", number(60, 2000)))
FIRST = int(os.environ.get("FIRST", 0))
"""Seed of the first: another one asks other questions."""
STACKS = (
    "meshwright",
    "megatron-core",
    "nemo",
    "torchtitan",
    "deepspeed",
    "deepspeed-v0.5",
    "fsdp",
    "torchtune",
)
MOST_WRITTEN, MOST_LAYOUTS = 60_000, 600
"""Legal or not, and covered; of more another question is drawn."""


def names_of(columns: LayoutColumns) -> list[str]:
    """Layouts as they are written, each one checked to be what its row says."""
    found = []
    for row in range(len(columns)):
        layout = columns.layout(row)
        again = LayoutColumns.of([layout])
        assert all(getattr(again, name)[0] == getattr(columns, name)[row] for name in COLUMNS), layout
        found.append(str(layout))
    return found


@dataclass
class Drawn:
    """A question with all that is asked of it, and the flags that were drawn."""

    question: Question
    limits: Restrictions
    objective: Objective
    flags: list[str] = field(default_factory=list)


SMALL = {"name": "drawn", "hidden_size": 64, "num_heads": 2, "num_kv_heads": 2, "vocab_size": 1000}


def some(rng: np.random.Generator, share: float) -> bool:
    return bool(rng.random() < share)


def one_of(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def drawn_model(rng: np.random.Generator) -> TransformerSpec:
    """One to four narrow blocks: dense, a mixture, with windows."""
    heads = one_of(rng, (2, 4))
    blocks = one_of(rng, (1, 2, 2, 3, 3, 4))
    shape: dict[str, Any] = {
        "num_layers": blocks,
        "hidden_size": 64 * one_of(rng, (1, 2)),
        "num_heads": heads,
        "num_kv_heads": one_of(rng, (heads // 2, heads)),
        "vocab_size": one_of(rng, (1000, 1001)),
        "tied_embeddings": some(rng, 0.5),
        "attention_window": 32 if some(rng, 0.2) else None,
    }
    if some(rng, 0.25):
        shape |= {
            "num_experts": 2,
            "experts_per_token": 1,
            "moe_ffn_hidden_size": 128,
            "num_moe_layers": blocks - int(some(rng, 0.3) and blocks > 1),
        }
    return TransformerSpec(name="drawn", **shape)


def drawn_cluster(rng: np.random.Generator, most: int) -> ClusterSpec:
    """One to four GPUs, with a host and sometimes a drive, and links of any speed."""
    worlds = ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 3), (2, 1), (1, 4))
    per_node, nodes = one_of(rng, worlds if most > 1 else worlds[:2])
    gpu = {
        "name": "drawn-gpu",
        "memory": f"{one_of(rng, (20, 40, 100, 400, 2000))} MiB",
        "memory_bandwidth": f"{one_of(rng, (10, 100))} GB/s",
        "peak": {"bf16": "10 TFLOP/s", "fp16": "10 TFLOP/s", "fp8": "20 TFLOP/s", "fp32": "1 TFLOP/s"},
        "library_workspace": "1 B",
        "host_bandwidth": one_of(rng, ("0.1 GB/s", "10 GB/s")),
    }
    inside = {"kind": "pcie", "bandwidth": f"{one_of(rng, (1, 10))} GB/s", "latency": "2 us"}
    between = {"kind": "infiniband", "bandwidth": f"{one_of(rng, (0.1, 1, 10))} GB/s", "latency": "5 us"}
    drive = {"capacity": one_of(rng, ("10 MB", "1 TB")), "read": "1 GB/s", "write": "1 GB/s"}
    return ClusterSpec(
        name="drawn",
        gpu=GpuSpec.model_validate(gpu),
        gpus_per_node=per_node,
        nodes=nodes,
        links=Links(
            intra_node=LinkSpec.model_validate(inside),
            inter_node=LinkSpec.model_validate(between) if nodes > 1 else None,
        ),
        memory_reserve=0.06,
        host_memory=one_of(rng, (None, "30 MB", "1 GB", "1 TB")),
        drive=DriveSpec.model_validate(drive) if some(rng, 0.3) else None,
    )


def drawn_training(rng: np.random.Generator, flags: list[str]) -> TrainingSpec:
    """A job with any task, optimizer, precision and lengths."""
    told: dict[str, Any] = {
        "global_batch": one_of(rng, (1, 2, 4, 6)),
        "sequence_length": one_of(rng, (32, 64)),
        "precision": one_of(rng, ("bf16", "bf16", "bf16", "fp32", "fp16", "fp8")),
        "optimizer": one_of(
            rng, ("adamw", "adamw", "adamw", "sgd", "lamb", "adamw-8bit", "adafactor", "muon")
        ),
        "optimizer_in_backward": some(rng, 0.12),
        "recompute": tuple(one for one in RECOMPUTE_POLICIES if some(rng, 0.75)) or RECOMPUTE_POLICIES,
        "gradient_dtype": one_of(rng, (None, None, None, "bf16")),
        "state_dtype": one_of(rng, ("fp32", "fp32", "fp32", "bf16")),
        "dropout": one_of(rng, (None, None, 0.1)),
        "tokens": 1e6,
    }
    task = one_of(rng, ("full", "full", "full", "lora", "qlora", "dpo", "reward"))
    flags += [f"task {task}", f"optimizer {told['optimizer']}", f"precision {told['precision']}"]
    if task in ("lora", "qlora") or (task == "dpo" and some(rng, 0.3)):
        told["tuning"] = TuningSpec(
            rank=4,
            targets=(one_of(rng, ("attention", "all-linear")),),
            base=one_of(rng, ("int8", "nf4")) if task == "qlora" else None,
        )
    if task == "dpo":
        told["reference"] = one_of(rng, ("resident", "host", "computed"))
    told["reward"] = task == "reward"
    if some(rng, 0.15):
        told["freeze"] = (one_of(rng, ("embedding", "first=1")),)
    if some(rng, 0.2):
        told["lengths"] = LengthsSpec(packing=one_of(rng, ("pack", "bucket", "pad")), lognormal=(8.0, 1.0))
        flags.append("lengths")
    flags += ["optimizer-in-backward"] * told["optimizer_in_backward"]
    return TrainingSpec(**told)


def drawn_words(
    rng: np.random.Generator, question: Question, opened: set[str]
) -> tuple[list[str], list[str]]:
    """What is fixed and forbidden, of any axis."""
    gpus, blocks = question.cluster.num_gpus, question.model.num_layers
    few, numbers = (1, 2, gpus), ("tp", "pp", "dp", "cp", "vpp", "ep", "etp", "mbs", "shard")
    fix, forbid = [], []
    for _ in range(one_of(rng, (0, 0, 0, 1, 1, 2))):
        axis = one_of(
            rng, (*numbers, "zero", "schedule", "context", "order", "sp", "recompute", "ring", "offload")
        )
        if axis == "offload":
            part = one_of(rng, ("states", "parked", "streamed"))
            count = one_of(rng, (0, 1, blocks, EVERY))
            fix += [f"offload_{part}={count}"] if "offload" in opened else []
        elif axis == "ring":
            fix += ["ring=3"] if "offload" in opened else []
        elif axis in ("schedule", "context", "order", "recompute"):
            value = one_of(
                rng,
                {
                    "schedule": question.stack.schedules,
                    "context": ("ring", "all-gather", "all-to-all"),
                    "order": ("tp-pp-cp-dp", "tp-cp-pp-dp", "tp-cp-dp-pp"),
                    "recompute": RECOMPUTE_POLICIES,
                }[axis],
            )
            (fix if some(rng, 0.5) else forbid).append(f"{axis}={value}")
        elif some(rng, 0.2):
            forbid.append(axis)
        else:
            value = one_of(rng, (0, 1, 2, 3) if axis == "zero" else (0, 1) if axis == "sp" else few)
            sign = one_of(rng, ("=", "=", ">=", "<=")) if axis != "sp" else "="
            (fix if some(rng, 0.6) else forbid).append(f"{axis}{sign}{value}")
    return fix, forbid


def drawn(seed: int) -> Drawn:
    """The question of a seed, small enough that all of it can be priced."""
    rng = np.random.default_rng(seed)
    while True:
        try:
            found = _drawn(rng)
        except (InputError, ValidationError):  # options that no job may have together
            continue
        if found is not None:
            return found


def _drawn(rng: np.random.Generator) -> Drawn | None:
    flags: list[str] = []
    training, model = drawn_training(rng, flags), drawn_model(rng)
    trainer = one_of(rng, list(TRAINERS)) if some(rng, 0.25) else None
    stack = one_of(rng, STACKS) if trainer is None else TRAINERS[trainer].stack
    confidence = one_of(rng, (0.5, 0.5, 0.5, 0.9))
    flags += [f"stack {stack}", f"for {trainer}" if trainer else "", "confidence" * (confidence > 0.5)]
    opened = {one_of(rng, ("offload", "overlap"))} if some(rng, 0.3) else set[str]()
    if "offload" in opened:  # which has many layouts
        model = TransformerSpec.model_validate(dict(SMALL) | {"num_layers": one_of(rng, (1, 2, 2, 3))})
        update = {"global_batch": one_of(rng, (1, 2)), "optimizer": one_of(rng, ("adamw", "sgd", "lamb"))}
        training = training.model_copy(update=update | {"tuning": None, "reference": None, "freeze": ()})
        stack = stack if trainer else one_of(rng, ("meshwright", "deepspeed", "fsdp"))
    if some(rng, 0.14) and "offload" not in opened:
        question = _pooled(rng, model, training, stack)
        opened = {"replicas"} & ({"replicas"} if some(rng, 0.6) else set())
        flags.append("pools")
    else:
        question = complete_question(
            model, drawn_cluster(rng, most=1 if "offload" in opened else 4), training, stack=stack
        )
        facts: dict[str, Any] = {"context_bytes": 1.0, "communicator_bytes": 1.0, "collective_buffers": None}
        question = replace(question, stack=question.stack.model_copy(update=facts), confidence=confidence)
        if trainer is None and some(rng, 0.2):
            question = every_axis(question)
    flags += [f"allow {axis}" for axis in opened]
    fix, forbid = drawn_words(rng, question, opened)
    memory = 1e6 * one_of(rng, (5, 20, 80)) if some(rng, 0.15) else None
    try:
        limits = parse_restrictions(fix, forbid, max_memory=memory, trainer=trainer, allow=sorted(opened))
        limits.by_recompute(question)
    except InfeasibleError:
        return None
    flags += ["fix"] * bool(fix) + ["forbid"] * bool(forbid) + ["max-memory"] * (memory is not None)
    name = one_of(rng, (*["time"] * 6, "mfu", "mfu", "gpu-hours", "cost", "memory"))
    objective = Objective(name=name, price=2.0 if name == "cost" else None)
    if question.has_pools and name in ("memory", "mfu"):
        objective = Objective()
    flags.append(f"objective {objective.name}")
    if how_many(question, limits) > MOST_WRITTEN * (3 if opened else 1):
        return None
    if not question.has_pools and len(legal_space(question, limits)) > MOST_LAYOUTS:
        return None
    return Drawn(question, limits, objective, [flag for flag in flags if flag])


def _pooled(rng: np.random.Generator, model: TransformerSpec, training: TrainingSpec, stack: str) -> Question:
    """Two pools of one or two GPUs of unlike speed and memory."""
    pools = [
        pool(
            f"p{k}",
            gpus=one_of(rng, (1, 1, 2)),
            speed=one_of(rng, (0.5, 3.0)),
            memory=f"{one_of(rng, (120, 400, 2000))} MiB",
        )
        for k in range(2)
    ]
    hosts = {"host_memory": one_of(rng, (None, 1e6, 1e9))}
    peak = {"bf16": 1e13, "fp16": 1e13, "fp8": 2e13, "fp32": 5e12}
    pools = [
        one.model_copy(update=hosts | {"gpu": one.gpu.model_copy(update={"peak": peak})}) for one in pools
    ]
    told = training.model_dump(exclude={"kind"})
    question = mixed_question(*pools, layers=model.num_layers, stack=stack, **told)
    return replace(question, model=model)


def best_rows(found: Everything, limits: Restrictions) -> list[tuple[int, np.ndarray, Placed]]:
    """Of every layout its row and which of its placements are covered and fit."""
    policies = sum(1 << RECOMPUTE_POLICIES.index(one) for one in policies_of(found.question, limits))  # type: ignore[arg-type]
    counts = limits.trainer is not None and TRAINERS[limits.trainer].counts_full
    each = []
    for row, own in enumerate(found.placed):
        settings = settings_of(policies, limits.trainer is not None, counts)
        within = np.any([own.within(one) for one in settings], axis=0)
        within &= own.peak <= min(own.limit, limits.max_memory or math.inf)
        if within.any():
            each.append((row, within, own))
    return each


def wanted_value(found: Everything, limits: Restrictions, objective: Objective) -> float | None:
    """The best value of an objective over all covered placements of all layouts, each priced; None: none fits."""
    question, rows = found.question, best_rows(found, limits)
    if not rows:
        return None
    if objective.name == "memory":
        return min(float(own.peak[within].min()) for _, within, own in rows)
    seconds = {row: float(own.seconds[within].min()) for row, within, own in rows}
    if objective.name != "mfu":
        return min(seconds.values())
    cluster, training = question.cluster, question.training
    return max(
        utilisation(
            model_flops(question.model, training, int(found.columns.tp[row])),
            own,
            cluster.num_gpus,
            cluster.gpu.peak[training.precision],
        )
        for row, own in seconds.items()
    )


def ask(asked: Drawn) -> tuple[int, bool]:
    """Check one question; returns how many layouts it has, and whether any fits."""
    if asked.question.has_pools:
        return ask_pools(asked, asked.question)
    question, limits = asked.question, asked.limits
    columns = covered(question, limits)
    names = names_of(columns)
    assert len(names) == len(set(names))
    assert set(names) == set(names_of(enumerate_layouts(question, limits)))
    for row in np.linspace(0, len(columns) - 1, min(len(columns), 20)).astype(int).tolist():
        assert not check(question, columns.layout(row))
    if not len(columns):
        with pytest.raises(InfeasibleError):
            search(question, restrictions=limits)
        return 0, False
    found = everything(question, columns=columns)
    wanted = wanted_value(found, limits, asked.objective)
    if wanted is None:
        with pytest.raises(InfeasibleError):
            optimise(question, asked.objective, restrictions=limits, budget=Budget(proof="bounds"))
        return len(columns), False
    answer = optimise(question, asked.objective, restrictions=limits, top=1, budget=Budget(proof="bounds"))
    best = answer.result.best
    assert not check(question, best.layout, limits.trainer)
    assert str(best.layout.model_copy(update={"layers": (), "recompute": ("none",)})) in names
    value = answer.value if asked.objective.name in ("memory", "mfu") else best.step_seconds
    assert value == pytest.approx(wanted, rel=10 * TOLERANCE)
    proof = answer.result.certificate
    assert proof.layouts == proof.infeasible + proof.pruned + proof.solved
    if asked.objective.name == "time":
        assert (proof.gap, proof.undecided) == (0, 0)
        assert proof.layouts == count_layouts(question, limits) >= len(columns)
    return len(columns), True


def ask_pools(asked: Drawn, question: Question) -> tuple[int, bool]:
    """The same on several pools, whose layouts are placed one by one."""
    limits = asked.limits
    stages, replicas = covered_in_pools(question, limits)
    try:
        candidates = pool_candidates(question, replace(limits, allowed=limits.allowed - {"replicas"}))
        candidates.open_all()
        found = {str(candidates.layout(row)) for row in range(len(candidates))}
    except InfeasibleError:
        found = set()
    assert {str(one) for one in stages} == found
    if "replicas" in limits.allowed and limits.trainer is None:
        held = replica_layouts(question, limits)
        assert {unplaced(one) for one in replicas} == set(names_of(held))
    policies = policies_of(question, limits)
    allowed = np.array([policy in policies for policy in RECOMPUTE_POLICIES])
    alike = limits.trainer is not None
    each = [np.arange(len(allowed)) == at for at in np.flatnonzero(allowed)] if alike else [allowed]
    counted = alike and TRAINERS[str(limits.trainer)].counts_full and allowed[0] and allowed[2]
    seconds = [leaf_seconds(question, limits, one, some) for one in stages for some in each]
    seconds += [leaf_seconds(question, limits, one, allowed, counted=True) for one in stages if counted]
    seconds += [price for one in replicas for price in replica_prices(question, limits, one)]
    best = min(seconds, default=math.inf)
    if math.isinf(best):
        with pytest.raises(InfeasibleError):
            search(question, restrictions=limits)
        return len(stages) + len(replicas), False
    answer = search(question, top=1, restrictions=limits)
    assert answer.best.step_seconds == pytest.approx(best, rel=10 * TOLERANCE)
    assert not check(question, answer.best.layout, limits.trainer)
    assert answer.certificate.layouts == len(stages) + len(replicas)
    return len(stages) + len(replicas), True


def unplaced(layout: Layout) -> str:
    """A layout of replicas as it is written before it says where they lie."""
    return str(layout.model_copy(update={"replicas": ()}))


def leaf_seconds(
    question: Question, limits: Restrictions, layout: Layout, allowed: np.ndarray, *, counted: bool = False
) -> float:
    """Least seconds of all placements that fit."""
    costs = costs_of_ranks(question, layout)
    limit = np.minimum(costs.memory_limit, limits.max_memory or math.inf)
    leaf = Leaf(
        costs=replace(costs, memory_limit=limit),
        pp=layout.pp,
        vpp=1,
        schedule=layout.schedule,
        microbatches=layout.microbatches(question.training.global_batch),
        kinds=question.kinds,
        allowed=np.array([True, False, True]) if counted else allowed,
        uses_full_counts=counted,
    )
    return exhaustive_best(leaf)


def replica_prices(question: Question, limits: Restrictions, layout: Layout) -> list[float]:
    """Seconds of every covered placement that fits."""
    found = []
    leaf = ReplicaSpace(question, LayoutColumns.of([layout]), limits).leaf(0)
    for blocks in chunk_patterns(leaf):
        placement = Placement.of(blocks)
        update = {"layers": placement.layers, "recompute": placement.recompute}
        priced = estimate(question, layout.model_copy(update=update))
        priced = priced if limits.max_memory is None else priced.within(limits.max_memory)
        found += [priced.step_seconds] * priced.fits
    return found


@pytest.mark.timeout(14_400)
def test_the_space_and_its_best_are_those_of_an_enumerator() -> None:
    met, layouts, fitting = Counter[str](), 0, 0
    for seed in range(FIRST, FIRST + QUESTIONS):
        asked = drawn(seed)
        try:
            number_of, fits = ask(asked)
        except Exception as error:
            error.add_note(f"seed {seed}: {', '.join(asked.flags)}; {' '.join(asked.limits.flags)}")
            raise
        met.update(asked.flags)
        layouts, fitting = layouts + number_of, fitting + fits
    print(f"{QUESTIONS:,} questions, {layouts:,} layouts, {fitting:,} with an answer")
    print(", ".join(f"{flag} {count}" for flag, count in sorted(met.items())))
    assert QUESTIONS / 4 < fitting < QUESTIONS
