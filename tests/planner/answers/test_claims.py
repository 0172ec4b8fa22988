"""What is said of sizes and numbers of GPUs beside the best layout is true: the largest size, no layout, the fewest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from asking import change
from effort import number
from small import small_cluster

from cost_models.axes.stages import allowed_recompute, even_layers
from cost_models.defaults import complete_question
from cost_models.errors import InfeasibleError, InputError
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN
from cost_models.specs.cluster import DriveSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.answers import feasibility
from planner.answers.feasibility import largest_sizes
from planner.search import candidates
from planner.search.search import Budget
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.sizes import WAYS, Family, family_named, resized
from planner.space.space import enumerate_layouts

STACKS = ("meshwright", "fsdp", "megatron-core", "deepspeed", "torchtune")
LIMITS = ("", "", "", "mbs=1", "recompute=full", "recompute=none", "mbs>=2", "zero=1", "tp=1", "cp>=2")
SLOW_SEEDS = {54}
"""Seeds of sizes left out: offload of 600 to 1,800 blocks, where a search takes up to two minutes and 4 GB."""
SAMPLED = 40
"""Layouts of a size without any that are priced one by one."""


@dataclass(frozen=True)
class Asked:
    """A small question with the family that grows from it."""

    question: Question
    family: Family
    limits: Restrictions


def drawn(rng: np.random.Generator) -> Asked:
    """A model of few blocks on up to eight small GPUs of a host that holds little, with or without a drive."""
    by = WAYS[int(rng.integers(len(WAYS)))]
    heads = int(rng.choice([4, 6, 8, 12]))
    blocks, kv_heads = int(rng.integers(1, 7)), int(rng.choice([heads, heads // 2]))
    shape = {"num_layers": blocks, "hidden_size": 128 * heads, "num_heads": heads, "num_kv_heads": kv_heads}
    vocabulary, tied = int(rng.choice([1000, 8000])), bool(rng.integers(2))
    ends = {"name": "small", "vocab_size": vocabulary, "tied_embeddings": tied}
    model = TransformerSpec.model_validate(shape | ends)
    family = Family(name="small", base=model, by=by)
    if by == "width":
        known = family_named(str(rng.choice(["llama", "gpt"])), by)
        assert known is not None
        family = known
    gpus = int(rng.choice([1, 2, 3, 4, 6, 8]))
    cluster = small_cluster(gpus, f"{rng.choice([200, 500, 1000])} MiB")
    host = {"host_memory": float(rng.choice([2e8, 1e9, 8e9, 1e12]))}
    if rng.random() < 0.3:
        drive = {"capacity": f"{rng.choice([1, 100])} GB", "read": "1 GB/s", "write": "1 GB/s"}
        host["drive"] = DriveSpec.model_validate(drive)  # type: ignore[assignment]
    gpu = cluster.gpu.model_copy(update={"host_bandwidth": 1e10})
    cluster = cluster.model_copy(update={"gpu": gpu, **host})
    batch, length = int(rng.choice([1, 2, 3, 4, 8, 12, 16])), int(rng.choice([256, 512, 768]))
    training = TrainingSpec(global_batch=batch, sequence_length=length)
    question = complete_question(family.base, cluster, training, stack=str(rng.choice(STACKS)))
    if question.stack.name == "torchtune" and rng.random() < 0.5:
        question = change(question, training={"optimizer_in_backward": True})
    word = str(rng.choice(LIMITS))
    return Asked(question, family, parse_restrictions([word] if word else []))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what fits is asked: neither the fastest layout of a size nor which comes closest where none fits."""
    monkeypatch.setattr(feasibility, "FASTEST_SECONDS", 0.0)
    monkeypatch.setattr(candidates, "explain_infeasible", lambda *_: InfeasibleError("nothing fits"))


def fits(question: Question, limits: Restrictions) -> bool:
    try:
        return bool(Budget().search(question, limits, effort="any"))
    except InfeasibleError:
        return False


def require_nothing_fits(rng: np.random.Generator, question: Question, limits: Restrictions) -> None:
    """Of sampled layouts, with an even share of the blocks on each stage, under any one policy."""
    columns = enumerate_layouts(question, limits)
    for row in rng.permutation(len(columns))[:SAMPLED].tolist():
        layout = columns.layout(row)
        if layout.schedule not in PLAIN:
            continue
        layers = even_layers(question.model.num_layers, layout.num_stages)
        for policy in {*limits.recompute(question)} & {*allowed_recompute(layout.schedule)}:
            placed = layout.model_copy(update={"layers": layers, "recompute": (policy,)})
            if min(layers) >= layout.offload.explicit_blocks:
                assert not estimate(question, placed).fits, str(placed)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", sorted({*range(number(2, 60))} - SLOW_SEEDS))
def test_no_larger_size_fits(seed: int) -> None:
    """Neither the next ones nor those that more degrees divide; and of the next no layout that is priced alone."""
    rng = np.random.default_rng(seed)
    asked = drawn(rng)
    family, gpus = asked.family, asked.question.cluster.num_gpus
    try:
        found = list(largest_sizes(asked.question, family, asked.limits, Budget()))
    except InputError:
        return
    most = max(one.size for one in found)
    for one in found[:1] + found[-1:]:
        limits = replace(asked.limits, allowed=frozenset({"offload"} if one.offloads else ()))
        question = change(asked.question, stack={"residencies": one.offloads})
        assert one.size == family.largest_size or not one.comparable or one.next_fails
        assert not one.size or fits(family.question_of_size(question, one.size), limits)
        if not one.next_fails:
            continue
        rest = -one.size % np.array([2, 3, 4, gpus, 2 * gpus])
        sizes = {1, 2, *(rest + 1), *rest, *rng.integers(1, most + 2, 3)}
        for size in sorted({int(one.size + size) for size in sizes if size} - {one.size}):
            if size <= family.largest_size:
                assert not fits(family.question_of_size(question, size), limits), (one, size)
        require_nothing_fits(rng, family.question_of_size(question, one.size + 1), limits)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(number(2, 60)))
def test_fewest_gpus_are_the_fewest(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number between the one that was asked about and that which is offered."""
    for limit in ("SECONDS_OF_REMEDIES", "SECONDS_OF_A_REMEDY"):  # however busy the machine is
        monkeypatch.setattr(feasibility, limit, 600.0)
    asked = drawn(rng := np.random.default_rng(seed))
    whole = asked.question.cluster.model_copy(update={"gpus_per_node": 8})
    limits = replace(asked.limits, allowed=frozenset({"offload"}) if rng.integers(2) else frozenset())
    large = int(asked.family.base_size * rng.choice([1, 2, 4]))
    question = asked.family.question_of_size(asked.question, min(large, asked.family.largest_size))
    question = resized(question, int(rng.integers(1, 5)))
    found = feasibility.Remedies(
        question=question, on_nodes=replace(question, cluster=whole), limits=limits, state_bytes=0.0
    )
    for offered in found.more_gpus():
        if offered.note:
            assert offered.note == f"the fewest above {question.cluster.num_gpus}"
            for gpus in range(question.cluster.num_gpus + 1, offered.gpus):
                assert not fits(found.on_gpus(gpus).question, limits), (offered, gpus)
