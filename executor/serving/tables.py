"""All tables of a plan on one device, as every GPU of the plan has them: a cache of each, host memory and drive below.

Rows are drawn as a run draws them, or are those of a run's newest checkpoint. Those of the drive lie in a file that is
mapped into memory: what was read lately may come from the operating system's cache of it.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load

from cost_models.arrays import Ints
from cost_models.errors import HostError, InputError, Problem, first_few
from cost_models.specs.recommender.model import TableSpec
from executor.boxes import Box
from executor.checkpoints.contents import Contents, Held, LoadPieces, Piece
from executor.checkpoints.folder import Folder
from executor.checkpoints.manifest import BrokenError, read_manifest
from executor.checkpoints.storage import PieceReader
from executor.checkpoints.verifying import lacking, problems_of
from executor.embeddings.bags import Bags
from executor.embeddings.cache import CachedSets, HottestRows
from executor.embeddings.collection import DTYPES
from executor.embeddings.holding import fill, on_host
from executor.embeddings.places import Slice
from executor.emulate.alone import free_bytes, require_memory
from planner.serving import ServingPlan, rows_on_host


class StoredRows:
    """All rows of a table (R, D): the first in host memory, the rest on the drive."""

    def __init__(self, host: Tensor, drive: Tensor) -> None:
        self.host, self.drive = host, drive
        self.shape = (len(host) + len(drive), host.shape[1])
        self.dtype = host.dtype
        self.read = 0
        """Rows that the drive gave."""

    def __getitem__(self, rows: Tensor) -> Tensor:
        """(n,) rows → (n, D)"""
        beyond = rows >= len(self.host)
        if not beyond.any():
            return self.host[rows]
        found = self.host.new_empty(len(rows), self.shape[1])
        found[~beyond] = self.host[rows[~beyond]]
        found[beyond] = self.drive[rows[beyond] - len(self.host)]
        self.read += int(beyond.sum())
        return found

    def parts(self) -> list[tuple[Tensor, int]]:
        """Rows of each memory that has some, and the first of them."""
        return [one for one in ((self.host, 0), (self.drive, len(self.host))) if len(one[0])]


class ServedTables:
    """The tables of a plan, each with its cache.

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
        model, self.device = plan.question.model, device
        self.names, which = model.table_names, model.class_of_table
        self.specs = [model.classes[index] for index in which]
        if hashed := [spec.name for spec in self.specs if spec.hashed]:
            raise InputError(
                f"`{hashed[0]}` is hashed: which keys are used most is not known before they come"
            )
        kept = rows_on_host(plan.question).astype(np.int64)
        _require_room(plan, kept, device)
        below = [spec.rows - int(kept[index]) for spec, index in zip(self.specs, which, strict=True)]
        dtype = DTYPES[plan.question.table_dtype]
        sizes = [rows * spec.width for rows, spec in zip(below, self.specs, strict=True)]
        self.drive_bytes = sum(sizes) * dtype.itemsize
        on_drive = torch.split(_mapped(drive, sum(sizes), dtype), sizes)
        self.stored = [
            StoredRows(on_host(spec.rows - rows, spec.width, dtype, device), mine.view(rows, spec.width))
            for spec, rows, mine in zip(self.specs, below, on_drive, strict=True)
        ]
        self._draw() if weights is None else self._load(weights)
        self.caches: list[HottestRows | CachedSets] = [
            CachedSets(stored, rows, "lru", device)
            if plan.question.policy == "lru" and (rows := plan.cached_rows[index])
            else HottestRows(stored, torch.arange(plan.cached_rows[index]), device)
            for stored, index in zip(self.stored, which, strict=True)
        ]

    def look_up(self, ids: Sequence[Bags]) -> list[Tensor]:
        """Ids of samples on the device, by table → (b, D) vectors of each, or with `concat` (b, ids, D)."""
        return [
            _vectors(spec, cache, bags)
            for spec, cache, bags in zip(self.specs, self.caches, ids, strict=True)
        ]

    def counts(self) -> Ints:
        """(T, 4) so far: ids, those whose row was cached, rows that came from the host, of these from the drive."""
        counted = [(cache.counted, one.read) for cache, one in zip(self.caches, self.stored, strict=True)]
        return np.array([(one.lookups, one.hits, one.fetched, read) for one, read in counted], np.int64)

    def _draw(self) -> None:
        for name, spec, stored in zip(self.names, self.specs, self.stored, strict=True):
            part = Slice(table=0, form="whole", rows=spec.rows, end=spec.width, bags=1)
            for rows, first in stored.parts():
                fill(rows, part, first, name=name, rows=spec.rows, width=spec.width, seed=0)

    def _load(self, folder: Path) -> None:
        """Read the newest checkpoint in a folder. Raises InputError: there is none, or not of these tables."""
        if not (steps := Folder(folder).complete()):
            hint = "`meshwright run PLAN --checkpoint DIR` writes some"
            raise InputError(f"--weights {folder}: there is no checkpoint of a run", hint=hint)
        path, contents = Folder(folder).at(steps[0]), Contents()
        for name, stored in zip(self.names, self.stored, strict=True):
            pieces = [Piece(Box((first, 0), tuple(rows.shape)), rows) for rows, first in stored.parts()]
            contents[f"weights.tables.{name}"] = Held(stored.shape, stored.dtype, pieces)
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
        with catch_warnings():
            simplefilter("ignore", UserWarning)  # torch: this is one process
            load(
                dict(contents),
                storage_reader=PieceReader(path, manifest),
                planner=LoadPieces({}),
                no_dist=True,
            )


def _vectors(spec: TableSpec, cache: HottestRows | CachedSets, bags: Bags) -> Tensor:
    if spec.combiner == "concat":
        each = int(spec.pooling)
        return cache.look_up(bags.concatenated(each)).view(len(bags.lengths), each, spec.width)
    vectors = cache.look_up(bags)
    return vectors / bags.lengths.clamp(min=1)[:, None] if spec.combiner == "mean" else vectors


def _mapped(folder: Path | None, elements: int, dtype: torch.dtype) -> Tensor:
    """(elements,) of a file without a name in a folder of the drive. Raises HostError where there is no such room."""
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


def _require_room(plan: ServingPlan, kept: Ints, device: torch.device) -> None:
    """Raises HostError where the device's memory or the host's is too small."""
    tables, here = plan.question.tables, torch.device("cpu")
    needs = float(tables.counts @ (kept * tables.vector_bytes))
    if device.type == "cpu":
        needs += plan.cache_bytes
    else:
        require_memory("the cache", plan.cache_bytes, device, "plan a smaller one: `plan --serve --cache`")
    share = max(0.8 * free_bytes(here) / max(needs, 1.0), 1e-9)
    digit = 10.0 ** math.floor(math.log10(share))
    hint = f"--scale {math.floor(share / digit) * digit:g} serves that share of every table"
    require_memory("serving its tables", needs, here, hint)
