"""Megatron Core's words for a plan, first of all for its layout, as names of its arguments: Megatron-LM's flags and the
fields of Megatron Bridge's recipes are the same.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py, core/transformer/
transformer_config.py, core/model_parallel_config.py, core/optimizer/optimizer_config.py,
core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.axes.recompute import named_blocks, policies_in
from cost_models.axes.words import EVERY
from planner.formats.megatron.model import MODEL, nothing
from planner.formats.megatron.training import TRAINING, stack_words
from planner.formats.words import NOTHING, Asked, Translate, Word, lacks, otherwise, says

_CONTEXT = {"ring": "p2p", "all-gather": "all_gather", "all-to-all": "a2a"}
_RECOMPUTED = {"core": "core_attn", "experts": "moe"}
_OFFLOADED = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm")
_OFFLOADED_OF_EXPERTS = ("expert_fc1", "moe_act")


def pipeline_layout(layers: tuple[int, ...]) -> str:
    """Blocks of every virtual stage in the words of `--pipeline-model-parallel-layout`: `Ettt|tttt|tttL`."""
    stages = ["t" * count for count in layers]
    stages[0] = "E" + stages[0]
    stages[-1] += "L"
    return "|".join(stages)


def _vpp(asked: Asked) -> Word:
    layout = asked.layout
    if layout.vpp == 1 or not _even(asked):
        return NOTHING  # the stages of `layers` say it
    return says(num_layers_per_virtual_pipeline_stage=layout.layers[0])


def _layers(asked: Asked) -> Word:
    if _even(asked):
        return NOTHING
    return says(pipeline_model_parallel_layout=pipeline_layout(asked.layout.layers))


def _even(asked: Asked) -> bool:
    return len(set(asked.layout.layers)) == 1


def _cp(asked: Asked) -> Word:
    return says(context_parallel_size=asked.layout.cp)


def _context(asked: Asked) -> Word:
    if asked.layout.cp == 1:
        return NOTHING
    return says(cp_comm_type=[_CONTEXT[asked.layout.context or asked.stack.context_parallel]])


def _etp(asked: Asked) -> Word:
    if not asked.model.has_experts:
        return NOTHING
    return says(expert_tensor_parallel_size=asked.layout.expert_tp)


def _zero(asked: Asked) -> Word:
    if asked.layout.zero == 0:
        return NOTHING
    if asked.layout.zero == 1:
        return says(use_distributed_optimizer=True)
    return lacks("its distributed optimizer shards optimizer states (zero1)")


def _shard(asked: Asked) -> Word:
    instances = asked.layout.data_ranks // asked.layout.shard_group
    if instances == 1 or asked.layout.zero == 0:
        return NOTHING
    return otherwise(
        f"{instances} instances of the optimizer, each sharded", num_distributed_optimizer_instances=instances
    )


def _sp(asked: Asked) -> Word:
    return says(sequence_parallel=True) if asked.layout.sp else NOTHING


def _schedule(asked: Asked) -> Word:
    if asked.layout.schedule in ("1f1b", "interleaved"):
        return NOTHING  # the latter where a rank has several chunks
    return lacks("it runs 1f1b, and interleaved where vpp is above 1")


def _order(asked: Asked) -> Word:
    orders = {"tp-cp-dp-pp": NOTHING, "tp-cp-pp-dp": says(use_tp_pp_dp_mapping=True)}
    return orders.get(asked.layout.order, lacks("it seats ranks tp-cp-dp-pp or tp-cp-pp-dp"))


def _recompute(asked: Asked) -> Word:
    layout = asked.layout
    if len(set(layout.recompute)) > 1:
        return lacks("it recomputes the same on every stage")
    mix = layout.recompute[0]
    match policies_in(mix):
        case ("none",):
            return NOTHING
        case ("full",):
            return says(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
        case ("selective",):
            return _selective(asked)
        case ("full", "none") | ("none", "full"):
            return says(
                recompute_granularity="full",
                recompute_method="block",
                recompute_num_layers=_counted(asked, mix),
            )
    return lacks("it has one policy for the blocks of a stage")


def _counted(asked: Asked, mix: str) -> int:
    """Blocks of a stage that are recomputed in full."""
    if "full:" in mix:
        return named_blocks("/".join(part for part in mix.split("/") if part.startswith("full")))
    return min(asked.layout.layers) - named_blocks(mix)


def _selective(asked: Asked) -> Word:
    drops = asked.stack.selective_drops
    if drops not in _RECOMPUTED:
        return lacks(f"its modules to recompute are others than what the stack drops ({drops})")
    return says(recompute_granularity="selective", recompute_modules=[_RECOMPUTED[drops]])


def _offload(asked: Asked) -> Word:
    moved = asked.layout.offload
    if missing := [part for part in ("parked", "streamed", "drive") if getattr(moved, part)]:
        return lacks(f"it keeps no {' and '.join(missing)} blocks on the host")
    settings: dict[str, Any] = {}
    how = []
    if moved.states:
        blocks = min(asked.layout.layers) * asked.layout.vpp
        share = 1.0 if moved.states >= EVERY else min(1.0, moved.states / blocks)
        settings |= {
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": round(share, 6),
            "use_precision_aware_optimizer": True,
        }
        how.append(f"states of {share:.0%} of a rank's parameters, in their order")
    if moved.activations:
        named = _OFFLOADED + (_OFFLOADED_OF_EXPERTS if asked.model.has_experts else ())
        settings |= {"fine_grained_activation_offloading": True, "offload_modules": list(named)}
        how.append(f"the inputs of {', '.join(named)}")
    return otherwise("; ".join(how), **settings) if how else NOTHING


def _ring(asked: Asked) -> Word:
    return NOTHING  # a part of streaming, which `offload` answers for


def _pools(asked: Asked) -> Word:
    return lacks("all its ranks are of one kind") if asked.layout.pools else NOTHING


def _replicas(asked: Asked) -> Word:
    return lacks("replicas take equal shares") if asked.layout.replicas else NOTHING


LAYOUT: Mapping[str, Translate] = {
    "tp": lambda asked: says(tensor_model_parallel_size=asked.layout.tp),
    "pp": lambda asked: says(pipeline_model_parallel_size=asked.layout.pp),
    "vpp": _vpp,
    "cp": _cp,
    "dp": nothing,  # what is left of the processes
    "ep": lambda asked: says(expert_model_parallel_size=asked.layout.ep) if asked.layout.ep > 1 else NOTHING,
    "etp": _etp,
    "mbs": lambda asked: says(micro_batch_size=asked.layout.mbs),
    "zero": _zero,
    "shard": _shard,
    "sp": _sp,
    "schedule": _schedule,
    "order": _order,
    "context": _context,
    "recompute": _recompute,
    "offload": _offload,
    "ring": _ring,
    "overlap": nothing,  # said with what the stack overlaps where no layout says
    "layers": _layers,
    "pools": _pools,
    "replicas": _replicas,
}


def core_words(own_attention: str) -> dict[str, Translate]:
    """Megatron Core's word for every field that it switches."""
    parts = {"layout": LAYOUT, "training": TRAINING, "model": MODEL, "stack": stack_words(own_attention)}
    return {f"{part}.{name}": word for part, words in parts.items() for name, word in words.items()}
