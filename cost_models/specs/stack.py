"""Software stacks as data: what each fuses, overlaps and keeps in memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cost_models.base import Factor, LargeInt, Overhead, PositiveInt, Share, Spec
from cost_models.specs.choices import DEFAULT_ORDER, Context, Order, Overlap, Schedule, SelectiveDrops
from cost_models.specs.cluster import AttentionKernel, Precision
from cost_models.specs.recommender.constants import RecommenderStack
from cost_models.specs.stack_kernels import StackKernels
from cost_models.units import Bytes

VOCABULARY_UNIT = 128
"""Megatron-LM, megatron/training/arguments.py: `--make-vocab-size-divisible-by`."""
STORES_SCORES: frozenset[AttentionKernel] = frozenset({"unfused", "fused-softmax"})
"""Attention kernels that keep the s × s scores in memory."""

DROPPED_FACTS = frozenset({"host_update_seconds", "offloads"})
"""Facts of a stack in plan files of earlier versions that no price depends on any more."""


class DriveUse(Spec):
    """How a stack keeps optimizer states on a drive (Rajbhandari et al. 2021, ZeRO-Infinity, section 5.1.2): a chunk is
    read, updated by the CPU and written back."""

    zero_stages: tuple[Literal[0, 1, 2, 3], ...] = Field(default=(0, 1, 2, 3), min_length=1)
    """ZeRO stages under which it can."""
    overlaps: bool = False
    """Whether one chunk is read or written while the CPU updates another; False: one after the other."""
    gradients: bool = False
    """Whether gradients lie there too, in fp32, from the backward pass to the update."""
    rereads_weights: bool = False
    """Whether fp32 weights that lie there are read once more, updated, on their way to those that passes use."""
    buffers: int = Field(default=0, ge=0, le=1000)
    """Buffers in host memory through which chunks go, of so many fp32 numbers each:"""
    chunk: LargeInt = 10**9
    """Parameters of a chunk."""
    block_chunks: int = Field(default=0, ge=0, le=1000)
    """Chunks in which a rank's states of a block come at least; 0: chunks know no blocks."""


class StackSpec(StackKernels):
    """How one training stack executes a layout; constants that depend on the GPU are in `HardwareProfile`."""

    overlap_gradient_reduce: bool = False
    """Whether gradients of a layer are reduced while earlier layers still run backward."""
    reduces_chunks_in_turn: bool = False
    """Whether, where it does and a pipeline is interleaved, a chunk's gradients are reduced behind the next chunk's
    passes, so that only the last chunk's are in sight; False: behind the backward pass of another block."""
    overlaps_gradient_reduce_at: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)
    """ZeRO stages at which it does; at others all gradients are reduced after the last backward pass."""
    overlap_parameter_gather: bool = False
    """Whether ZeRO-1 and 2 gather updated weights behind the next forward pass."""
    overlap_tensor_parallel: Share = 0.0
    """Share of tensor-parallel communication hidden inside GEMMs."""
    overlaps_tensor_parallel_in: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
    """Precisions of products that can hide it."""
    overlaps: tuple[Overlap, ...] = ()
    """What a layout's `overlap` may ask for, beside what the stack always overlaps."""
    overlaps_by_block: bool = False
    """Whether `overlap=dp` reduces and gathers block by block, so that one is not hidden; False: chunk by chunk of the
    model, as MegaScale does, where 1/(2·vpp) of it all is not."""
    reduces_behind_weight_products: bool = False
    """Whether sequence parallelism scatters the gradients of a column-parallel input behind the products towards that
    matrix's weights."""
    all_reduces_behind_weight_products: bool = False
    """The same without sequence parallelism, where they are all-reduced."""
    gathers_cast_operands: bool = False
    """Whether in fp8 and fp4 sequence parallelism gathers what a product multiplies as it was cast for it."""
    schedules: tuple[Schedule, ...] = Field(default=("1f1b", "interleaved"), min_length=1)
    """Pipeline schedules that the stack has."""
    split_backward_launches: tuple[Factor, Factor] = (1.0, 1.0)
    """Launch time of dgrad and of wgrad in a split backward pass, relative to a whole one."""
    torch_pipelining: bool = False
    """Whether pipelines run on `torch.distributed.pipelining`, under its rules."""
    overlap_pipeline_sends: bool = True
    """Whether stage boundaries are sent without blocking the sender."""
    scatter_gather_pipeline_sends: bool = True
    """Whether a boundary tensor crosses nodes once, split over the tensor-parallel ranks."""
    broadcasts_every_batch: bool = False
    """Whether every forward action of every stage first gets its batch: tensor ranks send it to one another, the host
    reads its size from the device, and a mask of s × s is made."""
    axis_orders: tuple[Order, ...] = Field(default=(DEFAULT_ORDER,), min_length=1)
    """Orders of the mesh axes in which the stack can build its groups."""
    context_parallel: Context = "ring"
    """How ranks that share a sequence exchange keys and values, unless the layout says."""
    context_kinds: tuple[Context, ...] = ("ring",)
    """Kinds of context parallelism that a layout may name besides the usual one; none at all: it has none."""
    torch_context_parallel: bool = False
    """Whether context ranks work as PyTorch's `context_parallel` has them: attention takes the keys and values of one
    rank at a time however they came, what the steps found is merged in fp32, operator by operator, and gradients of
    keys and values go all the way round in fp32."""
    repeats_keys_values: bool = False
    """Whether grouped keys and values are repeated to all query heads before attention, and before context ranks
    exchange them."""
    expert_tensor_parallel: bool = True
    """Whether an expert may be split over other ranks than the rest of the model (etp other than tp)."""
    hybrid_shard: bool = True
    """Whether ZeRO may shard over fewer ranks than hold the same parameters (shard less than dp × cp)."""
    expert_dispatch: Literal["copies", "tokens"] = "copies"
    """What travels to experts: every copy of a token by itself (Megatron Core's `alltoall` dispatcher), or a token once
    to each rank that has experts for it, over the network once to each of their nodes (its `flex`: DeepEP, HybridEP).
    """
    fp8_expert_dispatch: bool = False
    """Whether in fp8 training tokens travel to experts in fp8, back always in 16 bits (DeepSeek-V3, section 3.3.2)."""
    overlap_expert_exchange: Share = 0.0
    """Share of the exchange with experts that runs behind the compute of another microbatch, as far as that lasts."""
    expert_exchange_processors: int = Field(default=0, ge=0, le=1024)
    """Multiprocessors that the exchange takes from compute while both run."""
    keeps_exchange_processors: bool = False
    """Whether products and attention never run on them, as their kernels are launched for the others alone; False: not
    while tokens travel."""
    weighs_inside_experts: bool = False
    """Whether the weights of a token's experts are multiplied in before their second product, so that what
    came back is not kept (Megatron Core since 0.13); else the weighted sum keeps every copy."""
    experts_in_one_kernel: bool = False
    """Whether one kernel multiplies for all experts of a rank, so that an expert's weights come while it multiplies for
    another; else each expert has kernels of its own."""
    routing_host_seconds: Overhead = 0.0
    """Host seconds to launch a block's router, permutations and exchange in one pass, beyond those of a dense block."""
    expert_host_seconds: Overhead = 0.0
    """The same for each expert of the rank, the mean over both passes; 0 where the host never goes through them."""
    expert_cast_host_seconds: Overhead = 0.0
    """What comes to it in fp8, where operands of every expert are cast apart."""
    waits_for_expert_counts: bool = False
    """Whether the host reads how many tokens came to each expert before it launches what works on them."""
    captured_expert_launches: Share = 0.0
    """Share of the launches of blocks with experts that CUDA graphs replay without the host."""
    zero3_gathers_every_microbatch: bool = True
    """Whether ZeRO-3 gathers weights again for each microbatch (reshard after forward)."""
    pipelines_keep_weights: bool = False
    """Whether ZeRO-3 in a pipeline keeps the weights that it gathered until the step ends, as ZeRO-2 does."""
    zero3_collectives_per_block: PositiveInt = 1
    """Collectives in which ZeRO-3 gathers a block's weights: one for all, or one a parameter tensor."""
    zero3_waits_for_device: bool = False
    """Whether ZeRO-3 gathers one matrix behind the one at work and waits for the device before the next; False: it
    gathers further ahead."""
    zero3_slice_seconds: Overhead = 0.0
    """Where it waits, host seconds for each rank's slice of a matrix that is gathered or reduced as a list of slices.
    """
    zero3_reuse_elements: LargeInt | None = None
    """ZeRO-3 gathers in hooks of each matrix, so for what is recomputed too, and keeps what is used again before so
    many parameters have passed (DeepSpeed's `stage3_max_reuse_distance`); None: once for a block's backward pass."""
    copies_gathered_weights: bool = False
    """Whether ZeRO-3 copies what it gathered from the collective's buffer to where the weights are used."""
    gradient_passes: Factor = 0.0
    """Times that whole gradients are read and written around the collective that reduces them: joined or copied into
    its buffer in the type in which they are reduced, divided, copied back."""
    unsharded_gradients_until_sync: bool = False
    """Whether ZeRO-2 and 3 with accumulation keep full gradients until the last microbatch."""
    retains_boundary_tensors: bool = False
    """Whether gradients received from the next stage (with several chunks a rank also what was sent) live until the
    step ends."""
    residencies: tuple[Literal["states", "parked", "streamed", "activations", "drive"], ...] = ()
    """What of its blocks the stack can keep in host memory, or on the host's drive: see `cost_models.axes.offload`."""
    drive: DriveUse = DriveUse()
    """How it keeps optimizer states on the host's drive, where it can."""
    usual_offload: Literal["states", "streamed"] = "states"
    """What its users keep in host memory where they say no more than that they offload."""
    offloads_ends: bool = False
    """Whether embedding and head live where the blocks do that no count names."""
    offloads_gradients: bool = False
    """Whether gradients of blocks whose states are on the host go there as they are made on a rank without replicas
    too; with replicas they do from ZeRO-2 on, as they are reduced."""
    host_buffers: float = Field(default=1.0, ge=1.0, le=10.0, allow_inf_nan=False)
    """Host memory taken for each byte of states kept there: 1, and what flat copies and pinned buffers come to."""
    staging_buffers: int = Field(default=0, ge=0, le=100)
    """Buffers of a block's size in host memory through which gradients go down, where they do not lie there, and
    updated 16-bit weights come up, under ZeRO-0 and 1."""
    streamed_gradient_buffers: PositiveInt | None = None
    """Gradients of streamed blocks on the device at a time under ZeRO-0 and 1, while blocks run backward; None: as many
    as the ring has buffers, which each hold weights and gradients."""
    keeps_streamed_blocks: bool = False
    """Whether under ZeRO-0 and 1 the blocks that a pass used last stay in the ring for the next pass, which starts on
    them; False: all come for every pass."""
    sums_gradients_on_device: bool = False
    """Whether gradients in host memory come up for those of another microbatch to be added, and go down once more in
    fp32 for the update; False: the CPU adds what comes down."""
    norms_on_host: bool = False
    """Whether under ZeRO-0 and 1 the CPU takes the norm of the gradients of streamed blocks with their update."""
    overlaps_host: bool = False
    """Whether transfers and CPU updates run behind forward and backward passes; False: after them."""
    unfused_update_bytes: Factor = 0.0
    """Bytes per parameter of its shard that an update moves beyond reading states and gradients and writing states,
    where it runs operator by operator; 0 for a fused one."""
    lamb_update_bytes: Factor = 20.0
    """Bytes per parameter of its shard that LAMB moves beyond a fused AdamW: its way is written (4), weight and way are
    read for their norms (8) and again for the update (8), as in Apex's FusedLAMB (csrc/multi_tensor_lamb.cu)."""
    gather_copies: Factor = 0.0
    """Flat copies of a rank's weights that ZeRO-1 holds for a moment while it gathers those it updated."""
    reducer_buckets: bool = False
    """Whether without ZeRO gradients are held once more in the weight's type, in the buckets of PyTorch's DDP."""
    optimizer_temporary_bytes: Factor = 0.0
    """Bytes per parameter of the optimizer's shard that an update holds for a moment; 0 for a fused one."""
    update_group: LargeInt | None = None
    """Parameters of its shard that a rank updates at a time under ZeRO-3; None: all."""
    collective_buffers: Bytes | None = None
    """Device memory inside the allocator in which ZeRO collects gradients to reduce and weights to gather."""
    fp32_logits: bool = True
    """Whether the loss works on an fp32 copy of the logits."""
    fused_loss: bool = False
    """Whether the loss overwrites the logits that it kept with their gradient."""
    releases_logits: bool = False
    """Whether 16-bit logits are freed once an eager loss has an fp32 copy: their block fits nothing of what follows."""
    loss_chunk: LargeInt | None = None
    """Tokens of a microbatch whose logits exist at a time, where it has more: the loss and its gradients are computed
    chunk by chunk in the forward pass (`operators.chunked_loss` says in which layouts); None: all logits at once."""
    skips_ignored_tokens: bool = Field(default=False, exclude_if=lambda skips: not skips)
    """Whether logits are of those tokens alone that the loss counts."""
    loss_parallel: bool = True
    """Whether the vocabulary stays split over tp in the loss."""
    extra_loss_copies: Factor = 0.0
    """Tensors as large as the stored logits that the loss holds at its widest moment beyond what it needs."""
    sequence_first: bool = False
    """Whether tensors are (s, b, h): with b > 1 flash kernels (of b, s, h) keep their output in both orders."""
    rotates_in_joint_tensor: bool = False
    """Whether, without grouped queries, attention keeps the joint tensor of queries, keys and values whole, as it reads
    views of it, beside new tensors for two of them: those turned, or the two that were not turned in place."""
    keeps_rotary_tables: bool = False
    """Whether a block keeps cosines and sines of every token, which all heads share, for queries and for keys."""
    keeps_traded_output: bool = False
    """Whether Ulysses all-to-alls keep the core's output both as the kernel made it and as it came back."""
    saves_gathered_activations: bool = False
    """Whether sequence parallelism keeps gathered inputs of column-parallel matrices (DTensor) instead of gathering
    again."""
    selective_drops: SelectiveDrops | tuple[SelectiveDrops, ...] = "core"
    """What `recompute=selective` drops, one or several: the attention core, the attention submodule with its
    projections, the experts with their router and exchange (Megatron Core's `--recompute-modules moe`), everything but
    the core's output and every other matrix product's (torchtitan's per-operator policy), the outputs of norms
    over the residual stream that no product has in its kernel, of the experts' activation and of latent attention's up
    projections (`layernorm moe_act mla_up_proj`), dense MLPs, shared experts."""
    recompute_stops_early: bool = False
    """Whether recomputation ends before the last GEMM of what was dropped (torch.utils.checkpoint does)."""
    recomputes_latent_heads: bool = False
    """Whether backward passes always make the heads of latent attention again, which nothing keeps (DeepSeek-V3)."""
    eager_attention_and_norms: bool = False
    """Where the GPU has no fused kernels (a CPU), RMS norms keep their normalised input, and grouped-query attention
    keeps keys and values repeated to all query heads."""
    plain_scans: bool = False
    """Whether scans of recurrences are PyTorch's own products in fp32, which keep what they are given and run again."""
    split_loss_copies_logits: bool = False
    """Whether, with the vocabulary split over tp, the loss's backward pass holds one more tensor like the logits."""
    microbatches_per_stage_until: str | None = Field(default=None, pattern=r"20\d\d-\d\d")
    """Month until which a pipeline's batch was cut into as many microbatches as it has stages, by default."""
    fully_shard: bool = False
    """ZeRO-2 and 3 by PyTorch's `fully_shard`: ZeRO-2 holds its shard beside the weights it computes with; ZeRO-3 keeps
    embedding and head gathered all step and fetches a block early; gradients are scattered after a block's backward."""
    loss_frees_ends: bool = Field(default=False, exclude_if=lambda frees: not frees)
    """Whether without a pipeline `fully_shard` lets go of embedding and head while the loss runs, under ZeRO-3."""
    fp8_saves_inputs: bool = False
    """Whether fp8 training keeps the inputs of a block's GEMMs in fp8, one byte an element."""
    fp8_casts_apart: bool = False
    """Every product in fp8 casts both its operands, weights with them (torchao); False: what is new is cast once for
    all products that it enters, weights once a step."""
    fp8_weight_bytes: Factor = 0.0
    """Bytes per parameter of a block of fp8 weight copies that live from microbatch to microbatch."""
    fragmentation: float = Field(default=0.04, ge=0.0, lt=0.9)
    """Fragmentation: unusable bytes of the allocator's freed blocks for each byte of activations and temporaries."""
    records_streams: bool = False
    """Whether collectives hold their tensors until the device is done with them (torch before 2.8, unless
    `TORCH_NCCL_AVOID_RECORD_STREAMS=1`)."""
    memory_error: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Relative error that nine in ten peaks of published runs stayed within; where none were published what the first
    runs of other stacks showed."""
    mixture_memory_error: float | None = Field(default=None, gt=0.0, lt=1.0)
    """The same of mixtures of experts, whose tokens no router spreads evenly; None: the same."""
    context_bytes: Bytes = 0.8e9
    """Device memory outside the allocator: the driver's context and the libraries' kernels."""
    communicator_bytes: Bytes = 0.25e9
    """Device memory outside the allocator for each communicator: buffers of a connection for three protocols are 4, 4.7
    and 0.5 MiB (NCCL, src/include/device.h), a ring on an NVSwitch has 24 channels, and before 2.22 trees came with it.
    """
    further_communicators: int = Field(default=0, ge=0, le=64)
    """Groups besides one for each axis, as of all ranks or of one copy of the model."""
    transformer_engine: bool = False
    """Whether Transformer Engine runs the block; its GEMMs have a workspace of their own."""
    deterministic: bool = False
    """Whether GEMMs must be reproducible, for which the matrix library wants larger workspaces."""
    launches_block: bool = False
    """Whether every kernel is waited for before the next is launched (CUDA_LAUNCH_BLOCKING=1)."""
    scatters_by_all_reduce: bool = False
    """Whether ZeRO-1 reduces gradients everywhere and then keeps its share, instead of scattering them."""
    updates_by_owner: bool = False
    """Whether ZeRO-1 and 2 give whole tensors to owners, each of which broadcasts what it updated, instead of cutting
    all into equal shards that one gather collects."""
    recommender: RecommenderStack | None = None
    """How it trains recommenders; None: as most do."""
    source: str = ""
    """Code or paper that the facts were read from."""

    @property
    def drops(self) -> frozenset[SelectiveDrops]:
        """All that `selective_drops` names."""
        named = self.selective_drops
        return frozenset([named] if isinstance(named, str) else named)

    def when_compiled(self, *, loss: bool) -> dict[str, bool]:
        """Changes of the facts for runs with compiled blocks, and with or without a compiled loss."""
        changes = {"fused_elementwise": True, "fused_norms": True}
        return changes | {"fused_loss": True} if loss else changes
