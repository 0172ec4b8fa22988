"""The sequences of a step that this rank's replica trains on, and in how many microbatches.

All replicas take equally many, unless whole replicas lie in pools of different GPUs: then as many as the plan's prices
say. A microbatch's loss has the same weight on every replica, so that gradients add up to those of one process.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.pipeline.pricing import price_ranks
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A replica's part of the global batch."""

    microbatches: int
    first: int
    """The first of its sequences in the global batch."""
    last: int
    """One after its last."""
    mean_microbatches: float
    """Of all replicas: what the loss of a microbatch is divided by before replicas are averaged."""

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return self.last - self.first


def share_of(plan: Plan, replica: int) -> Share:
    """The share of one of the layout's dp replicas."""
    layout, batch = plan.layout, plan.training.global_batch
    if not layout.replicas:
        share = batch // layout.dp
        microbatches = layout.microbatches(batch)
        return Share(
            microbatches=microbatches,
            first=replica * share,
            last=(replica + 1) * share,
            mean_microbatches=microbatches,
        )
    shares = {own.pool: iter(own.microbatches) for own in price_ranks(plan.question, layout).replicas}
    each = [next(shares[pool]) for pool in layout.replicas]
    first = layout.mbs * sum(each[:replica])
    return Share(
        microbatches=each[replica],
        first=first,
        last=first + layout.mbs * each[replica],
        mean_microbatches=sum(each) / layout.dp,
    )


def share_of_targets(model: TransformerSpec, training: TrainingSpec) -> float:
    """Of a sequence's tokens, those that the loss is of: all, those that are masked, or text behind images."""
    length = training.sequence_length
    if model.tower is not None:
        return 1 - (training.images or 1) * model.tower.features / length
    return model.encoder.masked_tokens(length) / length if model.encoder else 1.0
