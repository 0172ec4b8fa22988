"""Tensor parallelism with DTensor, with or without sequence parallelism, and a loss over the split vocabulary.

Routed experts, latent attention and recurrences, which PyTorch's parallel styles do not split, have styles of their
own.

Blocks that take one sequence at a time may treat its tokens as rows of a matrix, gathered and scattered along the first
dim: torch's compiler then overlaps a collective with a matrix product (`overlap=tp`). Along the second dim it
simplifies the collective to one along the first and a view, behind which it finds no product.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
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
from executor.mesh import local
from executor.models.adapters import adapter_plan
from executor.models.attention import LatentAttention
from executor.models.ends import Embedding
from executor.models.experts import MoE
from executor.models.recurrence import Latent
from executor.models.transformer import Block, Projector, Transformer


class OnItsTokens(ParallelStyle):
    """Parallel style of a replicated matrix that each tensor rank applies to its tokens.

    The matrix is given rows: PyTorch 2.11 cannot flatten a tensor that is split along its second axis.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Replicate the module's matrix, and have it applied to rows of this rank's tokens."""
        for name, parameter in list(module.named_parameters()):
            replica = _dtensor_of(parameter.detach(), device_mesh, Replicate())
            module.register_parameter(name, nn.Parameter(replica, requires_grad=parameter.requires_grad))
        multiply = module.forward

        def on_rows(x: Tensor) -> Tensor:
            """Apply the matrix to this rank's tokens as rows."""
            x = local(x)
            product: Tensor = multiply(_dtensor_of(x.flatten(0, -2), device_mesh, Shard(0))).to_local()
            return torch.unflatten(product, 0, x.shape[:-1])

        module.forward = on_rows
        return module


class OfHeads(ParallelStyle):
    """Parallel style of modules with parameters for each head: each tensor rank has the parameters of its heads. They
    are split along dim `heads_dim` (first by default). Parameters that all heads share are whole, and their gradients
    are summed over the ranks.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Split the module's parameters by heads."""
        for name, parameter in list(module.named_parameters()):
            split = Shard(getattr(module, "heads_dim", 0))
            placements = [Replicate() if name in getattr(module, "shared", ()) else split]
            shard = distribute_tensor(parameter.detach(), device_mesh, placements, src_data_rank=None)
            module.register_parameter(name, nn.Parameter(shard, requires_grad=parameter.requires_grad))
        return module


Change = Callable[[Any, DeviceMesh], Tensor]


@dataclass(eq=False)
class Hooked(ParallelStyle):
    """Parallel style that changes a module's input before, and its output after, another style applies."""

    style: ParallelStyle | None = None
    input_change: Change | None = None
    output_change: Change | None = None

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Apply the inner style, with hooks that change input and output around it."""
        enter, leave = self.input_change, self.output_change
        if enter is not None:
            module.register_forward_pre_hook(lambda _, inputs: (enter(inputs[0], device_mesh), *inputs[1:]))
        if self.style is not None:
            self.style.src_data_rank = self.src_data_rank
            module = self.style._apply(module, device_mesh)
        if leave is not None:
            module.register_forward_hook(lambda _module, _inputs, output: leave(output, device_mesh))
        return module


def _dtensor_of(tensor: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    """DTensor with this placement of a local tensor; a DTensor is returned unchanged."""
    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, [placement], run_check=False)


def for_all_heads(boundary: Placement) -> ParallelStyle:
    """Parallel style of a module's input that every head reads: whole on each rank, its gradient summed over ranks."""

    def gather(tokens: Tensor, mesh: DeviceMesh) -> Tensor:
        """Gather tokens on every tensor rank; gradients are summed over these."""
        replica = _dtensor_of(tokens, mesh, boundary).redistribute(placements=[Replicate()])
        return replica.to_local(grad_placements=[Partial()])

    return Hooked(input_change=gather)


def gather_rows(tokens: Tensor, mesh: DeviceMesh) -> Tensor:
    """Gather tokens (1, s / tp, h) of all tensor ranks into rows (s, h), as `split_columns` reads them."""
    rows = _dtensor_of(local(tokens).flatten(0, 1), mesh, Shard(0))
    return rows.redistribute(placements=[Replicate()])


def scatter_rows(sums: Tensor, mesh: DeviceMesh) -> Tensor:
    """Reduce-scatter partial sums (1, s, h) into this rank's tokens, (1, s / tp, h)."""
    rows: Any = _dtensor_of(sums, mesh, Partial()).flatten(0, 1)
    own_rows: Tensor = rows.redistribute(placements=[Shard(0)]).to_local()
    return torch.unflatten(own_rows, 0, (1, -1))


def split_columns() -> ParallelStyle:
    """Parallel style of a matrix that is split by columns: rows (s, h) → (1, s, this rank's columns)."""
    return Hooked(ColwiseParallel(), output_change=lambda output, _: torch.unflatten(output, 0, (1, -1)))


class TensorAxis(Axis):
    """Tensor parallelism on one rank: splits every matrix of a model slice, and the loss over the vocabulary."""

    @classmethod
    def is_used(cls, layout: Layout) -> bool:
        """Whether a layout has more than one tensor rank."""
        return layout.tp > 1

    def apply(self, part: Transformer, stage: int) -> None:
        """Split every matrix of a model slice over the tensor ranks."""
        layout = self.rank.layout
        as_rows = inside_products(layout) and layout.sp and layout.mbs == 1
        split_tensors(part, self.rank.mesh["tp"], sequence_parallel=layout.sp, as_rows=as_rows)

    def step(self) -> AbstractContextManager[None]:
        """Context manager in which the loss is computed over the split vocabulary."""
        return loss_parallel()


def split_tensors(
    model: Transformer, mesh: DeviceMesh, *, sequence_parallel: bool, as_rows: bool = False
) -> None:
    """Split matrices of a model slice by heads, columns, rows or vocabulary over the tensor ranks, in place;
    routers and projections to latents stay whole.

    Between the parallel regions activations are whole, or with sequence parallelism split along the sequence; blocks
    that take one sequence at a time can treat its tokens as rows of a matrix (`as_rows`).
    """
    regions = Regions(Shard(1) if sequence_parallel else Replicate(), as_rows=as_rows)
    embedding, head = model.embedding, model.head
    ends_tied = embedding is not None and head is not None and head.weight is embedding.tokens.weight
    if embedding is not None:
        _parallelize(embedding, mesh, regions.embedding_plan(embedding))
    for name, block in model.blocks.items():
        assert isinstance(block, Block)
        if block.attention is not None:
            block.attention.first_head = mesh.get_local_rank() * block.attention.spec.num_heads // mesh.size()
        # an image's tokens, which tensor ranks need not divide, are whole
        of_block = Regions(Replicate()) if int(name) < model.decoding else regions
        _parallelize(block, mesh, of_block.block_plan(block))
    if model.projector is not None:
        _parallelize(model, mesh, regions.projector_plan(model.projector))
    _parallelize(model, mesh, {f"distances.{name}": OfHeads() for name in model.distances})
    if model.encoder_norm is not None and sequence_parallel:
        _parallelize(model, mesh, {"encoder_norm": SequenceParallel(use_local_output=True)})
    if head is not None:
        how: dict[str, Any] = {"output_layouts": Shard(-1), "use_local_output": False}
        ends: Styles = {"head": ColwiseParallel(input_layouts=regions.boundary, **how)}
        if sequence_parallel:
            ends |= {"norm": SequenceParallel()} if model.norm is not None else {}
            if model.transform is not None:
                ends |= {"transform.dense": OnItsTokens(), "transform.norm": SequenceParallel()}
        _parallelize(model, mesh, ends)
        if ends_tied and embedding is not None:
            # splitting made two parameters of one; both are split by vocabulary
            head.weight = embedding.tokens.weight


def _parallelize(module: nn.Module, mesh: DeviceMesh, plan: Styles) -> None:
    """Apply parallel styles to a module without communication: each rank keeps its slice of values that all have."""
    parallelize_module(module, mesh, plan, src_data_rank=None)


def _output(current: Any, desired: Any) -> ParallelStyle:
    """Parallel style of a module whose output is redistributed from its current placement."""
    return PrepareModuleOutput(output_layouts=current, desired_output_layouts=desired)


Styles = dict[str, ParallelStyle]
"""Name of a module in a block or model slice → the parallel style by which tensor ranks share it."""


@dataclass(frozen=True, slots=True)
class Regions:
    """Placement of activations between the parallel regions of a model slice, and the styles that follow from it."""

    boundary: Replicate | Shard
    """Placement between regions: sharded along the sequence with sequence parallelism, else replicated."""
    as_rows: bool = False
    """Whether collectives move tokens of one sequence as rows of a matrix."""

    @property
    def sequence_parallel(self) -> bool:
        """Whether tensor ranks share the sequence between parallel regions."""
        return isinstance(self.boundary, Shard)

    def entering(self, inputs: int = 1) -> ParallelStyle:
        """Parallel style of a module at which a region begins: its `inputs` are gathered."""
        if self.as_rows:
            return Hooked(input_change=gather_rows)
        replicas = (Replicate(),) * inputs
        return PrepareModuleInput(input_layouts=(self.boundary,) * inputs, desired_input_layouts=replicas)

    def leaving(self, *, joined: bool) -> ParallelStyle:
        """Parallel style of the matrix at which a region ends: its outputs are summed over the tensor ranks. Where they
        are `joined` to another region's outputs first, they stay partial sums.
        """
        if self.as_rows and not joined:
            sums = RowwiseParallel(output_layouts=Partial(), use_local_output=False)
            return Hooked(sums, output_change=scatter_rows)
        return RowwiseParallel(output_layouts=Partial() if joined else self.boundary)

    def embedding_plan(self, embedding: Embedding) -> Styles:
        """Parallel styles of the embedding, which is split by vocabulary."""
        plan: Styles = {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=self.boundary)}
        if self.sequence_parallel:
            added = {"positions": embedding.positions, "types": embedding.types}
            plan |= {name: _output(Replicate(), Shard(1)) for name, one in added.items() if one is not None}
            if embedding.norm is not None:
                plan["norm"] = SequenceParallel(use_local_output=True)
        return plan

    def projector_plan(self, projector: Projector) -> Styles:
        """Parallel styles of the image projector: an MLP's two matrices, or a single matrix split by rows."""
        columns, replicated = projector.up is not None, Replicate()
        plan: Styles = {"projector.up": ColwiseParallel()} if columns else {}
        read = Shard(-1) if columns else replicated
        plan["projector.down"] = RowwiseParallel(input_layouts=read, output_layouts=replicated)
        if self.sequence_parallel:
            plan["placing"] = _output((replicated, replicated), (Shard(1), Shard(1)))
        return plan

    def block_plan(self, block: Block) -> Styles:
        """Parallel styles of a block: matrices of attention and MLP are split by columns, then by rows."""
        column = split_columns if self.as_rows else ColwiseParallel
        forked, joined = block.fork is not None, block.join is not None
        enter, leave = self.entering(), self.leaving(joined=joined)
        # taken in once for all matrices that read it, so that their input gradients are added before they are reduced
        plan: Styles = {"fork": enter} if forked else {}
        if joined:  # sums of both halves are added before they are reduced
            add = Hooked(output_change=scatter_rows) if self.as_rows else _output(Partial(), self.boundary)
            plan["join"] = add
        if isinstance(block.attention, LatentAttention):
            plan |= self.latent_plan(block.attention)
        elif block.attention is not None:
            gates = () if block.attention.gate is None else ("gate",)
            plan |= {f"attention.{name}": column() for name in ("query", "key", "value", *gates)}
            plan |= {"attention.out": leave}
            if block.attention.query_norm is not None:
                # of the heads of this rank, so gradients are still to be added
                heads = SequenceParallel(sequence_dim=2, use_local_output=True)
                plan |= {"attention.query_norm": heads, "attention.key_norm": heads}
            plan |= {} if forked else {"attention": enter}
        if block.cross is not None:
            plan |= {f"cross.{name}": column() for name in ("query", "key", "value")}
            plan |= {"cross.out": leave, "cross": self.entering(inputs=2)}
        if block.recurrence is not None:
            for name, projection in block.recurrence.inputs().items():
                plan[f"recurrence.{name}"] = OfHeads() if isinstance(projection, Latent) else column()
            plan |= {"recurrence": enter, "recurrence.out": leave}
            plan |= {"recurrence.scan": OfHeads(), "recurrence.gated_norm": OfHeads()}
        mlp, name = block.mlp, "mlp"
        if isinstance(mlp, MoE):
            plan |= self.routed_plan(mlp)
            mlp, name = mlp.shared, "mlp.shared"
        if mlp is not None:
            plan |= {f"{name}.up": column(), f"{name}.down": leave}
            plan |= {} if mlp.gate is None else {f"{name}.gate": column()}
            plan |= {} if forked else {name: enter}
        plan |= adapter_plan(block)
        if self.sequence_parallel:
            norms = [name for name, _ in block.named_children() if name.endswith("_norm")]
            plan |= {name: SequenceParallel(use_local_output="_post_" in name) for name in norms}
        return plan

    def routed_plan(self, mixture: MoE) -> Styles:
        """Parallel styles of a MoE layer: each rank routes its part of every sequence, by an unsplit router."""
        own_tokens = Shard(1)
        plan: Styles = {
            "mlp.routed": PrepareModuleInputOutput(
                input_layouts=(self.boundary,),
                desired_input_layouts=(own_tokens,),
                use_local_input=True,
                output_layouts=(own_tokens,),
                desired_output_layouts=(self.boundary,),
                use_local_output=True,
            ),
            "mlp.routed.router": OnItsTokens(),
        }
        if mixture.shared_gate is not None and self.sequence_parallel:  # else every rank does the same
            plan["mlp.shared_gate"] = OnItsTokens()
        return plan

    def latent_plan(self, attention: LatentAttention) -> Styles:
        """Parallel styles of latent attention: heads are split, each rank computes latents of its tokens."""
        plan: Styles = {
            "attention.query": ColwiseParallel(input_layouts=self.boundary),
            "attention.key_value": ColwiseParallel(input_layouts=self.boundary),
            "attention.shared_key": for_all_heads(self.boundary),
            "attention.out": RowwiseParallel(output_layouts=self.boundary),
        }
        if self.sequence_parallel:  # else every rank does the same, with parameters of its own
            plan |= {"attention.down": OnItsTokens(), "attention.latent_norm": SequenceParallel()}
            if attention.query_down is not None:
                plan |= {"attention.query_down": OnItsTokens(), "attention.query_norm": SequenceParallel()}
        return plan
