"""Clicks: made up ones can be learned, recorded ones are read as they are, and no id is mapped in silence."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from cost_models.errors import InputError
from cost_models.files.catalog import load_recommender
from cost_models.specs.recommender.model import RecommenderSpec, TableSpec
from executor.data.clicks import MadeUpClicks, RecordedClicks, row_at

NUMBERS, CATEGORIES = 13, 26


def criteo(out_of_range: str = "error", rows: int = 100) -> RecommenderSpec:
    tables = TableSpec.model_validate(
        {"name": "c", "rows": rows, "width": 4, "count": CATEGORIES, "out_of_range": out_of_range}
    )
    return RecommenderSpec(tables=(tables,), bottom_mlp=(4,), top_mlp=(8, 1))


def lines(count: int) -> str:
    """Text of samples: sample i has label i % 2, numbers i, category t of i + t, in hex; the fourth is missing."""
    return "".join(
        "\t".join(
            [str(i % 2), *[str(i)] * NUMBERS, *("" if t == 3 else f"{i + t:08x}" for t in range(CATEGORIES))]
        )
        + "\n"
        for i in range(count)
    )


def test_text_and_binary_are_read_alike(tmp_path) -> None:
    text, binary = tmp_path / "day.tsv", tmp_path / "day.bin"
    text.write_text(lines(10), "utf-8")
    records = [[i % 2, *[i] * NUMBERS, *(i + t for t in range(CATEGORIES))] for i in range(10)]
    np.array(records, dtype="<i4").tofile(binary)
    for path in (text, binary):
        clicks = RecordedClicks(path, criteo(), 4).slice(1, 1, 2)  # samples 6 and 7
        assert clicks.labels.flatten().tolist() == [0.0, 1.0]
        assert torch.equal(clicks.dense[:, 0], torch.tensor([6.0, 7.0]).log1p())
        assert clicks.ids[25].values.tolist() == [31, 32]
    assert RecordedClicks(text, criteo(), 4).slice(0, 0, 1).ids[3].lengths.tolist() == [0, 0, 0, 0]
    assert RecordedClicks(binary, criteo(), 8).slice(1, 0, 1).ids[0].values.tolist()[:3] == [8, 9, 0]


def test_ids_out_of_range_are_counted_and_told(tmp_path) -> None:
    path = tmp_path / "day.tsv"
    path.write_text(lines(10), "utf-8")
    with pytest.raises(InputError, match="ids that no table has a row for") as refused:
        RecordedClicks(path, criteo(rows=30), 10).slice(0, 0, 1)
    assert str(refused.value.problems[0]) == "row 10, table `c.21`: id 30 is not between 0 and 29"
    for way, ids in (("modulo", [27, 28, 29, 0, 1]), ("first", [27, 28, 29, 0, 0])):
        clicks = RecordedClicks(path, criteo(way, rows=30), 10)
        assert clicks.slice(0, 0, 1).ids[22].values.tolist()[5:] == ids
        told = clicks.stray_sentences([clicks.strays])[1]
        assert told.startswith("table `c.22`: 2 ids out of 0 to 29 were taken")
        assert told.endswith("the first is 30 in row 9 of day.tsv")


def test_ids_out_of_range_are_counted_over_all_ranks(tmp_path) -> None:
    """Each of two ranks meets one: one sentence, with the first row of the file."""
    path, model = _recorded(tmp_path / "a.bin", at17=(5, 100)), criteo("modulo")
    records = np.fromfile(path, dtype="<i4").reshape(-1, 40)
    records[2, 17] = 777
    records.tofile(path)
    ranks = [RecordedClicks(path, model, 8) for _ in range(2)]
    for rank, clicks in enumerate(ranks):
        clicks.slice(0, rank, 2)
    (told,) = ranks[0].stray_sentences([clicks.strays for clicks in ranks])
    assert told == (
        "table `c.3`: 2 ids out of 0 to 99 were taken modulo its rows; the first is 777 in row 3 of a.bin"
    )


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.tsv", b"", "no sample"),
        ("a.tsv", b"1\t2\n", "a.tsv:1  "),
        ("a.tsv", lines(1).replace("\t0", "\tx", 1).encode(), "a.tsv:1  "),
        ("a.bin", b"abc", "3 bytes are not samples of 160 bytes"),
    ],
)
def test_broken_files_are_refused(name: str, content: bytes, what: str, tmp_path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=what):
        RecordedClicks(tmp_path / name, criteo(), 4).slice(0, 0, 1)


@pytest.mark.parametrize("zipf", [None, 0.8, 1.0, 1.2])
def test_made_up_ids_follow_the_law_of_their_table(zipf: float | None) -> None:
    """The share of accesses of the first ten rows, against the sum it should be."""
    table = TableSpec(name="a", rows=1000, width=4, zipf=zipf)
    rows = row_at(np.random.default_rng(0).random(200_000), table)
    weights = np.arange(1, 1001.0) ** -(zipf or 0.0)
    assert (rows < 10).mean() == pytest.approx(weights[:10].sum() / weights.sum(), abs=0.005)


def test_made_up_ids_follow_a_histogram() -> None:
    table = TableSpec(name="a", rows=100, width=4, histogram=((2, 0.5), (8, 0.3), (90, 0.2)))
    rows = row_at(np.random.default_rng(0).random(50_000), table)
    assert [float((rows < end).mean()) for end in (2, 10, 100)] == pytest.approx([0.5, 0.8, 1.0], abs=0.01)


def test_ranks_see_the_same_samples_in_the_same_order() -> None:
    clicks = MadeUpClicks(_demo(), 32, seed=3, jagged=True)
    together = clicks.slice(5, 0, 1)
    parts = [clicks.slice(5, rank, 4) for rank in range(4)]
    assert torch.equal(torch.cat([part.dense for part in parts]), together.dense)
    assert torch.equal(torch.cat([part.labels for part in parts]), together.labels)
    for table, ids in enumerate(together.ids):
        assert torch.equal(torch.cat([part.ids[table].values for part in parts]), ids.values)


def _demo() -> RecommenderSpec:
    return load_recommender("dlrm-tiny")


@pytest.mark.parametrize("different", [1, 2, 5, 1000])
def test_the_area_counts_a_tie_as_half(different: int) -> None:
    """As by comparing all pairs, whatever the order of samples; ½ where all scores are the same."""
    from executor.recommender.train import area_of

    draw = np.random.default_rng(different)
    scores, labels = draw.integers(0, different, 200) / different, draw.random(200) < 0.3
    above = scores[labels][:, None] - scores[~labels]
    assert area_of(scores, labels) == pytest.approx(((above > 0) + (above == 0) / 2).mean())
    assert area_of(scores[::-1], labels[::-1]) == pytest.approx(area_of(scores, labels))


def _recorded(path: Path, **fields: tuple[int, int]) -> Path:
    """Samples in MLPerf's binary, with some fields (row, value) by column otherwise."""
    records = np.zeros((8, 40), dtype="<i4")
    for column, (row, value) in fields.items():
        records[row, int(column.removeprefix("at"))] = value
    records.tofile(path)
    return path


def test_files_that_do_not_fit_their_model_are_refused(tmp_path) -> None:
    tables = TableSpec(name="c", rows=100, width=4, count=CATEGORIES, pooling=3.0)
    model = RecommenderSpec(tables=(tables,), bottom_mlp=(4,), top_mlp=(8, 1))
    with pytest.raises(InputError, match="one id for each table, and the plan counts on more") as caught:
        RecordedClicks(_recorded(tmp_path / "a.bin"), model, 8)
    assert "table `c`: `pooling` says 3 ids" in str(caught.value)
    one = RecommenderSpec(tables=(TableSpec(name="a", rows=3, width=2),))
    with pytest.raises(InputError, match="takes 13 numbers, 1 ids"):
        RecordedClicks(_recorded(tmp_path / "a.bin"), one, 2)
    clicks = RecordedClicks(_recorded(tmp_path / "a.bin", at0=(4, 7)), criteo(), 8)
    with pytest.raises(InputError, match="row 5 has label 7; a label is 0 or 1"):
        clicks.slice(0, 0, 1)


def test_clicks_from_a_pipe_are_refused_with_a_hint(tmp_path) -> None:
    os.mkfifo(tmp_path / "clicks")
    with pytest.raises(InputError, match="read more than once") as caught:
        RecordedClicks(tmp_path / "clicks", criteo(), 8)
    assert "to a file" in caught.value.hint
