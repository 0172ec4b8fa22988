"""Activation recomputation, block by block: everything, or the attention submodule alone."""

from __future__ import annotations

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from cost_models.specs.layout import Recompute
from executor.models.transformer import Block, Transformer


def recompute_activations(model: Transformer, policy: Recompute) -> None:
    """Wrap the slice's blocks in place.

    `selective` wraps the attention submodule: what is kept is its input. `full` wraps the block.
    """
    for name, block in model.blocks.items():
        if policy == "full":
            model.blocks[name] = checkpoint_wrapper(block)
        elif policy == "selective":
            assert isinstance(block, Block)
            block.register_module("attention", checkpoint_wrapper(block.attention))
