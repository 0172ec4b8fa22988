"""Recommenders of the catalogue and of other trainers' files."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.documents import Document
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.recommenders import is_foreign_recommender, read_recommender


@pytest.mark.parametrize("name", catalog.names("recommenders"))
def test_every_recommender_loads_and_says_where_it_was_read(name: str) -> None:
    model = catalog.load_recommender(name)
    assert model.name == name
    assert model.source


@pytest.mark.parametrize("name", catalog.names("embeddings"))
def test_every_embedding_profile_says_where_it_comes_from(name: str) -> None:
    assert catalog.load_embedding_profile(name).source


@pytest.mark.parametrize(
    ("name", "tables", "parameters", "lookups"),
    [
        ("dlrm-dcnv2", 26, 26.1e9, 214),
        ("hugectr-7table", 7, 446e9, 163),
        ("hugectr-177table", 177, 66.3e9, 14450),
        ("hugectr-200table", 200, 103.9e9, 4550),
        ("hugectr-510table", 510, 114.6e9, 2670),
    ],
)
def test_published_sizes(name: str, tables: int, parameters: float, lookups: float) -> None:
    model = catalog.load_recommender(name)
    assert model.num_tables == tables
    assert model.embedding_parameters == pytest.approx(parameters, rel=2e-3)
    assert model.lookups == lookups


def document(value: Any) -> Document:
    return Document(source="tables.json", value=value)


def test_torchrec_tables_are_read() -> None:
    config = {
        "name": "a",
        "num_embeddings": 100,
        "embedding_dim": 64,
        "feature_names": ["f", "g"],
        "pooling": "PoolingType.MEAN",
    }
    found = document(
        [config, config | {"name": "b", "pooling_factor": 5, "feature_names": ["h"], "pooling": "SUM"}]
    )
    assert is_foreign_recommender(found)
    model = read_recommender(found)
    assert [(one.rows, one.width, one.pooling, one.combiner) for one in model.tables] == [
        (100, 64, 2.0, "mean"),
        (100, 64, 5.0, "sum"),
    ]
    assert model.interaction.kind == "dot"


def test_hugectr_slots_are_read() -> None:
    model = read_recommender(
        document({"slot_size_array": [10, 20], "multi_hot_sizes": [3, 1], "ev_size": [8, 16]})
    )
    assert [(one.rows, one.width, one.pooling) for one in model.tables] == [(10, 8, 3.0), (20, 16, 1.0)]
    assert model.interaction.kind == "none"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "lists no tables"),
        ([{"name": "a", "num_embeddings": 5}], "has no `embedding_dim`"),
        ([{"name": "a", "num_embeddings": 5, "embedding_dim": 4, "pooling": "MAX"}], "`MAX` is none of"),
        ({"slot_size_array": [1, 2], "ev_size": [8]}, "1 numbers for 2 slots"),
        ([{"name": "a", "num_embeddings": 0, "embedding_dim": 4}], "rows"),
    ],
)
def test_wrong_tables_are_named(value: Any, says: str) -> None:
    with pytest.raises(InputError) as error:
        read_recommender(document(value))
    assert says in str(error.value) or says in repr(error.value.problems)
