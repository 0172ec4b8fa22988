"""Recorded accesses as files: read as they stand, and refused where they count other rows."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from cost_models.documents import Document
from cost_models.errors import InputError
from cost_models.files.recommenders import read_histogram, read_tables, steps_of
from cost_models.recommender.accesses import accesses_of
from cost_models.specs.recommender.model import TableSpec


def test_files_of_counts_say_the_same(tmp_path: Path) -> None:
    counts = np.array([0, 5, 1, 0, 4])
    np.save(tmp_path / "by-row.npy", counts)
    (tmp_path / "by-row.csv").write_text("".join(f"{count}\n" for count in counts))
    (tmp_path / "pairs.csv").write_text("row,count\n1,5\n4,4\n2,1\n")
    read = [read_histogram(tmp_path / name, 5) for name in ("by-row.npy", "by-row.csv", "pairs.csv")]
    assert read[0] == read[1] == read[2] == ((1, 0.5), (1, 0.4), (1, 0.1), (1, 0.0), (1, 0.0))


def test_many_rows_become_steps_with_the_same_hits() -> None:
    counts = np.random.default_rng(0).permutation(np.rint(1e6 * np.arange(1.0, 200_001) ** -0.9))
    steps = steps_of(counts)
    accesses = accesses_of(TableSpec(name="a", rows=200_000, width=4, histogram=steps))
    direct = np.cumsum(np.sort(counts)[::-1]) / counts.sum()
    hottest = np.array([1, 500, 2000, 50_000, 150_000])
    np.testing.assert_allclose(accesses.hits(hottest), direct[hottest - 1], rtol=1e-4)
    assert len(steps) < 1500


def test_a_model_names_its_files(tmp_path: Path) -> None:
    np.save(tmp_path / "clicks.npy", np.array([3, 1]))
    tables = [{"name": "a", "rows": 2, "histogram": "clicks.npy"}, {"name": "b"}]
    read = read_tables(Document(source="model.yaml", value={"tables": tables}), tmp_path)
    assert read.value["tables"] == [
        {"name": "a", "rows": 2, "histogram": [[1, 0.75], [1, 0.25]]},
        {"name": "b"},
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1\n2\n3\n", "counts 3 rows, the table has 2"),
        ("5,1\n", "row 5 is not among the table's 2"),
        ("1,1\n1,1\n", "row 1 is counted twice"),
        ("1,1\nlots\n", "neither a count"),
        ("0\n0\n", "no access"),
        ("1\n-2\n", "below zero"),
        ("1\nnan\n", "below zero, or"),
    ],
)
def test_other_rows_and_no_counts_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "counts.csv"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        read_histogram(path, 2)
    assert says in str(raised.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["counts.csv", "counts.npy"])
def test_a_pipe_is_no_histogram(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="is no file; write what a pipe gives to one"):
        read_histogram(tmp_path / name, 2)


def test_an_array_of_objects_runs_no_code(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="no array of numbers"):
        read_histogram(tmp_path / "objects.npy", 2)
