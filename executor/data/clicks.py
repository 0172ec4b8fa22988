"""Batches of clicks for recommender models: drawn at random, or read from Criteo's files.

**Drawn clicks** have something in them to learn. Samples of a step follow from (seed, step) alone, so every sharding
sees the same ones in the same order and each rank takes its slice. Ids follow the accesses of their tables; every row
has a hidden worth, and a sample is clicked the likelier the more its ids and dense features are worth. So a model
learns the worth of the rows used most first.

**Recorded clicks** are Criteo's text as it is published, or MLPerf's binary of it.

text     a line a sample: label, 13 whole numbers, 26 categories in hex, tabs between; a field may be empty
binary   40 int32 a sample, little-endian: label, 13 whole numbers, 26 row numbers (`*.bin`)

Numbers become log(1 + n), below zero 0, as in the reference implementation of DLRM; an empty category is an empty bag.
Samples come in their order, each step the next ones, and from the beginning again after the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cost_models.arrays import Array, Bools, Ints
from cost_models.documents import printable
from cost_models.errors import InputError, Problem, first_few
from cost_models.files.reading import is_pipe
from cost_models.recommender.accesses import accesses_of
from cost_models.specs.recommender.model import RecommenderSpec, TableSpec
from executor.embeddings.bags import Bags
from executor.pinned import carried_to

_STRENGTH = 3.0
"""Standard deviation of a sample's worth, in units of log odds."""


@dataclass(frozen=True, slots=True)
class Clicks:
    """Samples of one step of a recommender: dense features, ids by table, and labels."""

    dense: Tensor
    """Dense features, (b, features)."""
    ids: Sequence[Bags]
    """Bags of ids by table, a bag for each sample."""
    labels: Tensor
    """Labels 0 or 1, (b, tasks)."""

    def to(self, device: torch.device) -> Clicks:
        """Copy of the clicks on a device."""
        dense, labels = carried_to(device, self.dense), carried_to(device, self.labels)
        return Clicks(dense, [one.to(device) for one in self.ids], labels)


class MadeUpClicks:
    """Random samples of a run, by step; `jagged` varies the number of ids of a sample, down to none."""

    name = "made-up"
    strays: Sequence[Sequence[int]] = ()
    """Stray ids of each table: none."""

    def __init__(self, model: RecommenderSpec, global_batch: int, *, seed: int, jagged: bool = False) -> None:
        self.model, self.global_batch, self.seed, self.jagged = model, global_batch, seed, jagged
        self.tables = [model.classes[index] for index in model.class_of_table]

    def stray_sentences(self, of_ranks: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        """Sentences on tables with stray ids: none, as every drawn id has a row."""
        return []

    def slice(self, step: int, rank: int, ranks: int) -> Clicks:
        """Samples of one of `ranks` ranks in a step; steps count from 0."""
        share = self.global_batch // ranks
        first, last = rank * share, (rank + 1) * share
        draw = np.random.default_rng((self.seed, step))
        dense = draw.standard_normal((self.global_batch, self.model.dense_features))[first:last]
        chance = draw.random((self.global_batch, self.model.top_mlp[-1]))[first:last]
        ids = [self.ids(table, step, first, last) for table in range(len(self.tables))]
        worth = self._worth(dense, ids)
        labels = chance < 1.0 / (1.0 + np.exp(-_STRENGTH * worth))[:, None]
        features, clicked = dense.astype(np.float32), labels.astype(np.float32)
        return Clicks(torch.from_numpy(features), ids, torch.from_numpy(clicked))

    def ids(self, table: int, step: int, first: int, last: int) -> Bags:
        """Ids of one table for samples `first` to `last` − 1, a bag for each sample."""
        spec = self.tables[table]
        draw = np.random.default_rng((self.seed, step, table))
        lengths = self._lengths(spec, draw)
        places = draw.random(int(lengths.sum()))
        ends = np.cumsum(lengths)
        start, end = (int(ends[at - 1]) if at else 0 for at in (first, last))
        rows, lengths = row_at(places[start:end], spec), lengths[first:last].astype(np.int32)
        return Bags(torch.from_numpy(rows), torch.from_numpy(lengths))

    def _lengths(self, spec: TableSpec, draw: np.random.Generator) -> Ints:
        """Number of ids of each sample of the global batch for one table."""
        if self.jagged:
            longest = int(spec.pooling) if spec.combiner == "concat" else int(2 * spec.pooling)
            return draw.integers(0, longest + 1, self.global_batch)
        low = int(spec.pooling)
        return low + (draw.random(self.global_batch) < spec.pooling - low).astype(np.int64)

    def _worth(self, dense: Array, ids: Sequence[Bags]) -> Array:
        """Hidden worth of each sample, (b,), of variance about 1: half from dense features, half from tables."""
        worth = dense @ hidden_worth(np.arange(dense.shape[1]), -1, self.seed) / max(1, dense.shape[1]) ** 0.5
        for table, bags in enumerate(ids):
            of_values, lengths = hidden_worth(bags.values.numpy(), table, self.seed), bags.lengths.numpy()
            total = np.bincount(bags.bag_of_value().numpy(), of_values, minlength=len(lengths))
            worth = worth + total / np.sqrt(np.maximum(lengths, 1) * len(ids))
        return np.asarray(worth / np.sqrt(2.0), dtype=np.float64)


def row_at(places: Array, table: TableSpec) -> Ints:
    """Rows of a table at quantiles, in [0, 1), of its accesses, where rows are ordered from the most used on."""
    rows = accesses_of(table).rows_for(places)
    return np.asarray(rows, dtype=np.int64).clip(0, table.rows - 1)


def hidden_worth(rows: Ints, table: int, seed: int) -> Array:
    """Hidden worth of each row of a table, of mean 0 and variance 1, which follows from seed, table and row."""
    with np.errstate(over="ignore"):
        mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed += np.uint64((table + 2) * 0xBF58476D1CE4E5B9 + seed * 0x94D049BB133111EB & (1 << 64) - 1)
        for shift in (30, 27, 31):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(0xBF58476D1CE4E5B9)
    shares = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
    worth: Array = shares * 12.0**0.5 - 3.0**0.5
    return worth


NUMBERS, CATEGORIES = 13, 26
_FIELDS = 1 + NUMBERS + CATEGORIES
_BINARY = ".bin"
_CHUNK = 1 << 24


class RecordedClicks:
    """Samples of a file of clicks, by step.

    Raises:
        InputError: no such file, a broken one, a model of other tables, or ids that no table has a row for where its
            `out_of_range` says that they are a mistake; with table and row of the file.
    """

    def __init__(self, path: Path, model: RecommenderSpec, global_batch: int) -> None:
        self.path, self.global_batch = path, global_batch
        self.name = str(path)
        self.tables = [model.classes[index] for index in model.class_of_table]
        self.table_names = model.table_names
        self.strays: list[Sequence[int]] = [(0, 0, 0) for _ in self.tables]
        """Stray ids of each table so far on this rank, for which it has no row: their number, and of the first the row
        of the file, from 1, and its value.
        """
        if is_pipe(path):
            hint = "write what the pipe gives to a file"
            raise InputError(f"{path}: clicks are read more than once", hint=hint)
        if not path.is_file():
            raise InputError(f"{path}: there is no such file of clicks")
        if len(self.tables) != CATEGORIES or model.dense_features != NUMBERS or model.top_mlp[-1] != 1:
            raise InputError(
                f"{path}: a sample has {NUMBERS} numbers, {CATEGORIES} ids and one label; model `{model.name}` takes"
                f" {model.dense_features} numbers, {len(self.tables)} ids and {model.top_mlp[-1]} labels"
            )
        pooled = {one.name: one.pooling for one in model.classes if one.pooling > 1}
        text = "`pooling` says {:g} ids of a sample"
        if problems := [Problem(f"table `{name}`", text.format(ids)) for name, ids in pooled.items()]:
            raise InputError(
                f"{path}: a sample has one id for each table, and the plan counts on more",
                problems=first_few(problems),
                hint="plan with `pooling: 1` of these tables",
            )
        self._records: npt.NDArray[np.int32] | None = None
        if path.suffix == _BINARY:
            self._records = _mapped(path)
            self.samples = len(self._records)
        else:
            self._lines = _line_starts(path)
            self.samples = len(self._lines) - 1
        if not self.samples:
            raise InputError(f"{path}: it holds no sample")

    def slice(self, step: int, rank: int, ranks: int) -> Clicks:
        """Samples of one of `ranks` ranks in a step; steps count from 0."""
        share = self.global_batch // ranks
        first = step * self.global_batch + rank * share
        samples = np.arange(first, first + share) % self.samples
        if self._records is not None:
            fields = self._records[samples].astype(np.int64)
            present = np.ones((share, CATEGORIES), dtype=np.bool_)
        else:
            fields, present = self._parsed(samples)
        wrong_labels = np.flatnonzero((fields[:, 0] != 0) & (fields[:, 0] != 1))
        if len(wrong_labels):
            row, label = int(samples[wrong_labels[0]]) + 1, int(fields[wrong_labels[0], 0])
            raise InputError(f"{self.path.name}: row {row} has label {label}; a label is 0 or 1")
        ids = fields[:, 1 + NUMBERS :]
        rows = np.array([spec.rows for spec in self.tables])
        strays = present & ((ids < 0) | (ids >= rows)) & ~np.array([spec.hashed for spec in self.tables])
        self._require_rows(ids, strays, samples)
        numbers = np.log1p(np.maximum(fields[:, 1 : 1 + NUMBERS], 0)).astype(np.float32)
        columns = zip(range(CATEGORIES), ids.T, present.T, strays.T, strict=True)
        bags = [self._bags(*column, samples) for column in columns]
        labels = torch.from_numpy(fields[:, :1].astype(np.float32))
        return Clicks(torch.from_numpy(numbers), bags, labels)

    def stray_sentences(self, of_ranks: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        """Sentences on tables with stray ids, given `strays` of all ranks."""
        sentences = []
        counts = zip(*of_ranks, strict=True)
        for table, name, of_table in zip(self.tables, self.table_names, counts, strict=True):
            total = sum(count for count, _, _ in of_table)
            strays = [(sample, first_id) for count, sample, first_id in of_table if count]
            if strays:
                sample, first_id = min(strays)
                how = "modulo its rows" if table.out_of_range == "modulo" else "for its first row"
                sentences.append(
                    f"table `{name}`: {total} ids out of 0 to {table.rows - 1} were taken {how};"
                    f" the first is {first_id} in row {sample} of {self.path.name}"
                )
        return sentences

    def _bags(self, table: int, ids: Ints, present: Bools, strays: Bools, samples: Ints) -> Bags:
        """Bags of one table's ids; stray ids are counted and mapped to rows as the table's `out_of_range` says."""
        spec = self.tables[table]
        if strays.any():
            at, (count, *first) = int(strays.argmax()), self.strays[table]
            first = first if count else [int(samples[at]) + 1, int(ids[at])]
            self.strays[table] = (count + int(strays.sum()), *first)
            ids = np.where(strays, ids % spec.rows if spec.out_of_range == "modulo" else 0, ids)
        return Bags(torch.from_numpy(ids[present]), torch.from_numpy(present.astype(np.int32)))

    def _require_rows(self, ids: Ints, strays: Bools, samples: Ints) -> None:
        """Raise InputError for stray ids, (b, tables), of tables whose spec says that these are mistakes."""
        problems = []
        for table, spec in enumerate(self.tables):
            places = np.flatnonzero(strays[:, table])
            if spec.out_of_range == "error" and len(places):
                more = f", nor are {len(places) - 1} more of this step" if len(places) > 1 else ""
                what = f"id {int(ids[places[0], table])} is not between 0 and {spec.rows - 1}{more}"
                row = int(samples[places[0]]) + 1
                problems.append(Problem(f"row {row}, table `{self.table_names[table]}`", what))
        if problems:
            raise InputError(
                f"{self.path.name}: ids that no table has a row for",
                problems=first_few(problems),
                hint="`out_of_range: modulo` or `first` of the table maps them, and counts them",
            )

    def _parsed(self, samples: Ints) -> tuple[Ints, Bools]:
        """Fields of these samples' lines of text, and which of their categories are not empty."""
        fields = np.zeros((len(samples), _FIELDS), dtype=np.int64)
        present = np.zeros((len(samples), CATEGORIES), dtype=np.bool_)
        with self.path.open("rb") as stream:
            for place, sample in enumerate(samples):
                stream.seek(int(self._lines[sample]))
                line = stream.readline().rstrip(b"\r\n").split(b"\t")
                try:
                    fields[place], present[place] = _numbers(line)
                except (ValueError, OverflowError):
                    raise InputError(
                        f"{self.path.name}:{int(sample) + 1}  `{printable(line[0].decode('latin-1'), limit=20)}...`"
                        f" is no label, {NUMBERS} numbers and {CATEGORIES} categories in hex"
                    ) from None
        return fields, present


def _numbers(line: list[bytes]) -> tuple[list[int], list[bool]]:
    """Fields of one line of text as numbers, and which categories are not empty."""
    if len(line) != _FIELDS or line[0] not in (b"0", b"1"):
        raise ValueError("another number of fields")
    numbers = [int(field or b"0") for field in line[: 1 + NUMBERS]]
    categories = line[1 + NUMBERS :]
    return numbers + [int(field or b"0", 16) for field in categories], [bool(field) for field in categories]


def _mapped(path: Path) -> npt.NDArray[Any]:
    """Memory-mapped samples of a binary file, (samples, 40) int32; raises InputError for a broken file."""
    size = path.stat().st_size
    if size % (4 * _FIELDS) or not size:
        raise InputError(f"{path}: {size} bytes are not samples of {4 * _FIELDS} bytes each")
    return np.memmap(path, dtype="<i4", mode="r").reshape(-1, _FIELDS)


def _line_starts(path: Path) -> Ints:
    """Byte at which each line of a file begins, and the file's end, (lines + 1,)."""
    starts, at = [np.zeros(1, dtype=np.int64)], 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            starts.append(np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")) + at + 1)
            at += len(chunk)
    line_starts = np.concatenate(starts)
    return line_starts if line_starts[-1] == at else np.append(line_starts, at)
