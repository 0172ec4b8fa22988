"""Recommenders: of the catalogue, of other trainers, as users write them, and shardings as text."""

from __future__ import annotations

from typing import Any

import pytest
from calling import refusal
from hypothesis import given
from hypothesis import strategies as st

from cost_models.documents import Document
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.recommenders import is_foreign_recommender, read_recommender
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import FORMS, Option, Sharding, TablePlacement, parse_sharding


@pytest.mark.parametrize("name", catalog.names("recommenders"))
def test_every_recommender_loads_and_says_where_it_was_read(name: str) -> None:
    model = catalog.load_recommender(name)
    assert model.name == name
    assert model.source
    assert all(catalog.load_embedding_profile(own).source for own in catalog.names("embeddings"))


def test_published_sizes() -> None:
    for name, tables, parameters, lookups in [
        ("dlrm-dcnv2", 26, 26.1e9, 214),
        ("hugectr-7table", 7, 446e9, 163),
        ("hugectr-177table", 177, 66.3e9, 14450),
        ("hugectr-200table", 200, 103.9e9, 4550),
        ("hugectr-510table", 510, 114.6e9, 2670),
    ]:
        model = catalog.load_recommender(name)
        assert model.num_tables == tables
        assert model.embedding_parameters == pytest.approx(parameters, rel=2e-3)
        assert model.lookups == lookups


def document(value: Any) -> Document:
    return Document(source="tables.json", value=value)


def test_torchrec_tables_are_read() -> None:
    config = {"name": "a", "num_embeddings": 100, "embedding_dim": 64, "feature_names": ["f", "g"]}
    config |= {"pooling": "PoolingType.MEAN"}
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


def test_wrong_tables_are_named() -> None:
    for value, says in [
        ([], "lists no tables"),
        ([{"name": "a", "num_embeddings": 5}], "has no `embedding_dim`"),
        ([{"name": "a", "num_embeddings": 5, "embedding_dim": 4, "pooling": "MAX"}], "`MAX` is none of"),
        ({"slot_size_array": [1, 2], "ev_size": [8]}, "1 numbers for 2 slots"),
        ([{"name": "a", "num_embeddings": 0, "embedding_dim": 4}], "rows"),
    ]:
        assert says in refusal(read_recommender, document(value))


def model(*tables: TableSpec, **fields: Any) -> RecommenderSpec:
    return RecommenderSpec(tables=tables, **fields)


def test_tables_are_numbered_through_their_classes() -> None:
    deep = TableSpec(name="a", rows=10, width=8, count=2, pooling=3.0), TableSpec(name="b", rows=5, width=8)
    one = model(*deep, wide=(TableSpec(name="w", rows=15, width=1),))
    assert one.num_tables == 4
    assert one.class_of_table == (0, 0, 1, 2)
    assert one.table_names == ("a.0", "a.1", "b", "w")
    assert one.embedding_parameters == 2 * 80 + 40 + 15
    assert one.lookups == 8.0


def test_widths_may_differ_where_nothing_multiplies_them() -> None:
    tables = TableSpec(name="a", rows=10, width=8), TableSpec(name="b", rows=10, width=4)
    assert model(*tables, interaction=Interaction(kind="none")).num_tables == 2
    with pytest.raises(InputError, match="one width"):
        model(*tables)


def test_a_wrong_table_is_refused() -> None:
    for fields, says in [
        ({"rows": 0}, "greater than 0|above zero|at least"),
        ({"combiner": "max"}, "combiner"),
        ({"histogram": ((3, 0.9), (6, 0.1))}, "counts 9 rows"),
        ({"histogram": ((8, 0.1), (2, 0.9))}, "used most"),
        ({"histogram": ((2, 0.9), (8, 0.1)), "zipf": 1.0}, "leave one out"),
    ]:
        with pytest.raises(InputError, match=says):
            TableSpec(**{"name": "a", "rows": 10, "width": 8} | fields)


@st.composite
def options(draw: st.DrawFn) -> Option:
    form = draw(st.sampled_from(FORMS))
    tier = "device" if form == "copy" else draw(st.sampled_from(["device", "host"]))
    shares = st.sampled_from([0.0, 0.02, 0.5, 1e-06])
    return Option(
        form=form,
        shards=draw(st.integers(2, 64)) if form == "column" else 1,
        hot=0.0 if form == "copy" else draw(shares),
        tier=tier,  # type: ignore[arg-type]
        cached=draw(shares) if tier == "host" else 0.0,
    )


@st.composite
def placed(draw: st.DrawFn) -> TablePlacement:
    option = draw(options())
    count = option.shards if option.placed else 0
    return TablePlacement(option, tuple(draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count))))


@given(st.lists(placed(), min_size=1, max_size=12))
def test_what_is_written_is_read_back(tables: list[TablePlacement]) -> None:
    sharding = Sharding(tuple(tables))
    assert parse_sharding(str(sharding), len(tables)) == sharding


def test_neighbours_with_one_option_share_a_word() -> None:
    column = Option("column", 2)
    tables = TablePlacement(column, (0, 4)), TablePlacement(column, (1, 5)), TablePlacement(Option("row"))
    assert str(Sharding(tables)) == "table:0-1=column2@0,4,1,5 table:2=row"


def test_a_wrong_word_is_named() -> None:
    for text, says in [
        ("table:0-1=whole@3", "names 1 places and has 2 shards"),
        ("table:0-1=rows", "no way to split a table"),
        ("table:0-1=copy3", "have a number of slices"),
        ("table:0-1=copy/host", "a copy on every GPU is not in host memory"),
        ("table:0-1=column1@0,1", "two slices or more"),
    ]:
        with pytest.raises(ValueError, match=says):
            parse_sharding(text, 2)
