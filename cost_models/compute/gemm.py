"""Seconds of matrix products from their shapes: tiles, waves, pipeline fill, power, the memory roof, and
casts.

A GPU computes a product of (m, k) by (k, n) as output tiles, `sm_count` at a time. The last wave is seldom
full, a short inner dimension never fills the pipeline, and a narrow product is bound by memory:

    seconds = max(kernel, 2mnk / rate, bytes / bandwidth)
    rate  = efficiency · settled · min(peak · sustained, watts · FLOP/s per watt) · fill · alignment · waves
    fill  = k / (k + half), with `half` from the profile
    waves = best over tile shapes of  tile_efficiency · (m·n) / (tile area · sm_count · ceil(tiles / sm_count))

Power: large products of today's GPUs need more power than their boards may draw, so clocks fall until they do
not. The limit holds over many milliseconds and a product lasts less than one, so clocks fall for all products
alike, and the loss by a product's shape is additional.

Alignment: rows in memory that are no multiple of 128 bytes lose part of the memory's rate, those that are no
multiple of 16 bytes most of it (`alignment`). The length of rows counts, not their number: tensors are
(tokens, width), so widths count and tokens do not. Only in fp8, whose kernels sum along rows alone, does a
weight gradient have transposed operands with rows of tokens.

A CPU core fetches operands and multiplies in turn: there the two times are added, at
`gemm_operand_bandwidth`.

Sources: He 2024, "Strangely, matrix multiplications on GPUs run faster when given predictable data" (power);
NVIDIA, Matrix Multiplication Background guide (tile and wave quantisation; alignment of the dimensions that
vary fastest in memory); cuBLAS, Tensor Core Usage (the same for each transposition); Williams et al. 2009
(roofline). Leaves out split-k, L2 locality and how energy per FLOP falls with clocks; the profile's
efficiency averages over them.

Casts to fp8 or fp4: Transformer Engine casts each new operand of a product once, forward its input, backward
the gradient of its output: read in 16 bits and written twice, as it is and transposed (the weight gradient
needs both operands transposed). In fp4 (NVFP4) the operand is first read once more, as its largest element
sets a scale of scales. Its norms write their output already cast. Weights are cast once a step, which is left
out, and so are scaling factors.

torchao's `Float8Linear` casts both operands of every product, with a scale for each row: forward input and
weight, backward the gradient twice, and weight and input again. Run operator by operator a cast is absolute
value, maximum, copy to fp32, times the scale, clamp, copy to fp8; a transposed operand needs one more copy;
and eight kernels make the scales. The products of the backward pass return unscaled results: the scales of
rows and columns are multiplied in fp32, and the result with them. A compiler leaves one kernel for the
maximum, one for the rest of a cast, one for the scaling, and casts a common input of several matrices once
(torchao.float8, version 0.18).

Joined products: a stack may run products of a parallel block as one, since attention and MLP read one input
and are added to one sum. Matrices side by side fill the last wave of tiles once, and matrices whose outputs
are added have one long inner dimension. PaLM (Chowdhery et al. 2022, section 2) joins them so; MegaScale
(section 3.1) runs the two halves of a parallel block at once, which is priced as the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, over_distinct
from cost_models.errors import InputError
from cost_models.operators.accumulation import fuses_accumulation, gradient_dtype
from cost_models.operators.parameters import job_operators
from cost_models.operators.record import Gemm, Operator, products_of, tokens_on_rank
from cost_models.question import Question
from cost_models.specs.cluster import NARROW, GpuSpec, Precision
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.training import STATE_BYTES, TuningSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import FP32_BYTES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Device:
    """Rates of one accelerator in one precision, from its datasheet and the constants of a hardware profile."""

    profile: HardwareProfile
    peak: float
    """FLOP/s of matrix products, from the datasheet."""
    sustained: float
    """Share of `peak` that the best-shaped products reach at full clocks."""
    power_rate: float = math.inf
    """FLOP/s of products that the power limit allows, independent of their shape."""
    memory_rate: float
    """Bytes/s that element-wise kernels reach."""
    optimizer_rate: float
    """Bytes/s that the optimizer step reaches."""
    attention_shares: Array = field(default_factory=lambda: np.ones((2, 1)))
    """Shares of peak that the stack's attention kernel reaches, forward and backward, (2, 1); (2, N) for
    profiles of scenarios."""
    sm_count: int
    element_bytes: float
    """Bytes of one activation or weight."""
    operand_bytes: float
    """Bytes per element of a product's operands; below `element_bytes`, operands are cast."""
    launches_ahead: bool
    """Whether the host launches kernels ahead of the device (GPU), which hides host time; on a CPU the times
    add up."""
    casts_apart: bool = False
    """Whether every fp8 product casts both its operands, even those that another product has cast."""
    tensor_cores: bool = True
    """Whether products run on tensor cores, which need aligned rows; fp32 units do not."""
    fuses: bool = False
    """Whether chains of element-wise operators run as one kernel."""


def require_rate(gpu: GpuSpec, precision: Precision) -> None:
    """Raise InputError if the GPU has no matrix rate in `precision`."""
    if precision not in gpu.peak:
        precisions = ", ".join(f"`{name}`" for name in gpu.peak)
        hint = f"the GPU has {precisions}; try --precision {next(iter(gpu.peak))}"
        raise InputError(f"`{gpu.name}` has no {precision} matrix rate", hint=hint)


def device_of(question: Question, *, uncast: bool = False) -> Device:
    """Compute and memory rates of a question's accelerator in the training precision. With `uncast`, they are
    in the precision of the parts that fp8 training does not cast.

    Raises:
        InputError: the GPU has no matrix rate in the training precision.
    """
    gpu, training, profile = question.cluster.gpu, question.training, question.hardware
    precision = training.wide_precision if uncast else training.precision
    require_rate(gpu, precision)
    in_fp8 = profile.fp8_gemm_efficiency if precision in NARROW else None
    narrow = 1.0 if in_fp8 is None else in_fp8 / profile.gemm_efficiency
    share = gpu.attention_share(question.stack.attention)
    forward = np.minimum(1.0, share.forward * profile.attention_forward_efficiency)
    backward = np.minimum(1.0, share.backward * profile.attention_backward_efficiency)
    device = rated_device(gpu, profile, precision, training.element_bytes, question.cluster.gpu_watts)
    return replace(
        device,
        sustained=device.sustained * narrow,
        power_rate=device.power_rate * narrow,
        attention_shares=np.vstack(np.broadcast_arrays(forward, backward)),
        operand_bytes=training.element_bytes if uncast else training.operand_bytes,
        casts_apart=question.stack.fp8_casts_apart,
        fuses=question.stack.fused_elementwise,
        launches_ahead=device.launches_ahead and not question.stack.launches_block,
    )


def rated_device(
    gpu: GpuSpec, profile: HardwareProfile, precision: Precision, size: float, watts: float | None = None
) -> Device:
    """Rates of a GPU in one of its precisions, at a power of at most `watts`. Elements and operands have
    `size` bytes."""
    return Device(
        profile=profile,
        peak=gpu.peak[precision],
        sustained=gpu.sustained.get(precision, 1.0),
        power_rate=gpu.power_rate(precision, watts),
        memory_rate=gpu.memory_bandwidth * profile.memory_efficiency,
        optimizer_rate=gpu.memory_bandwidth * profile.optimizer_efficiency,
        sm_count=gpu.sm_count,
        element_bytes=size,
        operand_bytes=size,
        launches_ahead=gpu.kind != "cpu",
    )


def gemm_seconds(
    m: Array, n: Array, k: Array, device: Device, batch: Array | float = 1.0, *, over_rows: bool = False
) -> Array:
    """Seconds of `batch` matrix products (m, k) × (k, n) in one kernel; all arguments broadcast.

    `over_rows`: the product is a weight's gradient, of (k, m) transposed and (k, n), so that k counts rows.
    """
    flops = 2.0 * m * n * k * batch
    fill = k / (k + device.profile.gemm_k_half)
    share = fill * _tile_utilisation(m, n, batch, device)
    widths = [n, m if over_rows else k]
    if over_rows and device.operand_bytes < device.element_bytes:
        widths.append(k)
    best = min(device.peak * device.sustained, device.power_rate)
    reached = device.profile.gemm_efficiency * (device.profile.gemm_settled or 1.0)
    rate = reached * best * share * _alignment(widths, device)
    traffic = ((m * k + k * n) * device.operand_bytes + m * n * device.element_bytes) * batch
    if operand_bandwidth := device.profile.gemm_operand_bandwidth:
        return np.maximum(device.profile.kernel_seconds, flops / rate + traffic / operand_bandwidth)
    return np.maximum(device.profile.kernel_seconds, np.maximum(flops / rate, traffic / device.memory_rate))


def _tile_utilisation(m: Array, n: Array, batch: Array | float, device: Device) -> Array:
    """Share of a product's tile slots (tiles per wave times waves) with useful output, for the best tile
    shape; 1 on a device without waves (CPU)."""
    if device.sm_count == 1:
        return np.ones(np.broadcast(m, n, batch).shape)
    best: Array = np.zeros(np.broadcast(m, n, batch).shape)
    useful = batch * m * n / device.sm_count
    for tile in device.profile.gemm_tiles:
        tiles = batch * np.ceil(m / tile.rows) * np.ceil(n / tile.columns)
        waves = np.ceil(tiles / device.sm_count)
        best = np.maximum(best, useful * (tile.efficiency / (tile.rows * tile.columns)) / waves)
    return best


_WHOLE_ROW = 128
_ALIGNED = {_WHOLE_ROW: 1.0, 64: 0.9, 32: 0.8, 16: 0.68}
"""Share of the matrix rate that remains, by the largest power of two (up to 128) that divides the bytes of a row."""
_MISALIGNED = 0.15
"""Share of the matrix rate that remains for rows that are no multiple of 16 bytes, which tensor cores load in
pieces.

The kind of these shares follows NVIDIA's guide, their size BigScience's 2022 chronicles: widths of 14400
against 13824 on eight ranks, heads of 108 against 144.
"""
_SHARE_BY_DIVISOR = np.array([_ALIGNED.get(divisor, _MISALIGNED) for divisor in range(_WHOLE_ROW + 1)])


def _alignment(widths: Sequence[Array], device: Device) -> Array:
    """Share of the matrix rate that a product reaches with the worst aligned of its row widths; 1 on a
    CPU."""
    lowest_share: Array = np.ones(np.broadcast(*widths).shape)
    for width in widths if device.sm_count > 1 and device.tensor_cores else ():
        row_bytes = np.ceil(np.asarray(width) * device.operand_bytes).astype(np.int64)
        lowest_share = np.minimum(lowest_share, _SHARE_BY_DIVISOR[np.gcd(row_bytes, _WHOLE_ROW)])
    return lowest_share


_EAGER_KERNELS, _COMPILED_KERNELS = 6 + 8, 2  # a cast, its scales included
EAGER_CAST_BYTES = 2 * FP32_BYTES + 1.0
"""Temporary bytes per element of a cast that runs operator by operator: fp32 before and after the clamp, and
fp8."""


def _cast_seconds(local: LocalGemm, device: Device, *, backward: bool, precast: bool) -> Array | float:
    """Seconds to cast the operands of a matrix product forward, or of its two products backward including the
    scaling of their results, (N,).

    With `precast` a norm has already cast the input.
    """
    element, narrow, kernel = device.element_bytes, device.operand_bytes, device.profile.kernel_seconds
    if element == narrow:
        return 0.0
    inputs = local.rows * local.inputs * local.batch
    weights = local.outputs * local.inputs * local.batch
    gradients = local.rows * local.outputs * local.batch
    if not device.casts_apart:  # one new operand for both products that use it
        if precast:
            return 0.0
        moved_bytes = (gradients if backward else inputs) * ((2 if narrow < 1 else 1) * element + 2 * narrow)
        return kernel + moved_bytes / device.memory_rate
    matrices, fuses = local.matrices, device.fuses
    times = 1.0 if fuses else matrices  # one cast input per matrix; a compiler casts it once

    def cast(elements: Array, casts: float, *, turned: bool = False) -> Array:
        """Seconds to cast `casts` operands of matrix products to fewer bits; together they have `elements`
        elements."""
        kernels, bytes_each = _COMPILED_KERNELS, 2 * element + narrow
        if not fuses:
            kernels = _EAGER_KERNELS + turned
            bytes_each = 3 * element + (element + FP32_BYTES) + 2 * (2 * FP32_BYTES) + (FP32_BYTES + narrow)
            bytes_each += 2 * narrow * turned
        return casts * kernels * kernel + elements * bytes_each / device.memory_rate

    def scale(elements: Array) -> Array:
        """Seconds to scale the results of backward products."""
        bytes_each = 2 * element + (0.0 if fuses else 2 * FP32_BYTES)
        return matrices * (1 if fuses else 2) * kernel + elements * bytes_each / device.memory_rate

    if not backward:
        return cast(times * inputs, times) + cast(weights, matrices)
    towards_input = cast(gradients, matrices) + cast(weights, matrices, turned=True)
    towards_weight = cast(gradients, matrices, turned=True) + cast(times * inputs, times, turned=True)
    return towards_input + towards_weight + (scale(matrices * inputs) + scale(weights))


def product_operators(
    model: TransformerSpec, *, joined: bool, tuning: TuningSpec | None = None
) -> list[tuple[Operator, Gemm]]:
    """All matrix products of a block, as pairs of the operator and its matrix product. With `joined`, the
    products of a parallel block are merged if possible.

    A mixture, latent attention and matrices with adapters are not merged, nor are inputs from two norms.
    """
    products = products_of(job_operators(model, tuning))
    adapted = tuning is not None and tuning.left is None
    unmergeable = model.moe_share or model.latent_attention is not None or adapted or model.tower is not None
    if not (joined and model.parallel_block) or unmergeable:
        return products
    into, out_of, up, down = products
    read = [_joined_product(*into, *up)] if model.parallel_norms == 1 else [into, up]
    return [*read, _joined_product(*out_of, *down)]


def _joined_product(first: Operator, gemm: Gemm, second: Operator, partner: Gemm) -> tuple[Operator, Gemm]:
    """Merge two operators with a matrix product each into one; return the merged operator and its product.
    Outputs are put side by side if ranks split the outputs, inner dimensions end to end if ranks split the
    inputs."""
    if gemm.split == "columns":
        joined = replace(gemm, outputs=gemm.outputs + partner.outputs)
    else:
        joined = replace(gemm, inputs=gemm.inputs + partner.inputs, last=gemm.last or partner.last)
    name, flops = f"{first.name}, {second.name}", first.flops + second.flops
    return replace(first, name=name, gemm=joined, flops=flops), joined


_EXPERT_ROWS = 64.0
"""Multiple to which grouped GEMM kernels pad the number of rows of each expert."""
_EXPERT_BANDWIDTH = 0.9
"""Share of memory bandwidth at which products of experts read weights and update their gradients."""


@dataclass(frozen=True, slots=True)
class LocalGemm:
    """Shape of a matrix product on one rank for one microbatch: (rows, inputs) × (inputs, outputs), repeated
    `batch` times."""

    rows: Array
    inputs: Array
    outputs: Array
    batch: Array | float = 1.0
    matrices: int = 1
    """Number of matrices whose outputs lie side by side in `outputs`."""
    stored_bytes: float | None = None
    """Bytes per element of a stored matrix that is widened before the product; None: not widened."""


def matrix_seconds(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, ...]:
    """Seconds of a block's matrix products, (N,) each: forward, backward, weight gradients (part of
    backward), and weight gradients of column-parallel matrices alone.

    Backward runs each GEMM twice, as dgrad and as wgrad. A mixture is averaged with the model's dense blocks.
    """
    names = ("tp", "cp", "mbs", "ep", "etp")
    return over_distinct(columns, names, lambda rows: _matrix_seconds(question, rows, device))


def _matrix_seconds(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, ...]:
    """Seconds of a block's matrix products as in `matrix_seconds`, computed for each row."""
    forward, backward, weight, column_weight = np.zeros((4, len(columns)))
    wide_rates, stack = device_of(question, uncast=True), question.stack
    tuning = question.training.tuning
    products = product_operators(question.model, joined=stack.joins_parallel_products, tuning=tuning)
    for op, gemm in products:
        runs_on = wide_rates if gemm.router or gemm.adapter else device
        local = local_gemm(question, columns, gemm)
        precast = stack.transformer_engine and gemm.behind_norm
        forward = forward + op.share * forward_seconds(local, runs_on, precast=precast)
        towards_input, towards_weight = backward_products(local, runs_on, trained=op.trained)
        casts = _cast_seconds(local, runs_on, backward=True, precast=False)
        backward_pass = towards_input + towards_weight + (casts + _widening_seconds(local, runs_on))
        if gemm.routed and not stack.experts_in_one_kernel:
            read, added = _exposed_weight_seconds(question, local, trained=op.trained)
            forward = forward + op.share * read
            backward_pass, towards_weight = backward_pass + read + added, towards_weight + added
        if gemm.from_latent and stack.recomputes_latent_heads:
            backward_pass = backward_pass + forward_seconds(local, runs_on)
        backward, weight = backward + op.share * backward_pass, weight + op.share * towards_weight
        if gemm.split == "columns":
            column_weight = column_weight + op.share * towards_weight
    return forward, backward, weight, column_weight


def _exposed_weight_seconds(question: Question, local: LocalGemm, *, trained: bool) -> tuple[Array, Array]:
    """Exposed seconds that expert products spend on reading weights, and those on accumulating weight
    gradients, (N,) each.

    Each expert's product is a separate kernel over few rows: it waits for the first of its weights, and at
    its end reads, updates and writes a block of the gradient. Transformer Engine's grouped products on B200
    take FLOPs / rate + bytes / (0.9 · bandwidth), within a tenth from 128 to 1,024 rows an expert, for
    outputs, input gradients, bf16 weight gradients and fp32 weight gradients (timings in SimuMax,
    configs/system/b200_bf16_ceperm.json).
    """
    weights: Array = local.inputs * local.outputs * local.batch
    rate = _EXPERT_BANDWIDTH * question.cluster.gpu.memory_bandwidth
    gradient = STATE_BYTES[gradient_dtype(question)] if fuses_accumulation(question) else 0.0
    return question.training.operand_bytes * weights / rate, 2 * gradient * trained * weights / rate


def local_gemm(question: Question, columns: LayoutColumns, gemm: Gemm) -> LocalGemm:
    """Per-rank shape of a GEMM of the model, split over tensor-parallel ranks or, in experts, over the ranks
    of an expert."""
    rows = gemm.rows * tokens_on_rank(question, columns, "split" if gemm.router else "whole")
    batch: Array | float = 1.0
    degree = columns.tp
    if gemm.routed:
        degree, batch = columns.etp, question.model.num_experts / columns.ep
        copies_per_expert = tokens_on_rank(question, columns, "copies") / batch
        rows = np.ceil(copies_per_expert / _EXPERT_ROWS) * _EXPERT_ROWS
    inputs = np.asarray(gemm.inputs / degree if gemm.split == "rows" else float(gemm.inputs))
    outputs = np.asarray(gemm.width / degree if gemm.split == "columns" else float(gemm.width))
    return LocalGemm(rows, inputs, outputs, batch, len(gemm.outputs), gemm.stored_bytes)


def forward_seconds(local: LocalGemm, device: Device, *, precast: bool = False) -> Array:
    """Forward seconds of a matrix product, including casts of operands, (N,). With `precast` a norm has
    already cast the input."""
    casts = _cast_seconds(local, device, backward=False, precast=precast)
    return product_seconds(local, device) + casts + _widening_seconds(local, device)


def _widening_seconds(local: LocalGemm, device: Device) -> Array | float:
    """Seconds to widen frozen matrices from their stored type to the type of products, (N,); 0 where both
    types are the same. A kernel for each matrix does so before each product (bitsandbytes 0.50,
    autograd/_functions.py, `MatMul4Bit`)."""
    if local.stored_bytes is None:
        return 0.0
    moved_bytes = local.outputs * local.inputs * local.batch * (local.stored_bytes + device.element_bytes)
    return local.matrices * device.profile.kernel_seconds + moved_bytes / device.memory_rate


def product_seconds(local: LocalGemm, device: Device) -> Array:
    """Forward seconds of a matrix product, without casts of its operands, (N,)."""
    return gemm_seconds(local.rows, local.outputs, local.inputs, device, local.batch)


def backward_products(local: LocalGemm, device: Device, *, trained: bool) -> tuple[Array, Array]:
    """Seconds of a matrix product's dgrad and of its wgrad (0 for a frozen matrix), without casts of
    operands, (N,) each."""
    rows, inner, out, batch = local.rows, local.inputs, local.outputs, local.batch
    weight = gemm_seconds(inner, out, rows, device, batch, over_rows=True) if trained else np.zeros(len(rows))
    return gemm_seconds(rows, inner, out, device, batch), weight
