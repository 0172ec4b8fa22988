"""Questions about small recommenders for tests."""

from __future__ import annotations

from typing import Any

from cost_models.files.catalog import load_cluster, load_profile, load_stack
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.constants import EmbeddingProfile, RecommenderStack
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import Option, parse_words
from cost_models.specs.recommender.training import RecommenderTraining


def asked(
    *tables: TableSpec,
    cluster: str = "dgx-h100",
    nodes: int = 1,
    gpus: int = 8,
    batch: int = 8192,
    facts: RecommenderStack | None = None,
    **training: Any,
) -> RecommenderQuestion:
    """A question about these tables, beside a small dense network."""
    model = RecommenderSpec(
        tables=tables or (TableSpec(name="t", rows=10**6, width=128, pooling=3.0),),
        bottom_mlp=(64, 32),
        interaction=Interaction(kind="none"),
        top_mlp=(64, 1),
    )
    return RecommenderQuestion(
        model=model,
        cluster=load_cluster(cluster).model_copy(update={"nodes": nodes, "gpus_per_node": gpus}),
        training=RecommenderTraining(global_batch=batch, **training),
        stack=load_stack("meshwright").model_copy(update={"recommender": facts}),
        hardware=load_profile("datasheet-gpu"),
        embedding=EmbeddingProfile(),
    )


def option_of(text: str) -> Option:
    """The option of one table, such as `column4`."""
    return parse_words(f"table:0={text}", 1)[0].option
