"""Changes to every block before it trains: recompute in the backward pass, and compilation.

**Recompute** is of everything in a block, or of what mixes tokens alone.

**Compilation.** Blocks go through `torch.compile` one by one: they are alike, so one graph serves all. And the loss in
chunks.

Over tensor ranks PyTorch (2.13) takes a tensor that is still in flight for a constant where a graph reads it, and loses
its gradient silently (pytorch/pytorch#191113). Where a graph breaks, or has a checkpoint in it, meshes get among its
tensors, which it refuses. So over tensor ranks tensors are waited for before a graph reads them, and no graph breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper

from cost_models.axes.stages import policy_of_blocks
from executor.axes.axis import Axis
from executor.models.attention import Attention, LatentAttention
from executor.models.experts import FeedForward, MoE
from executor.models.positions import WholeSequence
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


def compile_blocks(model: Transformer, *, split: bool, options: Mapping[str, Any] | None = None) -> None:
    """Compile every block of the slice when it is first called; `split` says that tensor ranks share it, `options` go
    to inductor.

    What recomputes does so inside the graph, which then knows that it does; over tensor ranks around it, where a piece
    must find its graph again: none has a mask that is made in one call and kept for the next.
    """
    if split and model.embedding is not None:
        model.embedding.register_forward_hook(_wait)
    for block in model.blocks.values():
        for piece in _unbroken(_inside(block)) if split else [block]:
            piece.compile(fullgraph=split, **({"options": dict(options)} if options else {}))
    if model.of_logits is not None:  # the last chunk of a microbatch may be shorter
        model.of_logits.compile(fullgraph=True, dynamic=False)


def _unbroken(block: Block) -> list[nn.Module]:
    """The largest pieces without a graph break: routed experts break it, recurrences, and attention that recomputes
    alone, has only some of a sequence, or has on a GPU a kernel of its own."""
    attention, mlp = block.attention, block.mlp
    plain = attention is not None and not isinstance(attention, CheckpointWrapper) and _is_plain(attention)
    if plain and isinstance(mlp, FeedForward) and block.recurrence is None:
        return [block]
    dense = mlp.shared if isinstance(mlp, MoE) else mlp
    return [one for one in (attention if plain else None, dense) if one is not None]


def _is_plain(attention: Attention | LatentAttention) -> bool:
    causal = attention.window is None and attention.spec.positions != "alibi"
    return causal and isinstance(attention.sequence, WholeSequence)


def _inside(block: nn.Module) -> Block:
    """The module that a recompute wrapper holds; any other itself."""
    inside = block._checkpoint_wrapped_module if isinstance(block, CheckpointWrapper) else block
    assert isinstance(inside, Block)
    return inside


def _wait(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    arrived: Tensor = _Arrived.apply(output)  # type: ignore[no-untyped-call]
    return arrived


class _Arrived(torch.autograd.Function):
    """Waits for a tensor in flight and passes its gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.wait() if isinstance(x, AsyncCollectiveTensor) else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]
