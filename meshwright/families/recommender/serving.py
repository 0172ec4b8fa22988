"""`plan --serve` and `serve`: plan the cache of embedding rows on each GPU, and answer lookups from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from cost_models.defaults import OWN_STACK
from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files.loading import resolve_cluster
from cost_models.files.whole import whole_file
from cost_models.recommender.accesses import POLICIES
from cost_models.recommender.serving import Served as PredictedService
from cost_models.recommender.serving import ServingQuestion
from cost_models.specs.cluster import MixedCluster
from cost_models.specs.recommender.model import RecommenderSpec, TableSpec
from cost_models.specs.recommender.training import TableDtype
from cost_models.units import (
    counted,
    format_bytes,
    format_count,
    format_seconds,
    grouped,
    parse_bandwidth,
    parse_bytes,
)
from executor.requirements import require_torch
from meshwright.families.recommender.plan import recommender_of
from meshwright.inputs.goals import Word, known_word
from meshwright.inputs.problems import Problems, read_flag, refuse
from meshwright.inputs.questions import cluster_of
from meshwright.records import fields_of
from meshwright.render.tables import Table, table_of
from meshwright.render.words import percent, spaced, wrapped
from meshwright.terminal.answers import SavedAnswer
from meshwright.verbs.plan import CacheOptions
from meshwright.verbs.serve import ServeOptions
from planner.serving import (
    ServingPlan,
    filling_order,
    latencies,
    load_serving_plan,
    one_share_hits,
    save_serving_plan,
    scaled,
    with_rates,
)
from planner.serving import plan_cache as planned_cache

if TYPE_CHECKING:
    from executor.recommender.serving import Served
    from meshwright.plots.drawing import Drawing

MOST_TABLES = 30
"""Largest number of classes of tables that are printed, those with most accesses first."""


class ServedRecommender(SavedAnswer):
    """Answer of `plan --serve`: a recommender served from caches of embedding rows on GPUs."""

    suggestion = "meshwright serve {path}, meshwright plot cache {path}"
    plan: ServingPlan
    asked_hits: float | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def service(self) -> PredictedService:
        """Predicted latency and throughput for each batch size."""
        return latencies(self.plan.question, self.plan)

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each class of equal embedding tables: rows, cached rows and bytes, accesses and hits."""
        tables, classes = self.plan.question.tables, self.plan.question.model.classes
        hits = tables.table_hits(self.plan.rows)
        return [
            {
                "table": classes[place].name,
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
        """Row for each batch size: latency by part, hits, samples per second."""
        service, weights = self.service, self.plan.question.tables.weights
        parts = ("launch_seconds", "cache_seconds", "host_seconds", "drive_seconds", "host_rows")
        columns = {"latency_seconds": service.seconds, **fields_of(service, *parts)}
        columns |= {"hits": [weights @ hits for hits in service.hits]}
        columns |= fields_of(service, "samples_per_second")
        return [
            {"batch": int(batch), **{name: float(column[place]) for name, column in columns.items()}}
            for place, batch in enumerate(service.batch)
        ]

    def document(self) -> dict[str, Any]:
        """JSON document: the planned cache, assumptions, tables and batch sizes."""
        question, plan = self.plan.question, self.plan
        serving = {
            "model": question.model.name,
            "cluster": question.cluster.name,
            "gpus": question.cluster.num_gpus,
            **fields_of(question, "table_dtype", "policy"),
            "embedding_profile": question.embedding.name,
            "table_bytes": question.tables.bytes,
            **fields_of(plan, "cache_bytes", "hits", "bound"),
            "one_share_hits": one_share_hits(question.tables, plan.cache_bytes),
        }
        tables = {"tables": self.rows, "batches": self.batches}
        return {"serving": serving, "assumptions": list(self.assumptions), **tables}

    def view(self) -> tuple[str | Table, ...]:
        """Text: the cache, its rows by table, hits, and latency by batch size."""
        launched, last = self.service.launch_seconds.any(), self.plan.question.policy == "lru"
        parts = ["launching the lookup of each table"] * bool(launched)
        parts += ["reading the cache, rows from the host"]
        parts += ["rows that the host reads from drives"] * bool(self.service.drive_rows.any())
        latency = f"Latency is from ids to vectors of one batch on one GPU: {', '.join(parts)}. "
        latency += "Hits are of ids one by one: a batch brings a row up once. " * last
        latency += "Left out: the dense network, and waiting for a batch"
        tables = self._tables(), wrapped(self._finding()), self._latencies()
        return spaced(self._header(), *tables, wrapped(latency))

    def _header(self) -> str:
        """Sentence on model, GPUs, tables and the size of the cache."""
        question, cluster = self.plan.question, self.plan.question.cluster
        place = "host memory and on drives" if self.service.drive_rows.any() else "host memory"
        recency = "most" if question.policy == "hottest" else "last"
        tables = f"{counted(question.model.num_tables, 'table')} of {format_bytes(question.tables.bytes)}"
        cache = f"a cache of {format_bytes(self.plan.cache_bytes)} on each GPU for the rows used {recency}"
        return wrapped(
            f"{question.model.name} served on {cluster.num_gpus} x {cluster.gpu.name}: {tables}"
            f" ({question.table_dtype}) in {place}, and {cache}"
        )

    def _tables(self) -> Table:
        """Table with a row for each class of equal embedding tables: cached rows, bytes, accesses and hits."""
        rows = sorted(self.rows, key=lambda entry: -entry["accesses"])[:MOST_TABLES]
        columns = {
            "table": [_label(row) for row in rows],
            "rows": [format_count(row["rows"]) for row in rows],
            "cached rows": [grouped(row["cached_rows"]) for row in rows],
            "of rows": [percent(row["cached_rows"] / row["rows"]) for row in rows],
            "size": [format_bytes(row["cached_bytes"]) for row in rows],
            "accesses": [percent(row["accesses"]) for row in rows],
            "hits": [percent(row["hits"]) for row in rows],
        }
        return table_of(columns, names=("table",))

    def _finding(self) -> str:
        """Sentence on the hit rate, its proof, and cache sizes for higher rates."""
        plan, size = self.plan, f"A cache of {format_bytes(self.plan.cache_bytes)}"
        gap = plan.bound - plan.hits
        proof = f"no choice of rows has {'more' if gap <= 1e-6 else f'{gap:.1g} more of them'}"
        further = [share for share in (0.5, 0.8, 0.9, 0.95, 0.99) if share > plan.hits][:2]
        if self.asked_hits is not None:
            size = f"{percent(self.asked_hits)} hits need a cache of {format_bytes(plan.cache_bytes)}: it"
            proof, further = "no choice of rows that is smaller by a row of each table has as many", []
        words = f"{size} serves {percent(plan.hits)} of all accesses; {proof}. "
        simple_hits = one_share_hits(plan.question.tables, plan.cache_bytes)
        words += f"The same share of every table's rows would serve {percent(simple_hits)}"
        smallest = filling_order(plan.question.tables).smallest
        needs = [f"{percent(share)} hits {format_bytes(smallest(share).bytes)}" for share in further]
        return f"{words}. More: {', '.join(needs)}" if needs else words

    def _latencies(self) -> Table:
        """Table with a row for each batch size: latency by part, rows from the host, samples per second."""
        launched = ("launch",) if self.service.launch_seconds.any() else ()
        parts = (*launched, "cache", "host", *(("drive",) if self.service.drive_rows.any() else ()))
        rows = self.batches
        columns = {
            "batch": [grouped(int(row["batch"])) for row in rows],
            "latency": [format_seconds(row["latency_seconds"]) for row in rows],
            **{part: [format_seconds(row[f"{part}_seconds"]) for row in rows] for part in parts},
            "rows from host": [grouped(round(row["host_rows"])) for row in rows],
            "samples/s": [format_count(row["samples_per_second"]) for row in rows],
        }
        return table_of(columns)

    def save(self, path: str | Path) -> None:
        """Write the serving plan to a file."""
        save_serving_plan(self.plan, path)

    def plot(self) -> Drawing:
        """Draw hit rate and latency against the size of the cache."""
        from meshwright.plots.pictures import draw_cache

        return draw_cache(self.plan)


def _label(row: dict[str, Any]) -> str:
    """Name of a class of tables, with their number if there are several: "item x 3"."""
    return f"{row['table']} x {row['tables']}" if row["tables"] > 1 else str(row["table"])


BATCHES = (64, 256, 1024, 4096, 16384)
"""Default batch sizes in samples."""
_SHARE = re.compile(r"\d{1,3}(\.\d+)?%?|0?\.\d+", re.ASCII)


def plan_cache(options: CacheOptions) -> ServedRecommender:
    """Plan the cache of embedding rows on each GPU. Raises InputError, InfeasibleError."""
    problems = Problems()
    spec = problems.read(recommender_of, options.model)
    cluster = problems.read(cluster_of, options.cluster, options.gpus, options.host_memory)
    size = problems.read(_amount, "--cache", options.cache, parse_bytes)
    rate = problems.read(_amount, "--drive-rate", options.drive_rate, parse_bandwidth)
    share = problems.read(read_flag, "--hits", options.hits, _share, "hits cannot be read")
    batches = problems.read(read_batches, options.batch, BATCHES)
    dtype = problems.read(_choice, "--precision", options.precision or "fp32", get_args(TableDtype))
    policy = problems.read(_choice, "--policy", options.policy or "hottest", POLICIES)
    if options.cache is not None and options.hits is not None:
        reason = "`--cache` says how large the cache is, `--hits` asks for it"
        problems.errors.append(InputError(reason, hint="leave out one"))
    problems.require()
    if isinstance(cluster, MixedCluster):
        raise InputError(f"`{cluster.name}` has several kinds of GPU; a cache is planned for one")
    spec, silent = _with_exponent(spec, options.zipf)
    question = ServingQuestion(
        model=spec,
        cluster=cluster,
        table_dtype=dtype,
        policy=policy,
        batches=batches,
        drive_rate=rate or (cluster.drive.read if cluster.drive else None),
    )
    question = with_rates(question, profile=options.profile)
    plan = planned_cache(question, cache_bytes=size, hits=share)
    return ServedRecommender(plan=plan, asked_hits=share, assumptions=silent)


def _with_exponent(model: RecommenderSpec, zipf: float | None) -> tuple[RecommenderSpec, tuple[str, ...]]:
    """Model whose tables without described accesses get the Zipf exponent `zipf`, and sentences on what was assumed
    about them."""
    silent = [one.name for one in model.classes if one.zipf is None and not one.histogram]
    if not silent:
        return model, ()
    several = f"{len(silent)} of {len(model.classes)} classes of tables"
    names = several if len(silent) > 1 else f"`{silent[0]}`"
    if zipf is None:
        return model, (f"all rows of {names} are used alike, as the model does not say; --zipf 1.05 would",)

    groups = {
        group: tuple(
            TableSpec(**one.model_dump() | {"zipf": zipf}) if one.name in silent else one
            for one in getattr(model, group)
        )
        for group in ("tables", "wide")
    }
    return model.model_copy(update=groups), (f"rows of {names} are used by Zipf's law, exponent {zipf:g}",)


def _choice(flag: str, word: str, choices: Sequence[Word]) -> Word:
    """Check that a flag's value is one of its choices, and return it. Raises InputError naming all choices."""
    return known_word(choices, word, flag, "a choice is unknown", f"is not one of {', '.join(choices)}")


def _amount(flag: str, text: str | float | None, parse: Callable[[str], float]) -> float | None:
    """Parse a flag's amount, text or number, that must be above zero; None if not given."""
    unread = "an amount cannot be read"
    value = read_flag(
        flag, text, lambda amount: parse(amount) if isinstance(amount, str) else float(amount), unread
    )
    if value is not None and not value > 0:
        raise InputError(unread, problems=[Problem(flag, "must be above zero")])
    return value


def _share(amount: str | float) -> float:
    """Parse a hit rate, `95%` or 0.95. Raises ValueError."""
    text, share = str(amount).strip(), -1.0
    if _SHARE.fullmatch(text) or text in {"0", "1"}:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < share <= 1:
        raise ValueError(f"`{printable(text)}` is no share of accesses; write it like `95%`")
    return share


def read_batches(batches: str | int | Sequence[int] | None, default: tuple[int, ...]) -> tuple[int, ...]:
    """Parse batch sizes, such as `64,1024`; `default` if not given. Raises InputError."""
    if batches is None:
        return default
    words = str(batches).split(",") if isinstance(batches, (int, str)) else map(str, batches)
    sizes = [word.strip() for word in words]
    if not sizes or not all(word.isdecimal() and 0 < int(word) <= 10**9 for word in sizes):
        reason = f"`{printable(str(batches))}` is no number of samples; write it like `64,1024`"
        raise InputError("batches cannot be read", problems=[Problem("--batch", reason)])
    return tuple(sorted({int(word) for word in sizes}))


SAMPLES = 65536
"""Default number of samples drawn for each batch size."""
ENOUGH = 100
"""Fewest batches from which a 99th percentile is reported."""


def serve(options: ServeOptions) -> CacheServed:
    """Answer lookups of embedding rows from cache, host memory and drive as a serving plan says. Raises InputError,
    HostError."""
    problems, source = Problems(), options.plan
    plan = problems.read(lambda: source if isinstance(source, ServingPlan) else load_serving_plan(source))
    batches = problems.read(lambda: read_batches(options.batch, ()))
    wrong = [
        ("--scale", "a share of the plan's rows lies above 0 and is 1 at most", not 0 < options.scale <= 1),
        ("--synthetic", "draws samples; --requests has them", bool(options.requests and options.synthetic)),
        ("--weights", "are of whole tables: leave out --scale", bool(options.weights) and options.scale != 1),
    ]
    problems.read(refuse, "that cannot be served", [Problem(*one) for *one, holds in wrong if holds])
    problems.require()
    require_torch("serve")
    from executor.recommender import serving

    plan = plan if options.scale == 1 else scaled(plan, options.scale)
    sizes = batches or (plan.question.batches if options.requests is None else plan.question.batches[:1])
    places = fields_of(options, "requests", "drive", "weights")
    run = serving.serve(plan, sizes, samples=options.synthetic or SAMPLES, **places)
    question = _on_device(plan.question, run.device, options).model_copy(update={"batches": sizes})
    return CacheServed(plan=plan.model_copy(update={"question": question}), scale=options.scale, run=run)


def _on_device(question: ServingQuestion, device: str, options: ServeOptions) -> ServingQuestion:
    """Serving question with prices for the device that answers: if a CPU serves a plan for GPUs, for one core of this
    machine."""
    planned, profile = question.cluster, options.profile
    if profile is None and (planned.gpu.kind == "cpu" or (question.measured and device != "cpu")):
        return question
    if device == "cpu" and planned.gpu.kind != "cpu":
        core = resolve_cluster("local", 1).model_copy(update={"host_memory": planned.host_memory})
        question = question.model_copy(update={"cluster": core})
    return with_rates(question, stack=OWN_STACK, profile=profile)


class CacheServed(ServedRecommender):
    """Answer of `serve`: hit rates and latencies of the answered lookups, planned beside measured."""

    scale: float
    run: Served

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Row for each class of equal embedding tables: lookups, planned and measured hits."""
        model = self.plan.question.model
        classes = np.zeros((len(self.run.answered), len(model.classes), 4), np.int64)
        for place, run in enumerate(self.run.answered):
            np.add.at(classes[place], np.array(model.class_of_table), run.counts)
        ids = classes[..., 0]
        hits = ids - classes[..., 2] if self.plan.question.policy == "lru" else classes[..., 1]
        total = np.maximum(ids.sum(0), 1)
        guess, seen = (self.service.hits * ids).sum(0) / total, hits.sum(0) / total
        return [
            row | {"lookups": int(lookups), "hits": float(planned), "measured_hits": float(measured)}
            for row, lookups, planned, measured in zip(super().rows, ids.sum(0), guess, seen, strict=True)
        ]

    @cached_property
    def hits(self) -> tuple[float, float]:
        """Planned and measured hit rate of all lookups; the planned rate weights each table by its number of
        lookups."""
        ids = [row["lookups"] for row in self.rows]
        guess, seen = (np.dot(ids, [row[which] for row in self.rows]) for which in ("hits", "measured_hits"))
        return float(guess / max(sum(ids), 1)), float(seen / max(sum(ids), 1))

    @cached_property
    def batches(self) -> list[dict[str, Any]]:
        """Row for each batch size: planned and measured latency, samples per second, rows from host and drive."""
        rows = []
        price = self.service
        for planned, drive, run in zip(super().batches, price.drive_rows, self.run.answered, strict=True):
            number = len(run.seconds)
            measured: dict[str, Any] = {
                "batches": number,
                "p50_seconds": float(np.percentile(run.seconds, 50)),
                "p99_seconds": float(np.percentile(run.seconds, 99)) if number >= ENOUGH else None,
                "cpu_p50_seconds": float(np.percentile(run.cpu_seconds, 50)),
                "cpu_p99_seconds": float(np.percentile(run.cpu_seconds, 99)) if number >= ENOUGH else None,
                "measured_samples_per_second": run.samples / float(run.seconds.sum()),
                "measured_host_rows": float(run.counts[:, 2].sum() / number),
                "drive_rows": float(drive),
                "measured_drive_rows": float(run.counts[:, 3].sum() / number),
            }
            planned["samples_per_second"] /= price.gpus
            rows.append(planned | measured)
        return rows

    def document(self) -> dict[str, Any]:
        """JSON document of the plan, with device, scale and hit rates of the lookups."""
        facts = {"device": self.run.device, "scale": self.scale, "drive_bytes": self.run.drive_bytes}
        hits = dict(zip(("predicted_hits", "measured_hits"), self.hits, strict=True))
        return super().document() | {"served": facts | hits}

    def view(self) -> tuple[str | Table, ...]:
        """Text: tables, planned beside measured hits, and latency by batch size."""
        predicted, measured = self.hits
        core = "one core of this machine"
        on = core if self.run.device == "cpu" else self.plan.question.cluster.gpu.name
        hits = f"The cache served {percent(measured)} of all ids; planned are {percent(predicted)}"
        latency = (
            "Latency is from ids to vectors of one batch, one after another on one device; planned is that of"
            f" {on}. Left out: the dense network, and waiting for a batch"
        )
        return spaced(self._header(), self._tables(), hits, self._latencies(), wrapped(latency))

    def _header(self) -> str:
        """Sentence on model, device, tables, drive and cache."""
        model, service = self.plan.question.model, self.run
        share = "" if self.scale == 1 else f", {self.scale:g} of the plan's rows"
        drive = f", {format_bytes(service.drive_bytes)} of them on the drive" if service.drive_bytes else ""
        return wrapped(
            f"{model.name} served on {service.device}: {counted(model.num_tables, 'table')} of"
            f" {format_bytes(self.plan.question.tables.bytes)}{share}{drive}, and a cache of"
            f" {format_bytes(self.plan.cache_bytes)}"
        )

    def _tables(self) -> Table:
        """Table with a row for each class of equal embedding tables: cached rows, ids, planned and measured hits."""
        rows = sorted(self.rows, key=lambda row: -row["lookups"])
        columns = {
            "table": [_label(row) for row in rows],
            "rows": [format_count(row["rows"]) for row in rows],
            "cached rows": [grouped(row["cached_rows"]) for row in rows],
            "ids": [format_count(row["lookups"]) for row in rows],
            "hits planned": [percent(row["hits"]) for row in rows],
            "measured": [percent(row["measured_hits"]) if row["lookups"] else "-" for row in rows],
        }
        return table_of(columns, names=("table",))

    def _latencies(self) -> Table:
        """Table with a row for each batch size: planned and measured latency and samples per second."""
        rows = self.batches
        slowest = [row["p99_seconds"] for row in rows]
        columns = {
            "batch": [grouped(row["batch"]) for row in rows],
            "latency planned": [format_seconds(row["latency_seconds"]) for row in rows],
            "p50": [format_seconds(row["p50_seconds"]) for row in rows],
            "p99": ["-" if seconds is None else format_seconds(seconds) for seconds in slowest],
            "samples/s planned": [format_count(row["samples_per_second"]) for row in rows],
            "measured": [format_count(row["measured_samples_per_second"]) for row in rows],
        }
        return table_of(columns)

    def save(self, path: str | Path) -> None:
        """Write the embedding vectors looked up at the first batch size: for each table an array of shape (requests,
        width)."""
        of_tables = zip(*(batch for one in self.run.answered[:1] for batch in one.vectors), strict=True)
        arrays: list[Any] = [np.concatenate([one.numpy() for one in of]) for of in of_tables]
        with whole_file(Path(path)) as stream:
            np.savez(stream, **dict(zip(self.plan.question.model.table_names, arrays, strict=True)))

    def next_commands(self, path: Path) -> str:
        """Command that loads the vectors in the file at `path`."""
        return f"numpy.load({str(path)!r})"
