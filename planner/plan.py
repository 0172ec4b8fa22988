"""A plan: everything needed to run a layout, to check its prediction and to ask the same question again.

Plans are YAML files of one schema version; reading one runs no code (safe YAML, then strict validation).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from cost_models.specs.base import Spec
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.layout import Layout, parse_layout
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

PLAN_SCHEMA = 1


def _read_layout(value: Any) -> Layout:
    return value if isinstance(value, Layout) else parse_layout(str(value))


LayoutText = Annotated[Layout, BeforeValidator(_read_layout), PlainSerializer(str, return_type=str)]
"""A layout, written in its notation."""


class Prediction(Spec):
    """What the cost model said when the plan was made; see `cost_models.estimate.Estimate` for the fields."""

    step_seconds: float = Field(gt=0, allow_inf_nan=False)
    mfu: float
    hfu: float
    tokens_per_second: float
    peak_bytes: float
    memory_limit: float
    time: dict[str, float]
    """Seconds by part; they sum to `step_seconds`."""
    rank_memory: tuple[dict[str, float], ...]
    """Bytes by part for each pipeline rank."""
    trust: str
    """Tier of the constants and the error it has shown."""


class Certificate(Spec):
    """Why no other covered layout is better."""

    space: str
    """The covered space, in words."""
    layouts: int
    """Legal layouts enumerated."""
    infeasible: int
    """Discarded because no placement fits in memory."""
    pruned: int
    """Discarded because their lower bound cannot beat the k-th best."""
    solved: int
    """Decided exactly: by the ILP, or by a placement that meets its lower bound."""
    undecided: int = 0
    """Left open when the search was stopped; 0 is proof."""
    bound: float
    """Proven lower bound on the step time of any covered layout, seconds."""
    gap: float
    """(best − bound) / best; 0 is proof."""
    seconds: float
    """Search time. Not part of a plan file, so that the same query gives the same bytes."""


class Plan(Spec):
    """One question and its answer."""

    kind: Literal["plan"] = "plan"
    schema_version: int = PLAN_SCHEMA
    meshwright_version: str
    model: TransformerSpec
    cluster: ClusterSpec
    training: TrainingSpec
    stack: StackSpec
    hardware: HardwareProfile
    layout: LayoutText
    """Placed: `layers` and `recompute` of every virtual stage are given."""
    prediction: Prediction
    certificate: Certificate | None = None
    """None for a layout that was asked for, not searched."""
