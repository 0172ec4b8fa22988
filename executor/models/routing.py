"""Top-k routing: the experts of a token and their weights, from its router's scores.

Shape legend: B batch, S this rank's tokens of a sequence, E experts, K experts a token, G groups of M experts, C groups
that a token chooses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cost_models.specs.transformer import ExpertGroups, TransformerSpec


def choose_experts(
    spec: TransformerSpec, scores_BSE: Tensor, bias_E: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of all experts (they sum to one), and the weights and numbers of those chosen, in fp32.

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
    """(B, S, E) whether an expert is in one of the groups that its token chooses."""
    values_BSGM = torch.unflatten(values_BSE, -1, (groups.count, -1))
    best = 1 if groups.scored_by == "best" else 2
    groups_BSC = values_BSGM.topk(best, dim=-1).values.sum(-1).topk(groups.per_token, dim=-1).indices
    open_BSG = torch.zeros(values_BSGM.shape[:-1], dtype=torch.bool, device=values_BSE.device)
    open_BSG.scatter_(-1, groups_BSC, value=True)
    return open_BSG.repeat_interleave(values_BSGM.shape[-1], dim=-1)
