"""Tensor parallelism with DTensor, with or without sequence parallelism, and a loss over the split vocabulary.

Routed experts, latent attention and recurrences, which PyTorch's parallel styles do not split, have styles of their
own.

Blocks that take one sequence at a time may treat its tokens as rows of a matrix, gathered and scattered along the first
dim: torch's compiler then overlaps a collective with a matrix product (`overlap=tp`). Along the second dim it
simplifies the collective to one along the first and a view, behind which it finds no product.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from cost_models.axes.layout import Layout
from executor.axes.axis import Axis
from executor.axes.overlap import inside_products
from executor.models.adapters import adapter_plan
from executor.models.attention import LatentAttention
from executor.models.experts import FeedForward, MoE
from executor.models.recurrence import Latent
from executor.models.transformer import Block, Projector, Transformer


class OnItsTokens(ParallelStyle):
    """The style of a matrix that is whole on every rank and applied to its tokens; its gradient is summed over ranks.

    It is given rows: PyTorch 2.11 cannot flatten a tensor that is split along its second axis.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters()):
            replica = DTensor.from_local(parameter.detach(), device_mesh, [Replicate()], run_check=False)
            module.register_parameter(name, nn.Parameter(replica, requires_grad=parameter.requires_grad))
        multiply = module.forward

        def on_rows(x: Tensor) -> Tensor:
            x = x.to_local() if isinstance(x, DTensor) else x
            rows = DTensor.from_local(x.flatten(0, -2), device_mesh, [Shard(0)], run_check=False)
            product: Tensor = multiply(rows).to_local()
            return torch.unflatten(product, 0, x.shape[:-1])

        module.forward = on_rows
        return module


class OfHeads(ParallelStyle):
    """Parallel style of modules with numbers for each head, along `heads_dim` (first by default): each rank has those
    of its heads. Parameters that all heads share are whole, and their gradients are summed over the ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters()):
            split = Shard(getattr(module, "heads_dim", 0))
            placements = [Replicate() if name in getattr(module, "shared", ()) else split]
            shard = distribute_tensor(parameter.detach(), device_mesh, placements, src_data_rank=None)
            module.register_parameter(name, nn.Parameter(shard, requires_grad=parameter.requires_grad))
        return module


class ForAllHeads(ParallelStyle):
    """The style of what every head reads: whole on each rank, its gradient summed over the ranks' heads."""

    def __init__(self, boundary: Replicate | Shard) -> None:
        self.boundary = boundary

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gathered(_: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
            (tokens,) = inputs
            if not isinstance(tokens, DTensor):
                tokens = DTensor.from_local(tokens, device_mesh, [self.boundary], run_check=False)
            gathered_tokens = tokens.redistribute(placements=[Replicate()])
            return gathered_tokens.to_local(grad_placements=[Partial()])

        module.register_forward_pre_hook(gathered)
        return module


class GatherRows(ParallelStyle):
    """Parallel style of modules that receive (1, s / tp, h) and whose matrices (`SplitColumns`) read rows (s, h)."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gathered(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            tokens, *other_inputs = inputs
            tokens = tokens.to_local() if isinstance(tokens, DTensor) else tokens
            rows = DTensor.from_local(tokens.flatten(0, 1), device_mesh, [Shard(0)], run_check=False)
            return rows.redistribute(placements=[Replicate()]), *other_inputs

        module.register_forward_pre_hook(gathered)
        return module


class SplitColumns(ColwiseParallel):
    """The style of a matrix split by columns: of rows (s, h) it makes (1, s, its columns)."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = super()._apply(module, device_mesh)
        module.register_forward_hook(lambda _module, _inputs, output: output.unflatten(0, (1, -1)))
        return module


class ScatterRows(RowwiseParallel):
    """The style of a matrix split by rows, whose sums (1, s, h) go back as (1, s / tp, h)."""

    def __init__(self) -> None:
        super().__init__(output_layouts=Partial(), use_local_output=False)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = super()._apply(module, device_mesh)
        module.register_forward_hook(lambda _module, _inputs, output: _scattered(output))
        return module


class ScatterSum(ParallelStyle):
    """The style of what adds up parts of sums (1, s, h), which go back as (1, s / tp, h)."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def scattered(_module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            if not isinstance(output, DTensor):
                output = DTensor.from_local(output, device_mesh, [Partial()], run_check=False)
            return _scattered(output)

        module.register_forward_hook(scattered)
        return module


def _scattered(parts: DTensor) -> Tensor:
    """Reduce-scatter partial sums (1, s, h) into this rank's rows, (1, s / tp, h)."""
    rows: Any = parts.flatten(0, 1)
    own_rows: Tensor = rows.redistribute(placements=[Shard(0)]).to_local()
    return torch.unflatten(own_rows, 0, (1, -1))


class TensorAxis(Axis):
    """Splits every matrix of a slice over the tensor ranks, and the loss over the vocabulary."""

    @classmethod
    def is_used(cls, layout: Layout) -> bool:
        return layout.tp > 1

    def apply(self, part: Transformer, stage: int) -> None:
        layout = self.rank.layout
        as_rows = inside_products(layout) and layout.sp and layout.mbs == 1
        split_tensors(part, self.rank.mesh["tp"], sequence_parallel=layout.sp, as_rows=as_rows)

    def step(self) -> AbstractContextManager[None]:
        return loss_parallel()


def split_tensors(
    model: Transformer, mesh: DeviceMesh, *, sequence_parallel: bool, as_rows: bool = False
) -> None:
    """Split every matrix of the slice over the tensor axis, in place.

    Between the parallel regions activations are whole, or with sequence parallelism split along the sequence: of blocks
    that take one sequence at a time also `as_rows` of a matrix (`executor.axes.tensor`).
    """
    boundary = Shard(1) if sequence_parallel else Replicate()
    ends_tied = (
        model.embedding is not None
        and model.head is not None
        and model.head.weight is model.embedding.tokens.weight
    )
    if model.embedding is not None:
        _parallelize(model.embedding, mesh, _embedding_plan(model, boundary, sequence_parallel))
    for name, block in model.blocks.items():
        assert isinstance(block, Block)
        if block.attention is not None:
            block.attention.first_head = mesh.get_local_rank() * block.attention.spec.num_heads // mesh.size()
        if int(name) < model.decoding:  # an image's tokens, which tensor ranks need not divide, are whole
            _parallelize(block, mesh, _block_plan(block, Replicate(), False, False))
        else:
            _parallelize(block, mesh, _block_plan(block, boundary, sequence_parallel, as_rows))
    if model.projector is not None:
        _parallelize(model, mesh, _projector_plan(model.projector, sequence_parallel))
    _parallelize(model, mesh, {f"distances.{name}": OfHeads() for name in model.distances})
    if model.encoder_norm is not None and sequence_parallel:
        _parallelize(model, mesh, {"encoder_norm": SequenceParallel(use_local_output=True)})
    if model.head is not None:
        ends: dict[str, ParallelStyle] = {
            "head": ColwiseParallel(input_layouts=boundary, output_layouts=Shard(-1), use_local_output=False)
        }
        if sequence_parallel:
            ends |= {"norm": SequenceParallel()} if model.norm is not None else {}
            if model.transform is not None:
                ends |= {"transform.dense": OnItsTokens(), "transform.norm": SequenceParallel()}
        _parallelize(model, mesh, ends)
        if ends_tied and model.embedding is not None:
            # splitting made two parameters of one; both are split by vocabulary
            model.head.weight = model.embedding.tokens.weight


def _parallelize(module: nn.Module, mesh: DeviceMesh, plan: dict[str, ParallelStyle]) -> None:
    """Split a module without sending anything: every rank keeps its slice of values that all have."""
    parallelize_module(module, mesh, plan, src_data_rank=None)


def _embedding_plan(
    model: Transformer, boundary: Replicate | Shard, sequence_parallel: bool
) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=boundary)
    }
    if sequence_parallel and model.embedding is not None:
        if model.embedding.positions is not None:
            plan["positions"] = PrepareModuleOutput(
                output_layouts=Replicate(), desired_output_layouts=Shard(1)
            )
        if model.embedding.types is not None:
            plan["types"] = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1))
        if model.embedding.norm is not None:
            plan["norm"] = SequenceParallel(use_local_output=True)
    return plan


def _projector_plan(projector: Projector, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """Split as an MLP, of one matrix the rows; images' features go to the ranks that have their places."""
    columns, replicated = projector.up is not None, Replicate()
    plan: dict[str, ParallelStyle] = {"projector.up": ColwiseParallel()} if columns else {}
    read = Shard(-1) if columns else replicated
    plan["projector.down"] = RowwiseParallel(input_layouts=read, output_layouts=replicated)
    if sequence_parallel:
        plan["placing"] = PrepareModuleOutput(
            output_layouts=(replicated, replicated), desired_output_layouts=(Shard(1), Shard(1))
        )
    return plan


def _block_plan(
    block: Block, boundary: Replicate | Shard, sequence_parallel: bool, as_rows: bool
) -> dict[str, ParallelStyle]:
    column = SplitColumns if as_rows else ColwiseParallel
    forked = block.fork is not None
    joined = block.join is not None
    plan: dict[str, ParallelStyle] = {}
    # taken in once for all matrices that read it, so that their input gradients are added before they are reduced
    enter = _entering(boundary, as_rows)
    plan |= {"fork": enter} if forked else {}
    if joined:  # what both found is added before it is reduced
        plan["join"] = _adding(boundary, as_rows)
    if isinstance(block.attention, LatentAttention):
        plan |= latent_plan(block.attention, boundary)
    elif block.attention is not None:
        gates = () if block.attention.gate is None else ("gate",)
        plan |= {f"attention.{name}": column() for name in ("query", "key", "value", *gates)}
        plan |= {"attention.out": _leaving(boundary, joined, as_rows)}
        if block.attention.query_norm is not None:
            # of the heads of this rank, so gradients are still to be added
            heads = SequenceParallel(sequence_dim=2, use_local_output=True)
            plan |= {"attention.query_norm": heads, "attention.key_norm": heads}
        plan |= {} if forked else {"attention": enter}
    if block.cross is not None:
        plan |= {f"cross.{name}": column() for name in ("query", "key", "value")}
        plan |= {
            "cross.out": _leaving(boundary, joined, as_rows),
            "cross": _entering(boundary, as_rows, inputs=2),
        }
    if block.recurrence is not None:
        inputs = block.recurrence.inputs()
        of_latents = {name for name, one in inputs.items() if isinstance(one, Latent)}
        plan |= {f"recurrence.{name}": OfHeads() if name in of_latents else column() for name in inputs}
        plan |= {"recurrence": enter, "recurrence.out": _leaving(boundary, joined, as_rows)}
        plan |= {"recurrence.scan": OfHeads(), "recurrence.gated_norm": OfHeads()}
    mlp: FeedForward | None
    if isinstance(block.mlp, MoE):
        plan |= routed_plan(block.mlp, boundary)
        name, mlp = "mlp.shared", block.mlp.shared
    else:
        name, mlp = "mlp", block.mlp
    if mlp is not None:
        plan |= {f"{name}.up": column(), f"{name}.down": _leaving(boundary, joined, as_rows)}
        plan |= {} if mlp.gate is None else {f"{name}.gate": column()}
        plan |= {} if forked else {name: enter}
    plan |= adapter_plan(block)
    if sequence_parallel:
        norms = {name: norm for name, norm in block.named_children() if name.endswith("_norm")}
        plan |= {name: SequenceParallel(use_local_output="_post_" in name) for name in norms}
    return plan


def _entering(boundary: Replicate | Shard, as_rows: bool, inputs: int = 1) -> ParallelStyle:
    if as_rows:
        return GatherRows()
    return PrepareModuleInput(
        input_layouts=(boundary,) * inputs, desired_input_layouts=(Replicate(),) * inputs
    )


def _leaving(boundary: Replicate | Shard, joined: bool, as_rows: bool) -> ParallelStyle:
    """The style of the matrix that a region ends with; where another's sums are joined to its, they stay parts."""
    if as_rows and not joined:
        return ScatterRows()
    return RowwiseParallel(output_layouts=Partial() if joined else boundary)


def _adding(boundary: Replicate | Shard, as_rows: bool) -> ParallelStyle:
    if as_rows:
        return ScatterSum()
    return PrepareModuleOutput(output_layouts=Partial(), desired_output_layouts=boundary)


def routed_plan(mixture: MoE, boundary: Replicate | Shard) -> dict[str, ParallelStyle]:
    """Plan under which each rank routes its part of every sequence, with an unsplit router and summed gradients."""
    ours = Shard(1)
    gate: dict[str, ParallelStyle] = {}
    if mixture.shared_gate is not None and isinstance(boundary, Shard):  # else every rank does the same
        gate = {"mlp.shared_gate": OnItsTokens()}
    return gate | {
        "mlp.routed": PrepareModuleInputOutput(
            input_layouts=(boundary,),
            desired_input_layouts=(ours,),
            use_local_input=True,
            output_layouts=(ours,),
            desired_output_layouts=(boundary,),
            use_local_output=True,
        ),
        "mlp.routed.router": OnItsTokens(),
    }


def latent_plan(attention: LatentAttention, boundary: Replicate | Shard) -> dict[str, ParallelStyle]:
    """Split the matrices that make and join heads; every rank makes the latents of its part of the sequence."""
    split: dict[str, ParallelStyle] = {
        "attention.query": ColwiseParallel(input_layouts=boundary),
        "attention.key_value": ColwiseParallel(input_layouts=boundary),
        "attention.shared_key": ForAllHeads(boundary),
        "attention.out": RowwiseParallel(output_layouts=boundary),
    }
    if isinstance(boundary, Shard):  # else every rank does the same, with parameters of its own
        split |= {"attention.down": OnItsTokens(), "attention.latent_norm": SequenceParallel()}
        if attention.query_down is not None:
            split |= {"attention.query_down": OnItsTokens(), "attention.query_norm": SequenceParallel()}
    return split
