"""Recorded accesses of a table: a file with a count for each row, read as the steps of a `TableSpec`'s histogram.

A file is `.npy` (one count for each row, by row or by rank) or text: a count a line for each row, or `row,count` with
rows that nothing used left out. Counts are sorted, so it does not matter which rows they are of.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cost_models.arrays import Array
from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files.reading import is_pipe

HEAD = 1024
"""Rows that are steps of their own, those used most."""
STEPS_PER_E_FOLD = 64
"""Steps in which ranks beyond grow by a factor e."""
MOST_FILE_BYTES = 2**34

Counts = Array
Steps = tuple[tuple[int, float], ...]


def read_histogram(path: str | Path, rows: int) -> Steps:
    """Read a file of access counts of an embedding table with `rows` rows as histogram steps (rows, share of
    accesses).

    Raises:
        InputError: it cannot be read, holds what is no count, or counts other rows than the table has.
    """
    path = Path(path)
    if is_pipe(path):
        raise InputError(f"`{path}` is no file; write what a pipe gives to one")
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise InputError(f"`{path}` is larger than {MOST_FILE_BYTES >> 30} GiB; it is no histogram")
        counts = _of_array(path, rows) if path.suffix == ".npy" else _of_text(path, rows)
    except OSError as error:
        raise InputError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from None
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise InputError(f"`{path}` holds counts below zero, or that are no numbers")
    if not counts.sum() > 0:
        raise InputError(f"`{path}` counts no access at all")
    return steps_of(counts)


def steps_of(counts: Counts) -> Steps:
    """Convert access counts of all rows of a table into steps (rows, share of accesses), hottest rows first. Some
    rows alone, then ever more together."""
    ranked = np.sort(np.asarray(counts, np.float64))[::-1]
    edges = np.arange(min(len(ranked), HEAD) + 1)
    if len(ranked) > HEAD:
        folds = np.log(len(ranked) / HEAD)
        tail = np.rint(HEAD * np.exp(np.arange(1, int(folds * STEPS_PER_E_FOLD) + 1) / STEPS_PER_E_FOLD))
        used = int(np.count_nonzero(ranked))
        edges = np.unique(np.concatenate((edges, tail.astype(np.int64), [used, len(ranked)])))
        edges = edges[edges <= len(ranked)]
    shares = np.add.reduceat(ranked, edges[:-1]) / ranked.sum()
    return tuple(zip(np.diff(edges).tolist(), shares.tolist(), strict=True))


def _of_array(path: Path, rows: int) -> Counts:
    try:
        counts = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        raise InputError(f"`{path}` is no array of numbers (`numpy.save` writes one)") from None
    if counts.ndim != 1 or counts.dtype.kind not in "iuf":
        holds = f"`{path}` holds {counts.dtype} of shape {counts.shape}"
        raise InputError(f"{holds}; a count for each row is needed")
    _require_rows(path, len(counts), rows)
    return np.asarray(counts, np.float64)


def _of_text(path: Path, rows: int) -> Counts:
    """Read the access counts of a table's rows from a text file with lines of a count, or of `row,count`. A first
    line of words is a header."""
    counts: list[float] = []
    pairs: dict[int, float] = {}
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            words = [word.strip() for word in line.split(",")]
            if not line.strip() or (number == 1 and not _is_number(words[-1])):
                continue
            message = ""
            if len(words) > 2 or not all(map(str.isdecimal, words[:-1])) or not _is_number(words[-1]):
                message = f"`{printable(line.strip(), limit=40)}` is neither a count nor `row,count`"
            elif len(words) == 1:
                counts.append(float(words[0]))
            elif (row := int(words[0])) >= rows:
                message = f"row {row} is not among the table's {rows:,}, which begin with 0"
            elif row in pairs:
                message = f"row {row} is counted twice"
            else:
                pairs[row] = float(words[1])
            if message:
                raise InputError(f"cannot read `{path}`", problems=[Problem(f"{path}:{number}", message)])
    if counts and pairs:
        raise InputError(f"`{path}` has lines of counts and lines of `row,count`")
    if pairs:
        all_counts = np.zeros(rows)
        all_counts[: len(pairs)] = list(pairs.values())
        return all_counts
    _require_rows(path, len(counts), rows)
    return np.array(counts)


def _require_rows(path: Path, row_count: int, rows: int) -> None:
    if row_count != rows:
        hint = "write `row,count` lines to leave out rows that nothing used"
        raise InputError(f"`{path}` counts {row_count:,} rows, the table has {rows:,}", hint=hint)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
