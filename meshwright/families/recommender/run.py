"""Answers of `run` and `emulate` for recommenders: predicted beside measured quantities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from executor.recommender.training import RecommenderReport
from meshwright.records.shardings import moment_words
from meshwright.render.tables import Table, table
from meshwright.render.words import percent, wrapped
from meshwright.terminal.answers import Answer
from meshwright.verbs.ran import AnyEmulated, AnyRan
from planner.recommender.plan import RecommenderPlan

if TYPE_CHECKING:
    from executor.emulate.dry_run import BuiltShards
    from executor.emulate.recommender import ShardEmulation

NOT_TENSORS = ("workspace", "communicators")
"""Predicted parts of memory that no tensor holds."""


class RecommenderRan(AnyRan[RecommenderReport]):
    """Answer of `run` for a recommender: predicted beside measured quantities."""

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each quantity: step, stages, bytes sent, peak and host memory, predicted and measured."""
        report, predicted = self.report, self.report.plan.prediction
        rows = [("step", predicted.step_seconds, report.step_seconds)]
        rows += [(name, predicted.stages[name], seconds) for name, seconds in report.stage_seconds.items()]
        for name in report.stage_seconds:
            formula = sum(rank.formula_bytes[name] for rank in report.ranks)
            rows.append((f"bytes sent, {name}", formula, sum(rank.sent_bytes[name] for rank in report.ranks)))
        fullest = max(report.ranks, key=lambda rank: sum(rank.memory.values()))
        if fullest.memory:
            tensors = [size for name, size in fullest.predicted_memory.items() if name not in NOT_TENSORS]
            rows.append(("peak memory", sum(tensors), sum(fullest.memory.values())))
        if any(predicted.host_bytes):
            host_bytes = sum(rank.host_bytes for rank in report.ranks)
            rows.append(("host memory", sum(predicted.host_bytes), host_bytes))
        return [dict(zip(("quantity", "predicted", "measured"), row, strict=True)) for row in rows]

    def body(self) -> Iterator[str | Table]:
        """Text: the run, its loss, the table of predicted beside measured quantities, and hits of the device's cache
        of embedding rows."""
        report = self.report
        environment = report.environment
        yield wrapped(
            f"{report.model} on {counted(len(report.ranks), 'rank')}, {counted(self.steps, 'step')} on"
            f" {environment.device} ({environment.backend}); {format_count(report.samples_per_second)} samples/s"
        )
        if report.auc is not None:
            loss = f"loss {report.losses[0]:.4f} at first, {report.losses[-1]:.4f} at last"
            auc = f"area under the curve {report.auc:.3f} on samples it was not trained on"
            yield wrapped(f"{loss}; {auc}")
        yield ""
        rows = [tuple(row.values()) for row in self.rows]
        lines = [(name, *(_value_text(name, value) for value in values)) for name, *values in rows]
        yield table(("", "predicted", "measured"), lines, words=("",))
        if report.stage_seconds and len(report.ranks) > 1:
            yield "Gradients of the dense network travel beside the backward exchange and update."
        lookups, hits, up, down = (sum(getattr(one, name) for one in report.ranks) for name in _CACHE_FIELDS)
        if lookups:
            yield wrapped(
                f"Tables in host memory: {percent(hits / lookups)} of their rows were found on the device; a step"
                f" brought {format_bytes(up)} up and {format_bytes(down)} down"
            )


_CACHE_FIELDS = ("lookups", "hits", "up_bytes", "down_bytes")


def _value_text(quantity: str, value: float) -> str:
    """Value of a recommender's quantity as text: bytes for memory and traffic, else seconds."""
    if quantity.startswith("bytes sent"):
        return f"{grouped(int(value))} B"
    in_memory = quantity == "rest" or quantity.endswith("memory")
    return format_bytes(value) if in_memory else format_seconds(value)


_HEADERS = ("rank", "slices", "rows", "tables", "as planned", "states", "as planned", "on its host")
_SIZES = attrgetter(
    "table_bytes", "predicted_table_bytes", "state_bytes", "predicted_state_bytes", "host_bytes"
)
"""Sizes of a built rank that fill the last columns of the table."""


class ShardsBuilt(Answer):
    """Answer of `run --dry-run` for a recommender: the shards that each rank would hold."""

    plan: RecommenderPlan
    ranks: Sequence[BuiltShards]

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each rank that was built."""
        return [asdict(rank) for rank in self.ranks]

    def document(self) -> dict[str, Any]:
        """JSON document: sharding, and the built ranks."""
        return {"layout": self.plan.layout, "ranks": self.rows}

    def view(self) -> tuple[str | Table, ...]:
        """Text: table with a row for each built rank, with planned bytes of embedding tables and optimizer states
        beside built bytes."""
        plan, dense = self.plan, self.ranks[0].dense_parameters
        complete = len(self.ranks) == plan.num_ranks
        selection = "its ranks hold" if complete else "the fullest, the emptiest and others hold"
        words = (
            f"{plan.model.name} on {counted(plan.num_ranks, 'rank')}: built without devices; {selection}, beside"
            f" {grouped(dense)} parameters of the dense network each"
        )
        cells = [
            (str(one.rank), str(one.slices), grouped(one.rows), *map(format_bytes, _SIZES(one)))
            for one in self.ranks
        ]
        return wrapped(words), "", table(_HEADERS, cells)


_EMULATED = ("quantity", "plan", "predicted", "emulated")


class ShardEmulated(AnyEmulated):
    """Answer of `emulate` for a recommender: one rank's memory and compute, predicted beside emulated."""

    report: ShardEmulation

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each quantity, with three values: predicted for the plan's stack, predicted for the stack that ran,
        and emulated."""
        from executor.emulate.recommender import HOST

        report = self.report
        of = report.predicted_memory, report.memory_as_run, report.memory
        names = {part: part if part in ("rest", HOST) else f"{part} memory" for part in report.memory}
        parts = [(name, *(sizes[part] for sizes in of)) for part, name in names.items()]
        peak = [sum(sizes[part] for part in names if part != HOST) for sizes in of]
        rows: list[tuple[str | float, ...]] = [("peak memory", *peak)]
        rows += [one for one in parts if any(one[1:])]
        if report.on_planned_device:
            cost, compute = report.predicted_seconds, report.compute_seconds.items()
            rows += [(f"{stage}, compute", cost[stage], cost[stage], took) for stage, took in compute]
        if report.step_seconds is not None:
            step = report.predicted.step_seconds
            rows.append(("step", step, step, report.step_seconds))
        return [dict(zip(_EMULATED, one, strict=True)) for one in rows]

    def view(self) -> Iterator[str | Table]:
        """Text: the emulated rank, the table of predicted beside emulated quantities, and notes."""
        report = self.report
        yield wrapped(f"{report.model}: rank {report.rank} of {report.ranks} alone on {report.device}")
        executor = f"What was followed is this executor on {report.device}, which keeps other tensors"
        yield from self.compared(str, _value_text, f"{executor}: `as run` is the model's price of these")
        if when := moment_words(report.fullest_moment):
            yield wrapped(f"Predicted to be fullest{when}.")
        if not report.on_planned_device:
            yield "Compute is left out: the plan is for another kind of device."
