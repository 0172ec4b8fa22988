"""Attention: its kernels, its biases by distance between tokens, its module.

**Kernels** return the log-sum-exp of each row, so that parts of a row can be merged. Where there is a flash kernel it
is torch's; elsewhere the scores are written out. The backward pass takes the output and the log-sum-exp of the *whole*
rows, over all keys wherever they were (Dao et al. 2022, FlashAttention, algorithm 4): then gradients of parts simply
add up.

Shape legend: B batch, H query heads, G key/value heads, Q queries, S keys, K head width.

**Biases by distance** are in buckets that widen with it (T5: Raffel et al. 2019, arXiv 1910.10683). Blocks of a stack
share a table. Neither scores nor their biases are kept for the backward pass, which makes both again: a table's
gradient is the sum of those of all scores whose distances fall into its bucket.

Shape legend: B batch, H query heads (of this rank), Q queries, S keys, K head width, N buckets.

**The module** has grouped key/value heads, or narrow latents (DeepSeek-V2, arXiv 2405.04434). Positions by rotation or
by a slope per head where the spec has them. Latent attention:

    query   x → latent → norm → heads, or straight from x where the spec has no latent for it
    key     x → latent → norm → heads of K − P, and P more, straight from x, that all heads share
    value   the same latent → heads of W

No matrix of it has a bias. Positions turn the last P of each query head and the shared part of the keys.

Shape legend: B batch, S sequence, D model, H query heads, G key/value heads, K width of a query or key head, P its part
with positions, W width of a value head (H and G of this rank).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cost_models.specs.transformer import Stacks, TransformerSpec
from executor.mesh import local
from executor.models.ends import through
from executor.models.positions import Sequence, Turns, Visibility, WholeSequence, turning_of

_aten: Any = torch.ops.aten
_FLASH_DTYPES = (torch.bfloat16, torch.float16)
_FLASH_WIDTHS = 8
"""GPU flash kernels take heads whose width is a multiple of this, up to `_WIDEST_FLASH`."""
_WIDEST_FLASH = 256


class AttentionInputs(NamedTuple):
    """Inputs of an attention kernel. A `causal` mask lets the last query see the last key, and excludes a `bias`."""

    query: Tensor
    """Queries, (B, H, Q, K)."""
    key: Tensor
    """Keys, (B, G, S, K); `value` has the same shape."""
    value: Tensor
    bias: Tensor | None
    causal: bool


class AttentionResult(NamedTuple):
    """Inputs of attention's backward pass that its forward pass lacks: outputs, log-sum-exps over all keys, output
    gradient.
    """

    out: Tensor
    """Outputs, (B, H, Q, K); `gradient` has the same shape."""
    lse: Tensor
    """Log-sum-exps of the scores of each query, (B, H, Q)."""
    gradient: Tensor


Gradients = tuple[Tensor, Tensor, Tensor]
"""Gradients of query, key and value."""


class Kernel(Protocol):
    """Interface of an attention kernel: forward and backward pass."""

    def forward(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """Output (B, H, Q, K), and log-sum-exp (B, H, Q) in fp32."""

    def backward(self, inputs: AttentionInputs, result: AttentionResult) -> Gradients:
        """Gradients of query, key and value."""


def kernel_for(inputs: AttentionInputs) -> Kernel:
    """The fastest attention kernel that takes these inputs."""
    query, width = inputs.query, inputs.query.shape[-1]
    same_width = width == inputs.value.shape[-1]
    if query.device.type == "cpu" and same_width:
        return _FlashOfCpu()
    fits = width % _FLASH_WIDTHS == 0 and width <= _WIDEST_FLASH
    if query.is_cuda and inputs.bias is None and same_width and fits and query.dtype in _FLASH_DTYPES:
        return _FlashOfCuda()
    return WrittenOut()


def causal_bias(queries: int, keys: int, like: Tensor) -> Tensor:
    """Causal bias (Q, S): zero where a query sees a key, else minus infinity; the last query sees the last key."""
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=like.device).triu(keys - queries + 1)
    return torch.zeros(queries, keys, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)


class _FlashOfCpu:
    """Torch's flash kernel on a CPU, whose causal mask is aligned to the first query and key, not the last."""

    def forward(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """Output (B, H, Q, K), and log-sum-exp (B, H, Q) in fp32."""
        query, key, value, bias, causal = self._masked(inputs)
        attend = _aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = attend(query, key, value, 0.0, causal, attn_mask=bias)
        return out, lse

    def backward(self, inputs: AttentionInputs, result: AttentionResult) -> Gradients:
        """Gradients of query, key and value."""
        query, key, value, bias, causal = self._masked(inputs)
        out, lse, dout = result
        differentiate = _aten._scaled_dot_product_flash_attention_for_cpu_backward
        gradients: Gradients = differentiate(dout, query, key, value, out, lse, 0.0, causal, attn_mask=bias)
        return gradients

    def _masked(self, inputs: AttentionInputs) -> AttentionInputs:
        """Inputs with a bias in place of the causal mask if queries and keys differ in number."""
        queries, keys = inputs.query.shape[2], inputs.key.shape[2]
        if inputs.causal and queries != keys:
            return inputs._replace(causal=False, bias=causal_bias(queries, keys, inputs.query))
        return inputs


class _FlashOfCuda:
    """Torch's flash kernel on a GPU, whose causal mask is aligned to the last query and key."""

    def forward(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """Output (B, H, Q, K), and log-sum-exp (B, H, Q) in fp32."""
        query, key, value, bias, causal = inputs
        assert bias is None
        out, lse, *_ = _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)
        return out, lse

    def backward(self, inputs: AttentionInputs, result: AttentionResult) -> Gradients:
        """Gradients of query, key and value."""
        assert inputs.bias is None
        query, key, value, out, lse, dout = (one.contiguous() for one in (*inputs[:3], *result))
        unused = torch.zeros(2, dtype=torch.int64, device=query.device).view(torch.uint64)  # of dropout
        sizes = None, None, query.shape[2], key.shape[2]
        gradients: Gradients = _aten._scaled_dot_product_flash_attention_backward(
            dout, query, key, value, out, lse, *sizes, 0.0, inputs.causal, unused, unused
        )
        return gradients


class WrittenOut:
    """Attention that writes the scores to memory, in fp32. It serves masks, types and head widths that no
    flash kernel takes.
    """

    def forward(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """Softmax of the biased scores times the values, and the log-sum-exp of each query's scores."""
        query, key, value, *_ = inputs
        groups = query.shape[1] // key.shape[1]
        scores_BHQS = _scores(inputs)
        lse_BHQ = scores_BHQS.logsumexp(-1)
        weights = (scores_BHQS - lse_BHQ[..., None]).exp()
        out = weights @ value.float().repeat_interleave(groups, 1)
        return out.to(query.dtype), lse_BHQ

    def backward(self, inputs: AttentionInputs, result: AttentionResult) -> Gradients:
        """Gradients of query, key and value, by dS = P ∘ (dP − Σ dO ∘ O) with recomputed probabilities P."""
        return self.gradients(inputs, result)[0]

    def gradients(self, inputs: AttentionInputs, result: AttentionResult) -> tuple[Gradients, Tensor]:
        """Gradients of query, key and value, and of the biased scores (B, H, Q, S) in fp32."""
        query, key, value, *_ = inputs
        groups = query.shape[1] // key.shape[1]
        weights = _scores(inputs).sub_(result.lse[..., None]).exp_()
        dout = result.gradient.float()
        dvalue = weights.transpose(-1, -2) @ dout
        dweights = dout @ value.float().repeat_interleave(groups, 1).transpose(-1, -2)
        output_products = (dout * result.out.float()).sum(-1, keepdim=True)
        dscores = weights.mul_(dweights.sub_(output_products))
        scale = query.shape[-1] ** -0.5
        dquery = (dscores @ key.float().repeat_interleave(groups, 1)).mul_(scale)
        dkey = (dscores.transpose(-1, -2) @ query.float()).mul_(scale)
        dkey, dvalue = (torch.unflatten(one, 1, (-1, groups)).sum(2) for one in (dkey, dvalue))
        return (dquery.to(query.dtype), dkey.to(key.dtype), dvalue.to(value.dtype)), dscores


def _scores(inputs: AttentionInputs) -> Tensor:
    """Scaled, biased and masked scores in fp32, (B, H, Q, S)."""
    query, key, _, bias, causal = inputs
    groups = query.shape[1] // key.shape[1]
    scores: Tensor = query.float() @ key.float().repeat_interleave(groups, 1).transpose(-1, -2)
    scores = scores * query.shape[-1] ** -0.5
    if causal:
        bias = causal_bias(query.shape[2], key.shape[2], scores)
    return scores if bias is None else scores + bias


class Distances(nn.Module):
    """Table of score biases by distance, (buckets, heads), of which each tensor rank has the columns of its heads."""

    heads_dim = 1

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        assert spec.stacks is not None
        self.weight = nn.Parameter(torch.empty(spec.stacks.position_buckets, spec.num_heads))

    def forward(self) -> Tensor:
        """Biases of this rank's heads, (N, H)."""
        return local(self.weight)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of distances between queries and keys, as in T5."""

    stacks: Stacks
    both_ways: bool
    """Whether half of the buckets are for keys after the query; if not, these keys are hidden."""

    def of(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Bucket of each pair of query and key, (Q, S): one for each short distance, wider ones beyond."""
        behind = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None]
        count = self.stacks.position_buckets // (2 if self.both_ways else 1)
        away = behind.abs() if self.both_ways else (-behind).clamp(min=0)
        exact = count // 2
        steps = (away.clamp(min=1).float() / exact).log() / math.log(self.stacks.farthest / exact)
        wide_buckets = (exact + (steps * (count - exact)).long()).clamp(max=count - 1)
        buckets = torch.where(away < exact, away, wide_buckets)
        return buckets + count * (behind > 0) if self.both_ways else buckets

    def bias(self, table_NH: Tensor, queries: int, keys: int) -> Tensor:
        """Bias on the scores by the bucket of each distance, (1, H, Q, S)."""
        bias_HQS = table_NH[self.of(queries, keys, table_NH.device)].permute(2, 0, 1)
        if not self.both_ways:
            hidden = torch.ones(queries, keys, dtype=torch.bool, device=table_NH.device).triu(1)
            bias_HQS = bias_HQS.masked_fill(hidden, torch.finfo(table_NH.dtype).min / 2)
        return bias_HQS.contiguous().unsqueeze(0)

    def inputs(self, table_NH: Tensor, query: Tensor, key: Tensor, value: Tensor) -> AttentionInputs:
        """Inputs of an attention kernel with the table's biases on the scores."""
        bias = self.bias(table_NH, query.shape[2], key.shape[2])
        return AttentionInputs(query, key, value, bias, causal=False)

    def summed(self, gradient_BHQS: Tensor, like_NH: Tensor) -> Tensor:
        """Gradient of a bias table, (N, H): the gradient of biased scores, summed by bucket."""
        of_pair = self.of(gradient_BHQS.shape[2], gradient_BHQS.shape[3], gradient_BHQS.device).flatten()
        total_HN = gradient_BHQS.new_zeros(gradient_BHQS.shape[1], len(like_NH))
        total_HN.index_add_(1, of_pair, gradient_BHQS.sum(0).flatten(1))
        return total_HN.t().to(like_NH.dtype)


class _Biased(torch.autograd.Function):
    """Attention with a table's biases on the scores, (B, H, Q, K). The backward pass recomputes the biases."""

    @staticmethod
    def forward(ctx: Any, buckets: Buckets, table: Tensor, *heads: Tensor) -> Tensor:
        """Attention output, with the table's biases on the scores."""
        inputs = buckets.inputs(table, *heads)
        out, lse = kernel_for(inputs).forward(inputs)
        ctx.save_for_backward(table, *heads, out, lse)
        ctx.buckets = buckets
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the table, and of queries, keys and values."""
        table, *heads, out, lse = ctx.saved_tensors
        inputs = ctx.buckets.inputs(table, *heads)
        gradients, of_scores = WrittenOut().gradients(inputs, AttentionResult(out, lse, gradient))
        return None, ctx.buckets.summed(of_scores, table), *gradients


class _Core(nn.Module):
    """Attention of given queries, keys and values, shared by all kinds of projections. `first_head` is this rank's
    first query head (for ALiBi under tensor parallelism), `sequence` the tokens that it has. With `crosses` keys and
    values come from an encoder's output.
    """

    def __init__(self, spec: TransformerSpec, layer: int, *, crosses: bool = False) -> None:
        """`layer` is the block's place in the model; `crosses`: whether keys and values come from an encoder."""
        super().__init__()
        self.spec, self.window = spec, spec.window_of(layer)
        self.both_ways = crosses or spec.encodes(layer)
        self.turning = None if crosses else turning_of(spec, layer)
        self.first_head = 0
        self.sequence: Sequence = WholeSequence()
        self.turns = Turns()
        scale = spec.attention_scale
        self.query_scale = 1.0 if scale is None else scale * spec.head_dim**0.5  # than the kernels' own 1/√K

    def turned(self, x_BHSK: Tensor) -> Tensor:
        """Heads rotated by the positions of their tokens; unchanged in blocks without rotation."""
        if self.turning is None:
            return x_BHSK
        return self.turns(x_BHSK, self.sequence.places(x_BHSK.shape[2]), self.turning)

    def scaled(self, query_BHSK: Tensor) -> Tensor:
        """Queries, multiplied so that kernels, which scale scores by 1/√K, apply the spec's scale instead."""
        return query_BHSK if self.query_scale == 1.0 else query_BHSK * self.query_scale

    def attended(self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor) -> Tensor:
        """Attention output of each query head, (B, H, S, K)."""
        visible = Visibility(
            both_ways=self.both_ways,
            window=self.window,
            chunked=self.spec.window_kind == "chunked",
            slopes=self.spec.num_heads if self.spec.positions == "alibi" else 0,
            first_head=self.first_head,
        )
        return self.sequence.attend(query_BHSK, key_BGSK, value_BGSK, visible)


class Attention(_Core):
    """Attention with grouped key/value heads: projections and core."""

    def __init__(self, spec: TransformerSpec, layer: int = 0, *, crosses: bool = False) -> None:
        super().__init__(spec, layer, crosses=crosses)
        self.buckets = Buckets(spec.stacks, self.both_ways) if spec.stacks and not crosses else None
        width, bias = spec.hidden_size, spec.attention_bias
        self.query = nn.Linear(width, spec.query_size, bias=bias)
        self.key = nn.Linear(width, spec.kv_size, bias=bias)
        self.value = nn.Linear(width, spec.kv_size, bias=bias)
        gated, normed = spec.attention_gate and not crosses, spec.qk_norm and not crosses
        self.gate = nn.Linear(width, spec.query_size, bias=bias) if gated else None
        self.out = nn.Linear(spec.query_size, width, bias=spec.attention_output_bias)
        self.query_norm = _norm(spec, spec.query_size) if normed else None
        self.key_norm = _norm(spec, spec.kv_size) if normed else None

    def forward(self, x_BSD: Tensor, source: Tensor | None = None, *, table: Tensor | None = None) -> Tensor:
        """Output, (B, S, D) → (B, S, D). Keys and values are projected from `source` if given; `table` biases the
        scores.
        """
        source_BSD = x_BSD if source is None else source
        query_BHSK = self._heads(self.query(x_BSD), self.query_norm)
        key_BGSK = self._heads(self.key(source_BSD), self.key_norm)
        value_BGSK = self._heads(self.value(source_BSD), None)
        query_BHSK, key_BGSK = self.scaled(self.turned(query_BHSK)), self.turned(key_BGSK)
        if table is not None and self.buckets is not None:
            heads = query_BHSK, key_BGSK, value_BGSK
            mixed_BHSK: Tensor = _Biased.apply(self.buckets, table, *heads)  # type: ignore[no-untyped-call]
        else:
            mixed_BHSK = self.attended(query_BHSK, key_BGSK, value_BGSK)
        mixed = mixed_BHSK.transpose(1, 2).flatten(2)
        out: Tensor = self.out(mixed if self.gate is None else mixed * self.gate(x_BSD).sigmoid())
        return out

    def _heads(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """Projection split into heads and normed if the spec says so, (B, S, heads · K) → (B, heads, S, K)."""
        over_all = self.spec.qk_norm_over == "all"
        x = through(norm, x) if over_all else x
        heads: Tensor = torch.unflatten(x, -1, (-1, self.spec.head_dim))
        return (heads if over_all else through(norm, heads)).transpose(1, 2)


def _norm(spec: TransformerSpec, width: int) -> nn.RMSNorm:
    """Norm of queries or keys: over each head, or over all heads together."""
    return nn.RMSNorm(spec.head_dim if spec.qk_norm_over == "head" else width, eps=spec.norm_epsilon)


_LATENT_NORM_EPSILON = 1e-6


class LatentAttention(_Core):
    """Attention whose queries, keys and values are projected from narrow latents (DeepSeek-V2)."""

    def __init__(self, spec: TransformerSpec, layer: int = 0) -> None:
        super().__init__(spec, layer)
        latent = spec.latent_attention
        assert latent is not None
        self.latent = latent
        width, query_inputs = spec.hidden_size, latent.query_rank or spec.hidden_size
        rank = latent.query_rank
        self.query_down = nn.Linear(width, rank, bias=False) if rank else None
        self.query_norm = nn.RMSNorm(rank, eps=_LATENT_NORM_EPSILON) if rank else None
        self.query = nn.Linear(query_inputs, spec.query_size, bias=False)
        self.down = nn.Linear(width, latent.kv_rank + latent.position_dim, bias=False)
        self.latent_norm = nn.RMSNorm(latent.kv_rank, eps=_LATENT_NORM_EPSILON)
        self.shared_key = nn.Identity()  # where tensor ranks meet, each with its own heads
        self.plain_dim = spec.head_dim - latent.position_dim
        key_value_size = spec.num_kv_heads * (self.plain_dim + latent.value_dim)
        self.key_value = nn.Linear(latent.kv_rank, key_value_size, bias=False)
        self.out = nn.Linear(spec.attended_size, width, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Output, (B, S, D), for inputs (B, S, D)."""
        query_BHSK = self.scaled(self._query(x_BSD))
        key_BGSK, value_BGSW = self._key_value(x_BSD)
        width = value_BGSW.shape[-1]
        # a CPU's flash kernel, and a sequence that is split, want keys and values of one width
        if x_BSD.device.type == "cpu" or not isinstance(self.sequence, WholeSequence):
            value_BGSW = F.pad(value_BGSW, (0, max(0, self.spec.head_dim - width)))
        mixed_BHSW = self.attended(query_BHSK, key_BGSK, value_BGSW)[..., :width]
        out: Tensor = self.out(mixed_BHSW.transpose(1, 2).flatten(2))
        return out

    def _query(self, x_BSD: Tensor) -> Tensor:
        """Query heads, (B, H, S, K), their last dimensions rotated."""
        if self.query_down is not None and self.query_norm is not None:
            x_BSD = self.query_norm(self.query_down(x_BSD))
        heads: Tensor = torch.unflatten(self.query(x_BSD), -1, (-1, self.spec.head_dim)).transpose(1, 2)
        if self.turning is None:
            return heads
        plain, turning = torch.split(heads, [self.plain_dim, self.latent.position_dim], dim=-1)
        return torch.cat([plain, self.turned(turning)], dim=-1)

    def _key_value(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys, (B, G, S, K), and values, (B, G, S, W), from the latent and the shared part of keys."""
        widths = [self.latent.kv_rank, self.latent.position_dim]
        latent, shared = torch.split(self.down(x_BSD), widths, dim=-1)
        key_value: Tensor = self.key_value(self.latent_norm(latent))
        heads = torch.unflatten(key_value, -1, (-1, self.plain_dim + self.latent.value_dim)).transpose(1, 2)
        plain_BGSK, value_BGSW = torch.split(heads, [self.plain_dim, self.latent.value_dim], dim=-1)
        shared_BSP: Tensor = self.shared_key(shared)
        shared_B1SP = self.turned(shared_BSP.unsqueeze(1))
        shared_BGSP = shared_B1SP.expand(-1, plain_BGSK.shape[1], -1, -1)
        # a copy of the values, or the keys they came with would be kept for them
        return torch.cat([plain_BGSK, shared_BGSP], dim=-1), value_BGSW.contiguous()
