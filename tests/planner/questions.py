"""Random small questions and restrictions on them: what exactness of the search is tested with.

A restriction is drawn as words (`pp>=2`, `order=tp-pp-cp-dp`), of which `test_restrictions` says what they keep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from asking import change
from brute import Everything, everything
from small import every_axis

from cost_models.defaults import complete_question
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, ORDERS, RECOMPUTE_POLICIES, SCHEDULES
from cost_models.specs.cluster import BuildingsSpec, ClusterSpec, GpuSpec, Links, LinkSpec
from cost_models.specs.training import LengthsSpec, Packing, Reference, TrainingSpec, TuningSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats.trainers import rows_for
from planner.space.restrictions import Restrictions, allowed_rows, parse_restrictions, with_context_ways

NUMBERS = ("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "mbs", "zero", "shard")
NAMES = {"schedule": SCHEDULES, "order": ORDERS, "context": CONTEXTS}
STACKS = ("every axis", "every axis", "meshwright", "torchtitan", "deepspeed-v0.5", "megatron-core", "fsdp")
WORLDS = ((1, 1), (2, 1), (1, 2), (3, 1), (4, 1), (2, 2), (4, 1), (2, 2), (2, 3), (4, 2), (8, 1))
IN_BUILDINGS = ((1, 4, 2), (2, 2, 1), (2, 4, 2), (1, 8, 4), (1, 4, 1))


def random_model(rng: np.random.Generator) -> TransformerSpec:
    """Two to five narrow blocks, dense or a mixture."""
    heads = int(rng.choice([2, 4, 8]))
    shape: dict[str, Any] = {
        "num_layers": int(rng.integers(2, 6)),
        "hidden_size": 64 * int(rng.choice([1, 2, 4])),
    }
    shape |= {"num_heads": heads, "num_kv_heads": int(rng.choice([heads // 2, heads]))}
    shape |= {"vocab_size": int(rng.choice([1000, 8000])), "tied_embeddings": bool(rng.integers(2))}
    shape |= {"gated_mlp": bool(rng.integers(2)), "further_tokens": int(rng.choice([0, 0, 1]))}
    if rng.random() < 0.45:
        shape |= {"num_experts": int(rng.choice([2, 4])), "experts_per_token": int(rng.choice([1, 2]))}
        shape |= {"moe_ffn_hidden_size": 128, "shared_expert_ffn_hidden_size": int(rng.choice([0, 128]))}
        shape |= {"num_moe_layers": shape["num_layers"] - int(rng.integers(2))}
    return TransformerSpec(name="random", **shape)


def random_cluster(rng: np.random.Generator) -> ClusterSpec:
    """One to eight GPUs on one to three nodes, with links of any speed."""
    return cluster_of(rng, *WORLDS[int(rng.integers(len(WORLDS)))])


def cluster_of(rng: np.random.Generator, per_node: int, nodes: int) -> ClusterSpec:
    """Nodes of so many GPUs, with memory and links of any size and speed."""
    gpu = GpuSpec.model_validate(
        {
            "name": "random-gpu",
            "memory": f"{rng.choice([40, 100, 400, 2000])} MiB",
            "memory_bandwidth": f"{rng.choice([10, 100, 1000])} GB/s",
            "peak": {"bf16": f"{rng.choice([1, 10, 100])} TFLOP/s", "fp32": "1 TFLOP/s"},
            "library_workspace": "1 B",
        }
    )
    inside = {"kind": "pcie", "bandwidth": f"{rng.choice([1, 10, 100])} GB/s", "latency": "2 us"}
    between = {"kind": "infiniband", "bandwidth": f"{rng.choice([0.1, 1, 10])} GB/s", "latency": "5 us"}
    links = Links(
        intra_node=LinkSpec.model_validate(inside),
        inter_node=LinkSpec.model_validate(between) if nodes > 1 else None,
    )
    return ClusterSpec(
        name="random", gpu=gpu, gpus_per_node=per_node, nodes=nodes, links=links, memory_reserve=0.06
    )


def in_buildings(rng: np.random.Generator) -> ClusterSpec:
    """Four to eight GPUs in two or four buildings, on a link as fast as the network or slower."""
    per_node, nodes, each = IN_BUILDINGS[int(rng.integers(len(IN_BUILDINGS)))]
    cluster = cluster_of(rng, per_node, nodes)
    farther = cluster.links.inter_node.faster(1 / int(rng.choice([1, 4, 64])))
    buildings = BuildingsSpec(nodes=each, link=farther.model_copy(update={"latency": 6e-5}))
    return ClusterSpec.model_validate(dict(cluster) | {"buildings": buildings})


@cache
def building_base(seed: int) -> Everything:
    """The same on a cluster of several buildings."""
    return _first(seed, lambda rng: _asked(rng, in_buildings))


def _first(seed: int, asked: Callable[[np.random.Generator], Everything]) -> Everything:
    rng = np.random.default_rng(seed)
    while not (found := asked(rng)).placed:
        pass
    return found


@cache
def base(seed: int) -> Everything:
    """One random question that has legal layouts, with its whole space by brute force."""
    return _first(seed, _asked)


@cache
def tuned_base(seed: int) -> Everything:
    return _first(seed, lambda rng: _asked(rng, tuning=random_tuning(rng)))


@cache
def packed_base(seed: int) -> Everything:
    """The same with documents of unlike length packed into sequences, or put in buckets, and with preferences."""

    def lengths(rng: np.random.Generator) -> LengthsSpec:
        packing: Packing = "bucket" if rng.random() < 0.2 else "pack"
        return LengthsSpec(packing=packing, lognormal=(float(rng.choice([4, 16])), 1.0))

    def reference(rng: np.random.Generator) -> Reference | None:
        drawn = rng.random()
        return "resident" if drawn < 0.5 else "host" if drawn > 0.8 else None

    def asked(rng: np.random.Generator) -> Everything:
        documents, beside = lengths(rng), reference(rng)
        cluster = _with_hosts if beside == "host" else random_cluster
        return _asked(rng, cluster, lengths=documents, reference=beside)

    return _first(seed, asked)


def _with_hosts(rng: np.random.Generator) -> ClusterSpec:
    """A cluster whose hosts have memory, and a link to it that some passes hide."""
    cluster = random_cluster(rng)
    gpu = cluster.gpu.model_copy(update={"host_bandwidth": float(rng.choice([1e8, 1e9, 1e10]))})
    return cluster.model_copy(update={"host_memory": 1e9, "gpu": gpu})


def random_tuning(rng: np.random.Generator) -> TuningSpec:
    """Adapters on matrices that every model has, beside matrices in 16 bits or fewer."""
    return TuningSpec(
        rank=int(rng.choice([4, 16])),
        targets=(str(rng.choice(["attention", "all-linear", "o", "q"])),),  # type: ignore[arg-type]
        base=(None, "int8", "nf4")[int(rng.integers(3))],  # type: ignore[arg-type]
        dropout=float(rng.choice([0.0, 0.1])),
    )


def _asked(
    rng: np.random.Generator,
    cluster: Callable[[np.random.Generator], ClusterSpec] = random_cluster,
    tuning: TuningSpec | None = None,
    lengths: LengthsSpec | None = None,
    reference: Reference | None = None,
) -> Everything:
    policies = [policy for policy in RECOMPUTE_POLICIES if rng.random() < 0.8] or list(RECOMPUTE_POLICIES)
    job = {
        "global_batch": int(rng.choice([1, 2, 4, 6, 8])),
        "sequence_length": int(rng.choice([32, 64, 256])),
    }
    precision = str(rng.choice(["bf16", "bf16", "fp32"]))
    more = {"recompute": tuple(policies), "tuning": tuning, "lengths": lengths, "reference": reference}
    training = TrainingSpec.model_validate(job | {"precision": precision} | more)
    stack = STACKS[int(rng.integers(len(STACKS)))]
    named = "meshwright" if stack == "every axis" else stack
    question = without_context(complete_question(random_model(rng), cluster(rng), training, stack=named))
    return everything(every_axis(question) if stack == "every axis" else question)


def without_context(question: Question) -> Question:
    """On a stack that needs no memory for itself, so that small GPUs have some left; and that keeps no weights of small
    blocks between two uses."""
    nothing = {"context_bytes": 1.0, "communicator_bytes": 1.0, "collective_buffers": None}
    reach = {"zero3_reuse_elements": 30_000} if question.stack.zero3_reuse_elements else {}
    return change(question, stack=nothing | reach)


def kept_by(found: Everything, fix: list[str], forbid: list[str]) -> np.ndarray:
    """(N,): what the words keep, and unless etp is fixed those that split experts as far as the rest or less."""
    x = found.columns
    kept = allowed_rows(found.question, parse_restrictions(fix, forbid), x)
    return kept if any(word.startswith("etp=") for word in fix) else kept & (x.tp % x.etp == 0)


@dataclass(frozen=True, kw_only=True)
class Query:
    """One search, and what brute force says of it."""

    question: Question
    restrictions: Restrictions
    top: int
    seconds: list[float]
    """Of every layout that fits, best first."""
    layouts: int


def random_query(
    rng: np.random.Generator, bases: int, of: Callable[[int], Everything] = base, trainer: str | None = None
) -> Query:
    """Restrictions that keep some of the layouts near a random one, of one of the first so many questions; for a
    `trainer`, or now and then for some."""
    found = of(int(rng.integers(bases)))
    fix, forbid = _random_words(rng, found)
    policies = [
        p
        for p in range(len(RECOMPUTE_POLICIES))
        if RECOMPUTE_POLICIES[p] in found.question.training.recompute
    ]
    recompute: list[str] = []
    if rng.random() < 0.3:
        policies = sorted(
            rng.choice(policies, int(rng.integers(1, len(policies) + 1)), replace=False).tolist()
        )
        recompute = [f"recompute={','.join(RECOMPUTE_POLICIES[policy] for policy in policies)}"]
    if rng.random() < 0.06 and trainer is None:
        trainer = str(rng.choice(["megatron", "torchtitan"]))
    rows = np.flatnonzero(kept_by(found, fix, forbid))
    if trainer:
        rows = rows[rows_for(trainer, found.question, found.columns.rows(rows))]
    allowed = sum(1 << policy for policy in policies)
    max_memory = _some_peak(rng, found, rows) if rng.random() < 0.35 else None
    restrictions = parse_restrictions([*fix, *recompute], forbid, max_memory=max_memory, trainer=trainer)
    if trainer:  # each policy is a search of its own, but for one that drops nothing
        own = restrictions.recompute(found.question)
        allowed = sum(1 << RECOMPUTE_POLICIES.index(policy) for policy in own)
    told = {"alike": trainer is not None, "counts": trainer == "megatron"}
    seconds, layouts = found.best(rows, allowed, max_memory or np.inf, **told)
    return Query(
        question=found.question,
        restrictions=restrictions,
        top=int(rng.choice([1, 1, 1, 1, 1, 2, 2, 3, 4])),
        seconds=seconds,
        layouts=layouts,
    )


def _random_words(rng: np.random.Generator, found: Everything) -> tuple[list[str], list[str]]:
    """What is fixed and forbidden, axis by axis in random order, until few layouts are left."""
    fix: list[str] = []
    forbid: list[str] = []
    columns, whole = with_context_ways(found.question, found.columns), kept_by(found, [], [])
    if not whole.any():
        return fix, forbid
    some = whole if rng.random() < 0.9 else np.ones_like(whole)
    target, enough = int(rng.choice(np.flatnonzero(some))), int(rng.integers(3, 40))
    for axis in rng.permutation([*NUMBERS, *NAMES, "sp"]).tolist():
        if kept_by(found, fix, forbid).sum() <= enough:
            break
        column = getattr(columns, axis)
        own = int(column[target])
        others = sorted({*column.tolist()} - {own})
        kind = rng.random()
        if kind < 0.15 and axis in NUMBERS and own > 0:
            words, word = (forbid, f"{axis}<{own}") if rng.integers(2) else (fix, f"{axis}>={own}")
            words.append(word)
        elif kind < 0.3 and others:
            forbid.append(_written(axis, [int(rng.choice(others))]))
        elif kind < 0.4 and axis not in ("schedule", "context"):
            forbid.append(axis)
        else:
            more = [int(rng.choice(others))] if others and rng.random() < 0.4 else []
            fix.append(_written(axis, sorted({own, *more})))
    return fix, forbid


def _written(axis: str, values: list[int]) -> str:
    return f"{axis}={','.join(NAMES[axis][value] if axis in NAMES else str(value) for value in values)}"


def _some_peak(rng: np.random.Generator, found: Everything, rows: np.ndarray) -> float:
    """A limit at which some placement of these layouts just fits, or a little less than any needs."""
    if not len(rows):
        return 1e6
    peaks = np.concatenate([found.placed[row].peak for row in rows.tolist()])
    if not len(peaks) or rng.random() < 0.1:
        return 0.9 * float(peaks.min(initial=1e6))
    return float(np.quantile(peaks, rng.random() ** 3, method="nearest")) * (1 + 1e-7)
