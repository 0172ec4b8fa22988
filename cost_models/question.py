"""One question: a model, a cluster, a training job, the software that runs it and the constants of the hardware."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything a price depends on except the layout."""

    model: TransformerSpec
    cluster: ClusterSpec
    training: TrainingSpec
    stack: StackSpec
    hardware: HardwareProfile
