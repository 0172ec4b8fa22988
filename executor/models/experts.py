"""MLPs of a block: dense, or a mixture in which each token goes through k of E routed experts and all shared experts.

Shape legend: B batch, S this rank's tokens of a sequence, D model, E experts, L those of them on this rank, F inner
width of an expert on this rank, N = B·S tokens, K experts a token, R copies of tokens that this rank's experts work on.

No token is dropped, whatever the load. The load-balance loss is that of Switch Transformers (Fedus et al. 2021, eq. 4)
taken sequence by sequence (DeepSeek-V3, arXiv 2412.19437, eq. 17), so that it is the same on every layout:

    coefficient · E · Σ_e f_e · P_e    f_e share of the sequence's copies sent to e, P_e mean probability of e

It is no part of the reported loss; its gradient joins the backward pass where the mixture is.

Routing takes the top k of a router's scores; there G are groups of M experts, and C groups that a token chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cost_models.specs.transformer import Activation, ExpertGroups, TransformerSpec

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "squared-relu": lambda x: F.relu(x).square(),
    "quick-gelu": lambda x: x * F.sigmoid(1.702 * x),
}


class FeedForward(nn.Module):
    """MLP of two matrices, or with a gate of three. `inner` is the width between them; None: that of the spec."""

    def __init__(self, spec: TransformerSpec, inner: int | None = None) -> None:
        super().__init__()
        width, inner = spec.hidden_size, spec.ffn_hidden_size if inner is None else inner
        self.gate = nn.Linear(width, inner, bias=spec.mlp_bias) if spec.gated_mlp else None
        self.up = nn.Linear(width, inner, bias=spec.mlp_bias)
        self.down = nn.Linear(inner, width, bias=spec.mlp_bias)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Output of the MLP, (B, S, D) → (B, S, D)."""
        up_BSF = self.up(x_BSD)
        if self.gate is None:
            inner_BSF: Tensor = self.activation(up_BSF)
        else:
            inner_BSF = self.activation(self.gate(x_BSD)) * up_BSF
        out: Tensor = self.down(inner_BSF)
        return out


def choose_experts(
    spec: TransformerSpec, scores_BSE: Tensor, bias_E: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Router's choice for each token: probabilities of all experts in fp32, and weights and indices of the chosen
    ones.

    A bias has a part in which are chosen, and none in their weights.
    """
    scores_BSE = scores_BSE.float()
    if spec.router_scores == "softmax":
        values_BSE = probabilities_BSE = scores_BSE.softmax(-1)
    else:
        values_BSE = scores_BSE.sigmoid()
        probabilities_BSE = values_BSE / values_BSE.sum(-1, keepdim=True)
    open_BSE = values_BSE if bias_E is None else values_BSE + bias_E
    if spec.expert_groups is not None:
        open_BSE = open_BSE.masked_fill(~_in_chosen_groups(open_BSE, spec.expert_groups), -torch.inf)
    chosen_BSK = open_BSE.topk(spec.experts_per_token, dim=-1).indices
    weights_BSK = values_BSE.gather(-1, chosen_BSK)
    if spec.normalized_routing:
        weights_BSK = weights_BSK / weights_BSK.sum(-1, keepdim=True)
    return probabilities_BSE, weights_BSK * spec.routing_scale, chosen_BSK


def _in_chosen_groups(values_BSE: Tensor, groups: ExpertGroups) -> Tensor:
    """Whether an expert is in one of the groups that its token chooses, (B, S, E)."""
    values_BSGM = torch.unflatten(values_BSE, -1, (groups.count, -1))
    best = 1 if groups.scored_by == "best" else 2
    groups_BSC = values_BSGM.topk(best, dim=-1).values.sum(-1).topk(groups.per_token, dim=-1).indices
    open_BSG = torch.zeros(values_BSGM.shape[:-1], dtype=torch.bool, device=values_BSE.device)
    open_BSG.scatter_(-1, groups_BSC, value=True)
    return open_BSG.repeat_interleave(values_BSGM.shape[-1], dim=-1)


Counts = list[int] | Tensor
"""Number of rows for each of L experts; a tensor, (L,), if the host need not know them."""
Run = Callable[[Tensor, Counts], Tensor]
"""Function of rows (R, D) in the order of this rank's experts and of their counts → results (R, D)."""
Exchange = Callable[[Tensor, Tensor, Run], Tensor]
"""Function of copies (N·K, D) ordered by expert, counts (E,) and the `Run` of the experts → results (N·K, D)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPlace:
    """Which experts a rank holds, and which part of their inner width."""

    first: int = 0
    count: int | None = None
    """Number of experts on this rank; None if it holds all."""
    part: int = 0
    parts: int = 1
    """Number of ranks over which an expert's inner width is split."""


class RoutedExperts(nn.Module):
    """Matrices of this rank's routed experts, stacked as (L, out, in)."""

    def __init__(self, spec: TransformerSpec, place: ExpertPlace) -> None:
        super().__init__()
        self.spec, self.place = spec, place
        num_held = spec.num_experts if place.count is None else place.count
        inner, width = spec.moe_ffn_hidden_size // place.parts, spec.hidden_size
        shapes = {"gate": (inner, width)} if spec.gated_mlp else {}
        shapes |= {"up": (inner, width), "down": (width, inner)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(num_held, *shape)))
            bias = nn.Parameter(torch.empty(num_held, shape[0])) if spec.mlp_bias else None
            self.register_parameter(f"{name}_bias", bias)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, rows_RD: Tensor, counts: Counts) -> Tensor:
        """Experts' outputs, (R, D) → (R, D), of rows ordered by expert, `counts` for each. Split experts give
        partial sums.

        Grouped products read counts on the device, so that the host waits for nothing.
        """
        up_RF = self._product("up", rows_RD, counts)
        if self.spec.gated_mlp:
            inner_RF = self.activation(self._product("gate", rows_RD, counts)) * up_RF
        else:
            inner_RF = self.activation(up_RF)
        return self._product("down", inner_RF, counts)

    def full_shape(self, name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape of a parameter over all experts and all their parts, and offsets of this rank's share in it."""
        inner, place = self.spec.moe_ffn_hidden_size, self.place
        split = {"down": 2, "down_bias": None}.get(name, 1)
        full_shape, offsets = [self.spec.num_experts, *shape[1:]], [place.first] + [0] * (len(shape) - 1)
        if split is not None:
            full_shape[split], offsets[split] = inner, place.part * (inner // place.parts)
        return tuple(full_shape), tuple(offsets)

    def _product(self, name: str, rows: Tensor, counts: Counts) -> Tensor:
        """Product of each expert's rows with the expert's matrix `name`."""
        weight, bias = getattr(self, name), getattr(self, f"{name}_bias")
        if bias is not None and name == "down" and self.place.parts > 1:
            # added once by all parts together; each has the whole gradient, as each sees all rows
            bias = bias.detach() / self.place.parts + (bias - bias.detach())
        if _has_grouped_product(rows, weight):
            repeats = torch.as_tensor(counts, device=rows.device)
            ends = repeats.cumsum(0).to(torch.int32)
            out: Tensor = F.grouped_mm(rows, weight.transpose(-2, -1), offs=ends)
            if bias is not None:
                out = out + bias.repeat_interleave(repeats, dim=0, output_size=rows.shape[0])
            return out
        biases = (None,) * len(counts) if bias is None else bias.unbind(0)
        pieces = torch.split(rows, counts.tolist() if isinstance(counts, Tensor) else counts)
        return torch.cat(list(map(F.linear, pieces, weight.unbind(0), biases)))


class Routed(nn.Module):
    """Router and routed experts of a MoE layer; each tensor-parallel rank routes its own part of every sequence.

    The attributes after the modules are set where the layout is applied (`executor.axes.expert`).
    """

    def __init__(self, spec: TransformerSpec, place: ExpertPlace) -> None:
        super().__init__()
        self.spec = spec
        self.router = nn.Linear(spec.hidden_size, spec.num_experts, bias=spec.router_bias)
        self.experts = RoutedExperts(spec, place)
        bias = torch.empty(spec.num_experts, dtype=torch.float32) if spec.routing_bias else None
        self.choice_bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.exchange: Exchange | None = None
        """Function that sends token copies to their experts' ranks and results back; None if all experts are here."""
        self.tensor_group: dist.ProcessGroup | None = None
        """Tensor ranks that each have a part of every sequence; None if this rank has all tokens of its
        context rank.
        """
        self.context_group: dist.ProcessGroup | None = None
        """Context ranks that share a sequence; None if this rank has all of it."""
        self.balance_share = 1.0
        """Weight of a microbatch's load-balance loss in the gradient."""
        self.load_E: Tensor | None = None
        """Number of token copies sent to each expert since the last `take_load`, (E,)."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # how many copies an expert gets is new in every step
    def forward(self, x_BSD: Tensor) -> Tensor:
        """Output of the routed experts, (B, S, D) → (B, S, D); the balance loss joins the backward pass."""
        scores_BSE = self.router(x_BSD)
        probabilities_BSE, weights_BSK, chosen_BSK = choose_experts(self.spec, scores_BSE, self.choice_bias)
        counts_BE = _counts(chosen_BSK, self.spec.num_experts)
        counts_E = counts_BE.sum(0)
        self.load_E = counts_E if self.load_E is None else self.load_E + counts_E
        out_BSD = self._mixed(x_BSD, weights_BSK, chosen_BSK, counts_E)
        if self.spec.load_balance == 0 or not torch.is_grad_enabled():
            return out_BSD
        balance = self._balance(probabilities_BSE, counts_BE)
        joined: Tensor = _AddLoss.apply(out_BSD, balance, self.balance_share)  # type: ignore[no-untyped-call]
        return joined

    def take_load(self) -> Tensor:
        """Number of this rank's token copies sent to each expert since the last call, (E,)."""
        load = self.load_E
        self.load_E = None
        return torch.zeros(self.spec.num_experts) if load is None else load.cpu()

    def _mixed(self, x_BSD: Tensor, weights_BSK: Tensor, chosen_BSK: Tensor, counts_E: Tensor) -> Tensor:
        """Outputs of each token's chosen experts, summed with the experts' weights, (B, S, D)."""
        k, x_ND = self.spec.experts_per_token, x_BSD.flatten(0, 1)
        order = chosen_BSK.flatten().argsort(stable=True)  # place by expert → copy
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)  # copy → place by expert
        rows, run = reorder(x_ND, order, back, copies=k), self.experts
        results = run(rows, counts_E) if self.exchange is None else self.exchange(rows, counts_E, run)
        copies = reorder(results, back, order)
        weights_NK1 = weights_BSK.flatten(0, 1).unsqueeze(-1).to(copies.dtype)
        return (copies.view(-1, k, copies.shape[-1]) * weights_NK1).sum(1).view_as(x_BSD)

    def _balance(self, probabilities_BSE: Tensor, counts_BE: Tensor) -> Tensor:
        """This rank's part of the load-balance loss; the parts of all tensor ranks add up.

        Over context ranks their mean counts, as of the loss of the tokens.
        """
        spec = self.spec
        for group in (self.tensor_group, self.context_group):
            if group is not None:
                dist.all_reduce(counts_BE, group=group)
        parts = 1 if self.tensor_group is None else dist.get_world_size(self.tensor_group)
        share_BE = counts_BE / counts_BE.sum(-1, keepdim=True)
        part_BE = probabilities_BSE.mean(1) / parts
        return spec.load_balance * spec.num_experts * (share_BE * part_BE).sum(-1).mean()


def routers(part: nn.Module) -> list[Routed]:
    """Routers with their experts (`Routed`) of all MoE layers in a model slice, in order."""
    return [module for module in part.modules() if isinstance(module, Routed)]


class MoE(nn.Module):
    """Mixture of experts: routed experts, and an MLP of shared experts if the spec has it."""

    def __init__(self, spec: TransformerSpec, place: ExpertPlace) -> None:
        super().__init__()
        self.routed = Routed(spec, place)
        width = spec.shared_expert_ffn_hidden_size
        self.shared = FeedForward(spec, width) if width else None
        self.shared_gate = nn.Linear(spec.hidden_size, 1, bias=False) if spec.shared_expert_gate else None

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Sum of routed and shared experts' outputs, (B, S, D) → (B, S, D)."""
        out: Tensor = self.routed(x_BSD)
        if self.shared is None:
            return out
        shared_BSD: Tensor = self.shared(x_BSD)
        if self.shared_gate is not None:
            shared_BSD = self.shared_gate(x_BSD).sigmoid() * shared_BSD
        return out + shared_BSD


def reorder(rows: Tensor, order: Tensor, back: Tensor, *, copies: int = 1) -> Tensor:
    """Rows, each `copies` times, laid out in `order`. `back` is the inverse of `order`, for the backward pass."""
    reordered: Tensor = _Reorder.apply(rows, order, back, copies)  # type: ignore[no-untyped-call]
    return reordered


def _counts(chosen_BSK: Tensor, experts: int) -> Tensor:
    """Number of token copies of each sequence that go to each expert, (B, E)."""
    batch = chosen_BSK.shape[0]
    counts_BE = torch.zeros(batch, experts, dtype=torch.long, device=chosen_BSK.device)
    flat = chosen_BSK.flatten(1)
    return counts_BE.scatter_add_(1, flat, torch.ones_like(flat))


def _has_grouped_product(rows: Tensor, weight: Tensor) -> bool:
    """Whether PyTorch's grouped product takes these operands: rows of whole 16 bytes, and on a GPU bf16."""
    is_aligned = all(width * rows.element_size() % 16 == 0 for width in weight.shape[1:])
    is_supported = rows.device.type == "cpu" or (rows.device.type == "cuda" and rows.dtype == torch.bfloat16)
    return is_aligned and is_supported and rows.shape[0] > 0


class _Reorder(torch.autograd.Function):
    """k copies of each row, laid out in `order`. The backward pass sums the copies' gradients, always in the same
    order.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, back: Tensor, k: int) -> Tensor:
        """k copies of each row, laid out in `order`."""
        ctx.save_for_backward(back)
        ctx.k = k
        return rows.index_select(0, order if k == 1 else order // k)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Gradient of each row: the sum of its copies' gradients."""
        copies = gradient.index_select(0, *ctx.saved_tensors)
        rows = copies if ctx.k == 1 else copies.view(-1, ctx.k, gradient.shape[-1]).sum(1)
        return rows, None, None, None


class _AddLoss(torch.autograd.Function):
    """Identity that adds `share` times `loss` to what is differentiated in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, share: float) -> Tensor:
        """`x`, unchanged; the loss is kept for the backward pass."""
        ctx.save_for_backward(loss)
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradient of `x`, which passes unchanged, and gradient of the loss, which is `share`."""
        (loss,) = ctx.saved_tensors
        return gradient, torch.full_like(loss, ctx.share), None
