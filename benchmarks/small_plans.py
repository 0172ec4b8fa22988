"""A model small enough to be trained many times over on a laptop, and plans for it."""

from __future__ import annotations

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files.catalog import load_recommender
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.recommender.question import complete_recommender
from cost_models.specs.recommender.sharding import parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import LatentAttention, TransformerSpec
from planner.plan import Plan, make_plan
from planner.recommender.plan import RecommenderPlan, make_recommender_plan

MODEL = TransformerSpec(
    num_layers=4, hidden_size=64, num_heads=4, vocab_size=256, max_positions=64, tied_embeddings=True
)
MIXTURE = TransformerSpec(
    num_layers=4,
    hidden_size=64,
    num_heads=4,
    head_dim=24,
    ffn_hidden_size=192,
    gated_mlp=True,
    activation="silu",
    norm="rmsnorm",
    positions="rotary",
    tied_embeddings=False,
    attention_bias=False,
    mlp_bias=False,
    vocab_size=256,
    max_positions=64,
    num_experts=4,
    experts_per_token=2,
    num_moe_layers=3,
    moe_ffn_hidden_size=96,
    shared_expert_ffn_hidden_size=96,
    latent_attention=LatentAttention(kv_rank=16, query_rank=32, position_dim=8, value_dim=16),
)
"""A dense block, then three mixtures, with latent attention."""
TRAINING = TrainingSpec(global_batch=8, sequence_length=32, precision="fp32")


def plan_for(layout: str, model: TransformerSpec = MODEL) -> Plan:
    """On processes of this machine; AdamW."""
    parsed = parse_layout(layout)
    question = complete_question(model, resolve_cluster("local", parsed.num_gpus), TRAINING)
    return make_plan(question, estimate(question, parsed))


def sharded_plan(sharding: str, ranks: int = 2) -> RecommenderPlan:
    """A plan that shards the tables of the demo recommender so."""
    training = RecommenderTraining(global_batch=256, precision="fp32", optimizer="rowwise-adagrad")
    question = complete_recommender(load_recommender("dlrm-tiny"), resolve_cluster("local", ranks), training)
    return make_recommender_plan(question, parse_sharding(sharding, question.model.num_tables))
