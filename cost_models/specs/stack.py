"""Specs of software stacks (training software): default settings, fused operators, overlapped communication,
memory in use."""

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
"""Vocabulary sizes are padded to a multiple of this × tp. Megatron-LM,
megatron/training/arguments.py: `--make-vocab-size-divisible-by`."""
STORES_SCORES: frozenset[AttentionKernel] = frozenset({"unfused", "fused-softmax"})
"""Attention kernels that keep the s × s scores in memory."""
USER_BUFFERS: frozenset[Precision] = frozenset({"fp16", "bf16", "fp8"})
"""Precisions in which Transformer Engine hides tensor-parallel communication inside products."""

_DROPPED = """
    all_reduces_behind_weight_products captured_expert_launches eager_norm_bytes expert_cast_host_seconds
    expert_exchange_processors expert_host_seconds fp8_core_bytes fp8_expert_dispatch fp8_saves_activated
    fp8_weight_bytes gates_in_scan gather_copies gathers_cast_operands gradients_in_weight_dtype
    host_update_seconds keeps_exchange_processors keeps_rotary_tables keeps_traded_output narrow_gemm_half
    norms_on_host offloads overlaps_by_block overlaps_tensor_parallel_in plain_scans recomputes_norms
    reduce_dtype reducer_buckets repeats_keys_values retains_boundary_tensors routing_host_seconds
    split_backward_launches split_loss_copies_logits staging_buffers streamed_gradient_buffers
    sums_gradients_on_device usual_offload usually_interleaves zero3_slice_seconds
"""
DROPPED_FACTS = frozenset(_DROPPED.split())
"""Obsolete fields of a stack in plan files of earlier versions, on which no cost depends any more
(docs/decisions/0075-facts-of-stacks.md)."""


class DriveUse(Spec):
    """Use of a host's drive for optimizer states, which the CPU reads, updates and writes back chunk by
    chunk. Rajbhandari et al. 2021, ZeRO-Infinity, section 5.1.2."""

    zero_stages: tuple[Literal[0, 1, 2, 3], ...] = Field(default=(0, 1, 2, 3), min_length=1)
    """ZeRO stages with which the stack can keep states on a drive."""
    overlaps: bool = False
    """Whether the drive reads or writes one chunk of states while the CPU updates another. False: one after
    the other."""
    gradients: bool = False
    """Whether gradients are kept on the drive too, in fp32, from the backward pass to the update."""
    rereads_weights: bool = False
    """Whether updated fp32 weights are read from the drive once more, to convert them to the type in which
    passes compute."""
    buffers: int = Field(default=0, ge=0, le=1000)
    """Number of buffers in host memory for chunks, each of `chunk` fp32 numbers."""
    chunk: LargeInt = 10**9
    """Number of parameters whose states form one chunk."""
    block_chunks: int = Field(default=0, ge=0, le=1000)
    """Minimum number of chunks into which a rank's states of a block are divided. 0: chunks ignore blocks."""


class StackSpec(Spec):
    """Properties and defaults of one training stack (a trainer's release) that decide how a layout is
    executed. Constants that depend on the GPU are in `HardwareProfile`."""

    kind: Literal["stack"] = "stack"
    name: Name
    family: Name | None = None
    """Stack whose fitted hardware profiles apply to this stack too, as kernels and collectives are the same.
    None: no other stack."""
    last_month: str | None = Field(default=None, pattern=r"^20\d\d-(0[1-9]|1[0-2])$")
    """Month (2024-07) of the last release to which these values apply. Runs of the family until that month
    are assigned to this stack."""
    zero_stages: tuple[Literal[0, 1, 2, 3], ...] = Field(default=(0, 1, 2, 3), min_length=1)
    """ZeRO stages that the stack can run (layouts without replicas need stage 0)."""
    usual_zero_stage: Literal[0, 1, 2, 3] = 0
    """Default ZeRO stage."""
    usual_degrees: tuple[Degree, ...] = ("tp", "pp", "ep")
    """Parallel degrees in addition to data parallelism that users commonly set. Layouts with other degrees
    are not called ordinary."""
    usual_recompute: Recompute | None = None
    """Default recompute policy. None: `none`, but `full` with an attention kernel that stores scores."""
    ends_count_as_blocks: bool = False
    """Whether embedding and head may each take the place of a block in the first and last stage."""
    usually_splits_sequence: bool = False
    """Whether recipes use sequence parallelism (`sp`) with tensor parallelism by default, and interleave
    pipelines that would idle too long."""
    usual_dropout: bool = False
    """Whether recipes apply dropout to hidden activations by default (GPT-era trainers: 0.1). Current
    recipes of Megatron Core set its default of 0.1 to 0 (examples/llama, examples/mixtral:
    `--hidden-dropout 0.0`)."""
    places_blocks: Literal["evenly", "in-turn", "by-compute"] = "evenly"
    """Default placement of blocks on pipeline stages. `evenly`: as evenly as they divide. `in-turn`: stages
    filled one after another, so that the last has fewer. `by-compute`: up to equal shares of the matrix
    products of blocks and head."""
    pads_vocabulary: bool = False
    """Whether the vocabulary is padded to a multiple of `VOCABULARY_UNIT` × tp, unless the model gives
    another unit."""
    attention: AttentionKernel = "flash2"
    """Attention kernel that the stack runs by default."""
    native_attention: AttentionKernel = "unfused"
    """Attention kernel if blocks run PyTorch operators: a flash kernel with
    `scaled_dot_product_attention`."""
    fused_elementwise: bool = True
    """Whether bias, activation, dropout and residual additions run as one kernel each (or are compiled together)."""
    compiled: bool = False
    """Whether the executor compiles every block with `torch.compile`."""
    compiles_loss: bool = False
    """Whether runs that compile their blocks compile the loss too."""
    loss_not_compiled: tuple[str, str] | None = None
    """First and last month (2024-12) of the releases that compile blocks but not the loss."""
    fused_norms: bool = True
    """Whether an RMS norm is one kernel per pass. A layer norm is one in every library."""
    separate_biases: bool = False
    """Whether separate kernels add biases (of queries, keys and values) and sum the gradients of all biases.
    They add biases that no activation, dropout or addition fuses. False: matrix products do both."""
    attention_copies: tuple[Factor, Factor] = (0.0, 0.0)
    """Number of copies around the attention core, forward and backward, each as large as the core's output.
    They are copies into the kernel's order and back, and gradients of queries, keys and values side by
    side."""
    joins_parallel_products: bool = False
    """Whether the products of attention and MLP in a parallel block are joined. There is then one product
    into the block and one out of it."""
    casts_norm_inputs: bool = False
    """Whether fused norms read an fp32 copy of the residual stream, made by a separate kernel. They then
    always run again in the backward pass instead of keeping their output."""
    always_discards: tuple[SelectiveDrops, ...] = ()
    """Outputs of norms and of experts' activations that backward passes recompute under every recompute
    policy."""
    gradient_dtype: StateDtype = "fp32"
    """Type in which gradients are accumulated and reduced, unless the training spec sets one."""
    fp16_gradient_dtype: StateDtype | None = None
    """Type of gradients in fp16 training. `bf16` means 16 bits. None: `gradient_dtype`."""
    bf16_accumulates_apart: bool = False
    """Whether bf16 (not fp16) gradients are accumulated and reduced in a separate fp32 copy. It is in
    addition to gradients in the weight's type."""
    gradient_buffer: bool = False
    """Whether ZeRO-0 and 1 add every microbatch's gradients into a buffer that persists from step to step."""
    fused_gradient_accumulation: bool = False
    """Whether wgrad GEMMs add directly into the accumulation buffer."""
    fused_accumulation_dtypes: tuple[StateDtype, ...] = ("fp32", "bf16")
    """Types of accumulation buffers to which wgrad GEMMs can add directly (`fused_gradient_accumulation`)."""
    master_weights: bool = True
    """Whether the optimizer state has an fp32 copy of 16-bit weights. False: the weights have the type of the
    states."""
    master_remainders: bool = False
    """Whether the fp32 copy of bf16 weights is stored as the missing 16 bits only (Megatron Core's
    precision-aware optimizer, `store_param_remainders`)."""
    overlap_gradient_reduce: bool = False
    """Whether gradients of a layer are reduced while earlier layers still run backward."""
    reduces_chunks_in_turn: bool = False
    """Whether the gradients of a model chunk (the blocks of one virtual stage) are reduced during the next
    chunk's passes. This needs overlap and an interleaved pipeline, and only the last chunk's are exposed.
    False: they are reduced during the backward pass of another block."""
    overlaps_gradient_reduce_at: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)
    """ZeRO stages with `overlap_gradient_reduce`. At other stages all gradients are reduced after the last
    backward pass."""
    overlap_parameter_gather: bool = False
    """Whether ZeRO-1 and 2 gather updated weights during the next forward pass."""
    overlap_tensor_parallel: Share = 0.0
    """Share of tensor-parallel communication hidden inside GEMMs. With Transformer Engine only in the
    precisions of `USER_BUFFERS`."""
    overlaps: tuple[Overlap, ...] = ()
    """Mesh axes that a layout's `overlap` may name, in addition to those that the stack always overlaps."""
    reduces_behind_weight_products: bool = False
    """Whether the input gradient of a column-parallel matrix is all-reduced (with sequence parallelism
    reduce-scattered) during the product for that matrix's weight gradient."""
    schedules: tuple[Schedule, ...] = Field(default=("1f1b", "interleaved"), min_length=1)
    """Supported pipeline schedules."""
    torch_pipelining: bool = False
    """Whether pipelines run on `torch.distributed.pipelining`. Gradients received from the next stage (with
    several chunks a rank also sent tensors) then live until the step ends, and a split backward pass takes
    longer to launch."""
    overlap_pipeline_sends: bool = True
    """Whether a pipeline stage sends activations and gradients without waiting for the receiver."""
    scatter_gather_pipeline_sends: bool = True
    """Whether a tensor sent between pipeline stages crosses nodes only once, split over the tensor-parallel
    ranks."""
    broadcasts_every_batch: bool = False
    """Whether every forward action of every stage first receives its batch. Tensor ranks broadcast it, the
    host reads its size from the device, and a mask of s × s is made."""
    axis_orders: tuple[Order, ...] = Field(default=(DEFAULT_ORDER,), min_length=1)
    """Supported orders of the mesh axes."""
    context_parallel: Context = "ring"
    """Default context-parallel method (one of `CONTEXTS`) of exchanging keys and values."""
    context_kinds: tuple[Context, ...] = ("ring",)
    """Context-parallel methods that a layout may name in addition to the default. Empty: no context
    parallelism."""
    torch_context_parallel: bool = False
    """Whether context-parallel ranks run PyTorch's `context_parallel`. Attention then reads the keys and
    values of one rank at a time, separate operators merge the results in fp32, and gradients of keys and
    values travel all the way round the ring in fp32. Grouped keys and values are first repeated to all query
    heads."""
    expert_tensor_parallel: bool = True
    """Whether the tensor-parallel degree of experts (etp) may differ from tp."""
    hybrid_shard: bool = True
    """Whether ZeRO may shard over a part of the ranks that hold the same parameters (shard degree below dp ×
    cp)."""
    expert_dispatch: Literal["copies", "tokens"] = "copies"
    """Method of sending tokens to experts. `copies`: each copy of a token separately (Megatron Core's
    `alltoall` dispatcher). `tokens`: a token once to each rank with experts for it, over the network once to
    each of their nodes (its `flex` dispatcher: DeepEP, HybridEP)."""
    overlap_expert_exchange: Share = 0.0
    """Share of the exchange of tokens with experts that overlaps compute of another microbatch. The overlap
    lasts at most as long as that compute."""
    weighs_inside_experts: bool = False
    """Whether the routing weights of a token's experts are multiplied in before the second matrix product.
    The exchange's output is then not kept (Megatron Core since 0.13). False: the weighted sum keeps every
    copy of a token."""
    experts_in_one_kernel: bool = False
    """Whether one kernel multiplies for all experts of a rank. An expert's weights are then loaded while
    another's products run, and CUDA graphs replay the launches of such blocks without the host. False: a
    kernel per expert."""
    waits_for_expert_counts: bool = False
    """Whether the host reads each expert's token count from the device before it launches the experts'
    kernels. It loops over the experts."""
    zero3_gathers_every_microbatch: bool = True
    """Whether ZeRO-3 gathers weights again for each microbatch, since it frees them after the forward pass
    (reshard after forward)."""
    pipelines_keep_weights: bool = False
    """Whether ZeRO-3 in a pipeline keeps gathered weights until the step ends, as ZeRO-2 does."""
    zero3_collectives_per_block: PositiveInt = 1
    """Number of collectives in which ZeRO-3 gathers a block's weights. One for the block, or one per
    parameter tensor."""
    zero3_waits_for_device: bool = False
    """Whether ZeRO-3 gathers only one matrix ahead and waits for the device before the next. It then gathers
    and reduces a matrix as a list of slices, one per rank. False: it gathers further ahead."""
    zero3_reuse_elements: LargeInt | None = None
    """Maximum number of parameters between two uses of a gathered matrix for ZeRO-3 to keep it (DeepSpeed's
    `stage3_max_reuse_distance`). It gathers in hooks of each matrix, and again for recomputation. None: it
    gathers once for a block's backward pass."""
    copies_gathered_weights: bool = False
    """Whether ZeRO-3 copies gathered weights from the collective's buffer to separate tensors."""
    gradient_passes: Factor = 0.0
    """Number of times that all gradients are read and written around their reduction. They are joined or
    copied into its buffer in the reduced type, divided, copied back."""
    unsharded_gradients_until_sync: bool = False
    """Whether ZeRO-2 and 3 with accumulation keep full gradients until the last microbatch."""
    residencies: tuple[Literal["states", "parked", "streamed", "activations", "drive"], ...] = ()
    """Kinds of offload that the stack supports for parts of a block, to host memory or to the host's drive.
    See `cost_models.axes.offload`."""
    drive: DriveUse = DriveUse()
    """Use of the host's drive for optimizer states."""
    offloads_ends: bool = False
    """Whether embedding and head are offloaded like the blocks for which a layout gives no number of
    blocks."""
    offloads_gradients: bool = False
    """Whether gradients of blocks with states on the host are copied there during the backward pass even on a
    rank without replicas. With replicas they are copied from ZeRO-2 on, as they are reduced. Accumulation
    copies them back to the device to add another microbatch's, and the update reads an additional fp32 copy.
    False: the CPU adds arriving gradients."""
    host_buffers: float = Field(default=1.0, ge=1.0, le=10.0, allow_inf_nan=False)
    """Bytes of host memory allocated per byte of offloaded states. 1, plus flat copies and pinned buffers."""
    keeps_streamed_blocks: bool = False
    """Whether streamed blocks (copied from the host for each pass) follow the project's executor under ZeRO-0
    and 1. The blocks that a pass used last stay in the ring for the next pass, gradients have separate
    buffers on the device, gradients and updated weights pass through staging buffers in host memory, and the
    CPU computes norms with the update. False: all blocks are copied for every pass, and a buffer of the ring
    holds weights and gradients."""
    overlaps_host: bool = False
    """Whether transfers to and from the host, and CPU updates, overlap forward and backward passes. False:
    they follow the passes."""
    unfused_update_bytes: Factor = 0.0
    """Bytes per parameter of a rank's shard that an operator-by-operator update moves in addition to a fused
    update. A fused update (0) reads states and gradients and writes states."""
    lamb_update_bytes: Factor = 20.0
    """Bytes per parameter of a rank's shard that LAMB moves in addition to a fused AdamW. Its step is written
    (4), weight and step are read for their norms (8) and again for the update (8), as in Apex's FusedLAMB
    (csrc/multi_tensor_lamb.cu)."""
    optimizer_temporary_bytes: Factor = 0.0
    """Temporary bytes per parameter of the optimizer's shard during an update. 0 for a fused update."""
    update_group: LargeInt | None = None
    """Number of parameters of a rank's shard that are updated at a time under ZeRO-3. None: the entire
    shard."""
    collective_buffers: Bytes | None = None
    """Device memory, bytes, inside the allocator for ZeRO's buffers of gradients to reduce and weights to
    gather."""
    fp32_logits: bool = True
    """Whether the loss is computed on an fp32 copy of the logits."""
    fused_loss: bool = False
    """Whether the loss overwrites the stored logits with their gradient."""
    releases_logits: bool = False
    """Whether an eager loss frees the 16-bit logits once it has an fp32 copy. No later tensor fits their
    memory block."""
    loss_chunk: LargeInt | None = None
    """Maximum number of tokens of a microbatch whose logits exist at a time. The loss and its gradients are
    computed chunk by chunk in the forward pass (`operators.accumulation.chunks_loss` defines for which
    layouts). None: all logits at once."""
    skips_ignored_tokens: bool = Field(default=False, exclude_if=lambda skips: not skips)
    """Whether logits are computed only for tokens that enter the loss."""
    loss_parallel: bool = True
    """Whether the vocabulary stays split over tensor-parallel ranks in the loss."""
    extra_loss_copies: Factor = 0.0
    """Number of additional tensors of the size of the stored logits when the loss uses most memory."""
    sequence_first: bool = False
    """Whether activations are laid out as (s, b, h), which is sequence, batch, width. With b > 1 flash
    kernels, which use (b, s, h), then keep their output in both orders."""
    rotates_in_joint_tensor: bool = False
    """Whether attention without grouped queries keeps the joint tensor of queries, keys and values besides
    two new tensors. These are the rotated ones or those not rotated in place. The reason is that it reads
    views of the joint tensor."""
    saves_gathered_activations: bool = False
    """Whether sequence parallelism keeps gathered inputs of column-parallel matrices (DTensor) instead of
    gathering again. Ulysses then keeps the core's output both before and after its all-to-all."""
    selective_drops: SelectiveDrops | tuple[SelectiveDrops, ...] = "core"
    """Parts of a block that `recompute=selective` drops and recomputes, one or several: the attention core;
    the attention submodule with its projections; the experts with their router and exchange (Megatron Core's
    `--recompute-modules moe`); everything except the core's output and every other matrix product's
    (torchtitan's per-operator policy); outputs of norms over the residual stream that no product fuses, of
    the experts' activation and of latent attention's up projections (`layernorm moe_act mla_up_proj`); dense
    MLPs; shared experts."""
    recompute_stops_early: bool = False
    """Whether recomputation ends before the last GEMM of the dropped part (torch.utils.checkpoint does)."""
    recomputes_latent_heads: bool = False
    """Whether the heads of latent attention are never kept and always recomputed in backward passes
    (DeepSeek-V3)."""
    eager_attention_and_norms: bool = False
    """Whether attention, norms and scans run as PyTorch operators. On a CPU, without fused kernels, RMS norms
    keep their normalised input, and grouped-query attention keeps keys and values repeated to all query
    heads. On any device, scans of recurrences are fp32 products, which keep their inputs and run again."""
    microbatches_per_stage_until: str | None = Field(default=None, pattern=r"20\d\d-\d\d")
    """Last month (2024-07) in which a pipeline by default had one microbatch for each stage."""
    fully_shard: bool = False
    """Whether ZeRO-2 and 3 are PyTorch's `fully_shard`. ZeRO-2 then holds its shard in addition to the
    weights it computes with; ZeRO-3 keeps embedding and head gathered all step and fetches a block early;
    gradients are scattered after a block's backward pass. The vocabulary is split by DTensor: the loss's
    backward pass holds one more tensor like the logits."""
    loss_frees_ends: bool = Field(default=False, exclude_if=lambda frees: not frees)
    """Whether, without a pipeline and under ZeRO-3, `fully_shard` frees embedding and head while the loss
    runs."""
    fp8_saves_inputs: bool = False
    """Whether fp8 training keeps the inputs of a block's GEMMs for the backward pass in fp8, one byte an
    element."""
    fp8_casts_apart: bool = False
    """Whether every fp8 product casts both its operands, weights included (torchao). False: a new tensor is
    cast once for all products that read it, weights once a step."""
    fragmentation: float = Field(default=0.04, ge=0.0, lt=0.9)
    """Bytes lost in the allocator's freed blocks (fragmentation) per byte of activations and temporaries."""
    records_streams: bool = False
    """Whether collectives hold their tensors until the device has finished with them (torch before 2.8,
    unless `TORCH_NCCL_AVOID_RECORD_STREAMS=1`)."""
    memory_error: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Relative error of peak memory that nine in ten published runs did not exceed. Without published runs,
    the error of other stacks' first runs."""
    mixture_memory_error: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Relative error of peak memory, as `memory_error`, for mixtures of experts. Their routers spread tokens
    unevenly. None: `memory_error`."""
    context_bytes: Bytes = 0.8e9
    """Bytes of device memory outside the allocator, for the driver's context and the libraries' kernels."""
    communicator_bytes: Bytes = 0.25e9
    """Bytes of device memory outside the allocator for each communicator. Buffers of a connection for three
    protocols are 4, 4.7 and 0.5 MiB (NCCL, src/include/device.h), a ring on an NVSwitch has 24 channels, and
    before 2.22 trees were added."""
    further_communicators: int = Field(default=0, ge=0, le=64)
    """Number of communicators in addition to one per axis, for example of all ranks or of one copy of the
    model."""
    transformer_engine: bool = False
    """Whether Transformer Engine runs the block, as in Megatron Core. Its GEMMs have a separate workspace; in
    fp8 and fp4 it keeps two cast copies of each weight, and gathers cast inputs of products; kernels that
    scan decaying states also multiply their gates in."""
    deterministic: bool = False
    """Whether GEMMs must be reproducible, for which the matrix library needs larger workspaces."""
    launches_block: bool = False
    """Whether each kernel must finish before the next is launched (CUDA_LAUNCH_BLOCKING=1)."""
    scatters_by_all_reduce: bool = False
    """Whether ZeRO-1 all-reduces gradients and then keeps only its shard, instead of reduce-scattering."""
    updates_by_owner: bool = False
    """Whether ZeRO-1 and 2 assign entire tensors to owner ranks, which broadcast them after the update.
    Otherwise all tensors are cut into equal shards that one gather collects."""
    recommender: RecommenderStack | None = None
    """Options of recommender training. None: defaults."""
    source: str = ""
    """Code or paper from which this stack's values were read."""

    @property
    def drops(self) -> frozenset[SelectiveDrops]:
        """Parts of a block that selective recompute drops and recomputes, the names in `selective_drops` as a
        set."""
        drops = self.selective_drops
        return frozenset([drops] if isinstance(drops, str) else drops)

    def when_compiled(self, *, loss: bool) -> dict[str, bool]:
        """Stack fields that compiling the blocks changes, with their new values; with `loss`, if the loss is
        compiled too."""
        return {"fused_elementwise": True, "fused_norms": True} | ({"fused_loss": True} if loss else {})
