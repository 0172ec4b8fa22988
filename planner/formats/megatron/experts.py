"""Mixtures of experts in Megatron Core's arguments, written and read.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/transformer/transformer_config.py, core/transformer/moe/router.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cost_models.errors import InputError
from planner.formats.exporter import NOTHING, Job, Translate, Word, lacks, nothing, only, says
from planner.formats.megatron.arguments import TABLE, Arguments
from planner.formats.table import table_of

_SCORED_BY = "two best"
"""How Megatron Core scores a group of experts."""


def _moe_layers(job: Job) -> Word:
    model = job.model
    if model.num_moe_layers == model.num_layers:
        return NOTHING
    of = set(model.moe_layers) or set(range(model.num_layers - model.num_moe_layers, model.num_layers))
    return says(moe_layer_freq=[int(layer in of) for layer in range(model.num_layers)])


def _groups(job: Job) -> Word:
    groups = job.model.expert_groups
    if groups is None:
        return NOTHING
    if groups.scored_by != _SCORED_BY:
        return lacks("it scores a group by its two best experts")
    return says(moe_router_num_groups=groups.count, moe_router_group_topk=groups.per_token)


def _scores(job: Job) -> Word:
    """Scores that a bias balances are made in fp32, as DeepSeek-V3 has them."""
    kind = job.model.router_scores
    if not job.model.routing_bias:
        return says(moe_router_score_function=kind)
    if kind != "sigmoid":
        return lacks("it balances experts by a bias beside sigmoid scores alone")
    return says(moe_router_score_function=kind, moe_router_dtype="fp32")


def _normalized(job: Job) -> Word:
    if job.model.normalized_routing:
        return NOTHING
    if job.model.router_scores == "softmax":
        return says(moe_router_pre_softmax=True)
    return lacks("it scales the weights of sigmoid scores to sum to one")


def _balance(job: Job) -> Word:
    if not job.model.load_balance:
        return says(moe_router_load_balancing_type="none")
    return says(moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=job.model.load_balance)


def _of_mixtures(word: Callable[[Job], Word]) -> Translate:
    """For a field that only mixtures have."""
    return lambda job: word(job) if job.model.has_experts else NOTHING


EXPERTS: Mapping[str, Translate] = {
    "model.num_moe_layers": _of_mixtures(_moe_layers),
    "model.moe_layers": nothing,  # said with their number
    "model.router_bias": only("model.router_bias", "its router has no bias", False),
    "model.expert_groups": _of_mixtures(_groups),
    "model.router_scores": _of_mixtures(_scores),
    "model.normalized_routing": _of_mixtures(_normalized),
    "model.load_balance": _of_mixtures(_balance),
}
"""Fields of mixtures whose settings do not follow from the table."""


def experts_of(said: Arguments, mixtures: tuple[int, ...], dense: int) -> dict[str, Any]:
    """Fields of a model with experts. `mixtures` marks its blocks that have them, `dense` is the width of the others'
    MLP.

    Raises:
        InputError: the load balance is no number.
    """
    of = tuple(at for at, one in enumerate(mixtures) if one)
    fields: dict[str, Any] = {
        **table_of(TABLE).fields("model", said.get, mixtures=True),
        "moe_ffn_hidden_size": said.get("moe_ffn_hidden_size", dense),
        "num_moe_layers": len(of),
        "normalized_routing": not said.get("moe_router_pre_softmax"),
        "load_balance": _balance_of(said),
    }
    if of != tuple(range(len(mixtures) - len(of), len(mixtures))):
        fields["moe_layers"] = of
    if said.has("moe_router_num_groups"):
        fields["expert_groups"] = {
            "count": said.get("moe_router_num_groups"),
            "per_token": said.get("moe_router_group_topk"),
            "scored_by": _SCORED_BY,
        }
    return fields


def _balance_of(said: Arguments) -> float:
    if said.get("moe_router_load_balancing_type")[0] != "aux_loss":
        return 0.0
    text = said.get("moe_aux_loss_coeff")[0]
    try:
        return float(text)
    except ValueError:
        raise InputError(f"`--moe-aux-loss-coeff {text}` is no number") from None
