"""Software stacks as data: what each fuses, overlaps and keeps in memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cost_models.base import Factor, LargeInt, Name, PositiveInt, Share, Spec
from cost_models.specs.choices import (
    DEFAULT_ORDER,
    Context,
    Degree,
    Order,
    Overlap,
    Recompute,
    Schedule,
    SelectiveDrops,
)
from cost_models.specs.cluster import AttentionKernel, Precision
from cost_models.specs.recommender.constants import RecommenderStack
from cost_models.specs.training import StateDtype
from cost_models.units import Bytes

VOCABULARY_UNIT = 128
"""Megatron-LM, megatron/training/arguments.py: `--make-vocab-size-divisible-by`."""
STORES_SCORES: frozenset[AttentionKernel] = frozenset({"unfused", "fused-softmax"})
"""Attention kernels that keep the s × s scores in memory."""
USER_BUFFERS: frozenset[Precision] = frozenset({"fp16", "bf16", "fp8"})
"""Precisions of products inside which Transformer Engine hides tensor-parallel communication."""

_DROPPED = """
    all_reduces_behind_weight_products captured_expert_launches eager_norm_bytes expert_cast_host_seconds
    expert_exchange_processors expert_host_seconds fp8_core_bytes fp8_expert_dispatch fp8_saves_activated
    fp8_weight_bytes gates_in_scan gather_copies gathers_cast_operands
    gradients_in_weight_dtype host_update_seconds keeps_exchange_processors keeps_rotary_tables
    keeps_traded_output narrow_gemm_half norms_on_host offloads overlaps_by_block overlaps_tensor_parallel_in
    plain_scans recomputes_norms reduce_dtype reducer_buckets repeats_keys_values
    retains_boundary_tensors routing_host_seconds split_backward_launches split_loss_copies_logits
    staging_buffers streamed_gradient_buffers sums_gradients_on_device usual_offload usually_interleaves
    zero3_slice_seconds
"""
DROPPED_FACTS = frozenset(_DROPPED.split())
"""Facts of a stack in plan files of earlier versions that no price depends on any more
(docs/decisions/0075-facts-of-stacks.md)."""


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


class StackSpec(Spec):
    """How one training stack executes a layout; constants that depend on the GPU are in `HardwareProfile`."""

    kind: Literal["stack"] = "stack"
    name: Name
    family: Name | None = None
    """Stack whose fitted profiles are also this one's: the same kernels and collectives under another recipe."""
    last_month: str | None = Field(default=None, pattern=r"^20\d\d-(0[1-9]|1[0-2])$")
    """Month (2024-07) of the last release that is so; runs of its family dated until then are read as its own."""
    zero_stages: tuple[Literal[0, 1, 2, 3], ...] = Field(default=(0, 1, 2, 3), min_length=1)
    """ZeRO stages that the stack can run (0 is needed where nothing is replicated)."""
    usual_zero_stage: Literal[0, 1, 2, 3] = 0
    """ZeRO stage of its users where they do not say."""
    usual_degrees: tuple[Degree, ...] = ("tp", "pp", "ep")
    """Degrees beside data parallelism that its users turn on as a matter of course; layouts with others are not called
    ordinary."""
    usual_recompute: Recompute | None = None
    """Recompute policy of its users where they do not say; None: none with a flash kernel, all with stored scores."""
    ends_count_as_blocks: bool = False
    """Whether embedding and head may each take the place of a block of the first and the last stage."""
    usually_splits_sequence: bool = False
    """Whether its users split the sequence where they split tensors (`sp`) and its recipes interleave pipelines that
    would idle too long, unless they say otherwise."""
    usual_dropout: bool = False
    """Whether its recipes drop hidden activations unless they say otherwise (GPT-era trainers: 0.1). Of Megatron Core
    those that are in use switch its default of 0.1 off (examples/llama, examples/mixtral: `--hidden-dropout 0.0`)."""
    places_blocks: Literal["evenly", "in-turn", "by-compute"] = "evenly"
    """How blocks are placed on stages by default: as evenly as they divide, stages full in turn so that the last has
    fewer, or up to equal shares of the matrix products of blocks and head."""
    pads_vocabulary: bool = False
    """Whether the vocabulary is padded to a multiple of `VOCABULARY_UNIT` × tp, unless the model says another unit."""
    attention: AttentionKernel = "flash2"
    """Attention kernel."""
    native_attention: AttentionKernel = "unfused"
    """Kernel of its attention in PyTorch's own operators: flash where it calls `scaled_dot_product_attention`."""
    fused_elementwise: bool = True
    """Whether bias, activation, dropout and residual additions run as one kernel each (or are compiled together)."""
    compiled: bool = False
    """Whether our executor compiles every block with `torch.compile`."""
    compiles_loss: bool = False
    """Whether runs that compile their blocks compile the loss too."""
    loss_not_compiled: tuple[str, str] | None = None
    """First and last month (2024-12) of releases that do not, all the same."""
    fused_norms: bool = True
    """Whether RMS norms are one kernel each way; layer norms are in every library."""
    separate_biases: bool = False
    """Whether kernels of their own add biases that no activation, dropout or addition takes with it (of queries, keys
    and values), and sum the gradients of all biases; False: products do it."""
    attention_copies: tuple[Factor, Factor] = (0.0, 0.0)
    """Tensors of the attention output's size that are copied around its core, forward and backward: into the order that
    its kernel wants and back, and gradients of queries, keys and values side by side."""
    joins_parallel_products: bool = False
    """Whether attention and MLP of a parallel block run their products side by side: as one into the block and as one
    out of it."""
    casts_norm_inputs: bool = False
    """Whether fused norms read an fp32 copy of the residual stream, made by a kernel of its own, and always run again
    in the backward pass instead of keeping what they return."""
    always_discards: tuple[SelectiveDrops, ...] = ()
    """Outputs of norms and experts' activations that no policy keeps: backward passes make them again."""
    gradient_dtype: StateDtype = "fp32"
    """Type in which gradients are accumulated and reduced, unless the training spec says."""
    fp16_gradient_dtype: StateDtype | None = None
    """The same in fp16, where the type need not hold more than fp16 does; None: the same. `bf16` means 16 bits."""
    bf16_accumulates_apart: bool = False
    """Whether bf16 (not fp16) gradients are accumulated and reduced in fp32, beside those in the weight's type."""
    gradient_buffer: bool = False
    """Whether ZeRO-0 and 1 add every microbatch's gradients into a buffer that lives from step to step."""
    fused_gradient_accumulation: bool = False
    """Whether wgrad GEMMs add into the accumulation buffer themselves."""
    fused_accumulation_dtypes: tuple[StateDtype, ...] = ("fp32", "bf16")
    """Types of accumulation buffers into which they can."""
    master_weights: bool = True
    """Whether the optimizer state has an fp32 copy of 16-bit weights; False: the weights themselves are of the states'
    type."""
    master_remainders: bool = False
    """Whether the fp32 copy of bf16 weights is kept as the 16 bits that these lack (Megatron Core's precision-aware
    optimizer, `store_param_remainders`)."""
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
    """Share of tensor-parallel communication hidden inside GEMMs, by Transformer Engine in `USER_BUFFERS` alone."""
    overlaps: tuple[Overlap, ...] = ()
    """What a layout's `overlap` may ask for, beside what the stack always overlaps."""
    reduces_behind_weight_products: bool = False
    """Whether the gradients of a column-parallel input are scattered (with sequence parallelism) or all-reduced behind
    the products towards that matrix's weights."""
    schedules: tuple[Schedule, ...] = Field(default=("1f1b", "interleaved"), min_length=1)
    """Pipeline schedules that the stack has."""
    torch_pipelining: bool = False
    """Whether pipelines run on `torch.distributed.pipelining`, under its rules: gradients received from the next stage
    (with several chunks a rank also what was sent) live until the step ends, and a split backward pass takes longer to
    launch."""
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
    keys and values go all the way round in fp32. Grouped keys and values are repeated to all query heads first."""
    expert_tensor_parallel: bool = True
    """Whether an expert may be split over other ranks than the rest of the model (etp other than tp)."""
    hybrid_shard: bool = True
    """Whether ZeRO may shard over fewer ranks than hold the same parameters (shard less than dp × cp)."""
    expert_dispatch: Literal["copies", "tokens"] = "copies"
    """What travels to experts: every copy of a token by itself (Megatron Core's `alltoall` dispatcher), or a token once
    to each rank that has experts for it, over the network once to each of their nodes (its `flex`: DeepEP, HybridEP).
    """
    overlap_expert_exchange: Share = 0.0
    """Share of the exchange with experts that runs behind the compute of another microbatch, as far as that lasts."""
    weighs_inside_experts: bool = False
    """Whether the weights of a token's experts are multiplied in before their second product, so that what
    came back is not kept (Megatron Core since 0.13); else the weighted sum keeps every copy."""
    experts_in_one_kernel: bool = False
    """Whether one kernel multiplies for all experts of a rank, so that an expert's weights come while it multiplies for
    another, and CUDA graphs replay the launches of such blocks without the host; else each expert has kernels of its
    own."""
    waits_for_expert_counts: bool = False
    """Whether the host goes through the experts, and reads how many tokens came to each before it launches what
    works on them."""
    zero3_gathers_every_microbatch: bool = True
    """Whether ZeRO-3 gathers weights again for each microbatch (reshard after forward)."""
    pipelines_keep_weights: bool = False
    """Whether ZeRO-3 in a pipeline keeps the weights that it gathered until the step ends, as ZeRO-2 does."""
    zero3_collectives_per_block: PositiveInt = 1
    """Collectives in which ZeRO-3 gathers a block's weights: one for all, or one a parameter tensor."""
    zero3_waits_for_device: bool = False
    """Whether ZeRO-3 gathers one matrix behind the one at work and waits for the device before the next, and
    gathers and reduces a matrix as a list of slices, one a rank; False: it gathers further ahead."""
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
    residencies: tuple[Literal["states", "parked", "streamed", "activations", "drive"], ...] = ()
    """What of its blocks the stack can keep in host memory, or on the host's drive: see `cost_models.axes.offload`."""
    drive: DriveUse = DriveUse()
    """How it keeps optimizer states on the host's drive, where it can."""
    offloads_ends: bool = False
    """Whether embedding and head live where the blocks do that no count names."""
    offloads_gradients: bool = False
    """Whether gradients of blocks whose states are on the host go there as they are made on a rank without replicas
    too; with replicas they do from ZeRO-2 on, as they are reduced. They come up for those of another microbatch to be
    added, and go down once more in fp32 for the update; else the CPU adds what comes down."""
    host_buffers: float = Field(default=1.0, ge=1.0, le=10.0, allow_inf_nan=False)
    """Host memory taken for each byte of states kept there: 1, and what flat copies and pinned buffers come to."""
    keeps_streamed_blocks: bool = False
    """Whether under ZeRO-0 and 1 streamed blocks go as our executor has them: those that a pass used last stay in the
    ring for the next pass, gradients have buffers of their own on the device, gradients and updated weights pass
    through staging buffers in host memory, and the CPU takes norms with the update. False: all come for every pass, and
    a buffer of the ring holds weights and gradients."""
    overlaps_host: bool = False
    """Whether transfers and CPU updates run behind forward and backward passes; False: after them."""
    unfused_update_bytes: Factor = 0.0
    """Bytes per parameter of its shard that an update moves beyond reading states and gradients and writing states,
    where it runs operator by operator; 0 for a fused one."""
    lamb_update_bytes: Factor = 20.0
    """Bytes per parameter of its shard that LAMB moves beyond a fused AdamW: its way is written (4), weight and way are
    read for their norms (8) and again for the update (8), as in Apex's FusedLAMB (csrc/multi_tensor_lamb.cu)."""
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
    saves_gathered_activations: bool = False
    """Whether sequence parallelism keeps gathered inputs of column-parallel matrices (DTensor) instead of gathering
    again, and Ulysses all-to-alls the core's output both as the kernel made it and as it came back."""
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
    keeps keys and values repeated to all query heads. On any, scans of recurrences are PyTorch's own products in fp32,
    which keep what they are given and run again."""
    microbatches_per_stage_until: str | None = Field(default=None, pattern=r"20\d\d-\d\d")
    """Month until which a pipeline's batch was cut into as many microbatches as it has stages, by default."""
    fully_shard: bool = False
    """ZeRO-2 and 3 by PyTorch's `fully_shard`: ZeRO-2 holds its shard beside the weights it computes with; ZeRO-3 keeps
    embedding and head gathered all step and fetches a block early; gradients are scattered after a block's backward.
    Its vocabulary is split as DTensor does it: the loss's backward pass holds one more tensor like the logits."""
    loss_frees_ends: bool = Field(default=False, exclude_if=lambda frees: not frees)
    """Whether without a pipeline `fully_shard` lets go of embedding and head while the loss runs, under ZeRO-3."""
    fp8_saves_inputs: bool = False
    """Whether fp8 training keeps the inputs of a block's GEMMs in fp8, one byte an element."""
    fp8_casts_apart: bool = False
    """Every product in fp8 casts both its operands, weights with them (torchao); False: what is new is cast once for
    all products that it enters, weights once a step."""
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
    """Whether Transformer Engine runs the block, as Megatron Core has it: its GEMMs have a workspace of their own; in
    fp8 and fp4 it keeps two copies of each weight as cast, and gathers what a product multiplies so; the kernels that
    scan decaying states multiply their gates in."""
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
