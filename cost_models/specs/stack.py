"""A software stack as data: what it fuses, what it overlaps, what it keeps in memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cost_models.axes.context import Context
from cost_models.axes.order import DEFAULT_ORDER, Order
from cost_models.axes.pipeline import Schedule
from cost_models.axes.recompute import Recompute
from cost_models.base import Factor, LargeInt, Name, PositiveInt, Share, Spec
from cost_models.specs.cluster import AttentionKernel
from cost_models.specs.training import StateDtype
from cost_models.units import Bytes

STORES_SCORES: frozenset[AttentionKernel] = frozenset({"unfused", "fused-softmax"})
"""Kernels that keep the s × s scores in memory."""
SelectiveDrops = Literal["core", "block-attention", "all-but-every-other-product"]


class StackSpec(Spec):
    """How one training stack executes a layout; the constants that depend on the GPU are in `HardwareProfile`."""

    kind: Literal["stack"] = "stack"
    name: Name
    zero_stages: tuple[Literal[0, 1, 2, 3], ...] = Field(default=(0, 1, 2, 3), min_length=1)
    """ZeRO stages the stack can run (0 is needed where nothing is replicated)."""
    usual_zero_stage: Literal[0, 1, 2, 3] = 0
    """What its users run when they do not say."""
    usual_recompute: Recompute | None = None
    """What its users recompute when they do not say; None: nothing with a flash kernel, all with stored scores."""
    usually_interleaves: bool = False
    """Its recipes interleave pipelines, a block a chunk, unless they say otherwise."""
    usual_dropout: bool = False
    """Its recipes drop hidden activations unless they say otherwise (GPT-era trainers: 0.1)."""
    pads_vocabulary: bool = False
    """The vocabulary is padded to a multiple of 128 × tp."""
    attention: AttentionKernel = "flash2"
    """How scores, softmax and weighted values are computed."""
    fused_elementwise: bool = True
    """Bias, activation, dropout and residual additions run as one kernel each (or are compiled together)."""
    compiled: bool = False
    """Our executor compiles every block with `torch.compile`."""
    fused_norms: bool = True
    """RMS norms are one kernel each way; layer norms are in every library."""
    eager_norm_bytes: Factor = 6.0
    """Bytes per element that an RMS norm of several 16-bit kernels keeps: an fp32 copy and the normalised input."""
    gradient_dtype: StateDtype = "fp32"
    """Type gradients are accumulated and reduced in, unless the training spec says."""
    gradients_in_weight_dtype: bool = False
    """Gradients are first produced in the weight's type beside the accumulation buffer."""
    bf16_accumulates_apart: bool = False
    """In bf16 (not in fp16) gradients are accumulated and reduced in fp32, beside those in the weight's type."""
    gradient_buffer: bool = False
    """ZeRO-0 and 1 add every microbatch's gradients into a buffer that lives from step to step."""
    fused_gradient_accumulation: bool = False
    """Weight-gradient products add into the accumulation buffer themselves."""
    master_weights: bool = True
    """An fp32 copy of 16-bit weights belongs to the optimizer state; False: the weights themselves are fp32."""
    overlap_gradient_reduce: bool = False
    """Gradients of a layer are reduced while earlier layers still run backward."""
    overlap_parameter_gather: bool = False
    """ZeRO-1/2: updated weights are gathered behind the next forward pass."""
    overlap_tensor_parallel: Share = 0.0
    """Share of tensor-parallel communication hidden inside matrix products."""
    schedules: tuple[Schedule, ...] = Field(default=("1f1b", "interleaved"), min_length=1)
    """Pipeline schedules the stack has."""
    split_backward_launches: tuple[Factor, Factor] = (1.0, 1.0)
    """Launch time of the input and the weight half of a split backward pass, in units of that of a whole one."""
    torch_pipelining: bool = False
    """Pipelines run on `torch.distributed.pipelining`, under its rules."""
    overlap_pipeline_sends: bool = True
    """Stage boundaries are sent without blocking the sender."""
    scatter_gather_pipeline_sends: bool = True
    """A boundary tensor crosses nodes once, split over the tensor-parallel ranks."""
    axis_orders: tuple[Order, ...] = Field(default=(DEFAULT_ORDER,), min_length=1)
    """Orders of the mesh axes it can build its groups in."""
    context_parallel: Context = "ring"
    """How ranks that share a sequence get one another's keys and values unless the layout says."""
    context_kinds: tuple[Context, ...] = ("ring",)
    """The ways a layout may name, beside the usual one; none at all: it has no context parallelism."""
    expert_tensor_parallel: bool = True
    """An expert may be split over other ranks than the rest of the model (etp other than tp)."""
    hybrid_shard: bool = True
    """ZeRO may shard over fewer ranks than hold the same parameters (shard less than dp × cp)."""
    overlap_expert_exchange: Share = 0.0
    """Share of the exchange of tokens between experts that is hidden behind other work."""
    zero3_gathers_every_microbatch: bool = True
    """ZeRO-3 gathers weights again for each microbatch (reshard after forward)."""
    zero3_collectives_per_block: PositiveInt = 1
    """Collectives that a block's weights are gathered in: one for all, or one a parameter tensor."""
    unsharded_gradients_until_sync: bool = False
    """ZeRO-2/3 with accumulation keeps full gradients until the last microbatch."""
    retains_boundary_tensors: bool = False
    """Gradients received from the next one (with several chunks a rank also what was sent) live until the step ends."""
    offloads: Literal["none", "optimizer", "parameters"] = "none"
    """What lives in host memory, where the CPU updates it: optimizer states (and what ZeRO shards of the gradients), or
    with them the weights that ZeRO-3 shards."""
    host_update_seconds: float = Field(default=2.57e-10, ge=0.0, le=1e-3, allow_inf_nan=False)
    """Seconds per parameter of one process's update on the CPU: DeepSpeed's CPU Adam took 2.57 s for 10 B parameters
    (Ren et al. 2021, ZeRO-Offload, table 4)."""
    optimizer_temporary_bytes: Factor = 0.0
    """Bytes per parameter (of the optimizer's shard) that the update holds for a moment; 0 for a fused one."""
    collective_buffers: Bytes | None = None
    """Device memory inside the allocator in which ZeRO collects gradients to reduce and weights to gather."""
    fp32_logits: bool = True
    """The loss works on an fp32 copy of the logits."""
    fused_loss: bool = False
    """The loss overwrites what it kept of the logits with their gradient."""
    loss_chunk: LargeInt | None = None
    """Tokens of a microbatch whose logits exist at a time, where it has more: the loss and its gradients are computed
    chunk by chunk in the forward pass (`operators.chunked_loss` says in which layouts); None: all logits at once."""
    loss_parallel: bool = True
    """The vocabulary stays split over tp in the loss."""
    extra_loss_copies: Factor = 0.0
    """Tensors of the stored logits' size that the loss holds at its widest moment beyond what it needs."""
    sequence_first: bool = False
    """Tensors are (s, b, h): with b > 1 flash kernels, which want (b, s, h), keep their output in both orders."""
    keeps_traded_output: bool = False
    """Where tokens are traded for heads the core's output is kept as the kernel made it and as it came back."""
    saves_gathered_activations: bool = False
    """Sequence parallelism keeps gathered inputs of column-parallel matrices (DTensor) instead of gathering again."""
    selective_drops: SelectiveDrops = "core"
    """What `recompute=selective` drops: the attention core, the attention submodule with its projections, or everything
    but the attention core's output and every other matrix product's (torchtitan's per-operator policy)."""
    recompute_stops_early: bool = False
    """Recomputation ends before the last matrix product of what was dropped (torch.utils.checkpoint does)."""
    eager_attention_and_norms: bool = False
    """Where the GPU has no fused kernels (a CPU), RMS norms keep their normalised input, and grouped-query attention
    keeps keys and values repeated to all query heads."""
    split_loss_copies_logits: bool = False
    """With the vocabulary split over tp, the loss's backward pass holds one more tensor of the logits' size."""
    fully_shard: bool = False
    """ZeRO-2 and 3 by PyTorch's `fully_shard`: ZeRO-2 holds its shard beside the weights it computes with; ZeRO-3 keeps
    embedding and head gathered all step and fetches a block early; gradients are scattered after a block's backward."""
    fp8_saves_inputs: bool = False
    """fp8 training keeps the inputs of a block's matrix products as it multiplied them, one byte an element."""
    fp8_casts_apart: bool = False
    """Every product in fp8 casts both its operands, weights with them (torchao); False: what is new is cast once for
    all products that it enters, weights once a step."""
    fp8_weight_bytes: Factor = 0.0
    """Bytes per parameter of a block of the fp8 copies of its weights that live from microbatch to microbatch."""
    fragmentation: float = Field(default=0.04, ge=0.0, lt=0.9)
    """Share of the blocks the allocator takes from the device that its tensors cannot use."""
    memory_error: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share by which nine in ten peaks were missed at most on published runs; a guess where nobody published any."""
    context_bytes: Bytes = 0.8e9
    """Device memory outside the allocator: the driver's context and the kernels of the libraries."""
    communicator_bytes: Bytes = 0.25e9
    """Device memory outside the allocator for each communicator (NCCL's channels and their buffers)."""
    transformer_engine: bool = False
    """Transformer Engine runs the block; its matrix products have a workspace of their own."""
    deterministic: bool = False
    """Products must be reproducible, for which the matrix library wants larger workspaces."""
    launches_block: bool = False
    """Every kernel is waited for before the next is launched (CUDA_LAUNCH_BLOCKING=1)."""
    scatters_by_all_reduce: bool = False
    """ZeRO-1 reduces gradients everywhere and then keeps its share, instead of scattering them."""
    source: str = ""
    """Code or paper the facts were read from."""
