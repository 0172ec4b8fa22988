"""Text and JSON of a recommender's sharding: where tables lie, stages of a step, memory, and proof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cost_models.memory.device import is_own_host
from cost_models.recommender.prices import RecommenderEstimate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Sharding
from cost_models.units import counted, format_bytes, format_count, grouped
from meshwright.records import fields_of
from meshwright.records.shardings import moment_words
from meshwright.render.tables import Table, table, table_of
from meshwright.render.words import Fact, change, in_unit, part_label, percent, size_unit, time_unit, wrapped
from planner.recommender.advice import BindingStage
from planner.recommender.search import ShardingCertificate


def question_record(question: RecommenderQuestion) -> dict[str, Any]:
    """JSON object of a recommender's question: model, cluster, training job, profiles."""
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
    """JSON object of a sharding's price: seconds by stage and GPU, bytes in memory."""
    names = list(priced.stages)
    return {
        **fields_of(priced, "step_seconds", "busiest_sum_seconds", "samples_per_second"),
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
        "peak_bytes": priced.peak_bytes,
        "memory_limit": float(priced.device_memory),
        "host_bytes": [float(size) for size in priced.host_bytes],
        "host_limit": float(priced.host_memory) or None,
        "fits": priced.fits,
    }


def table_rows(question: RecommenderQuestion, sharding: Sharding) -> list[dict[str, Any]]:
    """Row for each embedding table: size, how it is sharded, and on which GPUs."""
    model = question.model
    kinds = [model.classes[place] for place in model.class_of_table]
    rows = zip(model.table_names, kinds, sharding.tables, strict=True)
    return [
        {
            "table": number,
            "name": name,
            **fields_of(kind, "rows", "width", "pooling"),
            "bytes": kind.rows * kind.width * question.training.table_bytes,
            "held_as": str(placed.option),
            "at": list(placed.at),
        }
        for number, (name, kind, placed) in enumerate(rows)
    ]


_MAX_TABLES = 12
"""Largest number of tables named in a row; further tables are only counted."""
_MOST_PARTS = 3
"""Largest number of parts of memory with a column of their own."""
_MOST_GPUS = 16
"""Largest number of GPUs with a row each; of more, the fullest, the emptiest, and those that stages wait for."""


def precise(seconds: float) -> str:
    """Seconds as text with two decimals, "4.28 ms", since recommenders' steps differ in the second decimal."""
    unit = time_unit(seconds)
    return f"{in_unit(seconds, unit)} {unit[0]}"


def question_text(question: RecommenderQuestion, priced: RecommenderEstimate) -> str:
    """Sentences on a recommender's question, and on the measured error of its prices."""
    model, cluster, training = question.model, question.cluster, question.training
    nodes = f" ({counted(cluster.nodes, 'node')})" if cluster.nodes > 1 else ""
    size = model.embedding_parameters * training.table_bytes
    words = (
        f"{model.name} on {grouped(cluster.num_gpus)} x {cluster.gpu.name}{nodes},"
        f" {grouped(training.global_batch)} samples/step ({training.precision}),"
        f" {counted(model.num_tables, 'table')}, {format_bytes(size)} in all ({training.table_dtype},"
        f" {training.optimizer}), limits {format_bytes(priced.device_memory)} a GPU"
    )
    if priced.host_memory and not is_own_host(cluster):
        words += f" and {format_bytes(priced.host_memory)} a host"
    tables = question.embedding
    error = "never compared with a run"
    if tables.median_error is not None:
        error = f"median error {percent(tables.median_error)} over {counted(tables.validated_runs, 'run')}"
    profiles = f"hardware profile {question.hardware.name}, embedding profile {tables.name} ({error})"
    trust = f"stack {question.stack.name}; {profiles}"
    return "\n".join([wrapped(words), wrapped(trust)])


def step_and_memory_text(priced: RecommenderEstimate) -> str:
    """Sentences on step time, samples per second and the busiest GPU, and on memory of the fullest GPU and host."""
    step = wrapped(f"step {precise(priced.step_seconds)}, {_speed_words(priced)}; {_busy_words(priced)}")
    return f"{step}\n{wrapped(f'memory {_memory_words(priced)}')}"


def _speed_words(priced: RecommenderEstimate) -> str:
    """Words on samples per second, and MFU of the dense network."""
    return f"{format_count(priced.samples_per_second)} samples/s; dense network {percent(priced.mfu)} MFU"


def _busy_words(priced: RecommenderEstimate) -> str:
    """Words on the busiest GPU: time at work, and time it waits for others."""
    waits = precise(max(0.0, priced.step_seconds - priced.busiest_sum_seconds))
    return f"the busiest GPU works {precise(priced.busiest_sum_seconds)} and waits {waits} for others"


def sharding_facts(
    question: RecommenderQuestion, priced: RecommenderEstimate, sharding: Sharding, proof: ShardingCertificate
) -> Iterator[Fact]:
    """Facts on a sharding: number and bytes of tables sharded in each way, step, bottleneck, memory, proof, and the
    greedy sharding."""
    groups = _groups(question, sharding).items()
    shares = [f"{counted(len(own), 'table')} `{name}` ({format_bytes(size)})" for name, (own, size) in groups]
    yield Fact(name="shard with", value=", ".join(shares))
    yield Fact(name="step", value=f"{precise(priced.step_seconds)}; {_busy_words(priced)}")
    longest = max(priced.stages, key=lambda stage: priced.stages[stage])
    bound = f"{part_label(longest)}, {percent(priced.stages[longest] / priced.step_seconds)} of the step"
    yield Fact(name="speed", value=f"{_speed_words(priced)}; bound by {bound}")
    yield Fact(name="memory", value=_memory_words(priced))
    yield Fact(name="proof", value=_proof_words(proof).partition(", over ")[0])
    if proof.greedy is not None and proof.value > 0:
        gain = change(proof.value, proof.greedy)
        yield Fact(name="runner-up", value=f"greedy sharding: {precise(proof.greedy)} ({gain})")


def where_table(question: RecommenderQuestion, sharding: Sharding) -> Table:
    """Table with a row for each way of sharding, most bytes first: its embedding tables, bytes and GPUs."""
    groups, names = _groups(question, sharding), question.model.table_names

    def places(numbers: Sequence[int]) -> str:
        """Names of these tables with their GPUs, such as "user@0/1"."""
        shown = [(names[number], sharding.tables[number].at) for number in numbers[:_MAX_TABLES]]
        words = ", ".join(f"{name}@{'/'.join(map(str, at))}" if at else name for name, at in shown)
        return words + f" and {len(numbers) - _MAX_TABLES} more" * (len(numbers) > _MAX_TABLES)

    columns = {
        "held as": list(groups),
        "tables": [str(len(tables)) for tables, _ in groups.values()],
        "size": [format_bytes(size) for _, size in groups.values()],
        "which @ GPU": [places(tables) for tables, _ in groups.values()],
    }
    return table_of(columns, words=("which @ GPU",), names=("held as",))


def _groups(question: RecommenderQuestion, sharding: Sharding) -> dict[str, tuple[list[int], float]]:
    """Numbers of the embedding tables sharded in each way, with their bytes; most bytes first."""
    groups: dict[str, tuple[list[int], float]] = {}
    for row in table_rows(question, sharding):
        numbers, size = groups.get(row["held_as"], ([], 0.0))
        groups[row["held_as"]] = [*numbers, row["table"]], size + row["bytes"]
    return dict(sorted(groups.items(), key=lambda group: -group[1][1]))


def stages_table(priced: RecommenderEstimate) -> Table:
    """Table with a row for each stage of a step: time, the GPU that others wait for, mean busy time, overlapped
    time."""
    unit = time_unit(priced.step_seconds)
    rows = []
    for at, (name, seconds) in enumerate(priced.stages.items()):
        load, hidden = priced.loads[:, at], float(priced.hidden[at])
        waits = "-" if hidden > load.max() or load.max() <= 0 else str(priced.busiest[at])
        time, mean = in_unit(seconds, unit), in_unit(float(load.mean() + priced.fixed[at]), unit)
        share, overlapped = percent(seconds / priced.step_seconds), f"{in_unit(hidden, unit)} {unit[0]}"
        times = f"{time} {unit[0]}", share, waits, f"{mean} {unit[0]}", overlapped if hidden else "-"
        rows.append((part_label(name), *times))
    headers = ("stage", "time", "share", "waits for GPU", "mean of GPUs", "overlapped")
    return table(headers, rows, names=("stage",))


def gpus_table(priced: RecommenderEstimate) -> Table:
    """Table with a row for each GPU: seconds of work on embedding tables, and bytes by part."""
    unit, times = size_unit(priced.peak_bytes), time_unit(priced.step_seconds)
    used = {name: size for name, size in priced.device_parts.items() if size.max() > 0}
    parts = dict(sorted(used.items(), key=lambda part: -float(part[1].max()))[:_MOST_PARTS])
    if len(used) > len(parts):
        parts["rest"] = priced.device_bytes - sum(parts.values())
    sizes, gpus = priced.device_bytes, list(range(len(priced.device_bytes)))
    if len(gpus) > _MOST_GPUS:
        gpus = sorted({int(sizes.argmax()), int(sizes.argmin()), *priced.busiest})
    columns = {
        "GPU": list(map(str, gpus)),
        "tables' work": [f"{in_unit(float(priced.loads[gpu].sum()), times)} {times[0]}" for gpu in gpus],
        "memory": [f"{in_unit(float(sizes[gpu]), unit)} {unit[0]}" for gpu in gpus],
    }
    for name, size in parts.items():
        columns[part_label(name)] = [in_unit(float(size[gpu]), unit) for gpu in gpus]
    return table_of(columns)


def _memory_words(priced: RecommenderEstimate) -> str:
    """Words on bytes of the fullest GPU and host, and whether the sharding fits."""
    size = f"{format_bytes(priced.peak_bytes)} of {format_bytes(priced.device_memory)}"
    words = f"{size} on GPU {priced.fullest}{moment_words(priced.fullest_moment[priced.fullest])}"
    if priced.host_bytes.max() > 0:
        limit = f" of {format_bytes(priced.host_memory)}" if priced.host_memory else ""
        host = format_bytes(float(priced.host_bytes.max()))
        words += f", {host}{limit} on host {int(np.argmax(priced.host_bytes))}"
    return f"{words}; {'fits' if priced.fits else 'does not fit'}"


def proof_text(certificate: ShardingCertificate, *, seconds: bool = True) -> str:
    """Sentence on the proof of a sharding."""
    words = _proof_words(certificate, seconds=seconds)
    return wrapped(f"{words[0].upper()}{words[1:]}")


def _proof_words(certificate: ShardingCertificate, *, seconds: bool = True) -> str:
    """Words on a sharding's proof: "proved optimal under the cost model in 2.10 s: step 4.28 ms, over ..."."""
    measure = "work of the busiest GPU" if certificate.objective == "torchrec" else "step"
    spent = f" in {precise(certificate.seconds)}" if seconds and certificate.seconds else ""
    head = f"within {100 * certificate.gap:.3g} % of the optimum{spent}"
    if certificate.gap <= 0:
        head = f"optimal under the cost model{spent}"
    how = f" (solver {certificate.solver})" * bool(certificate.solver)  # plan files do not say
    bound = f", no less than {precise(certificate.bound)}" * (certificate.gap > 0)
    return f"proved {head}{how}: {measure} {precise(certificate.value)}{bound}, over {certificate.space}"


def binding_table(question: RecommenderQuestion, stages: Sequence[BindingStage]) -> Table:
    """Table of bottlenecks: for each stage the slowest GPU, its largest tables, and the step time if such a table
    were sharded in another way."""
    names = question.model.table_names
    rows = []
    for stage in stages:
        if stage.gpu is None:
            rows.append((stage.stage, "-", "what runs beside the tables", "", "", "", ""))
        for number, part in enumerate(stage.tables):
            head = ("", "") if number else (stage.stage, str(stage.gpu))
            otherwise = "-" if part.otherwise is None else str(part.otherwise.option)
            then = "-" if part.otherwise_seconds is None else precise(part.otherwise_seconds)
            cells = names[part.table], str(part.placement.option), precise(part.seconds), otherwise, then
            rows.append((*head, *cells))
    headers = ("stage", "GPU", "table", "held as", "takes", "else", "step then")
    return table(headers, rows, names=("stage", "table", "held as", "else"), words=("stage", "table"))
