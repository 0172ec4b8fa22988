"""The options that a search covers: those worth a try, and those that the user names."""

from __future__ import annotations

from cost_models.recommender.options import default_options
from cost_models.recommender.priced import PricedOptions
from cost_models.recommender.prices.pricing import priced_options
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Sharding
from planner.recommender.restrictions import ShardingRestrictions


def covered_options(
    question: RecommenderQuestion, restrictions: ShardingRestrictions, sharding: Sharding | None = None
) -> PricedOptions:
    """Prices of all options that a search within these restrictions covers, and of those of a given sharding."""
    which = question.model.class_of_table
    named = [
        (which[table], said.option)
        for said in restrictions.fixed
        for table in range(said.first, said.last + 1)
    ]
    if sharding is not None:
        named += [(which[table], placed.option) for table, placed in enumerate(sharding.tables)]
    pairs = dict.fromkeys([*default_options(question), *named])
    return priced_options(question, sorted(pairs, key=lambda pair: pair[0]))
