"""A model small enough to be trained many times over on a laptop, and plans for it."""

from __future__ import annotations

from cost_models.asking import ask
from cost_models.estimating import estimate
from cost_models.specs.layout import parse_layout
from cost_models.specs.loading import resolve_cluster
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.plan import Plan, make_plan

MODEL = TransformerSpec(
    num_layers=4, hidden_size=64, num_heads=4, vocab_size=256, max_positions=64, tied_embeddings=True
)
TRAINING = TrainingSpec(global_batch=8, sequence_length=32, precision="fp32")


def plan_for(layout: str) -> Plan:
    """On processes of this machine; AdamW."""
    parsed = parse_layout(layout)
    question = ask(MODEL, resolve_cluster("local", parsed.num_gpus), TRAINING)
    return make_plan(question, estimate(question, parsed))
