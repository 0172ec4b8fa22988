"""Published runs of recommenders, as questions with measurements, and predictions for them.

MLPerf         DLRM-DCNv2 with HugeCTR; the sharding is that of HugeCTR's planner for NVIDIA's configurations
SOK            DLRM with SparseOperationKit: rows of all tables over all GPUs; `compress` asks for a row once
Wide & Deep    HugeCTR 2.2, whose vocabulary is that of every GPU, and OneFlow 0.2, whose is that of all GPUs;
               blank layers: 7 where the vocabulary grows, else 2 (DLPerf's descriptions of its tests)

MLPerf's clock runs through evaluations: 89.1 M samples after every twentieth of an epoch of 4195 M, forward only. Each
sample trained brings 0.425 evaluated ones, at the forward part of a step: lookup, forward exchange, dense network.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cost_models.arrays import group_by
from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.files import catalog, data_files, read_data
from cost_models.measured.runs.rows import parse_table, read_table
from cost_models.measured.validation.scores import relative_error
from cost_models.recommender.dense import dense_seconds
from cost_models.recommender.options import STAGES
from cost_models.recommender.prices import RecommenderEstimate, estimate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Sharding, parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining

_COLUMNS = ("row_id", "source_cite", "model", "framework", "gpu", "num_gpus", "global_batch", "step_time_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderRun:
    """Published training run of a recommender model, with its question, sharding and measurements."""

    row: str
    framework: str
    question: RecommenderQuestion
    sharding: Sharding
    seconds: float | None
    """Measured seconds of a step; of MLPerf with its evaluations."""
    training_seconds: float | None
    """Measured seconds of a step without evaluations, where they were timed separately."""
    memory_bytes: float | None
    """Bytes of the first GPU's memory in use."""
    out_of_memory: bool


def read_runs(path: Path | None = None) -> tuple[RecommenderRun, ...]:
    """Read recommender runs from a CSV table with the columns of the shipped table, which is the default.
    Raises InputError."""
    (shipped,) = data_files("published_recommenders", ".csv")
    text, place = read_table(path) if path else shipped.read_text("utf-8"), str(path or shipped.name)
    _, rows = parse_table(text, place=place, needed=_COLUMNS, hint="the shipped table shows them all")
    return tuple(_run(cells, place) for _, cells in rows)


def _run(row: Mapping[str, str], place: str) -> RecommenderRun:
    """Convert a row of the table of recommender runs into a run. Raises InputError for an unknown GPU or
    invalid cell."""
    try:
        framework = row["framework"]
        if "DCNv2" in row["model"]:
            framework, (question, sharding) = "MLPerf HugeCTR", _mlperf(row)
        elif "SparseOperationKit" in framework:
            framework, (question, sharding) = "SparseOperationKit", _sok(row)
        elif row["model"].startswith("Wide"):
            question, sharding = _wide_and_deep(row)
        else:
            raise ValueError(f"nobody says how `{framework}` shards `{row['model']}`")
        columns = ("step_time_s", "step_time_ex_eval_s", "peak_memory_mb")
        seconds, training_seconds, megabytes = (float(row[it]) if row.get(it) else None for it in columns)
        return RecommenderRun(
            row=row["row_id"],
            framework=framework,
            question=question,
            sharding=parse_sharding(sharding, question.model.num_tables),
            seconds=seconds,
            training_seconds=training_seconds,
            memory_bytes=megabytes and megabytes * 2**20,
            out_of_memory=row.get("oom") == "1",
        )
    except (KeyError, ValueError) as error:
        unknown = f"nothing is known of {error}" if isinstance(error, KeyError) else printable(str(error))
        raise InputError(f"{place}: {row['row_id']}: {unknown}") from None


def _mlperf(row: Mapping[str, str]) -> tuple[RecommenderQuestion, str]:
    """Question and sharding of a row with MLPerf's DLRM-DCNv2 on HugeCTR."""
    shardings = {int(key): text for key, text in read_data("published_recommenders/shardings").items()}
    nodes = max(1, int(row["num_gpus"]) // 8)
    facts = {"precision": "fp16", "optimizer": "adagrad", "dense_optimizer": "adagrad"}
    return _question(row, "dlrm-dcnv2", _GPUS[row["gpu"]], nodes, 8, "hugectr", **facts), shardings[nodes]


def _sok(row: Mapping[str, str]) -> tuple[RecommenderQuestion, str]:
    """Question and sharding of a row with DLRM on SparseOperationKit."""
    types = {"precision": "fp16" if "amp" in row.get("precision", "") else "fp32", "exchange_dtype": "fp32"}
    question = _question(row, "dlrm", _GPUS[row["gpu"]], 1, 8, "sok", **types)
    facts: dict[str, Any] = {"unique_ids": "compress yes" in row.get("notes", "")}
    if "(custom interact op)" not in row["source_cite"]:
        facts["interaction_passes"] = question.facts.interaction_passes + _PLAIN_INTERACTION
    return question.updated("stack", recommender=question.facts.model_copy(update=facts)), "table:0-25=row"


_PLAIN_INTERACTION = 28.0
"""Times more that TensorFlow's own operators read and write what enters the interaction: fitted to eight runs."""


def _wide_and_deep(row: Mapping[str, str]) -> tuple[RecommenderQuestion, str]:
    """Question and sharding of a row with Wide & Deep on HugeCTR 2.2 or OneFlow."""
    gpus, rows, hugectr = int(row["num_gpus"]), int(row["vocab_rows_total"]), "HugeCTR" in row["framework"]
    layers = int(row.get("mlp_hidden_layers") or (7 if rows >= 3_200_000 else 2))
    gpus_per_node = min(gpus, int(row["gpus_per_node"]))
    nodes, stack = gpus // gpus_per_node, "hugectr-2020" if hugectr else "oneflow"
    facts = {"precision": "fp32", "optimizer": "adam", "dense_optimizer": "adam"}
    question = _question(row, "wide-deep-2x1024", "dgx-v100-16gb", nodes, gpus_per_node, stack, **facts)
    changed = {"rows": rows * gpus if hugectr else rows, "hashed": hugectr}
    wide = tuple(table.model_copy(update=changed) for table in question.model.wide)
    changed["width"] = int(row["embedding_dim"])
    tables = tuple(table.model_copy(update=changed) for table in question.model.tables)
    question = question.updated("model", tables=tables, wide=wide, top_mlp=(1024,) * layers + (1,))
    if not hugectr and "README" in row["source_cite"]:
        question = question.updated("stack", recommender=question.facts.model_copy(update=_README_MEMORY))
    links = question.cluster.links  # one 100 Gb/s adapter a node, that all its GPUs share
    assert links.inter_node is not None
    network = links.inter_node.model_copy(update={"bandwidth": 12.5e9 / gpus_per_node})
    question = question.updated("cluster", rails=1, links=links.with_inter_node(network))
    return question, "table:0-1=row" if gpus > 1 else "table:0-1=whole@0,0"


_README_MEMORY = {"table_element_bytes": 4.0, "communicator_bytes": 0.95e9}
"""Memory of OneFlow's README runs beyond the later report's runs: 16 B an element of a table in place of 12 while the
vocabulary doubles, and as much on each of several GPUs. Nobody says why; fitted to them."""

_GPUS = {"H100-SXM-80GB": "dgx-h100", "H200-SXM-141GB": "hgx-h200", "A100-SXM-80GB": "dgx-a100-80gb"}
_GPUS |= {"V100-SXM2-32GB": "dgx-v100"}
"""Catalogue cluster of each GPU as tables name it."""


def _question(
    row: Mapping[str, str], model: str, cluster: str, nodes: int, gpus: int, stack: str, **training: Any
) -> RecommenderQuestion:
    """Question of a row on `nodes` nodes of `gpus` GPUs, with the row's batch and the training fields
    `training`."""
    spec, hardware = catalog.load_recommender(model), catalog.load_profile("datasheet-gpu")
    sized = catalog.load_cluster(cluster).model_copy(update={"nodes": nodes, "gpus_per_node": gpus})
    job = RecommenderTraining(global_batch=int(row["global_batch"]), **training)
    embedding = catalog.embedding_profile_of(sized.gpu.name)
    return RecommenderQuestion(spec, sized, job, catalog.load_stack(stack), hardware, embedding)


EVALUATED = 89_137_319 / (4_195_197_692 / 20)
"""Number of samples evaluated per training sample in MLPerf (HugeCTR 25.03, samples/dlrm/train.py)."""


class RecommenderPrediction(NamedTuple):
    """Published recommender run with its estimate and predicted step seconds."""

    run: RecommenderRun
    estimate: RecommenderEstimate
    seconds: float
    """Predicted seconds of a step, with MLPerf's evaluations."""

    @property
    def error(self) -> float | None:
        """Relative error of the predicted step time with evaluations; None if it was not measured."""
        return relative_error(self.seconds, self.run.seconds)

    @property
    def memory_error(self) -> float | None:
        """Relative error of the predicted memory of the first GPU; None if it was not measured."""
        return relative_error(float(self.estimate.device_bytes[0]), self.run.memory_bytes)

    @property
    def exchange_share(self) -> float:
        """Share of the predicted step spent on exchanging table vectors and gradients between GPUs."""
        parts = self.estimate.stages
        return (parts[STAGES.forward_exchange] + parts[STAGES.backward_exchange]) / parts.total


@dataclass(frozen=True, slots=True)
class RecommenderScore:
    """Errors of step time and memory over the recommender runs of one framework on one GPU."""

    framework: str
    gpu: str
    runs: int
    median_error: float
    worst_error: float
    median_memory_error: float | None
    out_of_memory: tuple[int, int]
    """Number of runs out of memory, and number of these that were predicted to be."""


def predict(run: RecommenderRun) -> RecommenderPrediction:
    """Predict the step time and memory of one recommender run, including evaluations if the measured time
    includes them."""
    priced = estimate(run.question, run.sharding)
    seconds = priced.step_seconds
    if run.training_seconds is not None:
        forward = priced.stages[STAGES.lookup] + priced.stages[STAGES.forward_exchange]
        seconds += EVALUATED * (forward + dense_seconds(run.question).forward)
    return RecommenderPrediction(run=run, estimate=priced, seconds=seconds)


def scores(predictions: Iterable[RecommenderPrediction]) -> tuple[RecommenderScore, ...]:
    """Errors of recommender predictions for each framework and GPU."""
    groups = group_by(predictions, lambda one: (one.run.framework, one.run.question.cluster.gpu.name))
    scored = []
    for (framework, gpu), group in groups.items():
        times = [abs(one.error) for one in group if one.error is not None]
        memory = [abs(one.memory_error) for one in group if one.memory_error is not None]
        full = [one for one in group if one.run.out_of_memory]
        caught = len(full), sum(not one.estimate.fits for one in full)
        median, worst = statistics.median(times) if times else 0.0, max(times, default=0.0)
        memory_error = statistics.median(memory) if memory else None
        scored.append(RecommenderScore(framework, gpu, len(times), median, worst, memory_error, caught))
    return tuple(scored)
