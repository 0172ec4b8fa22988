"""Times GEMMs and attention cores of the shapes that a transformer runs.

Shape legend: m rows (tokens), n columns out, k inner; B sequences, H heads, S sequence, K head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from cost_models.measured.calibration.measurements import Measurement
from cost_models.measured.calibration.microbenchmark_fit import REPEATED
from executor.microbenchmarks.rotation import copies, in_turn
from executor.microbenchmarks.scale import Scale
from executor.microbenchmarks.stopwatch import Stopwatch, Timing

Tensors = tuple[torch.Tensor, ...]
_BACKWARD_PRODUCTS = 2.5
"""FLOPs of attention's backward pass, in those of forward: the scores are computed again (Dao 2023)."""


def gemms(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time the three GEMMs of each linear layer: output (with bias), dgrad, wgrad."""
    for m, n, k in scale.products:
        count = copies(scale, scale.element_bytes * (m * k + n * k + m * n))
        operands = [
            tuple(scale.tensor(watch.device, *shape) for shape in ((m, k), (n, k), (m, n), (n,)))
            for _ in range(count)
        ]
        passes = {
            "forward": ((m, n, k), _output),
            "backward-input": ((m, k, n), _input_gradient),
            "backward-weight": ((n, k, m), _weight_gradient),
        }
        for name, (shape, product) in passes.items():
            timing = watch.compute(in_turn([partial(product, *tensors) for tensors in operands]))
            yield Measurement(
                kind="matrix",
                name=f"{name}.{scale.precision}",
                shape=shape,
                size=2.0 * m * n * k,
                seconds=timing.seconds,
                quiet_seconds=timing.quiet,
            )


def cached_gemms(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time GEMMs whose operands never leave the cache: none of a model is faster."""
    for m, n, k in scale.repeated_products:
        x_mk, w_kn = scale.tensor(watch.device, m, k), scale.tensor(watch.device, k, n)
        out_mn = scale.tensor(watch.device, m, n)
        timing = watch.compute(partial(torch.mm, x_mk, w_kn, out=out_mn))
        yield Measurement(
            kind="matrix",
            name=f"{REPEATED}.{scale.precision}",
            shape=(m, n, k),
            size=2.0 * m * n * k,
            seconds=timing.seconds,
            quiet_seconds=timing.quiet,
        )


def _output(x_mk: torch.Tensor, w_nk: torch.Tensor, g_mn: torch.Tensor, bias_n: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias_n, x_mk, w_nk.t())


def _input_gradient(
    x_mk: torch.Tensor, w_nk: torch.Tensor, g_mn: torch.Tensor, bias_n: torch.Tensor
) -> torch.Tensor:
    return g_mn @ w_nk


def _weight_gradient(
    x_mk: torch.Tensor, w_nk: torch.Tensor, g_mn: torch.Tensor, bias_n: torch.Tensor
) -> torch.Tensor:
    return g_mn.t() @ x_mk


def attention_cores(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Causal scaled dot-product attention, seconds of one head: forward, and backward through autograd."""
    for head_dim in scale.head_dims:
        for sequence in scale.sequences:
            yield from _attention_core(watch, scale, sequence, head_dim)


def _attention_core(watch: Stopwatch, scale: Scale, sequence: int, head_dim: int) -> Iterator[Measurement]:
    """Queries, keys and values are strided views (B, S, H, K) of their projections, as in the model."""
    heads = scale.heads(sequence)
    count = copies(scale, 4.0 * scale.element_bytes * heads * sequence * head_dim)
    leaves, outputs = [], []
    for _ in range(count):
        qkv_BSHK = [scale.tensor(watch.device, 1, sequence, heads, head_dim) for _ in range(3)]
        q, k, v = (x.transpose(1, 2).requires_grad_() for x in qkv_BSHK)
        leaves.append((q, k, v))
        outputs.append(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    gradient = torch.ones_like(outputs[0])
    forward = in_turn([partial(_attend, *tensors) for tensors in leaves])
    backward = in_turn(
        [
            partial(torch.autograd.grad, output, tensors, gradient, retain_graph=True)
            for output, tensors in zip(outputs, leaves, strict=True)
        ]
    )
    causal_flops = 2.0 * sequence * sequence * head_dim
    for name, call, products in (("forward", forward, 1.0), ("backward", backward, _BACKWARD_PRODUCTS)):
        timing = watch.compute(call)
        per_head = Timing(seconds=timing.seconds / heads, quiet=timing.quiet / heads)
        yield Measurement(
            kind="attention",
            name=name,
            shape=(sequence, head_dim),
            size=products * causal_flops,
            seconds=per_head.seconds,
            quiet_seconds=per_head.quiet,
        )


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
