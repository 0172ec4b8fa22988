"""All options at random: the search covers what an enumerator finds one by one, and its best is the best of all prices.

Tasks, optimizers, offload with its counts, replicas, pools, lengths, windows, trainers, precisions, confidence, limits
of memory, fixed and forbidden values, and objectives are drawn together, on clusters and models so small that every
placement of every layout can be priced.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from brute import Everything, Placed, everything, settings_of
from drawn_questions import Drawn, drawn
from effort import number
from small import MODEL, every_axis, leaf_of, replica_prices, small_cluster, small_question
from synthetic import exhaustive_best

from cost_models.axes.columns import COLUMNS, LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InfeasibleError
from cost_models.operators.flops import model_flops, utilisation
from cost_models.pipeline.pools import costs_of_ranks
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import Links, LinkSpec
from cost_models.specs.training import TrainingSpec
from planner.answers.optimum import optimise, split_by_padding
from planner.answers.recommend import count_near
from planner.formats.trainers import TRAINERS
from planner.objectives import Objective
from planner.placement.leaf import TOLERANCE
from planner.rules.legality import check
from planner.search.enumeration import covered_in_pools, covered_layouts, policies_of
from planner.search.pools import count_layouts, pool_candidates, replica_layouts
from planner.search.search import Budget, search
from planner.space.limits import tried_tensor_degrees
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import enumerate_layouts

QUESTIONS = int(os.environ.get("QUESTIONS", number(60, 2000)))
FIRST = int(os.environ.get("FIRST", 0))
"""Seed of the first: another one asks other questions."""


def names_of(columns: LayoutColumns) -> list[str]:
    """Layouts as they are written, each one checked to be what its row says."""
    found = []
    for row in range(len(columns)):
        layout = columns.layout(row)
        again = LayoutColumns.of([layout])
        assert all(getattr(again, name)[0] == getattr(columns, name)[row] for name in COLUMNS), layout
        found.append(str(layout))
    return found


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
    columns = covered_layouts(question, limits)
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
    seconds += [s for one in replicas for s, fits in replica_prices(question, one, limits) if fits]
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
    leaf = leaf_of(question, layout, np.array([True, False, True]) if counted else allowed)
    return exhaustive_best(replace(leaf, costs=replace(costs, memory_limit=limit), uses_full_counts=counted))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(number(16, 400)))
def test_stages_and_replicas_in_pools_are_those_of_an_enumerator(seed: int) -> None:
    asked = drawn(seed, pools=True)
    ask_pools(asked, asked.question)


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


def fast_network() -> Question:
    """Two nodes of two GPUs whose links are as fast as those inside; the vocabulary is padded otherwise by each tp."""
    link = LinkSpec(kind="nvlink", bandwidth="300 GB/s", latency="2 us")  # type: ignore[arg-type]
    cluster = small_cluster(2, "8 GiB").model_copy(
        update={"nodes": 2, "links": Links(intra_node=link, inter_node=link)}
    )
    model = MODEL.model_copy(update={"vocab_size": 7001, "hidden_size": 128})
    return complete_question(model, cluster, TrainingSpec(global_batch=4, sequence_length=256))


@pytest.mark.parametrize("restricted", [(), ("tp>=2",), ("tp=1,4",)])
def test_mfu_is_sought_at_every_tensor_degree(restricted: tuple[str, ...]) -> None:
    question, limits = fast_network(), parse_restrictions(restricted)
    covered = set(enumerate_layouts(question, limits).tp.tolist())
    assert 4 in covered
    assert covered == set(tried_tensor_degrees(question, limits))
    assert covered == {
        tp for part in split_by_padding(question, limits) for tp in enumerate_layouts(question, part).tp
    }
    found = optimise(question, Objective(name="mfu"), restrictions=limits)
    assert found.result.certificate.layouts == count_layouts(question, limits)
    each = [
        search(question, top=1, restrictions=replace(limits, only={"tp": frozenset({tp})})) for tp in covered
    ]
    assert found.value == max(one.best.mfu for one in each)


@pytest.mark.parametrize("trainer", list(TRAINERS))
def test_a_trainer_with_several_recompute_policies_counts_and_lists_a_layout_once(trainer: str) -> None:
    question = every_axis(small_question(2, "1 GiB", stack=TRAINERS[trainer].stack))
    limits = parse_restrictions(["mbs=2"], trainer=trainer)
    layouts = count_layouts(question, limits)
    found = search(question, top=2 * layouts, restrictions=limits)
    proof = found.certificate
    assert proof.layouts == layouts == proof.infeasible + proof.pruned + proof.solved
    named = [
        str(one.layout.model_copy(update={"layers": (), "recompute": ("none",)})) for one in found.estimates
    ]
    assert len(named) == len(set(named)) <= layouts
    within = count_near(question, limits, found, Budget())
    assert within is not None
    assert within <= layouts
    for one in limits.by_recompute(question):
        for other in search(question, top=layouts, restrictions=one).estimates:
            name = str(
                parse_layout(str(other.layout)).model_copy(update={"layers": (), "recompute": ("none",)})
            )
            if name in named:
                assert found.estimates[named.index(name)].step_seconds <= other.step_seconds
