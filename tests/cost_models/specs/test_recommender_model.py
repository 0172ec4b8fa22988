"""Recommenders as users write them: numbering of tables, and contradictions that are named."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.errors import InputError
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec


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


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rows": 0}, "greater than 0|above zero|at least"),
        ({"combiner": "max"}, "combiner"),
        ({"histogram": ((3, 0.9), (6, 0.1))}, "counts 9 rows"),
        ({"histogram": ((8, 0.1), (2, 0.9))}, "used most"),
        ({"histogram": ((2, 0.9), (8, 0.1)), "zipf": 1.0}, "leave one out"),
    ],
)
def test_a_wrong_table_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        TableSpec(**{"name": "a", "rows": 10, "width": 8} | fields)


def test_two_tables_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="two tables are called `a`"):
        model(TableSpec(name="a", rows=10, width=8), TableSpec(name="a", rows=9, width=8))
