"""The first half of a software stack's facts: who it is, how its users run it, its kernels, gradients and optimizer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cost_models.base import Factor, Name, Spec
from cost_models.specs.choices import Degree, Recompute, SelectiveDrops
from cost_models.specs.cluster import AttentionKernel
from cost_models.specs.training import StateDtype


class StackKernels(Spec):
    """A stack's identity, its users' habits, and what its kernels, gradients and optimizer do."""

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
    usually_interleaves: bool = False
    """Whether its recipes interleave pipelines that would idle too long, unless they say otherwise."""
    ends_count_as_blocks: bool = False
    """Whether embedding and head may each take the place of a block of the first and the last stage."""
    usually_splits_sequence: bool = False
    """Whether its users split the sequence where they split tensors (`sp`), unless they say otherwise."""
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
    narrow_gemm_half: float | None = Field(default=None, ge=0, le=1e6, allow_inf_nan=False)
    """Inner dimension with which its products in fp8 and fp4 reach half of their rate, where sums of a block are scaled
    on other units before they are added up; None: as the profile says of all."""
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
    """Whether fused norms read an fp32 copy of the residual stream, made by a kernel of its own."""
    recomputes_norms: bool = False
    """Whether norms always run again in the backward pass instead of keeping what they return."""
    always_discards: tuple[SelectiveDrops, ...] = ()
    """Outputs of norms and experts' activations that no policy keeps: backward passes make them again."""
    fp8_saves_activated: bool = False
    """Whether fp8 training keeps what experts' activations read in fp8, too."""
    fp8_core_bytes: Factor | None = None
    """Bytes of an element of attention's output where fp8 training keeps it once, for its own backward pass and for the
    product behind it; None: in 16 bits for the former and in fp8 for the latter."""
    gates_in_scan: bool = False
    """Whether the kernels that scan decaying states multiply their gates in, so that the norm behind runs alone."""
    eager_norm_bytes: Factor = 6.0
    """Bytes per element that an unfused RMS norm in 16 bits keeps: an fp32 copy and the normalised input."""
    gradient_dtype: StateDtype = "fp32"
    """Type in which gradients are accumulated and reduced, unless the training spec says."""
    fp16_gradient_dtype: StateDtype | None = None
    """The same in fp16, where the type need not hold more than fp16 does; None: the same. `bf16` means 16 bits."""
    reduce_dtype: StateDtype | None = None
    """Type in which gradients are sent to be reduced; None: that in which they are accumulated."""
    gradients_in_weight_dtype: bool = False
    """Whether gradients are first produced in the weight's type beside the accumulation buffer."""
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
