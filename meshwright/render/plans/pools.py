"""Where a plan lies on a cluster of several pools: their ranks, their blocks and their memory."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from cost_models.estimate import Estimate
from cost_models.question import Question
from cost_models.units import format_seconds, grouped
from meshwright.records.estimates import pool_records
from meshwright.render.tables import Table, table
from meshwright.render.words import in_unit, size_unit

HEADERS = ("pool", "GPUs", "ranks", "blocks each", "recompute", "peak mem")
OF_REPLICAS = ("pool", "GPUs", "replicas", "microbatches each", "step alone", "peak mem")


def gpus_in_words(question: Question) -> str:
    """ "64 x h100-sxm", with several pools all of them."""
    pools = question.by_pool
    return " + ".join(f"{grouped(pool.cluster.num_gpus)} x {pool.cluster.gpu.name}" for pool in pools)


def pools_table(question: Question, estimate: Estimate) -> Table:
    """A table of what each pool holds of the plan."""
    records = pool_records(question, estimate)
    if estimate.replicas:
        return _replicas_table(records)
    unit = size_unit(max(record["memory_limit"] for record in records))
    rows = [
        (
            record["pool"],
            str(record["gpus"]),
            _span(record["ranks"]),
            _runs(record["blocks"]),
            _runs(record["recompute"]),
            _filled(record, unit),
        )
        for record in records
    ]
    return table(HEADERS, rows, names=("pool",), words=("blocks each", "recompute"))


def _replicas_table(records: list[dict[str, Any]]) -> Table:
    """A table of the whole replicas in each pool, and of the microbatches of a step that each takes."""
    unit = size_unit(max(record["memory_limit"] for record in records))
    rows = [
        (
            record["pool"],
            str(record["gpus"]),
            str(record["replicas"]),
            _runs(record["microbatches"]),
            format_seconds(record["step_seconds"]),
            _filled(record, unit),
        )
        for record in records
    ]
    return table(OF_REPLICAS, rows, names=("pool",), words=("microbatches each",))


def _filled(record: dict[str, Any], unit: tuple[str, float]) -> str:
    """ "61.3 of 77.9 GiB"."""
    return f"{in_unit(record['peak_bytes'], unit)} of {in_unit(record['memory_limit'], unit)} {unit[0]}"


def _span(ranks: list[int]) -> str:
    """[4, 5, 6, 7] → "4-7"."""
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def _runs(values: list[Any]) -> str:
    """[30, 28, 28] → "30, 28 x 2"; "28" where all are."""
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    if len(runs) == 1:
        return str(runs[0][0])
    return ", ".join(f"{value} x {count}" if count > 1 else str(value) for value, count in runs)
