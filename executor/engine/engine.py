"""A plan on this rank: its slices of the model, changed as the layout says, and one optimizer step.

**Recompute** is of everything in a block, or of what mixes tokens alone.

**Compilation.** Blocks go through `torch.compile` one by one: they are alike, so one graph serves all. And the loss in
chunks.

Over tensor ranks PyTorch (2.13) takes a tensor that is still in flight for a constant where a graph reads it, and loses
its gradient silently (pytorch/pytorch#191113). Where a graph breaks, or has a checkpoint in it, meshes get among its
tensors, which it refuses. So over tensor ranks tensors are waited for before a graph reads them, and no graph breaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper
from torch.distributed.tensor import DTensor

from cost_models.axes.stages import policy_of_blocks
from cost_models.operators.accumulation import loss_chunk
from cost_models.operators.parameters import padded_vocabulary
from executor.axes.axis import Axis, Rank, share_of_targets
from executor.axes.context import ContextAxis
from executor.axes.data import DataAxis, synchronise_only_when
from executor.axes.expert import ExpertAxis, expert_place
from executor.axes.offload.blocks import OffloadAxis
from executor.axes.overlap import OverlapAxis
from executor.axes.pipeline import PipelineAxis, PipelineStep
from executor.axes.tensor import TensorAxis
from executor.engine.optimizer import Optimizer
from executor.engine.weights import fill_quantised, frozen, made_of, make_room, owned, parameter_names
from executor.mesh import local, make_group_over, with_values
from executor.models.adapters import add_adapters, freeze
from executor.models.attention import Attention, LatentAttention
from executor.models.experts import FeedForward, MoE
from executor.models.initial import InitialValues, Values
from executor.models.positions import WholeSequence
from executor.models.quantised import quantise
from executor.models.transformer import Block, Transformer
from executor.run_config import NO_TARGET, EngineOptions
from executor.timing import Carried, Mark
from planner.plan import Plan


def recompute_activations(model: Transformer, recompute: str) -> None:
    """Wrap the blocks of a model slice for recomputation, in place, as a policy or mix of policies says.

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
    """Recomputation on one rank: recomputes activations of each virtual stage as the layout says."""

    def apply(self, part: Transformer, stage: int) -> None:
        """Wrap the blocks of a virtual stage for recomputation."""
        recompute_activations(part, self.rank.layout.stage_recompute[stage])


def compile_blocks(model: Transformer, *, split: bool, options: Mapping[str, Any] | None = None) -> None:
    """Have every block of a model slice compiled at its first call; `split` says that tensor ranks share it.

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
    """Largest modules of a block that compile without a graph break. Breaks come from routed experts, recurrences, and
    attention that recomputes alone, has only some of a sequence, or has on a GPU a kernel of its own.
    """
    attention, mlp = block.attention, block.mlp
    plain = attention is not None and not isinstance(attention, CheckpointWrapper) and _is_plain(attention)
    if plain and isinstance(mlp, FeedForward) and block.recurrence is None:
        return [block]
    dense = mlp.shared if isinstance(mlp, MoE) else mlp
    return [one for one in (attention if plain else None, dense) if one is not None]


def _is_plain(attention: Attention | LatentAttention) -> bool:
    """Whether attention is causal, without window or ALiBi, over whole sequences."""
    causal = attention.window is None and attention.spec.positions != "alibi"
    return causal and isinstance(attention.sequence, WholeSequence)


def _inside(block: nn.Module) -> Block:
    """Block inside a recompute wrapper; without a wrapper, the block that was given."""
    inside = block._checkpoint_wrapped_module if isinstance(block, CheckpointWrapper) else block
    assert isinstance(inside, Block)
    return inside


def _wait(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Forward hook that waits for a module's output if it is still in flight."""
    arrived: Tensor = _Arrived.apply(output)  # type: ignore[no-untyped-call]
    return arrived


class _Arrived(torch.autograd.Function):
    """Autograd function that waits for a tensor in flight; its gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The tensor, once it has arrived."""
        return x.wait() if isinstance(x, AsyncCollectiveTensor) else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """The gradient, unchanged."""
        return gradients[0]


AXES: tuple[type[Axis], ...] = (
    TensorAxis,
    ContextAxis,
    ExpertAxis,
    RecomputeAxis,
    OffloadAxis,
    PipelineAxis,
    OverlapAxis,
    DataAxis,
)
"""All axes in the order in which they change a rank: blocks are split, recomputed, offloaded, cut into stages,
overlapped, then sharded.
"""


class Engine(Rank):
    """A rank that trains: its slices of the model, its optimizer, and its steps.

    Weights have their initial values, unless they are not to be `filled`, as they will be loaded.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        options: EngineOptions,
        axes: Sequence[type[Axis]] = AXES,
        *,
        filled: bool = True,
    ) -> None:
        """`axes` are the classes of axes to use where the layout has them; `filled`: whether to set initial weights."""
        super().__init__(plan, device, options)
        self.initial = InitialValues.of(plan, options, device)
        self.loss_chunk = loss_chunk(plan.question, self.layout)
        # of dropout: equal on ranks with the same activations, tensor ranks without sequence parallelism
        replica = self.place.dp * self.layout.cp + self.place.cp
        activations = self.place.pp, replica, self.place.tp if self.layout.sp else 0
        torch.manual_seed(hash((options.seed, *activations)) % 2**31)
        self.axes = [axis(self) for axis in axes if axis.is_used(self.layout)]
        self.parts = [self._part(stage) for stage in self.stages]
        self.names = parameter_names(self.parts)
        """id of each parameter → its name and place in the full model."""
        for axis in self.axes:
            axis.parts_made()
        self.optimizer = Optimizer(self)
        self.pipeline: PipelineStep | None = None
        if self.layout.pp > 1:
            take, loss_inside = self.optimizer.take_gradients, self.loss_chunk is not None
            self.pipeline = PipelineStep(self, self._share_of_loss, take, loss_inside=loss_inside)
        self.filled = False
        """Whether weights have values."""
        if filled:
            self.fill_frozen()
            self.fill()

    def fill(self, values: Values | None = None) -> None:
        """Set the trained weights to `values`; None: to their initial values. Each rank reads the values that it
        updates, and sends them to where they are used.
        """
        with torch.no_grad():
            for owner in owned(self.optimizer, self.names):
                for box, piece in owner.pieces(owner.slice.updated):
                    (values or self.initial).fill(owner.place.name, owner.place.shape, box, piece)
        self.spread()

    def fill_frozen(self, values: Values | None = None) -> None:
        """Set the frozen weights that adapters are added to; `values` None: to their initial values."""
        values = values or self.initial
        with torch.no_grad():
            for parameter, box, piece in frozen(self.parts, self.names):
                values.fill(parameter.name, parameter.shape, box, piece)
            if (tuning := self.plan.training.tuning) is not None and tuning.base is not None:
                sharing = ("shard", "tp") if self.layout.zero >= 2 else ("tp",)
                fill_quantised(self.parts, values, make_group_over(self.layout, sharing))

    def spread(self) -> None:
        """Copy weights that were drawn or loaded to all places where they are used."""
        self.filled = True
        if self.device.type != "meta":
            self.optimizer.spread()
        self.forget()

    def step(self, *batch: Tensor) -> tuple[float, float]:
        """Train one step on this rank's share of the batch; returns this rank's mean loss and the global gradient norm.

        The batch is what the first stage is given, then targets. The loss is 0 on ranks that hold no output layer.
        """
        value = self.forward_backward(*batch)
        return value, self.update()

    def forward_backward(self, *batch: Tensor) -> float:
        """First phase of a step: add up gradients of every microbatch; returns the mean loss on this rank.

        Takes whole sequences, of which this rank works on its tokens.
        """
        *inputs, targets_BS = (self.take(one).to(self.device) for one in batch)
        with self.inside_step():
            return self._forward_backward(inputs, targets_BS)

    @contextmanager
    def inside_step(self) -> Iterator[None]:
        """Context manager for the passes of a step, made of the contexts of all axes."""
        with ExitStack() as stack:
            for axis in self.axes:
                stack.enter_context(axis.step())
            yield

    def take(self, tokens_BS: Tensor) -> Tensor:
        """Part of whole sequences of tokens, (B, S), on which this rank works."""
        for axis in self.axes:
            tokens_BS = axis.take(tokens_BS)
        return tokens_BS

    def update(self) -> float:
        """Second phase of a step: synchronise gradients and update parameters; returns the global gradient norm."""
        self.optimizer.settle()
        return self.optimizer.step()

    def host_tensors(self) -> list[Tensor]:
        """Tensors that the layout keeps in host memory; with a parameter its gradients are there."""
        return [one for axis in self.axes for one in axis.host_tensors()]

    def drive_tensors(self) -> list[Tensor]:
        """Tensors that the layout keeps on the host's drive."""
        return [one for axis in self.axes for one in axis.drive_tensors()]

    def record(self, into: list[Carried[Mark]] | None) -> None:
        """Start appending host copies and CPU updates of all axes to the list `into`; None stops the recording."""
        for axis in self.axes:
            axis.record(into)

    def end_step(self) -> None:
        """Have axes keep their counts of the step that has just ended, for the report."""
        for axis in self.axes:
            axis.end_step()

    def forget(self) -> None:
        """Have axes discard their counts so far, of start-up and warm-up steps."""
        for axis in self.axes:
            axis.forget()

    def report(self, host_peak: int) -> dict[str, Any]:
        """Fields that axes add to this rank's report; `host_peak` is the peak of host memory in bytes."""
        return {name: found for axis in self.axes for name, found in axis.report(host_peak).items()}

    def _forward_backward(self, inputs: list[Tensor], targets_BS: Tensor) -> float:
        """Run all microbatches of a step, by a pipeline's schedule if there is one; returns this rank's loss."""
        text_inputs = {"tokens_BS": inputs.pop()} if self.plan.model.tower is not None else {}
        if self.pipeline is not None:
            return self.pipeline.step(inputs, targets_BS, text_inputs)
        (model,) = self.parts
        microbatches = self.share.microbatches
        total = torch.zeros((), device=self.device)
        split = (tensor.chunk(microbatches) for tensor in (*inputs, *text_inputs.values(), targets_BS))
        for index, (*stage_inputs, targets) in enumerate(zip(*split, strict=True)):
            synchronise_only_when(model, index == microbatches - 1)
            with self.passes.run("F", 0, index):
                inside = {} if self.loss_chunk is None else {"targets_BS": targets}
                inside |= {name: stage_inputs.pop() for name in text_inputs}
                value = self._share_of_loss(model(*stage_inputs, **inside), targets)
            with self.passes.run("B", 0, index):
                value.backward()  # type: ignore[no-untyped-call]
            total += local(value.detach())
        return float(total)

    def _share_of_loss(self, answer: Tensor, targets_BS: Tensor) -> Tensor:
        """Share of one microbatch in the mean loss of this rank's sequences, so that gradients simply add up.

        Where replicas take different numbers of microbatches, it is that of a replica with the mean number.

        The model answers with (B, S, V) logits, or with its loss in chunks.
        """
        value = answer
        if self.loss_chunk is None:
            target_share = share_of_targets(self.plan.model, self.plan.training)
            value = loss(without_padding(answer, self.plan.model.vocab_size), targets_BS, target_share)
        return value / self.share.mean_microbatches

    def _part(self, stage: int) -> Transformer:
        """Build the model slice of a virtual stage, and allocate the parameters of it that this rank holds."""
        part, on_host = self._without_memory(stage)
        if self.device.type != "meta":
            make_room(part, self.device, on_host, flat=self.layout.zero <= 1)
        return part

    @with_values
    def _without_memory(self, stage: int) -> tuple[Transformer, set[str]]:
        """The model slice of a virtual stage on the meta device, and the names of its blocks in host memory. It is
        built, its GEMMs put in fp8, changed by its axes, compiled and sharded.
        """
        layout, model = self.layout, self.plan.model
        flat = layout.zero <= 1  # else parameters stay fp32 and are cast where they are gathered
        with torch.device("meta"), made_of(self.dtype if flat else torch.float32):
            part = Transformer(
                model,
                vocabulary=int(padded_vocabulary(model, layout.tp)),
                dropout=self.plan.question.dropout,
                blocks=range(sum(layout.layers[:stage]), sum(layout.layers[: stage + 1])),
                has_embedding=stage == 0,
                has_head=stage == layout.num_stages - 1,
                experts=None if self.experts is None else expert_place(model, self.experts),
                loss_chunk=self.loss_chunk,
            )
            if self.plan.training.tuning is not None:
                add_adapters(part, self.plan.training.tuning)
        if self.plan.training.precision == "fp8":
            from executor.engine.fp8 import multiply_in_fp8  # torchao is there where fp8 is asked for

            multiply_in_fp8(part, emulate=self.options.emulate_fp8)
        for axis in self.axes:
            axis.apply(part, stage)
        freeze(part, model, self.plan.training, self.dtype)
        if (tuning := self.plan.training.tuning) is not None and tuning.base is not None:
            quantise(part, tuning.base)
        if self.options.compile:
            options = {name: value for axis in self.axes for name, value in axis.compile_options().items()}
            compile_blocks(part, split=layout.tp > 1, options=options)
        on_host = {name for axis in self.axes for name in axis.on_host(part)}
        for axis in self.axes:
            axis.shard(part, on_host)
        return part, on_host


def without_padding(logits_BSV: Tensor, vocabulary: int) -> Tensor:
    """Logits without padding of the vocabulary; where tensor ranks share it, padding gets the lowest logits instead."""
    if logits_BSV.shape[-1] == vocabulary:
        return logits_BSV
    if not isinstance(logits_BSV, DTensor):
        return logits_BSV[..., :vocabulary]
    logits, mesh = logits_BSV.to_local(), logits_BSV.device_mesh
    width = logits.shape[-1]
    is_token = torch.arange(width, device=logits.device) + mesh.get_local_rank() * width < vocabulary
    low = torch.where(is_token, logits, torch.finfo(logits.dtype).min / 2)
    return DTensor.from_local(low, mesh, logits_BSV.placements, run_check=False)


def loss(logits_BSV: Tensor, targets_BS: Tensor, target_share: float = 1.0) -> Tensor:
    """Mean cross-entropy of the next token, in fp32, over the tokens that have a target. The sum is divided by
    `target_share` of all tokens, as context ranks have more or fewer targets and all divide alike.
    """
    logits, targets = logits_BSV.flatten(0, 1).float(), targets_BS.flatten()
    if target_share == 1.0:
        return F.cross_entropy(logits, targets)
    total = F.cross_entropy(logits, targets, reduction="sum", ignore_index=NO_TARGET)
    return total / (target_share * targets.numel())


def mean_over_data(value: float, engine: Engine) -> float:
    """Mean loss of the global batch on every rank, given the loss of each rank."""
    has_head = any(part.head is not None for part in engine.parts)
    share = value / (engine.layout.data_ranks * engine.layout.tp) if has_head else 0.0
    total = torch.tensor(share, device=engine.device)
    dist.all_reduce(total)
    return float(total)
