"""The sharding options of a class of tables that a search tries by default."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.memory.device import is_own_host
from cost_models.recommender.accesses import accesses_of
from cost_models.recommender.question import RecommenderQuestion
from cost_models.recommender.rows import Pair
from cost_models.specs.recommender.model import TableSpec
from cost_models.specs.recommender.sharding import Option

_LEAST_WIDTH = 16
"""Elements of the narrowest column shard: rows that are shorter waste the sectors that they come in."""
_HOT = (0.001, 0.01, 0.1)
_CACHED = (0.01, 0.1, 0.3)
_LEAST_SKEW = 2.0
"""How much more often than on average hot rows must be used for a copy or a cache of them to be tried."""


def default_options(question: RecommenderQuestion, *, hot: bool = False) -> tuple[Pair, ...]:
    """Options of every class that a search tries by default: those that the stack runs, with `hot` also copies of hot
    rows where it runs none. Those of a class follow one another."""
    return tuple(
        (index, option)
        for index, table in enumerate(question.model.classes)
        for option in _options(question, table, hot=hot or question.facts.copies_hot_rows)
    )


def _options(question: RecommenderQuestion, table: TableSpec, *, hot: bool) -> Iterator[Option]:
    cluster = question.cluster
    bases = [Option("whole"), *_columns(table, cluster.num_gpus)]
    if cluster.num_gpus > 1:
        bases.append(Option("row"))
    if cluster.nodes > 1 and cluster.gpus_per_node > 1:
        bases.append(Option("node-row"))
    yield from bases
    kept = tuple(_shares(table, _CACHED))
    numbered = hot and not table.hashed  # keys are not numbered by how often they are used
    hottest = tuple(_shares(table, _HOT)) if numbered else ()
    if cluster.num_gpus > 1:
        yield Option("copy")
        yield from (Option(base.form, base.shards, hot=share) for base in bases for share in hottest)
    if cluster.host_memory and not is_own_host(cluster):
        yield from (Option(base.form, base.shards, tier="host") for base in bases)
        yield from (
            Option(base.form, base.shards, tier="host", cached=cached) for base in bases for cached in kept
        )


def _columns(table: TableSpec, gpus: int) -> Iterator[Option]:
    """Options with `column` slices: each number that divides the width, with slices of at least `_LEAST_WIDTH`."""
    yield from (
        Option("column", shards)
        for shards in range(2, min(gpus, table.width // _LEAST_WIDTH) + 1)
        if table.width % shards == 0
    )


def _shares(table: TableSpec, shares: tuple[float, ...]) -> Iterator[float]:
    """Shares of rows that are used often enough for a copy or a cache, at least one row each."""
    if not table.zipf and not table.histogram:
        return
    accesses = accesses_of(table)
    for share in shares:
        rows = round(share * table.rows)
        if rows >= 1 and float(accesses.hits(rows)) >= _LEAST_SKEW * share:
            yield share
