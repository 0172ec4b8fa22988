"""Questions with any options at random, on clusters and models so small that all of their layouts can be priced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from asking import change
from pydantic import ValidationError
from small import every_axis, mixed_question, pool

from cost_models.axes.words import EVERY
from cost_models.defaults import complete_question
from cost_models.errors import InfeasibleError, InputError
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.training import LengthsSpec, TrainingSpec, TuningSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats.trainers import TRAINERS
from planner.objectives import Objective
from planner.search.enumeration import count_combinations
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import legal_space

STACKS = [
    "meshwright", "megatron-core", "nemo", "torchtitan", "deepspeed", "deepspeed-v0.5", "fsdp", "torchtune",
]  # fmt: skip


MOST_WRITTEN, MOST_LAYOUTS = 60_000, 600
"""Legal or not, and covered; of more another question is drawn."""


class Drawn(NamedTuple):
    """A question with all that is asked of it, and the flags that were drawn."""

    question: Question
    limits: Restrictions
    objective: Objective
    flags: list[str]


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
    }
    shape |= {"num_kv_heads": one_of(rng, (heads // 2, heads)), "vocab_size": one_of(rng, (1000, 1001))}
    shape |= {"tied_embeddings": some(rng, 0.5), "attention_window": 32 if some(rng, 0.2) else None}
    if some(rng, 0.25):
        mixtures = blocks - int(some(rng, 0.3) and blocks > 1)
        shape |= {"num_experts": 2, "experts_per_token": 1, "moe_ffn_hidden_size": 128}
        shape |= {"num_moe_layers": mixtures}
    return TransformerSpec(name="drawn", **shape)


def drawn_cluster(rng: np.random.Generator, most: int) -> ClusterSpec:
    """One to four GPUs, with a host and sometimes a drive, and links of any speed."""
    worlds = ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 3), (2, 1), (1, 4))
    per_node, nodes = one_of(rng, worlds if most > 1 else worlds[:2])
    memory, bandwidth = one_of(rng, (20, 40, 100, 400, 2000)), one_of(rng, (10, 100))
    gpu = {"name": "drawn-gpu", "memory": f"{memory} MiB", "memory_bandwidth": f"{bandwidth} GB/s"}
    peak = {"bf16": "10 TFLOP/s", "fp16": "10 TFLOP/s", "fp8": "20 TFLOP/s", "fp32": "1 TFLOP/s"}
    gpu |= {"library_workspace": "1 B", "host_bandwidth": one_of(rng, ("0.1 GB/s", "10 GB/s"))}
    inside = {"kind": "pcie", "bandwidth": f"{one_of(rng, (1, 10))} GB/s", "latency": "2 us"}
    between = {"kind": "infiniband", "bandwidth": f"{one_of(rng, (0.1, 1, 10))} GB/s", "latency": "5 us"}
    drive = {"capacity": one_of(rng, ("10 MB", "1 TB")), "read": "1 GB/s", "write": "1 GB/s"}
    links = {"intra_node": inside} | ({"inter_node": between} if nodes > 1 else {})
    host = {
        "host_memory": one_of(rng, (None, "30 MB", "1 GB", "1 TB")),
        "drive": drive if some(rng, 0.3) else None,
    }
    shape = {"name": "drawn", "gpus_per_node": per_node, "nodes": nodes, "memory_reserve": 0.06}
    return ClusterSpec.model_validate(shape | host | {"gpu": gpu | {"peak": peak}, "links": links})


def drawn_training(rng: np.random.Generator, flags: list[str]) -> TrainingSpec:
    """A job with any task, optimizer, precision and lengths."""
    told: dict[str, Any] = {
        "global_batch": one_of(rng, (1, 2, 4, 6)),
        "sequence_length": one_of(rng, (32, 64)),
        "precision": one_of(rng, ("bf16", "bf16", "bf16", "fp32", "fp16", "fp8")),
        "optimizer": one_of(rng, (*["adamw"] * 3, "sgd", "lamb", "adamw-8bit", "adafactor", "muon")),
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
        targets = (one_of(rng, ("attention", "all-linear")),)
        base = one_of(rng, ("int8", "nf4")) if task == "qlora" else None
        told["tuning"] = TuningSpec(rank=4, targets=targets, base=base)
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


NAMED = {
    "context": ("ring", "all-gather", "all-to-all"),
    "order": ("tp-pp-cp-dp", "tp-cp-pp-dp", "tp-cp-dp-pp"),
    "recompute": RECOMPUTE_POLICIES,
}


def drawn_words(
    rng: np.random.Generator, question: Question, opened: set[str]
) -> tuple[list[str], list[str]]:
    """What is fixed and forbidden, of any axis."""
    gpus, blocks = question.cluster.num_gpus, question.model.num_layers
    few, numbers = (1, 2, gpus), ("tp", "pp", "dp", "cp", "vpp", "ep", "etp", "mbs", "shard")
    axes = (*numbers, "zero", "schedule", "context", "order", "sp", "recompute", "ring", "offload")
    fix, forbid = [], []
    for _ in range(one_of(rng, (0, 0, 0, 1, 1, 2))):
        axis = one_of(rng, axes)
        if axis == "offload":
            part = one_of(rng, ("states", "parked", "streamed"))
            count = one_of(rng, (0, 1, blocks, EVERY))
            fix += [f"offload_{part}={count}"] if "offload" in opened else []
        elif axis == "ring":
            fix += ["ring=3"] if "offload" in opened else []
        elif axis in ("schedule", "context", "order", "recompute"):
            value = one_of(rng, {"schedule": question.stack.schedules, **NAMED}[axis])
            (fix if some(rng, 0.5) else forbid).append(f"{axis}={value}")
        elif some(rng, 0.2):
            forbid.append(axis)
        else:
            value = one_of(rng, (0, 1, 2, 3) if axis == "zero" else (0, 1) if axis == "sp" else few)
            sign = one_of(rng, ("=", "=", ">=", "<=")) if axis != "sp" else "="
            (fix if some(rng, 0.6) else forbid).append(f"{axis}{sign}{value}")
    return fix, forbid


def drawn(seed: int, *, pools: bool = False) -> Drawn:
    """The question of a seed, small enough that all of it can be priced; with `pools` one about two of them."""
    rng = np.random.default_rng(seed)
    while True:
        try:
            found = _drawn(rng, pools)
        except (InputError, ValidationError):  # options that no job may have together
            continue
        if found is not None:
            return found


def _drawn(rng: np.random.Generator, pools: bool) -> Drawn | None:
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
    if (some(rng, 0.14) or pools) and "offload" not in opened:
        question = _pooled(rng, model, training, stack)
        opened = {"replicas"} & ({"replicas"} if some(rng, 0.6) else set())
        flags.append("pools")
    else:
        question = complete_question(
            model, drawn_cluster(rng, most=1 if "offload" in opened else 4), training, stack=stack
        )
        facts: dict[str, Any] = {"context_bytes": 1.0, "communicator_bytes": 1.0, "collective_buffers": None}
        question = replace(change(question, stack=facts), confidence=confidence)
        if trainer is None and some(rng, 0.2):
            question = every_axis(question)
    if pools and not question.has_pools:
        return None
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
    if count_combinations(question, limits) > MOST_WRITTEN * (3 if opened else 1):
        return None
    if not question.has_pools and len(legal_space(question, limits)) > MOST_LAYOUTS:
        return None
    return Drawn(question, limits, objective, [flag for flag in flags if flag])


def _pooled(rng: np.random.Generator, model: TransformerSpec, training: TrainingSpec, stack: str) -> Question:
    """Two pools of one or two GPUs of unlike speed and memory."""
    pools = []
    for name in ("p0", "p1"):
        gpus, speed, memory = one_of(rng, (1, 1, 2)), one_of(rng, (0.5, 3.0)), one_of(rng, (120, 400, 2000))
        pools.append(pool(name, gpus=gpus, speed=speed, memory=f"{memory} MiB"))
    hosts = {"host_memory": one_of(rng, (None, 1e6, 1e9))}
    peak = {"bf16": 1e13, "fp16": 1e13, "fp8": 2e13, "fp32": 5e12}
    pools = [
        one.model_copy(update=hosts | {"gpu": one.gpu.model_copy(update={"peak": peak})}) for one in pools
    ]
    told = training.model_dump(exclude={"kind"})
    question = mixed_question(*pools, layers=model.num_layers, stack=stack, **told)
    return replace(question, model=model)
