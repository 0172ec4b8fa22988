"""The answer of `plan --serve`: rows that every GPU caches, hits of each table, and latency by batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.recommender.serving import Served
from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from meshwright.render.tables import Table, table
from meshwright.render.words import percent, wrapped
from meshwright.verbs.contract.answer import AnswerBase
from planner.serving import ServingPlan, filling_order, latencies, one_share, save_serving_plan

if TYPE_CHECKING:
    from meshwright.plots.drawn import Drawing

MOST_TABLES = 30
"""Classes of tables that are printed, those with most accesses."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ServedRecommender(AnswerBase):
    """A recommender served from caches on GPUs."""

    plan: ServingPlan
    asked_hits: float | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def served(self) -> Served:
        """Latency and throughput of each batch."""
        return latencies(self.plan.question, self.plan)

    @property
    def one_share_hits(self) -> float:
        """Hits of as many bytes with the same share of every table's rows."""
        return one_share(self.plan.question.tables, self.plan.cache_bytes).hits

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each class of tables."""
        tables = self.plan.question.tables
        hits = tables.table_hits(self.plan.rows)
        return [
            {
                "table": tables.names[place],
                "tables": int(tables.counts[place]),
                "rows": int(tables.rows[place]),
                "cached_rows": held,
                "cached_bytes": float(tables.counts[place] * held * tables.row_bytes[place]),
                "accesses": float(tables.weights[place]),
                "hits": float(hits[place]),
            }
            for place, held in enumerate(self.plan.cached_rows)
        ]

    @property
    def batches(self) -> list[dict[str, float]]:
        """A row for each batch."""
        found = self.served
        return [
            {
                "batch": int(found.batch[place]),
                "latency_seconds": float(found.seconds[place]),
                "launch_seconds": float(found.launch_seconds[place]),
                "cache_seconds": float(found.cache_seconds[place]),
                "host_seconds": float(found.host_seconds[place]),
                "drive_seconds": float(found.drive_seconds[place]),
                "host_rows": float(found.host_rows[place]),
                "hits": float(self.plan.question.tables.weights @ found.hits[place]),
                "samples_per_second": float(found.samples_per_second[place]),
            }
            for place in range(len(found.batch))
        ]

    def document(self) -> dict[str, Any]:
        question, plan = self.plan.question, self.plan
        return {
            "serving": {
                "model": question.model.name,
                "cluster": question.cluster.name,
                "gpus": question.cluster.num_gpus,
                "table_dtype": question.table_dtype,
                "policy": question.policy,
                "embedding_profile": question.embedding.name,
                "table_bytes": question.tables.bytes,
                "cache_bytes": plan.cache_bytes,
                "hits": plan.hits,
                "bound": plan.bound,
                "one_share_hits": self.one_share_hits,
            },
            "assumptions": list(self.assumptions),
            "tables": self.rows,
            "batches": self.batches,
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        last = self.plan.question.policy == "lru"
        return (
            self._header(),
            "",
            self._tables(),
            "",
            wrapped(self._finding()),
            "",
            self._latencies(),
            "",
            wrapped(
                "Latency is from ids to vectors of one batch on one GPU: "
                f"{'launching the lookup of each table, ' if self.served.launch_seconds.any() else ''}"
                "reading the cache, rows from the host"
                f"{', rows that the host reads from drives' if self._from_drives else ''}. "
                f"{'Hits are of ids one by one: a batch brings a row up once. ' if last else ''}"
                "Left out: the dense network, and waiting for a batch"
            ),
        )

    @property
    def _from_drives(self) -> bool:
        return bool(self.served.drive_rows.any())

    def _header(self) -> str:
        question = self.plan.question
        cluster, tables = question.cluster, question.tables
        where = "host memory and on drives" if self._from_drives else "host memory"
        kept = "most" if question.policy == "hottest" else "last"
        said = (
            f"{question.model.name} served on {cluster.num_gpus} x {cluster.gpu.name}: "
            f"{counted(question.model.num_tables, 'table')} of {format_bytes(tables.bytes)} ({question.table_dtype}) "
            f"in {where}, and a cache of {format_bytes(self.plan.cache_bytes)} on each GPU for the rows used {kept}"
        )
        return wrapped(said)

    def _tables(self) -> Table:
        rows = sorted(self.rows, key=lambda one: -one["accesses"])[:MOST_TABLES]
        return table(
            ("table", "rows", "cached rows", "of rows", "size", "accesses", "hits"),
            [
                (
                    one["table"] + (f" x {one['tables']}" if one["tables"] > 1 else ""),
                    format_count(one["rows"]),
                    grouped(one["cached_rows"]),
                    percent(one["cached_rows"] / one["rows"]),
                    format_bytes(one["cached_bytes"]),
                    percent(one["accesses"]),
                    percent(one["hits"]),
                )
                for one in rows
            ],
            names=("table",),
        )

    def _finding(self) -> str:
        plan = self.plan
        gap = plan.bound - plan.hits
        proof = (
            "no choice of rows has more" if gap <= 1e-6 else f"no choice of rows has {gap:.1g} more of them"
        )
        size = f"A cache of {format_bytes(plan.cache_bytes)}"
        if self.asked_hits is not None:
            size = f"{percent(self.asked_hits)} hits need a cache of {format_bytes(plan.cache_bytes)}: it"
            proof = "no choice of rows that is smaller by a row of each table has as many"
        larger = filling_order(plan.question.tables)
        said = f"{size} serves {percent(plan.hits)} of all accesses; {proof}. "
        said += f"The same share of every table's rows would serve {percent(self.one_share_hits)}"
        further = [share for share in (0.5, 0.8, 0.9, 0.95, 0.99) if share > plan.hits][:2]
        if further and self.asked_hits is None:
            needs = [
                f"{percent(share)} hits {format_bytes(larger.smallest(share).bytes)}" for share in further
            ]
            said += f". More: {', '.join(needs)}"
        return said

    def _latencies(self) -> Table:
        launched = ("launch",) if self.served.launch_seconds.any() else ()
        parts = (*launched, "cache", "host", *(("drive",) if self._from_drives else ()))
        return table(
            ("batch", "latency", *parts, "rows from host", "samples/s"),
            [
                (
                    grouped(int(one["batch"])),
                    format_seconds(one["latency_seconds"]),
                    *(format_seconds(one[f"{part}_seconds"]) for part in parts),
                    grouped(round(one["host_rows"])),
                    format_count(one["samples_per_second"]),
                )
                for one in self.batches
            ],
        )

    def save(self, path: str | Path) -> None:
        """Write the plan."""
        save_serving_plan(self.plan, path)

    def plot(self) -> Drawing:
        """Hits and latency by the size of the cache."""
        from meshwright.plots.cache import draw_cache

        return draw_cache(self.plan)
