"""Serves the embedding tables of a recommender from caches in GPU memory: requests, tables, measured latency.

**Requests** are drawn by the law of each table, or read from a file:

{"users": 17, "items": [3, 99, 3]}      a line of JSON each: tables and their ids; a table without any is left out

**Tables** are on one device as on every GPU of the plan: a cache of each, host memory and drive below. Rows are drawn
as a run draws them, or are those of a run's newest checkpoint. Those of the drive lie in a file that is mapped into
memory: what was read lately may come from the operating system's cache of it.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cost_models.arrays import Array, Ints
from cost_models.documents import printable
from cost_models.errors import HostError, InputError, Problem, did_you_mean, first_few
from cost_models.files.reading import parse_json, read_text
from cost_models.specs.recommender.model import RecommenderSpec, TableSpec
from executor.boxes import Box
from executor.checkpoints.checkpointer import Contents, Piece, PieceReader, RankTensor, lacking, problems_of
from executor.checkpoints.manifest import BrokenError, Folder, read_manifest
from executor.data.clicks import MadeUpClicks
from executor.embeddings.bags import Bags, CachedSets, HottestRows, StoredRows
from executor.embeddings.collection import DTYPES
from executor.embeddings.exchanges import Slice
from executor.embeddings.holding import InitialRows, on_host
from executor.requirements import device_for, free_bytes, name_of, require_memory
from executor.timing import cpu_threads, finish
from planner.serving import ServingPlan, rows_on_host

Batch = list[Bags]
"""Ids of the samples of a batch, by table."""
Request = list[list[int]]
"""Ids of one sample, by table."""
MOST_BYTES = 1 << 30
"""Largest size of a file of requests in bytes, as it is read into memory."""


def draw_batches(model: RecommenderSpec, batch: int, count: int, *, seed: int) -> Iterator[Batch]:
    """Draw `count` batches of ids, each of `batch` samples."""
    clicks = MadeUpClicks(model, batch, seed=seed)
    for step in range(count):
        yield [clicks.ids(table, step, 0, batch) for table in range(model.num_tables)]


def read_requests(path: Path, model: RecommenderSpec) -> list[Request]:
    """Read the requests of a file; raises InputError with the lines of all that are wrong."""
    specs = [model.classes[index] for index in model.class_of_table]
    tables = dict(zip(model.table_names, specs, strict=True))
    requests: list[Request] = []
    problems: list[Problem] = []
    for number, line in enumerate(read_text(path, most_bytes=MOST_BYTES).splitlines(), 1):
        try:
            if line.strip():
                requests.append(_request(line, tables))
        except InputError as error:
            message = error.problems[0].what if error.problems else error.headline
            problems.append(Problem(f"{path}:{number}", message))
    if problems:
        raise InputError("requests that cannot be answered", problems=first_few(problems))
    if not requests:
        raise InputError(
            f"`{path}` has no request", hint='a line of JSON each, as `{"users": 17, "items": [3, 99]}`'
        )
    return requests


def in_batches(requests: Sequence[Request], batch: int) -> Iterator[Batch]:
    """Batches of `batch` requests, in order."""
    for first in range(0, len(requests), batch):
        bags = []
        for ids in zip(*requests[first : first + batch], strict=True):
            lengths = torch.tensor(list(map(len, ids)), dtype=torch.int32)
            bags.append(Bags(torch.tensor(list(chain(*ids)), dtype=torch.int64), lengths))
        yield bags


def _request(line: str, tables: Mapping[str, TableSpec]) -> Request:
    """Ids of each table in one line of a file of requests."""
    request = parse_json(line, source="request").value
    if not isinstance(request, dict):
        raise InputError("it is no object of tables and their ids")
    if strangers := [name for name in request if name not in tables]:
        name = strangers[0]
        raise InputError(f"there is no table `{printable(name, limit=40)}`{did_you_mean(name, tables)}")
    return [_ids(name, spec, request.get(name, [])) for name, spec in tables.items()]


def _ids(name: str, spec: TableSpec, value: Any) -> list[int]:
    """Ids of one table in a request, checked and mapped to rows as the table's `out_of_range` says."""
    ids = value if isinstance(value, list) else [value]
    if not all(type(one) is int for one in ids):
        raise InputError(f"`{name}`: ids are whole numbers, one or a list of them")
    if spec.combiner == "concat" and len(ids) > spec.pooling:
        raise InputError(f"`{name}`: {len(ids)} ids; it sets {int(spec.pooling)} side by side")
    strays = [one for one in ids if not 0 <= one < spec.rows]
    if strays and spec.out_of_range == "error":
        stray = printable(str(strays[0]), limit=24)
        raise InputError(f"`{name}`: id {stray} is not between 0 and {spec.rows - 1}")
    modulo = spec.out_of_range == "modulo"
    return [one if 0 <= one < spec.rows else one % spec.rows if modulo else 0 for one in ids]


class ServedTables:
    """Embedding tables of a serving plan, each with its cache.

    Raises:
        InputError: tables that cannot be served, or weights of another model.
        HostError: device, host or drive have too little room.
    """

    def __init__(
        self,
        plan: ServingPlan,
        device: torch.device,
        *,
        drive: Path | None = None,
        weights: Path | None = None,
    ) -> None:
        """Allocate tables and caches, and fill the tables with initial rows, or from the checkpoints in `weights`."""
        model, self.device = plan.question.model, device
        self.names, class_of = model.table_names, model.class_of_table
        self.specs = [model.classes[index] for index in class_of]
        if hashed := [spec.name for spec in self.specs if spec.hashed]:
            reason = "which keys are used most is not known before they come"
            raise InputError(f"`{hashed[0]}` is hashed: {reason}")
        host_rows = rows_on_host(plan.question).astype(np.int64)
        _require_room(plan, host_rows, device)
        dtype = DTYPES[plan.question.table_dtype]
        rows_of = zip(self.specs, class_of, strict=True)
        sizes = [(spec.rows - int(host_rows[index])) * spec.width for spec, index in rows_of]
        self.drive_bytes = sum(sizes) * dtype.itemsize
        on_drive = torch.split(_mapped(drive, sum(sizes), dtype), sizes)
        self.stored = []
        for spec, index, values in zip(self.specs, class_of, on_drive, strict=True):
            in_memory = on_host(int(host_rows[index]), spec.width, dtype, device)
            self.stored.append(StoredRows(in_memory, values.view(-1, spec.width)))
        self._draw() if weights is None else self._load(weights)
        self.caches: list[HottestRows | CachedSets] = [
            CachedSets(stored, rows, "lru", device)
            if plan.question.policy == "lru" and (rows := plan.cached_rows[index])
            else HottestRows(stored, plan.cached_rows[index], device)
            for stored, index in zip(self.stored, class_of, strict=True)
        ]

    def look_up(self, ids: Sequence[Bags]) -> list[Tensor]:
        """Vectors of each table, (b, D) or with `concat` (b, ids, D), for ids of samples on the device."""
        tables = zip(self.specs, self.caches, ids, strict=True)
        return [_vectors(spec, cache, bags) for spec, cache, bags in tables]

    def counts(self) -> Ints:
        """Counts so far of each table, (T, 4): ids looked up, cache hits, rows fetched from the host, and rows read
        from the drive.
        """
        names = "lookups", "hits", "fetched"
        tables = zip(self.caches, self.stored, strict=True)
        counts = [(*(cache.counts[name] for name in names), rows.read) for cache, rows in tables]
        return np.array(counts, np.int64)

    def _draw(self) -> None:
        """Fill all tables with initial rows."""
        for name, spec, stored in zip(self.names, self.specs, self.stored, strict=True):
            part = Slice(table=0, form="whole", rows=spec.rows, end=spec.width, bags=1)
            initial = InitialRows(name=name, rows=spec.rows, width=spec.width, seed=0)
            for rows, first in stored.parts():
                initial.fill(rows, part, first)

    def _load(self, folder: Path) -> None:
        """Fill all tables from the newest checkpoint in a folder; raises InputError if it has not these tables."""
        if not (steps := Folder(folder).complete()):
            hint = "`meshwright run PLAN --checkpoint DIR` writes some"
            raise InputError(f"--weights {folder}: there is no checkpoint of a run", hint=hint)
        path, contents = Folder(folder).at(steps[0]), Contents()
        for name, stored in zip(self.names, self.stored, strict=True):
            pieces = [Piece(Box((first, 0), tuple(rows.shape)), rows) for rows, first in stored.parts()]
            contents[f"weights.tables.{name}"] = RankTensor(stored.shape, stored.dtype, pieces)
        try:
            manifest = read_manifest(path)
            problems = problems_of(manifest, path, 0, 1) or list(lacking(manifest, contents, {}, None))
        except BrokenError as error:
            problems = [str(error)]
        if problems:
            raise InputError(
                f"--weights {folder}: its newest checkpoint has not the tables of this plan",
                problems=first_few([Problem(path.name, what) for what in problems]),
            )
        PieceReader(path, manifest, contents, {}).read()


def _vectors(spec: TableSpec, cache: HottestRows | CachedSets, bags: Bags) -> Tensor:
    """Vectors of one table for bags of ids, averaged or side by side as the table's combiner says."""
    if spec.combiner == "concat":
        ids = int(spec.pooling)
        return cache.look_up(bags.concatenated(ids)).view(len(bags.lengths), ids, spec.width)
    vectors = cache.look_up(bags)
    return vectors / bags.lengths.clamp(min=1)[:, None] if spec.combiner == "mean" else vectors


def _mapped(folder: Path | None, elements: int, dtype: torch.dtype) -> Tensor:
    """Memory-mapped elements, (elements,), of a nameless file on the drive; raises HostError without room."""
    if not elements:
        return torch.empty(0, dtype=dtype)
    place, size = folder or tempfile.gettempdir(), elements * dtype.itemsize
    try:
        with tempfile.TemporaryFile(prefix="meshwright-rows-", dir=place) as file:
            take_room = getattr(os, "posix_fallocate", lambda file, start, size: os.ftruncate(file, size))
            take_room(file.fileno(), 0, size)
            return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=dtype)
    except OSError as error:
        raise HostError(
            f"--drive {place}: {(error.strerror or str(error)).lower()}",
            hint="name a folder of a drive with room, or --scale 0.1 for a tenth of every table",
        ) from error


def _require_room(plan: ServingPlan, host_rows: Ints, device: torch.device) -> None:
    """Raise HostError where the device's memory or the host's is too small for the plan."""
    tables, host = plan.question.tables, torch.device("cpu")
    needs = float(tables.counts @ (host_rows * tables.vector_bytes))
    if device.type == "cpu":
        needs += plan.cache_bytes
    else:
        require_memory("the cache", plan.cache_bytes, device, "plan a smaller one: `plan --serve --cache`")
    share = max(0.8 * free_bytes(host) / max(needs, 1.0), 1e-9)
    digit = 10.0 ** math.floor(math.log10(share))
    hint = f"--scale {math.floor(share / digit) * digit:g} serves that share of every table"
    require_memory("serving its tables", needs, host, hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswers:
    """Measurements of serving batches of one size."""

    batch: int
    samples: int
    seconds: Array
    """Wall seconds of each batch, from ids to vectors."""
    cpu_seconds: Array
    """CPU seconds of each batch in the thread that answers."""
    counts: Ints
    """Counts per table, (T, 4): ids looked up, cache hits, rows from host memory, of these from the drive."""
    vectors: list[list[Tensor]]
    """Vectors of each batch, by table; empty if they are not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Measurements of serving by batch size, and the device."""

    device: str
    """`cpu`, or the name of the GPU."""
    drive_bytes: int
    """Bytes of rows on the drive."""
    answered: tuple[BatchAnswers, ...]


def serve(
    plan: ServingPlan,
    batches: tuple[int, ...],
    *,
    samples: int,
    requests: Path | None = None,
    drive: Path | None = None,
    weights: Path | None = None,
) -> Served:
    """Fill the tables and caches of a serving plan, answer batches of each size, and measure them.

    Batches are `samples` drawn samples, or the requests of a file, whose vectors are kept. Caches of what was used last
    are filled with as many samples before.

    Raises:
        InputError: requests or weights that do not go with the plan.
        HostError: too little room.
    """
    model, device = plan.question.model, device_for(plan.question.cluster.gpu)
    recorded_ids = None if requests is None else read_requests(requests, model)
    if recorded_ids is None:  # a batch is drawn whole: ids, their vectors twice at most
        largest, host = max(batches), torch.device("cpu")
        sample_bytes = sum(one.count * one.pooling * (16 + 8 * one.width) for one in model.classes)
        hint = "ask for smaller ones: --batch"
        require_memory(f"a batch of {largest}", largest * sample_bytes, host, hint)
    threads = 1 if device.type == "cpu" else torch.get_num_threads()  # the plan prices one core
    with cpu_threads(threads), torch.inference_mode():
        tables = ServedTables(plan, device, drive=drive, weights=weights)
        batch_answers = []
        for size in batches:
            count = max(1, samples // size)
            warm_up = count if plan.question.policy == "lru" else 1
            _timed_answers(tables, size, draw_batches(model, size, warm_up, seed=size + 1))
            id_batches = draw_batches(model, size, count, seed=size)
            if recorded_ids is not None:
                id_batches = in_batches(recorded_ids, size)
            batch_answers.append(_timed_answers(tables, size, id_batches, keep=recorded_ids is not None))
    return Served(device=name_of(device), drive_bytes=tables.drive_bytes, answered=tuple(batch_answers))


def _timed_answers(
    tables: ServedTables, size: int, batches: Iterable[Batch], *, keep: bool = False
) -> BatchAnswers:
    """Answer these batches of one size and measure each."""
    counts_before, samples = tables.counts(), 0
    seconds: list[tuple[float, float]] = []
    batch_vectors: list[list[Tensor]] = []
    for batch in batches:
        ids = [bags.to(tables.device) for bags in batch]
        finish(tables.device)
        began, worked = time.perf_counter(), time.thread_time()
        vectors = tables.look_up(ids)
        finish(tables.device)
        seconds.append((time.perf_counter() - began, time.thread_time() - worked))
        samples += len(ids[0].lengths)
        if keep:
            batch_vectors.append([one.float().cpu() for one in vectors])
    return BatchAnswers(
        batch=size,
        samples=samples,
        seconds=np.array(seconds)[:, 0],
        cpu_seconds=np.array(seconds)[:, 1],
        counts=tables.counts() - counts_before,
        vectors=batch_vectors,
    )
