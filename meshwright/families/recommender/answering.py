"""The answer of `serve`: hits of each table, latency and throughput, beside what the plan says for this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.defaults import OWN_STACK
from cost_models.errors import InputError, Problem
from cost_models.files.loading import resolve_cluster
from cost_models.files.whole import whole_file
from cost_models.recommender.serving import ServingQuestion
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from executor.requirements import require_torch
from meshwright.families.recommender.served import ServedRecommender
from meshwright.families.recommender.serving import read_batches
from meshwright.inputs.problems import Problems
from meshwright.render.tables import Table, table
from meshwright.render.words import percent, wrapped
from meshwright.verbs.serve import ServeOptions
from planner.serving import ServingPlan, load_serving_plan, scaled, with_rates

if TYPE_CHECKING:
    from executor.serving.serving import Served

SAMPLES = 65536
"""Drawn for each size of batch, where nobody says."""
ENOUGH = 100
"""Batches below which the slowest hundredth says nothing."""


def serve(options: ServeOptions) -> CacheServed:
    """Answer lookups from the tiers of a plan. Raises InputError, HostError."""
    problems, said = Problems(), options.plan
    plan = problems.read(lambda: said if isinstance(said, ServingPlan) else load_serving_plan(said))
    batches = problems.read(lambda: read_batches(options.batch, ()))
    problems.read(lambda: _require_meant(options))
    problems.require()
    assert plan is not None
    require_torch("serve")
    from executor.serving import serving

    plan = plan if options.scale == 1 else scaled(plan, options.scale)
    sizes = batches or (plan.question.batches if options.requests is None else plan.question.batches[:1])
    found = serving.serve(
        plan,
        sizes,
        samples=options.synthetic or SAMPLES,
        requests=options.requests,
        drive=options.drive,
        weights=options.weights,
    )
    question = _answering(plan.question, found.device, options.profile).model_copy(update={"batches": sizes})
    return CacheServed(plan=plan.model_copy(update={"question": question}), scale=options.scale, found=found)


def _require_meant(options: ServeOptions) -> None:
    problems = []
    if not 0 < options.scale <= 1:
        problems.append(Problem("--scale", "a share of the plan's rows lies above 0 and is 1 at most"))
    if options.requests is not None and options.synthetic is not None:
        problems.append(Problem("--synthetic", "draws samples; --requests has them"))
    if options.weights is not None and options.scale != 1:
        problems.append(Problem("--weights", "are of whole tables: leave out --scale"))
    if problems:
        raise InputError("that cannot be served", problems=problems)


def _answering(
    question: ServingQuestion, device: str, profile: str | HardwareProfile | None
) -> ServingQuestion:
    """The question on what answers it with our own lookups: one core of this machine, with the tiers as they are, where
    the plan is for GPUs and there is none."""
    planned = question.cluster
    if profile is None and (planned.gpu.kind == "cpu" or (question.measured and device != "cpu")):
        return question
    if device == "cpu" and planned.gpu.kind != "cpu":
        core = resolve_cluster("local", 1).model_copy(update={"host_memory": planned.host_memory})
        question = question.model_copy(update={"cluster": core})
    return with_rates(question, stack=OWN_STACK, profile=profile)


@dataclass(frozen=True, kw_only=True, repr=False)
class CacheServed(ServedRecommender):
    """Lookups that were answered from the tiers of a plan, which is priced on what answered them."""

    scale: float
    found: Served

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each class of tables."""
        model = self.plan.question.model
        classes = np.zeros((len(self.found.answered), len(model.classes), 4), np.int64)
        for place, one in enumerate(self.found.answered):
            np.add.at(classes[place], np.array(model.class_of_table), one.counts)
        ids = classes[..., 0]
        hits = ids - classes[..., 2] if self.plan.question.policy == "lru" else classes[..., 1]
        every = np.maximum(ids.sum(0), 1)
        said, seen = (self.served.hits * ids).sum(0) / every, hits.sum(0) / every
        return [
            row
            | {
                "lookups": int(ids[:, place].sum()),
                "hits": float(said[place]),
                "measured_hits": float(seen[place]),
            }
            for place, row in enumerate(super().rows)
        ]

    @cached_property
    def hits(self) -> tuple[float, float]:
        """Share of all ids that were hits: as planned for the tables that they went to, and measured."""
        ids = [row["lookups"] for row in self.rows]
        said, seen = (np.dot(ids, [row[which] for row in self.rows]) for which in ("hits", "measured_hits"))
        return float(said / max(sum(ids), 1)), float(seen / max(sum(ids), 1))

    @cached_property
    def batches(self) -> list[dict[str, Any]]:
        """A row for each size of batch."""
        rows = []
        for planned, drive, one in zip(
            super().batches, self.served.drive_rows, self.found.answered, strict=True
        ):
            number = len(one.seconds)
            measured: dict[str, Any] = {
                "batches": number,
                "p50_seconds": float(np.percentile(one.seconds, 50)),
                "p99_seconds": float(np.percentile(one.seconds, 99)) if number >= ENOUGH else None,
                "cpu_p50_seconds": float(np.percentile(one.cpu_seconds, 50)),
                "cpu_p99_seconds": float(np.percentile(one.cpu_seconds, 99)) if number >= ENOUGH else None,
                "measured_samples_per_second": one.samples / float(one.seconds.sum()),
                "measured_host_rows": float(one.counts[:, 2].sum() / number),
                "drive_rows": float(drive),
                "measured_drive_rows": float(one.counts[:, 3].sum() / number),
            }
            planned["samples_per_second"] /= self.served.gpus
            rows.append(planned | measured)
        return rows

    def document(self) -> dict[str, Any]:
        found = {"device": self.found.device, "scale": self.scale, "drive_bytes": self.found.drive_bytes}
        predicted, measured = self.hits
        return super().document() | {
            "served": found | {"predicted_hits": predicted, "measured_hits": measured}
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        predicted, measured = self.hits
        core = "one core of this machine"
        on = core if self.found.device == "cpu" else self.plan.question.cluster.gpu.name
        return (
            self._header(),
            "",
            self._tables(),
            "",
            f"The cache served {percent(measured)} of all ids; planned are {percent(predicted)}",
            "",
            self._latencies(),
            "",
            wrapped(
                "Latency is from ids to vectors of one batch, one after another on one device; planned is that of"
                f" {on}. Left out: the dense network, and waiting for a batch"
            ),
        )

    def _header(self) -> str:
        model, found = self.plan.question.model, self.found
        share = "" if self.scale == 1 else f", {self.scale:g} of the plan's rows"
        drive = f", {format_bytes(found.drive_bytes)} of them on the drive" if found.drive_bytes else ""
        return wrapped(
            f"{model.name} served on {found.device}: {counted(model.num_tables, 'table')} of"
            f" {format_bytes(self.plan.question.tables.bytes)}{share}{drive}, and a cache of"
            f" {format_bytes(self.plan.cache_bytes)}"
        )

    def _tables(self) -> Table:
        return table(
            ("table", "rows", "cached rows", "ids", "hits planned", "measured"),
            [
                (
                    row["table"] + (f" x {row['tables']}" if row["tables"] > 1 else ""),
                    format_count(row["rows"]),
                    grouped(row["cached_rows"]),
                    format_count(row["lookups"]),
                    percent(row["hits"]),
                    percent(row["measured_hits"]) if row["lookups"] else "-",
                )
                for row in sorted(self.rows, key=lambda row: -row["lookups"])
            ],
            names=("table",),
        )

    def _latencies(self) -> Table:
        return table(
            ("batch", "latency planned", "p50", "p99", "samples/s planned", "measured"),
            [
                (
                    grouped(row["batch"]),
                    format_seconds(row["latency_seconds"]),
                    format_seconds(row["p50_seconds"]),
                    "-" if row["p99_seconds"] is None else format_seconds(row["p99_seconds"]),
                    format_count(row["samples_per_second"]),
                    format_count(row["measured_samples_per_second"]),
                )
                for row in self.batches
            ],
        )

    def save(self, path: str | Path) -> None:
        """Write the vectors of the requests: an array of (requests, width) by table."""
        of_tables = zip(*(batch for one in self.found.answered[:1] for batch in one.vectors), strict=True)
        arrays: list[Any] = [np.concatenate([one.numpy() for one in of]) for of in of_tables]
        with whole_file(Path(path)) as stream:
            np.savez(stream, **dict(zip(self.plan.question.model.table_names, arrays, strict=True)))
