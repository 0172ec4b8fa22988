"""Brute force over small questions: every layout of an enumerator, every placement priced from the stage costs.

Nothing here comes from the search's space, bounds or prices. Step times and peaks follow the
formulas at the top of `cost_models.pipeline.stage_costs`; placements are `synthetic.every_placement`.

Shape legend: N layouts of one pipeline, K placements, S virtual stages, R ranks, P policies.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np
from synthetic import POLICIES, every_placement, random_costs

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload.residency import host_bytes
from cost_models.axes.stages import allowed_recompute
from cost_models.axes.words import EVERY
from cost_models.memory.device import usable_host_memory
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts, stage_costs
from cost_models.question import Question
from cost_models.schedules.actions import peak_moments
from cost_models.schedules.registry import SPLIT_BACKWARD, build, schedule_named
from cost_models.schedules.timeline import compile_timeline
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES
from cost_models.specs.kinds import Kinds
from planner.placement.leaf import Leaf
from planner.search.enumeration import covered_layouts
from planner.space.axes import divisors
from planner.space.restrictions import parse_restrictions

AXES = tuple(field.name for field in fields(LayoutColumns))
EVERY_POLICY = (1 << POLICIES) - 1
ONLY_COUNTED = 1 << POLICIES
"""A placement that is covered only where a trainer counts the blocks that it recomputes in full."""
COUNTED = 0b101 | ONLY_COUNTED
ORDERED = (
    "tp",
    "pp",
    "cp",
    "dp",
    "schedule",
    "vpp",
    "ep",
    "etp",
    "mbs",
    "zero",
    "shard",
    "sp",
    "order",
    "context",
)


def every_layout(question: Question, *, offload: bool = False) -> LayoutColumns:
    """What an enumerator that shares nothing with the search's space lists, with every split of experts, and with
    `offload` every count of blocks whose states leave the device; in order."""
    splits = ",".join(map(str, divisors(question.cluster.num_gpus)))
    away = [f"offload_drive=0,{EVERY}"] if offload else []
    limits = parse_restrictions([f"etp={splits}", *away], allow=["offload"] if offload else ())
    anything = question.training.model_copy(update={"recompute": RECOMPUTE_POLICIES})
    rows = covered_layouts(replace(question, training=question.training if offload else anything), limits)
    return rows.rows(np.lexsort([getattr(rows, axis) for axis in reversed(ORDERED)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Every placement of one layout: (K,) each."""

    seconds: np.ndarray
    peak: np.ndarray
    policies: np.ndarray
    """Those it uses, as bits, and `ONLY_COUNTED`."""
    counted: np.ndarray
    """Whether every stage recomputes as many of its first blocks in full, and nothing else."""
    limit: float
    """Bytes the device allows."""
    kind: int
    """The same for layouts that cost the same in all else: they stand for one another."""

    def within(self, allowed: int) -> np.ndarray:
        """(K,): which use no policies but these."""
        within: np.ndarray = (self.policies & ~allowed) == 0
        return within & self.counted if allowed == COUNTED else within


def settings_of(policies: int, alike: bool, counts: bool) -> list[int]:
    """What is searched by itself: all policies or, where stages must be alike, each but for what is counted."""
    if not alike:
        return [policies]
    alone = [1 << bit for bit in range(POLICIES) if policies >> bit & 1]
    both = EVERY_POLICY & COUNTED
    return (
        [COUNTED, *(one for one in alone if not one & both)] if counts and policies & both == both else alone
    )


@dataclass(frozen=True, kw_only=True)
class Everything:
    """All layouts of a question with all their placements."""

    question: Question
    columns: LayoutColumns
    placed: list[Placed]

    def __len__(self) -> int:
        return len(self.columns)

    def best(
        self, rows: np.ndarray, policies: int, max_memory: float, *, alike: bool = False, counts: bool = False
    ) -> tuple[list[float], int]:
        """Sorted least seconds of the layouts that fit, under those policies, and how many have policies at all.

        Layouts that cost the same are told once. Where stages must be `alike`, all have the same policy; where their
        trainer `counts` the blocks in full, full and none go together.
        """
        found: dict[tuple[int, float], float] = {}
        covered = 0
        for row in rows.tolist():
            own = self.placed[row]
            limit = min(own.limit, max_memory)
            within = np.any([own.within(one) for one in settings_of(policies, alike, counts)], axis=0)
            covered += bool(within.any())
            within &= own.peak <= limit
            if within.any():
                found[own.kind, limit] = float(own.seconds[within].min())
        return sorted(found.values()), covered


def everything(
    question: Question, *, offload: bool = False, columns: LayoutColumns | None = None
) -> Everything:
    """Price the whole space of a small question, or the layouts given."""
    if columns is None:
        columns = every_layout(question, offload=offload)
    costs = stage_costs(question, columns)
    m = columns.microbatches(question.training.global_batch)
    placed: dict[int, Placed] = {}
    shapes: dict[tuple[int, ...], list[int]] = {}
    fewest = offloaded_by_number(columns)
    for row, shape in enumerate(zip(columns.schedule, columns.pp, columns.vpp, m, fewest, strict=True)):
        shapes.setdefault(tuple(int(value) for value in shape), []).append(row)
    for (schedule, pp, vpp, microbatches, least), own in shapes.items():
        named = [policy in question.training.recompute for policy in RECOMPUTE_POLICIES]
        runs = [policy in allowed_recompute(SCHEDULES[schedule]) for policy in RECOMPUTE_POLICIES]
        allowed = tuple(one and other for one, other in zip(named, runs, strict=True))
        if not any(allowed):
            allowed = tuple(runs)  # of no use to anybody: whoever asks allows other policies
        pipeline = (SCHEDULES[schedule], pp, vpp, microbatches)
        blocks_KSP = _placements(SCHEDULES[schedule], pp, vpp, question.model.num_layers, allowed)
        blocks_KSP = with_at_least(blocks_KSP, SCHEDULES[schedule], pp, vpp, least)
        sorts_KSP = by_sort(blocks_KSP, question.kinds.of_block)
        found = price_placements(pipeline, costs.rows(np.array(own)).in_sorts, sorts_KSP)
        usual, counting = _coverage(SCHEDULES[schedule], pp, vpp, question.model.num_layers, allowed)
        counted = _are_among(blocks_KSP, counting)
        unusual = ONLY_COUNTED * ~_are_among(blocks_KSP, [usual])
        told = [replace(one, policies=one.policies | unusual, counted=counted) for one in found]
        placed |= dict(zip(own, told, strict=True))
    held = [_held(question, columns, row, placed[row]) for row in range(len(columns))]
    return Everything(question=question, columns=columns, placed=held)


def _held(question: Question, columns: LayoutColumns, row: int, placed: Placed) -> Placed:
    """The placements of a layout; those whose activations its hosts do not hold fit nowhere."""
    own, peak = columns.rows(np.array([row])), placed.peak.copy()
    for policy, name in enumerate(RECOMPUTE_POLICIES if own.offload_activations[0] else ()):
        if host_bytes(question, own, (name,))[0] > usable_host_memory(question.cluster):
            peak[(placed.policies >> policy & 1).astype(bool)] = np.inf
    return replace(placed, peak=peak)


def offloaded_by_number(columns: LayoutColumns) -> np.ndarray:
    """(N,): blocks of every rank that counts move away."""
    away = [getattr(columns, f"offload_{part}") for part in ("states", "parked", "streamed")]
    return np.sum([np.where(own < EVERY, own, 0) for own in away], axis=0)


def with_at_least(blocks_KSP: np.ndarray, schedule: str, pp: int, vpp: int, least: int) -> np.ndarray:
    """Placements in which every rank has so many blocks."""
    rank_of_S = schedule_named(schedule).rank_of_stage(pp, vpp)
    ranks = [blocks_KSP[:, rank_of_S == rank].sum(axis=(1, 2)) for rank in range(pp)]
    return blocks_KSP[np.min(ranks, axis=0) >= least]


@cache
def _placements(schedule: str, pp: int, vpp: int, blocks: int, allowed: tuple[bool, ...]) -> np.ndarray:
    """(K, S, P): all that the search covers."""
    usual, counting = _coverage(schedule, pp, vpp, blocks, allowed)
    return np.unique(np.concatenate([usual, *counting]), axis=0)


@cache
def _coverage(
    schedule: str, pp: int, vpp: int, blocks: int, allowed: tuple[bool, ...]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """(K, S, P) each: what the search covers, and what of a trainer that counts the blocks in full, where it may."""
    leaf = Leaf(
        costs=random_costs(np.random.default_rng(0)),
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        microbatches=2 * pp,
        kinds=Kinds((0,) * blocks),
        allowed=np.array(allowed),
    )
    own = replace(leaf, uses_full_counts=True, allowed=np.array([True, False, True]))
    return every_placement(leaf), [every_placement(own)] if allowed[0] and allowed[2] else []


def _are_among(blocks_KSP: np.ndarray, others: list[np.ndarray]) -> np.ndarray:
    """(K,): which placements are among some others."""
    known = {one.tobytes() for own in others for one in own.astype(np.int64)}
    return np.array([one.tobytes() in known for one in blocks_KSP.astype(np.int64)], dtype=np.bool_)


def price_placements(
    pipeline: tuple[str, int, int, int], costs: StageCosts, blocks_KSP: np.ndarray
) -> list[Placed]:
    """Step time and peak of N layouts of one pipeline in K placements each."""
    schedule, pp, vpp, _ = pipeline
    # (N, 1) or (N, 1, P) each
    x = {name: getattr(costs, name)[:, None] for name in COLUMNS}
    stages, rank_of_S = pp * vpp, schedule_named(schedule).rank_of_stage(pp, vpp)
    first_S, last_S = np.arange(stages) == 0, np.arange(stages) == stages - 1
    first_R, last_R = (np.arange(pp) == rank_of_S[0]), (np.arange(pp) == rank_of_S[-1])

    def per_stage(fixed: str, block: str, embedding: str, head: str) -> np.ndarray:
        """(N, K, S)"""
        return (
            x[fixed][..., None]
            + _counted(x[block], blocks_KSP)
            + x[embedding][..., None] * first_S
            + x[head][..., None] * last_S
        )

    def per_rank(fixed: str, block: str, embedding: str, head: str) -> np.ndarray:
        """(N, K, R)"""
        ends = x[embedding][..., None] * first_R + x[head][..., None] * last_R
        own_NKS = _counted(x[block], blocks_KSP)
        own = np.stack([own_NKS[..., rank_of_S == rank].sum(axis=-1) for rank in range(pp)], axis=-1)
        return x[fixed][..., None] + own + ends

    table = build(*pipeline)
    forward = per_stage("stage_forward", "layer_forward", "embedding_forward", "head_forward")
    backward = per_stage("stage_backward", "layer_backward", "embedding_backward", "head_backward")
    weight = np.zeros(stages)
    if schedule in SPLIT_BACKWARD:
        whole = backward
        weight = x["stage_weight"][..., None] + _counted(x["layer_weight"], blocks_KSP)
        weight = weight + x["head_weight"][..., None] * last_S
        backward = whole + x["stage_weight"][..., None] - weight
        backward[..., 0] = x["stage_backward"]
        weight[..., 0] = whole[..., 0] + x["stage_weight"] - x["stage_backward"]
    delay_NK = np.broadcast_to(x["p2p"], forward.shape[:2])
    ends = compile_timeline(table).rank_ends(forward, backward, delay_NK, weight)
    sync = per_rank("rank_sync", "layer_sync", "embedding_sync", "head_sync")
    update = per_rank("rank_optimizer", "layer_optimizer", "embedding_optimizer", "head_optimizer")
    seconds = (ends + sync).max(axis=-1) + update.max(axis=-1) + x["step_overhead"]
    peak, kind = _peaks(x, table, blocks_KSP, rank_of_S), _kinds(pipeline, costs)
    by_policy = blocks_KSP.sum(axis=1).reshape(len(blocks_KSP), -1, POLICIES).sum(axis=1)
    used = ((by_policy > 0) << np.arange(POLICIES)).sum(axis=1)
    return [
        Placed(
            seconds=seconds[row],
            peak=peak[row],
            policies=used,
            counted=np.zeros(len(used), dtype=np.bool_),
            limit=float(costs.memory_limit[row]),
            kind=kind[row],
        )
        for row in range(len(costs))
    ]


def _kinds(pipeline: tuple[str, int, int, int], costs: StageCosts) -> list[int]:
    """A number for all that is equal but the limit of memory."""
    names = [name for name in COLUMNS if name != "memory_limit"]
    table = np.concatenate([getattr(costs, name).reshape(len(costs), -1) for name in names], axis=1)
    return [hash((pipeline, row.tobytes())) for row in table]


def _mixed(each_N1P: np.ndarray, blocks_KSP: np.ndarray) -> np.ndarray:
    """(N, K, S): a cost of each policy, summed over the blocks."""
    return np.einsum("np,ksp->nks", each_N1P[:, 0], blocks_KSP)


def _counted(each: np.ndarray, blocks_KSP: np.ndarray) -> np.ndarray:
    """(N, K, S): a cost of each block, (N, 1), or of each policy or sort, summed over the blocks."""
    return each[..., None] * blocks_KSP.sum(axis=-1) if each.ndim == 2 else _mixed(each, blocks_KSP)


def by_sort(blocks_KSP: np.ndarray, of_block: tuple[int, ...]) -> np.ndarray:
    """(K, S, kinds x P): the same placements with blocks of each kind under each policy, block by block: a stage has
    the next ones of the model, and those that recompute most come first."""
    kinds = max(of_block) + 1
    if kinds == 1:
        return blocks_KSP
    sorts = np.zeros((*blocks_KSP.shape[:2], kinds * POLICIES), dtype=np.int64)
    for own, stages in zip(sorts, blocks_KSP.tolist(), strict=True):
        kind = iter(of_block)
        for stage, counts in zip(own, stages, strict=True):
            for policy in reversed(range(POLICIES)):
                for _ in range(counts[policy]):
                    stage[next(kind) * POLICIES + policy] += 1
    return sorts


def _peaks(
    x: dict[str, np.ndarray], table: object, blocks_KSP: np.ndarray, rank_of_S: np.ndarray
) -> np.ndarray:
    """(N, K): bytes of the fullest rank."""
    live, pending = peak_moments(table)
    stages = len(rank_of_S)
    kept = _mixed(x["layer_activation"], blocks_KSP)
    waits = _counted(x["layer_pending"], blocks_KSP) * (np.arange(stages) > 0)
    kept[..., 0] += x["embedding_activation"]
    kept[..., -1] += x["head_activation"]
    waits[..., -1] += x["head_pending"]
    used_KSP = blocks_KSP > 0
    working = np.max(x["working"][:, :, None] * used_KSP, axis=-1)
    peaks = []
    for rank in range(len(live)):
        own = np.flatnonzero(rank_of_S == rank)
        held_NK, update_NK = (
            _counted(x[name], blocks_KSP)[..., own].sum(axis=-1) for name in ("layer_static", "layer_update")
        )
        ends = {"embedding": 0 in own, "head": stages - 1 in own}
        static = x["static"] + held_NK
        update = x["rank_update"] + update_NK
        moment = working[..., own].max(axis=-1)
        for end, here in ends.items():
            if here:
                static, update = static + x[f"{end}_static"], update + x[f"{end}_update"]
        if ends["head"]:
            moment = np.maximum(moment, x["head_moment"])
        held = np.einsum("mc,nkc->nkm", live[rank], kept[..., own])
        held = (held + np.einsum("mc,nkc->nkm", pending[rank], waits[..., own])).max(axis=-1)
        peaks.append(static + np.maximum(held + moment, update))
    return np.max(peaks, axis=0)
