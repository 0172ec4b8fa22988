"""What was read of another trainer's command: a question but for its cluster, and the layout that it runs."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.axes.layout import Layout
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A run of another trainer, in our words."""

    model: TransformerSpec
    training: TrainingSpec
    layout: Layout
    stack: StackSpec
    assumptions: tuple[str, ...] = ()
    """What the command does not say, and what was taken instead; what it says and nobody here knows."""
