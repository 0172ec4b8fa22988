"""Microbenchmarks of kernels: matrix products, attention, element-wise operators, embedding tables.

**Transformers:** GEMMs, attention cores, element-wise operators, memory copies, the optimizer.

Shape legend: m rows (tokens), n columns out, k inner; B sequences, H heads, S sequence, K head width.

**Embedding tables:** lookups by row and pooling, sums of gradients, optimizers, and lookups through the caches that
serve. They are those of `executor.embeddings`, on tables beyond all caches whose rows are met in random order. So many
ids at once that launches hardly count: a step's are priced by the operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import get_args

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from cost_models.measured.calibration.microbenchmarks import (
    CHANGE,
    LOOKUP,
    REPEATED,
    SERVED_PREFIX,
    SUMS,
    SUSTAINED,
    Measurement,
    moved_bytes,
)
from cost_models.recommender.accesses import POLICIES
from cost_models.specs.cluster import AttentionKernel
from cost_models.specs.hardware import ElementwiseOperator
from cost_models.specs.recommender.training import TableOptimizer
from cost_models.specs.transformer import Rotary
from executor.embeddings.bags import Bags, CachedSets, HottestRows, pooled, row_gradients
from executor.embeddings.holding import RowOptimizer
from executor.microbenchmarks.stopwatch import Scale, Stopwatch, Timing, copies, in_turn
from executor.models.positions import Turns
from executor.transformer.diagnosis import AttentionKernels

Tensors = tuple[Tensor, ...]
_KERNELS: dict[str, AttentionKernel] = {
    "math, with all scores in memory": "unfused",
    "memory-efficient": "flash1",
    "cuDNN": "cudnn",
}
"""Attention backend that torch chose → the kernel that the cost model prices; other backends are FlashAttention 2. The
memory-efficient backend is of FlashAttention 1's generation, and like it keeps no scores.
"""
_BACKWARD_PRODUCTS = 2.5
"""FLOPs of attention's backward pass per FLOP of its forward pass, as scores are computed again (Dao 2023)."""


def gemms(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time the three matrix products of each linear layer: output (with bias), input gradient, weight gradient."""
    for m, n, k in scale.products:
        operands = _operands(watch, scale, m, n, k)
        passes: dict[str, tuple[tuple[int, int, int], Callable[..., Tensor]]] = {
            "forward": ((m, n, k), _output),
            "backward-input": ((m, k, n), lambda x_mk, w_nk, g_mn, bias_n: g_mn @ w_nk),
            "backward-weight": ((n, k, m), lambda x_mk, w_nk, g_mn, bias_n: g_mn.t() @ x_mk),
        }
        for name, (shape, multiply) in passes.items():
            timing = watch.compute(in_turn([partial(multiply, *tensors) for tensors in operands]))
            yield timing.row("matrix", f"{name}.{scale.precision}", 2.0 * m * n * k, shape)


def sustained_gemms(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time the largest output product for seconds without a gap, as a GPU at its power limit lowers its clocks."""
    m, n, k = max(scale.products, key=math.prod)
    call = in_turn([partial(_output, *tensors) for tensors in _operands(watch, scale, m, n, k)])
    timing = watch.sustained(call, scale.sustained_seconds)
    yield timing.row("matrix", f"{SUSTAINED}.{scale.precision}", 2.0 * m * n * k, (m, n, k))


def _operands(watch: Stopwatch, scale: Scale, m: int, n: int, k: int) -> list[Tensors]:
    """Enough sets of a linear layer's input, weight, output gradient and bias to overflow the cache next to a core."""
    shapes = ((m, k), (n, k), (m, n), (n,))
    count = copies(scale, scale.element_bytes * (m * k + n * k + m * n))
    return [tuple(scale.tensor(watch.device, *shape) for shape in shapes) for _ in range(count)]


def cached_gemms(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time matrix products whose operands never leave the cache, an upper bound on the rate of any in a model."""
    for m, n, k in scale.repeated_products:
        x_mk, w_kn = scale.tensor(watch.device, m, k), scale.tensor(watch.device, k, n)
        out_mn = scale.tensor(watch.device, m, n)
        timing = watch.compute(partial(torch.mm, x_mk, w_kn, out=out_mn))
        yield timing.row("matrix", f"{REPEATED}.{scale.precision}", 2.0 * m * n * k, (m, n, k))


def _output(x_mk: Tensor, w_nk: Tensor, g_mn: Tensor, bias_n: Tensor) -> Tensor:
    """Output of a linear layer, with bias."""
    return torch.addmm(bias_n, x_mk, w_nk.t())


def attention_cores(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time causal attention, in seconds of one head: forward, and backward through autograd. Queries, keys and values
    are strided views of (B, S, H, K), as in a model.
    """
    for head_dim, sequence in product(scale.head_dims, scale.sequences):
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
        differentiate = partial(torch.autograd.grad, grad_outputs=gradient, retain_graph=True)
        passes = zip(outputs, leaves, strict=True)
        backward = in_turn([partial(differentiate, output, tensors) for output, tensors in passes])
        with AttentionKernels() as kernels:
            _attend(*leaves[0])
        default_kernel: AttentionKernel = "flash2"
        ran = next((kernel for name, kernel in _KERNELS.items() if name in kernels.seen), default_kernel)
        causal_flops = 2.0 * sequence * sequence * head_dim
        for name, call, products in (("forward", forward, 1.0), ("backward", backward, _BACKWARD_PRODUCTS)):
            per_head = watch.compute(call).shared(heads)
            row = per_head.row("attention", name, products * causal_flops, (sequence, head_dim))
            yield replace(row, kernel=ran)


@torch.no_grad()
def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention without gradients."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


_HEAD_DIM = 64
_VOCABULARY = 4096
_DROPOUT = 0.1
_LEAST_SHARE = 0.1
_TENSORS_TOUCHED = 2.0


def element_wise(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time every element-wise operator forward, and backward if it has a gradient."""
    engine_seconds = _autograd_call(watch)
    for elements in scale.elements:
        rows = max(1, elements // scale.width)
        count = copies(scale, _TENSORS_TOUCHED * scale.element_bytes * elements)
        tables = [_operators(watch.device, scale, rows) for _ in range(count)]
        for name in tables[0]:
            variants = [table[name] for table in tables]
            forward = in_turn([partial(torch.no_grad()(call), *leaves) for call, leaves in variants])
            yield watch.compute(forward).row("operator", name, float(elements))
            backward = [_backward(call, leaves) for call, leaves in variants]
            if all(backward):
                timing = watch.compute(in_turn([call for call in backward if call]))
                timing = timing.without(engine_seconds, _LEAST_SHARE)
                yield timing.row("operator", f"{name}.backward", float(elements))


def _backward(call: Callable[..., Tensor], leaves: Tensors) -> Callable[[], object] | None:
    """Call that runs the backward pass of an operator, repeatedly; None if no input needs a gradient."""
    needing = tuple(leaf for leaf in leaves if leaf.requires_grad)
    if not needing:
        return None
    out = call(*leaves)
    return partial(torch.autograd.grad, out, needing, torch.ones_like(out), retain_graph=True)


def _operators(
    device: torch.device, scale: Scale, rows: int
) -> dict[ElementwiseOperator, tuple[Callable[..., Tensor], Tensors]]:
    """Element-wise operator → (call, inputs) over `rows` × width elements."""
    width, turns = (scale.width,), Turns()
    x, y = (scale.tensor(device, rows, scale.width).requires_grad_() for _ in range(2))
    plain = scale.tensor(device, rows, scale.width)
    weight, bias = (scale.tensor(device, scale.width).requires_grad_() for _ in range(2))
    heads = scale.tensor(device, 1, rows, scale.width // _HEAD_DIM, _HEAD_DIM).requires_grad_()
    table = scale.tensor(device, _VOCABULARY, scale.width).requires_grad_()
    token_ids = torch.randint(_VOCABULARY, (rows,), device=device)
    lines = max(1, rows * scale.width // _VOCABULARY)
    logits = torch.randn(lines, _VOCABULARY, device=device).requires_grad_()
    targets = torch.randint(_VOCABULARY, (lines,), device=device)
    return {
        "layernorm": (lambda x, w, b: F.layer_norm(x, width, w, b), (x, weight, bias)),
        "rmsnorm": (lambda x, w: F.rms_norm(x, width, w), (x, weight)),
        "gelu": (F.gelu, (x,)),
        "silu": (F.silu, (x,)),
        "relu": (F.relu, (x,)),
        "squared-relu": (lambda x: F.relu(x).square(), (x,)),
        "multiply": (torch.mul, (x, y)),
        "add": (torch.add, (plain, plain.clone())),
        "dropout": (lambda x: F.dropout(x, _DROPOUT, training=True), (x,)),
        # in the training precision, of heads in views of their projection
        "rotary": (lambda x: turns(x.transpose(1, 2), (range(x.shape[1]),), Rotary()), (heads,)),
        "copy": (lambda x: x.transpose(1, 2).contiguous(), (heads.detach(),)),
        "bias-gradient": (lambda x: x.sum(0), (plain,)),
        "embedding": (partial(F.embedding, token_ids), (table,)),
        "cross-entropy": (lambda logits: F.cross_entropy(logits, targets), (logits,)),
    }


def memory(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time copies between two arrays, in the caches and beyond them; the size is bytes read plus bytes written."""
    for size in scale.memory_bytes:
        source = torch.ones(size // 4, device=watch.device)
        target = torch.zeros_like(source)
        timing = watch.compute(partial(target.copy_, source))
        yield timing.row("memory", "copy", 2.0 * size)


def optimizer(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time the norm of the gradients with a fused AdamW step, as the executor runs them, by number of parameters.

    As in `executor.axes.data`: the norm over a view for each tensor, the update over the one flat buffer
    they lie in.
    """
    for tensors, parameters in scale.optimizer_shapes:
        flat = torch.nn.Parameter(torch.zeros(tensors * parameters, device=watch.device))
        flat.grad = torch.ones_like(flat)
        adamw = torch.optim.AdamW([flat], fused=True)
        timing = watch.compute(partial(_norm_and_step, adamw, torch.split(flat.grad, parameters)))
        yield timing.row("optimizer", "adamw", float(tensors * parameters), (tensors,))


def _norm_and_step(adamw: torch.optim.Optimizer, gradients: tuple[Tensor, ...]) -> Tensor:
    """Compute the norm of the gradients, tensor by tensor, and run an AdamW step."""
    norms = torch._foreach_norm(gradients, dtype=torch.float32)
    adamw.step()
    return torch.stack(norms).square().sum()


def _autograd_call(watch: Stopwatch) -> float:
    """Seconds of a call of the autograd engine, measured on a view whose backward launches nothing."""
    leaf = torch.zeros(1, device=watch.device, requires_grad=True)
    out, gradient = leaf.view(1), torch.ones(1, device=watch.device)
    return watch.compute(partial(torch.autograd.grad, out, (leaf,), gradient, retain_graph=True)).seconds


_FP32 = 4
_FEW_MISSES = 16
_ROUND = 8
"""Batches of missing ids in a round, which together name four times as many rows as the cache has."""
_RATE = 1e-3


def tables(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time operations on embedding tables of every width: lookups of every pooling, updates, cached lookups."""
    flat = torch.zeros(scale.table_bytes // _FP32, device=watch.device)
    for width in scale.table_widths:
        weights = flat.view(-1, width)
        for pooling in scale.poolings:
            bags = _bags(len(weights), pooling, scale.table_ids, watch.device)
            yield _row(LOOKUP, width, bags, watch.compute(lambda b=bags, w=weights: pooled(w, b)))  # type: ignore[misc]
        yield from _updates(watch, scale, weights)
        yield from _cached_lookups(watch, scale, weights)


def _updates(watch: Stopwatch, scale: Scale, weights: Tensor) -> Iterator[Measurement]:
    """Time sums of row gradients, and every optimizer's update of the rows."""
    width = weights.shape[1]
    bags = _bags(len(weights), 1.0, scale.table_ids, watch.device)
    gradients = torch.full((len(bags.lengths), width), _RATE, device=watch.device)
    yield _row(SUMS, width, bags, watch.compute(lambda: row_gradients(bags, gradients)))
    summed = row_gradients(bags, gradients)
    for kind in get_args(TableOptimizer):
        optimizer = RowOptimizer(kind)
        tier = optimizer.tier(weights)
        squares = summed.values.square().mean(1) if optimizer.by_row else None
        change = partial(optimizer.apply, tier, summed, squares, _RATE, 1)
        yield _row(f"{CHANGE}{kind}", width, bags, watch.compute(change))


def _cached_lookups(watch: Stopwatch, scale: Scale, weights: Tensor) -> Iterator[Measurement]:
    """Time cached lookups of three kinds of batches: many ids that all miss, few ids of which half miss, many of
    which few miss.

    Batches of missing ids go round more rows than the cache has, so that a row is gone when it is named again.
    """
    draw = torch.Generator().manual_seed(0)
    ids, width = min(scale.table_ids, len(weights) // (_ROUND + 2)), weights.shape[1]
    host_table, room = weights[: (_ROUND + 2) * ids].cpu(), 2 * ids
    ones = torch.ones(ids, dtype=torch.int32, device=watch.device)

    def bags_of(*rows: Tensor) -> list[Bags]:
        """Bags of one id each, for every batch of ids."""
        return [Bags(row_ids.to(watch.device), ones[: len(row_ids)]) for row_ids in rows]

    held_rows = torch.randperm(ids, generator=draw)
    gone = bags_of(*torch.split(room + torch.randperm(_ROUND * ids, generator=draw), ids))
    strange = [row_ids.values[:_FEW_MISSES].cpu() for row_ids in gone]
    few_misses = bags_of(*(torch.cat((held_rows[:_FEW_MISSES], row_ids)) for row_ids in strange))
    hit = bags_of(*(torch.cat((held_rows[:-_FEW_MISSES], row_ids)) for row_ids in strange))
    for policy in POLICIES:
        cache: HottestRows | CachedSets = HottestRows(host_table, room, watch.device)
        if policy == "lru":
            cache = CachedSets(host_table, room, policy, watch.device)
        for name, batches in (("miss", gone), ("few", few_misses), ("hit", hit)):
            calls = in_turn([partial(cache.look_up, row_ids) for row_ids in batches])
            timing = watch.on_host(calls, own_clock=True)
            shape = width * _FP32, len(batches[0].values)
            yield timing.row("table", f"{SERVED_PREFIX}{policy}.{name}", float(shape[1]), shape)


def _bags(rows: int, pooling: float, ids: int, device: torch.device) -> Bags:
    """Bags with `ids` random ids in all, `pooling` in each bag. A `pooling` below 1 is the share of bags with one
    id.
    """
    draw = torch.Generator().manual_seed(0)  # the same in every round, on every process
    values = torch.randint(rows, (ids,), generator=draw).to(device)
    count = round(ids / pooling)
    lengths = torch.zeros(count, dtype=torch.int32, device=device)
    if pooling < 1:
        lengths[torch.randperm(count, generator=draw)[:ids].to(device)] = 1
    else:
        lengths += int(pooling)
    return Bags(values, lengths)


def _row(name: str, width: int, bags: Bags, timing: Timing) -> Measurement:
    """Measurement of one operation on an embedding table."""
    distinct = len(bags.values.unique())  # type: ignore[no-untyped-call]
    shape = width * _FP32, len(bags.values), len(bags.lengths), distinct
    return timing.row("table", name, moved_bytes(name, shape), shape)
