"""Records of predicted layouts: objects of `--json` (schema 1), and flat rows of `--csv` and data frames."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from cost_models.axes.layout import AXES, Layout
from cost_models.axes.offload.channels import host_windows
from cost_models.axes.words import Number
from cost_models.estimate import Breakdown, Estimate
from cost_models.pipeline.pricing import crossing
from cost_models.question import Question
from cost_models.risk import least_chance
from cost_models.specs.training import changes_of, sequences_of
from meshwright.records import fields_of, present

if TYPE_CHECKING:
    from planner.explain.reasons import CompletedLayout

_RATES = ("mfu", "hfu", "causal_mfu", "tokens_per_second")
_FITTING = ("microbatches", "peak_bytes", "memory_limit", "fits", "fits_probability", "verdict", "bound_by")
_TRUST = ("tier", "profile", "error", "runs", "elsewhere", "borrowed", "unseen_error", "memory_error")


def estimate_record(estimate: Estimate, question: Question | None = None) -> dict[str, Any]:
    """JSON object of a predicted layout: seconds, bytes, shares; memory by pipeline rank, and pools if there are
    several."""
    pools = pool_records(question, estimate) if question is not None else []
    windows = None if question is None else host_windows(question, estimate)
    crossed: dict[str, Any] = {}
    if question is not None and (traffic := crossing(question, estimate)) is not None:
        axes = [fields_of(use, "axis", "share", "gpu_bytes") for use in traffic.uses]
        level = {"leaves": traffic.inside, "level": traffic.level.name, "bandwidth": traffic.level.bandwidth}
        crossed = {**level, "axes": axes, "stay": list(traffic.stay)}
    return {
        "layout": str(estimate.layout),
        **fields_of(estimate, "step_seconds", "weighed_seconds", *_RATES),
        "tokens_per_second_per_gpu": estimate.tokens_per_second / estimate.layout.num_gpus,
        **present(answers_per_second=estimate.answers_per_second),
        **fields_of(estimate, *_FITTING),
        "warnings": list(estimate.warnings),
        "parts": dict(estimate.time),
        "hidden_comm": dict(estimate.hidden_comm),
        "fullest_rank": estimate.fullest_rank,
        "memory": [dict(rank) for rank in estimate.rank_memory],
        "trust": fields_of(estimate.trust, *_TRUST),
        **_host(estimate),
        **present(host_channels=windows and windows._asdict(), pools=pools),
        **present(crossing=crossed),
    }


def _host(estimate: Estimate) -> dict[str, Any]:
    """Bytes used in each host's memory and on its drive, with their limits; empty without offload."""
    tiers = {"host": bool(estimate.host_bytes), "drive": bool(estimate.layout.offload.drive)}
    used = [f"{tier}_{field}" for tier, is_used in tiers.items() if is_used for field in ("bytes", "limit")]
    return fields_of(estimate, *used)


def estimate_row(estimate: Estimate) -> dict[str, Any]:
    """Flat CSV row of a predicted layout; its memory parts are those of the fullest pipeline rank."""
    return {
        "layout": str(estimate.layout),
        **layout_cells(estimate.layout),
        **fields_of(estimate, "step_seconds", *_RATES, *_FITTING),
        **_host(estimate),
        **{f"{part}_seconds": seconds for part, seconds in estimate.time.items()},
        **{f"{part}_bytes": size for part, size in estimate.rank_memory[estimate.fullest_rank].items()},
    }


def layout_cells(layout: Layout) -> dict[str, int]:
    """Numeric axes of a layout (tp, pp, ...) and their values: columns to sort and group by."""
    return {name: int(layout.resolve(name)) for name, word in AXES.items() if isinstance(word, Number)}


def question_record(question: Question) -> dict[str, Any]:
    """JSON object of a question: names of model, cluster and stack, and the training job; `pools` if there are
    several."""
    mixed, training, run = question.has_pools, question.training, question.measured
    tuning, lengths, documents = training.tuning, training.lengths, dict[str, Any]()
    if lengths is not None:
        documents = lengths.model_dump(mode="json", exclude={"documents"})
        documents["mean_tokens"] = sequences_of(lengths, training.sequence_length).mean
        documents["counted_share"] = training.tokens_counted / training.sequence_length
    adapters = tuning and tuning.model_dump(mode="json") | {"task": tuning.task}
    pools = [{"name": pool.cluster.name, **_pool(pool)} for pool in (question.pools if mixed else ())]
    return {
        "model": question.model.name,
        "cluster": question.cluster.name,
        "gpu": None if mixed else question.cluster.gpu.name,
        "gpus": question.cluster.num_gpus,
        **fields_of(training, "global_batch", "sequence_length"),
        **present(**fields_of(training, "target_length", "images"), freeze=list(training.freeze)),
        "precision": training.precision,
        "dropout": question.dropout,
        "optimizer": training.optimizer,
        **present(optimizer_in_backward=training.optimizer_in_backward, tuning=adapters),
        **present(reference=training.reference, reward=training.reward, lengths=documents),
        **present(answers=training.answers),
        **present(measured=run and {"layout": run.layout, "step_seconds": run.seconds}),
        "changed": list(changes_of(question.model, training)),
        "stack": question.stack.name,
        "confidence": least_chance(question.confidence),
        "profile": None if mixed else question.hardware.name,
        **present(pools=pools),
    }


def pool_records(question: Question, estimate: Estimate) -> list[dict[str, Any]]:
    """JSON objects of an estimate's GPU pools in pipeline order (in cluster order if each pool holds whole replicas);
    empty with one kind of GPU.

    Bytes are those of the pool's fullest rank.
    """
    if not question.has_pools:
        return []
    by_name = dict(zip(question.pool_names, question.pools, strict=True))
    layout = estimate.layout
    records = [
        {
            "pool": replicas.pool,
            **_pool(by_name[replicas.pool]),
            "replicas": len(replicas.microbatches),
            "microbatches": list(replicas.microbatches),
            "step_seconds": replicas.step_seconds,
            "blocks": list(layout.layers),
            "recompute": list(layout.stage_recompute),
            **fields_of(replicas, "peak_bytes", "memory_limit"),
        }
        for replicas in estimate.replicas
    ]
    stages = () if records else range(len(layout.pools))
    for name, run in groupby(stages, key=layout.pools.__getitem__):
        ranks = list(run)
        records.append(
            {
                "pool": name,
                **_pool(by_name[name]),
                "ranks": ranks,
                "blocks": [layout.layers[rank] for rank in ranks],
                "recompute": [layout.stage_recompute[rank] for rank in ranks],
                "peak_bytes": max(estimate.rank_memory[rank].total for rank in ranks),
                "memory_limit": estimate.rank_limits[ranks[0]],
            }
        )
    return records


def _pool(pool: Question) -> dict[str, Any]:
    """GPU name, GPU count and hardware profile of a pool."""
    return {"gpu": pool.cluster.gpu.name, "gpus": pool.cluster.num_gpus, "profile": pool.hardware.name}


def completed_record(completed: CompletedLayout | None) -> dict[str, Any]:
    """JSON fields on a layout that a search completed: full layout, axes filled in, proved gap; null or empty if none
    was completed."""
    certificate = None if completed is None else completed.certificate
    return {
        "read_as": None if completed is None else str(completed.estimate.layout),
        "filled_in": [] if completed is None else list(completed.filled),
        "filled_in_gap": None if certificate is None else certificate.gap,
    }


def breakdown_rows(title: str, breakdown: Breakdown) -> list[dict[str, Any]]:
    """CSV rows of a breakdown: columns `what` (the title), `part` and `value`; the last row is the total."""
    values = {**breakdown, "total": breakdown.total}
    return [{"what": title, "part": part, "value": value} for part, value in values.items()]
