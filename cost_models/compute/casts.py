"""Seconds around the products of a block in fp8 or fp4: what casts their operands and what scales their results.

Transformer Engine casts what is new in a product, forward its input, backward the gradient of its output: read in 16
bits and written twice, as it is and transposed (the product towards the weight wants both operands the other way
round). In fp4 (NVFP4) what is cast is read once more before: its largest element sets a scale of scales. Weights are
cast once a step, which is left out, and so are scaling factors.

torchao's `Float8Linear` casts both operands of every product, with a scale for each row: forward input and weight,
backward the gradient twice, and weight and input again. Run operator by operator a cast is absolute value, maximum,
copy to fp32, times the scale, clamp, copy to fp8; where the product wants the operand turned, one more copy; and eight
kernels make the scales. The products of the backward pass return their result unscaled: the scales of rows and columns
are multiplied in fp32, and the result with them. A compiler leaves one kernel for the maximum, one for the rest of a
cast, one for the scaling, and casts what several matrices read once (torchao.float8, version 0.18).
"""

from __future__ import annotations

from cost_models.arrays import Array
from cost_models.compute.device import Device

_FP32 = 4.0
_EAGER_KERNELS, _COMPILED_KERNELS = 6 + 8, 2  # a cast, its scales included
EAGER_CAST_BYTES = 2 * _FP32 + 1.0
"""At once for each element that is cast operator by operator: in fp32 before and after the clamp, and in fp8."""


def forward_cast_seconds(
    inputs: Array, weights: Array, device: Device, *, matrices: float = 1.0, cast_by_norm: bool = False
) -> Array | float:
    """(N,) seconds for the operands of a forward product, by their elements; so many matrices read the input.

    A norm may hand over the input cast already.
    """
    if not _casts(device):
        return 0.0
    if device.casts_apart:
        return _of_input(inputs, matrices, device) + _apart(weights, matrices, device)
    return 0.0 if cast_by_norm else _once(inputs, device)


def backward_cast_seconds(
    inputs: Array, weights: Array, gradients: Array, device: Device, *, matrices: float = 1.0
) -> Array | float:
    """(N,) seconds for the operands of the two backward products, and for scaling their results."""
    if not _casts(device):
        return 0.0
    if not device.casts_apart:
        return _once(gradients, device)
    towards_input = _apart(gradients, matrices, device) + _apart(weights, matrices, device, turned=True)
    towards_weight = _apart(gradients, matrices, device, turned=True) + _of_input(
        inputs, matrices, device, turned=True
    )
    scaling = _scaling(matrices * inputs, matrices, device) + _scaling(weights, matrices, device)
    return towards_input + towards_weight + scaling


def _casts(device: Device) -> bool:
    return device.operand_bytes != device.element_bytes


def _once(elements: Array, device: Device) -> Array:
    """What is new, for both its uses."""
    read = 2 if device.operand_bytes < 1 else 1
    moved = elements * (read * device.element_bytes + 2 * device.operand_bytes)
    return device.profile.kernel_seconds + moved / device.memory_rate


def _of_input(elements: Array, matrices: float, device: Device, *, turned: bool = False) -> Array:
    """An input for each of the matrices that read it; a compiler sees that it is the same."""
    times = 1.0 if device.fuses else matrices
    return _apart(times * elements, times, device, turned=turned)


def _apart(elements: Array, casts: float, device: Device, *, turned: bool = False) -> Array:
    """So many operands of so many elements together, each for one product."""
    wide, narrow = device.element_bytes, device.operand_bytes
    if device.fuses:
        kernels, moved = _COMPILED_KERNELS, 2 * wide + narrow
    else:
        kernels = _EAGER_KERNELS + turned
        moved = 3 * wide + (wide + _FP32) + 2 * (2 * _FP32) + (_FP32 + narrow) + 2 * narrow * turned
    return casts * kernels * device.profile.kernel_seconds + elements * moved / device.memory_rate


def _scaling(elements: Array, results: float, device: Device) -> Array:
    """So many results of backward products, of so many elements together."""
    kernels = 1 if device.fuses else 2
    moved = 2 * device.element_bytes + (0.0 if device.fuses else 2 * _FP32)
    return results * kernels * device.profile.kernel_seconds + elements * moved / device.memory_rate
