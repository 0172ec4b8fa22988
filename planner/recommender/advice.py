"""Advice on a sharding, with the table changes that gain most, the best sharding, and the gain from variants
of the question.

A change holds alike tables, those of one option today and of one in the best sharding, as the best one does. One change
after another, the one that gains most on top of those before it; each must fit and gain by itself, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from cost_models.errors import InfeasibleError
from cost_models.memory.device import is_own_host
from cost_models.recommender.estimating import RecommenderEstimate, estimate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.cluster import FULL
from cost_models.specs.recommender.sharding import Sharding, TablePlacement
from planner.recommender.answer import ShardingAnswer, best_sharding
from planner.recommender.restrictions import ShardingRestrictions
from planner.search.search import Budget
from planner.space.sizes import on_whole_nodes, possible, resized

CHANGES = 3
"""Maximum number of changes proposed one after another."""
WORTH = 1e-3
"""Minimum relative gain in step time for which a change is proposed."""
OTHER_SECONDS = 10.0
"""Time limit, in seconds, of the search for each variant of the question; its answer is then the best
found."""
_MORE_MEMORY = 1.25


class ShardingChange(NamedTuple):
    """A proposed change of sharding option for some embedding tables, with predictions alone and after earlier
    changes."""

    tables: tuple[int, ...]
    today: str
    """Current sharding option of the tables."""
    proposed: str
    by_itself: RecommenderEstimate
    with_earlier: RecommenderEstimate
    sharding: Sharding
    """Sharding with this and all earlier changes."""


class OtherSharding(NamedTuple):
    """The best sharding of a variant of the question, such as another precision, more GPUs or faster links."""

    words: str
    trouble: str
    estimate: RecommenderEstimate
    proven: bool


@dataclass(frozen=True, slots=True)
class ShardingAdvice:
    """Advice on a running sharding, with the changes that gain most, the best sharding found, and variants of
    the question."""

    question: RecommenderQuestion
    sharding: Sharding
    today: RecommenderEstimate
    changes: tuple[ShardingChange, ...]
    answer: ShardingAnswer
    other_questions: tuple[OtherSharding, ...]

    @property
    def reached(self) -> RecommenderEstimate:
        """Prediction for today's sharding after all proposed changes."""
        return self.changes[-1].with_earlier if self.changes else self.today

    @property
    def best_sharding(self) -> Sharding:
        """The sharding found by the search, or today's with all changes if the search found nothing faster."""
        reached = self.changes[-1].sharding if self.changes else self.sharding
        faster = estimate(self.question, self.answer.sharding).step_seconds < self.reached.step_seconds
        return self.answer.sharding if faster or not self.reached.fits else reached

    @property
    def best(self) -> RecommenderEstimate:
        """Prediction for the best sharding."""
        return estimate(self.question, self.best_sharding)

    @property
    def at_the_end(self) -> bool:
        """Whether the proposed changes lead to a sharding that fits, with a step at most slightly longer than
        the best."""
        reached = self.reached
        return reached.fits and reached.step_seconds <= self.best.step_seconds * (1 + WORTH)


def advise_sharding(
    question: RecommenderQuestion, today: Sharding, restrictions: ShardingRestrictions, budget: Budget
) -> ShardingAdvice:
    """Propose changes that lead from today's sharding to the best one within the restrictions, and search
    variants of the question.

    Raises:
        InputError: places that are not there.
        InfeasibleError: no sharding fits at all.
        RunError: time ran out before anything was found.
    """
    running = estimate(question, today)
    budget.tell("searching for the best sharding")
    answer = best_sharding(question, budget, restrictions)
    if answer is None:
        raise budget.nothing_found()
    others = tuple(_other_shardings(question, restrictions, budget))
    changes = tuple(_path(question, today, running, answer.sharding))
    return ShardingAdvice(question, today, running, changes, answer, others)


def _path(
    question: RecommenderQuestion, today: Sharding, running: RecommenderEstimate, best: Sharding
) -> Iterator[ShardingChange]:
    groups: dict[tuple[int, str, str], dict[int, TablePlacement]] = {}
    for table, (placed, target) in enumerate(zip(today.tables, best.tables, strict=True)):
        if placed != target:
            key = question.model.class_of_table[table], str(placed.option), str(target.option)
            groups.setdefault(key, {})[table] = target
    separate = {key: estimate(question, _with(today, moved)) for key, moved in groups.items()}
    remaining = {key: moved for key, moved in groups.items() if _gains(separate[key], running)}
    sharding, reached = today, running
    for _ in range(CHANGES):
        priced = {key: estimate(question, _with(sharding, moved)) for key, moved in remaining.items()}
        steps = {key: (not one.fits, one.step_seconds) for key, one in priced.items() if _gains(one, reached)}
        if not steps:
            return
        key = min(steps, key=lambda group: steps[group])
        moved = remaining.pop(key)
        sharding, reached = _with(sharding, moved), priced[key]
        yield ShardingChange(tuple(moved), *key[1:], separate[key], reached, sharding)


def _gains(changed: RecommenderEstimate, current: RecommenderEstimate) -> bool:
    """Whether to advise a changed sharding, which fits and is noticeably faster or, if the current one does
    not fit, fits or exceeds memory by less."""
    if not current.fits:
        return changed.fits or _excess_bytes(changed) < _excess_bytes(current)
    return changed.fits and changed.step_seconds < current.step_seconds * (1 - WORTH)


def _excess_bytes(priced: RecommenderEstimate) -> float:
    """Bytes by which a sharding exceeds the memory of GPUs and hosts, summed."""
    devices = (priced.device_bytes - priced.device_memory).clip(min=0).sum()
    return float(devices + (priced.host_bytes - priced.host_memory).clip(min=0).sum())


def _with(sharding: Sharding, placements: Mapping[int, TablePlacement]) -> Sharding:
    return Sharding(tuple(placements.get(table, placed) for table, placed in enumerate(sharding.tables)))


def _other_shardings(
    question: RecommenderQuestion, restrictions: ShardingRestrictions, budget: Budget
) -> Iterator[OtherSharding]:
    """Search each variant of the question in the remaining time, and yield the best sharding of each that
    fits."""
    anywhere = replace(restrictions, fixed=tuple(replace(word, at=()) for word in restrictions.fixed))
    for words, trouble, other_question in _other_questions(question):
        budget.tell(f"searching with {words}")
        limits = restrictions if other_question.cluster.num_gpus == question.cluster.num_gpus else anywhere
        try:
            answer = best_sharding(other_question, budget, limits, OTHER_SECONDS)
        except InfeasibleError:
            continue
        if answer is not None:
            priced = estimate(other_question, answer.sharding)
            yield OtherSharding(words, trouble, priced, proven=answer.certificate.gap <= 0)


def _other_questions(question: RecommenderQuestion) -> Iterator[tuple[str, str, RecommenderQuestion]]:
    """Yield variants of the question as (change in words, kind of change, question), with other precision,
    GPUs, hosts, links or memory."""
    training, cluster, gpu = question.training, question.cluster, question.cluster.gpu
    trained, clustered = (partial(question.updated, part) for part in ("training", "cluster"))
    if training.precision in FULL and "bf16" in gpu.peak:
        yield "--precision bf16", "other numerics", trained(precision="bf16")
    elif training.exchange_bytes > 2:
        yield "`exchange_dtype: fp16`", "other numerics", trained(exchange_dtype="fp16")
    if training.table_bytes > 2:
        yield "`table_dtype: fp16`", "other numerics", trained(table_dtype="fp16")
    if gpu.kind == "cpu":
        return
    doubled, on_nodes = 2 * cluster.num_gpus, on_whole_nodes(question)
    if possible(doubled, on_nodes.cluster) and not training.global_batch % doubled:
        yield f"--gpus {doubled}", "other GPUs", resized(on_nodes, doubled)
    if cluster.host_memory and not is_own_host(cluster):
        yield "twice the host memory", "other hosts", clustered(host_memory=2 * cluster.host_memory)
    if cluster.gpus_per_node > 1:
        faster = cluster.links.faster(intra_node=2.0)
        yield "twice the bandwidth of a node", "other links", clustered(links=faster)
    if cluster.nodes > 1:
        faster = cluster.links.faster(inter_node=2.0)
        yield "twice the bandwidth of the network", "other links", clustered(links=faster)
    larger = gpu.model_copy(update={"memory": _MORE_MEMORY * gpu.memory})
    words = f"{100 * (_MORE_MEMORY - 1):.0f} % more device memory"
    yield words, "other GPUs", clustered(gpu=larger)
    faster_gpu = gpu.model_copy(update={"memory_bandwidth": 2 * gpu.memory_bandwidth})
    yield "twice the memory bandwidth", "other GPUs", clustered(gpu=faster_gpu)
