"""Activation recomputation by block: everything, or what mixes tokens alone."""

from __future__ import annotations

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from cost_models.axes.stages import policy_of_blocks
from executor.axes.axis import Axis
from executor.models.transformer import Block, Transformer


def recompute_activations(model: Transformer, recompute: str) -> None:
    """Wrap the slice's blocks in place, as its policy or mix of policies says.

    `selective` wraps attention, or a recurrence: what is kept is its input. `full` wraps the block.
    """
    policies = policy_of_blocks(len(model.blocks), recompute)
    for (name, block), policy in zip(list(model.blocks.items()), policies, strict=True):
        if policy == "full":
            model.blocks[name] = checkpoint_wrapper(block)
        elif policy == "selective":
            assert isinstance(block, Block)
            for mixer in ("attention", "recurrence", "cross"):
                if (inside := getattr(block, mixer)) is not None:
                    block.register_module(mixer, checkpoint_wrapper(inside))


class RecomputeAxis(Axis):
    """Recomputes activations as the layout says of each virtual stage."""

    def apply(self, part: Transformer, stage: int) -> None:
        recompute_activations(part, self.rank.layout.stage_recompute[stage])
