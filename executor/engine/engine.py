"""A plan on this rank: its slices of the model, wrapped as the layout says, and one optimizer step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import loss_parallel

from cost_models.axes.offload import NOWHERE
from cost_models.operators.chunked_loss import loss_chunk
from cost_models.operators.parameters import padded_vocabulary
from cost_models.schedules import stages_of_rank
from executor.axes.context.attention import make_sequence, share_sequence, take_tokens
from executor.axes.data import share_data, share_experts, synchronise_only_when
from executor.axes.expert import connect_experts, expert_place
from executor.axes.offload.hook import Offloading
from executor.axes.overlap import DataBehindCompute, options_inside_products
from executor.axes.pipeline import PipelineStep, TiedGradients, make_pipeline
from executor.axes.recompute import recompute_activations
from executor.axes.replicas import share_of
from executor.axes.tensor import split_tensors
from executor.engine.compiled import compile_blocks
from executor.engine.optimizer import Optimizer
from executor.mesh import local, make_context_group, make_expert_mesh, make_mesh, place_of
from executor.models.transformer import Transformer, initialise
from executor.run_config import EngineOptions
from executor.timing import Passes
from planner.plan import Plan

_COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Types of all but the operands of fp8 GEMMs."""


class Engine:
    """Everything one rank trains with."""

    def __init__(self, plan: Plan, device: torch.device, options: EngineOptions) -> None:
        self.plan, self.device, self.options = plan, device, options
        layout, training, model = plan.layout, plan.training, plan.model
        self.layout = layout
        # nothing is sent between meta tensors, but a mesh wants a real device
        self.mesh = make_mesh(layout, "cpu" if device.type == "meta" else device.type)
        self.place = place_of(layout, dist.get_rank())
        self.share = share_of(plan, self.place.dp)
        self.context_group = make_context_group(layout)
        self.sequence = make_sequence(
            layout.context or plan.question.stack.context_parallel, self.context_group
        )
        self.experts = make_expert_mesh(layout, self.mesh.device_type) if model.has_experts else None
        self.passes = Passes(device)
        self.dtype = _COMPUTE_DTYPES[training.wide_precision]
        self.loss_chunk = loss_chunk(plan.question, layout)
        torch.manual_seed(self._dropout_seed())
        self.offloading = self._offloading()
        self.parts = [self._part(stage) for stage in self._my_stages()]
        self.tied = TiedGradients(layout, self.mesh, self.parts, tied=model.tied_embeddings)
        self.behind = self._behind_compute()
        self.optimizer = Optimizer(
            plan, self.parts, self.mesh, self.experts, options, self.tied, self.offloading, self.behind
        )
        if self.offloading is not None:
            self.offloading.connect(self.parts, self.passes)
        self.pipeline: PipelineStep | None = None
        if layout.pp > 1:
            self.pipeline = make_pipeline(
                plan,
                self.parts,
                self._my_stages(),
                self.mesh,
                device,
                self.dtype,
                self.share.microbatches,
                self._share_of_loss,
                self.loss_chunk is not None,
                self.optimizer.take_gradients,
                self.passes,
            )

    def step(self, inputs_BS: Tensor, targets_BS: Tensor) -> tuple[float, float]:
        """One optimizer step on this rank's share of the global batch: (mean loss here, global gradient norm).

        The loss is 0 on ranks that hold no output layer.
        """
        value = self.forward_backward(inputs_BS, targets_BS)
        return value, self.update()

    def forward_backward(self, inputs_BS: Tensor, targets_BS: Tensor) -> float:
        """The first phase of a step: gradients of every microbatch added up; the mean loss here.

        Takes whole sequences, of which this rank works on its tokens.
        """
        mine = [take_tokens(one, self.sequence, self.layout.cp) for one in (inputs_BS, targets_BS)]
        with self._loss_context(), nullcontext() if self.offloading is None else self.offloading.step():
            return self._forward_backward(*(one.to(self.device) for one in mine))

    def update(self) -> float:
        """The second phase: gradients synchronised, parameters updated; the global gradient norm."""
        self.optimizer.settle()
        self.tied.add_up(self.optimizer.gradient)
        return self.optimizer.step()

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Every torch optimizer that updates this rank's parameters (or its shard of them)."""
        return self.optimizer.optimizers

    def host_tensors(self) -> list[Tensor]:
        """What is in host memory because the layout has it there."""
        return [] if self.offloading is None else list(self.offloading.host_tensors())

    def drive_tensors(self) -> list[Tensor]:
        """What is on the host's drive because the layout has it there."""
        return [] if self.offloading is None else self.offloading.drive_tensors()

    def gradient_buffers(self) -> list[Tensor]:
        """Buffers on the device in which gradients add up, where no parameter has them as its own."""
        return [flat.gradients for flat in self.optimizer.flats]

    def host_parameters(self) -> set[int]:
        """ids of parameters whose gradients are there, too, whenever they exist."""
        return set() if self.offloading is None else self.offloading.host_parameters()

    @property
    def holds_loss(self) -> bool:
        """Whether this rank computes the loss."""
        return any(part.head is not None for part in self.parts)

    def _forward_backward(self, inputs_BS: Tensor, targets_BS: Tensor) -> float:
        if self.pipeline is not None:
            return self.pipeline.step(inputs_BS, targets_BS)
        (model,) = self.parts
        microbatches = self.share.microbatches
        total = torch.zeros((), device=self.device)
        pairs = list(zip(inputs_BS.chunk(microbatches), targets_BS.chunk(microbatches), strict=True))
        for index, (inputs, targets) in enumerate(pairs):
            synchronise_only_when(model, index == microbatches - 1)
            with self.passes.run("F", 0, index):
                given = () if self.loss_chunk is None else (targets,)
                value = self._share_of_loss(model(inputs, *given), targets)
            with self.passes.run("B", 0, index):
                value.backward()  # type: ignore[no-untyped-call]
            total += local(value.detach())
        return float(total)

    def _share_of_loss(self, answer: Tensor, targets_BS: Tensor) -> Tensor:
        """One microbatch's share of the mean over this rank's sequences, so that gradients simply add up.

        Where replicas take different numbers of microbatches, it is that of a replica with the mean number.

        The model answers with (B, S, V) logits, or with its loss in chunks.
        """
        value = loss(answer, targets_BS) if self.loss_chunk is None else answer
        return value / self.share.mean_microbatches

    def _my_stages(self) -> list[int]:
        """Virtual stages of this pipeline rank, in model order."""
        stages = stages_of_rank(self.layout.schedule, self.layout.pp, self.layout.vpp)
        return [int(stage) for stage in stages[self.mesh["pp"].get_local_rank()]]

    def _part(self, stage: int) -> Transformer:
        """Make one virtual stage: built, initialised, its GEMMs in fp8, split over tensor ranks, recomputing,
        its activations on the host, compiled, sharded; in that order."""
        layout, model = self.layout, self.plan.model
        flat = layout.zero <= 1  # else parameters stay fp32 and are cast where they are gathered
        # blocks that would not fit together are made on the host; tensor ranks split them on the device
        apart = self.offloading if self.device.type == "cuda" and layout.tp == 1 else None
        made_on = torch.device("cpu") if apart is not None else self.device
        with made_on, _made_of(self.dtype if flat else torch.float32):
            part = Transformer(
                model,
                vocabulary=int(padded_vocabulary(model, layout.tp)),
                dropout=self.plan.question.dropout,
                first=sum(layout.layers[:stage]),
                count=layout.layers[stage],
                has_embedding=stage == 0,
                has_head=stage == layout.num_stages - 1,
                experts=None if self.experts is None else expert_place(model, self.experts),
                loss_chunk=self.loss_chunk,
            )
        if self.device.type != "meta":  # which has no values to set, only their making would take minutes
            initialise(part, self.options.seed, tied=model.tied_embeddings)
        if apart is not None:
            apart.move_what_stays(part)
        if self.plan.training.precision == "fp8":
            from executor.engine.fp8 import multiply_in_fp8  # torchao is there where fp8 is asked for

            multiply_in_fp8(part, emulate=self.options.emulate_fp8)
        inside_products = "tp" in (layout.overlap or ())
        if layout.tp > 1:
            split_tensors(
                part,
                self.mesh["tp"],
                sequence_parallel=layout.sp,
                as_rows=inside_products and layout.sp and layout.mbs == 1,
            )
        share_sequence(part, self.sequence)
        if self.experts is not None:
            mean = self.share.mean_microbatches
            connect_experts(part, layout, self.mesh, self.experts, self.context_group, mean)
        recompute_activations(part, layout.stage_recompute[stage])
        if self.offloading is not None:
            self.offloading.apply(part)
        if self.options.compile:
            inside = None
            if inside_products:
                inside = options_inside_products(self.mesh["tp"].get_group(), self.device)
            compile_blocks(part, split=layout.tp > 1, options=inside)
        streamed = () if self.offloading is None else self.offloading.streamed(part)
        if layout.zero >= 2 and self.experts is not None:
            share_experts(part, self.experts, layout.zero, self.dtype, layout.data_ranks, streamed)
        if layout.zero >= 2:
            share_data(part, self._replicas(), layout.zero, self.dtype, streamed)
        return part

    def _offloading(self) -> Offloading | None:
        """What of this rank's blocks is in host memory; None where nothing is."""
        layout = self.layout
        if layout.offload == NOWHERE:
            return None
        microbatches = self.share.microbatches
        drive = self.options.drive
        return Offloading(layout, self._my_stages(), self.device, self.dtype, microbatches, drive)

    def _behind_compute(self) -> DataBehindCompute | None:
        """What has data-parallel communication run behind compute; None where the layout does not ask for it."""
        layout = self.layout
        if "dp" not in (layout.overlap or ()):
            return None
        microbatches = self.share.microbatches
        return DataBehindCompute(layout, microbatches, self.parts, self.mesh, self.experts, self.tied.copies)

    def _dropout_seed(self) -> int:
        """Ranks that hold the same activations must drop the same ones: tensor ranks without sequence parallelism."""
        place = self.place
        replica = place.dp * self.layout.cp + place.cp
        return hash((self.options.seed, place.pp, replica, place.tp if self.layout.sp else 0)) % 2**31

    def _replicas(self) -> DeviceMesh:
        """The ranks that hold the same parameters: one axis, or two where they are sharded in groups."""
        grouped = self.layout.shard_group < self.layout.data_ranks
        return self.mesh["copy", "shard"] if grouped else self.mesh["shard"]

    def _loss_context(self) -> AbstractContextManager[None]:
        return loss_parallel() if self.layout.tp > 1 else nullcontext()


@contextmanager
def _made_of(dtype: torch.dtype) -> Iterator[None]:
    """Make parameters of this type inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def loss(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in fp32."""
    return F.cross_entropy(logits_BSV.flatten(0, 1).float(), targets_BS.flatten())


def mean_over_data(value: float, engine: Engine) -> float:
    """The loss of the global batch, known on every rank."""
    share = value / (engine.layout.data_ranks * engine.layout.tp) if engine.holds_loss else 0.0
    total = torch.tensor(share, device=engine.device)
    dist.all_reduce(total)
    return float(total)
