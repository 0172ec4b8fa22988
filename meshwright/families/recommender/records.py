"""Questions and prices of recommenders as JSON has them, in base units."""

from __future__ import annotations

from typing import Any

from cost_models.recommender.prices import RecommenderEstimate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Sharding


def question_record(question: RecommenderQuestion) -> dict[str, Any]:
    """What was asked."""
    model, cluster, training = question.model, question.cluster, question.training
    return {
        "kind": model.kind,
        "model": model.name,
        "tables": model.num_tables,
        "embedding_parameters": model.embedding_parameters,
        "cluster": cluster.name,
        "gpus": cluster.num_gpus,
        "nodes": cluster.nodes,
        "gpu": cluster.gpu.name,
        "training": training.model_dump(mode="json"),
        "stack": question.stack.name,
        "profile": question.hardware.name,
        "embedding_profile": question.embedding.name,
        "embedding_median_error": question.embedding.median_error,
        "embedding_validated_runs": question.embedding.validated_runs,
    }


def estimate_record(priced: RecommenderEstimate) -> dict[str, Any]:
    """A step and what it fills."""
    names = list(priced.stages)
    return {
        "step_seconds": priced.step_seconds,
        "busiest_sum_seconds": priced.busiest_sum_seconds,
        "samples_per_second": priced.samples_per_second,
        "dense_mfu": priced.mfu,
        "stages": [
            {
                "stage": name,
                "seconds": seconds,
                "gpu": priced.busiest[at],
                "mean_seconds": float(priced.loads[:, at].mean() + priced.fixed[at]),
                "beside_seconds": float(priced.hidden[at]),
            }
            for at, (name, seconds) in enumerate(priced.stages.items())
        ],
        "gpus": [
            {
                "gpu": gpu,
                "seconds": dict(zip(names, map(float, priced.loads[gpu]), strict=True)),
                "bytes": float(priced.device_bytes[gpu]),
                "parts": {name: float(size[gpu]) for name, size in priced.device_parts.items()},
                "fullest_moment": priced.fullest_moment[gpu],
                "moments": {name: float(size[gpu]) for name, size in priced.moments.items()},
            }
            for gpu in range(len(priced.device_bytes))
        ],
        "peak_bytes": float(priced.device_bytes.max()),
        "memory_limit": float(priced.device_memory),
        "host_bytes": [float(size) for size in priced.host_bytes],
        "host_limit": float(priced.host_memory) or None,
        "fits": priced.fits,
    }


def table_rows(question: RecommenderQuestion, sharding: Sharding) -> list[dict[str, Any]]:
    """A row for each table: its size, how it is held and where."""
    model = question.model
    rows = []
    for number, (name, placed) in enumerate(zip(model.table_names, sharding.tables, strict=True)):
        one = model.classes[model.class_of_table[number]]
        rows.append(
            {
                "table": number,
                "name": name,
                "rows": one.rows,
                "width": one.width,
                "pooling": one.pooling,
                "bytes": one.rows * one.width * question.training.table_bytes,
                "held_as": str(placed.option),
                "at": list(placed.at),
            }
        )
    return rows
