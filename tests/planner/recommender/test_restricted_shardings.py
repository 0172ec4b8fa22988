"""Restrictions of shardings, and what is said where nothing fits."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from shardings import random_prices

from cost_models.errors import DoesNotFitError, InputError, UnknownNameError
from cost_models.files.loading import resolve_cluster
from cost_models.files.recommenders import resolve_recommender
from cost_models.recommender.question import RecommenderQuestion, complete_recommender
from cost_models.specs.recommender.model import RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import Option, TableWord
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.units import format_bytes
from planner.formats.torchrec import not_in_torchrec
from planner.recommender.restrictions import ShardingLimits, ShardingRestrictions, covered_options
from planner.recommender.search import plan_sharding

PRICES = replace(random_prices(11, gpus=4), device_memory=1e12, host_memory=1e12)


def test_a_fixed_table_is_held_and_lies_as_fixed() -> None:
    row = int(np.flatnonzero(PRICES.shards == 1)[0])
    option = PRICES.options[row]
    table = int(PRICES.counts[: PRICES.table_class[row]].sum())
    limits = ShardingRestrictions(fixed=(TableWord(table, table, option, (1,)),))
    found = plan_sharding(PRICES, restrictions=limits)
    assert (found.sharding.tables[table].option, found.sharding.tables[table].at) == (option, (1,))
    assert found.certificate.value >= plan_sharding(PRICES).certificate.value * (1 - 1e-9)
    free = plan_sharding(PRICES, restrictions=ShardingRestrictions(fixed=(TableWord(table, table, option),)))
    assert free.sharding.tables[table].option == option
    assert free.certificate.value <= found.certificate.value * (1 + 1e-9)


def test_tables_kept_together_lie_whole_on_one_gpu() -> None:
    prices = next(
        replace(one, device_memory=1e12)
        for one in (random_prices(seed, gpus=4) for seed in range(100))
        if all(Option("whole") in np.array(one.options)[one.table_class == c] for c in range(len(one.counts)))
    )
    found = plan_sharding(prices, restrictions=ShardingRestrictions(together=((0, 2),)))
    first, other = found.sharding.tables[0], found.sharding.tables[2]
    assert first.option.form == other.option.form == "whole"
    assert first.at == other.at
    assert found.certificate.gap <= 1e-6


def test_forbidding_host_memory_forbids_what_is_cached_from_it() -> None:
    inside, cached = Option("whole", tier="host"), Option("whole", tier="host", cached=0.1)
    host, cache = (ShardingRestrictions(forbidden=frozenset({word})) for word in ("host", "cached"))
    assert [host.allows(one) for one in (inside, cached, Option("row"))] == [False, False, True]
    assert [cache.allows(one) for one in (inside, cached, Option("row"))] == [True, False, True]


def test_forbidden_forms_are_not_used() -> None:
    used = {one.option.form for one in plan_sharding(PRICES).sharding.tables}
    assert used
    others = {option.form for option in PRICES.options} - used
    assert others, "the question does not tell"
    for form in used:
        limits = ShardingRestrictions(forbidden=frozenset({form}))
        try:
            found = plan_sharding(PRICES, restrictions=limits)
        except InputError:
            continue  # a table with that form alone
        assert form not in {one.option.form for one in found.sharding.tables}


def test_restrictions_as_users_write_them() -> None:
    tables = (TableSpec(name="user", rows=10, width=8), TableSpec(name="item", rows=10, width=8, count=2))
    model = RecommenderSpec(tables=tables)
    limits = ShardingLimits(fix=("table:0=row",), together=("user,item.1",), forbid=("copy,hot",))
    found = limits.read(model)
    assert found.fixed == (TableWord(0, 0, Option("row")),)
    assert found.together == ((0, 2),)
    assert not found.allows(Option("row", hot=0.1))
    assert not found.allows(Option("copy"))
    assert found.allows(Option("row", tier="host"))
    for wrong in ({"fix": ("table:9=row",)}, {"together": ("user,nobody",)}, {"together": ("user",)}):
        with pytest.raises((InputError, UnknownNameError)):
            ShardingLimits(**wrong).read(model)
    with pytest.raises(UnknownNameError):
        ShardingLimits(forbid=("copies",)).read(model)


def dcnv2(stack: str | None = None) -> RecommenderQuestion:
    model = resolve_recommender("dlrm-dcnv2")
    job = RecommenderTraining(global_batch=55296)
    return complete_recommender(model, resolve_cluster("dgx-h100", 8), job, stack=stack)


@pytest.mark.parametrize(
    ("stack", "allow", "hot"), [(None, (), False), (None, ("hot",), True), ("meshwright", (), True)]
)
def test_hot_rows_are_searched_where_the_stack_copies_them_or_they_are_allowed(
    stack: str | None, allow: tuple[str, ...], hot: bool
) -> None:
    """TorchRec was planned shardings that its own export refused."""
    question = dcnv2(stack)
    limits = ShardingLimits(allow=allow).read(question.model)
    found = covered_options(question, limits).options
    assert any(one.hot for one in found) is hot
    assert hot or not [why for one in found if (why := not_in_torchrec(one))]
    with pytest.raises(UnknownNameError):
        ShardingLimits(allow=("offload",)).read(question.model)


def test_contradictions_are_named() -> None:
    said = TableWord(0, 0, Option("column", shards=7))
    with pytest.raises(InputError, match="cannot be held as `column7`"):
        plan_sharding(PRICES, restrictions=ShardingRestrictions(fixed=(said,)))
    row = next(one for one in PRICES.options if one.placed)
    fixed = TableWord(0, 0, row, (9,) * row.shards)
    with pytest.raises(InputError):
        plan_sharding(PRICES, restrictions=ShardingRestrictions(fixed=(fixed,)))
    both = ShardingRestrictions(fixed=(TableWord(0, 0, row),), forbidden=frozenset({row.form}))
    with pytest.raises(InputError, match="also forbidden"):
        plan_sharding(PRICES, restrictions=both)


def test_a_table_that_fits_nowhere_is_named_with_what_would_hold_it() -> None:
    least = float((PRICES.shard_bytes + PRICES.everywhere_bytes).min())
    with pytest.raises(DoesNotFitError) as caught:
        plan_sharding(
            replace(PRICES, host_memory=0.0),
            restrictions=ShardingRestrictions(max_memory=float(PRICES.fixed_bytes.max()) + 0.5 * least),
        )
    assert re.fullmatch(r"`.*` needs .* of a GPU's .*", caught.value.problems[0].what)
    assert "a GPU would do" in caught.value.hint


def test_tables_that_do_not_fit_together_say_how_much_they_need() -> None:
    row = np.array([int(np.flatnonzero(PRICES.table_class == c)[0]) for c in range(len(PRICES.counts))])
    whole = replace(
        PRICES,
        options=tuple(Option("whole") for _ in row),
        table_class=np.arange(len(row)),
        shards=np.ones(len(row), dtype=np.int64),
        shard_bytes=np.full((len(row), 1), 1e9),
        everywhere_bytes=np.zeros((len(row), 1)),
        shard_host_bytes=np.zeros(len(row)),
        everywhere_host_bytes=np.zeros(len(row)),
        shard_seconds=PRICES.shard_seconds[row],
        everywhere_seconds=PRICES.everywhere_seconds[row],
        gpus=2,
        gpus_per_node=2,
        fixed_bytes=np.zeros(1),
        device_memory=1.9e9,
    )
    with pytest.raises(DoesNotFitError) as caught:
        plan_sharding(whole)
    assert caught.value.problems[0].what.startswith(f"{format_bytes(4e9)} or more")
    assert caught.value.hint.startswith("they need 3 GPUs")
