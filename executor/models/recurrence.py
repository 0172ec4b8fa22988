"""A mixer of tokens whose heads carry states from token to token. Mamba-2 (Dao & Gu 2024, arXiv 2405.21060) or a gated
delta net (Yang et al. 2024, arXiv 2412.06464), with a decay for each number of a key in Kimi delta attention (2025,
arXiv 2510.26692).

    mamba2       S_t = a_t S_{t-1} + k_t (s_t v_t)ᵀ                            o_t = S_tᵀ q_t + d v_t
    gated-delta  S_t = a_t S_{t-1} + k_t b_t (v_t − (a_t S_{t-1})ᵀ k_t)ᵀ        o_t = S_tᵀ q_t / √N
    kimi-delta   the same with a_t a diagonal matrix, each made like the gate from a latent

Step sizes s = softplus(x + bias), decays a = exp(−s exp(A)), strengths b = sigmoid(x). Queries, keys and values go
through a short causal convolution and SiLU; under the delta rule queries and keys then have length 1. What heads return
is normed and gated: by group after its gate (mamba2), or by head before it.

Inside a chunk tokens meet in matrix products, between chunks states are handed on (sections 6 and 3.3 of the two). Both
regions keep what they are given and are computed again in the backward pass, as kernels for GPUs do it. In fp32.

Shape legend: B batch, S sequence, D model, H heads, G groups of R heads, N width of a key, P of a value, T taps of the
convolution, C chunks of L tokens (H and G of this rank).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Partial

from cost_models.specs.transformer import Recurrence, TransformerSpec
from executor.models.positions import Sequence, WholeSequence


def recomputed(run: Callable[..., Tensor], **inputs: Tensor) -> Tensor:
    """Call `run` on tensors; only these are kept for the backward pass, which calls it again."""
    output: Tensor = _Recomputed.apply(run, tuple(inputs), *inputs.values())  # type: ignore[no-untyped-call]
    return output


class _Recomputed(torch.autograd.Function):
    """Call of a function that keeps only its inputs, and calls it again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], names: tuple[str, ...], *inputs: Tensor) -> Tensor:
        """Result of `run` on the inputs, which alone are saved."""
        ctx.run, ctx.names = run, names
        ctx.save_for_backward(*inputs)
        return run(**dict(zip(names, inputs, strict=True)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs, by calling `run` again."""
        needed = ctx.needs_input_grad[2:]
        pairs = zip(ctx.saved_tensors, needed, strict=True)
        inputs = [one.detach().requires_grad_(need) for one, need in pairs]
        with torch.enable_grad():
            out = ctx.run(**dict(zip(ctx.names, inputs, strict=True)))
        needed_inputs = [one for one, need in zip(inputs, needed, strict=True) if need]
        gradients = iter(torch.autograd.grad(out, needed_inputs, gradient))
        return None, None, *(next(gradients) if need else None for need in needed)


_LENGTH_EPSILON = 1e-6
"""Number added to the squared length of a query or key."""


class StateMixer(nn.Module):
    """Recurrent mixer of tokens: input projections, scan, gated norm, output projection."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        mixer = spec.recurrence
        assert mixer is not None
        width, bias = spec.hidden_size, mixer.bias
        self.query = nn.Linear(width, mixer.key_size, bias=bias)
        self.key = nn.Linear(width, mixer.key_size, bias=bias)
        self.value = nn.Linear(width, mixer.value_size, bias=bias)
        self.gate: nn.Linear | Latent = nn.Linear(width, mixer.value_size, bias=bias)
        self.step: nn.Linear | Latent = nn.Linear(width, mixer.heads, bias=bias)
        if rank := mixer.gate_rank:
            self.gate, self.step = (Latent(width, rank, to) for to in (mixer.value_size, mixer.decay_size))
        self.strength = nn.Linear(width, mixer.heads, bias=bias) if mixer.delta else None
        self.scan = StateScan(mixer)
        self.gated_norm = GatedNorm(mixer, spec.norm_epsilon)
        self.out = nn.Linear(mixer.value_size, width, bias=bias)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Output, (B, S, D), for inputs (B, S, D)."""
        projections = {name: project(x_BSD) for name, project in self.inputs().items()}
        gate_BSV = projections.pop("gate")
        out: Tensor = self.out(self.gated_norm(self.scan(**projections), gate_BSV))
        return out

    def inputs(self) -> dict[str, nn.Linear | Latent]:
        """Modules that project the residual stream, by name."""
        names = ("gate", "query", "key", "value", "step", "strength")
        return {name: module for name in names if (module := getattr(self, name)) is not None}


class Latent(nn.Module):
    """Projection by two matrices, through a narrow latent that every tensor rank computes in full."""

    shared = ("down",)
    """Names of parameters that all heads have in common."""

    def __init__(self, width: int, rank: int, out: int) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.empty(rank, width)), nn.Parameter(torch.empty(out, rank))

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Projection (B, S, out) of tokens (B, S, D), or of rows (S, D) of one sequence."""
        output = F.linear(F.linear(part_here(x_BSD), part_here(self.down)), part_here(self.up))
        return output if output.dim() > 2 else torch.unflatten(output, 0, (1, -1))


class StateScan(nn.Module):
    """Short convolution and scan of the recurrence; `sequence` has the tokens of a sequence on this rank."""

    shared: tuple[str, ...] = ()
    """Names of parameters that all heads have in common."""

    def __init__(self, mixer: Recurrence) -> None:
        super().__init__()
        self.mixer = mixer
        self.sequence: Sequence = WholeSequence()
        self.decay_log = nn.Parameter(torch.empty(mixer.heads))
        self.step_bias = nn.Parameter(torch.empty(mixer.decay_size or mixer.heads))
        self.skip = None if mixer.delta else nn.Parameter(torch.empty(mixer.heads))
        for name, width in (("query", mixer.key_size), ("key", mixer.key_size), ("value", mixer.value_size)):
            taps = nn.Parameter(torch.empty(width, mixer.conv_width)) if mixer.conv_width else None
            bias = nn.Parameter(torch.empty(width)) if mixer.conv_width and mixer.conv_bias else None
            self.register_parameter(f"{name}_taps", taps)
            self.register_parameter(f"{name}_taps_bias", bias)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # its backward pass differentiates
    def forward(self, **projections: Tensor) -> Tensor:
        """Output of all heads, (B, S, H·P), from the projections of tokens. These are query and key (B, S, G·N), value
        (B, S, H·P), step (B, S, H or H·N) and strength (B, S, H).
        """
        heads = projections["value"].shape[-1] // self.mixer.head_dim
        groups = projections["key"].shape[-1] // self.mixer.state_dim
        parts = self.sequence.ranks
        repeats = 1 if groups % parts == 0 else (parts if parts % groups == 0 else heads) // groups

        def by_unit(name: str, tokens: Tensor, dim: int) -> Tensor:
            """Split dimension `dim` into groups or heads, and repeat groups where the ranks cannot share them
            evenly.
            """
            grouped = name.startswith(("query", "key"))
            tokens = torch.unflatten(tokens, dim, (groups if grouped else heads, -1))
            return tokens.repeat_interleave(repeats, dim) if grouped and repeats > 1 else tokens

        tokens = {name: by_unit(name, one, 2) for name, one in projections.items()}
        present = {name: one for name, one in self._parameters.items() if one is not None}
        learned = {name: by_unit(name, part_here(one), 0) for name, one in present.items()}
        tokens = dict(zip(tokens, self.sequence.to_heads(*tokens.values()), strict=True))
        learned = {name: one.chunk(parts)[self.sequence.rank] for name, one in learned.items()}
        mixed_BSHP = recomputed(partial(convolved_and_scanned, self.mixer), **tokens, **learned)
        return self.sequence.to_tokens(mixed_BSHP).flatten(2)


class GatedNorm(nn.Module):
    """Norm and gate of the scan's output."""

    shared: tuple[str, ...]
    """Names of parameters that all heads have in common."""

    def __init__(self, mixer: Recurrence, epsilon: float) -> None:
        super().__init__()
        self.mixer, self.epsilon = mixer, epsilon
        gains = mixer.head_dim if mixer.delta else mixer.value_size
        self.weight = nn.Parameter(torch.empty(gains)) if mixer.output_norm else None
        self.shared = ("weight",) if mixer.delta else ()

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # its backward pass differentiates
    def forward(self, output_BSV: Tensor, gate_BSV: Tensor) -> Tensor:
        """Normed and gated output, (B, S, H·P), of output and gate, (B, S, H·P) each."""
        gains = {} if self.weight is None else {"gains": part_here(self.weight)}
        run = partial(normed_and_gated, self.mixer, self.epsilon)
        return recomputed(run, output=output_BSV, gate=gate_BSV, **gains)


def part_here(parameter: Tensor) -> Tensor:
    """This rank's shard of a parameter. Gradients of parameters that each rank has in full are summed over ranks."""
    if not isinstance(parameter, DTensor):
        return parameter
    placements = [Partial() if one.is_replicate() else one for one in parameter.placements]
    return parameter.to_local(grad_placements=placements)


def convolved_and_scanned(
    mixer: Recurrence, *, step: Tensor, decay_log: Tensor, step_bias: Tensor, **inputs: Tensor
) -> Tensor:
    """Output of the recurrence, (B, S, H, P) in the type of the values, from tokens and parameters by group or head."""
    query, key, value = (
        _convolved(inputs[name], inputs.get(f"{name}_taps"), inputs.get(f"{name}_taps_bias")).float()
        for name in ("query", "key", "value")
    )
    step_BSHW = F.softplus(step.float() + step_bias.float())
    if mixer.least_step:
        step_BSHW = step_BSHW.clamp(min=mixer.least_step)
    decays_BSHW = -step_BSHW * decay_log.float().exp()
    if mixer.delta:
        query, key = map(_unit_length, (query, key))
        query = query * mixer.state_dim**-0.5
        strength_BSH = inputs["strength"].float().sigmoid().squeeze(-1)
        output = scanned(query, key, value, decays_BSHW, strength_BSH, mixer.chunk)
    else:
        output = scanned(query, key, value * step_BSHW, decays_BSHW, None, mixer.chunk)
        output = output + value * inputs["skip"].float()
    return output.to(inputs["value"].dtype)


def _unit_length(x: Tensor) -> Tensor:
    """Queries or keys scaled to length 1."""
    return x * (x.square().sum(-1, keepdim=True) + _LENGTH_EPSILON).rsqrt()


def _convolved(x_BSUW: Tensor, taps_UWT: Tensor | None, bias_UW: Tensor | None) -> Tensor:
    """Causal convolution over tokens, and SiLU; the last tap weighs the token itself. Without taps SiLU alone."""
    if taps_UWT is None:
        return F.silu(x_BSUW)
    channels, width = taps_UWT.shape[0] * taps_UWT.shape[1], taps_UWT.shape[2]
    padded = F.pad(x_BSUW.flatten(2).transpose(1, 2), (width - 1, 0))
    bias = None if bias_UW is None else bias_UW.flatten()
    mixed = F.conv1d(padded, taps_UWT.reshape(channels, 1, width), bias, groups=channels)
    return torch.unflatten(F.silu(mixed).transpose(1, 2), 2, taps_UWT.shape[:2])


def scanned(
    query_BSGN: Tensor,
    key_BSGN: Tensor,
    value_BSHP: Tensor,
    decays_BSHW: Tensor,
    strength_BSH: Tensor | None,
    chunk: int,
) -> Tensor:
    """Output of the scan, (B, S, H, P), computed chunk by chunk. `decays_BSHW` has the logarithms of W decays (one, or
    N), `strength_BSH` the delta rule's strengths; None: no delta rule.

    With c the sums of a chunk's logarithms up to each token, D_ij = exp(c_i − c_j) for j ≤ i, and what tokens write, W:

        O = (Q Kᵀ ∘ D) W + exp(c) Q S        S' = exp(c_L) S + (exp(c_L − c) K)ᵀ W

    W is V, or under the delta rule the solution of (I + b ∘ (K Kᵀ ∘ D without its diagonal)) W = b (V − exp(c) K S).
    Where each number of a key decays by itself, D is inside the sums of both products.
    """
    tokens, groups = query_BSGN.shape[1], query_BSGN.shape[2]
    chunk = min(chunk, tokens)

    def in_chunks(values: Tensor, per_head: bool) -> Tensor:
        """Values cut into C chunks of L tokens, (B, C, G, [R,] L, width). Padding of the last chunk leaves the state
        unchanged.
        """
        values = F.pad(values, (0, 0, 0, 0, 0, -tokens % chunk))
        values = torch.unflatten(values, 1, (-1, chunk)).movedim(2, -2)
        return torch.unflatten(values, 2, (groups, -1)) if per_head else values

    query, key = in_chunks(query_BSGN, per_head=False), in_chunks(key_BSGN, per_head=False)
    written = in_chunks(value_BSHP, per_head=True)
    sums = in_chunks(decays_BSHW, per_head=True).cumsum(-2)
    upper = torch.ones(chunk, chunk, dtype=torch.bool, device=sums.device).triu(1).unsqueeze(-1)
    decays_between = (sums.unsqueeze(-2) - sums.unsqueeze(-3)).masked_fill(upper, -torch.inf).exp()
    scores = _weighed_products(query, key, decays_between)
    since, decay_to_end = sums.exp(), (sums[..., -1:, :] - sums).exp()
    read: Tensor | None = None
    if strength_BSH is not None:
        strength = in_chunks(strength_BSH[..., None], per_head=True)
        coupling = _weighed_products(key, key, decays_between) * strength
        right_sides = torch.cat([strength * written, strength * since * key.unsqueeze(3)], -1)
        # unitriangular: what is on the diagonal and above is not looked at
        right_sides = torch.linalg.solve_triangular(coupling, right_sides, upper=False, unitriangular=True)
        written, read = right_sides.split([written.shape[-1], key.shape[-1]], -1)
    state = written.new_zeros(*written.shape[:1], *written.shape[2:4], key.shape[-1], written.shape[-1])
    chunk_outputs = []
    for at in range(query.shape[1]):
        new = written[:, at] if read is None else written[:, at] - read[:, at] @ state
        queries = query[:, at].unsqueeze(2) * since[:, at]
        chunk_outputs.append(scores[:, at] @ new + queries @ state)
        kept_keys = (key[:, at].unsqueeze(2) * decay_to_end[:, at]).transpose(-1, -2)
        state = state * since[:, at, ..., -1, :].unsqueeze(-1) + kept_keys @ new
    out_BCGRLP = torch.stack(chunk_outputs, 1)
    return out_BCGRLP.flatten(2, 3).movedim(-2, 2).flatten(1, 2)[:, :tokens]


def _weighed_products(one_BCGLN: Tensor, other_BCGLN: Tensor, decays_between: Tensor) -> Tensor:
    """Products of each two tokens of a chunk, weighted by `decays_between` (…, L, L, W): (B, C, G, R, L, L)."""
    if decays_between.shape[-1] == 1:
        return (one_BCGLN @ other_BCGLN.transpose(-1, -2)).unsqueeze(3) * decays_between.squeeze(-1)
    left, right = one_BCGLN[:, :, :, None, :, None], other_BCGLN[:, :, :, None, None]
    return (left * right * decays_between).sum(-1)


def normed_and_gated(
    mixer: Recurrence, epsilon: float, *, output: Tensor, gate: Tensor, gains: Tensor | None = None
) -> Tensor:
    """Normed and gated output of the recurrence, (B, S, H·P), of output and gate, (B, S, H·P) each."""
    values, opened = output.float(), (F.sigmoid if mixer.gate_rank else F.silu)(gate.float())
    if gains is None:
        return (values * opened).to(output.dtype)
    width = mixer.head_dim if mixer.delta else mixer.value_size // mixer.groups
    values = values if mixer.delta else values * opened
    values = F.rms_norm(torch.unflatten(values, -1, (-1, width)), (width,), eps=epsilon)
    values = values * gains.float() if mixer.delta else values.flatten(-2) * gains.float()
    return (values.flatten(-2) * opened if mixer.delta else values).to(output.dtype)
